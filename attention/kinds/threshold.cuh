// One branch of Threshold Differential Attention (arXiv 2601.12145): P = max(0, z - tau)^2, not normalised, with
// tau = threshold sqrt(2 ln n), which fewer than one of n random directions exceed on average.
#pragma once
#include "attention/kind.h"

KIND(threshold) {
  static constexpr RowWeights weights = RowWeights::none;
  static constexpr Setting variant[] = {{"attention.qk_norm", "rms"}, {"attention.output_norm", "rms"}};
  static constexpr ScoreKey parameters[] = {
      {"threshold", 1, "[0, 1e6]", "row i keeps the excess of each score over this times sqrt(2 ln i)"}};
  static constexpr const char* pytorch = "F.relu(z - threshold * (2 * n.log()).sqrt()).square()";
  struct Numbers {
    float threshold;
  };
  static Numbers numbers(const double* p) { return {float(p[0])}; }
};

#if POLICIES
template <class Maths> struct Threshold : PolicyDefaults {
  using Evaluation = Threshold;
  enum { TAU, SUMS };
  enum { ROW_TAU, ROW_VALUES };
  float threshold;
  __device__ Threshold(const KernelSettings& s, float, int) : threshold(s.numbers_of<kind_threshold>().threshold) {}
  __device__ float tau(int n) const { return threshold * sqrtf(2 * logf(float(n))); }
  __device__ void start_sweep(int, int n, float* sums, bool) const { sums[TAU] = tau(n); }
  __device__ void merge(int, float*, const float*) const {}
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
template <class Maths> struct PolicyOf<kind_threshold, Maths> : OnePolicy<Threshold<Maths>> {};
#endif
