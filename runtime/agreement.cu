#include "runtime/agreement.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "runtime/checksum.h"
#include "runtime/config_table.h"
#include "runtime/error.h"
#include "runtime/json.h"
#include "runtime/resume.h"

Facts facts_of(const std::string& version, const Flags& flags, const Config& config, const std::vector<DataFile>& train,
               const std::vector<DataFile>& val) {
  auto given = [](bool flag) { return flag ? "given" : "not given"; };
  Facts facts = {{"version of the program", version},
                 {"--resume", flags.resuming ? flags.resume : given(false)},
                 {"--overwrite", given(flags.overwrite)},
                 {"--eval", given(flags.eval)},
                 {"--lengths", flags.lengths},
                 {"--generate", given(flags.generating)},
                 {"--dry-run", given(flags.dry_run)},
                 {"--dump-gradients", flags.dump_gradients}};
  Config copy = config;
  for (const ConfigRow& row : config_rows(copy))
    if (!row.of_a_rank) facts[row.key] = value_text(row);
  for (auto& [key, files] : {std::pair("data.train", &train), std::pair("data.val", &val)})
    for (size_t i = 0; i < files->size(); i++) facts[format("%s, shard %zu", key, i + 1)] = described((*files)[i]);
  std::string weights = config.init + "/model.safetensors";
  std::error_code ignored;
  if (!config.init.empty() && std::filesystem::exists(weights, ignored))
    facts["init, the content of model.safetensors"] = sampled_checksum(weights);
  return facts;
}

// "\n  KEY: VALUE here, VALUE at rank 0"...
static std::string differences(const Facts& first, const Facts& here) {
  Facts all = here;
  all.insert(first.begin(), first.end());
  auto value = [](const Facts& facts, const std::string& key) {
    auto found = facts.find(key);
    return found == facts.end() ? std::string("none") : shortened(found->second);
  };
  std::string list;
  int count = 0;
  for (auto& [key, any] : all) {
    std::string ours = value(here, key), theirs = value(first, key);
    if (ours != theirs && ++count <= 10)
      list += format("\n  %s: %s here, %s at rank 0", key.c_str(), ours.c_str(), theirs.c_str());
  }
  return count > 10 ? list + format("\n  and %d more", count - 10) : list;
}

void check_agreement(Comm& comm, const Facts& facts) {
  if (comm.size() == 1) return;
  std::string first = comm.agree(nlohmann::json(facts).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  std::string list = differences(nlohmann::json::parse(first).get<Facts>(), facts);
  if (!list.empty())
    user_error("ranks: this rank was not started as rank 0 was; give all the same program, flags, configuration and "
               "data:%s", list.c_str());
  comm.least(0);  // nobody goes on before all have looked
}
