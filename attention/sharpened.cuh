// The second stage of LSSAR (arXiv 2501.13428), for kinds whose weights f / S of a first stage go through it:
//   P = r^power / sum r^power, r = max(0, n f / S - offset), S = sum f
// Such a kind has the keys below, and the policy Sharpened of its first stage, a struct such as that of lssar.cuh.
#pragma once
#include "attention/kind.h"

inline constexpr ScoreKey SHARPENED_KEYS[] = {
    {"power", 15, "[1, 1000]", "exponent of the second stage of lssar and softmaxr"},
    {"offset", 1, "[0, 1e6]", "subtracted in that stage, in units of the mean weight"},
    {"offset_free_rows", 3, "[0, 2147483647]", "first rows without that offset", /*whole=*/true, /*with=*/"offset"}};
inline constexpr const char* SHARPENED_DENSE_ROWS = "offset_free_rows";
struct SharpenedNumbers {
  float power, exponent, offset;  // exponent: power - 1, but above 0, so that 0^exponent = 0
  int offset_free_rows;
};
inline SharpenedNumbers sharpened_numbers(const double* p) {
  return {float(p[0]), std::max(float(p[0]) - 1, 1e-30f), float(p[1]), int(p[2])};
}

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

// r = max(0, n f / S - offset), m = max r, w = (r / m)^power, W = sum w, P = w / W; the first sweep finds S and max z.
// r / m = max(0, g - FLOOR) with g = n f / (S m) and FLOOR = offset / m, so the second sweep needs FLOOR and what the
// first stage makes of n / (S m), SCALE. Q = P / r = x^(power - 1) / (m W); the training forward also sums Q v (O2)
// and Q (t). In the backward P = x^power / W and dz = slope (FACTOR x^(power - 1) (dP - delta) - E), where slope is g's
// without its factor for the row, which FACTOR = power factor / W and E have.
// FastMaths takes g and FLOOR times W^(-1 / power) there: then W is 1, at the cost of an error of power 2^-23.
// A degenerate row (m < 1e-3) gets 1 / m = 0, and so weight 0 everywhere. Without an offset m is at least 1, unless the
// bound of n / S binds: every z of lssar is below -90 then. The bound leaves FACTOR dP a range of 2^20.
// Power: how x^(power - 1) is computed. First: the first stage, derived from PolicyDefaults, with File, Maths, START,
//   first_sweep(), first_sweep_tile(), merge_first()   sums[SUM_F] of its f, sums[MAX_Z], which begins as START
//   largest(sums)                        f of the largest score
//   set_scale(sums, n_over_s, scale =, inverse_m)   SCALE for that 1 / m, which it may set to what SCALE rounds it to
//   rooted(scale, root)                  SCALE of g root
//   factor(scale, root)                  g's factor in `slope` for this SCALE, of g without root, over root
//   excess(z, scale, floor), excess(z, scale, floor, slope =)   g - floor
enum { SUM_F, MAX_Z };  // of the first sweep
template <class First, class Power, bool TRAINING = true> struct Sharpened : First {
  using Maths = typename First::Maths;
  using Evaluation = Sharpened<First, Power, false>;
  static constexpr int SWEEPS = 2, OUTPUTS = TRAINING ? 2 : 1;
  static constexpr int GRADIENT_REGISTERS = std::is_same_v<Power, AnyPower<Maths>> ? 2 : 1;
  enum { SUM_W, SUM_Y, SUMS };  // of the second
  enum { SCALE, FLOOR, INVERSE_M, CONSTANTS };
  enum { KEPT_SCALE, KEPT_INVERSE_M, INVERSE_W, T, SAVED };
  static constexpr bool ROOT = std::is_same_v<Maths, FastMaths>;
  enum { ROW_SCALE, ROW_FLOOR, FACTOR, FACTOR_DOT, E, ROW_INVERSE_W, ROW_VALUES = ROW_INVERSE_W + !ROOT };
  SharpenedNumbers with;
  __device__ Sharpened(const KernelSettings& s, float, int) : with(s.numbers_of<typename First::File>()) {}
  __device__ float offset_of(int n) const { return n <= with.offset_free_rows ? 0 : with.offset; }
  __device__ void start_sweep(int sweep, int, float* sums, bool) const {
    sums[0] = 0, sums[1] = sweep == 0 ? First::START : 0;
  }
  __device__ void row_constants(int n, const float* sums, float* row) const {
    float n_over_s = min(n * inverse_or_0(sums[SUM_F]), 0x1p90f), m = First::largest(sums) * n_over_s - offset_of(n);
    row[INVERSE_M] = m < 1e-3f ? 0 : 1 / m;
    First::set_scale(sums, n_over_s, row[SCALE], row[INVERSE_M]);
    row[FLOOR] = offset_of(n) * row[INVERSE_M];
  }
  // x = max(0, g - floor), at most 1, and y = x^(power - 1), 0 where x is 0
  __device__ void weigh(float z, const float* row, float* sums, float* weight) const {
    float x = Maths::cut_to_unit(First::excess(z, row[SCALE], row[FLOOR])), y = Power::one_less(x, with.exponent);
    weight[0] = y * x;
    sums[SUM_W] += y * x;
    sums[SUM_Y] += y;
    if constexpr (TRAINING) weight[1] = y;
  }
  __device__ void merge(int sweep, float* sums, const float* other) const {
    if (sweep == 0) First::merge_first(sums, other);
    else sums[SUM_W] += other[SUM_W], sums[SUM_Y] += other[SUM_Y];
  }
  __device__ void finish(int, const float* row, const float* sums, float* factor, float* saved) const {
    float inverse_w = sums[SUM_W] > 0 ? 1 / sums[SUM_W] : 0;
    factor[0] = inverse_w;
    if constexpr (TRAINING) factor[1] = inverse_w * row[INVERSE_M];
    saved[KEPT_SCALE] = row[SCALE];
    saved[KEPT_INVERSE_M] = row[INVERSE_M];
    saved[INVERSE_W] = inverse_w;
    saved[T] = sums[SUM_Y] * inverse_w * row[INVERSE_M];
  }
  __device__ void row_for_backward(int n, const float* saved, const float* dot, float* row) const {
    float inverse_m = saved[KEPT_INVERSE_M];
    float root = ROOT ? exp2f(log2f(saved[INVERSE_W]) / with.power) : 1;  // 0 if 1 / W is
    float scale = inverse_m > 0 ? First::factor(saved[KEPT_SCALE], root) / inverse_m : 0;
    row[ROW_SCALE] = First::rooted(saved[KEPT_SCALE], root);
    row[ROW_FLOOR] = offset_of(n) * inverse_m * root;
    row[FACTOR] = with.power * First::factor(row[ROW_SCALE], 1) * (ROOT ? 1 : saved[INVERSE_W]);
    if constexpr (!ROOT) row[ROW_INVERSE_W] = saved[INVERSE_W];
    row[FACTOR_DOT] = row[FACTOR] * dot[0];
    row[E] = with.power * offset_of(n) * (dot[1] - dot[0] * saved[T]) * scale / n;
  }
  __device__ void grad(float z, float dp, const float* row, float& p, float& dz) const {
    float slope, x = Maths::cut_to_unit(First::excess(z, row[ROW_SCALE], row[ROW_FLOOR], slope));
    float y = Power::one_less(x, with.exponent);
    p = y * x * (ROOT ? 1 : row[ROW_INVERSE_W]);
    dp = fmaf(row[FACTOR], dp, -row[FACTOR_DOT]);
    if constexpr (GRADIENT_REGISTERS == 2)
      dz = fmaf(slope * y, dp, -slope * row[E]);  // a register less: dK dV spill nothing
    else dz = slope * fmaf(y, dp, -row[E]);
  }
};
// One policy for the powers that multiplications compute (FullMaths: integers up to 32; FastMaths: 15), one for any.
template <class First> struct SharpenedPolicies {
  using Maths = typename First::Maths;
  static constexpr bool FULL = std::is_same_v<Maths, FullMaths>;
  using Usual = Sharpened<First, std::conditional_t<FULL, WholePower, FixedPower<15>>>;
  template <class F> static void choose(const KernelSettings& s, F f) {
    float power = s.numbers_of<typename First::File>().power;
    bool usual = FULL ? power <= 32 && power == floorf(power) : power == 15;
    if (usual) f.template operator()<Usual>();
    else f.template operator()<Sharpened<First, AnyPower<Maths>>>();
  }
};
#endif
