// How tensor cores add (arXiv 2511.10909, whose model is equal to the hardware's results except for zeros). A step
// takes an accumulator and 16 products; the exponent of a product is the sum of its factors' exponents, not normalised.
// A zero product has none, as seen on an H200 (the model gives it -126), a zero accumulator -126. With e the largest
// exponent of the terms, each is cut towards zero to a multiple of 2^(e - F); the cut terms are added exactly, and the
// sum is cut towards zero to float32. Hopper and Blackwell: F = 25. Ampere and Ada: F = 24, and the two halves of 8
// products one after the other. Here mma is Ampere's, the harsher one.
//
// PLUSGPT_TENSOR_CORE=ampere or hopper makes both instructions that one's; plain makes them add in float32, rounded to
// nearest, as if tensor cores were better than they are: for comparisons.
#include "emulation/tensor_core.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <type_traits>

#include "base/error.h"
#include "emulation/processor.h"
#include "emulation/scheduler.h"

namespace cpu {
namespace {

// Vectors as wide as the processor's registers (Wide), for columns that are a multiple of that; and the most vectors
// per row that stay in registers with 4 rows.
#if defined(__AVX512F__)
constexpr int WIDE = 16, MOST_VECTORS = 4;
#elif defined(__AVX__)
constexpr int WIDE = 8, MOST_VECTORS = 2;
#else
constexpr int WIDE = 4, MOST_VECTORS = 2;
#endif
constexpr int NARROW = WIDE < 8 ? WIDE : 8, HEIGHT = 4, DEPTH = 16, MOST_ROWS = 64, MOST_COLUMNS = 256,
              MOST_DEPTH = 128;
template <int LANES> struct Vectors {
  typedef float Float __attribute__((vector_size(4 * LANES), aligned(4)));
  typedef int32_t Int __attribute__((vector_size(4 * LANES), aligned(4)));
  typedef uint32_t Unsigned __attribute__((vector_size(4 * LANES), aligned(4)));
  typedef int16_t Short __attribute__((vector_size(2 * LANES), aligned(2)));
};

struct Rule {
  int digits, terms;  // F, and the products of a part of a step; no terms: plain
};

Rule rule_of(CoreOp op) {
  static const std::string asked = [] {
    const char* text = std::getenv("PLUSGPT_TENSOR_CORE");
    std::string name = text ? text : "";
    if (!name.empty() && name != "ampere" && name != "hopper" && name != "plain")
      user_error("environment: PLUSGPT_TENSOR_CORE = \"%s\" is unknown: ampere, hopper, plain, or nothing", text);
    return name;
  }();
  if (asked == "plain") return {0, 0};
  bool ampere = asked.empty() ? op == CoreOp::mma : asked == "ampere";
  return ampere ? Rule{24, 8} : Rule{25, 16};
}

// ---- the rule for one element, in double: 17 terms of at most 28 bits are added exactly

int exponent_of(float x) { return std::max(int(__builtin_bit_cast(uint32_t, x) >> 23 & 255), 1) - 127; }
double power_of_two(int n) { return __builtin_bit_cast(double, uint64_t(1023 + n) << 52); }

float cut_to_float(double x) {
  float f = float(x);
  bool further = std::fabs(double(f)) > std::fabs(x);
  return further && std::fabs(x) < 0x1p128 ? std::nextafter(f, 0.0f) : f;
}

// Out of line, so that nothing of it moves out of its caller's modes.
[[gnu::noinline]] CPU_NO_TSAN float add_in_double(float c, const float* a, const float* b, int b_stride, Rule rule) {
  double plain = c, sum = 0;
  int e = exponent_of(c);
  for (int k = 0; k < rule.terms; ++k) {
    float right = b[k * b_stride];
    plain += double(a[k]) * right;
    if (a[k] != 0 && right != 0) e = std::max(e, exponent_of(a[k]) + exponent_of(right));
  }
  if (!std::isfinite(plain)) return float(plain);
  double units = power_of_two(rule.digits - e);
  auto cut = [&](double term) CPU_NO_TSAN { return std::trunc(term * units); };
  for (int k = 0; k < rule.terms; ++k) sum += cut(double(a[k]) * b[k * b_stride]);
  return cut_to_float((sum + cut(c)) / units);
}
// Tensor cores keep the subnormal numbers that threads of the CPU layer take for 0 (pool.cpp).
CPU_NO_TSAN float add_one_by_one(float c, const float* a, const float* b, int b_stride, Rule rule) {
  FloatModes here(float_modes() & ~subnormals_are_zero);
  return add_in_double(c, a, b, b_stride, rule);
}

// ---- the rule for vectors of elements, where the largest exponent is far from float32's ends

constexpr int DOUBTFUL = 3000, LOWEST = 254 - 100, HIGHEST = 254 + 100;  // exponents + 254, as of sums of two fields
constexpr int ZERO = -1000;

// The exponent field of x. Beside a zero a product's is negative; beside what is not finite, or subnormal and so 0 in
// vectors, it exceeds HIGHEST.
CPU_NO_TSAN inline int16_t field_of(float x) {
  uint32_t bits = __builtin_bit_cast(uint32_t, x) << 1;
  int field = int(bits >> 24);
  return int16_t(bits == 0 ? ZERO : field == 255 || field == 0 ? DOUBTFUL : field);
}

struct Fields {
  int16_t a[MOST_ROWS][MOST_DEPTH], b[MOST_DEPTH][MOST_COLUMNS];
  bool tiny;  // some product that is not zero may have an exponent below LOWEST
};

CPU_NO_TSAN const Fields& fields_of(const CoreProduct& p) {
  static thread_local Fields f;
  auto split = [](const float* x, int n, int16_t* fields) CPU_NO_TSAN {  // returns the least field that is not a zero's
    int least = 255;
    for (int i = 0; i < n; ++i)
      fields[i] = field_of(x[i]), least = std::min(least, fields[i] == ZERO ? 255 : int(fields[i]));
    return least;
  };
  int least_a = 255, least_b = 255;
  for (int r = 0; r < p.rows; ++r) least_a = std::min(least_a, split(p.a + r * p.a_stride, p.depth, f.a[r]));
  for (int k = 0; k < p.depth; ++k) least_b = std::min(least_b, split(p.b + k * p.b_stride, p.columns, f.b[k]));
  f.tiny = least_a + least_b < LOWEST;
  return f;
}

// The largest exponent field of the TERMS products from k of HEIGHT rows and one vector of columns.
template <int LANES, int TERMS>
CPU_NO_TSAN inline void find_largest(typename Vectors<LANES>::Short (&largest)[HEIGHT], const Fields& fields, int row,
                                     int column, int k) {
  using Short = typename Vectors<LANES>::Short;
  for (Short& x : largest) x = Short{};
#pragma GCC unroll 16
  for (int i = 0; i < TERMS; ++i) {
    Short field = *reinterpret_cast<const Short*>(&fields.b[k + i][column]);
    for (int r = 0; r < HEIGHT; ++r) {
      Short both = field + fields.a[row + r][k + i];
      largest[r] = largest[r] > both ? largest[r] : both;
    }
  }
}

// HEIGHT rows and one vector of columns, all steps, TERMS products at a time. Returns false, and stores nothing, if
// vectors cannot do an element: careful does them one by one.
template <int LANES, int TERMS>
CPU_NO_TSAN bool add_by_rule(const CoreProduct& p, const Fields& fields, int row, int column, int digits,
                             bool careful) {
  using Float = typename Vectors<LANES>::Float;
  using Int = typename Vectors<LANES>::Int;
  using Unsigned = typename Vectors<LANES>::Unsigned;
  using Short = typename Vectors<LANES>::Short;
  auto ints = [](Float x) CPU_NO_TSAN { return __builtin_convertvector(x, Int); };  // towards zero
  auto outside = [](Int x, int limit)
                     CPU_NO_TSAN { return (Int)((Unsigned)x + unsigned(limit) > 2u * unsigned(limit)); };
  float* d = p.d + row * p.d_stride + column;

  Float sums[HEIGHT];
  for (int r = 0; r < HEIGHT; ++r) sums[r] = *reinterpret_cast<const Float*>(d + r * p.d_stride);
  Int any = {};
  for (int k = 0; k < p.depth; k += TERMS) {
    const float *a = p.a + row * p.a_stride + k, *b = p.b + k * p.b_stride + column;
    auto b_row = [&](int i) CPU_NO_TSAN { return *reinterpret_cast<const Float*>(b + i * p.b_stride); };
    Short largest[HEIGHT];
    find_largest<LANES, TERMS>(largest, fields, row, column, k);
    Int e[HEIGHT];
    Unsigned parts[HEIGHT][TERMS / 8] = {};  // 8 terms fit an int; unsigned, for sums that are not used
    Float scale[HEIGHT];
    for (int r = 0; r < HEIGHT; ++r) {
      Int field = (Int)sums[r] >> 23 & 255, products = __builtin_convertvector(largest[r], Int);
      field = 127 + (field == 255 ? Int{} + DOUBTFUL : field == 0 ? Int{} + 1 : field);
      e[r] = products > field ? products : field;
      scale[r] = (Float)((digits + 381 - e[r]) << 23);  // 2^(F - e)
      parts[r][0] = (Unsigned)ints(sums[r] * scale[r]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < TERMS; ++i)
      for (int r = 0; r < HEIGHT; ++r) parts[r][i / 8] += (Unsigned)ints(a[r * p.a_stride + i] * b_row(i) * scale[r]);
    for (int r = 0; r < HEIGHT; ++r) {
      constexpr int limit = (1 << 30) - 64;  // the whole fits too, and the float next to it
      // Where all products are 0 and so is the sum, e is low too, and nothing is in doubt.
      Int whole = (Int)parts[r][0], low = e[r] < LOWEST;
      Int doubtful = (e[r] > HIGHEST) | (low & (fields.tiny ? low : ((Int)sums[r] << 1) != 0));
      if constexpr (TERMS == 16) {
        doubtful |= ~low & (outside((Int)parts[r][0], limit) | outside((Int)parts[r][1], limit));
        whole = (Int)(parts[r][0] + parts[r][1]);
      }
      any |= doubtful;
      Float nearest = __builtin_convertvector(whole, Float);
      Int back = ints(nearest), further = whole > 0 ? back > whole : back < whole;
      Float result = (Float)((Int)nearest + further) * (Float)((e[r] - 127 - digits) << 23);
      result = low ? Float{} : result;
      for (int lane = 0; careful && lane < LANES; ++lane)
        if (doubtful[lane])
          result[lane] = add_one_by_one(sums[r][lane], a + r * p.a_stride, b + lane, p.b_stride, {digits, TERMS});
      sums[r] = result;
    }
  }
  int doubts = 0;
  for (int lane = 0; lane < LANES; ++lane) doubts |= any[lane];
  if (doubts && !careful) return false;
  for (int r = 0; r < HEIGHT; ++r) *reinterpret_cast<Float*>(d + r * p.d_stride) = sums[r];
  return true;
}

template <int LANES, int TERMS> CPU_NO_TSAN void multiply_by_rule(const CoreProduct& p, int digits) {
  const Fields& fields = fields_of(p);
  for (int row = 0; row < p.rows; row += HEIGHT)
    for (int column = 0; column < p.columns; column += LANES)
      if (!add_by_rule<LANES, TERMS>(p, fields, row, column, digits, false))
        add_by_rule<LANES, TERMS>(p, fields, row, column, digits, true);
}

// ---- float32, rounded to nearest: wgmma term by term, so that the result does not depend on how many products are
// done as one; mma adds the sum of its products.

template <int LANES> CPU_NO_TSAN void add_plainly(const CoreProduct& p, CoreOp op) {
  using Float = typename Vectors<LANES>::Float;
  int vectors = p.columns / LANES;
  for (int first = 0; first < vectors; first += MOST_VECTORS)
    for (int row = 0; row < p.rows; row += HEIGHT) {
      int width = std::min(MOST_VECTORS, vectors - first);
      auto at = [&](const float* x, int v) CPU_NO_TSAN { return (Float*)(x + (first + v) * LANES); };
      Float sum[HEIGHT][MOST_VECTORS] = {};
      for (int r = 0; op == CoreOp::wgmma && r < HEIGHT; ++r)
        for (int v = 0; v < width; ++v) sum[r][v] = *at(p.d + (row + r) * p.d_stride, v);
      for (int k = 0; k < p.depth; ++k)
        for (int r = 0; r < HEIGHT; ++r)
          for (int v = 0; v < width; ++v) sum[r][v] += p.a[(row + r) * p.a_stride + k] * *at(p.b + k * p.b_stride, v);
      for (int r = 0; r < HEIGHT; ++r)
        for (int v = 0; v < width; ++v) {
          Float* to = at(p.d + (row + r) * p.d_stride, v);
          *to = op == CoreOp::wgmma ? sum[r][v] : *to + sum[r][v];
        }
    }
}

template <int LANES> CPU_NO_TSAN void multiply(const CoreProduct& p, CoreOp op) {
  Rule rule = rule_of(op);
  if (!rule.terms) return add_plainly<LANES>(p, op);
  if (rule.terms == 8) multiply_by_rule<LANES, 8>(p, rule.digits);
  else multiply_by_rule<LANES, 16>(p, rule.digits);
}

}  // namespace

void multiply_on_core(const CoreProduct& p, CoreOp op) {
  if (p.columns % WIDE == 0) multiply<WIDE>(p, op);
  else multiply<NARROW>(p, op);
}

}  // namespace cpu
