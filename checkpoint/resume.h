// Where a run goes on, and whether it may: with settings and data that make it the same run.
// THE configuration table says which settings may change (ConfigRow::may_change). Beyond it train.steps may, where the
// learning rates of the steps already made stay what they were; and data files may move, but not change their names,
// content or order.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "settings/config.h"

// A folder by its name, and the N of step_N: 0 where it is not a run's step folder. A slash at the end does not matter.
StepFolder named_folder(const std::string& path);

// What --resume means: a run, or one of its step folders.
struct ResumePlace {
  std::string run;   // as runs/NAME where it is the run that this process trains
  StepFolder step;   // path "": the newest
  bool own = false;  // it is that run
  bool within = false;  // it lies in that run's folder: the run itself, or what it has put away
};
ResumePlace resume_place(const std::string& resume, const std::string& name);

// The checkpoint there, verified (training: as read_checkpoint's); none where the run has none yet. Says which it is and
// which are damaged, and sets those aside where `run` is given. A user_error where there are checkpoints and none is
// intact.
std::optional<Checkpoint> resume_point(const ResumePlace& place, bool training, RunDir* run);

std::string described(const DataFile& file);  // "a.bin" of 1000 tokens (CHECKSUM)

// A user_error with a list of old and new values. In `now` batch.micro = 0 stands for the checkpoint's.
// train, val: the files of `now`; val is not compared where one of the two does not evaluate.
void check_same_run(const Checkpoint& checkpoint, const Config& now, const std::vector<DataFile>& train,
                    const std::vector<DataFile>& val);

// For what only uses the weights: a user_error with a list where settings of model or attention differ. run: the folder
// that the checkpoint is of.
void check_same_model(const Checkpoint& checkpoint, const Config& now, const std::string& run);

// The run's folder before the first step: empty, or as it was at the checkpoint. place: where that lies.
void begin_run(RunDir& run, bool overwrite, const std::optional<Checkpoint>& from, const ResumePlace& place,
               const Config& config);
