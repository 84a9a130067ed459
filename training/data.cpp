#include "training/data.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <set>

#include "base/checksum.h"
#include "base/file.h"
#include "base/progress.h"
#include "base/text.h"
#include "base/utf8.h"
#include "checkpoint/hugging_face.h"
#include "eval/evaluate.h"

// The shards, then their label files.
static std::vector<DataFile> data_files(const std::vector<Shard>& shards) {
  std::vector<DataFile> files;
  auto add = [&](const Shard& file) {
    files.push_back(
        {valid_utf8(std::filesystem::path(file.path).filename().string()), file.tokens, sampled_checksum(file.path)});
  };
  for (const Shard& shard : shards) add(shard);
  for (const Shard& shard : shards)
    if (shard.labels) add(*shard.labels);
  return files;
}

const Vocabulary* first_known(const std::vector<Shard>& shards) {
  for (const Shard& shard : shards)
    if (shard.vocabulary.known()) return &shard.vocabulary;
  return nullptr;
}

Vocabulary Data::vocabulary() const {
  const Vocabulary* made_by = first_known(train);
  return made_by ? *made_by : tokenizer ? tokenizer->vocabulary() : Vocabulary();
}

Data open_data(const Flags& flags, const Config& config, bool evaluates, int rank) {
  bool training = flags.mode->makes_steps;
  Data data;
  if (training) data.train = open_shards(config.data.train, config.model.vocab, "data.train");
  if (evaluates || config.diagnoses) data.val = open_shards(config.data.val, config.model.vocab, "data.val");
  auto label = [&](std::vector<Shard>& shards, const std::vector<std::string>& patterns, const char* key) {
    int outputs = config.model.head.outputs;
    if (outputs > 0 && patterns.empty())
      user_error("config: model.head.outputs = %d needs float32 labels: set %s%s  [%s]", outputs, key,
                 &shards == &data.val ? ", or eval.every = 0" : "", config.file.c_str());
    open_labels(shards, patterns, config.model.vocab, outputs, key);
  };
  if (training) label(data.train, config.data.labels, "data.labels");
  if (evaluates && !flags.is(Mode::predict)) label(data.val, config.data.val_labels, "data.val_labels");
  for (std::vector<Shard>* shards : {&data.train, &data.val}) {
    std::vector<std::string> warnings = read_descriptions(*shards);
    data.warnings.insert(data.warnings.end(), warnings.begin(), warnings.end());
  }
  bool bytes = config.generate.tokenizer == TokenizerKind::bytes, samples = training && config.generate.every > 0;
  bool makes_texts = flags.generates() || flags.is(Mode::passkey) || (samples && bytes);
  if (makes_texts) data.tokenizer = open_tokenizer(config.generate.tokenizer, config.generate.tokenizer_dir);
  else if (training || config.diagnoses || (evaluates && config.eval.start == WindowStart::document) ||
           config.attention.documents == Documents::separate)
    data.tokenizer = tokenizer_to_carry(config, flags.mode->whole_run && rank == 0);
  data.train_files = data_files(data.train);
  data.val_files = data_files(data.val);
  return data;
}

// Warns if many tokens are in no window of T tokens, which the key says.
static void warn_of_unread(const std::vector<Shard>& shards, int T, const char* key) {
  int64_t tokens = 0, unread = 0;
  for (const Shard& shard : shards) {
    tokens += shard.tokens;
    unread += shard.tokens > T ? (shard.tokens - 1) % T : shard.tokens;
  }
  if (unread * 20 > tokens)
    warn(
        "%s: %s of %s tokens (%.0f%%) are in no window of %d tokens, as none crosses a shard's end; make fewer, longer "
        "shards, or set a smaller %s",
        shards[0].key.c_str(), count_text(double(unread)).c_str(), count_text(double(tokens)).c_str(),
        100 * double(unread) / double(tokens), T, key);
}

void report_validation(const Config& config, const Data& data, int separator, const std::vector<DataFile>& train) {
  std::set<std::pair<int64_t, std::string>> trained;  // by content: a copy has another name
  for (const DataFile& file : train) trained.insert({file.tokens, file.xxh64});
  int64_t tokens = 0;
  std::string both;
  for (size_t i = 0; i < data.val.size(); i++) {
    tokens += data.val[i].tokens;
    if (trained.contains({data.val_files[i].tokens, data.val_files[i].xxh64})) append_item(both, data.val[i].path);
  }
  bool labels = !config.data.labels.empty(), val_labels = !config.data.val_labels.empty();
  if (!data.train.empty() && !data.val.empty() && labels != val_labels)
    warn("data.%s is set and data.%s is not: the training loss is of %s, the validation loss of %s; set both%s",
         labels ? "labels" : "val_labels", labels ? "val_labels" : "labels", labels ? "the labels" : "all tokens",
         labels ? "all tokens" : "the labels",
         source_tag(source_of(config, {"data.labels", "data.val_labels"})).c_str());
  if (!both.empty())
    warn("data.train and data.val both contain %s, or a copy: validation losses will be too low", both.c_str());
  if (data.val.empty() || config.eval.start != WindowStart::any) return;
  warn_of_unread(data.val, *std::ranges::min_element(config.eval.lengths), "eval.lengths");
  if (tokens >= config.eval.tokens || data.val[0].labels) return;
  std::string evaluated;
  for (int length : config.eval.lengths) {
    int64_t windows = eval_windows(config, separator, data.val, length, config.eval.tokens).count;
    append_item(evaluated, format("%ld are evaluated at length %d", windows * config.eval.targets(length), length));
  }
  std::printf("data.val, of %s tokens: %s\n", count_text(double(tokens)).c_str(), evaluated.c_str());
}

void report_tokenizers(const Config& config, const Data& data, const Vocabulary& trained, bool continues) {
  std::vector<std::pair<std::string, Vocabulary>> found;
  const Shard* silent = nullptr;  // the first that says none
  if (trained.known()) found.push_back({"the model", trained});
  for (const std::vector<Shard>* shards : {&data.train, &data.val})
    for (const Shard& shard : *shards)
      if (shard.vocabulary.known()) found.push_back({shard.key + ": " + shard.path, shard.vocabulary});
      else if (!silent) silent = &shard;
  for (const Benchmark& benchmark : data.benchmarks)
    if (benchmark.vocabulary.known()) found.push_back({"task " + benchmark.name, benchmark.vocabulary});
  // Shards that say nothing are taken for GPT-2's, as download_fineweb.py's are.
  bool of_gpt2 = trained.name == "gpt2" && trained.tokens == GPT2_TOKENS;
  if (silent && trained.known() && !of_gpt2 && !continues)
    warn(
        "%s: %s has no X.json that says its tokenizer, and the model has one (%s): make sure that it is this one, or "
        "make the shard again with scripts/prepare_text.py",
        silent->key.c_str(), silent->path.c_str(), trained.text().c_str());
  if (data.tokenizer)
    found.push_back({config.generate.tokenizer == TokenizerKind::bytes
                         ? std::string("generate.tokenizer = \"bytes\"")
                         : format("generate.tokenizer_dir = \"%s\"", config.generate.tokenizer_dir.c_str()),
                     data.tokenizer->vocabulary()});
  if (found.empty()) return;
  auto sized = std::ranges::find_if(found, [](auto& pair) { return pair.second.tokens > 0; });
  if (sized != found.end() && !vocabulary_fits(sized->second.tokens, config.model.vocab))
    warn("model.vocab = %d, but the tokenizer of %s has %d tokens; set model.vocab=%d", config.model.vocab,
         sized->first.c_str(), sized->second.tokens, sized->second.tokens);
  for (const auto& [first, expected] : found)  // of some little is known, which suits different ones
    for (const auto& [other, vocabulary] : found)
      if (vocabulary.differs(expected))
        return warn(
            "%s is of another tokenizer (%s) than %s (%s): the same numbers mean other text there; use shards, tasks "
            "and generate.tokenizer_dir of one tokenizer",
            other.c_str(), vocabulary.text().c_str(), first.c_str(), expected.text().c_str());
}

void check_all_tokens(const Config& config, const Data& data) {
  for (auto& [key, shards] : {std::pair("data.train", &data.train), std::pair("data.val", &data.val)}) {
    if (shards->empty()) continue;
    int64_t tokens = 0;
    for (const Shard& shard : *shards) tokens += shard.tokens;
    ProgressBar progress(std::string("tokens of ") + key, tokens);
    auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    int64_t read = check_tokens(*shards, config.model.vocab, [&](int64_t done) {
      progress.update(done);
      return std::chrono::steady_clock::now() < until;
    });
    std::printf("%s: %s of %s tokens read, all below model.vocab = %d%s\n", key, count_text(double(read)).c_str(),
                count_text(double(tokens)).c_str(), config.model.vocab,
                read < tokens ? " (a dry run reads for a minute; training checks the others as it reads them)" : "");
  }
}

std::unique_ptr<WindowReader> training_windows(const Config& config, const std::vector<Shard>& shards, bool first) {
  auto windows = std::make_unique<WindowReader>(shards, config.model.context, config.model.vocab, "data.train");
  double epoch = double(windows->windows()) * config.model.context;
  std::printf("data: %zu shard%s, %ld windows of %d tokens; %ld steps are %.3g epochs\n", shards.size(),
              shards.size() == 1 ? "" : "s", windows->windows(), config.model.context, config.train.steps,
              double(config.train.steps) * double(config.batch.tokens) / epoch);
  if (first) warn_of_unread(shards, config.model.context, "model.context");
  return windows;
}
