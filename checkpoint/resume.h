// Where a run resumes, and whether it may: only with settings and data that make it the same run.
// The configuration table says which settings may change (ConfigRow::at_resume). train.steps may change too, if the
// learning rates of the steps already made stay the same. Data files may move, but their names, content and order must
// not change.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "ranks/comm.h"
#include "settings/command_line.h"

// The folder without a trailing slash, and the N of step_N: 0 if it is not a step folder.
StepFolder named_folder(const std::string& path);

// Where a run begins: the run, or one of its step folders, that --resume names, and the checkpoint there.
struct ResumePoint {
  std::string run = {};  // runs/NAME, if it is the run that this process trains
  StepFolder step = {};  // path "": the newest
  bool own = false;      // it is that run
  bool within = false;   // it is in that run's folder: the run itself, or checkpoints that it moved to old_steps
  std::optional<Checkpoint> from = {};   // none: the run begins afresh
  std::unique_ptr<RunDir> run_dir = {};  // of rank 0; locks the run, so that the checkpoint stays as it was found
};
// Without the last two.
ResumePoint named_resume_point(const std::string& resume, const std::string& name);

// Finds where --resume asks to start; rank 0 chooses the checkpoint, which all verify. A user_error if --resume names
// nothing that can be resumed, or if random weights would be used instead of the run's checkpoints.
ResumePoint find_resume_point(const Flags& flags, const Config& config, Comm& comm);

// The state of the newest checkpoint there that can be read, not verified yet; none if there is none.
std::optional<RunState> newest_state(const ResumePoint& point);

std::string checkpoint_before(const std::string& run, int64_t step);  // the newest one before `step`, "" if none

std::string described(const DataFile& file);  // "a.bin" of 1000 tokens (CHECKSUM)

// A user_error that lists old and new values, if they make it another run; else prints what changes.
// batch.micro = 0 in `now` means the checkpoint's.
// train, val: the files of `now`; val is not compared if the run did not or does not evaluate.
void check_same_run(const Checkpoint& checkpoint, const Config& now, const std::vector<DataFile>& train,
                    const std::vector<DataFile>& val);

// A user_error if the checkpoint or run at `path` has made more steps than train.steps.
void check_steps_left(const Config& now, int64_t made, const std::string& path);

// For uses of the weights alone: a user_error that lists the settings of model and attention that differ. run: the
// folder of the run that wrote the checkpoint.
void check_same_model(const Checkpoint& checkpoint, const Config& now, const std::string& run);

// Prepares the run's folder for the first step: empty, or as it was at the checkpoint.
void begin_run(RunDir& run, bool overwrite, const ResumePoint& point, const Config& config);
