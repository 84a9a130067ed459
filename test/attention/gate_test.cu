// The gate of attention/gate.cuh: every activation, all granularities, both operations, strides, odd sizes, in both
// precisions, against the float64 formula; its gradients against finite differences; extreme logits.
#include "attention/gate.cuh"

#include <cmath>

#include "test/attention/gate_reference.h"
#include "test/support/device.h"

namespace {

std::vector<GateSettings> all_settings() {
  std::vector<GateSettings> all;
  for (int activation = 1; activation <= int(GateActivation::exp); activation++)
    for (GateGranularity granularity :
         {GateGranularity::elementwise, GateGranularity::headwise, GateGranularity::shared})
      for (GateOp op : {GateOp::multiply, GateOp::add}) all.push_back({GateActivation(activation), granularity, op});
  return all;
}

std::string name_of(const GateCase& c) {
  return format("%s %s %s N %d H %d D %d", gate_activation_names[int(c.settings.activation)],
                gate_granularity_names[int(c.settings.granularity)], gate_op_names[int(c.settings.op)], c.N, c.H, c.D);
}

template <class T> void check(const GateCase& c, int extra) {
  int N = c.N, W = c.H * c.D, G = c.G(), padded = G + extra % 8;  // padding of any width, none too
  std::vector<T> x = random_normal<T>(size_t(N) * W, 1), g = random_normal<T>(size_t(N) * G, 2, 3),
                 dy = random_normal<T>(size_t(N) * W, 3);
  int ldx = W + extra, ldg = padded + extra;
  T nan = from_float<T>(NAN);
  auto strided = [&](const std::vector<T>& values) { return DeviceArray<T>(with_gaps(values, W, extra, nan)); };
  auto dense = [&](const DeviceArray<T>& array) {
    std::vector<T> all = array.download();
    expect_gaps(name_of(c), all, W, extra, NAN);
    return without_gaps(all, W, extra);
  };
  DeviceArray<T> dev_x = strided(x), dev_g(with_gaps(g, G, ldg - G, nan)), dev_dy = strided(dy);
  std::vector<T> nothing(size_t(N) * W, nan);
  DeviceArray<T> y = strided(nothing), dx = strided(nothing), dg(std::vector<T>(size_t(N) * ldg, nan));
  gate_forward<T>({y, ldx}, {dev_x, ldx}, {dev_g, ldg}, c.settings, N, c.H, c.D, 0);
  gate_backward<T>({dx, ldx}, {dg, ldg}, padded, {dev_dy, ldx}, {dev_x, ldx}, {dev_g, ldg}, c.settings, N, c.H, c.D, 0);
  using N_ = Naive<T>;
  auto ex = widen<Exact>(x), eg = widen<Exact>(g), edy = widen<Exact>(dy);
  auto nx = widen<N_>(x), ng = widen<N_>(g), ndy = widen<N_>(dy);
  double u = unit_roundoff<T>;
  expect_close(name_of(c) + " y", dense(y), ref_gate<Exact>(c, ex, eg), ref_gate<N_>(c, nx, ng), u);
  auto exact = ref_gate_backward<Exact>(c, edy, ex, eg);
  auto naive = ref_gate_backward<N_>(c, ndy, nx, ng);
  expect_close(name_of(c) + " dx", dense(dx), exact.dx, naive.dx, u);
  std::vector<T> all = dg.download();
  expect_close(name_of(c) + " dg", without_gaps(all, G, ldg - G), exact.dg, naive.dg, u);
  for (int n = 0; n < N; n++)
    for (int i = G; i < ldg; i++) {
      float value = to_float(all[size_t(n) * ldg + i]);
      if (i < padded) EXPECT_EQ(value, 0) << name_of(c) << " padding";
      else EXPECT_TRUE(std::isnan(value)) << name_of(c) << " beyond the padding";
    }
  // with a residual
  DeviceArray<T> sum = strided(nothing);
  gate_forward<T>({sum, ldx}, {dev_x, ldx}, {dev_g, ldg}, c.settings, N, c.H, c.D, 0, {dev_dy, ldx});
  auto plus_residual = [&]<class P>(P, Reals<P> y, const Reals<P>& residual) {
    for (size_t i = 0; i < y.size(); i++) y[i] = P::round(y[i] + residual[i]);
    return y;
  };
  expect_close(name_of(c) + " with a residual", dense(sum), plus_residual(Exact(), ref_gate<Exact>(c, ex, eg), edy),
               plus_residual(N_(), ref_gate<N_>(c, nx, ng), ndy), u);
  // in place
  gate_backward<T>({dev_dy, ldx}, {dg, ldg}, padded, {dev_dy, ldx}, {dev_x, ldx}, {dev_g, ldg}, c.settings, N, c.H, c.D,
                   0);
  expect_same_bits(name_of(c) + " dx in place", dense(dev_dy), dense(dx));
  gate_forward<T>({dev_x, ldx}, {dev_x, ldx}, {dev_g, ldg}, c.settings, N, c.H, c.D, 0);
  expect_same_bits(name_of(c) + " y in place", dense(dev_x), dense(y));
}

TEST(Gate, MatchesTheFormula) {
  for (const GateSettings& settings : all_settings())
    for (auto [N, H, D] :
         {std::tuple(1, 1, 1), std::tuple(5, 3, 7), std::tuple(3, 2, 64), std::tuple(4, 1, 40), std::tuple(2, 3, 90)})
      for (int extra : {0, 3, 16}) {
        check<float>({settings, N, H, D}, extra);
        check<bf16>({settings, N, H, D}, extra);
      }
}

TEST(Gate, GradientsAreDerivatives) {
  for (const GateSettings& settings : all_settings()) {
    GateCase c{settings, 2, 2, 3};
    std::vector<double> x = widen<Exact>(random_normal<float>(12, 1)),
                        g = widen<Exact>(random_normal<float>(size_t(2) * c.G(), 2)),
                        dy = widen<Exact>(random_normal<float>(12, 3));
    auto gradients = ref_gate_backward<Exact>(c, dy, x, g);
    auto loss = [&] {
      double sum = 0;
      std::vector<double> y = ref_gate<Exact>(c, x, g);
      for (size_t i = 0; i < y.size(); i++) sum += y[i] * dy[i];
      return sum;
    };
    auto slope = [&](double& at) { return central_difference(at, 1e-5, loss); };
    for (size_t i = 0; i < x.size(); i++) EXPECT_NEAR(gradients.dx[i], slope(x[i]), 1e-8) << name_of(c);
    for (size_t i = 0; i < g.size(); i++) EXPECT_NEAR(gradients.dg[i], slope(g[i]), 1e-8) << name_of(c);
  }
}

// Logits of any size give finite, correct values and slopes. exp is left out, because it overflows.
TEST(Gate, ExtremeLogits) {
  std::vector<float> g = {0,  -0.0f, 1e-30f, -1e-30f, 1e-5f, -1e-5f, 20,   -20,
                          89, -89,   1000,   -1000,   3e38f, -3e38f, 0.5f, -0.5f};
  int n = int(g.size());
  std::vector<float> x(n, 1), dy(n, 1);
  for (int activation = 1; activation < int(GateActivation::exp); activation++) {
    GateSettings settings{GateActivation(activation)};
    DeviceArray<float> dev_g(g), dev_x(x), dev_dy(dy), y(n), dx(n), dg(n);
    gate_forward<float>({y, n}, {dev_x, n}, {dev_g, n}, settings, 1, 1, n, 0);
    gate_backward<float>({dx, n}, {dg, n}, n, {dev_dy, n}, {dev_x, n}, {dev_g, n}, settings, 1, 1, n, 0);
    std::vector<float> values = y.download(), slopes = dg.download();
    for (int i = 0; i < n; i++) {
      EXPECT_TRUE(std::isfinite(values[i])) << gate_activation_names[activation] << " of " << g[i];
      EXPECT_TRUE(std::isfinite(slopes[i])) << gate_activation_names[activation] << "' of " << g[i];
      double slope, exact = ref_activation<Exact>(settings.activation, g[i], &slope);
      // Of a single value: two functions and two roundings of at most 2 units each. No denormals: e^-|g| below 2^-126
      // may be 0, and silu multiplies it by up to 1 + |g|; beyond 104 floats have no e^-|g| at all.
      double denormals = (1 + std::min(std::fabs(g[i]), 104.0f)) * 0x1p-126;
      EXPECT_NEAR(values[i], exact, 6 * unit_roundoff<float> * std::fabs(exact) + denormals)
          << gate_activation_names[activation] << " of " << g[i];
      EXPECT_NEAR(slopes[i], slope, 6 * unit_roundoff<float> * std::fabs(slope) + denormals)
          << gate_activation_names[activation] << "' of " << g[i];
    }
  }
}

}  // namespace
