// Bits of floating-point numbers, and roundings.
#pragma once
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <type_traits>

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

// A number that is not exact, rounded to odd: to that of its two neighbours whose last bit is 1. Rounded again, to at
// least two bits fewer, it becomes what the exact number would (Boldo and Melquiond, "Emulation of a FMA and correctly
// rounded sums: proved algorithms using rounding to odd", 2008). nearest: the exact number rounded to the nearest;
// error: the exact number minus that.
template <class F> F rounded_to_odd(F nearest, double error) {
  using Bits = std::conditional_t<sizeof(F) == 4, uint32_t, uint64_t>;
  const Bits bits = std::bit_cast<Bits>(nearest);
  if (!std::isfinite(nearest) || error == 0 || bits & 1) return nearest;
  return std::bit_cast<F>((error > 0) == std::signbit(nearest) ? bits - 1 : bits + 1);
}
inline double odd_sum(double a, double b) {  // the error of a sum: Knuth's TwoSum
  const double sum = a + b, of_b = sum - a;
  return rounded_to_odd(sum, (a - (sum - of_b)) + (b - of_b));
}
inline uint16_t bf16_of(double x) {
  const float nearest = float(x);
  return bf16_of(rounded_to_odd(nearest, x - double(nearest)));
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
