// One step of a tensor core, in integers (arXiv 2511.10909, section on NVIDIA's fused dot product and addition). Terms
// are the accumulator and the products; a product's exponent is the sum of its factors' exponents. A zero accumulator's
// is -126; a zero product has none, as seen on an H200 (the model gives it -126 too). Each term is cut towards zero to
// a multiple of 2^(largest exponent - digits), and their exact sum to float32. From sm_90 on a step has all 16 products
// and 25 digits; before, two halves follow each other with 24. Where the plain sum is NaN or infinite, it is the
// result.
#include "dev/ptx/tensor_core.h"
#include <algorithm>
#include <bit>
#include <cmath>
#include "dev/ptx/floats.h"
#include "dev/ptx/module.h"
#include "dev/ptx/options.h"

namespace ptx {
namespace {

// A finite x = significand 2^(exponent - fraction): the significand with its sign, without the bits below `fraction`.
struct Integers {
  int32_t significand, exponent;
  Integers(float x, int fraction) {
    const int32_t bits = int32_t(bits_of(x)), field = bits >> 23 & 255;
    const int32_t magnitude = ((bits & 0x7fffff) | (field ? 0x800000 : 0)) >> (23 - fraction);
    exponent = std::max(field, 1) - 127;
    significand = bits < 0 ? -magnitude : magnitude;
  }
};

struct Factor : Integers {
  static constexpr int32_t NONE = -1000;  // beside any other factor's less than a sum's can be
  explicit Factor(float x) : Integers(x, 7) {
    if (!significand) exponent = NONE;
  }
};

int64_t cut(int64_t term, int32_t left_shift) {
  const int64_t magnitude = std::abs(term);
  const int64_t kept = left_shift < 0 ? magnitude >> std::min(-left_shift, 63) : magnitude << (left_shift & 63);
  return term < 0 ? -kept : kept;
}

// sum 2^exponent cut to float32
float assemble(int64_t sum, int32_t exponent) {
  uint64_t magnitude = uint64_t(std::abs(sum));
  const int32_t surplus = std::max(int32_t(std::bit_width(magnitude)) - 24, -149 - exponent);
  if (surplus > 0) magnitude >>= std::min(surplus, 63), exponent += surplus;
  const double unit = std::bit_cast<double>(uint64_t(exponent + 1023) << 52);
  return float((sum < 0 ? -1.0 : 1.0) * double(magnitude) * unit);
}

TensorCore core_now() {
  const TensorCore asked = options().tensor_core;
  if (asked != TensorCore::of_target) return asked;
  return target_architecture() >= 90 ? TensorCore::hopper : TensorCore::ampere;
}

}  // namespace

void RightOperand::split() {
  significands_.resize(values_.size()), exponents_.resize(values_.size()), not_finite_.resize(columns_);
  for (size_t i = 0; i < values_.size(); i++) {
    const Factor x(values_[i]);
    significands_[i] = x.significand, exponents_[i] = x.exponent;
    if (!std::isfinite(values_[i])) not_finite_[i % columns_] = true;
  }
}

double RightOperand::plain_sum(const float* left, float sum, int column, int begin, int end) const {
  double all = sum;
  for (int k = begin; k < end; k++) all += double(left[k]) * values_[k * columns_ + column];
  return all;
}

void RightOperand::add_part(const float* left, float* sums, int begin, int end, int digits) const {
  std::vector<int32_t> largest(columns_);
  std::vector<int64_t> total(columns_);
  for (int column = 0; column < columns_; column++) largest[column] = Integers(sums[column], 23).exponent;
  for (int k = begin; k < end; k++) {
    const int32_t exponent = Factor(left[k]).exponent, *right = &exponents_[k * columns_];
    for (int column = 0; column < columns_; column++) {
      largest[column] = std::max(largest[column], exponent + right[column]);
    }
  }
  for (int column = 0; column < columns_; column++) {
    const Integers sum(sums[column], 23);
    total[column] = cut(sum.significand, digits - 23 + sum.exponent - largest[column]);
  }
  for (int k = begin; k < end; k++) {
    const Factor one(left[k]);
    const int32_t *significands = &significands_[k * columns_], *exponents = &exponents_[k * columns_];
    for (int column = 0; column < columns_; column++) {
      const int32_t shift = digits - 14 + one.exponent + exponents[column] - largest[column];
      total[column] += cut(one.significand * significands[column], shift);
    }
  }
  const bool left_finite = std::all_of(left + begin, left + end, [](float x) { return std::isfinite(x); });
  for (int column = 0; column < columns_; column++) {
    float& sum = sums[column];
    const bool finite = left_finite && !not_finite_[column] && std::isfinite(sum);
    const double plain = finite ? 0 : plain_sum(left, sum, column, begin, end);
    sum = std::isnan(plain)   ? canonical_nan()
          : std::isinf(plain) ? float(plain)
                              : assemble(total[column], largest[column] - digits);
  }
}

void RightOperand::add_exactly(const float* left, float* sums) const {
  for (int column = 0; column < columns_; column++) {
    sums[column] = cut_off(plain_sum(left, sums[column], column, 0, CORE_DEPTH));
  }
}

void RightOperand::multiply_add(const float* left, float* sums) const {
  switch (core_now()) {
    case TensorCore::exact: return add_exactly(left, sums);
    case TensorCore::hopper: return add_part(left, sums, 0, CORE_DEPTH, 25);
    default: add_part(left, sums, 0, CORE_DEPTH / 2, 24), add_part(left, sums, CORE_DEPTH / 2, CORE_DEPTH, 24);
  }
}

}  // namespace ptx
