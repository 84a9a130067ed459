// LSSAR, both stages of arXiv 2501.13428: LSSA's weights f / S less the mean weight times `offset`, raised to a power.
//   P = r^power / sum r^power, r = max(0, n f / S - offset), f = softplus(z), S = sum f
#pragma once
#include "attention/sharpened.cuh"

KIND(lssar) {
  static constexpr RowWeights weights = RowWeights::sum;
  static constexpr double unit = LN_2;
  static constexpr Setting variant[] = {{"attention.qk_norm", "l2"}, {"attention.scale", "logd_logn"}};
  static constexpr std::span<const ScoreKey> parameters = SHARPENED_KEYS;
  static constexpr const char* dense_rows = SHARPENED_DENSE_ROWS;
  using Numbers = SharpenedNumbers;
  static Numbers numbers(const double* p) { return sharpened_numbers(p); }
};

#if POLICIES
// f = log2(1 + 2^z), g = SCALE f
template <class Maths_> struct SoftplusStage : PolicyDefaults {
  using Maths = Maths_;
  using File = kind_lssar;
  static constexpr float START = -INFINITY;
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
  __device__ static void merge_first(float* sums, const float* other) {
    sums[SUM_F] += other[SUM_F];
    sums[MAX_Z] = max(sums[MAX_Z], other[MAX_Z]);
  }
  __device__ static float largest(const float* sums) { return Maths::softplus2(sums[MAX_Z]); }
  __device__ static void set_scale(const float*, float n_over_s, float& scale, float& inverse_m) {
    scale = n_over_s * inverse_m;
  }
  __device__ static float rooted(float scale, float root) { return scale * root; }
  __device__ static float factor(float scale, float) { return scale; }
  __device__ static float excess(float z, float scale, float floor) { return fmaf(Maths::softplus2(z), scale, -floor); }
  __device__ static float excess(float z, float scale, float floor, float& slope) {
    return fmaf(Maths::softplus2(z, slope), scale, -floor);
  }
};
template <class Maths> struct PolicyOf<kind_lssar, Maths> : SharpenedPolicies<SoftplusStage<Maths>> {};
#endif
