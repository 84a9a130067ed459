// The folder of a run, runs/NAME: its lock, and how step folders appear and disappear.
//   RunDir run(name);  run.start_fresh(overwrite);
//   std::string folder = run.begin_step(1000);  ... files are written into the folder ...
//   run.publish_step(1000);        // runs/NAME/step_00001000 appears, complete and on the disk, by one rename
// Step folders are complete by construction: while one is written or deleted it is called .tmp_*, never step_*.
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/file.h"

struct StepFolder {
  int64_t step;
  std::string path;
};
// The step_* folders of a run, newest first; empty if the run's folder does not exist. Needs no lock.
std::vector<StepFolder> step_folders(const std::string& run_path);
std::string step_folder_name(int64_t step);       // step_00001000
int64_t step_in_name(const std::string& path);    // 1000 if the last part of the path is such a name, else 0
int64_t step_of_folder(const std::string& path);  // the same for an existing folder
// Locks a step folder until `lock` is destroyed: LOCK_SH while it is read, LOCK_EX while it is removed. Returns false
// if another process has it for the other purpose.
bool lock_step(const std::string& folder, int kind, File& lock);
std::vector<std::string> set_aside_folders(const std::string& run_path);  // names of damaged ones: bad_step_*
std::vector<std::string> old_folders(const std::string& run_path);        // names of put_away_after()'s: old_steps*

class RunDir {
 public:
  // Creates runs/NAME below the working directory and locks it until this object is destroyed or the process ends;
  // removes .tmp_*, which an interrupted process left, or warns if it cannot. A run that another process has locked, or
  // a folder that cannot be written, is a user_error.
  explicit RunDir(const std::string& name, const std::string& root = "runs");
  const std::string& path() const { return path_; }
  std::string metrics_path() const { return path_ + "/metrics.jsonl"; }
  std::string config_path() const { return path_ + "/config.json"; }

  // Before training without --resume: a run that has checkpoints, also damaged or old ones (bad_step_*, old_steps), is
  // a user_error. With `overwrite` they are removed, and metrics.jsonl, which otherwise becomes old_metrics.jsonl.
  void start_fresh(bool overwrite);

  std::string begin_step(int64_t step);    // an empty folder for the step's files; an older attempt's is removed
  std::string publish_step(int64_t step);  // syncs the files and renames the folder; returns the step folder
  // Removes the other checkpoints, except those that another process reads and those that neither this object wrote nor
  // its constructor found. Warns of the last and of what it cannot remove.
  void keep_newest(size_t count);
  void abandon_step(int64_t step);  // removes the folder that begin_step made, if it can
  // Renames a damaged step_N to bad_step_N, from which no run resumes by itself. Returns the new path.
  std::string set_aside(int64_t step);
  // Before a run goes back to `step`: moves later step folders to old_steps, with a copy of metrics.jsonl, as a run of
  // their own. So the metrics always end at the newest step folder. Returns the new folder, "" if nothing was moved.
  std::string put_away_after(int64_t step);

 private:
  void remove_step(const StepFolder& folder);
  std::string path_;
  File lock_;
  std::set<int64_t> own_, foreign_;  // steps; the foreign ones have been warned of
};
