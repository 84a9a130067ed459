// How tensor cores multiply and add bf16: mma, wgmma and cuBLASLt's products.
#pragma once
#include <cstdint>
#include <vector>

namespace ptx {

constexpr int CORE_DEPTH = 16;  // products of a step

// The right operand of a step, [CORE_DEPTH][columns], as integers.
class RightOperand {
 public:
  // value(k, column): float with a bf16's value
  template <class Value> RightOperand(int columns, Value value) : columns_(columns), values_(CORE_DEPTH * columns) {
    for (int k = 0; k < CORE_DEPTH; k++) {
      for (int column = 0; column < columns; column++) values_[k * columns + column] = value(k, column);
    }
    split();
  }
  // sums [columns] += left [CORE_DEPTH] times this operand, as the tensor cores of the target do it.
  void multiply_add(const float* left, float* sums) const;

 private:
  void split();
  void add_part(const float* left, float* sums, int begin, int end, int digits) const;
  void add_exactly(const float* left, float* sums) const;
  double plain_sum(const float* left, float sum, int column, int begin, int end) const;

  int columns_;
  std::vector<float> values_;
  std::vector<int32_t> significands_, exponents_;  // a value is significand 2^(exponent - 7)
  std::vector<char> not_finite_;                   // of a column
};

}  // namespace ptx
