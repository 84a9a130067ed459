// LSSAR, both stages of arXiv 2501.13428: LSSA's weights f / S less the mean weight times `offset`, raised to a power.
//   P = r^power / sum r^power, r = max(0, n f / S - offset), f = softplus(z), S = sum f
#pragma once
#include "attention/kind.h"

KIND(lssar) {
  static constexpr RowWeights weights = RowWeights::sum;
  static constexpr double unit = LN_2;
  static constexpr Setting variant[] = {{"attention.qk_norm", "l2"}, {"attention.scale", "logd_logn"}};
  static constexpr ScoreKey parameters[] = {
      {"power", 15, "[1, 1000]", "exponent of lssar's second stage"},
      {"offset", 1, "[0, 1e6]", "subtracted in lssar's second stage, in units of the mean weight"},
      {"offset_free_rows", 3, "[0, 2147483647]", "first rows without that offset", /*whole=*/true, /*with=*/"offset"}};
  static constexpr const char* dense_rows = "offset_free_rows";
  struct Numbers {
    float power, exponent, offset;  // exponent: power - 1, but above 0, so that 0^exponent = 0
    int offset_free_rows;
  };
  static Numbers numbers(const double* p) {
    return {float(p[0]), std::max(float(p[0]) - 1, 1e-30f), float(p[1]), int(p[2])};
  }
};

#if POLICIES
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
// In the backward P = x^power / W and dz = slope (FACTOR x^(power - 1) (dP - delta) - E / S) with
// FACTOR = power SLOPE / W.
// FastMaths takes SLOPE and FLOOR times W^(-1 / power) there: then W is 1, at the cost of an error of power 2^-23.
// A degenerate row (m < 1e-3) gets 1 / m = 0, and so weight 0 everywhere. Without an offset m is at least 1, unless the
// bound of n / S binds: every z is below -90 then. The bound leaves FACTOR dP a range of 2^20. Power: how x^(power - 1)
// is computed.
template <class Maths, class Power, bool TRAINING = true> struct Lssar : PolicyDefaults {
  using Evaluation = Lssar<Maths, Power, false>;
  static constexpr int SWEEPS = 2, OUTPUTS = TRAINING ? 2 : 1;
  static constexpr int GRADIENT_REGISTERS = std::is_same_v<Power, AnyPower<Maths>> ? 2 : 1;
  enum { SUM_F, MAX_Z };        // of the first sweep
  enum { SUM_W, SUM_Y, SUMS };  // of the second
  enum { SLOPE, FLOOR, INVERSE_M, CONSTANTS };
  enum { KEPT_SLOPE, KEPT_INVERSE_M, INVERSE_W, T, SAVED };
  static constexpr bool ROOT = std::is_same_v<Maths, FastMaths>;
  enum { ROW_SLOPE, ROW_FLOOR, FACTOR, FACTOR_DOT, E_OVER_S, ROW_INVERSE_W, ROW_VALUES = ROW_INVERSE_W + !ROOT };
  kind_lssar::Numbers with;
  __device__ Lssar(const KernelSettings& s, float, int) : with(s.numbers_of<kind_lssar>()) {}
  __device__ float offset_of(int n) const { return n <= with.offset_free_rows ? 0 : with.offset; }
  // x = max(0, slope f - floor), at most 1, and x^(power - 1), 0 where x is 0
  __device__ float share(float f, float slope, float floor, float& x) const {
    x = Maths::cut_to_unit(fmaf(f, slope, -floor));
    return Power::one_less(x, with.exponent);
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
  // most: 2^-14 of the sum, if that is at least 2^-9 for each score so far. Otherwise f is summed score by score. So a
  // row's bits depend on the warp's other rows, but not on other documents: where a warp has rows of two, one is a
  // document's first, and lanes that have none of its only score always ask for this.
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
    float root = ROOT ? exp2f(log2f(saved[INVERSE_W]) / with.power) : 1;  // 0 if 1 / W is
    row[ROW_SLOPE] = saved[KEPT_SLOPE] * root;
    row[ROW_FLOOR] = offset_of(n) * inverse_m * root;
    row[FACTOR] = with.power * row[ROW_SLOPE] * (ROOT ? 1 : saved[INVERSE_W]);
    if constexpr (!ROOT) row[ROW_INVERSE_W] = saved[INVERSE_W];
    row[FACTOR_DOT] = row[FACTOR] * dot[0];
    row[E_OVER_S] = with.power * offset_of(n) * (dot[1] - dot[0] * saved[T]) * scale / n;
  }
  __device__ void grad(float z, float dp, const float* row, float& p, float& dz) const {
    float slope, f = Maths::softplus2(z, slope);
    float x, y = share(f, row[ROW_SLOPE], row[ROW_FLOOR], x);
    p = y * x * (ROOT ? 1 : row[ROW_INVERSE_W]);
    dp = fmaf(row[FACTOR], dp, -row[FACTOR_DOT]);
    if constexpr (GRADIENT_REGISTERS == 2)
      dz = fmaf(slope * y, dp, -slope * row[E_OVER_S]);  // a register less: dK dV spill nothing
    else dz = slope * fmaf(y, dp, -row[E_OVER_S]);
  }
};
// One policy for the powers that multiplications compute (FullMaths: integers up to 32; FastMaths: 15), one for any.
template <class Maths> struct PolicyOf<kind_lssar, Maths> {
  static constexpr bool FULL = std::is_same_v<Maths, FullMaths>;
  using Usual = Lssar<Maths, std::conditional_t<FULL, WholePower, FixedPower<15>>>;
  template <class F> static void choose(const KernelSettings& s, F f) {
    float power = s.numbers_of<kind_lssar>().power;
    bool usual = FULL ? power <= 32 && power == floorf(power) : power == 15;
    if (usual) f.template operator()<Usual>();
    else f.template operator()<Lssar<Maths, AnyPower<Maths>>>();
  }
};
#endif
