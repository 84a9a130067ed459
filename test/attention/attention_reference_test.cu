// The float64 references of attention against finite differences: their gradients are derivatives.
#include "test/attention/attention_reference.h"

#include <gtest/gtest.h>

#include "attention/prepare.cuh"
#include "test/support/device.h"

// d/dx of sum(dout . attention(prepare(qkv))) at random elements, by central differences.
static void check_by_differences(AttentionSetup s, const AttentionShape& shape, bool rotate) {
  auto qkv = widen<Exact>(random_normal<float>(shape.qkv_size(), 1)),
       dout = widen<Exact>(random_normal<float>(shape.out_size(), 2));
  Numbers<Exact> scales, sinks, dscales(shape.H, 0.0), dsinks(shape.H, 0.0);
  for (const LearnedNumber& number : kind_row(s.kind).learned)
    for (int h = 0; h < shape.H; h++) s.learned.push_back(number.initial + 0.1 * h);
  Numbers<Exact> dlearned(s.learned.size(), 0.0);
  if (s.scale == Scale::ssmax) scales = widen<Exact>(random_normal<float>(shape.H, 3, 0.1f, 0.43f));
  if (s.sink == Sink::learned) sinks = widen<Exact>(random_normal<float>(shape.H, 4));
  auto rope = rotate ? rope_table(shape.T, shape.D, 10000) : std::vector<float2>();
  auto loss = [&] {
    auto out = ref_attention<Exact>(s, shape, ref_prepare<Exact>(s, shape, qkv, rope, scales), sinks);
    double sum = 0;
    for (size_t i = 0; i < out.size(); i++) sum += out[i] * dout[i];
    return sum;
  };
  auto dprepared = ref_attention_backward<Exact>(s, shape, ref_prepare<Exact>(s, shape, qkv, rope, scales), dout, sinks,
                                                 &dsinks, nullptr, 0, {}, nullptr, &dlearned);
  auto dqkv = ref_prepare_backward<Exact>(s, shape, qkv, dprepared, rope, scales, &dscales);
  auto check = [&](const char* name, double& x, double gradient) {
    double h = 2e-4;  // the error is of fourth order
    double slope = (4 * central_difference(x, h, loss) - central_difference(x, 2 * h, loss)) / 3;
    EXPECT_NEAR(slope, gradient, 1e-8 * (1 + std::fabs(gradient))) << describe(s, shape) << " " << name;
  };
  for (int i : random_ints(60, 5, int(qkv.size()))) check("qkv", qkv[i], dqkv[i]);
  for (size_t h = 0; h < scales.size(); h++) check("ssmax scale", scales[h], dscales[h]);
  for (size_t h = 0; h < sinks.size(); h++) check("sink", sinks[h], dsinks[h]);
  for (size_t n = 0; n < s.learned.size(); n++) check("learned number", s.learned[n], dlearned[n]);
}

TEST(AttentionReference, GradientsMatchFiniteDifferences) {
  AttentionShape shape{2, 9, 2, 6};
  for (size_t kind = 0; kind < std::size(kind_names); kind++)
    for (QkNorm norm : {QkNorm::none, QkNorm::l2, QkNorm::rms})
      for (Scale scale : {Scale::rsqrt_d, Scale::logd_logn, Scale::logn, Scale::ssmax, Scale::number})
        if (has_reference(Kind(kind)))
          check_by_differences({{.kind = Kind(kind), .qk_norm = norm, .scale = scale, .scale_number = 0.3}, 9, 0, 1.1f},
                               shape, norm != QkNorm::rms);
  for (Sink sink : {Sink::one, Sink::learned}) check_by_differences({{.sink = sink}}, shape, true);
}
