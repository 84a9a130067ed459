#include "eval/generate.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/progress.h"
#include "base/signals.h"
#include "base/text.h"
#include "base/utf8.h"

int sample(const float* logits, int count, double temperature, int top_k, double uniform) {
  if (temperature == 0) return int(std::max_element(logits, logits + count) - logits);
  std::vector<int> order(count);
  std::iota(order.begin(), order.end(), 0);
  if (top_k > 0 && top_k < count) {
    std::partial_sort(order.begin(), order.begin() + top_k, order.end(),
                      [&](int a, int b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
    order.resize(top_k);
  }
  float largest =
      logits[*std::max_element(order.begin(), order.end(), [&](int a, int b) { return logits[a] < logits[b]; })];
  std::vector<double> cumulative(order.size());
  double sum = 0;
  for (size_t i = 0; i < order.size(); i++) cumulative[i] = sum += std::exp((logits[order[i]] - largest) / temperature);
  size_t chosen = std::upper_bound(cumulative.begin(), cumulative.end(), uniform * sum) - cumulative.begin();
  return order[std::min(chosen, order.size() - 1)];
}

void check_vocabulary(const Tokenizer& tokenizer, const Config& config) {
  int tokens = tokenizer.vocab(), vocab = config.model.vocab;
  if (vocabulary_fits(tokens, vocab)) return;
  user_error(
      "config: generate.tokenizer = \"%s\" has %d tokens, but model.vocab = %d; choose the tokenizer with which the "
      "training data was made",
      tokenizer_kind_names[int(config.generate.tokenizer)], tokens, vocab);
}

std::vector<int> prompt_tokens(const Tokenizer& tokenizer, const Config& config, int separator,
                               const std::string& prompt) {
  check_vocabulary(tokenizer, config);
  std::vector<int> tokens = tokenizer.encode(prompt);
  if (tokens.empty()) tokens = {separator >= 0 ? separator : '\n'};
  return tokens;
}

// Padding changes nothing (attention is causal) but last bits where a bias prunes; few lengths mean few matrix shapes.
static int padded_length(const Config& config, int count) {
  return count <= config.model.context ? config.model.context : (count + 63) / 64 * 64;
}

void next_token_logits(Model& model, float* logits, const int* tokens, int count) {
  std::vector<int> padded(tokens, tokens + count);
  padded.resize(padded_length(model.config(), count));
  model.row_logits(logits, padded.data(), 1, int(padded.size()), {count - 1});
}

// Appends the next token, given the last `window` of those before.
static void extend(Model& model, std::vector<int>& tokens, int window, const Config::Generate& settings,
                   std::mt19937_64& random) {
  const Config::Model& m = model.config().model;
  int count = std::min(int(tokens.size()), window);
  std::vector<float> logits(m.vocab);
  next_token_logits(model, logits.data(), tokens.data() + tokens.size() - count, count);
  double uniform = double(random() >> 11) * 0x1p-53;
  tokens.push_back(sample(logits.data(), m.vocab, settings.temperature, settings.top_k, uniform));
}

void generate(Model& model, const Tokenizer& tokenizer, const Config::Generate& settings, uint64_t seed,
              const std::function<void(const std::string&)>& print, const std::function<bool()>& stop) {
  std::vector<int> tokens = prompt_tokens(tokenizer, model.config(), model.facts().separator, settings.prompt);
  std::mt19937_64 random(seed);
  std::string text;  // decoded but not printed yet
  print(settings.prompt);
  for (int i = 0; i < settings.tokens && !(stop && stop()); i++) {
    extend(model, tokens, model.config().model.context, settings, random);
    text += tokenizer.decode({tokens.back()});
    size_t whole = i + 1 == settings.tokens ? text.size() : utf8_complete(text);
    print(text.substr(0, whole));
    text.erase(0, whole);
  }
}

void generate_text(Model& model) {
  if (!model.comm().first()) return;
  const Config::Generate& settings = model.config().generate;
  auto tokenizer = open_tokenizer(settings.tokenizer, settings.tokenizer_dir);
  auto print = [](const std::string& text) {
    std::fputs(valid_utf8(text).c_str(), stdout);
    std::fflush(stdout);
  };
  // The thread that writes a checkpoint says so above or below the text, not in it.
  std::unique_ptr<FILE, decltype(&funlockfile)> held((flockfile(stdout), stdout), &funlockfile);
  generate(model, *tokenizer, settings, model.config().seed, print, stop_requested);
  std::printf("\n");
}

std::vector<FilePrompt> read_prompts(const std::string& path, const Tokenizer& tokenizer, const Config& config,
                                     int separator) {
  std::vector<FilePrompt> prompts;
  int number = 0;
  for (const std::string& line : split(read_utf8_file(path, "--generate-file", size_t(1) << 32, Pipes::taken), '\n')) {
    std::string where = format("%s, line %d", path.c_str(), ++number);
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    nlohmann::json fields = parse_json(line, "--generate-file", where);
    if (!fields.is_object() || !fields.contains("prompt") || !fields["prompt"].is_string())
      user_error("--generate-file: %s is not a JSON object with a text \"prompt\", which every line must be",
                 where.c_str());
    if (fields.contains("completion"))
      user_error(
          "--generate-file: %s has a \"completion\", which the model's own would replace; give it another name, such "
          "as \"answer\"",
          where.c_str());
    FilePrompt prompt{prompt_tokens(tokenizer, config, separator, fields["prompt"]), ""};
    size_t tokens = prompt.tokens.size() + size_t(config.generate.tokens), context = size_t(config.model.context);
    if (config.model.position == Position::learned && tokens > context)
      user_error(
          "--generate-file: %s: a prompt of %zu tokens and generate.tokens = %d are beyond the %zu positions that "
          "model.position = \"learned\" has (model.context); shorten the prompt, or use a model with \"rope\" or "
          "\"none\"",
          where.c_str(), prompt.tokens.size(), config.generate.tokens, context);
    fields.erase("prompt");
    prompt.others = fields.dump();
    prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) user_error("--generate-file: %s has no lines", path.c_str());
  return prompts;
}

int longest_text(const std::vector<FilePrompt>& prompts, const Config& config) {
  size_t longest = 0;
  for (const FilePrompt& prompt : prompts) longest = std::max(longest, prompt.tokens.size());
  return padded_length(config, int(longest) + config.generate.tokens);
}

void generate_file(Model& model, const Tokenizer& tokenizer, const std::vector<FilePrompt>& prompts, std::FILE* out) {
  if (!model.comm().first()) return;
  const Config& config = model.config();
  const Config::Generate& settings = config.generate;
  ProgressBar progress("prompts", int64_t(prompts.size()));
  for (size_t i = 0; i < prompts.size(); i++) {
    std::vector<int> tokens = prompts[i].tokens;
    int before = int(tokens.size()), most = before + settings.tokens;
    std::mt19937_64 random(config.seed + i);
    std::string text;
    size_t end = std::string::npos;
    model.set_length(most);
    while (int(tokens.size()) < most && end == std::string::npos) {
      extend(model, tokens, most, settings, random);
      if (tokens.back() == model.facts().separator) break;
      text = tokenizer.decode({tokens.begin() + before, tokens.end()});
      if (!settings.stop.empty()) end = text.find(settings.stop);
    }
    nlohmann::ordered_json line = nlohmann::ordered_json::parse(prompts[i].others);
    line["completion"] = valid_utf8(text.substr(0, end));
    std::string written = line.dump() + "\n";
    if (std::fwrite(written.data(), 1, written.size(), out) != written.size() || std::fflush(out) != 0)
      failure("standard output: not everything could be written (is its disk full?)");
    progress.update(int64_t(i + 1));
  }
}
