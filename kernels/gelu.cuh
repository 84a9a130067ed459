// GELU in its tanh form, as GPT-2 uses it: 0.5 x (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3).
// The sigmoid form needs one exp and one division, and keeps the left tail's relative accuracy, which 1 + tanh loses.
#pragma once
#include "kernels/gpu.cuh"

// exp(-2u) as a power of two: -2 sqrt(2/pi) / ln 2 (x + 0.044715 x^3). Infinite or 0 for large |x|, where x / (1 + e)
// is still right. fmaf is written out so that every kernel rounds alike: a recomputed value must have the same bits.
__device__ inline float gelu_exp(float x) { return fast_exp2(x * fmaf(-0.10294324f, x * x, -2.3022082f)); }

__device__ inline float gelu(float x) { return x / (1.0f + gelu_exp(x)); }

// sigmoid + x sigmoid (1 - sigmoid) 2u', 2u' = 1.596 (1 + 3 0.0447 x^2). Beyond |x| = 10 it is 0 or 1 to 1e-35; NaN
// passes.
__device__ inline float gelu_grad(float x) {
  x = x < -10.0f ? -10.0f : x > 10.0f ? 10.0f : x;
  float e = gelu_exp(x), sigmoid = 1.0f / (1.0f + e);
  return sigmoid + x * (e * sigmoid * sigmoid) * fmaf(0.21406445f, x * x, 1.5957691f);
}

// out [n] = gelu(x); its gradient is taken by the product before (kernels/matmul.cuh). Floor: 2 n elements moved.
template <class T> void gelu_forward(T* out, const T* x, size_t n, cudaStream_t stream);
