// __half for the CPU layer: IEEE binary16. Conversions round to nearest even, denormals included, overflow gives
// infinity and every NaN becomes 0x7fff, bit for bit as on a GPU. Plain integer and float operations, so that loops
// vectorise on any x86-64. No arithmetic: kernels compute in float.
#pragma once
#include <stdint.h>

struct __half_raw { unsigned short x; };

struct alignas(2) __half {
  unsigned short bits;
  __half() = default;
  __half(__half_raw raw) : bits(raw.x) {}
  explicit __half(float v) {
    uint32_t u = __builtin_bit_cast(uint32_t, v), sign = (u >> 16) & 0x8000u;
    u &= 0x7fffffffu;
    // Below 2^-14 adding 0.5 makes the float adder round to a multiple of 2^-24, the denormals' spacing.
    float tiny = __builtin_bit_cast(float, u) + 0.5f;
    uint32_t denormal = __builtin_bit_cast(uint32_t, tiny) - 0x3f000000u;
    uint32_t normal = (u - 0x38000000u + 0xfffu + ((u >> 13) & 1)) >> 13;
    uint32_t magnitude = u < 0x38800000u ? denormal : normal;
    magnitude = u >= 0x477ff000u ? 0x7c00u : magnitude;  // 65520 and above round to infinity
    bits = static_cast<unsigned short>(u > 0x7f800000u ? 0x7fffu : sign | magnitude);
  }
  explicit operator float() const {
    uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fff) << 13, sign = static_cast<uint32_t>(bits & 0x8000) << 16;
    float scaled = __builtin_bit_cast(float, magnitude) * 0x1p112f;  // moves the exponent, normalises denormals
    uint32_t u = __builtin_bit_cast(uint32_t, scaled);
    u = magnitude >= 0x0f800000u ? (magnitude | 0x7f800000u) : u;    // infinity and NaN
    return __builtin_bit_cast(float, u | sign);
  }
  operator __half_raw() const { return {bits}; }
};
struct alignas(4) __half2 { __half x, y; };

inline __half __float2half(float v) { return __half(v); }
inline __half __float2half_rn(float v) { return __half(v); }
inline float __half2float(__half v) { return static_cast<float>(v); }
inline unsigned short __half_as_ushort(__half v) { return v.bits; }
inline __half __ushort_as_half(unsigned short bits) { return __half_raw{bits}; }
