// LSSA, the first stage of arXiv 2501.13428: P = f / S, f = softplus(z), S = sum f.
#pragma once
#include "attention/kind.h"

KIND(lssa) {
  static constexpr RowWeights weights = RowWeights::sum;
  static constexpr double unit = LN_2;
  static constexpr const char* pytorch = "F.softplus(z)";
  static constexpr Setting variant[] = {{"attention.qk_norm", "l2"}, {"attention.scale", "logd_logn"}};
};

#if POLICIES
// P = f / S, f = log2(1 + 2^z), S = sum f. If S underflows (every z below -126), the row has weight 0 everywhere.
template <class Maths> struct Lssa : PolicyDefaults {
  using Evaluation = Lssa;
  static constexpr int GRADIENT_REGISTERS = 1;
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
template <class Maths> struct PolicyOf<kind_lssa, Maths> : OnePolicy<Lssa<Maths>> {};
#endif
