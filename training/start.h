// Finds and checks what a run needs before its first step, and reports errors before an older run's files are touched.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "checkpoint/resume.h"
#include "data/loader.h"
#include "ranks/comm.h"
#include "settings/command_line.h"
#include "training/device.h"

// Chooses this rank's device, describes it, and completes the settings that depend on it (precision, threads).
// remeasure: as use_product_cache()'s.
DeviceInfo prepare_device(Config& config, const Ranks& ranks, bool remeasure);

struct Data {
  std::vector<Shard> train, val;
  std::vector<DataFile> train_files, val_files;
};

// Opens and checks the shards that the run will read and the lengths it evaluates: --lengths, if given, becomes
// eval.lengths. A user_error names the key.
Data open_data(const Flags& flags, Config& config, bool training, bool evaluates);
// The windows of `shards` for training; prints their number and the number of epochs. A user_error if there are none.
std::unique_ptr<WindowReader> training_windows(const Config& config, const std::vector<Shard>& shards);

struct Beginning {
  ResumePlace place;
  std::optional<Checkpoint> from;   // none: the run begins afresh
  std::unique_ptr<RunDir> run_dir;  // of rank 0; locks the run, so that the checkpoint stays as it was found
};

// Finds where --resume asks to start; all ranks find the same. real_run: steps will be made and written. A user_error
// if --resume names nothing that can be resumed.
Beginning find_beginning(const Flags& flags, const Config& config, Comm& comm, bool training, bool real_run);
