// Single-precision functions that kernels call in their inner loops, inlined instead of libm's calls so that loops
// over a Pack vectorise: expf, logf, exp2f, log2f within 1.1 ulp (2.1 without FMA), fmaxf, fminf exact. Infinities,
// NaN, denormals and overflow follow the C standard; errno and exception flags do not. The coefficients are our own
// minimax fits of the relative error.
#pragma once
#include <math.h>
#include <stdint.h>

namespace cpu {

inline float bits_to_float(uint32_t i) { return __builtin_bit_cast(float, i); }
inline uint32_t float_to_bits(float x) { return __builtin_bit_cast(uint32_t, x); }

// Adding it rounds to an integer, which is then in the low bits; subtracting it again gives that integer as a float.
constexpr float round_magic = 0x1.8p23f;
inline int32_t rounded(float sum) { return static_cast<int32_t>(float_to_bits(sum) - float_to_bits(round_magic)); }

// p 2^n for n in [-252, 254], in two steps so that denormal results and infinity are correct.
inline float scale(float p, int32_t n) {
  uint32_t half = static_cast<uint32_t>(n >> 1), rest = static_cast<uint32_t>(n) - half;
  return p * bits_to_float((half + 127) << 23) * bits_to_float((rest + 127) << 23);
}

// m in [sqrt(1/2), sqrt(2)) and n with x = m 2^n, for x > 0.
struct Split {
  float m, n;
};
inline Split split(float x) {
  float shift = x < 0x1p-126f ? 23.0f : 0.0f;
  x = x < 0x1p-126f ? x * 0x1p23f : x;
  int32_t n = static_cast<int32_t>(float_to_bits(x) - 0x3f3504f3u) >> 23;
  return {bits_to_float(float_to_bits(x) - (static_cast<uint32_t>(n) << 23)), static_cast<float>(n) - shift};
}

// ln(1 + f) - f, for 1 + f in [sqrt(1/2), sqrt(2)).
inline float log1p_tail(float f) {
  float q = -0.0763449555f;
  q = q * f + 0.127615764f, q = q * f - 0.131601825f, q = q * f + 0.142017581f, q = q * f - 0.166233573f;
  q = q * f + 0.200012269f, q = q * f - 0.25000821f, q = q * f + 0.333333317f;
  return f * f * (q * f - 0.5f);
}

inline float log_ends(float x, float result) {
  result = x > 0x1.fffffep127f ? x : result;
  result = x == 0.0f ? -__builtin_inff() : result;
  return x >= 0.0f ? result : __builtin_nanf("");
}

}  // namespace cpu

#define CPU_LIBM extern inline __attribute__((gnu_inline, always_inline))
extern "C" {

CPU_LIBM float expf(float x) noexcept {
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  float t = x * 1.44269504f + cpu::round_magic, n = t - cpu::round_magic;
  float r = x - n * 0.693359375f + n * 2.12194440e-4f;  // ln 2 in two parts, the first times n is exact
  float q = 0.00138146104f;
  q = q * r + 0.00836871114f, q = q * r + 0.0416683875f, q = q * r + 0.166665207f, q = q * r + 0.499999935f;
  return cpu::scale(1.0f + (r + r * r * q), cpu::rounded(t));
}

CPU_LIBM float exp2f(float x) noexcept {
  x = x < -152.0f ? -152.0f : x;
  x = x > 128.0f ? 128.0f : x;
  float t = x + cpu::round_magic, r = x - (t - cpu::round_magic);
  float q = 0.000153533619f;
  q = q * r + 0.00133988744f, q = q * r + 0.00961843736f, q = q * r + 0.0555033247f, q = q * r + 0.240226479f;
  q = q * r + 0.693147203f;
  return cpu::scale(1.0f + r * q, cpu::rounded(t));
}

CPU_LIBM float logf(float x) noexcept {
  cpu::Split s = cpu::split(x);
  float f = s.m - 1.0f;
  float low = cpu::log1p_tail(f) - s.n * 2.12194440e-4f;
  return cpu::log_ends(x, s.n * 0.693359375f + (f + low));
}

CPU_LIBM float log2f(float x) noexcept {
  cpu::Split s = cpu::split(x);
  float f = s.m - 1.0f, tail = cpu::log1p_tail(f);
  float low = f * 1.9259630e-8f + tail * 1.44269504f;  // 1 / ln 2 in two parts
  return cpu::log_ends(x, s.n + (f * 1.44269504f + low));
}

CPU_LIBM float fmaxf(float a, float b) noexcept { return a < b || a != a ? b : a; }
CPU_LIBM float fminf(float a, float b) noexcept { return a > b || a != a ? b : a; }
}  // extern "C"
