#include "training/identity.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/checksum.h"
#include "base/utf8.h"
#include "checkpoint/hugging_face.h"
#include "checkpoint/resume.h"
#include "data/gpt2_bpe.h"

using nlohmann::ordered_json;

static ordered_json init_files(const Config& config) {
  ordered_json files;
  for (const std::string& path : weight_files(named_folder(config.init).path))
    files.push_back(
        {{"name", valid_utf8(std::filesystem::path(path).filename().string())}, {"xxh64", file_checksum(path)}});
  return files;
}

ordered_json identity_json(const Config& config, const Data& data, const Checkpoint* from) {
  ordered_json identity = ordered_json::object();
  auto add = [&](const char* shards_key, const char* labels_key, size_t shards, const std::vector<DataFile>& files) {
    auto labels = files.begin() + ptrdiff_t(shards);
    if (shards > 0) identity[shards_key] = data_json({files.begin(), labels});
    if (labels != files.end()) identity[labels_key] = data_json({labels, files.end()});
  };
  add("data.train", "data.labels", data.train.size(), data.train_files);
  add("data.val", "data.val_labels", data.val.size(), data.val_files);
  if (from) identity["checkpoint"] = from->checksum;
  else if (!config.init.empty()) identity["init"] = init_files(config);
  if (Vocabulary tokenizer = data.vocabulary(); tokenizer.known()) identity["tokenizer"] = valid_utf8(tokenizer.text());
  return identity;
}

Vocabulary tokenizer_of_weights(const std::string& folder) {
  if (std::optional<RunState> state = read_state(folder)) return state->tokenizer;
  return has_gpt2_files(folder) ? Gpt2Tokenizer(folder).vocabulary() : Vocabulary();
}
