// Conversions (PTX ISA "cvt").
#include <algorithm>
#include <cfenv>
#include <cmath>
#include <limits>
#include "dev/ptx/decode.h"
#include "dev/ptx/floats.h"
#include "dev/ptx/machine.h"

namespace ptx {
namespace {

bool is_float(Type type) { return type == Type::bf16 || type == Type::f32 || type == Type::f64; }

double float_value(uint64_t bits, Type type) {
  switch (type) {
    case Type::bf16: return float_of_bf16(uint16_t(bits));
    case Type::f32: return float_of(uint32_t(bits));
    default: return std::bit_cast<double>(bits);
  }
}

// To integers: values out of range are clamped; NaN becomes 0, from or to 64 bits the highest bit.
uint64_t integer_of(double x, Type type, Type from) {
  const int width = 8 * size_of(type);
  if (std::isnan(x)) return width == 64 || from == Type::f64 ? uint64_t(1) << (width - 1) : 0;
  const double high = std::ldexp(1.0, is_signed(type) ? width - 1 : width), low = is_signed(type) ? -high : 0;
  if (x < low) x = low;
  if (x >= high) return is_signed(type) ? (uint64_t(1) << (width - 1)) - 1 : truncated(~uint64_t(0), type);
  return is_signed(type) ? uint64_t(int64_t(x)) : uint64_t(x);
}

// Modifiers, in `variant` of an instruction; ROUNDING masks an index of ROUNDINGS.
enum : int { ROUNDING = 15, TO_INTEGER = 16, SATURATE = 32, FLUSH = 64 };
constexpr int ROUNDINGS[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};

uint64_t float_bits(double x, Type type, int rounding) {
  if (type == Type::f64) return std::bit_cast<uint64_t>(x);
  if (type == Type::bf16) return bf16_of(x);
  float narrow;
  {
    const Rounding during(rounding);
    volatile double exact = x;
    volatile float rounded = float(exact);
    narrow = rounded;
  }
  return bits_of(std::isnan(x) ? canonical_nan() : narrow);
}

double double_of_integer(uint64_t bits, Type from, int rounding) {
  const Rounding during(rounding);
  volatile uint64_t value = bits;
  volatile double result = is_signed(from) ? double(int64_t(value)) : double(value);
  return result;
}

// Rounded to odd (floats.h), so that the next rounding is the only one: bits that float64 would lose leave a 1 above.
double odd_of_integer(uint64_t bits, Type from) {
  constexpr int DIGITS = std::numeric_limits<double>::digits;
  constexpr uint64_t LOST = (uint64_t(1) << (64 - DIGITS)) - 1;
  const bool negative = is_signed(from) && int64_t(bits) < 0;
  uint64_t size = negative ? 0 - bits : bits;
  if (size >> DIGITS && size & LOST) size = (size & ~LOST) | (LOST + 1);
  return negative ? -double(size) : double(size);
}

uint64_t converted(uint64_t bits, Type to, Type from, int with) {
  const int rounding = ROUNDINGS[with & ROUNDING];
  double x;
  if (is_float(from)) {
    x = float_value(bits, from);
    if (with & FLUSH && from == Type::f32) x = flushed(float(x));
  } else {
    bits = truncated(bits, from);
    if (!is_float(to)) return truncated(bits, to);
    x = to == Type::f64 ? double_of_integer(bits, from, rounding) : odd_of_integer(bits, from);
  }
  if (with & TO_INTEGER) {
    const Rounding during(rounding);
    volatile double exact = x;
    x = std::nearbyint(exact);
  }
  if (!is_float(to)) return truncated(integer_of(x, to, from), to);
  if (with & SATURATE) x = x > 0 ? std::min(x, 1.0) : 0.0;  // NaN and -0 become +0
  const uint64_t result = float_bits(x, to, rounding);
  return with & FLUSH && to == Type::f32 ? bits_of(flushed(float_of(uint32_t(result)))) : result;
}

void convert(Context& context, const Instruction& instruction, Mask mask) {
  for_lanes(mask, [&](int lane) {
    const uint64_t bits = value(context, instruction.operand(1), lane);
    put_lane(context, instruction.operand(0), lane,
             converted(bits, instruction.type, instruction.from, instruction.variant));
  });
}

// The most common conversions, without a switch for each lane.
int64_t widen_signed(int32_t x) { return x; }
float saturate(float x) { return x > 0 ? std::min(x, 1.0f) : 0.0f; }

// Two numbers into one register, the first into its upper half.
uint32_t pair_of(float high, float low) { return uint32_t(bf16_of(high)) << 16 | bf16_of(low); }

}  // namespace

bool decode_convert(Opcode opcode, Instruction& instruction) {
  if (opcode.base() != "cvt") return false;
  if (opcode.text() == "cvt.rn.bf16x2.f32") {
    instruction.execute = each<pair_of>;
    return true;
  }
  if (!opcode.take_type(instruction.from) || !opcode.take_type(instruction.type)) return false;
  static constexpr const char* NAMES[] = {"rn", "rz", "rm", "rp"};
  for (int i = 0; i < 4; i++) {
    if (opcode.take(NAMES[i])) instruction.variant |= i;
    if (opcode.take(std::string(NAMES[i]) + "i")) instruction.variant |= i | TO_INTEGER;
  }
  if (instruction.type == Type::bf16 && instruction.variant)
    return false;  // float_bits() rounds it to the nearest alone
  if (opcode.take("sat")) {
    if (!is_float(instruction.type)) return false;
    instruction.variant |= SATURATE;
  }
  if (opcode.take("ftz")) {
    if (instruction.from != Type::f32 && instruction.type != Type::f32) return false;
    instruction.variant |= FLUSH;
  }
  instruction.execute = convert;
  const bool narrow_source = !instruction.operand(1).wide;  // a wider register may hold a narrow source
  if (opcode.text() == "cvt.s64.s32" && narrow_source) instruction.execute = each<widen_signed>;
  if (opcode.text() == "cvt.sat.f32.f32") instruction.execute = each<saturate>;
  return opcode.done();
}

}  // namespace ptx
