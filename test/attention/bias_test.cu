// attention.bias against the formulas of its papers, written as in the papers: ALiBi's slopes times distances, FoX's
// products of forget gates and CABLE's sums over the positions between key and query, for each pair by itself.
#include "attention/position_bias.cuh"

#include "attention/fragment.cuh"
#include "attention/masks.cuh"

#include <gtest/gtest.h>

#include "test/attention/attention_reference.h"
#include "test/support/device.h"

namespace {

// The slopes of ALiBi's text: a geometric sequence that starts at 2^(-8/H) and has this ratio.
std::vector<double> slopes_of_the_text(int H) {
  std::vector<double> slopes = {std::pow(2.0, -8.0 / H)};
  while (int(slopes.size()) < H) slopes.push_back(slopes.back() * slopes[0]);
  return slopes;
}

// Those of its code: beyond a power of 2, every other slope of twice that power.
std::vector<double> slopes_of_the_code(int H) {
  int power = 1;
  while (2 * power <= H) power *= 2;
  std::vector<double> slopes = slopes_of_the_text(power), more = slopes_of_the_text(2 * power);
  for (size_t i = 0; int(slopes.size()) < H; i += 2) slopes.push_back(more[i]);
  return slopes;
}

std::vector<float> bias_of(Bias bias, const AttentionShape& shape, const std::vector<float>& logits = {},
                           Kind kind = Kind::softmax) {
  DeviceArray<float> c(bias_floats(shape)), x(logits);
  AttentionSettings s{.kind = kind, .bias = bias};
  position_bias_forward<float>(c, {logits.empty() ? nullptr : x.get(), shape.H}, {.settings = s, .shape = shape});
  return c.download();
}

// [B, H, T], from what kernels read.
std::vector<double> values_of(std::vector<float> c, const AttentionShape& shape) {
  std::vector<double> values;
  for (float* head = c.data(); head < c.data() + c.size() - BIAS_SLACK; head += bias_floats(shape.T))
    for (int t = 0; t < shape.T; t++) {
      float2 origin = origin_of(head, t);
      values.push_back(double(origin.x) + origin.y + head[bias_origins(shape.T) + t]);
    }
  return values;
}

// c of a position and of the one before it, as differences from their origins, are each off by a rounding of the sum of
// up to 64 steps, far from the start too: c itself reaches -50,000, where floats are 0.004 apart.
TEST(Bias, DifferencesAreExactFarFromTheStart) {
  AttentionShape shape{1, 1024 * BIAS_ROWS + 7, 2, 1};
  auto logits = random_normal<float>(shape.rows(), 3);
  for (Bias bias : {Bias::alibi, Bias::fox, Bias::cable})
    for (Kind kind : {Kind::softmax, Kind::lssa}) {
      auto c = values_of(bias_of(bias, shape, logits, kind), shape);
      auto step = [&](int h, int t) {
        double x = logits[size_t(t) * shape.H + h], slope = std::exp2(-4.0 * (h + 1));
        return (bias == Bias::alibi ? slope : std::log1p(std::exp(bias == Bias::fox ? -x : x))) / kind_row(kind).unit;
      };
      for (int h = 0; h < shape.H; h++)
        for (int t = shape.T - 3 * BIAS_ROWS; t < shape.T; t++) {
          double steps = 0;
          for (int n = 0; n < BIAS_ROWS; n++) steps += step(h, t - n);
          size_t at = size_t(h) * shape.T + t;
          EXPECT_NEAR(c[at - 1] - c[at], step(h, t), 2 * 0x1p-24 * steps) << bias_names[int(bias)] << " at " << t;
        }
    }
}

// z [16, 64] = what the kernels on tensor cores begin the scores of a warp's 16 rows from held0 and of 64 streamed rows
// from stream0 with.
template <bool KEYS> __global__ void begin_scores_kernel(float* z, const float* c, int T, int held0, int stream0) {
  float parts[1][8][4];
  begin_scores<KEYS>(parts, Biased({.bias = c}, T, 0), held0, stream0);
  Fragment mine;
  for_rows<1>([&](int m, int half) {
    for (int n = 0; n < 8; n++)
      for (int e = 0; e < 2; e++) z[64 * mine.row(half, m) + mine.column(n) + e] = parts[m][n][2 * half + e];
  });
}

// They are c_i - c_j, near and far. Roundings: of both numbers c less their origin's, each at most a sum of 64 steps;
// of the origins' difference, which is that much more than c_i - c_j at most; and of the sum of these numbers.
TEST(Bias, ScoresBeginAtDifferencesFarFromTheStart) {
  AttentionShape shape{1, 1024 * BIAS_ROWS + 7, 1, 1};
  DeviceArray<float> c(bias_of(Bias::fox, shape, random_normal<float>(shape.rows(), 3))), z(16 * 64);
  auto exact = values_of(c.download(), shape);
  const int held0 = 1023 * BIAS_ROWS + 16;
  double steps = 0;
  for (int t = BIAS_ROWS; t < shape.T; t++) steps = std::max(steps, exact[t - BIAS_ROWS] - exact[t]);
  for (bool keys : {false, true})
    for (int stream0 : {0, 1000 * BIAS_ROWS, 1022 * BIAS_ROWS, 1023 * BIAS_ROWS}) {
      LAUNCH(keys ? begin_scores_kernel<true> : begin_scores_kernel<false>, 1, WARP, 0, 0, z, c, shape.T, held0,
             stream0);
      auto result = z.download();
      for (int held = 0; held < 16; held++)
        for (int streamed = 0; streamed < 64; streamed++) {
          double expected = (keys ? -1 : 1) * (exact[held0 + held] - exact[stream0 + streamed]);
          EXPECT_NEAR(result[64 * held + streamed], expected, 0x1p-24 * (7 * steps + 3 * std::abs(expected)))
              << (keys ? "key " : "query ") << held0 + held << " beside " << stream0 + streamed;
        }
    }
}

TEST(Bias, AlibiHasTheSlopesOfItsText) {
  EXPECT_EQ(slopes_of_the_text(8),
            (std::vector<double>{0x1p-1, 0x1p-2, 0x1p-3, 0x1p-4, 0x1p-5, 0x1p-6, 0x1p-7, 0x1p-8}));
  for (int H : {1, 2, 3, 8, 12, 16, 25}) {
    AttentionShape shape{2, 5, H, 1};
    auto c = values_of(bias_of(Bias::alibi, shape), shape);
    std::vector<double> expected;
    for (int b = 0; b < shape.B; b++)
      for (double slope : slopes_of_the_text(H))
        for (int t = 0; t < shape.T; t++) expected.push_back(-slope * t);
    for (size_t i = 0; i < c.size(); i++) EXPECT_NEAR(c[i], expected[i], 2e-7 * 5) << H << " heads";
    bool power_of_2 = (H & (H - 1)) == 0;
    for (int h = 0; h < H && power_of_2; h++) EXPECT_DOUBLE_EQ(slopes_of_the_code(H)[h], slopes_of_the_text(H)[h]);
    if (!power_of_2) {
      EXPECT_NE(slopes_of_the_code(H)[H - 1], slopes_of_the_text(H)[H - 1]);
    }
  }
}

// What the paper multiplies exp(q . k) by, for key j <= i of head h.
double factor(Bias bias, const std::vector<float>& logits, int H, int h, int i, int j) {
  if (bias == Bias::alibi) return std::exp(slopes_of_the_text(H)[h] * (j - i));
  double product = 1, sum = 0;
  for (int l = j + 1; l <= i; l++) {
    double x = logits[l * H + h];
    product *= 1 / (1 + std::exp(-x));
    sum += std::log(1 + std::exp(x));
  }
  return bias == Bias::fox ? product : std::exp(-sum);
}

// Scores reach 15 and are off by up to 5e-6, and a weight by that share.
TEST(Bias, AttentionIsThatOfThePapers) {
  if (!attention_is_built(Kind::softmax)) GTEST_SKIP() << "built without softmax";
  if (!on_cpu) GTEST_SKIP() << "on a GPU biases have no kernels in fp32";
  AttentionShape shape{1, 50, 3, 16};
  auto qkv = random_qkv<float>(shape, 1), logits = random_normal<float>(size_t(shape.T) * shape.H, 2);
  for (Bias bias : {Bias::alibi, Bias::fox, Bias::cable}) {
    AttentionSettings s{.bias = bias};
    DeviceArray<float> x(qkv), out(shape.out_size());
    DeviceArray<float> c(bias_of(bias, shape, logits));
    AttentionCall<float> call = {.settings = s, .shape = shape, .bias = c};
    find_needed_tiles<float>(c, nullptr, x, call);
    attention_forward<float>(out, nullptr, x, call, false);
    auto result = out.download();
    for (int h = 0; h < shape.H; h++)
      for (int i = 0; i < shape.T; i++) {
        std::vector<double> sum(shape.D);
        double all = 0;
        for (int j = 0; j <= i; j++) {
          double z = 0;
          for (int d = 0; d < shape.D; d++) z += double(qkv[shape.qkv(0, i, 0, h, d)]) * qkv[shape.qkv(0, j, 1, h, d)];
          double weight = std::exp(z) * factor(bias, logits, shape.H, h, i, j);
          all += weight;
          for (int d = 0; d < shape.D; d++) sum[d] += weight * qkv[shape.qkv(0, j, 2, h, d)];
        }
        for (int d = 0; d < shape.D; d++)
          EXPECT_NEAR(result[shape.out(0, i, h, d)], sum[d] / all, 2e-5) << bias_names[int(bias)] << " row " << i;
      }
  }
}

}  // namespace
