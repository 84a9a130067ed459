// GELU in its tanh form, as GPT-2 uses it: 0.5 x (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3).
// The sigmoid form needs one exp and one division, and keeps the left tail's relative accuracy, which 1 + tanh loses.
#pragma once
#include "kernels/gpu.cuh"

// exp(-2u) as a power of two, cut off at 2^115: finite, and sigmoid is 0 to float32 long before. Beyond |x| = 1000 the cubic is
// no longer followed, as it would overflow.
__device__ inline float gelu_exp(float x, float square) {
  return fast_exp2(fminf(x * (-2.3022082f - 0.10294324f * square), 115.0f));   // -2 sqrt(2/pi) / ln 2, and that x 0.044715
}

__device__ inline float gelu(float x) {
  return x / (1.0f + gelu_exp(x, fminf(x * x, 1e6f)));
}

__device__ inline float gelu_grad(float x) {
  float square = fminf(x * x, 1e6f), e = gelu_exp(x, square), sigmoid = 1.0f / (1.0f + e);
  return sigmoid + x * (e * sigmoid * sigmoid) * (1.5957691f + 0.21406445f * square);   // 2u' = 1.596 (1 + 3 0.0447 x^2)
}

// out [n] = gelu(x). Floor: 2 n elements moved.
template <class T>
void gelu_forward(T* out, const T* x, size_t n, cudaStream_t stream);

// dx [n] = dout gelu'(x); may alias dout. Floor: 3 n elements moved.
template <class T>
void gelu_backward(T* dx, const T* dout, const T* x, size_t n, cudaStream_t stream);
