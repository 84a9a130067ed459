// Benchmarks: log-likelihoods against float64 sums over logits, accuracies of log-likelihoods that are known.
#include "eval/benchmarks.h"

#include <gtest/gtest.h>

#include <cmath>

#include "eval/evaluate.h"
#include "test/data/benchmark_bytes.h"
#include "test/model/small_model.h"
#include "test/support/temp_dir.h"

namespace {

// Contexts of 1 to 140 tokens of a vocabulary of 61, with 2 to 5 completions of 1 to 9 tokens.
std::vector<BenchmarkExample> random_examples(int count) {
  std::vector<BenchmarkExample> examples;
  std::vector<int> sizes = random_ints(1000, 5, 1 << 20);
  auto next = [&, at = size_t(0)](int below) mutable { return sizes[at++ % sizes.size()] % below; };
  for (int i = 0; i < count; i++) {
    BenchmarkExample example{random_ints(1 + next(140), 100 + i, 61), 0, {}};
    for (int c = 2 + next(4); c > 0; c--)
      example.choices.push_back({random_ints(1 + next(9), 1000 + 9 * i + c, 61), 1, 1});
    examples.push_back(example);
  }
  return examples;
}

// The logits of the token after these.
std::vector<float> logits_after(Model& model, const std::vector<int>& tokens) {
  std::vector<float> logits(61);
  model.row_logits(logits.data(), tokens.data(), 1, int(tokens.size()), {int(tokens.size()) - 1});
  return logits;
}

// A completion's log-likelihood from the logits of one row after the other.
double plain_likelihood(Model& model, const BenchmarkExample& example, const BenchmarkChoice& choice, size_t most) {
  std::vector<int> tokens = example.context;
  tokens.insert(tokens.end(), choice.tokens.begin(), choice.tokens.end());
  if (tokens.size() > most + 1) tokens.erase(tokens.begin(), tokens.end() - (most + 1));
  double sum = 0;
  for (size_t at = tokens.size() - choice.tokens.size(); at < tokens.size(); at++) {
    std::vector<float> logits = logits_after(model, {tokens.begin(), tokens.begin() + ptrdiff_t(at)});
    double all = 0;
    for (float x : logits) all += std::exp(double(x));
    sum += logits[tokens[at]] - std::log(all);
  }
  return sum;
}

TEST(Benchmarks, LikelihoodsAreThoseOfTheLogits) {
  Benchmark benchmark{"x", true, "", random_examples(12)};
  for (int most : {9, 70, 200}) {
    std::vector<double> plain;
    for (std::string batch : {"1", "5", "100"}) {
      Config config = small_config("fp32", {"eval.batch=" + batch, "attention.variant=lssar",
                                            "task.max_length=" + std::to_string(most), "eval.rope_scaling=yarn"});
      std::vector<int> lengths = benchmark_lengths(config, {benchmark});
      auto model = evaluated_model(config, eval_rows(config, lengths), std::max(most, 11), 5);
      std::vector<double> likelihoods = benchmark_answers(*model, benchmark)->likelihoods;
      model->set_length(most);
      if (plain.empty())  // they are the same for every batch
        for (const BenchmarkExample& example : benchmark.examples)
          for (const BenchmarkChoice& choice : example.choices)
            plain.push_back(plain_likelihood(*model, example, choice, size_t(most)));
      ASSERT_EQ(plain.size(), likelihoods.size());
      // fp32: some 10 roundings of 2^-24 of numbers up to a token's loss, in both, and those of the model itself
      for (size_t i = 0; i < plain.size(); i++)
        EXPECT_NEAR(likelihoods[i], plain[i], 1e-5 * std::abs(plain[i])) << batch << " " << most << "," << i;
      if (batch == "5") continue;
      EXPECT_FALSE(benchmark_answers(*model, benchmark, [] { return true; }));
    }
  }
}

// A text is predicted in windows of `most` tokens: of each, the sum is that of a completion with what precedes it.
TEST(Benchmarks, TextsInWindows) {
  Benchmark benchmark{"x", false, "", {}, true};
  for (int size : {1, 8, 9, 10, 18, 100})
    benchmark.examples.push_back({random_ints(1, size, 61), 0, {{random_ints(size, 50 + size, 61), 0, 9, 3}}});
  for (int most : {9, 70})
    for (std::string batch : {"1", "5"}) {
      Config config = small_config("fp32", {"eval.batch=" + batch, "task.max_length=" + std::to_string(most)});
      auto model =
          evaluated_model(config, eval_rows(config, benchmark_lengths(config, {benchmark})), std::max(most, 11), 5);
      BenchmarkAnswers answers = *benchmark_answers(*model, benchmark);
      EXPECT_TRUE(answers.greedy.empty());
      ASSERT_EQ(answers.likelihoods.size(), benchmark.examples.size());
      model->set_length(most);
      for (size_t i = 0; i < benchmark.examples.size(); i++) {
        std::vector<int> before = benchmark.examples[i].context, rest = benchmark.examples[i].choices[0].tokens;
        double expected = 0;
        while (!rest.empty()) {
          auto end = rest.begin() + std::min<ptrdiff_t>(most, rest.end() - rest.begin());
          std::vector<int> part(rest.begin(), end);
          expected += plain_likelihood(*model, {before, 0, {}}, {part}, size_t(most));
          before.insert(before.end(), part.begin(), part.end());
          rest.erase(rest.begin(), end);
        }
        EXPECT_NEAR(answers.likelihoods[i], expected, 1e-5 * std::abs(expected)) << most << " " << batch << " " << i;
      }
      EXPECT_EQ(benchmark_report(benchmark, answers, most).cut, 0);
    }
}

TEST(Benchmarks, WordsThatAreTheLikeliest) {
  Benchmark benchmark{"x", false, "", {}, true};
  Config config = small_config("fp32", {"eval.batch=5", "task.max_length=20"});
  auto model = evaluated_model(config, 5 * 20, 20, 5);
  model->set_length(20);
  std::vector<double> expected;
  for (int i = 0; i < 12; i++) {  // a third the likeliest, a third not in the second token, a third not in the first
    BenchmarkExample example{random_ints(10, i, 61), 0, {{{}, 0, 5, 1}}};
    std::vector<int> tokens = example.context;
    for (int n = 1; n <= 2; n++) {
      std::vector<float> logits = logits_after(*model, tokens);
      int best = int(std::max_element(logits.begin(), logits.end()) - logits.begin());
      tokens.push_back(i % 3 == n ? (best + 1) % 61 : best);
    }
    example.choices[0].tokens = {tokens.end() - 2, tokens.end()};
    benchmark.examples.push_back(example);
    expected.push_back(i % 3 == 0);
  }
  BenchmarkAnswers answers = *benchmark_answers(*model, benchmark);
  EXPECT_EQ(answers.greedy, expected);
  EXPECT_EQ(benchmark_report(benchmark, answers, 20).acc, 1 / 3.0);
}

TEST(Benchmarks, ReportOfTexts) {
  Benchmark benchmark{"x", false, "", {{{1}, 0, {{{1}, 0, 4, 1}}}, {{1, 1, 1}, 0, {{{1, 1}, 0, 8, 3}}}}, true};
  BenchmarkReport r = benchmark_report(benchmark, {{-2, -6}, {}}, 3);
  EXPECT_DOUBLE_EQ(r.word_perplexity, std::exp(8 / 4.0));
  EXPECT_DOUBLE_EQ(r.bits_per_byte, 8 / std::log(2.0) / 12);
  EXPECT_EQ(r.cut, 1);
  for (double unknown : {r.acc, r.standard_error, r.acc_norm, r.acc_bytes, r.acc_norm_tokens, r.margin, r.chance})
    EXPECT_TRUE(std::isnan(unknown));
  r = benchmark_report(benchmark, {{-2, -6}, {1, 0}}, 3);
  EXPECT_EQ(r.acc, 0.5);
  EXPECT_DOUBLE_EQ(r.standard_error, 0.5);
}

TEST(Benchmarks, ReportOfKnownLikelihoods) {
  std::vector<int> five(5, 1);
  Benchmark benchmark{"x",
                      true,
                      "sum",
                      {{{1, 1, 1}, 0, {{{1, 1}, 2, 4}, {{1}, 4, 4}}},      // -2, -3
                       {{1}, 1, {{{1}, 1, 1}, {five, 10, 10}}},            // -2, -4: right per character and token
                       {{1}, 0, {{{1}, 3, 3}, {{1}, 3, 3}, {{1}, 3, 3}}},  // -1, -1, -1: the first
                       {{1}, 2, {{{1}, 1, 1}, {{1}, 1, 1}, {{1}, 1, 1}, {{1}, 2, 1}}}}};  // -4, -3, -3, -5
  std::vector<double> values = {-2, -3, -2, -4, -1, -1, -1, -4, -3, -3, -5};
  BenchmarkReport r = benchmark_report(benchmark, {values, {}}, 3);
  EXPECT_EQ(r.cut, 2);                    // 3 + 2 and 1 + 5 tokens, of which the last is not seen
  EXPECT_EQ(r.acc, 2 / 4.0);              // 0, 2
  EXPECT_EQ(r.acc_norm, 2 / 4.0);         // per character: -1, -.75; -2, -.4; equal; -4, -3, -3, -2.5
  EXPECT_EQ(r.acc_bytes, 3 / 4.0);        // per byte: -.5, -.75; -2, -.4; equal; -4, -3, -3, -5
  EXPECT_EQ(r.acc_norm_tokens, 3 / 4.0);  // -1, -3; -2, -.8; equal; the first of -3
  EXPECT_DOUBLE_EQ(r.chance, (1 / 2.0 + 1 / 2.0 + 1 / 3.0 + 1 / 4.0) / 4);
  EXPECT_DOUBLE_EQ(r.margin, (-0.25 + 1.6 + 0 - 0.5) / 4);
  EXPECT_DOUBLE_EQ(r.standard_error, std::sqrt(0.25 / 3));
  benchmark.has_lengths = false;
  r = benchmark_report(benchmark, {values, {}}, 3);
  EXPECT_EQ(r.acc, 2 / 4.0);
  EXPECT_EQ(r.acc_norm_tokens, 3 / 4.0);
  for (double unknown : {r.acc_norm, r.acc_bytes, r.margin}) EXPECT_TRUE(std::isnan(unknown));
  benchmark.examples.resize(1);
  EXPECT_TRUE(std::isnan(benchmark_report(benchmark, {values, {}}, 3).standard_error));
}

TEST(Benchmarks, CompletionsMustFit) {
  TempDir files;
  write_file(files / "x.bin", benchmark_bytes(random_examples(12), 2));
  Config config = small_config("fp32", {"task.names=x", "task.dir=" + files.path, "task.max_length=9"});
  EXPECT_EQ(open_benchmarks(config)[0].examples.size(), 12u);
  config.task.max_length = 5;
  expect_user_error([&] { open_benchmarks(config); },
                    {"task x", "example ", " tokens", "task.max_length = 5", "raise it"});
  config.task.limit = 3;
  EXPECT_EQ(benchmark_lengths(config, {Benchmark{"x", true, "", random_examples(3)}}), (std::vector<int>{5, 5}));
}

}  // namespace
