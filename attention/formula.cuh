// The policies of kinds that are files (score.h): f by softmax, by its sum, or as it is. The gradient of a score is
// that of f, as for the kinds of policies.cuh, times f's slope. f is computed from a score where its position is known:
// in the forward pass by score(), before the row's maximum is taken, in the backward pass by grad(). The weight and the
// gradient of a masked score are 0, whatever f makes of it.
#pragma once
#include "attention/policies.cuh"
#define SCORE_CODE __device__ __forceinline__
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
  // 1 - 2 / (1 + e^2x), which loses digits near 0. There FullMaths takes the Pade approximant of degree 5, 3e-10 off at
  // |x| = 0.55.
  __device__ static float tanh(float x) {
    if constexpr (FAST) return fmaf(-2, fast_reciprocal(1 + fast_exp2(2 * LOG2_E * x)), 1.0f);
    float y = fabsf(x), x2 = x * x, far = 1 - 2 / (1 + expf(2 * y));
    float near = x * fmaf(x2, x2 + 105, 945) / fmaf(x2, fmaf(15, x2, 420), 945);
    return y < 0.55f ? near : x < 0 ? -far : far;
  }
};

// f at the places of one head.
template <class File, class Maths> struct Formula {
  using Functions = DeviceFunctions<Maths>;
  float head, heads, parameters[MOST_PARAMETERS];
  int most;  // keys that a row sees
  __device__ Formula(const KernelSettings& s, int head)
      : head(head + 1), heads(s.heads), most(s.window + s.sink_tokens) {
    for (int n = 0; n < MOST_PARAMETERS; n++) parameters[n] = s.parameters[n];
  }
  template <bool SLOPES> __device__ __forceinline__ auto f(float z, int i, int j) const {
    using Z = Score<Functions, SLOPES>;
    At<Z> at = {float(i + 1), float(j + 1), float(min(i + 1, most)), head, heads, {}};
    for (int n = 0; n < MOST_PARAMETERS; n++) at.parameter[n] = parameters[n];
    return File::f(Z(z, 1), at);
  }
  __device__ __forceinline__ float value(float z, int i, int j, float masked) const {
    float f_of_z = f<false>(z, i, j).value;
    return z == -INFINITY ? masked : f_of_z;
  }
};

// P = e^f / (e^sink + sum e^f)
template <class File, class Maths> struct SoftmaxOf : Softmax<Maths> {
  using Evaluation = SoftmaxOf;
  using Base = Softmax<Maths>;
  static constexpr bool OF_FILE = true, FROM_WEIGHT = false, HAS_SINK = false;
  static constexpr int HEAVY = 1;
  Formula<File, Maths> formula;
  __device__ SoftmaxOf(const KernelSettings& s, float sink, int head) : Base(s, sink, head), formula(s, head) {}
  __device__ __forceinline__ float score(float z, int i, int j) const { return formula.value(z, i, j, -INFINITY); }
  __device__ __forceinline__ void grad(float z, float dp, const float* row, float& p, float& dz, int i, int j) const {
    auto f = formula.template f<true>(z, i, j);
    bool seen = z > -INFINITY;
    // The choice also keeps a compiler from fusing f's last product with the subtraction of lse: f must be rounded as
    // in the forward pass.
    p = Base::weight(seen ? f.value : -INFINITY, row);
    dz = seen ? Base::grad(p, dp, row) * f.slope : 0;
  }
};

// P = f / sum f, and 0 everywhere if the sum underflows
template <class File, class Maths> struct SumOf : PolicyDefaults {
  using Evaluation = SumOf;
  static constexpr bool OF_FILE = true;
  static constexpr int HEAVY = 1;
  enum { SUM, SUMS };
  enum { S, SAVED };
  enum { INVERSE_S, DOT, ROW_VALUES };
  Formula<File, Maths> formula;
  __device__ SumOf(const KernelSettings& s, float, int head) : formula(s, head) {}
  __device__ __forceinline__ float score(float z, int i, int j) const { return formula.value(z, i, j, 0); }
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
  __device__ __forceinline__ void grad(float z, float dp, const float* row, float& p, float& dz, int i, int j) const {
    auto f = formula.template f<true>(z, i, j);
    bool seen = z > -INFINITY;
    p = seen ? f.value * row[INVERSE_S] : 0;
    dz = seen ? f.slope * row[INVERSE_S] * (dp - row[DOT]) : 0;  // in this order, as for lssa
  }
};

// P = f
template <class File, class Maths> struct NoneOf : PolicyDefaults {
  using Evaluation = NoneOf;
  static constexpr bool OF_FILE = true;
  static constexpr int HEAVY = 1;
  Formula<File, Maths> formula;
  __device__ NoneOf(const KernelSettings& s, float, int head) : formula(s, head) {}
  __device__ __forceinline__ float score(float z, int i, int j) const { return formula.value(z, i, j, 0); }
  __device__ void weigh(float f, const float*, float*, float* weight) const { weight[0] = f; }
  __device__ void finish(int, const float*, const float*, float* factor, float*) const { factor[0] = 1; }
  __device__ __forceinline__ void grad(float z, float dp, const float*, float& p, float& dz, int i, int j) const {
    auto f = formula.template f<true>(z, i, j);
    bool seen = z > -INFINITY;
    p = seen ? f.value : 0;
    dz = seen ? f.slope * dp : 0;
  }
};

template <class File, class Maths>
using PolicyOfFile =
    std::conditional_t<File::weights == RowWeights::softmax, SoftmaxOf<File, Maths>,
                       std::conditional_t<File::weights == RowWeights::sum, SumOf<File, Maths>, NoneOf<File, Maths>>>;
