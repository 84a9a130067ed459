// Passkey retrieval: the content of prompts, scores of logits that are known, and scores of models against losses,
// logits and greedy decoding.
#include "eval/passkey.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "eval/evaluate.h"
#include "eval/generate.h"
#include "test/model/small_model.h"
#include "test/support/temp_dir.h"

namespace {

// In place of GPT-2's: a token is a word or a number of up to three digits, with the space before it; 0 separates.
class Words : public Tokenizer {
 public:
  std::vector<int> encode(const std::string& text) const override {
    std::vector<int> tokens;
    for (size_t at = 0; at < text.size();) {
      size_t end = at + (text[at] == ' ' && at + 1 < text.size() && std::isalnum(text[at + 1])), digits = end + 3;
      if (std::isalpha(text[end]))
        while (std::isalpha(text[end])) end++;
      else if (std::isdigit(text[end]))
        while (end < digits && std::isdigit(text[end])) end++;
      else end++;
      auto [found, is_new] = ids_.try_emplace(text.substr(at, end - at), int(texts_.size()));
      if (is_new) texts_.push_back(found->first);
      tokens.push_back(found->second);
      at = end;
    }
    return tokens;
  }
  std::string decode(const std::vector<int>& tokens) const override {
    std::string text;
    for (int token : tokens) text += texts_[token];
    return text;
  }
  int vocab() const override { return 65536; }
  int end_of_text() const override { return 0; }

 private:
  mutable std::map<std::string, int> ids_;
  mutable std::vector<std::string> texts_ = {"<end>"};
};

const std::string FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. ";

std::string repeated(size_t count, size_t from = 0) {
  std::string text;
  while (text.size() < from + count) text += FILLER;
  return text.substr(from, count);
}

std::string text_of(const Tokenizer& tokenizer, const PasskeyPrompt& prompt) {
  return tokenizer.decode({prompt.tokens.begin() + (tokenizer.end_of_text() >= 0), prompt.tokens.end()});
}

Config byte_config(const std::vector<std::string>& sets = {}) {
  std::vector<std::string> all = {"model.vocab=256", "generate.tokenizer=bytes", "passkey.form=compact"};
  all.insert(all.end(), sets.begin(), sets.end());
  return small_config("fp32", all);
}

// ---- prompts

TEST(PasskeyPrompts, LandmarkIsThePublishedText) {
  Words tokenizer;
  for (int length : {64, 100, 333, 2048})
    for (double depth : {0.0, 0.25, 0.5, 1.0})
      for (std::string key : {"7", "417", "50000"}) {
        PasskeyPrompt prompt = passkey_prompt(tokenizer, PasskeyForm::landmark, length, depth, key, 0);
        size_t before = size_t(depth * prompt.fill);
        EXPECT_EQ(
            text_of(tokenizer, prompt),
            "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will "
            "quiz you about the important information there.\n" +
                repeated(before) + "\nThe pass key is " + key + ". Remember it. " + key + " is the pass key.\n" +
                repeated(prompt.fill - before) + "\nWhat is the pass key? The pass key is " + key + ".");
        EXPECT_EQ(prompt.tokens[0], 0);  // the separator
        EXPECT_LE(int(prompt.tokens.size()), length);
        EXPECT_GT(int(prompt.tokens.size()), length - 3);  // a character more can begin a token and cut another
        EXPECT_EQ(passkey_prompt(tokenizer, PasskeyForm::landmark, length, depth, key, 0, prompt.fill).tokens,
                  prompt.tokens);
        PasskeyPrompt control = passkey_prompt(tokenizer, PasskeyForm::landmark, length, depth, key, 0, -1, true);
        std::string text = text_of(tokenizer, control);
        EXPECT_EQ(text.find(key), text.size() - key.size() - 1);  // the answer alone
      }
}

TEST(PasskeyPrompts, CompactHasItsLengthAndItsDepth) {
  auto bytes = open_tokenizer(TokenizerKind::bytes, "");
  for (int length : {68, 69, 128, 500})
    for (double depth : {0.0, 0.25, 0.5, 1.0})
      for (int first : {0, 1, 4}) {
        PasskeyPrompt prompt = passkey_prompt(*bytes, PasskeyForm::compact, length, depth, "00417", first);
        int filler = length - 68, before = int(depth * filler), after = filler - before;
        const size_t starts[] = {0, 20, 37, 56, 68};  // of the sentences
        size_t cut = (starts[first] + 90 * 10 - before) % 90;
        std::string between = repeated(after, starts[first]);
        if (after) between.back() = ' ';
        EXPECT_EQ(text_of(*bytes, prompt), repeated(before, cut) + "The key is 00417. Remember 00417. " + between +
                                               "What is the key? The key is 00417.");
        EXPECT_EQ(prompt.answer, length - 7);
        EXPECT_EQ(prompt.key_tokens, 6);
        EXPECT_EQ(prompt.distance, 8 + after + 27);  // " 00417. ", the filler, the question
        PasskeyPrompt control = passkey_prompt(*bytes, PasskeyForm::compact, length, depth, "00417", first, -1, true);
        EXPECT_EQ(text_of(*bytes, control).find("00417"), size_t(length - 6));  // the answer alone
        EXPECT_EQ(control.distance, 0);
      }
  Words words;
  for (double depth : {0.0, 0.3, 1.0}) {
    PasskeyPrompt prompt = passkey_prompt(words, PasskeyForm::compact, 200, depth, "00417", 2);
    std::string text = text_of(words, prompt);
    EXPECT_EQ(prompt.tokens.size(), 200u);
    // Without filler it has 22 tokens: the separator, 10 of the line with the key, 11 of the question and the answer.
    EXPECT_NEAR(double(words.encode(text.substr(0, text.find("The key is"))).size()), depth * (200 - 22), 2);
    expect_has(text, {depth < 1 ? "Remember 00417. The sun is yellow. " : "Remember 00417. What is"});
  }
}

TEST(PasskeyPrompts, DependOnTheCellAndTheTrialAlone) {
  auto bytes = open_tokenizer(TokenizerKind::bytes, "");
  auto prompts = [&](std::vector<std::string> sets, std::vector<int> lengths) {
    std::map<std::tuple<int, double, bool>, std::vector<std::vector<int>>> cells;
    for (auto& prompt : passkey_prompts(*bytes, byte_config(sets), lengths))
      cells[{prompt.length, prompt.depth, prompt.control}].push_back(prompt.tokens);
    return cells;
  };
  auto few = prompts({"passkey.trials=3", "passkey.depths=3"}, {80, 128});
  auto many = prompts({"passkey.trials=5", "passkey.depths=5", "seed=9", "attention.variant=lssar"}, {128, 96, 80});
  ASSERT_EQ(few.size(), 2u * 4);  // three depths and the controls
  std::set<std::vector<int>> all;
  for (auto& [cell, trials] : few) {
    ASSERT_EQ(trials.size(), 3u);
    EXPECT_TRUE(std::equal(trials.begin(), trials.end(), many.at(cell).begin()));
    for (auto& tokens : trials) all.insert({tokens.end() - 6, tokens.end()});
  }
  EXPECT_EQ(all.size(), 24u);  // every prompt has a key of its own
}

// The filler that fits is sought for one key of as many tokens, and used for the others.
TEST(PasskeyPrompts, AreFilledAsIfEachWereMadeAlone) {
  Words words;
  Config config = byte_config({"model.vocab=65536", "generate.tokenizer=gpt2", "passkey.form=landmark"});
  std::set<int> sizes;
  for (const PasskeyPrompt& prompt : passkey_prompts(words, config, {150})) {
    EXPECT_EQ(passkey_prompt(words, PasskeyForm::landmark, 150, prompt.depth, prompt.key, 0, -1, prompt.control).tokens,
              prompt.tokens);
    EXPECT_TRUE(std::stoi(prompt.key) >= 1 && std::stoi(prompt.key) <= 50000);
    sizes.insert(prompt.key_tokens);
  }
  EXPECT_EQ(sizes.size(), 2u);
}

TEST(PasskeyPrompts, BadInput) {
  auto bytes = open_tokenizer(TokenizerKind::bytes, "");
  expect_user_error([&] { passkey_prompts(*bytes, byte_config({}), {128, 67}); }, {"67", "compact", "68", "--lengths"});
  Config config = byte_config();
  config.passkey.form = PasskeyForm::landmark;
  expect_user_error([&] { passkey_prompts(*bytes, config, {512}); }, {"landmark", "generate.tokenizer", "bytes"});
  expect_user_error([&] { passkey_prompts(*bytes, byte_config({"model.vocab=100"}), {128}); }, {"model.vocab = 100"});
}

// ---- scores

TEST(PasskeyScores, OfKnownLogits) {
  auto bytes = open_tokenizer(TokenizerKind::bytes, "");
  const int V = 256, key[] = {'4', '8'};
  auto score = [&](std::vector<std::map<int, float>> rows) {
    std::vector<float> logits;
    for (auto& row : rows)
      for (int v = 0; v < V; v++) logits.push_back(row.count(v) ? row.at(v) : -INFINITY);
    return passkey_score(logits.data(), V, key, 2, *bytes);
  };
  // p = 3/4 and 1/4; first and second
  PasskeyScore s = score({{{'4', std::log(3.0f)}, {'5', 0.0f}}, {{'8', 0.0f}, {'9', std::log(3.0f)}}, {{'.', 0.0f}}});
  EXPECT_EQ(s.exact, 0);
  EXPECT_NEAR(s.nll, -0.5 * std::log(0.75 * 0.25), 1e-6);
  EXPECT_EQ(s.rank, 0.5);  // (log2 1 + log2 2) / 2
  std::map<int, float> four = {{'4', 0.0f}}, eight = {{'8', 0.0f}}, stop = {{'.', 0.0f}};
  EXPECT_EQ(score({four, eight, stop}).exact, 1);
  EXPECT_EQ(score({four, eight, {{' ', 0.0f}}}).exact, 1);
  EXPECT_EQ(score({four, eight, {{'0', 0.0f}}}).exact, 0);  // the answer would have another digit
  EXPECT_EQ(score({four, eight, {{'9', 0.0f}}}).exact, 0);
  EXPECT_EQ(score({eight, eight, stop}).exact, 0);
  EXPECT_EQ(score({eight, eight, stop}).nll, INFINITY);
  EXPECT_EQ(score({four, {{'8', NAN}}, stop}).exact, 0);
  // Of equal logits greedy decoding takes the first, so the others are behind it.
  s = score({{{'3', 1.0f}, {'4', 1.0f}, {'5', 1.0f}}, {{'8', 1.0f}, {'9', 1.0f}}, stop});
  EXPECT_EQ(s.exact, 0);
  EXPECT_EQ(s.rank, 0.5);
  s = score({{{'4', 1.0f}, {'5', 1.0f}}, {{'8', 1.0f}, {'9', 1.0f}}, {{'.', 1.0f}, {'0', 1.0f}}});
  EXPECT_EQ(s.exact, 1);
  EXPECT_EQ(s.rank, 0);
  EXPECT_NEAR(s.nll, std::log(2.0), 1e-12);
}

TEST(PasskeyScores, OfAModelAreItsLossesAndRanks) {
  auto bytes = open_tokenizer(TokenizerKind::bytes, "");
  const int L = 100;
  for (std::string batch : {"1", "4", "100"}) {
    Config config =
        byte_config({"eval.batch=" + batch, "passkey.trials=2", "passkey.depths=2", "eval.rope_scaling=ntk"});
    std::vector<PasskeyPrompt> prompts = passkey_prompts(*bytes, config, {L});
    auto model = evaluated_model(config, std::max<size_t>(L, eval_rows(config, {L})), L, 5);
    size_t done = 0;
    std::vector<PasskeyScore> scores = passkey_scores(*model, *bytes, prompts, [&](size_t count) { done = count; });
    EXPECT_EQ(done, prompts.size());
    model->set_length(L);
    for (size_t i = 0; i < prompts.size(); i++) {
      const PasskeyPrompt& prompt = prompts[i];
      std::vector<int> tokens = prompt.tokens;
      tokens.push_back(0);
      std::vector<float> losses(L), logits(6 * 256);
      model->losses(losses.data(), tokens.data(), tokens.data() + 1, 1, L);
      model->row_logits(logits.data(), tokens.data(), 1, L, {93 - 1, 93, 94, 95, 96, 97});
      double nll = 0, rank = 0;
      for (int t = 0; t < 6; t++) {
        nll += losses[92 + t] / 6;
        int larger = 1;
        for (int v = 0; v < 256; v++) larger += logits[256 * t + v] > logits[256 * t + prompt.tokens[93 + t]];
        rank += std::log2(larger) / 6;
      }
      EXPECT_NEAR(scores[i].nll, nll, 1e-5 * nll);
      EXPECT_NEAR(scores[i].rank, rank, 1e-12);
    }
  }
}

// A model that says what it wants at each position, whatever the tokens: its answers are right or wrong by the prompts.
TEST(PasskeyScores, ExactIsWhatGreedyDecodingAnswers) {
  auto bytes = open_tokenizer(TokenizerKind::bytes, "");
  const int L = 80, C = 24;
  int right = 0, wrong = 0;
  for (int trial = 0; trial < 50; trial++) {
    std::string said = trial % 5 == 4 ? " 482137 " : trial % 5 == 3 ? " 48 213. " : " 48213. ";
    const char* keys[] = {"48213", "48214", "98213", "48213", "48213"};
    PasskeyPrompt prompt =
        passkey_prompt(*bytes, PasskeyForm::compact, L, (trial / 5) / 9.0, keys[trial % 5], trial % 3);
    Config config = byte_config({"model.context=90", "model.position=learned", "batch.tokens=90", "batch.micro=1"});
    config.generate.prompt = bytes->decode({prompt.tokens.begin(), prompt.tokens.begin() + prompt.answer});
    config.generate.tokens = 8;
    config.generate.temperature = 0;
    auto model = make_model(config, std::max<size_t>(90, eval_rows(config, {L})), 90, false);
    std::vector<float> wte = random_normal<float>(256 * C, 3, 1, 0), wpe(90 * C);
    for (int v = 0; v < 256; v++) {  // mean 0 and length 1, as the final layernorm leaves them but for a factor
      float *row = &wte[v * C], mean = 0, square = 0;
      for (int c = 0; c < C; c++) mean += row[c] / C;
      for (int c = 0; c < C; c++) square += (row[c] - mean) * (row[c] - mean);
      for (int c = 0; c < C; c++) row[c] = (row[c] - mean) / std::sqrt(square);
    }
    for (size_t i = 0; i < said.size(); i++)
      for (int c = 0; c < C; c++) wpe[(prompt.answer - 1 + i) * C + c] = 100 * wte[uint8_t(said[i]) * C + c];
    for (const Tensor& tensor : model->parameters().tensors()) {
      if (tensor.name == "wte.weight") model->parameters().write(tensor, wte.data());
      else if (tensor.name == "wpe.weight") model->parameters().write(tensor, wpe.data());
      else if (tensor.name == "ln_f.weight") model->parameters().write(tensor, std::vector<float>(C, 1).data());
    }  // all others are zero: the layers add nothing
    std::string text;
    generate(*model, *bytes, config.generate, 1, [&](const std::string& piece) { text += piece; });
    std::string answer = text.substr(config.generate.prompt.size());
    size_t begin = std::min(answer.find_first_of("0123456789"), answer.size());
    std::string number = answer.substr(begin, answer.find_first_not_of("0123456789", begin) - begin);
    double exact = passkey_scores(*model, *bytes, {prompt})[0].exact;
    EXPECT_EQ(exact, number == prompt.key) << answer << " for " << prompt.key;
    (exact ? right : wrong)++;
  }
  EXPECT_EQ(right, 10);
  EXPECT_EQ(wrong, 40);
}

}  // namespace
