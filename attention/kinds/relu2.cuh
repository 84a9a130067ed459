// Squared ReLU, as in arXiv 2309.08586: P = relu(z)^2 / n.
#pragma once
#include "attention/kind.h"
#include "attention/kinds/relu.cuh"

KIND(relu2) {
  static constexpr RowWeights weights = RowWeights::none;
  static constexpr const char* pytorch = "F.relu(z).square() / n";
};

#if POLICIES
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
template <class Maths> struct PolicyOf<kind_relu2, Maths> : OnePolicy<Relu2<Maths>> {};
#endif
