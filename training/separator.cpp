#include "training/separator.h"

#include <algorithm>
#include <cstdio>

#include "base/text.h"
#include "checkpoint/resume.h"
#include "settings/table.h"

// The token between documents of the data with which these weights were trained.
static int separator_of(const RunState& state) {
  return state.config.data.separator >= 0 ? state.config.data.separator : state.tokenizer.end_of_text;
}

RunFacts find_separator(const Config& config, const Data& data, const std::optional<Checkpoint>& from) {
  bool separates = config.attention.documents == Documents::separate;
  const Vocabulary* made_by = first_known(data.train.empty() ? data.val : data.train);
  bool may_be_gpt2 = made_by ? made_by->name == "gpt2" && made_by->tokens == 0  // an older X.json
                             : config.generate.tokenizer == TokenizerKind::gpt2 && !data.tokenizer;
  std::optional<RunState> init;
  if (separates && !from && !config.init.empty()) init = read_state(named_folder(config.init).path);
  const RunFacts sources[] = {
      {config.data.separator, "data.separator"},
      {from ? separator_of(from->state) : -1, "the checkpoint"},
      {data.tokenizer ? data.tokenizer->end_of_text() : -1, "the tokenizer in generate.tokenizer_dir"},
      {made_by ? made_by->end_of_text : -1, "the X.json of a shard"},
      {may_be_gpt2 && vocabulary_fits(GPT2_TOKENS, config.model.vocab) ? GPT2_TOKENS - 1 : -1, "GPT-2"},
      {init ? separator_of(*init) : -1, "init"}};
  RunFacts found;
  for (const RunFacts& source : sources)
    if (found.separator < 0) found = source;
  bool fits = found.separator < config.model.vocab;
  if (separates && !(fits && found.separator >= 0)) {
    std::string said = fits ? "no tokenizer of these data says one"
                            : format("%s says %d, which is not a token of model.vocab = %d",
                                     found.separator_source.c_str(), found.separator, config.model.vocab);
    user_error(
        "config: attention.documents = \"separate\" needs the token that begins a document, and %s: set "
        "data.separator%s",
        said.c_str(), source_tag(source_of(config, {"attention.documents", "data.separator"})).c_str());
  }
  return fits ? found : RunFacts();
}

// The lengths of the documents in windows of T tokens from all shards; separators += those there. one: is enough.
static std::vector<int> sampled_documents(std::vector<Shard> shards, int T, const Config& config, int separator,
                                          int64_t& separators, bool one = false) {
  constexpr int64_t MOST_TOKENS = 1 << 22;
  for (Shard& shard : shards) shard.labels = nullptr;
  WindowReader reader(shards, T, config.model.vocab, shards[0].key);
  int64_t count = std::clamp<int64_t>(MOST_TOKENS / T, 1, reader.windows());
  std::vector<int> lengths, inputs(T), targets(T);
  for (int64_t n = 0; n < count && !(one && separators > 0); n++) {
    reader.read(n * reader.windows() / count, inputs.data(), targets.data());
    for (int t = 0; t < T; t++) {
      bool begins = inputs[t] == separator;
      separators += begins;
      if (begins || t == 0) lengths.push_back(0);
      lengths.back()++;
    }
  }
  return lengths;
}

std::vector<int> sample_documents(const Config& config, const Data& data, const RunFacts& facts, bool first) {
  bool training = !data.train.empty();
  const std::vector<Shard>& shards = training ? data.train : data.val;
  if (shards.empty()) return {};
  auto separates = [](const Config::Layer& layer) { return layer.attention.documents == Documents::separate; };
  if (!config.some_layer(separates)) return {};
  int token = facts.separator, T = training ? config.model.context : *std::ranges::min_element(config.eval.lengths);
  int64_t separators = 0;
  std::vector<int> lengths = sampled_documents(shards, T, config, token, separators);
  if (!first) return lengths;
  std::string tag = source_tag(source_of(config, {"attention.documents", "data.separator"}));
  double tokens = 0, keys = 0;
  for (double length : lengths) tokens += length, keys += length * (length + 1) / 2;
  std::string sample =
      format("%ld of %s tokens in windows of %s", separators, count_text(tokens).c_str(), shards[0].key.c_str());
  if (separators == 0)
    warn(
        "config: attention.documents = \"separate\" separates nothing: %s are the separator, %d; data.separator names "
        "another%s",
        sample.c_str(), token, tag.c_str());
  std::string without;  // the paths of shards whose windows have none, as far as they are read
  auto add = [&](const std::vector<Shard>& some, int T) {
    for (const Shard& shard : some) {
      int64_t found = 0;
      if (shard.tokens > T) sampled_documents({shard}, T, config, token, found, true);
      if (shard.tokens > T && found == 0) append_item(without, shard.path);
    }
  };
  if (training && separators > 0) add(data.train, T);
  if (training || separators > 0) add(data.val, *std::ranges::min_element(config.eval.lengths));
  if (!without.empty())
    warn(
        "config: attention.documents = \"separate\" separates nothing in %s: the separator, %d, is not there, so that "
        "each window is one document; give shards that have it%s",
        without.c_str(), token, tag.c_str());
  std::printf(
      "documents: %s are the separator, %d: a row has %.1f keys of its document on average, of %.1f joined; the "
      "separator comes from %s\n",
      sample.c_str(), token, keys / tokens, double(T + 1) / 2, facts.separator_source.c_str());
  return lengths;
}
