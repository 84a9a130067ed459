// attention/output.cu, the operation on each head's output and its norm, against float64 by the rule of
// test/support/compare.h; the formula's gradients against finite differences; values and outputs that are 0 or tiny.
#include "test/attention/output_reference.h"

#include <gtest/gtest.h>

#include "test/support/device.h"

static const bool poisoned = (set_cpu_poison(true), true);  // reading unwritten memory gives NaN

template <class T> class OutputTest : public testing::Test {};
using StorageTypes = testing::Types<float, bf16>;
TYPED_TEST_SUITE(OutputTest, StorageTypes);

static std::vector<AttentionSettings> all_settings() {
  std::vector<AttentionSettings> all;
  for (OutputOperation operation : {OutputOperation::none, OutputOperation::silu, OutputOperation::exclusive})
    for (QkNorm norm : {QkNorm::none, QkNorm::l2, QkNorm::rms})
      all.push_back({.output = operation, .output_norm = norm});
  return all;
}

static std::string name_of(const AttentionSettings& s, const AttentionShape& shape) {
  return format("%s %s B %d T %d H %d D %d", output_operation_names[int(s.output)], qk_norm_names[int(s.output_norm)],
                shape.B, shape.T, shape.H, shape.D);
}

// more: columns of qkv behind the values; shift: elements by which every array is off its alignment.
template <class T>
static void check(const AttentionSettings& settings, const AttentionShape& shape, int more = 0, int shift = 0) {
  std::string name = name_of(settings, shape);
  size_t A = size_t(shape.H) * shape.D, row = 3 * A + more, rows = size_t(shape.B) * shape.T;
  auto out = random_normal<T>(shape.out_size() + shift, 1, 0.3f), dy = random_normal<T>(shape.out_size() + shift, 2),
       qkv = random_normal<T>(rows * row + shift, 3), dqkv = random_normal<T>(rows * row + shift, 4);
  AttentionCall<T> call{.settings = settings, .shape = shape, .qkv_stride = int(row)};
  DeviceArray<T> dev_out(out), dev_qkv(qkv), y(out.size()), dout(dy), dev_dqkv(dqkv);
  DeviceArray<float> along(shape.rows());
  output_forward<T>(y + shift, dev_out + shift, dev_qkv + shift, call);
  output_backward<T>(dout + shift, along, dev_out + shift, dev_qkv + shift, call);
  output_backward_values<T>(dev_dqkv + shift, dout + shift, along, dev_out + shift, dev_qkv + shift, call);
  expect_same_bits(name + " out", dev_out.download(), out);

  std::vector<T> result = dev_dqkv.download();
  auto values_of = [&](const std::vector<T>& all) {
    std::vector<T> values;
    for (size_t n = 0; n < rows; n++)
      values.insert(values.end(), &all[shift + n * row + 2 * A], &all[shift + n * row + 2 * A] + A);
    return values;
  };
  for (size_t i = 0; i < result.size(); i++) {
    bool is_value = i >= size_t(shift) && (i - shift) % row / A == 2;
    if (!is_value || settings.output != OutputOperation::exclusive)
      EXPECT_EQ(to_float(result[i]), to_float(dqkv[i])) << name << " dqkv at " << i;
  }
  auto reference = [&]<class P>(P) {
    Numbers<P> o = widen<P>(without_first(out, shift)), d = widen<P>(without_first(dy, shift)), d_o, dv;
    RefOutput<P> r(settings, shape, o, widen<P>(values_of(qkv)));
    r.backward(d, d_o, dv);
    for (size_t i = 0; typename P::real x : widen<P>(values_of(dqkv))) dv[i] = P::round(dv[i] + x), i++;
    return std::tuple(r.y, d_o, dv);
  };
  auto [ey, edo, edv] = reference(Exact());
  auto [ny, ndo, ndv] = reference(Naive<T>());
  expect_close(name + " y", without_first(y.download(), shift), ey, ny, u<T>);
  expect_close(name + " do", without_first(dout.download(), shift), edo, ndo, u<T>);
  expect_close(name + " dv", values_of(result), edv, ndv, u<T>);
}

TYPED_TEST(OutputTest, MatchesTheFormula) {
  for (const AttentionSettings& settings : all_settings())
    for (int D : {2, 7, 33, 64, 90, 128, 360}) {
      // of two channels one direction is left: a normalised row is a constant, and its gradient rounding
      if (D == 2 && settings.output == OutputOperation::exclusive && settings.output_norm != QkNorm::none) continue;
      for (auto [more, shift] : {std::pair(0, 0), std::pair(16, 0), std::pair(3, 1)})
        check<TypeParam>(settings, {2, 13, 3, D}, more, shift);
    }
}

TEST(Output, GradientsAreDerivatives) {
  for (const AttentionSettings& settings : all_settings()) {
    AttentionShape shape{1, 2, 2, 5};
    Numbers<Exact> o = widen<Exact>(random_normal<float>(shape.out_size(), 1)),
                   v = widen<Exact>(random_normal<float>(shape.out_size(), 2)),
                   dy = widen<Exact>(random_normal<float>(shape.out_size(), 3)), d_o, dv;
    RefOutput<Exact>(settings, shape, o, v).backward(dy, d_o, dv);
    auto loss = [&] {
      double sum = 0;
      RefOutput<Exact> r(settings, shape, o, v);
      for (size_t i = 0; i < dy.size(); i++) sum += r.y[i] * dy[i];
      return sum;
    };
    for (size_t i = 0; i < o.size(); i++) {
      EXPECT_NEAR(d_o[i], central_difference(o[i], 1e-5, loss), 1e-8) << name_of(settings, shape);
      EXPECT_NEAR(dv[i], central_difference(v[i], 1e-5, loss), 1e-8) << name_of(settings, shape);
    }
  }
}

// A value of 0 has no direction: its output passes as it is. Nothing divides by 0, and an exclusive output is
// orthogonal to its value. An output along its value leaves rounding, which no norm makes large again.
TYPED_TEST(OutputTest, ZerosAndDirections) {
  using T = TypeParam;
  AttentionShape shape{1, 4, 1, 16};
  for (const AttentionSettings& settings : all_settings()) {
    std::vector<T> qkv = random_normal<T>(shape.qkv_size(), 1), out = random_normal<T>(shape.out_size(), 2),
                   dy = random_normal<T>(shape.out_size(), 3);
    for (int d = 0; d < 16; d++) {
      qkv[32 + d] = out[16 + d] = from_float<T>(0);  // v of row 0, o of row 1
      out[48 + d] = from_float<T>(-3 * to_float(qkv[3 * 48 + 32 + d]));
    }
    AttentionCall<T> call{.settings = settings, .shape = shape};
    DeviceArray<T> dev_qkv(qkv), dev_out(out), y(out.size()), dout(dy), dqkv(qkv);
    DeviceArray<float> along(shape.rows());
    output_forward<T>(y, dev_out, dev_qkv, call);
    output_backward<T>(dout, along, dev_out, dev_qkv, call);
    output_backward_values<T>(dqkv, dout, along, dev_out, dev_qkv, call);
    for (const std::vector<T>& all : {y.download(), dout.download(), dqkv.download()})
      for (T x : all) EXPECT_TRUE(std::isfinite(to_float(x))) << name_of(settings, shape);
    if (settings.output != OutputOperation::exclusive) continue;
    std::vector<T> results = y.download(), gradients = dout.download();
    if (settings.output_norm != QkNorm::none && std::is_same_v<T, float>)  // -3 v is rounded in bf16
      for (int d = 48; d < 64; d++) EXPECT_TRUE(to_float(results[d]) == 0 && to_float(gradients[d]) == 0);
    if (settings.output_norm != QkNorm::none) continue;
    for (int d = 0; d < 16; d++) EXPECT_EQ(to_float(results[d]), to_float(out[d]));
    float dot = 0;
    for (int d = 0; d < 16; d++) dot += to_float(results[32 + d]) * to_float(qkv[2 * 48 + 32 + d]);
    EXPECT_NEAR(dot, 0, 16 * 4 * u<T>);
  }
}
