#include "training/start.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/checksum.h"
#include "base/file.h"
#include "base/json.h"
#include "base/progress.h"
#include "base/text.h"
#include "base/utf8.h"
#include "checkpoint/hugging_face.h"
#include "data/tokenizer.h"
#include "eval/diagnostics.h"
#include "eval/evaluate.h"
#include "settings/table.h"
#include "training/matmul_algorithms.h"

DeviceInfo prepare_device(Config& config, const Ranks& ranks, bool remeasure) {
  choose_device(ranks);
  DeviceInfo device = device_info();
  if (on_cpu) device.free_memory /= size_t(ranks.size);  // the ranks share it
  if (config.precision == Precision::automatic) config.precision = device.is_gpu ? Precision::bf16 : Precision::fp32;
  if (ranks.rank == 0) use_product_cache(device, remeasure);
  set_cpu_threads(config.threads > 0 ? config.threads : std::max(1, device.processors / ranks.size));
  return device;
}

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
  std::optional<Config> run = settings_at_start(named_resume_point(flags.resume, config.name), start);
  if (!run) return config;
  // The run may have left the file's optimizer at an earlier start.
  std::vector<std::string> sets;
  nlohmann::ordered_json optimizer = config_json(*run, {"optimizer"})["optimizer"];
  for (auto& [key, value] : optimizer.items())
    sets.push_back("optimizer." + key + "=" + (value.is_string() ? value.get<std::string>() : value.dump()));
  sets.insert(sets.end(), flags.sets.begin(), flags.sets.end());
  Config continued = named_config(flags, sets);
  for (const ChangedSetting& kept : changed_settings(config, continued))
    if (config.origins.contains(kept.key))
      continued.warnings.push_back(format(
          "config: %s = %s of the run wins over %s in the file; use --set %s=... to "
          "change it%s",
          kept.key.c_str(), kept.is.c_str(), kept.was.c_str(), kept.key.c_str(), source_tag(config.file).c_str()));
  return continued;
}

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

static const Vocabulary* first_known(const std::vector<Shard>& shards) {
  for (const Shard& shard : shards)
    if (shard.vocabulary.known()) return &shard.vocabulary;
  return nullptr;
}

Vocabulary Data::vocabulary() const {
  const Vocabulary* made_by = first_known(train);
  return made_by ? *made_by : tokenizer ? tokenizer->vocabulary() : Vocabulary();
}

// The token between documents of the data with which these weights were trained.
static int separator_of(const std::optional<RunState>& state) {
  if (!state) return -1;
  return state->config.data.separator >= 0 ? state->config.data.separator : state->tokenizer.end_of_text;
}

constexpr int GPT2_TOKENS = 50257;

// The token between documents: data.separator, else the checkpoint's that is resumed, else that of the tokenizer for
// texts, else what X.json says of the shards; where none says anything and the model may be one of GPT-2 tokens,
// theirs.
static int end_of_text(const Config& config, const Data& data, int of_checkpoint) {
  if (config.data.separator >= 0) return config.data.separator;
  if (of_checkpoint >= 0) return of_checkpoint;
  if (data.tokenizer && data.tokenizer->end_of_text() >= 0) return data.tokenizer->end_of_text();
  const Vocabulary* made_by = first_known(data.train.empty() ? data.val : data.train);
  if (made_by && made_by->end_of_text >= 0) return made_by->end_of_text;
  bool may_be_gpt2 = made_by ? made_by->name == "gpt2" && made_by->tokens == 0  // an older X.json
                             : config.generate.tokenizer == TokenizerKind::gpt2 && !data.tokenizer;
  return may_be_gpt2 && vocabulary_fits(GPT2_TOKENS, config.model.vocab) ? GPT2_TOKENS - 1 : -1;
}

static void find_separator(const Flags& flags, Config& config, const Data& data) {
  bool separates = config.attention.documents == Documents::separate;
  int of_checkpoint = flags.resuming ? separator_of(newest_state(named_resume_point(flags.resume, config.name))) : -1;
  config.end_of_text = end_of_text(config, data, of_checkpoint);
  if (separates && config.end_of_text < 0 && !flags.resuming && !config.init.empty())
    config.end_of_text = separator_of(read_state(named_folder(config.init).path));
  bool fits = config.end_of_text < config.model.vocab;
  if (separates && !(fits && config.end_of_text >= 0)) {
    std::string said = fits ? "no tokenizer of these data says one"
                            : format("these data say %d, which is not a token of model.vocab = %d", config.end_of_text,
                                     config.model.vocab);
    user_error(
        "config: attention.documents = \"separate\" needs the token that begins a document, and %s: set "
        "data.separator%s",
        said.c_str(), source_tag(source_of(config, {"attention.documents", "data.separator"})).c_str());
  }
  if (!fits) config.end_of_text = -1;
  if (separates) config.data.separator = config.end_of_text;  // the model's from now on
}

Data open_data(const Flags& flags, Config& config, bool evaluates, int rank) {
  bool training = flags.mode->makes_steps;
  Data data;
  if (!flags.lengths.empty()) config.eval.lengths = parse_lengths(flags.lengths, "--lengths");
  Config checked = config;
  if (!evaluates) checked.eval.tokens = std::numeric_limits<int64_t>::max();  // other modes have their own tokens
  if (evaluates || flags.is(Mode::passkey) || config.diagnoses)
    check_lengths(checked, config.eval.lengths, flags.lengths.empty() ? "eval.lengths" : "--lengths");
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
  find_separator(flags, config, data);
  for (int length : evaluates ? config.eval.lengths : std::vector<int>{})
    eval_windows(config, data.val, length, config.eval.tokens);
  for (int length : config.diagnoses ? config.eval.lengths : std::vector<int>{})
    diagnostics_windows(config, data.val, length);
  data.train_files = data_files(data.train);
  data.val_files = data_files(data.val);
  return data;
}

// The lengths of the documents in windows of T tokens from all shards; separators += those among these tokens.
static std::vector<int> sampled_documents(std::vector<Shard> shards, int T, const Config& config, int64_t& separators) {
  constexpr int64_t MOST_TOKENS = 1 << 22;
  for (Shard& shard : shards) shard.labels = nullptr;
  WindowReader reader(shards, T, config.model.vocab, shards[0].key);
  int64_t count = std::clamp<int64_t>(MOST_TOKENS / T, 1, reader.windows());
  std::vector<int> lengths, inputs(T), targets(T);
  for (int64_t n = 0; n < count; n++) {
    reader.read(n * reader.windows() / count, inputs.data(), targets.data());
    for (int t = 0; t < T; t++) {
      bool begins = inputs[t] == config.end_of_text;
      separators += begins;
      if (begins || t == 0) lengths.push_back(0);
      lengths.back()++;
    }
  }
  return lengths;
}

// The paths of those shards whose windows have no separator, as far as they are read.
static std::string without_separator(const std::vector<Shard>& shards, int T, const Config& config) {
  constexpr int64_t MOST_TOKENS = 1 << 22;  // of a shard
  std::string paths;
  for (Shard shard : shards) {
    if (shard.tokens <= T) continue;
    shard.labels = nullptr;
    WindowReader reader({shard}, T, config.model.vocab, shard.key);
    std::vector<int> inputs(T), targets(T);
    bool found = false;
    for (int64_t n = 0; !found && n < std::min(reader.windows(), MOST_TOKENS / T + 1); n++) {
      reader.read(n, inputs.data(), targets.data());
      found = std::ranges::find(inputs, config.end_of_text) != inputs.end();
    }
    if (!found) append_item(paths, shard.path);
  }
  return paths;
}

void sample_documents(Config& config, const Data& data, bool first) {
  bool training = !data.train.empty();
  const std::vector<Shard>& shards = training ? data.train : data.val;
  if (config.attention.documents == Documents::joined || shards.empty()) return;
  if (!some_entry_lacks(config, [](const LayerEntry& entry) { return entry.has("joined"); })) return;
  int T = training ? config.model.context : *std::ranges::min_element(config.eval.lengths);
  int64_t separators = 0;
  std::vector<int> lengths = sampled_documents(shards, T, config, separators);
  if (training) config.document_lengths = lengths;
  if (!first) return;
  std::string tag = source_tag(source_of(config, {"attention.documents", "data.separator"}));
  double tokens = 0, keys = 0;
  for (double length : lengths) tokens += length, keys += length * (length + 1) / 2;
  std::string sample =
      format("%ld of %s tokens in windows of %s", separators, count_text(tokens).c_str(), shards[0].key.c_str());
  if (separators == 0)
    warn(
        "config: attention.documents = \"separate\" separates nothing: %s are the separator, %d; data.separator names "
        "another%s",
        sample.c_str(), config.end_of_text, tag.c_str());
  std::string without;
  if (training && separators > 0) without = without_separator(data.train, T, config);
  if (!data.val.empty() && (training || separators > 0)) {
    std::string of_val = without_separator(data.val, *std::ranges::min_element(config.eval.lengths), config);
    if (!of_val.empty()) append_item(without, of_val);
  }
  if (!without.empty())
    warn(
        "config: attention.documents = \"separate\" separates nothing in %s: the separator, %d, is not there, so that "
        "each window is one document; give shards that have it%s",
        without.c_str(), config.end_of_text, tag.c_str());
  std::printf("documents: %s are the separator, %d: a row has %.1f keys of its document on average, of %.1f joined\n",
              sample.c_str(), config.end_of_text, keys / tokens, double(T + 1) / 2);
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

void report_validation(const Config& config, const Data& data, const std::vector<DataFile>& train) {
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
    int64_t windows = eval_windows(config, data.val, length, config.eval.tokens).count;
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

// Rank 0 looks for the checkpoint to resume from, and the other ranks take the same one.
template <class Find> static std::optional<Checkpoint> agreed_point(Comm& comm, bool training, Find find) {
  std::optional<Checkpoint> found = comm.first() ? find() : std::nullopt;
  std::string path = comm.broadcast(found ? found->path : ""), checksum = comm.broadcast(found ? found->checksum : "");
  if (found || path.empty()) return found;
  Checkpoint same;
  std::string problem = read_checkpoint(path, training, &same);
  if (problem.empty() && same.checksum != checksum) problem = "it is not the one of that name that rank 0 sees";
  if (!problem.empty()) failure("checkpoint: %s: %s; all ranks must see the same runs/", path.c_str(), problem.c_str());
  return same;
}

ResumePoint find_resume_point(const Flags& flags, const Config& config, Comm& comm) {
  ResumePoint found;
  bool training = flags.mode->makes_steps;
  std::string own = "runs/" + config.name;
  if (!flags.resuming && !training && config.init.empty() && !step_folders(own).empty())
    user_error(
        "command line: %s has checkpoints, but without --resume the weights would be random; give --resume, or --set "
        "init=DIR for other weights, or another name (--set name=...) for random ones",
        own.c_str());
  if (!flags.resuming) return found;
  found = named_resume_point(flags.resume, config.name);
  const std::string& run = found.run;
  if (flags.overwrite && found.within)
    user_error(
        "command line: --resume continues %s and --overwrite deletes it; give only one of them, or another name "
        "(--set name=...)",
        run.c_str());
  bool begun = found.own && is_folder(run);
  if (flags.is(Mode::train) && begun && comm.first()) found.run_dir = std::make_unique<RunDir>(config.name);
  found.from = agreed_point(comm, training, [&] { return resume_checkpoint(found, training); });
  if (!found.from && !(training && found.own))
    user_error("command line: --resume: %s is neither a step_* folder nor a run that holds one", run.c_str());
  if (!found.from) std::printf("%s has no checkpoint yet: starting afresh\n", run.c_str());
  return found;
}
