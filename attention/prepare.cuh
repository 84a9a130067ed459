// Before attention, in place on qkv [B, T, 3, H, D]: rotary positions, query/key norm and the row scale alpha_i.
// README.md has their formulas.
//     q_i <- alpha_i norm(R_i q_i),  k_j <- norm(R_j k_j);   v is not touched
// alpha_i is divided by KindRow::unit. A rotation keeps the length, so norm and rotation commute. One pass over the
// data each way. A group of 1 to 16 lanes has a row (b, t, q|k, h).
#pragma once
#include <vector>

#include "attention/attention.h"

// Cosine and sine of every angle, [length, D/2], computed in double. factor = length to evaluate at / trained length.
// The scaling says how positions beyond the trained length, length / factor, are squeezed; with factor 1 none are.
// fraction: share of the D/2 channel pairs that RoPE rotates, highest frequencies first; the others keep the angle 0.
std::vector<float2> rope_table(int length, int D, double base, RopeScaling scaling = RopeScaling::none,
                               double factor = 1, double fraction = 1);
// For AttentionCall::scale_factor: yarn's attention factor, squared, as it acts on q and on k; else 1.
float rope_scale_factor(RopeScaling scaling, double factor);

// alpha_i = constant x (ln min(i, most))^log_rows x s_h: every scale is one of these products. i counts from 1 in the
// row's document, t from 0.
template <class T> struct RowScale {
  float constant;
  bool log_rows;
  int most;          // keys that a row sees
  const T* learned;  // s [H] or nullptr
  __device__ float operator()(int t, int h) const {
    float alpha = constant;
    if (log_rows) alpha *= logf(float(t < most ? t + 1 : most));
    if (learned) alpha *= to_float(learned[h]);
    return alpha;
  }
};
template <class T> RowScale<T> row_scale(const AttentionCall<T>& call);

// The backward pass of a row: with y = norm(R x) and x' = alpha y as the forward left it, dy = alpha dx' and d(R x) =
// (dy - y (y . dy) [/ D for rms]) / length = alpha / length dx' - along x'. y . dy = x' . dx', so y itself is not
// needed; where alpha is 0 so is the gradient. Returns `along`; inverse = 1 / length.
constexpr float L2_EPS = 1e-12f, RMS_EPS = 1e-6f;
// 1 / length of a row of D channels whose squares add up to this; norm is l2 or rms.
__device__ inline float inverse_length(QkNorm norm, float squares, int D) {
  return norm == QkNorm::l2 ? 1 / max(sqrtf(squares), L2_EPS) : 1 / sqrtf(squares / D + RMS_EPS);
}
__device__ inline float gradient_along(QkNorm norm, float dot, float alpha, float inverse, int D) {
  float along = 0;
  if (norm == QkNorm::l2 && inverse < 1 / L2_EPS) along = dot;  // a shorter row was divided by a constant
  if (norm == QkNorm::rms) along = dot / D;
  return alpha == 0 ? 0 : along * inverse / alpha;
}

// The changes of prepare_forward() to q and k, for kernels that undo them in the gradients that they store.
template <class T> struct Preparation {
  bool undo = false;
  const float2* rope = nullptr;
  const float* norms = nullptr;
  QkNorm qk_norm = QkNorm::none;
  RowScale<T> scale = {};
};

// call.rope: [T, D/2] or nullptr; call.norms [B, T, 2, H] = 1 / length of each row of q and k, nullptr without qk_norm.
template <class T> void prepare_forward(T* qkv, const AttentionCall<T>& call);

// Turns the gradients in dqkv, of q and k as the forward left them in qkv, into those of the forward's inputs.
// workspace: prepare_backward_workspace() bytes, used for the gradient of ssmax's scale alone.
size_t prepare_backward_workspace(const AttentionSettings& settings, const AttentionShape& shape);
template <class T>
void prepare_backward(T* dqkv, const T* qkv, const AttentionCall<T>& call, void* workspace = nullptr);

// to [H] += the sums over b and t of rows [B, H, T], by `divisor` [H] if there is one: the gradient of a number that
// each head has learned.
template <class T>
void add_sums_of_heads(float* to, const float* rows, const AttentionCall<T>& call, const T* divisor = nullptr);
