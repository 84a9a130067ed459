// Softmax's weights through LSSAR's second stage (sharpened.cuh), which tells softplus from the power.
//   P = r^power / sum r^power, r = max(0, n a - offset), a = e^z / sum e^z
#pragma once
#include "attention/sharpened.cuh"

KIND(softmaxr) {
  static constexpr RowWeights weights = RowWeights::sum;
  static constexpr double unit = LN_2;
  static constexpr std::span<const ScoreKey> parameters = SHARPENED_KEYS;
  static constexpr const char* dense_rows = SHARPENED_DENSE_ROWS;
  using Numbers = SharpenedNumbers;
  static Numbers numbers(const double* p) { return sharpened_numbers(p); }
};

#if POLICIES
// f = 2^(z - max z), g = 2^(z - SCALE). 1 / m is what the rounded SCALE makes of it, so that g and FLOOR have one error
// in common, which cancels in P: the power would magnify it. START is below any score, but not -inf.
template <class Maths_> struct ExpStage : PolicyDefaults {
  using Maths = Maths_;
  using File = kind_softmaxr;
  static constexpr float START = -0x1p100f, LN_2 = 0.693147181f;
  __device__ void first_sweep(float z, float* sums) const {
    float smaller = Maths::exp2(-fabsf(z - sums[MAX_Z]));
    sums[SUM_F] = z > sums[MAX_Z] ? fmaf(sums[SUM_F], smaller, 1.0f) : sums[SUM_F] + smaller;
    sums[MAX_Z] = max(sums[MAX_Z], z);
  }
  template <int N> __device__ void first_sweep_tile(const float (&z)[N], int, float* sums) const {
    float top = sums[MAX_Z];
#pragma unroll
    for (int n = 0; n < N; n++) top = max(top, z[n]);
    sums[SUM_F] *= Maths::exp2(sums[MAX_Z] - top);
#pragma unroll
    for (int n = 0; n < N; n++) sums[SUM_F] += Maths::exp2(z[n] - top);
    sums[MAX_Z] = top;
  }
  __device__ static void merge_first(float* sums, const float* other) {
    float top = max(sums[MAX_Z], other[MAX_Z]);
    sums[SUM_F] = sums[SUM_F] * Maths::exp2(sums[MAX_Z] - top) + other[SUM_F] * Maths::exp2(other[MAX_Z] - top);
    sums[MAX_Z] = top;
  }
  __device__ static float largest(const float*) { return 1; }
  __device__ static void set_scale(const float* sums, float n_over_s, float& scale, float& inverse_m) {
    scale = sums[MAX_Z] - log2f(n_over_s * inverse_m);  // +inf if 1 / m is 0
    if (inverse_m > 0) inverse_m = exp2f(sums[MAX_Z] - scale) / n_over_s;
  }
  __device__ static float rooted(float scale, float root) { return scale - log2f(root); }
  __device__ static float factor(float, float root) { return LN_2 / root; }
  __device__ static float excess(float z, float scale, float floor) { return Maths::exp2(z - scale) - floor; }
  __device__ static float excess(float z, float scale, float floor, float& slope) {
    slope = Maths::exp2(z - scale);
    return slope - floor;
  }
};
template <class Maths> struct PolicyOf<kind_softmaxr, Maths> : SharpenedPolicies<ExpStage<Maths>> {};
#endif
