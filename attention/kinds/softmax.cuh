// Softmax (arXiv 1706.03762): P = e^z / (e^sink + sum e^z), where without a sink e^sink is 0.
#pragma once
#include "attention/kind.h"

KIND(softmax) {
  static constexpr RowWeights weights = RowWeights::softmax;
  static constexpr bool has_sink = true;
};

#if POLICIES
// One sweep with a running maximum; saved: lse, the logarithm of the denominator.
template <class Maths> struct Softmax : PolicyDefaults {
  using Evaluation = Softmax;
  static constexpr bool RESCALES = true, HAS_SINK = true, FROM_WEIGHT = true;
  enum { MAX, SUM, SUMS };
  enum { LSE, SAVED };
  enum { ROW_LSE, DOT, ROW_VALUES };  // lse as exp_scaled() takes it
  float sink;
  __device__ Softmax(const KernelSettings&, float sink, int) : sink(sink) {}
  __device__ void start_sweep(int, int, float* sums, bool first) const {
    sums[MAX] = sink;
    sums[SUM] = first && sink > -INFINITY ? 1 : 0;
  }
  __device__ float rescale(float* sums, float top) const {
    float raised = max(sums[MAX], top), factor = Maths::exp(sums[MAX], raised);
    sums[MAX] = raised;
    sums[SUM] *= factor;
    return factor;
  }
  __device__ void weigh(float z, const float*, float* sums, float* weight) const {
    weight[0] = Maths::exp(z, sums[MAX]);
    sums[SUM] += weight[0];
  }
  __device__ void merge(int, float* sums, const float* other) const { sums[SUM] += other[SUM]; }
  __device__ void finish(int, const float*, const float* sums, float* factor, float* saved) const {
    factor[0] = 1 / sums[SUM];
    saved[LSE] = sums[MAX] + logf(sums[SUM]);
  }
  __device__ void row_for_backward(int, const float* saved, const float* dot, float* row) const {
    row[ROW_LSE] = saved[LSE] * Maths::EXP_SCALE;
    row[DOT] = dot[0];
  }
  __device__ float weight(float z, const float* row) const { return Maths::exp_scaled(z, row[ROW_LSE]); }
  __device__ float grad(float p, float dp, const float* row) const { return p * (dp - row[DOT]); }
  // a row's share of the gradient of a learned sink; rows [ROW_VALUES][count]
  __device__ static float sink_grad(float sink, const float* rows, size_t count) {
    return -Maths::exp_scaled(sink, rows[ROW_LSE * count]) * rows[DOT * count];
  }
};
template <class Maths> struct PolicyOf<kind_softmax, Maths> : OnePolicy<Softmax<Maths>> {};
#endif
