// The functions of the kinds, beyond expf, in float32. They have no branches (nor logf's special cases, which g++ would
// turn into branches), so loops over them become vector code on the CPU.
#pragma once
#include "kernels/gpu.cuh"

// ln x for normal x > 0: x = 2^n m with m in [sqrt(1/2), sqrt(2)), ln m = 2 artanh((m - 1) / (m + 1)). Relative error
// 2e-7.
__device__ inline float log_normal(float x) {
  int bits = __float_as_int(x), n = (bits - 0x3f3504f3) >> 23;
  float m = __int_as_float(bits - (n << 23)), s = (m - 1) / (m + 1), q = s * s;
  float tail = fmaf(q, fmaf(q, fmaf(q, 1.0f / 9, 1.0f / 7), 1.0f / 5), 1.0f / 3);
  return fmaf(float(n), 0.693147181f, fmaf(2 * s, q * tail, 2 * s));
}

// ln(1 + e) for e in [0, 1], with all digits of a small e: e + e^2 q(e), where q of degree 7 minimizes the relative
// error of the whole (Remez): 3e-8, or 1.5e-7 in float32. It takes ten multiply-adds; a logarithm would keep a GPU's
// special-function unit busy.
__device__ inline float log1p_of_unit(float e) {
  float q = fmaf(0.0053648264f, e, -0.030065799f);
  q = fmaf(q, e, 0.079204545f);
  q = fmaf(q, e, -0.13753803f);
  q = fmaf(q, e, 0.19153656f);
  q = fmaf(q, e, -0.24857163f);
  q = fmaf(q, e, 0.33321324f);
  q = fmaf(q, e, -0.49999648f);
  return fmaf(e * e, q, e);
}

// x^n for 0 <= n < 32, without branches. Relative error n 2^-24.
__device__ inline float integer_power(float x, int n) {
  float x2 = x * x, x4 = x2 * x2, x8 = x4 * x4;
  float low = (n & 1 ? x : 1.0f) * (n & 2 ? x2 : 1.0f), high = (n & 4 ? x4 : 1.0f) * (n & 8 ? x8 : 1.0f);
  return low * high * (n & 16 ? x8 * x8 : 1.0f);
}

// 1 / s, or 0 for a sum that underflowed.
__device__ inline float inverse_or_0(float s) { return s < 0x1p-126f ? 0 : 1 / s; }

// The functions that policies call for each score, twice. FullMaths has float32's accuracy. FastMaths is for the
// kernels on tensor cores, whose operands have 8 bits: it is accurate to 2^-13 and takes a third of the instructions.
//   exp(z, m) = e^(z - m), also as exp_scaled(z, m EXP_SCALE), so that many z of one m share the product; exp2(x) = 2^x
//   softplus2(z) = c log2(1 + 2^z), `slope` = its derivative; all are 0 at z = -inf
//   power(x, p) = x^p for x in [0, 1], p > 0; cut_to_unit(x): x, but 0 below 0; for x up to 1
// c, which cancels in weights, is 1 in FastMaths. In FullMaths it is ln 2: around z = 0 log2(1 + 2^z) is just above 1,
// where floats have their largest relative rounding, and lssar magnifies it.
struct FullMaths {
  static constexpr float LN_2 = 0.693147181f, EXP_SCALE = 1;
  __device__ static float exp(float z, float m) { return expf(z - m); }
  __device__ static float exp_scaled(float z, float m) { return expf(z - m); }
  __device__ static float exp2(float x) { return exp2f(x); }
  __device__ static float softplus(float z) { return max(z, 0.0f) + log1p_of_unit(expf(-fabsf(z))); }
  __device__ static float softplus2(float z) { return fmaf(max(z, 0.0f), LN_2, log1p_of_unit(exp2f(-fabsf(z)))); }
  __device__ static float softplus2(float z, float& slope) {
    float e = exp2f(-fabsf(z));
    slope = (z < 0 ? e : 1.0f) * LN_2 / (1 + e);
    return fmaf(max(z, 0.0f), LN_2, log1p_of_unit(e));
  }
  __device__ static float sigmoid(float z) {
    float e = expf(-fabsf(z));
    return (z < 0 ? e : 1.0f) / (1 + e);
  }
  __device__ static float silu(float z) { return z * sigmoid(z); }
  __device__ static float silu_slope(float z) { return sigmoid(z) * fmaf(z, sigmoid(-z), 1.0f); }
  // relative error 2e-7 (1 + p |ln x|)
  __device__ static float power(float x, float p) { return expf(p * log_normal(x + 0x1p-126f)) * float(x > 0); }
  __device__ static float cut_to_unit(float x) { return max(x, 0.0f); }
};

struct FastMaths {
  static constexpr float LOG2_E = 1.44269504f, EXP_SCALE = LOG2_E;
  __device__ static float exp(float z, float m) { return exp_scaled(z, m * EXP_SCALE); }
  __device__ static float exp_scaled(float z, float m) { return fast_exp2(fmaf(z, LOG2_E, -m)); }
  __device__ static float exp2(float x) { return fast_exp2(x); }
  // max(z, 0) + e q(e) with e = 2^-|z| and q(e) = log2(1 + e) / e, of degree 4 (Remez): relative error 5.7e-5
  __device__ static float softplus2(float z) {
    float e = fast_exp2(-fabsf(z));
    float q = fmaf(fmaf(0.05965155f, e, -0.22711945f), e, 0.44189882f);
    return fmaf(e, fmaf(fmaf(q, e, -0.71698743f), e, 1.44261324f), max(z, 0.0f));
  }
  // The slope is 2^z / (1 + 2^z) = 2^(z - f): its relative error is f's error, 5.7e-5 at most, times ln 2.
  __device__ static float softplus2(float z, float& slope) {
    float f = softplus2(z);
    slope = fast_exp2(z - f);
    return f;
  }
  __device__ static float sigmoid(float z) { return fast_reciprocal(1 + fast_exp2(-z * LOG2_E)); }
  __device__ static float power(float x, float p) { return fast_exp2(p * fast_log2(x)); }
  __device__ static float cut_to_unit(float x) { return saturate(x); }
};
