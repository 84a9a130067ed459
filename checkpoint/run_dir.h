// The folder of a run, runs/NAME, and all names in it (a number _2, _3, ... follows where a name is taken):
//   name                 made by                       read by                     removed by
//   .lock                RunDir()                      RunDir()                    nothing
//   config.json          begin_run()                   ./train runs/NAME, scripts  begin_run() replaces it
//   metrics.jsonl        MetricsLog                    evaluated_ids(), scripts    start_fresh()
//   old_metrics.jsonl    start_fresh()                 nothing                     nothing
//   step_N               publish_step()                read_checkpoint(), init     keep_newest(), start_fresh()
//   bad_step_N           set_aside()                   nothing                     start_fresh(overwrite)
//   old_steps            put_away_after()              --resume and init by name   start_fresh(overwrite)
//   .tmp_step_N          begin_step()                  nothing                     publish_step() renames it
//   .tmp_removed_step_N  keep_newest(), start_fresh()  nothing                     the same call
//   .tmp_old_steps       put_away_after()              nothing                     the same call renames it
// Invariants:
// 1. A step_N is complete and on the disk, and stays as it is until it is renamed: its writers sync its files,
//      then its folder is synced, then it gets its name, by one rename, then runs/NAME is synced.
//   2. Only the holder of .lock makes, renames or removes names. Others may read: read_checkpoint() holds a shared lock
// of a step_N, and keep_newest() keeps that folder.
//   3. Before step_N appears, metrics.jsonl is on the disk up to step N. Before rewind_metrics() cuts it back to that,
//      later step folders have moved to old_steps with a copy of it.
//   4. A .tmp_*, also that of a PendingFile, belongs to a call that runs; RunDir() removes those that an interrupted
//      process left.
// 5. --resume takes a step_N of its run. bad_step_N and old_steps are used only if the user names them.
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
  // Creates runs/NAME below the working directory and locks it until this object is destroyed or the process ends. A
  // run that another process has locked, or a folder that cannot be written, is a user_error.
  explicit RunDir(const std::string& name, const std::string& root = "runs");
  const std::string& path() const { return path_; }
  std::string metrics_path() const { return path_ + "/metrics.jsonl"; }
  std::string config_path() const { return path_ + "/config.json"; }

  // Before training without --resume: a run that has checkpoints, also damaged or old ones (bad_step_*, old_steps), is
  // a user_error. With `overwrite` they are removed, and metrics.jsonl, which otherwise becomes old_metrics.jsonl.
  void start_fresh(bool overwrite);

  std::string begin_step(int64_t step);    // an empty folder for the step's files; an older attempt's is removed
  std::string publish_step(int64_t step);  // syncs and renames the folder; returns the step folder
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
