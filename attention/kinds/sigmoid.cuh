// Sigmoid attention (arXiv 2409.04431): P = sigmoid(z - ln context), not normalised.
#pragma once
#include "attention/kind.h"

KIND(sigmoid) {
  static constexpr RowWeights weights = RowWeights::none;
  static constexpr const char* pytorch = "torch.sigmoid(z - math.log(context))";
};

#if POLICIES
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
template <class Maths> struct PolicyOf<kind_sigmoid, Maths> : OnePolicy<Sigmoid<Maths>> {};
#endif
