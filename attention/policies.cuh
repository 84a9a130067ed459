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
    float raised = max(state[MAX], top), factor = expf(state[MAX] - raised);
    state[MAX] = raised;
    state[SUM] *= factor;
    return factor;
  }
  __device__ void weigh(float z, float* state, float* weight) const {
    weight[0] = expf(z - state[MAX]);
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
    p = expf(z - row[ROW_LSE]);
    dz = p * (dp - row[DOT]);
  }
  // a row's share of the gradient of a learned sink; rows [ROWS][count]
  __device__ static float sink_grad(float sink, const float* rows, size_t count) {
    return -expf(sink - rows[ROW_LSE * count]) * rows[DOT * count];
  }
};

// P = softplus(z) / S, S = sum softplus(z). A row whose S underflows (every z below -87) has weight 0 everywhere.
struct Lssa : PolicyDefaults {
  using Evaluation = Lssa;
  enum { SUM, STATE };
  enum { S, SAVED };
  enum { INVERSE_S, DOT, ROWS };
  __device__ Lssa(const PolicySettings&, float) {}
  __device__ static float inverse(float s) { return s < 0x1p-126f ? 0 : 1 / s; }
  __device__ void start(float* state, bool) const { state[SUM] = 0; }
  __device__ void weigh(float z, float* state, float* weight) const {
    weight[0] = softplus(z);
    state[SUM] += weight[0];
  }
  __device__ void merge(int, float* state, const float* other) const { state[SUM] += other[SUM]; }
  __device__ void finish(int, const float* state, float* factor, float* saved) const {
    factor[0] = inverse(state[SUM]);
    saved[S] = state[SUM];
  }
  __device__ void backward_row(int, const float* saved, const float* dot, float* row) const {
    row[INVERSE_S] = inverse(saved[S]);
    row[DOT] = dot[0];
  }
  __device__ void grad(float z, float dp, const float* row, float& p, float& dz) const {
    float slope, f = softplus(z, slope);
    p = f * row[INVERSE_S];
    dz = slope * (dp - row[DOT]) * row[INVERSE_S];
  }
};

// f = softplus(z), u = n f / S, r = max(0, u - offset), w = (r / max r)^power, P = w / sum w; the first sweep finds S and max f.
// Q = P / r; the training forward also sums Q v (O2) and Q (t). A row that is degenerate (offset > 0, max r < 1e-3) gets
// INVERSE_TOP = 0, and with it 0 everywhere.
template <bool TRAINING>
struct Lssar : PolicyDefaults {
  using Evaluation = Lssar<false>;
  static constexpr int PASSES = 2, VALUES = TRAINING ? 2 : 1;
  enum { SUM, TOP };  // of the first sweep; then
  enum { SCALE, INVERSE_TOP, OFFSET, SUM_W, SUM_Q, STATE };
  enum { KEPT_SCALE, KEPT_INVERSE_TOP, INVERSE_W, T, SAVED };
  enum { ROW_SCALE, ROW_INVERSE_TOP, ROW_OFFSET, ROW_INVERSE_W, DOT, E_OVER_S, ROWS };
  float power, offset;
  int offset_free_rows;
  __device__ Lssar(const PolicySettings& s, float)
      : power(s.power), offset(s.offset), offset_free_rows(s.offset_free_rows) {}
  __device__ float offset_of(int n) const { return n <= offset_free_rows ? 0 : offset; }
  // x = r / top and x^(power - 1), 0 where x is 0.
  __device__ float share(float f, float scale, float inverse_top, float row_offset, float& x) const {
    x = max(f * scale - row_offset, 0.0f) * inverse_top;
    return power_of_unit(x + 0x1p-126f, power - 1) * float(x > 0);
  }
  __device__ void start(float* state, bool) const {
    for (int i = 0; i < STATE; i++) state[i] = 0;
  }
  __device__ void look(float z, float* state) const {
    float f = softplus(z);
    state[SUM] += f;
    state[TOP] = max(state[TOP], f);
  }
  __device__ void turn(int n, float* state) const {
    float scale = n * Lssa::inverse(state[SUM]), top = state[TOP] * scale - offset_of(n);
    state[SCALE] = scale;
    state[INVERSE_TOP] = top < (offset_of(n) > 0 ? 1e-3f : 0x1p-126f) ? 0 : 1 / top;
    state[OFFSET] = offset_of(n);
  }
  __device__ void weigh(float z, float* state, float* weight) const {
    float x, y = share(softplus(z), state[SCALE], state[INVERSE_TOP], state[OFFSET], x);
    weight[0] = y * x;
    state[SUM_W] += y * x;
    if constexpr (TRAINING) {
      weight[1] = y * state[INVERSE_TOP];
      state[SUM_Q] += weight[1];
    }
  }
  __device__ void merge(int pass, float* state, const float* other) const {
    if (pass == 0) {
      state[SUM] += other[SUM];
      state[TOP] = max(state[TOP], other[TOP]);
    } else {
      state[SUM_W] += other[SUM_W];
      state[SUM_Q] += other[SUM_Q];
    }
  }
  __device__ void finish(int, const float* state, float* factor, float* saved) const {
    float inverse_w = state[SUM_W] > 0 ? 1 / state[SUM_W] : 0;
    for (int i = 0; i < VALUES; i++) factor[i] = inverse_w;
    saved[KEPT_SCALE] = state[SCALE];
    saved[KEPT_INVERSE_TOP] = state[INVERSE_TOP];
    saved[INVERSE_W] = inverse_w;
    saved[T] = state[SUM_Q] * inverse_w;
  }
  __device__ void backward_row(int n, const float* saved, const float* dot, float* row) const {
    row[ROW_SCALE] = saved[KEPT_SCALE];
    row[ROW_INVERSE_TOP] = saved[KEPT_INVERSE_TOP];
    row[ROW_OFFSET] = offset_of(n);
    row[ROW_INVERSE_W] = saved[INVERSE_W];
    row[DOT] = dot[0];
    row[E_OVER_S] = power * offset_of(n) * (dot[1] - dot[0] * saved[T]) * saved[KEPT_SCALE] / n;
  }
  __device__ void grad(float z, float dp, const float* row, float& p, float& dz) const {
    float slope, f = softplus(z, slope);
    float x, y = share(f, row[ROW_SCALE], row[ROW_INVERSE_TOP], row[ROW_OFFSET], x) * row[ROW_INVERSE_W];
    p = y * x;
    dz = slope * (row[ROW_SCALE] * power * y * row[ROW_INVERSE_TOP] * (dp - row[DOT]) - row[E_OVER_S]);
  }
};

// P = sigmoid(z - ln(context)), not normalised.
struct Sigmoid : PolicyDefaults {
  using Evaluation = Sigmoid;
  enum { STATE };
  enum { SAVED };
  enum { ROWS };
  float log_context;
  __device__ Sigmoid(const PolicySettings& s, float) : log_context(s.log_context) {}
  __device__ void start(float*, bool) const {}
  __device__ void weigh(float z, float*, float* weight) const { weight[0] = sigmoid(z - log_context); }
  __device__ void merge(int, float*, const float*) const {}
  __device__ void finish(int, const float*, float* factor, float*) const { factor[0] = 1; }
  __device__ void backward_row(int, const float*, const float*, float*) const {}
  __device__ void grad(float z, float dp, const float*, float& p, float& dz) const {
    p = sigmoid(z - log_context);
    dz = p * (1 - p) * dp;
  }
};

// P = relu(z) / n.
struct Relu : PolicyDefaults {
  using Evaluation = Relu;
  enum { STATE };
  enum { SAVED };
  enum { INVERSE_N, ROWS };
  __device__ Relu(const PolicySettings&, float) {}
  __device__ void start(float*, bool) const {}
  __device__ void weigh(float z, float*, float* weight) const { weight[0] = max(z, 0.0f); }
  __device__ void merge(int, float*, const float*) const {}
  __device__ void finish(int n, const float*, float* factor, float*) const { factor[0] = 1.0f / n; }
  __device__ void backward_row(int n, const float*, const float*, float* row) const { row[INVERSE_N] = 1.0f / n; }
  __device__ void grad(float z, float dp, const float* row, float& p, float& dz) const {
    p = max(z, 0.0f) * row[INVERSE_N];
    dz = z > 0 ? dp * row[INVERSE_N] : 0;
  }
};

// P = relu(z)^2 / n.
struct Relu2 : Relu {
  using Evaluation = Relu2;
  using Relu::Relu;
  __device__ void weigh(float z, float*, float* weight) const { weight[0] = max(z, 0.0f) * max(z, 0.0f); }
  __device__ void grad(float z, float dp, const float* row, float& p, float& dz) const {
    float r = max(z, 0.0f);
    p = r * r * row[INVERSE_N];
    dz = 2 * r * dp * row[INVERSE_N];
  }
};
