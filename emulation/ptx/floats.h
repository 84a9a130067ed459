// Bits of floating-point numbers, and roundings.
#pragma once
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdint>

namespace ptx {

inline float float_of(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }
inline float canonical_nan() { return float_of(0x7fffffff); }
inline float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }  // .ftz

inline float float_of_bf16(uint16_t bits) { return float_of(uint32_t(bits) << 16); }
inline uint16_t bf16_of(float x) {  // to the nearest, ties to even
  if (std::isnan(x)) return 0x7fff;
  const uint32_t bits = bits_of(x);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// A tensor core's rounding of a sum: truncation.
inline float cut_off(double x) {
  if (std::isnan(x)) return canonical_nan();
  const float nearest = float(x);
  const bool further = std::isfinite(nearest) && std::fabs(double(nearest)) > std::fabs(x);
  return further ? std::nextafter(nearest, 0.0f) : nearest;
}

// Sets the processor's rounding mode while this object lives.
class Rounding {
 public:
  explicit Rounding(int mode) : before_(fegetround()) { fesetround(mode); }
  ~Rounding() { fesetround(before_); }
  Rounding(const Rounding&) = delete;
  Rounding& operator=(const Rounding&) = delete;

 private:
  int before_;
};

}  // namespace ptx
