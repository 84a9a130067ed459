#include "checkpoint/run_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/error.h"

namespace fs = std::filesystem;

static const char* const OLD_STEPS = "old_steps";

// Every call takes a std::error_code, because the exceptions of std::filesystem do not name a fix.
static void check(const std::error_code& error, const char* what, const std::string& path) {
  if (error) failure("cannot %s %s: %s", what, path.c_str(), error.message().c_str());
}

// The same before a run begins, while the user can still choose another place.
static void check_access(const std::error_code& error, const char* what, const std::string& path) {
  if (error == std::errc::permission_denied || error == std::errc::read_only_file_system)
    user_error("runs: cannot %s %s: %s; change that, or start in a folder whose runs/ you may read and write", what,
               path.c_str(), error.message().c_str());
  check(error, what, path);
}

static std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entries(path, error);
  if (error == std::errc::no_such_file_or_directory) return names;
  for (; entries != fs::directory_iterator(); entries.increment(error))
    names.push_back(entries->path().filename().string());
  check_access(error, "list", path);  // an error ends the loop
  std::sort(names.begin(), names.end());
  return names;
}

static void remove_tree(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  check(error, "remove", path);
}

// A leftover that cannot be removed only takes space, so it does not end the run.
template <class F> static void try_to_remove(F remove) {
  try {
    remove();
  } catch (const Failure& error) {
    warn("%s; it was not removed", error.what());
  }
}

static void rename(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::rename(from, to, error);
  check(error, "rename", from);
}

static std::string free_name(const std::string& path) {  // path, path_2, path_3, ...
  std::string name = path;
  for (int i = 2; is_there(name); i++) name = format("%s_%d", path.c_str(), i);
  return name;
}

std::string step_folder_name(int64_t step) { return format("step_%08ld", step); }

int64_t step_in_name(const std::string& path) {
  std::string name = fs::path(path).filename();
  if (name.size() < 13 || name.size() > 20 || !name.starts_with("step_")) return 0;
  if (name.find_first_not_of("0123456789", 5) != std::string::npos) return 0;
  int64_t step = std::stoll(name.substr(5));
  return name == step_folder_name(step) ? step : 0;
}

int64_t step_of_folder(const std::string& path) { return is_folder(path) ? step_in_name(path) : 0; }

std::vector<StepFolder> step_folders(const std::string& run_path) {
  std::vector<StepFolder> found;
  for (auto& name : names_in(run_path))
    if (int64_t step = step_of_folder(run_path + "/" + name)) found.push_back({step, run_path + "/" + name});
  std::sort(found.begin(), found.end(), [](auto& a, auto& b) { return a.step > b.step; });
  return found;
}

bool lock_step(const std::string& folder, int kind, File& lock) {
  try {
    lock = File::open_to_sync(folder);
  } catch (const Failure&) {  // it is gone or unreadable: other calls report that
    return true;
  }
  return ::flock(lock.descriptor(), kind | LOCK_NB) == 0 || errno != EWOULDBLOCK;  // not all file systems have locks
}

// A user's own folder, as old_steps_notes, or an empty one does not count.
std::vector<std::string> old_folders(const std::string& run_path) {
  std::vector<std::string> found;
  for (auto& name : names_in(run_path)) {
    std::string number = name.substr(std::min(name.size(), std::strlen(OLD_STEPS)));  // "" or _2
    bool ours = name.starts_with(OLD_STEPS) &&
                (number.empty() || (number[0] == '_' && number.size() > 1 &&
                                    number.find_first_not_of("0123456789", 1) == std::string::npos));
    if (ours && is_folder(run_path + "/" + name) && !step_folders(run_path + "/" + name).empty()) found.push_back(name);
  }
  return found;
}

std::vector<std::string> set_aside_folders(const std::string& run_path) {
  std::vector<std::string> found;
  for (auto& name : names_in(run_path))
    if (name.starts_with("bad_step_")) found.push_back(name);
  return found;
}

RunDir::RunDir(const std::string& name, const std::string& root) : path_(root + "/" + name) {
  std::error_code error;
  fs::create_directories(path_, error);
  if (error == std::errc::not_a_directory || error == std::errc::file_exists)
    user_error(
        "runs: %s cannot be created, because a file of that name is in the way; remove it, or choose another name "
        "(--set name=...)",
        path_.c_str());
  check_access(error, "create the folder", path_);
  for (const std::string& folder : {root, path_}) {
    if (::faccessat(AT_FDCWD, folder.c_str(), R_OK | W_OK, AT_EACCESS) != 0)
      error.assign(errno, std::generic_category());
    check_access(error, "read and write", folder);
  }
  sync_path(root);  // a checkpoint is on the disk only if its run is
  lock_ = File::open_to_append(path_ + "/.lock");
  int locked;
  do locked = ::flock(lock_.descriptor(), LOCK_EX | LOCK_NB);
  while (locked != 0 && errno == EINTR);
  if (locked != 0 && errno == EWOULDBLOCK) {
    char owner[64] = "";
    if (::pread(lock_.descriptor(), owner, sizeof owner - 1, 0) > 0) owner[std::strcspn(owner, "\n")] = 0;
    user_error(
        "runs: another process%s%s%s is writing to %s (it holds %s); wait for it or stop it, or choose another name "
        "(--set name=...)",
        owner[0] ? ", " : "", owner, owner[0] ? "," : "", path_.c_str(), lock_.path().c_str());
  }
  if (locked != 0 && (errno == ENOSYS || errno == EOPNOTSUPP || errno == ENOLCK))  // Lustre mounted without flock
    warn("the file system of %s has no locks (%s); do not start a second process that writes to it", path_.c_str(),
         std::strerror(errno));
  else if (locked != 0) failure("cannot lock %s: %s", lock_.path().c_str(), std::strerror(errno));
  // The lock ends with the process, however that ends. The file stays; its text only names the process.
  lock_.truncate(0);
  std::string owner = format("pid %d\n", int(::getpid()));
  lock_.write(owner.data(), owner.size());
  for (auto& name : names_in(path_))
    if (name.starts_with(".tmp_")) try_to_remove([&] { remove_tree(path_ + "/" + name); });
  for (const StepFolder& folder : step_folders(path_)) own_.insert(folder.step);
}

// Renamed before it is deleted, so a half-deleted checkpoint is never called step_*.
void RunDir::remove_step(const StepFolder& folder) {
  std::string removed = path_ + "/.tmp_removed_" + step_folder_name(folder.step);
  remove_tree(removed);
  rename(folder.path, removed);
  remove_tree(removed);
}

void RunDir::keep_newest(size_t count) {
  size_t kept = 0;
  for (auto& folder : step_folders(path_)) {
    if (own_.contains(folder.step)) {
      if (++kept <= count) continue;
      File remover;  // another process may be reading it: next time, then
      if (lock_step(folder.path, LOCK_EX, remover)) try_to_remove([&] { remove_step(folder); });
    } else if (foreign_.insert(folder.step).second) {
      warn("%s is not a checkpoint of this training; it was not removed", folder.path.c_str());
    }
  }
}

void RunDir::abandon_step(int64_t step) {
  std::error_code ignored;
  fs::remove_all(path_ + "/.tmp_" + step_folder_name(step), ignored);
}

std::string RunDir::set_aside(int64_t step) {
  std::string name = step_folder_name(step), target = free_name(path_ + "/bad_" + name);
  rename(path_ + "/" + name, target);
  return target;
}

// Newest first: an interruption leaves a run that ends earlier, and metrics that can be rewound to its end.
std::string RunDir::put_away_after(int64_t step) {
  std::vector<StepFolder> later = step_folders(path_);
  std::erase_if(later, [&](auto& folder) { return folder.step <= step; });
  if (later.empty()) return "";
  // The folder gets its name when the metrics are in it: an attempt that fails, on a full disk, leaves nothing behind.
  std::string half = path_ + "/.tmp_" + OLD_STEPS, old = free_name(path_ + "/" + OLD_STEPS);
  remove_tree(half);
  std::error_code error;
  fs::create_directory(half, error);
  check(error, "create the folder", half);
  try {
    copy_text_file(metrics_path(), half + "/metrics.jsonl");
    rename(half, old);
  } catch (...) {
    fs::remove_all(half, error);
    throw;
  }
  for (auto& folder : later) rename(folder.path, old + "/" + step_folder_name(folder.step));
  for (auto& name : names_in(old)) sync_path(old + "/" + name);
  sync_path(old), sync_path(path_);  // before the metrics are rewound
  return old;
}

void RunDir::start_fresh(bool overwrite) {
  std::vector<std::string> others = set_aside_folders(path_);  // checkpoints that --resume does not find by itself
  for (auto& name : old_folders(path_)) others.push_back(name);
  auto steps = step_folders(path_);
  if (!overwrite && steps.empty() && !others.empty())
    user_error(
        "runs: %s already has checkpoints in %s; replace them with --overwrite, or choose another name (--set "
        "name=...)",
        path_.c_str(), others[0].c_str());
  if (!overwrite && !steps.empty())
    user_error(
        "runs: %s already has checkpoints up to step %ld; continue it with --resume, replace it with "
        "--overwrite, or choose another name (--set name=...)",
        path_.c_str(), steps[0].step);
  for (auto& folder : steps) remove_step(folder);
  for (auto& name : others) remove_tree(path_ + "/" + name);
  if (overwrite) remove_tree(metrics_path());
  else if (is_there(metrics_path())) rename(metrics_path(), free_name(path_ + "/old_metrics.jsonl"));
}

std::string RunDir::begin_step(int64_t step) {
  std::string folder = path_ + "/.tmp_" + step_folder_name(step);
  remove_tree(folder);
  std::error_code error;
  fs::create_directory(folder, error);
  check(error, "create the folder", folder);
  return folder;
}

std::string RunDir::publish_step(int64_t step) {
  std::string folder = path_ + "/.tmp_" + step_folder_name(step), target = path_ + "/" + step_folder_name(step);
  sync_path(folder);
  rename(folder, target);
  sync_path(path_);
  own_.insert(step);
  return target;
}
