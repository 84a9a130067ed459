// Evaluation and generation: losses at any length against the float64 reference, the protocol of an evaluation, logits,
// sampling.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "eval/evaluate.h"
#include "eval/generate.h"
#include "test/model/model_reference.h"
#include "test/model/small_model.h"
#include "test/support/temp_dir.h"

namespace {

void write_shard(const std::string& path, const std::vector<int>& tokens) {
  int header[256] = {20240520, 1, int(tokens.size())};
  std::vector<uint16_t> words(tokens.begin(), tokens.end());
  write_file(path, std::string(reinterpret_cast<char*>(header), sizeof header) +
                       std::string(reinterpret_cast<char*>(words.data()), 2 * words.size()));
}

// ---- evaluation

TEST(Evaluation, LossesMatchTheReferenceAtAnyLength) {
  struct {
    int T;  // up to beyond the trained length
    const char* scaling;
  } cases[] = {{1, "none"}, {5, "yarn"}, {11, "none"}, {29, "none"}, {29, "linear"}, {29, "ntk"}, {29, "yarn"}};
  for (auto [T, scaling] : cases) {
    Config config = small_config("fp32", {std::string("eval.rope_scaling=") + scaling});
    auto model = make_model(config, 2 * 29, 29, false);
    randomise(*model, 100);
    std::vector<int> tokens = random_ints(2 * T + 1, 5, 61), inputs(tokens.begin(), tokens.end() - 1),
                     targets(tokens.begin() + 1, tokens.end());
    ReferenceModel<Exact> exact(config);
    ReferenceModel<Naive<float>> naive(config);
    exact.take_parameters(*model);
    naive.take_parameters(*model);
    exact.forward(inputs, targets, 2, T);
    naive.forward(inputs, targets, 2, T);
    std::vector<float> losses(2 * T, NAN);
    model->set_rope(T);
    model->losses(losses.data(), inputs.data(), targets.data(), 2, T);
    expect_close(format("losses, T = %d, RoPE's scaling %s", T, scaling), losses, exact.losses, naive.losses,
                 unit_roundoff<float>);
  }
}

// The protocol: windows, bins and tail, from the losses of every window one by one; independent of the evaluation
// batch.
TEST(Evaluation, FollowsTheProtocol) {
  TempDir files;
  write_shard(files / "val_0.bin", random_ints(150, 1, 61));
  write_shard(files / "val_1.bin", random_ints(75, 2, 61));
  for (std::string batch : {"1", "3"}) {
    Config config = small_config("fp32", {"eval.batch=" + batch});
    const int L = 40;
    auto model = make_model(config, eval_rows(config, {L}), L, false);
    randomise(*model, 7);
    std::vector<Shard> shards = open_shards({files / "val_*.bin"}, 61, "data.val");
    WindowReader reader(shards, L, 61);
    ASSERT_EQ(reader.windows(), 3 + 1);  // (150 - 1) / 40 and (75 - 1) / 40
    for (int64_t tokens : {1000, 85, 40}) {
      LengthLoss result = *evaluate(*model, shards, L, tokens);
      int64_t windows = std::min<int64_t>(4, tokens / L);
      std::vector<double> position(L, 0);
      for (int64_t w = 0; w < windows; w++) {
        std::vector<int> inputs(L), targets(L);
        std::vector<float> losses(L);
        reader.read(w, inputs.data(), targets.data());
        model->losses(losses.data(), inputs.data(), targets.data(), 1, L);
        for (int t = 0; t < L; t++) position[t] += double(losses[t]) / double(windows);
      }
      double mean = std::accumulate(position.begin(), position.end(), 0.0) / L;
      EXPECT_EQ(result.tokens, windows * L);
      EXPECT_NEAR(result.loss, mean, 1e-6 * mean);
      EXPECT_NEAR(result.last_loss, mean, 1e-6 * mean);  // the last min(1024, 40)
      ASSERT_EQ(result.by_position.size(), size_t(L));   // bins of clamp(40 / 32, 1, 256) = 1
      for (int t = 0; t < L; t++) EXPECT_NEAR(result.by_position[t], position[t], 1e-5);
    }
    EXPECT_THROW(evaluate(*model, shards, L, 39), UserError);
    EXPECT_THROW(evaluate(*model, {shards[0]}, 150, 1000), UserError);  // the last target would be outside
  }
}

TEST(Evaluation, BinsAndTailOfLongWindows) {
  TempDir files;
  write_shard(files / "val.bin", random_ints(1201, 1, 61));
  Config config = small_config("fp32", {"model.layers=1"});
  const int L = 1200;
  auto model = make_model(config, L, L, false);
  randomise(*model, 7);
  std::vector<Shard> shards = open_shards({files / "val.bin"}, 61, "data.val");
  LengthLoss result = *evaluate(*model, shards, L, L);
  std::vector<int> inputs(L), targets(L);
  std::vector<float> losses(L);
  WindowReader(shards, L, 61).read(0, inputs.data(), targets.data());
  model->set_rope(L);
  model->losses(losses.data(), inputs.data(), targets.data(), 1, L);
  auto mean = [&](int from, int to) {
    return std::accumulate(losses.begin() + from, losses.begin() + to, 0.0) / (to - from);
  };
  EXPECT_NEAR(result.last_loss, mean(L - 1024, L), 1e-5);
  ASSERT_EQ(result.by_position.size(), 33u);  // bins of 37, the last of 1200 - 32 x 37 = 16
  EXPECT_NEAR(result.by_position[0], mean(0, 37), 1e-5);
  EXPECT_NEAR(result.by_position[32], mean(1184, 1200), 1e-5);
}

// ---- generation

TEST(Generation, LogitsBelongToTheLastToken) {
  Config config = small_config("fp32");
  auto model = make_model(config, 11, 11, false);
  randomise(*model, 9);
  std::vector<int> tokens = random_ints(12, 4, 61);
  std::vector<float> losses(11), logits(61);
  model->losses(losses.data(), tokens.data(), tokens.data() + 1, 1, 11);
  for (int count = 1; count <= 11; count++) {
    model->next_token_logits(logits.data(), tokens.data(), count);
    double sum = 0;
    for (float x : logits) sum += std::exp(double(x));
    EXPECT_NEAR(std::log(sum) - logits[tokens[count]], losses[count - 1], 1e-5) << count;
  }
}

TEST(Generation, SamplingFollowsTheDistribution) {
  const float logits[] = {0, 1, 2, -50};
  EXPECT_EQ(sample(logits, 4, 0, 0, 0.999), 2);  // temperature 0: the likeliest
  EXPECT_EQ(sample(logits, 4, 1, 1, 0.999), 2);
  EXPECT_EQ(sample(logits, 4, 1, 2, 0.999), 1);  // of the top two, likeliest first: e^2 / (e + e^2) = 0.731
  EXPECT_EQ(sample(logits, 4, 1, 2, 0.730), 2);
  EXPECT_EQ(sample(logits, 4, 1, 2, 0.732), 1);
  EXPECT_EQ(sample(logits, 4, 1, 0, 0.0), 0);
  EXPECT_EQ(sample(logits, 4, 1, 0, 0.0899), 0);  // 1 / (1 + e + e^2) = 0.0900
  EXPECT_EQ(sample(logits, 4, 1, 0, 0.0901), 1);
  EXPECT_EQ(sample(logits, 4, 1, 0, 0.9999999), 2);
  EXPECT_EQ(sample(logits, 4, 1e-3, 0, 0.5), 2);
}

TEST(Generation, SameSeedSameTextBeyondTheContext) {
  Config config = small_config("fp32", {"model.vocab=256", "generate.tokens=30", "generate.prompt=ab"});
  auto model = make_model(config, 11, 11, false);
  randomise(*model, 9);
  auto tokenizer = open_tokenizer("bytes", "");
  auto text = [&](uint64_t seed) {
    std::string all;
    generate(*model, *tokenizer, config.generate, seed, [&](const std::string& piece) { all += piece; });
    return all;
  };
  EXPECT_EQ(text(1), text(1));
  EXPECT_NE(text(1), text(2));
  EXPECT_EQ(text(1).size(), 32u);
  EXPECT_EQ(text(1).substr(0, 2), "ab");
  Config small = small_config("fp32", {"generate.prompt=z"});
  auto other = make_model(small, 11, 11, false);
  EXPECT_THROW(generate(*other, *tokenizer, small.generate, 1, [](const std::string&) {}),
               UserError);  // "z" is 122, the vocabulary 61
}

}  // namespace
