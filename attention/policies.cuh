// The kinds of attention. Each is a struct, its policy: it turns scores z_ij = q_i . k_j into weights P_ij, and
// gradients of weights into gradients of scores. Kernels know nothing else of a kind. Policies see finished scores:
// norms of q and k (l2, rms) and the scale, by length too, come from prepare.cu. Row i = 1..T sees the n = i keys
// j <= i; a masked score arrives as -inf and must give weight 0 and gradient 0. README.md has the equations. Scores of
// lssa and lssar are multiples of ln 2 (score_unit() in settings.h).
//
// The forward pass of a row, in every family of kernels:
//   for each sweep over the keys:                         // one, or two if weights need a number of the whole row
//     start_sweep(sweep, n, sums =, first)                // first: of the threads of a row, one adds the sink
//     for each key:
//       first of two sweeps: first_sweep(z, sums +=)      // on tensor cores first_sweep_tile(): all of a tile's keys
//       last sweep: outputs *= rescale(sums, top)         // once for each tile of keys; top: its largest score
//                   weigh(z, constants, sums +=, weights =), outputs += weights x value
//     merge(sweep, sums +=, other)                        // each of those threads has sums over its own keys
//     first of two sweeps: row_constants(n, sums, constants =)
//     last sweep: finish(n, constants, sums, factors =, saved =), outputs *= factors
//
// The backward pass of a row:
//   row_for_backward(n, saved, dots, row =)               // dots: dO . output, for each of OUTPUTS
//   for each key: grad(z, dp, row, p =, dz =)             // dp: dO . v; p: the weight; dz: the score's gradient
//                 or, with FROM_WEIGHT, p = weight(z, row) before dp is known, then dz = grad(p, dp, row)
//
// The constructor, Policy(settings, sink, head), runs on the device, once for each head. Constants of a policy:
//
//   SWEEPS      over the keys in the forward pass: 1 or 2
//   OUTPUTS     weighted sums of the values: 1, or 2 (the second, in float32, is for the backward pass alone)
//   RESCALES    weights are relative to the largest score so far; rescale() returns the factor for older sums
//   HAS_SINK    the constructor's second argument, a sink's logit, has an effect; sink_grad() exists (see Softmax)
//   HEAVY       registers that grad() needs: 0 few, 1 with slopes, 2 with any power
//   FROM_WEIGHT grad() takes the weight in place of the score
//   OF_FILE     the weights are of score(z, i, j) in place of z, and grad() takes i and j too, from 1 (formula.cuh)
//   LEARNED     numbers of the score that are learned; add_learned() sums their gradients
//   Evaluation  a type: the policy of a forward pass that no backward pass follows
//   SUMS, CONSTANTS, SAVED, ROW_VALUES   lengths of the arrays sums, constants, saved (kept by the forward pass) and
//               row (read by the backward kernels); kernels give each array one element more, so that none is empty
#pragma once
#include "attention/masks.cuh"
#include "attention/maths.cuh"

// The policy of a kind, for the families: choose(settings, f) calls f.operator()<Policy>(). A kind may have several, as
// lssar has by its power; Usual is one of them.
template <Kind KIND, class Maths> struct PolicyOf;
template <class Policy> struct OnePolicy {
  using Usual = Policy;
  template <class F> static void choose(const KernelSettings&, F f) { f.template operator()<Policy>(); }
};
// f.operator()<Policy, Mask>(), with what a call's settings need.
template <class Policies, class Call, class F> void with_policy_and_mask(const Call& c, F f) {
  Policies::choose(c.settings, [&]<class Policy>() {
    if (c.settings.bias) f.template operator()<Policy, Biased>();
    else if (c.call.window_or_bias()) f.template operator()<Policy, Window>();
    else f.template operator()<Policy, Causal>();
  });
}

// Defaults, which most policies keep in part: one sweep, one output, nothing summed, nothing kept.
struct PolicyDefaults {
  static constexpr int SWEEPS = 1, OUTPUTS = 1;
  static constexpr bool RESCALES = false, HAS_SINK = false, FROM_WEIGHT = false, OF_FILE = false;
  static constexpr int HEAVY = 0, LEARNED = 0;
  enum { SUMS };
  enum { CONSTANTS };
  enum { SAVED };
  enum { ROW_VALUES };
  __device__ void start_sweep(int, int, float*, bool) const {}
  __device__ void first_sweep(float, float*) const {}
  template <int N> __device__ void first_sweep_tile(const float (&)[N], int, float*) const {}
  __device__ void row_constants(int, const float*, float*) const {}
  __device__ float rescale(float*, float) const { return 1; }
  __device__ void merge(int, float*, const float*) const {}
  __device__ void row_for_backward(int, const float*, const float*, float*) const {}
};

// P = e^z / (e^sink + sum e^z), in one sweep with a running maximum; saved: lse, the logarithm of the denominator.
template <class Maths> struct Softmax : PolicyDefaults {
  using Evaluation = Softmax;
  static constexpr bool RESCALES = true, HAS_SINK = true, FROM_WEIGHT = true;
  enum { MAX, SUM, SUMS };
  enum { LSE, SAVED };
  enum { ROW_LSE, DOT, ROW_VALUES };
  float sink;
  __device__ Softmax(const KernelSettings&, float sink, int) : sink(sink) {}
  __device__ void start_sweep(int, int, float* sums, bool first) const {
    sums[MAX] = sink;
    sums[SUM] = first && sink > -INFINITY ? 1 : 0;
  }
  __device__ float rescale(float* sums, float top) const {
    float raised = max(sums[MAX], top), factor = Maths::exp(sums[MAX], raised);
    sums[MAX] = raised;
    sums[SUM] *= factor;
    return factor;
  }
  __device__ void weigh(float z, const float*, float* sums, float* weight) const {
    weight[0] = Maths::exp(z, sums[MAX]);
    sums[SUM] += weight[0];
  }
  __device__ void merge(int, float* sums, const float* other) const { sums[SUM] += other[SUM]; }
  __device__ void finish(int, const float*, const float* sums, float* factor, float* saved) const {
    factor[0] = 1 / sums[SUM];
    saved[LSE] = sums[MAX] + logf(sums[SUM]);
  }
  __device__ void row_for_backward(int, const float* saved, const float* dot, float* row) const {
    row[ROW_LSE] = saved[LSE];
    row[DOT] = dot[0];
  }
  __device__ float weight(float z, const float* row) const { return Maths::exp(z, row[ROW_LSE]); }
  __device__ float grad(float p, float dp, const float* row) const { return p * (dp - row[DOT]); }
  // a row's share of the gradient of a learned sink; rows [ROW_VALUES][count]
  __device__ static float sink_grad(float sink, const float* rows, size_t count) {
    return -expf(sink - rows[ROW_LSE * count]) * rows[DOT * count];
  }
};
template <class Maths> struct PolicyOf<Kind::softmax, Maths> : OnePolicy<Softmax<Maths>> {};

__device__ inline float inverse_or_0(float s) { return s < 0x1p-126f ? 0 : 1 / s; }

// P = f / S, f = log2(1 + 2^z), S = sum f. If S underflows (every z below -126), the row has weight 0 everywhere.
template <class Maths> struct Lssa : PolicyDefaults {
  using Evaluation = Lssa;
  static constexpr int HEAVY = 1;
  enum { SUM, SUMS };
  enum { S, SAVED };
  enum { INVERSE_S, DOT, ROW_VALUES };
  __device__ Lssa(const KernelSettings&, float, int) {}
  __device__ void start_sweep(int, int, float* sums, bool) const { sums[SUM] = 0; }
  __device__ void weigh(float z, const float*, float* sums, float* weight) const {
    weight[0] = Maths::softplus2(z);
    sums[SUM] += weight[0];
  }
  __device__ void merge(int, float* sums, const float* other) const { sums[SUM] += other[SUM]; }
  __device__ void finish(int, const float*, const float* sums, float* factor, float* saved) const {
    factor[0] = inverse_or_0(sums[SUM]);
    saved[S] = sums[SUM];
  }
  __device__ void row_for_backward(int, const float* saved, const float* dot, float* row) const {
    row[INVERSE_S] = inverse_or_0(saved[S]);
    row[DOT] = dot[0];
  }
  __device__ void grad(float z, float dp, const float* row, float& p, float& dz) const {
    float slope, f = Maths::softplus2(z, slope);
    p = f * row[INVERSE_S];
    dz = slope * row[INVERSE_S] * (dp - row[DOT]);  // in this order: slope alone may be too small for a product
  }
};
template <class Maths> struct PolicyOf<Kind::lssa, Maths> : OnePolicy<Lssa<Maths>> {};

// x^(power - 1) for x in [0, 1], and 0 where x is 0: for one power known at compile time, for integers up to 32 (by
// multiplications, without branches), and for any power.
template <int POWER> struct FixedPower {
  static_assert(POWER > 1);
  template <int N> __device__ static float power(float x) {
    if constexpr (N == 1) return x;
    else if constexpr (N % 2) return x * power<N - 1>(x);
    else return power<N / 2>(x * x);
  }
  __device__ static float one_less(float x, float) { return power<POWER - 1>(x); }
};
struct WholePower {
  __device__ static float one_less(float x, float exponent) { return integer_power(x, int(exponent)) * float(x > 0); }
};
template <class Maths> struct AnyPower {
  __device__ static float one_less(float x, float exponent) { return Maths::power(x, exponent); }
};

// f = log2(1 + 2^z), u = n f / S, r = max(0, u - offset), m = max r, w = (r / m)^power, W = sum w, P = w / W; the first
// sweep finds S and max z. Because r / m = max(0, SLOPE f - FLOOR) with SLOPE = n / (S m), FLOOR = offset / m, the
// second needs two constants. Q = P / r = x^(power - 1) / (m W); the training forward also sums Q v (O2) and Q (t).
// In the backward P = x^power / W and dz = slope (FACTOR x^(power - 1) (dP - D) - E / S) with FACTOR = power SLOPE / W.
// FastMaths takes SLOPE and FLOOR times W^(-1 / power) there: then W is 1, at the cost of an error of power 2^-23.
// A degenerate row (m < 1e-3) gets 1 / m = 0, and so weight 0 everywhere. Without an offset m is at least 1, unless the
// bound of n / S binds: every z is below -90 then. The bound leaves FACTOR dP a range of 2^20. Power: how x^(power - 1)
// is computed.
template <class Maths, class Power, bool TRAINING = true> struct Lssar : PolicyDefaults {
  using Evaluation = Lssar<Maths, Power, false>;
  static constexpr int SWEEPS = 2, OUTPUTS = TRAINING ? 2 : 1;
  static constexpr int HEAVY = std::is_same_v<Power, AnyPower<Maths>> ? 2 : 1;
  enum { SUM_F, MAX_Z };        // of the first sweep
  enum { SUM_W, SUM_Y, SUMS };  // of the second
  enum { SLOPE, FLOOR, INVERSE_M, CONSTANTS };
  enum { KEPT_SLOPE, KEPT_INVERSE_M, INVERSE_W, T, SAVED };
  static constexpr bool ROOT = std::is_same_v<Maths, FastMaths>;
  enum { ROW_SLOPE, ROW_FLOOR, FACTOR, FACTOR_DOT, E_OVER_S, ROW_INVERSE_W, ROW_VALUES = ROW_INVERSE_W + !ROOT };
  float power, exponent, offset;
  int offset_free_rows;
  __device__ Lssar(const KernelSettings& s, float, int)
      : power(s.power), exponent(s.exponent), offset(s.offset), offset_free_rows(s.offset_free_rows) {}
  __device__ float offset_of(int n) const { return n <= offset_free_rows ? 0 : offset; }
  // x = max(0, slope f - floor), at most 1, and x^(power - 1), 0 where x is 0
  __device__ float share(float f, float slope, float floor, float& x) const {
    x = Maths::cut_to_unit(fmaf(f, slope, -floor));
    return Power::one_less(x, exponent);
  }
  __device__ void start_sweep(int sweep, int, float* sums, bool) const {
    sums[0] = 0, sums[1] = sweep == 0 ? -INFINITY : 0;
  }
  __device__ void first_sweep(float z, float* sums) const {
    sums[SUM_F] += Maths::softplus2(z);
    sums[MAX_Z] = max(sums[MAX_Z], z);
  }
  // The thread's N scores of a row in a tile, of `seen` so far, by the whole warp: sum f = sum max(z, 0) + log2 of the
  // product of 1 + 2^-|z|, which stays below 2^32. Each product is rounded, so the logarithm is off by N 2^-23 at
  // most: 2^-14 of the sum, if that is at least 2^-9 for each score so far. Otherwise f is summed score by score.
  template <int N> __device__ void first_sweep_tile(const float (&z)[N], int seen, float* sums) const {
    static_assert(N <= 32);
    float product = 1, sum = 0;
#pragma unroll
    for (int n = 0; n < N; n++) {
      product = fmaf(product, fast_exp2(-fabsf(z[n])), product);
      sum += max(z[n], 0.0f);
      sums[MAX_Z] = max(sums[MAX_Z], z[n]);
    }
    sum += fast_log2(product);
    if (warp_ballot(sums[SUM_F] + sum < 0x1p-9f * seen)) {
      sum = 0;
#pragma unroll
      for (int n = 0; n < N; n++) sum += Maths::softplus2(z[n]);
    }
    sums[SUM_F] += sum;
  }
  __device__ void row_constants(int n, const float* sums, float* row) const {
    float scale = min(n * inverse_or_0(sums[SUM_F]), 0x1p90f), m = Maths::softplus2(sums[MAX_Z]) * scale - offset_of(n);
    row[INVERSE_M] = m < 1e-3f ? 0 : 1 / m;
    row[SLOPE] = scale * row[INVERSE_M];
    row[FLOOR] = offset_of(n) * row[INVERSE_M];
  }
  __device__ void weigh(float z, const float* row, float* sums, float* weight) const {
    float x, y = share(Maths::softplus2(z), row[SLOPE], row[FLOOR], x);
    weight[0] = y * x;
    sums[SUM_W] += y * x;
    sums[SUM_Y] += y;
    if constexpr (TRAINING) weight[1] = y;
  }
  __device__ void merge(int sweep, float* sums, const float* other) const {
    sums[0] += other[0];
    sums[1] = sweep == 0 ? max(sums[MAX_Z], other[MAX_Z]) : sums[SUM_Y] + other[SUM_Y];
  }
  __device__ void finish(int, const float* row, const float* sums, float* factor, float* saved) const {
    float inverse_w = sums[SUM_W] > 0 ? 1 / sums[SUM_W] : 0;
    factor[0] = inverse_w;
    if constexpr (TRAINING) factor[1] = inverse_w * row[INVERSE_M];
    saved[KEPT_SLOPE] = row[SLOPE];
    saved[KEPT_INVERSE_M] = row[INVERSE_M];
    saved[INVERSE_W] = inverse_w;
    saved[T] = sums[SUM_Y] * inverse_w * row[INVERSE_M];
  }
  __device__ void row_for_backward(int n, const float* saved, const float* dot, float* row) const {
    float inverse_m = saved[KEPT_INVERSE_M], scale = inverse_m > 0 ? saved[KEPT_SLOPE] / inverse_m : 0;  // n / S
    float root = ROOT ? exp2f(log2f(saved[INVERSE_W]) / power) : 1;  // 0 if 1 / W is
    row[ROW_SLOPE] = saved[KEPT_SLOPE] * root;
    row[ROW_FLOOR] = offset_of(n) * inverse_m * root;
    row[FACTOR] = power * row[ROW_SLOPE] * (ROOT ? 1 : saved[INVERSE_W]);
    if constexpr (!ROOT) row[ROW_INVERSE_W] = saved[INVERSE_W];
    row[FACTOR_DOT] = row[FACTOR] * dot[0];
    row[E_OVER_S] = power * offset_of(n) * (dot[1] - dot[0] * saved[T]) * scale / n;
  }
  __device__ void grad(float z, float dp, const float* row, float& p, float& dz) const {
    float slope, f = Maths::softplus2(z, slope);
    float x, y = share(f, row[ROW_SLOPE], row[ROW_FLOOR], x);
    p = y * x * (ROOT ? 1 : row[ROW_INVERSE_W]);
    dp = fmaf(row[FACTOR], dp, -row[FACTOR_DOT]);
    if constexpr (HEAVY == 2) dz = fmaf(slope * y, dp, -slope * row[E_OVER_S]);  // a register less: dK dV spill nothing
    else dz = slope * fmaf(y, dp, -row[E_OVER_S]);
  }
};
// One policy for the powers that multiplications compute (FullMaths: integers up to 32; FastMaths: 15), one for any.
template <class Maths> struct PolicyOf<Kind::lssar, Maths> {
  static constexpr bool FULL = std::is_same_v<Maths, FullMaths>;
  using Usual = Lssar<Maths, std::conditional_t<FULL, WholePower, FixedPower<15>>>;
  template <class F> static void choose(const KernelSettings& s, F f) {
    bool usual = FULL ? s.power <= 32 && s.power == floorf(s.power) : s.power == 15;
    if (usual) f.template operator()<Usual>();
    else f.template operator()<Lssar<Maths, AnyPower<Maths>>>();
  }
};

// P = sigmoid(z - ln(context)), not normalised.
template <class Maths> struct Sigmoid : PolicyDefaults {
  using Evaluation = Sigmoid;
  static constexpr bool FROM_WEIGHT = true;
  float log_context;
  __device__ Sigmoid(const KernelSettings& s, float, int) : log_context(s.log_context) {}
  __device__ void weigh(float z, const float*, float*, float* weight) const {
    weight[0] = Maths::sigmoid(z - log_context);
  }
  __device__ void finish(int, const float*, const float*, float* factor, float*) const { factor[0] = 1; }
  __device__ float weight(float z, const float*) const { return Maths::sigmoid(z - log_context); }
  __device__ float grad(float p, float dp, const float*) const { return p * (1 - p) * dp; }
};
template <class Maths> struct PolicyOf<Kind::sigmoid, Maths> : OnePolicy<Sigmoid<Maths>> {};

// P = relu(z) / n.
template <class Maths> struct Relu : PolicyDefaults {
  using Evaluation = Relu;
  enum { INVERSE_N, ROW_VALUES };
  __device__ Relu(const KernelSettings&, float, int) {}
  __device__ void weigh(float z, const float*, float*, float* weight) const { weight[0] = max(z, 0.0f); }
  __device__ void finish(int n, const float*, const float*, float* factor, float*) const { factor[0] = 1.0f / n; }
  __device__ void row_for_backward(int n, const float*, const float*, float* row) const { row[INVERSE_N] = 1.0f / n; }
  __device__ void grad(float z, float dp, const float* row, float& p, float& dz) const {
    p = max(z, 0.0f) * row[INVERSE_N];
    dz = z > 0 ? dp * row[INVERSE_N] : 0;
  }
};
template <class Maths> struct PolicyOf<Kind::relu, Maths> : OnePolicy<Relu<Maths>> {};

// P = relu(z)^2 / n.
template <class Maths> struct Relu2 : Relu<Maths> {
  using Evaluation = Relu2;
  using Relu<Maths>::Relu, Relu<Maths>::INVERSE_N;
  __device__ void weigh(float z, const float*, float*, float* weight) const { weight[0] = max(z, 0.0f) * max(z, 0.0f); }
  __device__ void grad(float z, float dp, const float* row, float& p, float& dz) const {
    float r = max(z, 0.0f);
    p = r * r * row[INVERSE_N];
    dz = 2 * r * dp * row[INVERSE_N];
  }
};
template <class Maths> struct PolicyOf<Kind::relu2, Maths> : OnePolicy<Relu2<Maths>> {};

// P = max(0, z - tau)^2, not normalised; tau = threshold sqrt(2 ln n).
template <class Maths> struct Threshold : PolicyDefaults {
  using Evaluation = Threshold;
  enum { TAU, SUMS };
  enum { ROW_TAU, ROW_VALUES };
  float threshold;
  __device__ Threshold(const KernelSettings& s, float, int) : threshold(s.threshold) {}
  __device__ float tau(int n) const { return threshold * sqrtf(2 * logf(float(n))); }
  __device__ void start_sweep(int, int n, float* sums, bool) const { sums[TAU] = tau(n); }
  __device__ void weigh(float z, const float*, float* sums, float* weight) const {
    float r = max(z - sums[TAU], 0.0f);
    weight[0] = r * r;
  }
  __device__ void finish(int, const float*, const float*, float* factor, float*) const { factor[0] = 1; }
  __device__ void row_for_backward(int n, const float*, const float*, float* row) const { row[ROW_TAU] = tau(n); }
  __device__ void grad(float z, float dp, const float* row, float& p, float& dz) const {
    float r = max(z - row[ROW_TAU], 0.0f);
    p = r * r;
    dz = 2 * r * dp;
  }
};
template <class Maths> struct PolicyOf<Kind::threshold, Maths> : OnePolicy<Threshold<Maths>> {};

// p and dz of the score of query i and key j, from 1, with any form of grad(); finish_gradient(): from a z that
// weight() has made p where it can.
template <class Policy>
__device__ __forceinline__ void finish_gradient(const Policy& policy, float z, float dp, const float* row, float& p,
                                                float& dz, float i, float j) {
  if constexpr (Policy::FROM_WEIGHT) p = z, dz = policy.grad(p, dp, row);
  else if constexpr (Policy::OF_FILE) policy.grad(z, dp, row, p, dz, i, j);
  else policy.grad(z, dp, row, p, dz);
}
template <class Policy>
__device__ __forceinline__ void score_gradient(const Policy& policy, float z, float dp, const float* row, float& p,
                                               float& dz, float i, float j) {
  if constexpr (Policy::FROM_WEIGHT) z = policy.weight(z, row);
  finish_gradient(policy, z, dp, row, p, dz, i, j);
}

// On tensor cores four neighbouring lanes share a row: this merges their sums, and all four get the same bits.
template <class Policy>
__device__ __forceinline__ void merge_quad(const Policy& policy, int sweep, float (&sums)[Policy::SUMS + 1]) {
#pragma unroll
  for (int mask = 1; mask <= 2; mask *= 2) {
    float other[Policy::SUMS + 1];
    for (int n = 0; n < Policy::SUMS; n++) other[n] = shuffle_xor(sums[n], mask);
    policy.merge(sweep, sums, other);
  }
}
