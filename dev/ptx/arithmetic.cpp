// Instructions that compute a lane's result from its own operands: PTX ISA "Integer Arithmetic", "Floating
// Point", "Half Precision Floating Point", "Comparison and Selection", "Logic and Shift", mov and cvta.
#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <map>
#include <type_traits>
#include "dev/ptx/decode.h"
#include "dev/ptx/floats.h"
#include "dev/ptx/machine.h"

namespace ptx {
namespace {

using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using s16 = int16_t;
using s32 = int32_t;
using s64 = int64_t;
using u128 = unsigned __int128;
using s128 = __int128;

// ---- integers

template <class T> T divided(T a, T b) {  // division by zero has no specified result
  if (b == 0) return T(-1);
  if (std::is_signed_v<T> && b == T(-1)) return T(0) - a;
  return a / b;
}
template <class T> T remainder_of(T a, T b) {
  if (b == 0) return a;
  if (std::is_signed_v<T> && b == T(-1)) return 0;
  return a % b;
}
// Shifts by the width or more give 0, or copies of the sign.
template <class T> T left(T a, u32 n) { return n < 8 * sizeof(T) ? T(a << n) : T(0); }
template <class T> T right(T a, u32 n) {
  if (n >= 8 * sizeof(T)) return std::is_signed_v<T> && a < 0 ? T(-1) : T(0);
  return T(a >> n);
}

u32 permuted(u32 a, u32 b, u32 selection) {  // prmt
  const u64 bytes = u64(b) << 32 | a;
  u32 result = 0;
  for (int i = 0; i < 4; i++) {
    const u32 nibble = selection >> 4 * i & 15;
    u32 byte = u32(bytes >> 8 * (nibble & 7)) & 0xff;
    if (nibble & 8) byte = byte & 0x80 ? 0xff : 0;
    result |= byte << 8 * i;
  }
  return result;
}

template <class T> T inserted(T a, T b, u32 position, u32 length) {  // bfi
  position &= 0xff, length &= 0xff;
  for (u32 i = 0; i < length && position + i < 8 * sizeof(T); i++) {
    const u32 bit = position + i;
    b = (b & ~(T(1) << bit)) | (a >> i & 1) << bit;
  }
  return b;
}

u32 reversed(u32 a) {
  u32 result = 0;
  for (int i = 0; i < 32; i++) result |= (a >> i & 1) << (31 - i);
  return result;
}

u32 logic(u32 a, u32 b, u32 c, u32 table) {  // lop3
  u32 result = 0;
  for (int i = 0; i < 8; i++) {
    if (table >> i & 1) result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  }
  return result;
}

u32 funnel_left(u32 low, u32 high, u32 n) { return u32((u64(high) << 32 | low) << n >> 32); }
u32 funnel_right(u32 low, u32 high, u32 n) { return u32((u64(high) << 32 | low) >> n); }

// ---- floating point

// max and min ignore one NaN; two give the canonical NaN. -0 is below +0.
float greater(float a, float b) {
  if (std::isnan(a)) return std::isnan(b) ? canonical_nan() : b;
  if (std::isnan(b)) return a;
  if (a == 0 && b == 0) return std::signbit(a) ? b : a;
  return a > b ? a : b;
}
float lesser(float a, float b) {
  if (std::isnan(a)) return std::isnan(b) ? canonical_nan() : b;
  if (std::isnan(b)) return a;
  if (a == 0 && b == 0) return std::signbit(a) ? a : b;
  return a < b ? a : b;
}
float fma_rounded(float a, float b, float c, int rounding) {
  const Rounding during(rounding);
  volatile float x = a, y = b, z = c;
  volatile float result = std::fma(x, y, z);
  return result;
}
float with_sign(float a, float of) { return float_of((bits_of(a) & 0x7fffffff) | (bits_of(of) & 0x80000000)); }

// Operations on integers of one width: U is the unsigned type, S the signed one.
template <class U, class S> void add_integers(std::map<std::string, Handler>& all, const std::string& bits) {
  const std::string s = ".s" + bits, u = ".u" + bits, untyped = ".b" + bits;
  all["add" + s] = all["add" + u] = each<[](U a, U b) { return a + b; }>;
  all["sub" + s] = all["sub" + u] = each<[](U a, U b) { return a - b; }>;
  all["mul.lo" + s] = all["mul.lo" + u] = each<[](U a, U b) { return a * b; }>;
  all["mad.lo" + s] = all["mad.lo" + u] = each<[](U a, U b, U c) { return a * b + c; }>;
  all["neg" + s] = each<[](U a) { return 0 - a; }>;
  all["div" + s] = each<[](S a, S b) { return divided(a, b); }>;
  all["div" + u] = each<[](U a, U b) { return divided(a, b); }>;
  all["rem" + s] = each<[](S a, S b) { return remainder_of(a, b); }>;
  all["rem" + u] = each<[](U a, U b) { return remainder_of(a, b); }>;
  all["min" + s] = each<[](S a, S b) { return std::min(a, b); }>;
  all["min" + u] = each<[](U a, U b) { return std::min(a, b); }>;
  all["max" + s] = each<[](S a, S b) { return std::max(a, b); }>;
  all["max" + u] = each<[](U a, U b) { return std::max(a, b); }>;
  all["and" + untyped] = each<[](U a, U b) { return a & b; }>;
  all["or" + untyped] = each<[](U a, U b) { return a | b; }>;
  all["xor" + untyped] = each<[](U a, U b) { return a ^ b; }>;
  all["not" + untyped] = each<[](U a) { return ~a; }>;
  all["shl" + untyped] = each<[](U a, u32 n) { return left(a, n); }>;
  all["shr" + s] = each<[](S a, u32 n) { return right(a, n); }>;
  all["shr" + u] = all["shr" + untyped] = each<[](U a, u32 n) { return right(a, n); }>;
  all["bfi" + untyped] = each<[](U a, U b, u32 position, u32 length) { return inserted(a, b, position, length); }>;
  all["popc" + untyped] = each<[](U a) { return u32(std::popcount(a)); }>;
  all["clz" + untyped] = each<[](U a) { return u32(std::countl_zero(a)); }>;
}

const std::map<std::string, Handler>& operations() {
  static const std::map<std::string, Handler> table = [] {
    std::map<std::string, Handler> all = {
        {"mul.wide.s32", each<[](s32 a, s32 b) { return s64(a) * b; }>},
        {"mul.wide.u32", each<[](u32 a, u32 b) { return u64(a) * b; }>},
        {"mul.wide.s16", each<[](u32 a, u32 b) { return s32(s16(a)) * s16(b); }>},
        {"mul.wide.u16", each<[](u32 a, u32 b) { return u32(u16(a)) * u16(b); }>},
        {"mul.hi.s32", each<[](s32 a, s32 b) { return s32(s64(a) * b >> 32); }>},
        {"mul.hi.u32", each<[](u32 a, u32 b) { return u32(u64(a) * b >> 32); }>},
        {"mul.hi.s64", each<[](s64 a, s64 b) { return s64(s128(a) * b >> 64); }>},
        {"mul.hi.u64", each<[](u64 a, u64 b) { return u64(u128(a) * b >> 64); }>},
        {"mad.wide.s32", each<[](s32 a, s32 b, u64 c) { return u64(s64(a) * b) + c; }>},
        {"mad.wide.u32", each<[](u32 a, u32 b, u64 c) { return u64(a) * b + c; }>},
        {"abs.s32", each<[](s32 a) { return a < 0 ? u32(0) - u32(a) : u32(a); }>},
        {"not.pred", each<[](u32 a) { return a ^ 1; }>},
        {"shl.b16", each<[](u32 a, u32 n) { return u32(left(u16(a), n)); }>},
        {"shr.u16", each<[](u32 a, u32 n) { return u32(right(u16(a), n)); }>},
        {"shr.s16", each<[](u32 a, u32 n) { return u32(u16(right(s16(a), n))); }>},
        {"shf.l.wrap.b32", each<[](u32 a, u32 b, u32 n) { return funnel_left(a, b, n & 31); }>},
        {"shf.r.wrap.b32", each<[](u32 a, u32 b, u32 n) { return funnel_right(a, b, n & 31); }>},
        {"shf.l.clamp.b32", each<[](u32 a, u32 b, u32 n) { return n < 32 ? funnel_left(a, b, n) : a; }>},
        {"shf.r.clamp.b32", each<[](u32 a, u32 b, u32 n) { return n < 32 ? funnel_right(a, b, n) : b; }>},
        {"prmt.b32", each<[](u32 a, u32 b, u32 selection) { return permuted(a, b, selection); }>},
        {"lop3.b32", each<[](u32 a, u32 b, u32 c, u32 table) { return logic(a, b, c, table); }>},
        {"bfind.shiftamt.u32", each<[](u32 a) { return a ? u32(std::countl_zero(a)) : ~0u; }>},
        {"brev.b32", each<[](u32 a) { return reversed(a); }>},

        {"add.f32", each<[](float a, float b) { return a + b; }>},
        {"sub.f32", each<[](float a, float b) { return a - b; }>},
        {"mul.f32", each<[](float a, float b) { return a * b; }>},
        {"div.f32", each<[](float a, float b) { return a / b; }>},
        {"div.full.f32", each<[](float a, float b) { return a / b; }>},
        {"fma.f32", each<[](float a, float b, float c) { return std::fma(a, b, c); }>},
        {"fma.rm.f32", each<[](float a, float b, float c) { return fma_rounded(a, b, c, FE_DOWNWARD); }>},
        {"fma.rz.f32", each<[](float a, float b, float c) { return fma_rounded(a, b, c, FE_TOWARDZERO); }>},
        {"max.f32", each<[](float a, float b) { return greater(a, b); }>},
        {"min.f32", each<[](float a, float b) { return lesser(a, b); }>},
        {"neg.f32", each<[](u32 a) { return a ^ 0x80000000; }>},
        {"abs.f32", each<[](u32 a) { return a & 0x7fffffff; }>},
        {"copysign.f32", each<[](float a, float b) { return with_sign(b, a); }>},
        {"rcp.f32", each<[](float a) { return 1 / a; }>},
        {"sqrt.f32", each<[](float a) { return std::sqrt(a); }>},
        // These are computed as exactly as possible; the PTX ISA bounds the error of the hardware's approximations.
        {"rcp.approx.ftz.f32", each<[](float a) { return flushed(1 / flushed(a)); }>},
        {"rsqrt.approx.f32", each<[](float a) { return float(1 / std::sqrt(double(a))); }>},
        {"ex2.approx.f32", each<[](float a) { return std::exp2(a); }>},
        {"ex2.approx.ftz.f32", each<[](float a) { return flushed(std::exp2(flushed(a))); }>},
        {"lg2.approx.f32", each<[](float a) { return std::log2(a); }>},
        {"lg2.approx.ftz.f32", each<[](float a) { return std::log2(flushed(a)); }>},
        {"add.f64", each<[](double a, double b) { return a + b; }>},
        {"sub.f64", each<[](double a, double b) { return a - b; }>},
        {"mul.f64", each<[](double a, double b) { return a * b; }>},
        {"div.f64", each<[](double a, double b) { return a / b; }>},
        {"fma.f64", each<[](double a, double b, double c) { return std::fma(a, b, c); }>},
        {"sqrt.f64", each<[](double a) { return std::sqrt(a); }>},
        {"neg.f64", each<[](double a) { return -a; }>},
        {"abs.f64", each<[](double a) { return std::fabs(a); }>},

        {"cvta.shared.u64", each<[](u64 a) { return a + SHARED_WINDOW; }>},
        {"cvta.to.shared.u64", each<[](u64 a) { return a - SHARED_WINDOW; }>},
        {"cvta.local.u64", each<[](u64 a) { return a + LOCAL_WINDOW; }>},
        {"cvta.to.local.u64", each<[](u64 a) { return a - LOCAL_WINDOW; }>},
    };
    // these round to the nearest in any case
    for (const char* base : {"add", "sub", "mul", "div", "fma", "rcp", "sqrt"}) {
      for (const char* type : {".f32", ".f64"}) {
        if (auto found = all.find(std::string(base) + type); found != all.end()) {
          all[std::string(base) + ".rn" + type] = found->second;
        }
      }
    }
    for (const char* type : {".f32", ".f64"}) {  // these must name a rounding
      for (const char* base : {"div", "fma", "rcp", "sqrt"}) all.erase(std::string(base) + type);
    }
    add_integers<u32, s32>(all, "32");
    add_integers<u64, s64>(all, "64");
    // operations whose bits are the same for several types
    auto add = [&](const char* base, std::initializer_list<const char*> types, Handler handler) {
      for (const char* type : types) all[std::string(base) + "." + type] = handler;
    };
    add("add", {"s16", "u16"}, each<[](u32 a, u32 b) { return u32(u16(a + b)); }>);
    add("sub", {"s16", "u16"}, each<[](u32 a, u32 b) { return u32(u16(a - b)); }>);
    add("mul.lo", {"s16", "u16"}, each<[](u32 a, u32 b) { return u32(u16(a * b)); }>);
    add("and", {"b16", "pred"}, each<[](u32 a, u32 b) { return a & b; }>);
    add("or", {"b16", "pred"}, each<[](u32 a, u32 b) { return a | b; }>);
    add("xor", {"b16", "pred"}, each<[](u32 a, u32 b) { return a ^ b; }>);
    add("not", {"b16"}, each<[](u32 a) { return ~a; }>);
    // global addresses and generic ones are the same
    add("cvta", {"global.u64", "to.global.u64", "const.u64"}, each<[](u64 a) { return a; }>);
    return all;
  }();
  return table;
}

// ---- moves, selections and comparisons

void generic_address_of_parameter(Context& context, const Instruction& instruction, Mask mask) {
  u64 results[LANES];
  const u64* offsets = values<u64>(context, instruction.operand(1));
  for (int lane = 0; lane < LANES; lane++) {
    results[lane] = offsets[lane] + reinterpret_cast<u64>(context.block.parameters);
  }
  put(context, instruction.operand(0), results, mask);
}

template <class T> void move(Context& context, const Instruction& instruction, Mask mask) {
  put(context, instruction.operand(0), values<T>(context, instruction.operand(1)), mask);
}

// mov of a vector: packs {low, high} into one register, or unpacks one. `amount` is the bits of an element.
void pack(Context& context, const Instruction& instruction, Mask mask) {
  const int bits = instruction.amount;
  const u64 low = (u64(1) << bits) - 1;
  for_lanes(mask, [&](int lane) {
    u64 all = 0;
    for (int n = 0; n < instruction.count(1); n++) {
      all |= (value(context, instruction.operand(1, n), lane) & low) << n * bits;
    }
    put_lane(context, instruction.operand(0), lane, all);
  });
}
void unpack(Context& context, const Instruction& instruction, Mask mask) {
  const int bits = instruction.amount;
  const u64 low = (u64(1) << bits) - 1;
  for_lanes(mask, [&](int lane) {
    const u64 all = value(context, instruction.operand(1), lane);
    for (int n = 0; n < instruction.count(0); n++) {
      put_lane(context, instruction.operand(0, n), lane, all >> n * bits & low);
    }
  });
}

bool decode_mov(Opcode opcode, Instruction& instruction) {
  if (!opcode.take_type(instruction.type) || !opcode.done()) return false;
  const int elements = std::max(instruction.count(0), instruction.count(1));
  instruction.amount = 8 * size_of(instruction.type) / elements;
  if (elements == 1) {
    instruction.execute = size_of(instruction.type) == 8 ? move<u64> : move<u32>;
  } else {
    instruction.execute = instruction.count(0) == 1 ? pack : unpack;
  }
  return true;
}

template <class T> T selected(T a, T b, u32 choice) { return choice & 1 ? a : b; }

// Comparisons by name; those of the second half are true if an operand is NaN.
constexpr const char* COMPARISONS[] = {"eq",  "ne",  "lt",  "le",  "gt",  "ge",  "num",
                                       "equ", "neu", "ltu", "leu", "gtu", "geu", "nan"};
constexpr int ORDERED = 7;
enum Combine { nothing, conjunction, disjunction, exclusive };

template <class T> bool compare(int comparison, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) || std::isnan(b)) return comparison >= ORDERED;
  }
  switch (comparison % ORDERED) {
    case 0: return a == b;
    case 1: return a != b;
    case 2: return a < b;
    case 3: return a <= b;
    case 4: return a > b;
    case 5: return a >= b;
    default: return comparison < ORDERED;
  }
}

// `variant`: comparison; `amount`: how it is combined with a predicate. 16 bits are in registers of 32.
template <class T> void set_predicate(Context& context, const Instruction& instruction, Mask mask) {
  using In = std::conditional_t<sizeof(T) == 2, u32, T>;
  const In *a = values<In>(context, instruction.operand(1)), *b = values<In>(context, instruction.operand(2));
  const u32* with = instruction.amount ? values<u32>(context, instruction.operand(3)) : nullptr;
  u32 results[2][LANES];
  for (int lane = 0; lane < LANES; lane++) {
    const bool holds = compare<T>(instruction.variant, T(a[lane]), T(b[lane]));
    const bool other = with && bool(with[lane] & 1) != instruction.operand(3).negated;
    for (int negated = 0; negated < 2; negated++) {  // the second destination, if any, is the opposite
      const bool one = holds != bool(negated);
      switch (instruction.amount) {
        case conjunction: results[negated][lane] = one && other; break;
        case disjunction: results[negated][lane] = one || other; break;
        case exclusive: results[negated][lane] = one != other; break;
        default: results[negated][lane] = one;
      }
    }
  }
  for (int n = 0; n < instruction.count(0); n++) put(context, instruction.operand(0, n), results[n], mask);
}

bool decode_setp(Opcode opcode, Instruction& instruction) {
  if (!opcode.take_type(instruction.type)) return false;
  instruction.amount = opcode.take("and")   ? conjunction
                       : opcode.take("or")  ? disjunction
                       : opcode.take("xor") ? exclusive
                                            : nothing;
  std::string comparison;
  if (!opcode.take_last(comparison) || !opcode.done()) return false;
  if (instruction.amount) instruction.negatable = 3;
  const auto found = std::find(std::begin(COMPARISONS), std::end(COMPARISONS), comparison);
  if (found == std::end(COMPARISONS)) return false;
  instruction.variant = int(found - COMPARISONS);
  static const std::map<Type, Handler> handlers = {
      {Type::s16, set_predicate<s16>},   {Type::u16, set_predicate<u16>},   {Type::b16, set_predicate<u16>},
      {Type::s32, set_predicate<s32>},   {Type::u32, set_predicate<u32>},   {Type::b32, set_predicate<u32>},
      {Type::s64, set_predicate<s64>},   {Type::u64, set_predicate<u64>},   {Type::b64, set_predicate<u64>},
      {Type::f32, set_predicate<float>}, {Type::f64, set_predicate<double>}};
  const auto handler = handlers.find(instruction.type);
  if (handler == handlers.end()) return false;
  instruction.execute = handler->second;
  return true;
}

// ---- bf16, alone or in pairs: in float64, whose sums are rounded to odd, then rounded once

void half_operation(Context& context, const Instruction& instruction, Mask mask) {
  const u32* operands[3] = {};
  for (int n = 1; n < int(instruction.groups.size()); n++) {
    operands[n - 1] = values<u32>(context, instruction.operand(n));
  }
  u32 results[LANES];
  for (int lane = 0; lane < LANES; lane++) {
    results[lane] = 0;
    for (int half = 0; half < instruction.amount; half++) {
      double x[3] = {};
      for (int n = 0; n < 3 && operands[n]; n++) x[n] = float_of_bf16(uint16_t(operands[n][lane] >> 16 * half));
      double result = 0;
      switch (instruction.variant) {
        case 'a': result = odd_sum(x[0], x[1]); break;
        case 's': result = odd_sum(x[0], -x[1]); break;
        case 'm': result = x[0] * x[1]; break;
        case 'f': result = odd_sum(x[0] * x[1], x[2]); break;
      }
      results[lane] |= u32(bf16_of(result)) << 16 * half;
    }
  }
  put(context, instruction.operand(0), results, mask);
}

bool decode_half(Opcode opcode, Instruction& instruction) {
  const std::string& base = opcode.base();
  if (base != "add" && base != "sub" && base != "mul" && base != "fma") return false;
  instruction.variant = base[0];
  opcode.take("rn");
  instruction.amount = opcode.take("bf16x2") ? 2 : opcode.take("bf16") ? 1 : 0;
  instruction.execute = half_operation;
  return instruction.amount && opcode.done();
}

}  // namespace

bool decode_arithmetic(Opcode opcode, Instruction& instruction) {
  if (auto found = operations().find(opcode.text()); found != operations().end()) {
    instruction.execute = found->second;
    return true;
  }
  if (opcode.text() == "cvta.param.u64") {
    instruction.execute = generic_address_of_parameter;
    return true;
  }
  if (opcode.base() == "mov") return decode_mov(opcode, instruction);
  if (opcode.base() == "setp") return decode_setp(opcode, instruction);
  if (opcode.base() == "selp") {
    instruction.selects = true;
    if (!opcode.take_type(instruction.type)) return false;
    instruction.execute = size_of(instruction.type) == 8 ? each<selected<u64>> : each<selected<u32>>;
    return opcode.done();
  }
  return decode_half(opcode, instruction);
}

}  // namespace ptx
