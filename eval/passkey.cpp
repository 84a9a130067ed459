#include "eval/passkey.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "base/checksum.h"
#include "base/progress.h"
#include "base/text.h"
#include "eval/evaluate.h"
#include "eval/generate.h"

// ---------------------------------------------------------------------------------------------------------------------
// Prompts

constexpr const char* SENTENCES[] = {"The grass is green. ", "The sky is blue. ", "The sun is yellow. ", "Here we go. ",
                                     "There and back again. "};
constexpr size_t KINDS = std::size(SENTENCES), SHORTEST = 12;  // characters of a sentence
constexpr double LONGEST = 3.75;                               // characters of filler in a token

// Sentences in turn, the last of them the one before `end`.
static std::string sentences(size_t count, size_t end) {
  std::string text;
  for (size_t i = count; i > 0; i--) text += SENTENCES[(end + KINDS * count - i) % KINDS];
  return text;
}

// `count` characters of sentences in turn, from the beginning of one.
static std::string filler(size_t count, size_t first) {
  size_t whole = count / SHORTEST + 1;
  return sentences(whole, first + whole).substr(0, count);
}

// The largest n > 0 with tokens_of(n) <= most, or 0. tokens_of need not grow steadily: what is found is within.
template <class Count> static int most_within(int most, Count tokens_of) {
  int low = 0, high = 1;
  while (tokens_of(high) <= most) low = high, high *= 2;
  while (high - low > 1) {
    int middle = (low + high) / 2;
    (tokens_of(middle) <= most ? low : high) = middle;
  }
  return low;
}

static std::string landmark_text(const std::string& key, double depth, int fill, bool control) {
  const char* line = "The pass key is %s. Remember it. %s is the pass key.\n";
  int before = int(depth * fill);
  return "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
         "I will quiz you about the important information there.\n" +
         filler(before, 0) + "\n" + (control ? "" : format(line, key.c_str(), key.c_str())) + filler(fill - before, 0) +
         "\nWhat is the pass key? The pass key is " + key + ".";
}

// Without the filler before the key.
static std::string compact_text(const std::string& key, int first_sentence, int fill, bool control) {
  std::string line = control ? "" : format("The key is %s. Remember %s. ", key.c_str(), key.c_str());
  return line + (fill > 0 ? filler(fill - 1, first_sentence) + " " : "") + "What is the key? The key is " + key + ".";
}

PasskeyPrompt passkey_prompt(const Tokenizer& tokenizer, PasskeyForm form, int length, double depth,
                             const std::string& key, int first_sentence, int fill, bool control) {
  bool landmark = form == PasskeyForm::landmark;
  auto text = [&](int n) {
    return landmark ? landmark_text(key, depth, n, control) : compact_text(key, first_sentence, n, control);
  };
  auto tokens_of = [&](int n) { return int(tokenizer.encode(text(n)).size()); };
  PasskeyPrompt prompt{length, depth, key, control, fill, {}, 0, 0, 0};
  std::vector<int>& tokens = prompt.tokens;
  if (tokenizer.end_of_text() >= 0) tokens.push_back(tokenizer.end_of_text());
  int room = length - int(tokens.size()), least = tokens_of(0);
  if (least > room)
    user_error(
        "--passkey: length %d is too short for passkey.form = \"%s\": with the key %s and no filler, a prompt has %d "
        "tokens; give --lengths longer ones%s",
        length, passkey_form_names[int(form)], key.c_str(), least + length - room,
        landmark ? ", or set passkey.form=compact" : "");
  int most = landmark ? room : room - int(depth * (room - least));
  if (fill < 0) prompt.fill = most_within(most, tokens_of);
  std::string whole = text(prompt.fill);
  if (!landmark) whole = sentences(size_t(length * LONGEST) / SHORTEST + 1, first_sentence) + whole;  // cut below
  std::vector<int> all = tokenizer.encode(whole), answer = tokenizer.encode(" " + key);
  tokens.insert(tokens.end(), all.end() - std::min<ptrdiff_t>(room, all.size()), all.end());
  prompt.key_tokens = int(answer.size());
  prompt.answer = int(tokens.size()) - 1 - prompt.key_tokens;
  auto asked = tokens.begin() + prompt.answer;
  if (!control) prompt.distance = int(asked - std::find_end(tokens.begin(), asked, answer.begin(), answer.end()));
  return prompt;
}

std::vector<PasskeyPrompt> passkey_prompts(const Tokenizer& tokenizer, const Config& config,
                                           const std::vector<int>& lengths) {
  const Config::Passkey& settings = config.passkey;
  bool landmark = settings.form == PasskeyForm::landmark;
  if (landmark && config.generate.tokenizer != TokenizerKind::gpt2)
    user_error(
        "config: passkey.form = \"landmark\" is a prompt in GPT-2 tokens, but generate.tokenizer = \"%s\"; set "
        "passkey.form=compact, or generate.tokenizer and generate.tokenizer_dir for a model of GPT-2 tokens%s",
        tokenizer_kind_names[int(config.generate.tokenizer)],
        source_tag(source_of(config, {"passkey.form", "generate.tokenizer"})).c_str());
  check_vocabulary(tokenizer, config);
  std::vector<PasskeyPrompt> prompts;
  for (int length : lengths)
    for (int cell = 0; cell <= settings.depths; cell++) {
      bool control = cell == settings.depths;
      double depth = control ? 0 : double(cell) / (settings.depths - 1);
      std::map<std::pair<int, size_t>, int> fills;  // what fits depends on how many tokens the key has, not on which
      for (int trial = 0; trial < settings.trials; trial++) {
        Checksum seed;
        std::string drawn_for =
            format("%s %d %.6f %d %d", passkey_form_names[int(settings.form)], length, depth, control, trial);
        seed.add(drawn_for.data(), drawn_for.size());
        std::mt19937_64 random(seed.value());
        std::string key = landmark ? std::to_string(1 + random() % 50000) : format("%05d", int(random() % 100000));
        size_t first_sentence = landmark ? 0 : random() % KINDS;
        auto [fill, unknown] = fills.try_emplace({tokenizer.encode(" " + key).size(), first_sentence}, -1);
        prompts.push_back(
            passkey_prompt(tokenizer, settings.form, length, depth, key, int(first_sentence), fill->second, control));
        fill->second = prompts.back().fill;
      }
    }
  return prompts;
}

void write_passkey_prompts(const Tokenizer& tokenizer, const Config& config,
                           const std::vector<PasskeyPrompt>& prompts) {
  if (config.passkey.examples.empty()) return;
  std::string text;
  for (const PasskeyPrompt& prompt : prompts) {
    if (prompt.control) continue;
    auto begin = prompt.tokens.begin() + (tokenizer.end_of_text() >= 0);
    text += nlohmann::ordered_json{{"form", passkey_form_names[int(config.passkey.form)]},
                                   {"length", prompt.length},
                                   {"depth", prompt.depth},
                                   {"key", prompt.key},
                                   {"prompt", tokenizer.decode({begin, prompt.tokens.begin() + prompt.answer})}}
                .dump() +
            "\n";
  }
  write_new_file(config, "passkey.examples", config.passkey.examples, text);
}

// ---------------------------------------------------------------------------------------------------------------------
// Scores

PasskeyScore passkey_score(const float* logits, int V, const int* key, int key_tokens, const Tokenizer& tokenizer) {
  PasskeyScore score{1, 0, 0};
  for (int i = 0; i < key_tokens; i++) {
    const float *row = logits + size_t(i) * V, own = row[key[i]];
    double largest = *std::max_element(row, row + V), sum = 0;
    int64_t rank = 1;
    for (int v = 0; v < V; v++) {
      sum += std::exp(row[v] - largest);
      rank += row[v] > own || (row[v] == own && v < key[i]);
    }
    if (rank > 1 || !(own <= largest)) score.exact = 0;  // logits that are NaN do not count as an answer
    score.nll += (largest + std::log(sum) - own) / key_tokens;
    score.rank += std::log2(double(rank)) / key_tokens;
  }
  const float* after = logits + size_t(key_tokens) * V;
  std::string next = tokenizer.decode({int(std::max_element(after, after + V) - after)});
  if (!next.empty() && next[0] >= '0' && next[0] <= '9') score.exact = 0;
  return score;
}

std::vector<PasskeyScore> passkey_scores(Model& model, const Tokenizer& tokenizer,
                                         const std::vector<PasskeyPrompt>& prompts,
                                         const std::function<void(size_t)>& done) {
  const Config& config = model.config();
  Comm& comm = model.comm();
  int length = prompts[0].length, batch = prompt_batch(config, length), V = config.model.vocab;
  std::vector<PasskeyScore> scores(prompts.size());
  model.set_length(length);
  for_batches_of_rank(comm, int64_t(prompts.size()), batch, {}, [&](int64_t first, int count) {
    std::vector<int> inputs(size_t(batch) * length, 0), rows;  // a short last batch is filled up with zeros
    for (int i = 0; i < count; i++) {
      const PasskeyPrompt& prompt = prompts[first + i];
      std::copy(prompt.tokens.begin(), prompt.tokens.end(), inputs.begin() + size_t(i) * length);
      for (int t = 0; t <= prompt.key_tokens; t++) rows.push_back(i * length + prompt.answer - 1 + t);
    }
    std::vector<float> logits(rows.size() * V);
    model.row_logits(logits.data(), inputs.data(), batch, length, rows);
    const float* row = logits.data();
    for (int i = 0; i < count; i++) {
      const PasskeyPrompt& prompt = prompts[first + i];
      scores[first + i] = passkey_score(row, V, &prompt.tokens[prompt.answer], prompt.key_tokens, tokenizer);
      row += size_t(prompt.key_tokens + 1) * V;
    }
    if (done) done(first + count);
  });
  model.set_length(config.model.context);
  static_assert(sizeof(PasskeyScore) == 3 * sizeof(double));
  comm.combine(&scores[0].exact, 3 * scores.size());
  return scores;
}

// Prints and writes the means over the trials with all prompts of one length, by depth of the key.
static void report(const EvalContext& context, const std::vector<PasskeyPrompt>& prompts,
                   const std::vector<PasskeyScore>& scores) {
  const Config& config = context.model.config();
  int length = prompts[0].length, trials = config.passkey.trials;
  std::vector<double> depths, exact, nll, rank, distance;  // the last: tokens from the last mention of the key
  double control = 0;                                      // exact answers without the line with the key
  for (size_t first = 0; first < prompts.size(); first += trials) {
    PasskeyScore sum;
    double tokens = 0;
    for (size_t i = first; i < first + trials; i++) {
      sum.exact += scores[i].exact, sum.nll += scores[i].nll, sum.rank += scores[i].rank;
      tokens += prompts[i].distance;
    }
    if (prompts[first].control) {
      control = sum.exact / trials;
      continue;
    }
    depths.push_back(prompts[first].depth);
    exact.push_back(sum.exact / trials);
    nll.push_back(sum.nll / trials);
    rank.push_back(sum.rank / trials);
    distance.push_back(tokens / trials);
  }
  double error = share_error(mean_of(exact), double(depths.size()) * trials);
  std::printf("%7d |", length);
  for (double share : exact) std::printf(" %4.0f", 100 * share);
  std::printf(" | %5.1f %5.1f  | %5.2f %6.2f | %7.1f\n", 100 * mean_of(exact), 100 * error, mean_of(nll), mean_of(rank),
              100 * control);
  std::fflush(stdout);
  nlohmann::ordered_json asked = {{"form", passkey_form_names[int(config.passkey.form)]},
                                  {"length", length},
                                  {"trials", trials},
                                  {"depths", depths},
                                  {"of", conditions_at(config, length)}};
  Checksum tokens;
  for (const PasskeyPrompt& prompt : prompts) tokens.add(prompt.tokens.data(), prompt.tokens.size() * sizeof(int));
  asked["of"]["prompts_xxh64"] = tokens.text();
  nlohmann::ordered_json fields = line_of(context.origin, evaluation_id(asked));
  fields.update(asked);
  fields.update({{"exact", exact},
                 {"nll", nll},
                 {"rank", rank},
                 {"distance", distance},
                 {"control", control},
                 {"stderr", error}});
  AttentionSettings attention = config.attention_at(length);
  if (attention.window) fields.update({{"window", attention.window}, {"sink_tokens", attention.sink_tokens}});
  context.metrics.write("passkey", fields);
}

bool evaluate_passkey(const EvalContext& context, const Tokenizer& tokenizer,
                      const std::vector<PasskeyPrompt>& prompts) {
  Model& model = context.model;
  const Config::Passkey& settings = model.config().passkey;
  int64_t all = 0, before = 0;  // tokens
  for (const PasskeyPrompt& prompt : prompts) all += prompt.length;
  ProgressBar bar("passkey", all, model.comm().first() ? stderr : nullptr);
  std::printf("passkey, %s, step %ld: exact answers in %%, by depth of the key (0: the beginning)\n length |",
              passkey_form_names[int(settings.form)], context.origin.step);
  for (int cell = 0; cell < settings.depths; cell++) std::printf(" %4.2g", double(cell) / (settings.depths - 1));
  std::printf(" |   all +-     |   nll   rank | control\n");
  bool finite = true;
  std::map<int, std::pair<double, int>> by_distance;  // by the power of two at or below it: exact answers, prompts
  size_t of_length = size_t(settings.depths + 1) * settings.trials;
  for (size_t first = 0; first < prompts.size(); first += of_length) {
    std::vector<PasskeyPrompt> here(prompts.begin() + first, prompts.begin() + first + of_length);
    int length = here[0].length;
    std::vector<PasskeyScore> scores =
        passkey_scores(model, tokenizer, here, [&](size_t done) { bar.update(before + int64_t(done) * length); });
    before += int64_t(of_length) * length;
    bar.clear();
    report(context, here, scores);
    for (size_t i = 0; i < here.size(); i++) {
      finite = finite && std::isfinite(scores[i].nll);
      if (here[i].control) continue;
      auto& [exact, count] = by_distance[int(std::bit_floor(unsigned(here[i].distance)))];
      exact += scores[i].exact, count++;
    }
  }
  std::printf("by tokens from the key to the answer\n");
  for (auto& [distance, sum] : by_distance)
    std::printf("%7d to %6d | %5.1f of %d prompts\n", distance, 2 * distance - 1, 100 * sum.first / sum.second,
                sum.second);
  return finite;
}
