// attention/prepare.cu (RoPE, norms and scales of q and k) and the table of RoPE against float64, forward and backward,
// by the rule of test/support/compare.h.
#include <cstring>

#include "test/attention/attention_reference.h"

#include <gtest/gtest.h>

#include "attention/prepare.cuh"
#include "test/support/device.h"

static const bool poisoned = (set_cpu_poison(true), true);  // reading unwritten memory gives NaN

template <class T> class PrepareTest : public testing::Test {};
using StorageTypes = testing::Types<float, bf16>;
TYPED_TEST_SUITE(PrepareTest, StorageTypes);

template <class T>
static void check_prepare(const AttentionSetup& s, const AttentionShape& shape, bool rotate, int shift = 0) {
  std::string name = describe(s, shape) + (rotate ? " rope" : "");
  auto qkv = random_normal<T>(shape.qkv_size() + shift, 1), dprepared = random_normal<T>(shape.qkv_size() + shift, 2);
  auto scales = s.scale == Scale::ssmax ? random_normal<T>(shape.H, 3, 0.1f, 0.43f) : std::vector<T>();
  auto rope = rotate ? rope_table(shape.T, shape.D, 10000) : std::vector<float2>();
  bool has_norm = s.qk_norm != QkNorm::none;
  DeviceArray<T> x(qkv), dx(dprepared), scale(scales);
  DeviceArray<float> norms(has_norm ? 2 * shape.rows() : 0), dscale(std::vector<float>(scales.size(), 0.5f));
  DeviceArray<float2> angles(rope);
  DeviceArray<char> workspace(prepare_backward_workspace(s, shape));
  AttentionCall<T> call = s.call<T>(shape);
  if (!scales.empty()) call.ssmax_scale = scale, call.dssmax_scale = dscale;
  if (rotate) call.rope = angles;
  if (has_norm) call.norms = norms;
  prepare_forward<T>(x + shift, call);
  prepare_backward<T>(dx + shift, x + shift, call, workspace);
  auto prepared = x.download(), result = dx.download();
  for (auto* values : {&qkv, &dprepared, &prepared, &result}) *values = without_first(*values, shift);

  Numbers<Exact> exact_norms, dscales(scales.size(), 0.5);
  Numbers<Naive<T>> naive_norms, naive_dscales(scales.size(), 0.5f);
  auto ex = widen<Exact>(qkv), ed = widen<Exact>(dprepared), es = widen<Exact>(scales);
  auto nx = widen<Naive<T>>(qkv), nd = widen<Naive<T>>(dprepared), ns = widen<Naive<T>>(scales);
  auto exact = ref_prepare<Exact>(s, shape, ex, rope, es, &exact_norms);
  auto naive = ref_prepare<Naive<T>>(s, shape, nx, rope, ns, &naive_norms);
  auto dexact = ref_prepare_backward<Exact>(s, shape, ex, ed, rope, es, &dscales);
  auto dnaive = ref_prepare_backward<Naive<T>>(s, shape, nx, nd, rope, ns, &naive_dscales);
  // with one channel a normalised row has no direction left: its gradient is an exact 0 = dy / |x| - dy / |x|
  double cancels = 0;
  if (shape.D == 1)
    for (double inverse : exact_norms) cancels = std::max(cancels, inverse);
  if (has_norm) expect_close(name + " norms", norms.download(), exact_norms, naive_norms, u<float>);
  for (int part = 0; part < 2; part++) {
    expect_close(name + (part ? " k" : " q"), part_of(shape, prepared, part), part_of(shape, exact, part),
                 part_of(shape, naive, part), u<T>);
    expect_close(name + (part ? " dk" : " dq"), part_of(shape, result, part), part_of(shape, dexact, part),
                 part_of(shape, dnaive, part), u<T>, cancels);
  }
  expect_same_bits(name + " v", part_of(shape, prepared, 2), part_of(shape, qkv, 2));
  expect_same_bits(name + " dv", part_of(shape, result, 2), part_of(shape, dprepared, 2));
  if (!scales.empty()) expect_close(name + " dscale", dscale.download(), dscales, naive_dscales, u<float>);
}

TYPED_TEST(PrepareTest, NormsAndScales) {
  for (QkNorm norm : {QkNorm::none, QkNorm::l2, QkNorm::rms})
    for (Scale scale : {Scale::rsqrt_d, Scale::logd_logn, Scale::logn, Scale::ssmax, Scale::number})
      for (bool rotate : {false, true})
        check_prepare<TypeParam>({{.qk_norm = norm, .scale = scale, .scale_number = 0.3}, 13, 0, 1.1f}, {2, 13, 3, 36},
                                 rotate);
  check_prepare<TypeParam>({{.qk_norm = QkNorm::l2}}, {1, 7, 2, 64}, true, 1);
}

TYPED_TEST(PrepareTest, LongShapes) {
  for (int T : {1, 2, 31, 113})
    for (int D : {1, 2, 8, 16, 32, 33, 64, 90, 96, 128, 256, 360, 512})
      for (QkNorm norm : {QkNorm::none, QkNorm::l2, QkNorm::rms}) {
        AttentionSetup s{{.qk_norm = norm, .scale = D % 4 ? Scale::logd_logn : Scale::rsqrt_d}};
        check_prepare<TypeParam>(s, {D == 64 ? 3 : 1, T, D == 90 ? 3 : 1, D}, D % 2 == 0);
      }
}

// Rows of zeros: nothing divides by their length.
TYPED_TEST(PrepareTest, Zeros) {
  using T = TypeParam;
  AttentionShape shape{1, 3, 1, 16};
  DeviceArray<T> x(std::vector<T>(shape.qkv_size(), from_float<T>(0))),
      dx(std::vector<T>(shape.qkv_size(), from_float<T>(0)));
  DeviceArray<float> norms(2 * shape.rows());
  for (QkNorm norm : {QkNorm::l2, QkNorm::rms}) {
    AttentionSettings s{.qk_norm = norm};
    AttentionCall<T> call{.settings = s, .shape = shape, .norms = norms};
    prepare_forward<T>(x, call);
    prepare_backward<T>(dx, x, call);
    for (T v : x.download()) EXPECT_EQ(to_float(v), 0);
    for (T v : dx.download()) EXPECT_EQ(to_float(v), 0);
  }
}

TYPED_TEST(PrepareTest, SameBitsInAnyOrder) {
  using T = TypeParam;
  AttentionShape shape{2, 40, 3, 90};
  auto qkv = random_normal<T>(shape.qkv_size(), 1), d = random_normal<T>(shape.qkv_size(), 2),
       scales = random_normal<T>(shape.H, 3);
  DeviceArray<float2> angles(rope_table(shape.T, shape.D, 10000));
  AttentionSetup s{{.qk_norm = QkNorm::rms, .scale = Scale::ssmax}};
  expect_reproducible(describe(s, shape), [&] {
    DeviceArray<T> x(qkv), dx(d), scale(scales);
    DeviceArray<float> norms(2 * shape.rows()), dscale(std::vector<float>(shape.H, 0.0f));
    DeviceArray<char> workspace(prepare_backward_workspace(s, shape));
    AttentionCall<T> call = s.call<T>(shape);
    call.ssmax_scale = scale, call.dssmax_scale = dscale, call.rope = angles, call.norms = norms;
    prepare_forward<T>(x, call);
    prepare_backward<T>(dx, x, call, workspace);
    return bits_of(x, dx, dscale);
  });
}

// ---- rope

TEST(Rope, TableAndScalings) {
  int D = 8, length = 64;
  auto frequency = [&](const std::vector<float2>& table, int k) {
    return std::atan2(table[D / 2 + k].y, table[D / 2 + k].x);
  };
  auto plain = rope_table(length, D, 10000);
  for (int k = 0; k < D / 2; k++) EXPECT_NEAR(frequency(plain, k), std::pow(10000.0, -2.0 * k / D), 1e-7);
  for (int t = 0; t < length; t++) EXPECT_NEAR(plain[t * 4].y, std::sin(double(t)), 1e-7);
  for (RopeScaling scaling :
       {RopeScaling::linear, RopeScaling::ntk, RopeScaling::yarn}) {  // within the trained length: nothing
    auto same = rope_table(length, D, 10000, scaling, 1);
    for (size_t i = 0; i < same.size(); i++) EXPECT_TRUE(same[i].x == plain[i].x && same[i].y == plain[i].y);
  }
  auto linear = rope_table(length, D, 10000, RopeScaling::linear, 4),
       ntk = rope_table(length, D, 10000, RopeScaling::ntk, 4);
  for (int k = 0; k < D / 2; k++) {
    EXPECT_NEAR(frequency(linear, k), std::pow(10000.0, -2.0 * k / D) / 4, 1e-7);
    EXPECT_NEAR(frequency(ntk, k), std::pow(10000.0 * std::pow(4.0, 8.0 / 6), -2.0 * k / D), 1e-7);
  }
  EXPECT_NEAR(frequency(ntk, D / 2 - 1), frequency(linear, D / 2 - 1),
              1e-7);  // ntk stretches the slowest by the factor
  // yarn: 4096 / 4 = 1024 trained positions; the fastest turns 163 times, the slowest 0.16 times, the second 16.3 times
  auto yarn = rope_table(4096, D, 10000, RopeScaling::yarn, 4);
  EXPECT_NEAR(frequency(yarn, 0), 1, 1e-7);
  EXPECT_NEAR(frequency(yarn, 3), 1e-3 / 4, 1e-9);
  double turns = 1024 * 0.1 / (2 * 3.14159265358979), keep = (turns - 1) / 31;
  EXPECT_NEAR(frequency(yarn, 1), 0.1 * (keep + (1 - keep) / 4), 1e-7);
  double attention = 0.1 * std::log(4.0) + 1;
  EXPECT_NEAR(rope_scale_factor(RopeScaling::yarn, 4), attention * attention, 1e-6);
  EXPECT_EQ(rope_scale_factor(RopeScaling::linear, 4), 1);
  EXPECT_EQ(rope_scale_factor(RopeScaling::yarn, 1), 1);
  EXPECT_EQ(rope_table(5, 2, 10000, RopeScaling::ntk, 4).size(), 5u);
}
