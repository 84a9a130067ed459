#include "runtime/resume.h"

#include "runtime/error.h"
#include "runtime/json.h"
#include "runtime/schedule.h"

Config saved_config(const Checkpoint& checkpoint) {
  return parse_config(checkpoint.state.config, checkpoint.path + "/state.json");
}

// "3 shards, 1200 tokens" would not say which: the first place where the lists differ does.
static void compare_files(std::vector<std::string>& changes, const char* key, const std::vector<DataFile>& before,
                          const std::vector<DataFile>& now) {
  auto text = [](const std::vector<DataFile>& files, size_t i) {
    if (i >= files.size()) return std::string("no further shard");
    return format("%s of %ld tokens", shortened(json_quote(files[i].name)).c_str(), files[i].tokens);
  };
  for (size_t i = 0; i < std::max(before.size(), now.size()); i++) {
    if (i < before.size() && i < now.size() && before[i] == now[i]) continue;
    changes.push_back(format("%s, shard %zu: %s in the checkpoint, %s now", key, i + 1, text(before, i).c_str(), text(now, i).c_str()));
    return;
  }
}

void check_same_run(const Checkpoint& checkpoint, const Config& now, const std::vector<DataFile>& train,
                    const std::vector<DataFile>& val) {
  const RunState& state = checkpoint.state;
  Config before = saved_config(checkpoint), same_micro = now;
  if (now.batch.micro == 0) same_micro.batch.micro = before.batch.micro;
  std::vector<std::string> changes = changed_settings(before, same_micro);
  compare_files(changes, "data.train", state.train, train);
  if (!state.val.empty() && !val.empty()) compare_files(changes, "data.val", state.val, val);
  for (int64_t step = 0; changes.empty() && step < state.step; step++) {
    if (learning_rate(before, step) == learning_rate(now, step)) continue;
    changes.push_back(format("train.steps: %ld in the checkpoint, %ld now; with optimizer.schedule = \"%s\" that changes the learning "
                             "rates of steps already made", before.train.steps, now.train.steps, now.optimizer.schedule.c_str()));
    break;
  }
  if (!changes.empty()) {
    std::string list;
    for (size_t i = 0; i < changes.size() && i < 10; i++) list += "\n  " + changes[i];
    if (changes.size() > 10) list += format("\n  and %zu more", changes.size() - 10);
    user_error("command line: --resume: the run in %s was begun with other settings; give it the old values back, or begin another run "
               "(--set name=...):%s", checkpoint.path.c_str(), list.c_str());
  }
  if (now.train.steps < state.step)
    user_error("config: train.steps = %ld, but the checkpoint %s has made %ld steps already; set at least as many  [%s]", now.train.steps,
               checkpoint.path.c_str(), state.step, now.file.c_str());
}
