// Float64 references of kernels/, and the same formulas op by op in float32 with results rounded to a storage type:
// each function is a template over the policies Exact and Naive<T> of test/support/compare.h. Sums run left to right.
// Arrays are row-major vectors; outputs of += take their starting value as an argument.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "test/support/compare.h"

template <class P> using Real = typename P::real;
template <class P> using Reals = std::vector<typename P::real>;

// ---- embedding

template <class P>
Reals<P> ref_embedding(const std::vector<int>& tokens, const Reals<P>& wte, const Reals<P>& wpe /* or empty */, int T,
                       int C) {
  Reals<P> out(tokens.size() * C);
  for (size_t n = 0; n < tokens.size(); n++)
    for (int c = 0; c < C; c++) {
      Real<P> x = wte[size_t(tokens[n]) * C + c];
      out[n * C + c] = wpe.empty() ? x : P::round(x + wpe[n % T * C + c]);
    }
  return out;
}

template <class P>
void ref_embedding_backward(Reals<P>& dwte, Reals<P>& dwpe /* or empty */, const Reals<P>& dout,
                            const std::vector<int>& tokens, int T, int C) {
  for (size_t n = 0; n < tokens.size(); n++)
    for (int c = 0; c < C; c++) {
      dwte[size_t(tokens[n]) * C + c] += dout[n * C + c];
      if (!dwpe.empty()) dwpe[n % T * C + c] += dout[n * C + c];
    }
}

// ---- layernorm

template <class P> struct RefLayernorm { Reals<P> x, out, mean, rstd; };

// Statistics are kept in float32, not in the storage type. beta may be empty. rms: RMSNorm, with a mean of 0.
template <class P>
RefLayernorm<P> ref_layernorm(const Reals<P>& x, const Reals<P>& gamma, const Reals<P>& beta, int N, int C,
                              bool rms = false) {
  using R = Real<P>;
  RefLayernorm<P> r{x, Reals<P>(x.size()), Reals<P>(N), Reals<P>(N)};
  for (int n = 0; n < N; n++) {
    const R* row = x.data() + size_t(n) * C;
    R mean = 0, variance = 0;
    for (int c = 0; c < C && !rms; c++) mean += row[c];
    mean /= C;
    for (int c = 0; c < C; c++) variance += (row[c] - mean) * (row[c] - mean);
    R rstd = R(1) / std::sqrt(variance / C + R(1e-5f));
    r.mean[n] = mean;
    r.rstd[n] = rstd;
    for (int c = 0; c < C; c++) {
      R normalized = P::round(P::round(row[c] - mean) * rstd);
      r.out[size_t(n) * C + c] = P::round(P::round(normalized * gamma[c]) + (beta.empty() ? 0 : beta[c]));
    }
  }
  return r;
}

template <class P>
void ref_layernorm_backward(Reals<P>& dx, Reals<P>& dgamma, Reals<P>& dbeta, const Reals<P>& dout, const Reals<P>& x,
                            const Reals<P>& mean, const Reals<P>& rstd, const Reals<P>& gamma, int N, int C,
                            bool rms = false) {
  using R = Real<P>;
  for (int n = 0; n < N; n++) {
    const R *d = dout.data() + size_t(n) * C, *row = x.data() + size_t(n) * C;
    Reals<P> xhat(C), g(C);
    R sum_g = 0, sum_gx = 0;
    for (int c = 0; c < C; c++) {
      xhat[c] = P::round(P::round(row[c] - mean[n]) * rstd[n]);
      g[c] = P::round(d[c] * gamma[c]);
      if (!rms) sum_g += g[c];
      sum_gx += P::round(g[c] * xhat[c]);
      dgamma[c] += P::round(d[c] * xhat[c]);
      dbeta[c] += d[c];
    }
    for (int c = 0; c < C; c++) {
      R inner = P::round(P::round(g[c] - sum_g / C) - P::round(xhat[c] * (sum_gx / C)));
      R& to = dx[size_t(n) * C + c];
      to = P::round(to + P::round(rstd[n] * inner));
    }
  }
}

// ---- GELU, tanh form: 0.5 x (1 + tanh(u)) = x sigmoid(2u), which float64 can follow into the left tail

inline constexpr double GELU_SCALE = 2 * 0.7978845608028654;  // 2 sqrt(2 / pi)

template <class P> Real<P> ref_gelu_sigmoid(Real<P> x) {
  using R = Real<P>;
  R cube = P::round(P::round(x * x) * x), u2 = P::round(R(GELU_SCALE) * P::round(x + P::round(R(0.044715) * cube)));
  return P::round(R(1) / P::round(R(1) + P::round(std::exp(-u2))));
}

template <class P> Real<P> ref_gelu(Real<P> x) { return P::round(x * ref_gelu_sigmoid<P>(x)); }

template <class P> Real<P> ref_gelu_grad(Real<P> x) {
  using R = Real<P>;
  R sigmoid = ref_gelu_sigmoid<P>(x), slope = P::round(sigmoid * P::round(R(1) - sigmoid));
  R du2 = P::round(R(GELU_SCALE) * P::round(R(1) + P::round(R(3 * 0.044715) * P::round(x * x))));
  return P::round(sigmoid + P::round(P::round(x * slope) * du2));
}

// ---- the MLP's other functions

template <class P> Real<P> ref_relu2(Real<P> x) { return x > 0 ? P::round(x * x) : 0; }
template <class P> Real<P> ref_relu2_grad(Real<P> x) { return x > 0 ? P::round(2 * x) : 0; }

template <class P> Real<P> ref_swiglu_sigmoid(Real<P> gate) {
  return P::round(Real<P>(1) / P::round(Real<P>(1) + P::round(std::exp(-gate))));
}
template <class P> Reals<P> ref_swiglu(const Reals<P>& x, int N, int F) {
  Reals<P> y(size_t(N) * F);
  for (int n = 0; n < N; n++)
    for (int c = 0; c < F; c++) {
      Real<P> gate = x[size_t(n) * 2 * F + c], up = x[size_t(n) * 2 * F + F + c];
      y[size_t(n) * F + c] = P::round(P::round(gate * ref_swiglu_sigmoid<P>(gate)) * up);
    }
  return y;
}
template <class P> Reals<P> ref_swiglu_backward(const Reals<P>& dout, const Reals<P>& x, int N, int F) {
  using R = Real<P>;
  Reals<P> dx(size_t(N) * 2 * F);
  for (int n = 0; n < N; n++)
    for (int c = 0; c < F; c++) {
      size_t at = size_t(n) * 2 * F + c;
      R gate = x[at], d = dout[size_t(n) * F + c], sigmoid = ref_swiglu_sigmoid<P>(gate);
      R slope = P::round(sigmoid * P::round(1 + P::round(gate * P::round(1 - sigmoid))));
      dx[at] = P::round(P::round(d * x[at + F]) * slope);
      dx[at + F] = P::round(d * P::round(gate * sigmoid));
    }
  return dx;
}

// ---- bias

template <class P> void ref_bias_backward(Reals<P>& dbias, const Reals<P>& dout, int N, int n, int ld) {
  for (int row = 0; row < N; row++)
    for (int c = 0; c < n; c++) dbias[c] += dout[size_t(row) * ld + c];
}

// sum + the products a(k) b(k) for k < n: from left to right, or as P does it.
template <class P, class A, class B> Real<P> add_all(Real<P> sum, int n, A a, B b) {
  if constexpr (requires { P::add_all(sum, n, a, b); }) return P::add_all(sum, n, a, b);
  for (int k = 0; k < n; k++) sum += a(k) * b(k);
  return sum;
}

// ---- matrix products; the epilogue as 0 none, 1 bias, 2 bias and GELU, 3 GELU's derivative

template <class P> struct RefMatmul {
  Reals<P> d, aux;  // rows of ldd; the gaps between them keep their values
};

template <class P>
RefMatmul<P> ref_matmul(const Reals<P>& d0, const Reals<P>& a, const Reals<P>& b, int m, int n, int k, bool trans_a,
                        bool trans_b, int ldd, int lda, int ldb, double beta = 0, int epilogue = 0,
                        const Reals<P>& bias = {}, const Reals<P>& aux0 = {}) {
  using R = Real<P>;
  RefMatmul<P> r{d0, aux0};
  for (int i = 0; i < m; i++)
    for (int j = 0; j < n; j++) {
      R sum = add_all<P>(
          0, k, [&](int l) { return trans_a ? a[size_t(l) * lda + i] : a[size_t(i) * lda + l]; },
          [&](int l) { return trans_b ? b[size_t(j) * ldb + l] : b[size_t(l) * ldb + j]; });
      R& to = r.d[size_t(i) * ldd + j];
      R x = P::round(sum);
      if (epilogue == 1 || epilogue == 2) x = P::round(x + bias[j]);
      if (beta != 0) x = P::round(x + R(beta) * to);
      if (epilogue == 2) r.aux[size_t(i) * ldd + j] = x, x = ref_gelu<P>(x);
      if (epilogue == 3) x = P::round(x * ref_gelu_grad<P>(aux0[size_t(i) * ldd + j]));
      to = x;
    }
  return r;
}

// ---- cross-entropy

template <class P> struct RefCrossEntropy { Reals<P> losses, dlogits; };

template <class P>
RefCrossEntropy<P> ref_cross_entropy(const Reals<P>& logits, const std::vector<int>& targets, double dloss, int V,
                                     int Vp, const std::vector<float>& weights = {}, double cap = 0) {
  using R = Real<P>;
  if (cap > 0) {  // dlogits are those of the capped ones, times their slope
    Reals<P> capped(logits.size());
    auto share = [&](size_t i) { return P::round(std::tanh(P::round(logits[i] / R(cap)))); };
    for (size_t i = 0; i < logits.size(); i++) capped[i] = P::round(R(cap) * share(i));
    RefCrossEntropy<P> r = ref_cross_entropy<P>(capped, targets, dloss, V, Vp, weights);
    for (size_t i = 0; i < logits.size(); i++)
      if (int(i % Vp) < V) r.dlogits[i] = P::round(r.dlogits[i] * P::round(1 - P::round(share(i) * share(i))));
    return r;
  }
  RefCrossEntropy<P> r{Reals<P>(targets.size()), Reals<P>(logits.size(), 0)};
  for (size_t n = 0; n < targets.size(); n++) {
    if (targets[n] < 0) continue;
    R weight = weights.empty() ? 1 : weights[n], scale = R(dloss) * weight;
    const R* x = logits.data() + n * Vp;
    R max = *std::max_element(x, x + V), sum = 0;
    Reals<P> e(V);
    for (int v = 0; v < V; v++) e[v] = P::round(std::exp(P::round(x[v] - max)));
    for (int v = 0; v < V; v++) sum += e[v];
    r.losses[n] = (std::log(sum) - (x[targets[n]] - max)) * weight;
    for (int v = 0; v < V; v++) {
      R p = P::round(e[v] / sum);
      r.dlogits[n * Vp + v] = P::round(P::round(p - R(v == targets[n])) * scale);
    }
  }
  return r;
}

// ---- squared error

template <class P> struct RefSquaredError { Reals<P> losses, y, dy; };

template <class P>
RefSquaredError<P> ref_squared_error(Reals<P> y, const Reals<P>& bias, const std::vector<float>& targets,
                                     const std::vector<float>& weights, double dloss, int K, int Kp) {
  using R = Real<P>;
  size_t n = y.size() / Kp;
  RefSquaredError<P> r{Reals<P>(n, 0), Reals<P>(), Reals<P>(y.size(), 0)};
  for (size_t row = 0; row < n; row++) {
    R sum = 0, weight = weights.empty() ? 1 : weights[row], count = 0;
    for (int k = 0; k < K; k++) {
      y[row * Kp + k] += bias[k];
      if (!std::isnan(targets[row * K + k])) count += 1;
    }
    for (int k = 0; k < K; k++) {
      if (std::isnan(targets[row * K + k])) continue;
      R error = y[row * Kp + k] - R(targets[row * K + k]);
      sum += error * error;
      r.dy[row * Kp + k] = P::round(error * R(2) * weight / count * R(dloss));
    }
    if (count > 0) r.losses[row] = sum * weight / count;
  }
  r.y = y;
  return r;
}

// ---- gradient norm

template <class P> Reals<P> ref_square_sums(const Reals<P>& x, size_t block) {
  Reals<P> partial((x.size() + block - 1) / block, 0);
  for (size_t i = 0; i < x.size(); i++) partial[i / block] += x[i] * x[i];
  return partial;
}

// ---- AdamW: one step, in place

template <class P> struct RefAdamW {
  Reals<P> param, master, m, v;  // param: master as the kernel stores it

  void step(const Reals<P>& grad, double grad_scale, double lr, double beta1, double beta2, double eps,
            double weight_decay, int t) {
    using R = Real<P>;
    R correction1 = R(1) - std::pow(R(beta1), R(t)), correction2 = R(1) - std::pow(R(beta2), R(t));
    for (size_t i = 0; i < grad.size(); i++) {
      R g = grad[i] * R(grad_scale);
      m[i] = R(beta1) * m[i] + (R(1) - R(beta1)) * g;
      v[i] = R(beta2) * v[i] + (R(1) - R(beta2)) * g * g;
      R m_hat = m[i] / correction1, v_hat = v[i] / correction2;
      master[i] -= R(lr) * R(weight_decay) * master[i];
      master[i] -= R(lr) * m_hat / (std::sqrt(v_hat) + R(eps));
      param[i] = P::round(master[i]);
    }
  }
};
