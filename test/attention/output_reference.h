// attention/output.cuh in the arithmetic of a policy (test/support/compare.h).
#pragma once
#include "attention/output.cuh"
#include "test/attention/attention_reference.h"

// What attention/output.cuh does to each head's output o [B, T, H, D], with the values of qkv: y, and what its gradient
// needs, in this arithmetic.
template <class P> struct RefOutput {
  using R = typename P::real;
  AttentionSettings settings;
  AttentionShape shape;
  Numbers<P> o, v;  // [B, T, H, D]
  Numbers<P> y = Numbers<P>(o.size());

  struct Row {
    std::vector<R> u, x;
    R length, p, inverse;
  };
  R dot(const R* a, const R* b) const {
    R sum = 0;
    for (int d = 0; d < shape.D; d++) sum += P::round(a[d] * b[d]);
    return P::round(sum);
  }
  Row row(size_t at) const {
    int D = shape.D;
    Row r{std::vector<R>(D), std::vector<R>(D), P::round(std::sqrt(dot(&v[at], &v[at]))), 0, 1};
    for (int d = 0; d < D; d++) r.u[d] = P::round(v[at + d] / std::max(r.length, R(1e-12))), r.x[d] = o[at + d];
    r.p = dot(&o[at], r.u.data());
    for (int d = 0; d < D; d++) {
      if (settings.output == OutputOperation::exclusive) r.x[d] = P::round(o[at + d] - P::round(r.p * r.u[d]));
      if (settings.output == OutputOperation::silu) r.x[d] = P::round(o[at + d] * ref_sigmoid(o[at + d]));
    }
    R squares = dot(r.x.data(), r.x.data());
    if (settings.output_norm == QkNorm::l2) r.inverse = P::round(1 / std::max(std::sqrt(squares), R(1e-12)));
    if (settings.output_norm == QkNorm::rms) r.inverse = P::round(1 / std::sqrt(squares / D + R(1e-6)));
    if (settings.output == OutputOperation::exclusive && settings.output_norm != QkNorm::none && is_rounding(at))
      r.inverse = 0;
    return r;
  }
  bool is_rounding(size_t at) const {
    double ov = 0, vv = 0, oo = 0, xx = 0;
    for (size_t i = at; i < at + shape.D; i++)
      ov += double(o[i]) * v[i], vv += double(v[i]) * v[i], oo += double(o[i]) * o[i];
    for (size_t i = at; i < at + shape.D; i++) xx += std::pow(double(o[i]) - ov / std::max(vv, 1e-24) * v[i], 2);
    return xx <= oo * 0x1p-32;
  }
  RefOutput(const AttentionSettings& settings, const AttentionShape& shape, const Numbers<P>& o, const Numbers<P>& v)
      : settings(settings), shape(shape), o(o), v(v) {
    for (size_t at = 0; at < o.size(); at += shape.D) {
      Row r = row(at);
      for (int d = 0; d < shape.D; d++) y[at + d] = P::round(r.x[d] * r.inverse);
    }
  }
  // From dy to the gradients of o, and of v by way of u.
  void backward(const Numbers<P>& dy, Numbers<P>& d_o, Numbers<P>& dv) const {
    int D = shape.D;
    d_o.assign(o.size(), 0), dv.assign(o.size(), 0);
    for (size_t at = 0; at < o.size(); at += D) {
      Row r = row(at);
      R along = dot(&y[at], &dy[at]);
      if (settings.output_norm == QkNorm::rms) along = P::round(along / D);
      bool constant = settings.output_norm == QkNorm::l2 && r.inverse >= R(1e12);
      std::vector<R> dx(D), du(D);
      for (int d = 0; d < D; d++)
        dx[d] = settings.output_norm == QkNorm::none || constant
                    ? P::round(dy[at + d] * r.inverse)
                    : P::round(P::round(dy[at + d] - P::round(y[at + d] * along)) * r.inverse);
      R s = dot(dx.data(), r.u.data());
      for (int d = 0; d < D; d++) {
        R z = o[at + d], sigmoid = ref_sigmoid(z);
        d_o[at + d] = settings.output == OutputOperation::exclusive ? P::round(dx[d] - P::round(s * r.u[d]))
                      : settings.output == OutputOperation::silu
                          ? P::round(dx[d] * P::round(sigmoid + P::round(z * sigmoid * ref_sigmoid(-z))))
                          : dx[d];
        du[d] = P::round(-P::round(r.p * dx[d]) - P::round(s * z));
      }
      R turn = r.length >= R(1e-12) ? dot(du.data(), r.u.data()) : 0;
      if (settings.output == OutputOperation::exclusive)
        for (int d = 0; d < D; d++)
          dv[at + d] = P::round(P::round(du[d] - P::round(turn * r.u[d])) / std::max(r.length, R(1e-12)));
    }
  }
};
