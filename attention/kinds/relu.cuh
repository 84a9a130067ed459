// ReLU attention (arXiv 2309.08586): P = relu(z) / n.
#pragma once
#include "attention/kind.h"

KIND(relu) {
  static constexpr RowWeights weights = RowWeights::none;
  static constexpr const char* pytorch = "F.relu(z) / n";
};

#if POLICIES
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
template <class Maths> struct PolicyOf<kind_relu, Maths> : OnePolicy<Relu<Maths>> {};
#endif
