// The kinds of attention: one struct each, from scores z_ij = q_i . k_j to weights P_ij and back. Kernels know nothing else of
// them. The equations are in README.md. A row i = 1..T sees the keys j <= i, n = i of them; masked scores arrive as -inf and must
// come out as weight 0, gradient 0. Several threads share a row in the forward, each with a STATE of its own over its keys.
//   PASSES  sweeps over the keys in the forward: 1, or 2 where the weights need a statistic of the whole row (look, turn)
//   VALUES  weighted sums of the values: 1 (the output), or 2 (what only the backward needs besides, kept in float32)
//   RAISES  weights are relative to the largest score so far: raise() says by what the sums made before are multiplied
//   SAVED   floats per row that the forward keeps; ROWS: floats per row that the backward's kernels read
#pragma once
#include "attention/maths.cuh"

// What a policy may know, uniform over a launch.
struct PolicySettings {
  float power, offset, log_context;
  int offset_free_rows;
  float sink;         // logit of the sink where none is learned: 0, or -inf for no sink
};

// What most kinds have no use for.
struct PolicyDefaults {
  static constexpr int PASSES = 1, VALUES = 1;
  static constexpr bool RAISES = false, HAS_SINK = false;
  __device__ void look(float, float*) const {}
  __device__ void turn(int, float*) const {}
  __device__ float raise(float*, float) const { return 1; }
};

// P = e^z / (e^sink + sum e^z), in one sweep with a running maximum; saved: lse, the logarithm of the denominator.
struct Softmax : PolicyDefaults {
  using Evaluation = Softmax;  // the struct for a forward that no backward follows
  static constexpr bool RAISES = true, HAS_SINK = true;
  enum { MAX, SUM, STATE };
  enum { LSE, SAVED };
  enum { ROW_LSE, DOT, ROWS };
  float sink;
  __device__ Softmax(const PolicySettings&, float sink) : sink(sink) {}
  __device__ void start(float* state, bool first) const {
    state[MAX] = sink;
    state[SUM] = first && sink > -INFINITY ? 1 : 0;
  }
  __device__ float raise(float* state, float top) const {
    float raised = max(state[MAX], top), factor = exp_fast(state[MAX] - raised);
    state[MAX] = raised;
    state[SUM] *= factor;
    return factor;
  }
  __device__ void weigh(float z, float* state, float* weight) const {
    weight[0] = exp_fast(z - state[MAX]);
    state[SUM] += weight[0];
  }
  __device__ void merge(int, float* state, const float* other) const { state[SUM] += other[SUM]; }
  __device__ void finish(int, const float* state, float* factor, float* saved) const {
    factor[0] = 1 / state[SUM];
    saved[LSE] = state[MAX] + logf(state[SUM]);
  }
  __device__ void backward_row(int, const float* saved, const float* dot, float* row) const {
    row[ROW_LSE] = saved[LSE];
    row[DOT] = dot[0];
  }
  __device__ void grad(float z, float dp, const float* row, float& p, float& dz) const {
    p = exp_fast(z - row[ROW_LSE]);
    dz = p * (dp - row[DOT]);
  }
  // a row's share of the gradient of a learned sink; rows [ROWS][count]
  __device__ static float sink_grad(float sink, const float* rows, size_t count) {
    return -exp_fast(sink - rows[ROW_LSE * count]) * rows[DOT * count];
  }
};
