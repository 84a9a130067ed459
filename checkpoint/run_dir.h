// The folder of a run, runs/NAME: who may write into it, and how step folders come and go.
//   RunDir run(name);  run.start_fresh(overwrite);
//   std::string folder = run.begin_step(1000);  ... files are written into the folder ...
//   run.publish_step(1000);        // runs/NAME/step_00001000 appears, complete and on the disk, by one rename
// Step folders are complete by construction: what is being written is called .tmp_*, and nothing else is ever step_*.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/file.h"

struct StepFolder {
  int64_t step;
  std::string path;
};
// The step_* folders of a run, newest first; none where the folder does not exist. Needs no lock.
std::vector<StepFolder> step_folders(const std::string& run_path);
std::string step_folder_name(int64_t step);       // step_00001000
int64_t step_of_folder(const std::string& path);  // 1000 of a folder of that name, else 0
std::vector<std::string> set_aside_folders(const std::string& run_path);  // bad_*: names of damaged ones
std::vector<std::string> old_folders(const std::string& run_path);  // old_steps*: put_away_after()'s that hold steps

class RunDir {
 public:
  // Creates runs/NAME below the working directory and locks it, until the end of this object's life or of the process.
  // A run that another process has locked is a user_error.
  explicit RunDir(const std::string& name, const std::string& root = "runs");
  const std::string& path() const { return path_; }
  std::string metrics_path() const { return path_ + "/metrics.jsonl"; }
  std::string config_path() const { return path_ + "/config.json"; }

  // Before training without --resume: a run that has checkpoints, damaged and old ones (bad_step_*, old_steps) too, is a
  // user_error; with `overwrite` they are removed, and metrics.jsonl, which otherwise becomes old_metrics.jsonl. What an
  // interrupted process left is removed either way.
  void start_fresh(bool overwrite);

  std::string begin_step(int64_t step);    // an empty folder for the step's files; a former attempt's is removed
  std::string publish_step(int64_t step);  // syncs what is in it and renames; returns the step folder
  void keep_newest(size_t count);          // removes all others; a warning where it cannot
  void abandon_step(int64_t step);         // removes what begin_step made, as far as that is possible
  std::string set_aside(
      int64_t step);  // step_N is damaged: it becomes bad_step_N, which nobody continues; the new path
  // Before a run goes back to `step`: later step folders move to old_steps, with a copy of metrics.jsonl, like a run of
  // their own. So the newest step folder is always where the metrics end. Returns that folder, "": nothing was moved.
  std::string put_away_after(int64_t step);
  void remove_leftovers();                 // .tmp_*: what an interrupted process left; a warning where it cannot

 private:
  void remove_step(const StepFolder& folder);
  std::string path_;
  File lock_;
};
