// __nv_bfloat16 for the CPU layer: the upper half of a float. Conversions round to nearest even, denormals included,
// and every NaN becomes 0x7fff, bit for bit as on a GPU. No arithmetic: kernels compute in float.
#pragma once
#include <stdint.h>

struct __nv_bfloat16_raw {
  unsigned short x;
};

struct alignas(2) __nv_bfloat16 {
  unsigned short bits;
  __nv_bfloat16() = default;
  __nv_bfloat16(__nv_bfloat16_raw raw) : bits(raw.x) {}
  explicit __nv_bfloat16(float v) {
    uint32_t u = __builtin_bit_cast(uint32_t, v);
    uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
    bits = static_cast<unsigned short>((u & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : rounded);
  }
  explicit operator float() const { return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16); }
  operator __nv_bfloat16_raw() const { return {bits}; }
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

inline __nv_bfloat16 __float2bfloat16_rn(float v) { return __nv_bfloat16(v); }
inline float __bfloat162float(__nv_bfloat16 v) { return static_cast<float>(v); }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return __nv_bfloat16_raw{bits}; }
