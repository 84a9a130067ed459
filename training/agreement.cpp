#include "training/agreement.h"

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "checkpoint/hugging_face.h"
#include "checkpoint/resume.h"
#include "settings/table.h"

Facts settings_facts(const std::string& version, const Flags& flags, const Config& config) {
  const char* products = std::getenv("PLUSGPT_MATMUL");
  auto given = [](bool flag) { return flag ? "given" : "not given"; };
  Facts facts = {{"version of the program", version},
                 {"the variable PLUSGPT_MATMUL", products ? valid_utf8(products) : "not set"},
                 {"--resume", flags.resuming ? json_quote(flags.resume) : given(false)},
                 {"--overwrite", given(flags.overwrite)},
                 {"--lengths", json_quote(flags.lengths)},
                 {"--remeasure", given(flags.remeasure)}};
  for (const ModeRow& mode : modes()) facts[mode.flag] = given(flags.is(mode.mode));
  facts["--dry-run"] = given(flags.dry);
  facts.erase("");  // training
  Config copy = config;
  for (const ConfigRow& row : config_rows(copy))
    if (!row.may_differ_between_ranks) facts[row.key] = value_text(row);
  return facts;
}

Facts input_facts(const Config& config, const Data& data, int separator, bool continues) {
  Facts facts = {{"the token between documents", std::to_string(separator)}};
  for (auto& [key, files] : {std::pair("data.train", &data.train_files), std::pair("data.val", &data.val_files)})
    for (size_t i = 0; i < files->size(); i++) facts[format("%s, shard %zu", key, i + 1)] = described((*files)[i]);
  for (const Benchmark& benchmark : data.benchmarks) facts["task " + valid_utf8(benchmark.name)] = benchmark.checksum;
  if (!continues && !config.init.empty()) try {
      for (const std::string& path : weight_files(named_folder(config.init).path))
        facts["init, the content of " + std::filesystem::path(path).filename().string()] = sampled_checksum(path);
    } catch (const UserError&) {
    }  // "none" if other ranks can read it; if none can, initial_state() says why
  return facts;
}

// "\n  KEY: VALUE here, VALUE at rank 0"...
static std::string differences(const Facts& first, const Facts& here) {
  Facts all = here;
  all.insert(first.begin(), first.end());
  auto value = [](const Facts& facts, const std::string& key) {
    auto found = facts.find(key);
    return found == facts.end() ? std::string("none") : found->second;
  };
  std::vector<std::string> list;
  for (auto& [key, any] : all) {
    std::string ours = value(here, key), theirs = value(first, key);
    if (ours != theirs)
      list.push_back(format("%s: %s here, %s at rank 0", key.c_str(), shortened(ours, 200).c_str(),
                            shortened(theirs, 200).c_str()));
  }
  return listed(list, 10);
}

void check_agreement(Comm& comm, const Facts& facts) {
  if (comm.size() == 1) return;
  std::string list = differences(nlohmann::json::parse(comm.broadcast(nlohmann::json(facts).dump())), facts);
  if (!list.empty())
    user_error(
        "ranks: this rank was started differently from rank 0; give every rank the same program, flags, "
        "configuration and data:%s",
        list.c_str());
  comm.barrier();  // no rank continues before all have compared
}
