// The functions that the kinds are made of beyond expf and logf, in float32 and without branches, so that loops over them become
// vector code on the CPU.
#pragma once
#include "kernels/gpu.cuh"

// ln(1 + e) for 0 <= e <= 1. What rounding took from t = 1 + e is added again, so that small e keep their digits. (Divided by t it
// would be the first-order term; at t near 2, where that matters, the difference is below an ulp.) Relative error below 1.4e-7.
__device__ inline float log1p_unit(float e) {
  float t = 1 + e;
  return logf(t) + (e - (t - 1));
}

// ln(1 + e^z), and its derivative. Both are 0 at -inf.
__device__ inline float softplus(float z) { return max(z, 0.0f) + log1p_unit(expf(-fabsf(z))); }
__device__ inline float sigmoid(float z) {
  float e = expf(-fabsf(z));
  return (z < 0 ? e : 1.0f) / (1 + e);
}
