#include "checkpoint/resume.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/load_save.h"
#include "checkpoint/metrics.h"
#include "settings/schedule.h"

namespace fs = std::filesystem;

StepFolder named_folder(const std::string& named) {
  fs::path path = named;
  if (!path.has_filename()) path = path.parent_path();
  return {step_of_folder(path.string()), path.string()};
}

ResumePoint named_resume_point(const std::string& resume, const std::string& name) {
  std::string own = "runs/" + name;
  if (resume == "latest") return {own, {}, true, true};
  std::error_code ignored;
  if (is_there(resume) && !is_folder(resume))
    user_error("command line: --resume: %s is not a folder; name a run or one of its step_* folders", resume.c_str());
  StepFolder named = named_folder(resume);
  fs::path path = named.path, parent = path.has_parent_path() ? path.parent_path() : ".";
  bool is_step = named.step > 0 || is_there(path / "state.json");  // a copy may have any name
  fs::path run = is_step ? parent : path;
  fs::path here = fs::weakly_canonical(run, ignored), there = fs::weakly_canonical(own, ignored);
  bool is_own = here == there;
  bool within = std::mismatch(there.begin(), there.end(), here.begin(), here.end()).first == there.end();
  return {is_own ? own : run.string(), is_step ? named : StepFolder{}, is_own, within};
}

// The checkpoint there, if there is one. Prints which are damaged, and sets these aside in run_dir.
static std::optional<Checkpoint> resume_checkpoint(const ResumePoint& point, bool training) {
  std::vector<SkippedCheckpoint> skipped;
  std::optional<Checkpoint> found;
  if (point.step.path.empty()) {
    found = newest_checkpoint(point.run, training, &skipped);
  } else {
    Checkpoint named;
    std::string reason = read_checkpoint(point.step.path, training, &named);
    if (reason.empty()) found = named;
    else skipped.push_back({point.step, reason, reason != REMOVED});
  }
  for (auto& [folder, reason, damaged] : skipped) {
    std::string now;
    if (point.run_dir && folder.step > 0 && damaged)
      now = "; it is now called " + point.run_dir->set_aside(folder.step);
    warn("skipped the %s checkpoint %s: %s%s", damaged ? "damaged" : "unreadable", folder.path.c_str(), reason.c_str(),
         now.c_str());
  }
  if (!found && std::any_of(skipped.begin(), skipped.end(), [](auto& checkpoint) { return !checkpoint.damaged; }))
    failure("%s has no checkpoint that can be read now; try again with --resume", point.run.c_str());
  std::vector<std::string> aside = set_aside_folders(point.run);
  if (!found && (!skipped.empty() || (point.step.path.empty() && !aside.empty())))
    user_error(
        "command line: --resume: %s has no intact checkpoint, only damaged ones%s; copy an intact one there, "
        "name another, or start over with --overwrite",
        point.step.path.empty() ? point.run.c_str() : point.step.path.c_str(),
        aside.empty() ? "" : (" (" + aside.back() + ")").c_str());
  std::vector<std::string> old = old_folders(point.run);
  if (!found && point.own && !old.empty())
    user_error(
        "command line: --resume: all checkpoints of %s were moved away; continue from them under another name "
        "(--resume %s --set name=...), or start over with --overwrite",
        point.run.c_str(), shell_quoted(point.run + "/" + old[0]).c_str());
  return found;
}

ResumePoint find_resume_point(const Flags& flags, const Config& config, Comm& comm) {
  bool training = flags.mode->makes_steps;
  std::string own = "runs/" + config.name;
  if (!flags.resuming && !training && config.init.empty() && !step_folders(own).empty())
    user_error(
        "command line: %s has checkpoints, but without --resume the weights would be random; give --resume, or --set "
        "init=DIR for other weights, or another name (--set name=...) for random ones",
        own.c_str());
  if (!flags.resuming) return {};
  ResumePoint found = named_resume_point(flags.resume, config.name);
  const std::string& run = found.run;
  if (flags.overwrite && found.within)
    user_error(
        "command line: --resume continues %s and --overwrite deletes it; give only one of them, or another name "
        "(--set name=...)",
        run.c_str());
  if (flags.is(Mode::train) && found.own && is_folder(run) && comm.first())
    found.run_dir = std::make_unique<RunDir>(config.name);
  std::optional<Checkpoint>& from = found.from;
  if (comm.first()) from = resume_checkpoint(found, training);
  std::string path = comm.broadcast(from ? from->path : ""), checksum = comm.broadcast(from ? from->checksum : "");
  if (!from && !path.empty()) {
    std::string problem = read_checkpoint(path, training, &from.emplace());
    if (problem.empty() && from->checksum != checksum) problem = "it is not the one of that name that rank 0 sees";
    if (!problem.empty())
      failure("checkpoint: %s: %s; all ranks must see the same runs/", path.c_str(), problem.c_str());
  }
  if (!from && !(training && found.own))
    user_error("command line: --resume: %s is neither a step_* folder nor a run that holds one", run.c_str());
  if (!from) std::printf("%s has no checkpoint yet: starting afresh\n", run.c_str());
  return found;
}

std::optional<RunState> newest_state(const ResumePoint& point) {
  std::vector<StepFolder> folders = {point.step};
  if (point.step.path.empty()) folders = step_folders(point.run);
  std::optional<RunState> state;
  for (size_t i = 0; i < folders.size() && !state; i++) state = read_state(folders[i].path);
  return state;
}

std::string described(const DataFile& file) {
  return format("%s of %ld tokens (%s)", shortened(json_quote(file.name)).c_str(), file.tokens, file.xxh64.c_str());
}

// Appends a description of the first difference between the lists.
static void compare_files(std::vector<std::string>& changes, const char* key, const std::vector<DataFile>& before,
                          const std::vector<DataFile>& now) {
  auto text = [](const std::vector<DataFile>& files, size_t i) {
    return i < files.size() ? described(files[i]) : std::string("no further shard");
  };
  for (size_t i = 0; i < std::max(before.size(), now.size()); i++) {
    if (i < before.size() && i < now.size() && before[i] == now[i]) continue;
    changes.push_back(format("%s, shard %zu: %s in the checkpoint, %s now", key, i + 1, text(before, i).c_str(),
                             text(now, i).c_str()));
    return;
  }
}

static std::string in_words(const ChangedSetting& change) {
  return format("%s: %s in the checkpoint, %s now", change.key.c_str(), change.was.c_str(), change.is.c_str());
}

void check_same_model(const Checkpoint& checkpoint, const Config& now, const std::string& run) {
  std::vector<std::string> changes;
  for (const ChangedSetting& change : changed_model(checkpoint.state.config, now)) changes.push_back(in_words(change));
  if (changes.empty()) return;
  bool kept = is_there(run + "/config.json");
  std::string problem = init_problem(checkpoint.state.config, now);
  std::string init = problem.empty() ? format(
                                           ", or, to see what they do in this model, init = \"%s\" instead of "
                                           "--resume",
                                           checkpoint.path.c_str())
                                     : " (init cannot take them either: " + problem + ")";
  user_error(
      "command line: --resume: the weights of %s belong to another model; use the settings with which they were "
      "trained%s%s:%s",
      checkpoint.path.c_str(),
      kept ? (" (./train " + shell_quoted(run + "/config.json") + " --resume ...)").c_str() : "", init.c_str(),
      listed(changes, 10).c_str());
}

void check_steps_left(const Config& now, int64_t made, const std::string& path) {
  if (now.train.steps < made)
    user_error("config: train.steps = %ld, but %s has made %ld steps already; set at least that many%s",
               now.train.steps, path.c_str(), made, source_tag(source_of(now, {"train.steps"})).c_str());
}

std::string checkpoint_before(const std::string& run, int64_t step) {
  for (const StepFolder& folder : step_folders(run))
    if (folder.step < step) return folder.path;
  return "";
}

// changes: what is not as when the run was begun. ways: what else could be done, each ending with a comma.
[[noreturn]] static void refuse_other_settings(const Checkpoint& checkpoint, const Config& now,
                                               const std::vector<std::string>& changes, const std::string& ways) {
  const Config& before = checkpoint.state.config;
  std::string name = now.name == before.name ? "--set name=... " : "", problem = init_problem(before, now);
  std::string init = problem.empty() ? format(
                                           "with these weights (%s--set %s, without --resume), with new "
                                           "moments, data order and steps",
                                           name.c_str(), shell_quoted("init=" + checkpoint.path).c_str())
                                     : format("(%swithout --resume), which cannot take these weights as init (%s)",
                                              name.c_str(), problem.c_str());
  user_error(
      "command line: --resume: the run in %s was begun with other settings; restore the old values, %sor begin "
      "another run %s:%s",
      checkpoint.path.c_str(), ways.c_str(), init.c_str(), listed(changes, 10).c_str());
}

void check_same_run(const Checkpoint& checkpoint, const Config& now, const std::vector<DataFile>& train,
                    const std::vector<DataFile>& val) {
  const RunState& state = checkpoint.state;
  const Config& before = state.config;
  Config same_micro = now;
  if (now.batch.micro == 0) same_micro.batch.micro = before.batch.micro;
  // Another schedule begins here: no step was made by these settings yet.
  bool scheduled = state.step > 0 && now.optimizer.schedule_start == state.step, schedule_alone = true;
  std::vector<std::string> changes;
  for (const ChangedSetting& change : changed_settings(before, same_micro)) {
    bool of_schedule = change.key.starts_with("optimizer.");
    bool without_effect = change.key == "data.separator" && now.attention.documents == Documents::joined;
    if (change.may_change || (of_schedule && scheduled) || without_effect) continue;
    changes.push_back(in_words(change));
    schedule_alone = schedule_alone && of_schedule;
    if (change.key == "batch.micro") changes.back() += " (0 takes the old one, or another if it does not fit)";
  }
  size_t settings = changes.size();
  compare_files(changes, "data.train", state.train, train);
  if (!state.val.empty() && !val.empty()) compare_files(changes, "data.val", state.val, val);
  schedule_alone = schedule_alone && changes.size() == settings;
  std::string ways;
  bool longer =
      now.train.steps != before.train.steps && !scheduled;  // what else a schedule depends on is compared above
  for (int64_t step = 0; longer && changes.empty() && step < std::min(state.step, now.train.steps); step++) {
    if (learning_rate(before, step) == learning_rate(now, step)) continue;
    if (std::string path = checkpoint_before(fs::path(checkpoint.path).parent_path(), step + 1); !path.empty())
      ways = "continue from an earlier checkpoint (--resume " + path + " can), ";
    changes.push_back(
        format("train.steps: %ld in the checkpoint, %ld now; with optimizer.schedule = \"%s\" that "
               "changes the learning rates of steps already made",
               before.train.steps, now.train.steps, schedule_names[int(now.optimizer.schedule)]));
  }
  if (schedule_alone && !changes.empty())
    ways += format("begin another schedule here, with the optimizer's state (--set optimizer.schedule_start=%ld), ",
                   state.step);
  int64_t windows_a_step = now.batch.tokens / now.model.context;
  if (changes.empty() && (state.next_window / windows_a_step != state.step || state.next_window % windows_a_step != 0))
    changes.push_back(format("the data order: %ld windows after %ld steps in the checkpoint, %ld per step now",
                             state.next_window, state.step, windows_a_step));
  if (!changes.empty()) refuse_other_settings(checkpoint, now, changes, ways);
  check_steps_left(now, state.step, checkpoint.path);
  for (const ChangedSetting& change : changed_settings(before, same_micro))
    std::printf("changed since %s: %s: %s -> %s\n", checkpoint.path.c_str(), change.key.c_str(),
                shortened(change.was).c_str(), shortened(change.is).c_str());
}

void begin_run(RunDir& run, bool overwrite, const ResumePoint& point, const Config& config) {
  const std::optional<Checkpoint>& from = point.from;
  if (!from || !point.own) run.start_fresh(overwrite);
  if (from) {
    std::string old = point.own ? run.put_away_after(from->state.step) : "";
    if (!old.empty()) std::printf("later checkpoints, and a copy of the metrics, are now in %s\n", old.c_str());
    // The other run's lines up to here, if it has any, become this run's too.
    if (!point.own) copy_text_file(point.run + "/metrics.jsonl", run.metrics_path());
    rewind_metrics(run.metrics_path(), from->state.step);
  }
  replace_text_file(run.config_path(), config_text(config));
}
