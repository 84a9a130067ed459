// The functions that the kinds are made of beyond expf, in float32 and free of branches (and of logf's special cases, which g++
// would make branches of), so that loops over them become vector code on the CPU.
#pragma once
#include "kernels/gpu.cuh"

// ln x for normal x > 0: x = 2^n m with m in [sqrt(1/2), sqrt(2)), ln m = 2 artanh((m - 1) / (m + 1)). Relative error 2e-7.
__device__ inline float log_normal(float x) {
  int bits = __float_as_int(x), n = (bits - 0x3f3504f3) >> 23;
  float m = __int_as_float(bits - (n << 23)), s = (m - 1) / (m + 1), q = s * s;
  float tail = fmaf(q, fmaf(q, fmaf(q, 1.0f / 9, 1.0f / 7), 1.0f / 5), 1.0f / 3);
  return fmaf(float(n), 0.693147181f, fmaf(2 * s, q * tail, 2 * s));
}

// ln(1 + e^z), and its derivative sigmoid(z); both are 0 at -inf. With e = e^-|z|, t = 1 + e: what rounding took from t is added
// again, so that small e keep their digits.
__device__ inline float softplus(float z, float& sigmoid) {
  float e = expf(-fabsf(z)), t = 1 + e;
  sigmoid = (z < 0 ? e : 1.0f) / t;
  return max(z, 0.0f) + (log_normal(t) + (e - (t - 1)));
}
__device__ inline float softplus(float z) {
  float sigmoid;
  return softplus(z, sigmoid);
}
__device__ inline float sigmoid(float z) {
  float e = expf(-fabsf(z));
  return (z < 0 ? e : 1.0f) / (1 + e);
}

// x^p for normal x in (0, 1], p >= 0. Relative error 2e-7 (1 + p |ln x|).
__device__ inline float power_of_unit(float x, float p) { return expf(p * log_normal(x)); }
