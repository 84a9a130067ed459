#include "checkpoint/run_folder.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "checkpoint/resume.h"

// A name that is not a configuration but could be taken for one.
static void check_config_file(const std::string& path) {
  std::filesystem::path file = path;
  if (!is_there(file) && file.extension() != ".json")
    user_error("command line: %s does not exist; give a configuration file or the folder of a run (ls runs)",
               path.c_str());
  if (file.filename() == "config.json" && is_there(file.parent_path() / "state.json"))
    user_error("command line: %s is the file of transformers, not the run's; name the checkpoint's folder: ./train %s",
               path.c_str(), shell_quoted(file.parent_path()).c_str());
}

// X for the folder runs/X of the working directory, by any path or link, else "".
static std::string name_in_runs(const std::string& folder) {
  std::error_code ignored;
  std::filesystem::path runs = std::filesystem::weakly_canonical("runs", ignored);
  for (const std::filesystem::path& path : {std::filesystem::weakly_canonical(folder, ignored),
                                            std::filesystem::absolute(folder, ignored).lexically_normal()})
    if (std::filesystem::weakly_canonical(path.parent_path(), ignored) == runs) return path.filename();
  return "";
}

void take_run_folder(Flags& flags) {
  if (!is_folder(flags.config)) return check_config_file(flags.config);
  std::string folder = flags.config == "latest" ? "./latest" : flags.config;
  ResumePoint point = named_resume_point(folder, "");
  point.run = named_folder(point.run).path;
  if (flags.resuming && !point.step.path.empty())
    user_error("command line: %s already names a checkpoint; omit --resume", folder.c_str());
  flags.config = point.run + "/config.json";
  bool configured = is_there(flags.config);
  if (!configured && is_there(point.run + "/metrics.jsonl"))
    user_error("command line: %s has no config.json; name the configuration with which its files were made",
               point.run.c_str());
  if (!configured)
    user_error(
        "command line: %s is a folder, but there is no %s; name a configuration file, a run (runs/NAME) or one of its "
        "checkpoints (runs/NAME/step_N)",
        folder.c_str(), flags.config.c_str());
  flags.run = name_in_runs(point.run);
  auto names = [](const std::string& set) { return set.starts_with("name="); };
  if (flags.mode->writes_run && flags.run.empty() && std::none_of(flags.sets.begin(), flags.sets.end(), names))
    user_error(
        "command line: %s is not in runs/ of this folder, where its results would be written; start the program in the "
        "folder that holds its runs/, or name a run of this one (--set name=...)",
        point.run.c_str());
  if (!flags.resuming) flags.resuming = true, flags.resume = folder;
}

// Of a run's folder, by whose name it is called.
static Config named_config(const Flags& flags, std::vector<std::string> sets) {
  bool trains = flags.mode->whole_run;
  Config config = load_config(flags.config, sets, trains);
  std::string named = config.name, origin = config.origins["name"];
  if (flags.run.empty() || origin == "--set" || named == flags.run) return config;
  sets.push_back("name=" + flags.run);
  config = load_config(flags.config, sets, trains);
  config.origins["name"] = "the run's folder";
  config.warnings.push_back(format("%s says name = %s, but the folder's name counts: this is run %s",
                                   flags.config.c_str(), shortened(json_quote(named)).c_str(), flags.run.c_str()));
  return config;
}

Config load_config(const Flags& flags) {
  Config config = named_config(flags, flags.sets);
  int64_t start = config.optimizer.schedule_start;
  if (!flags.resuming || start == 0 || config.origins["optimizer.schedule_start"] != "--set") return config;
  std::optional<RunState> run = newest_state(named_resume_point(flags.resume, config.name));
  if (!run || (run->step != start && run->config.optimizer.schedule_start != start)) return config;
  // The run may have left the file's optimizer at an earlier start.
  std::vector<std::string> sets = flags.sets;
  nlohmann::ordered_json optimizer = config_json(run->config, {"optimizer"})["optimizer"];
  if (run->config.optimizer.matrices == Matrices::adamw) optimizer.erase("muon");  // without effect
  const nlohmann::ordered_json flat = optimizer.flatten();
  for (auto& [path, value] : flat.items()) {
    std::string key = "optimizer" + path;
    std::ranges::replace(key, '/', '.');
    sets.insert(sets.begin(), key + "=" + (value.is_string() ? value.get<std::string>() : value.dump()));
  }
  Config continued = named_config(flags, sets);
  for (const ChangedSetting& kept : changed_settings(config, continued))
    if (config.origins.contains(kept.key))
      continued.warnings.push_back(format(
          "config: %s = %s of the run wins over %s in the file; use --set %s=... to "
          "change it%s",
          kept.key.c_str(), kept.is.c_str(), kept.was.c_str(), kept.key.c_str(), source_tag(config.file).c_str()));
  return continued;
}
