// The gate of attention/gate.cuh in the arithmetic of a policy (test/support/compare.h). Dense arrays: x, y [N, H D],
// logits [N, G].
#pragma once
#include <algorithm>
#include <cmath>

#include "attention/gate.cuh"
#include "test/kernels/reference.h"

template <class P> Real<P> ref_activation(GateActivation activation, Real<P> g, Real<P>* slope) {
  using R = Real<P>;
  R sigmoid = P::round(g >= 0 ? 1 / (1 + std::exp(-g)) : std::exp(g) / (1 + std::exp(g)));
  R other =
      P::round(g >= 0 ? std::exp(-g) / (1 + std::exp(-g)) : 1 / (1 + std::exp(g)));  // 1 - sigmoid, small where it is
  R value = 0;
  switch (activation) {
    case GateActivation::none: break;
    case GateActivation::sigmoid: value = sigmoid, *slope = P::round(sigmoid * other); break;
    case GateActivation::softplus:
      value = P::round(std::max(g, R(0)) + std::log1p(std::exp(-std::fabs(g)))), *slope = sigmoid;
      break;
    case GateActivation::silu:
      value = P::round(g * sigmoid), *slope = P::round(sigmoid * P::round(1 + P::round(g * other)));
      break;
    case GateActivation::relu: value = std::max(g, R(0)), *slope = g > 0; break;
    case GateActivation::tanh:
      value = P::round(std::tanh(g)), *slope = P::round(1 / P::round(std::cosh(g) * std::cosh(g)));
      break;
    case GateActivation::half_sigmoid:
      value = P::round((1 + sigmoid) / 2), *slope = P::round(sigmoid * other) / 2;
      break;
    case GateActivation::identity: value = g, *slope = 1; break;
    case GateActivation::two_sigmoid: value = 2 * sigmoid, *slope = 2 * P::round(sigmoid * other); break;
    case GateActivation::exp: value = P::round(std::exp(g)), *slope = value; break;
  }
  return value;
}

struct GateCase {
  GateSettings settings;
  int N, H, D;
  bool headwise() const { return settings.granularity == GateGranularity::headwise; }
  bool adds() const { return settings.op == GateOp::add; }
  bool shared() const { return settings.granularity == GateGranularity::shared; }
  int G() const { return headwise() ? H : shared() ? D : H * D; }
  int logit(int column) const { return headwise() ? column / D : shared() ? column % D : column; }
};

template <class P> Reals<P> ref_gate(const GateCase& c, const Reals<P>& x, const Reals<P>& g) {
  int W = c.H * c.D;
  Reals<P> y(x.size());
  for (int n = 0; n < c.N; n++)
    for (int i = 0; i < W; i++) {
      Real<P> slope, a = ref_activation<P>(c.settings.activation, g[size_t(n) * c.G() + c.logit(i)], &slope);
      y[size_t(n) * W + i] = P::round(c.adds() ? x[size_t(n) * W + i] + a : x[size_t(n) * W + i] * a);
    }
  return y;
}

template <class P> struct GateGradients { Reals<P> dx, dg; };

template <class P>
GateGradients<P> ref_gate_backward(const GateCase& c, const Reals<P>& dy, const Reals<P>& x, const Reals<P>& g) {
  using R = Real<P>;
  int W = c.H * c.D;
  GateGradients<P> r{Reals<P>(x.size()), Reals<P>(g.size(), 0)};
  for (int n = 0; n < c.N; n++)
    for (int k = 0; k < c.G(); k++) {
      R slope = 0, a = ref_activation<P>(c.settings.activation, g[size_t(n) * c.G() + k], &slope), sum = 0;
      for (int i = 0; i < W; i++) {
        if (c.logit(i) != k) continue;
        size_t at = size_t(n) * W + i;
        r.dx[at] = c.adds() ? dy[at] : P::round(dy[at] * a);
        sum += c.adds() ? dy[at] : P::round(dy[at] * x[at]);
      }
      r.dg[size_t(n) * c.G() + k] = P::round(P::round(sum) * slope);
    }
  return r;
}
