// The elementary functions of the policies, in float32 and without branches: g++ turns loops over them into vector code, which
// it cannot do with the library's. Where the GPU's own function is the better one, it is taken there.
// Largest relative error, measured over the whole range against float64: see test/attention_test.cu.
#pragma once
#include "kernels/gpu.cuh"

// e^x for x <= 88; exactly 0 for x = -inf and wherever the result would be below 2^-126. Relative error below 2e-7.
__device__ inline float exp_fast(float x) {
  if constexpr (!on_cpu) {
    return expf(x);
  } else {
    // x = n ln 2 + r, |r| <= ln 2 / 2; ln 2 in two parts, so that n times the first one is exact
    float n = rintf(x * 1.44269504f);
    float r = fmaf(n, -0.693359375f, x);
    r = fmaf(n, 2.12194440e-4f, r);
    float p = 1.0f / 5040;
    p = fmaf(p, r, 1.0f / 720);
    p = fmaf(p, r, 1.0f / 120);
    p = fmaf(p, r, 1.0f / 24);
    p = fmaf(p, r, 1.0f / 6);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r * r, r) + 1.0f;
    return x < -87.33f ? 0.0f : p * __int_as_float((int(n) + 127) << 23);
  }
}

// ln x for normal x > 0. Relative error below 3e-7 (absolute near 1: 1e-7 |x - 1|).
__device__ inline float log_fast(float x) {
  if constexpr (!on_cpu) {
    return logf(x);
  } else {
    // x = 2^n m, sqrt(1/2) <= m < sqrt(2); ln m = 2 artanh(s), s = (m - 1) / (m + 1), |s| < 0.172
    int bits = __float_as_int(x), n = (bits - 0x3f3504f3) >> 23;
    float m = __int_as_float(bits - (n << 23)), s = (m - 1) / (m + 1), q = s * s;
    float p = fmaf(q, fmaf(q, fmaf(q, 1.0f / 9, 1.0f / 7), 1.0f / 5), 1.0f / 3);
    return fmaf(float(n), 0.693147181f, fmaf(2 * s, q * p, 2 * s));
  }
}

// ln(1 + e) for 0 <= e <= 1, right for tiny e as well: 2 artanh(e / (2 + e)). Relative error below 3e-7.
__device__ inline float log1p_unit(float e) {
  float s = e / (2 + e), q = s * s, p = 1.0f / 15;
  p = fmaf(p, q, 1.0f / 13);
  p = fmaf(p, q, 1.0f / 11);
  p = fmaf(p, q, 1.0f / 9);
  p = fmaf(p, q, 1.0f / 7);
  p = fmaf(p, q, 1.0f / 5);
  p = fmaf(p, q, 1.0f / 3);
  return fmaf(2 * s, q * p, 2 * s);
}

// softplus(z) = ln(1 + e^z) and its derivative, from one exponential. softplus(-inf) = sigmoid(-inf) = 0.
__device__ inline float softplus(float z) { return max(z, 0.0f) + log1p_unit(exp_fast(-fabsf(z))); }
__device__ inline float sigmoid(float z) {
  float e = exp_fast(-fabsf(z));
  return (z < 0 ? e : 1.0f) / (1 + e);
}
