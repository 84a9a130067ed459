#include "eval/generate.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>

#include "base/signals.h"

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

void check_vocabulary(const std::vector<int>& tokens, const Config& config) {
  for (int token : tokens)
    if (token >= config.model.vocab)
      user_error(
          "config: generate.tokenizer = \"%s\" makes token %d of the prompt, but model.vocab = %d; choose the "
          "tokenizer with which the training data was made",
          config.generate.tokenizer.c_str(), token, config.model.vocab);
}

std::vector<int> prompt_tokens(const Tokenizer& tokenizer, const Config& config) {
  std::vector<int> tokens = tokenizer.encode(config.generate.prompt);
  if (tokens.empty()) tokens = {tokenizer.end_of_text() >= 0 ? tokenizer.end_of_text() : '\n'};
  check_vocabulary(tokens, config);
  return tokens;
}

void generate(Model& model, const Tokenizer& tokenizer, const Config::Generate& settings, uint64_t seed,
              const std::function<void(const std::string&)>& print, const std::function<bool()>& stop) {
  const Config::Model& m = model.config().model;
  std::vector<int> tokens = prompt_tokens(tokenizer, model.config());
  std::mt19937_64 random(seed);
  std::vector<float> logits(m.vocab);
  std::string text;  // decoded but not printed yet
  print(settings.prompt);
  for (int i = 0; i < settings.tokens && !(stop && stop()); i++) {
    int count = int(std::min<size_t>(tokens.size(), m.context));
    model.next_token_logits(logits.data(), tokens.data() + tokens.size() - count, count);
    double uniform = double(random() >> 11) * 0x1p-53;
    tokens.push_back(sample(logits.data(), m.vocab, settings.temperature, settings.top_k, uniform));
    text += tokenizer.decode({tokens.back()});
    // Hold back an incomplete character: up to 3 bytes whose lead byte announces more.
    size_t lead = text.size();
    for (size_t back = 1; back <= std::min<size_t>(3, text.size()); back++) {
      unsigned char byte = text[text.size() - back];
      if ((byte & 0xC0) == 0x80) continue;
      if (byte >= 0xC0 && back < (byte >= 0xF0 ? 4u : byte >= 0xE0 ? 3u : 2u)) lead = text.size() - back;
      break;
    }
    if (i + 1 == settings.tokens) lead = text.size();
    print(text.substr(0, lead));
    text.erase(0, lead);
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
  generate(model, *tokenizer, settings, model.config().seed, print, stop_requested);
  std::printf("\n");
}
