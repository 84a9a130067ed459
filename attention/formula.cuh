// The policies of formulas (score.h): f by softmax, by its sum, or as it is. The gradient of a score is that of f, as
// for the kinds with a policy of their own, times f's slope. f is computed from a score where its position is known:
// in the forward pass by score(), before the row's maximum is taken, in the backward pass by grad(). The weight and the
// gradient of a masked score are 0, whatever f makes of it.
#pragma once
#include "attention/policy.cuh"

#include "attention/kinds/softmax.cuh"
#define SCORE_CODE constexpr __device__ __forceinline__
#include "attention/score.h"

template <class Maths> struct DeviceFunctions {
  using Real = float;
  static constexpr bool FAST = std::is_same_v<Maths, FastMaths>;
  static constexpr float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;
  __device__ static float exp(float x) { return FAST ? fast_exp2(x * LOG2_E) : expf(x); }
  __device__ static float log(float x) { return FAST ? fast_log2(x) * LN_2 : logf(x); }
  __device__ static float divide(float x, float y) { return FAST ? x * fast_reciprocal(y) : x / y; }
  __device__ static float sqrt(float x) { return FAST ? fast_exp2(0.5f * fast_log2(x)) : sqrtf(x); }
  __device__ static float sigmoid(float x) { return Maths::sigmoid(x); }
  __device__ static float softplus(float x) {
    if constexpr (FAST) return Maths::softplus2(x * LOG2_E) * LN_2;
    else return Maths::softplus(x);
  }
  // 1 - 2 / (1 + e^2x), which loses digits near 0. There FullMaths subtracts from x its difference from the Pade
  // approximant of degree 7, which is 4e-10 off at |x| = 1. Both err by 1.6 times 2^-24 at most, if exp does by 2^-23.
  __device__ static float tanh(float x) {
    if constexpr (FAST) return fmaf(-2, fast_reciprocal(1 + fast_exp2(2 * LOG2_E * x)), 1.0f);
    float y = fabsf(x), x2 = x * x, far = 1 - 2 / (1 + expf(2 * y));
    float less = x2 * fmaf(x2, x2 + 189, 3465) / fmaf(x2, fmaf(x2, x2 + 210, 4725), 10395), near = fmaf(-x, less, x);
    return y < 1 ? near : x < 0 ? -far : far;
  }
};

// f of one head.
template <class File, class Maths> struct Formula : FormulaOf<File, DeviceFunctions<Maths>> {
  using Base = FormulaOf<File, DeviceFunctions<Maths>>;
  float most;  // keys that a row sees at most
  __device__ Formula(const KernelSettings& s, int h) : most(s.most_keys()) {
    this->head = h + 1, this->heads = s.heads;
    for (int n = 0; n < MOST_PARAMETERS; n++) this->numbers[n] = s.numbers[n];
    for (int l = 0; l < Base::LEARNED; l++)
      this->numbers[Base::FIXED + l] = learned_number(s, l, h, this->numbers[Base::FIXED + l]);
  }
  __device__ __forceinline__ float value(float z, float i, float j) const {
    return Base::value(z, i, j, fminf(i, most));
  }
  __device__ __forceinline__ auto with_slope(float z, float i, float j) const {
    return Base::with_slope(z, i, j, fminf(i, most));
  }
  __device__ __forceinline__ float slope_by_learned(int l, float z, float i, float j) const {
    return Base::slope_by_learned(l, z, i, j, fminf(i, most));
  }
};

// ---- what becomes of f in a row. MASKED: in place of f where the row does not see the key. weight(f, row) and
// gradient(slope, p, dp, row), of a number by which f has this slope.

// P = e^f / sum e^f
template <class Maths> struct SoftmaxRows : Softmax<Maths> {
  using Base = Softmax<Maths>;
  static constexpr bool FROM_WEIGHT = false, HAS_SINK = false;
  static constexpr float MASKED = -INFINITY;
  using Base::Base;
  __device__ float gradient(float slope, float p, float dp, const float* row) const {
    return Base::grad(p, dp, row) * slope;
  }
};

// P = f / sum f, and 0 everywhere if the sum underflows
struct SumRows : PolicyDefaults {
  static constexpr float MASKED = 0;
  enum { SUM, SUMS };
  enum { S, SAVED };
  enum { INVERSE_S, DOT, ROW_VALUES };
  __device__ SumRows(const KernelSettings&, float, int) {}
  __device__ void start_sweep(int, int, float* sums, bool) const { sums[SUM] = 0; }
  __device__ void weigh(float f, const float*, float* sums, float* weight) const {
    weight[0] = f;
    sums[SUM] += f;
  }
  __device__ void merge(int, float* sums, const float* other) const { sums[SUM] += other[SUM]; }
  __device__ void finish(int, const float*, const float* sums, float* factor, float* saved) const {
    factor[0] = inverse_or_0(sums[SUM]);
    saved[S] = sums[SUM];
  }
  __device__ void row_for_backward(int, const float* saved, const float* dot, float* row) const {
    row[INVERSE_S] = inverse_or_0(saved[S]);
    row[DOT] = dot[0];
  }
  __device__ float weight(float f, const float* row) const { return f * row[INVERSE_S]; }
  __device__ float gradient(float slope, float, float dp, const float* row) const {
    return slope * row[INVERSE_S] * (dp - row[DOT]);  // in this order, as for lssa
  }
};

// P = f
struct PlainRows : PolicyDefaults {
  static constexpr float MASKED = 0;
  __device__ PlainRows(const KernelSettings&, float, int) {}
  __device__ void weigh(float f, const float*, float*, float* weight) const { weight[0] = f; }
  __device__ void finish(int, const float*, const float*, float* factor, float*) const { factor[0] = 1; }
  __device__ float weight(float f, const float*) const { return f; }
  __device__ float gradient(float slope, float, float dp, const float*) const { return slope * dp; }
};

template <class File, class Maths, class Rows> struct ScoreOf : Rows {
  using Evaluation = ScoreOf;
  static constexpr bool IS_FORMULA = true;
  static constexpr int GRADIENT_REGISTERS = 1, LEARNED = Formula<File, Maths>::LEARNED;
  Formula<File, Maths> formula;
  __device__ ScoreOf(const KernelSettings& s, float sink, int head) : Rows(s, sink, head), formula(s, head) {}
  __device__ __forceinline__ float score(float z, float i, float j) const {
    float f = formula.value(z, i, j);
    return z == -INFINITY ? Rows::MASKED : f;
  }
  // The choice also keeps a compiler from fusing f's last product with the subtraction of lse: f must be rounded as in
  // the forward pass.
  __device__ __forceinline__ float weight_of(float f, float z, const float* row) const {
    return Rows::weight(z > -INFINITY ? f : Rows::MASKED, row);
  }
  __device__ __forceinline__ void grad(float z, float dp, const float* row, float& p, float& dz, float i,
                                       float j) const {
    auto f = formula.with_slope(z, i, j);
    p = weight_of(f.value, z, row);
    float gradient = Rows::gradient(f.slope, p, dp, row);
    dz = z > -INFINITY ? gradient : 0;
  }
  // sums [LEARNED] += the gradients of the learned numbers
  __device__ __forceinline__ void add_learned(float* sums, float z, float dp, const float* row, float i,
                                              float j) const {
    float p = weight_of(formula.with_slope(z, i, j).value, z, row);
#pragma unroll
    for (int l = 0; l < LEARNED; l++) {
      float gradient = Rows::gradient(formula.slope_by_learned(l, z, i, j), p, dp, row);
      sums[l] += z > -INFINITY ? gradient : 0;
    }
  }
};

template <class File, class Maths>
requires(File::is_formula) struct PolicyOf<File, Maths>
    : OnePolicy<ScoreOf<File, Maths,
                        std::conditional_t<File::weights == RowWeights::softmax, SoftmaxRows<Maths>,
                                           std::conditional_t<File::weights == RowWeights::sum, SumRows, PlainRows>>>> {
};
