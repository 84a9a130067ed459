// Before and after attention, in place on qkv [B, T, 3, H, D]: rotary positions, query/key norm and the row scale
// alpha_i. README.md has their formulas.
//     q_i <- alpha_i norm(R_i q_i),  k_j <- norm(R_j k_j);   v is not touched
// alpha_i is divided by score_unit(kind). A rotation keeps the length, so norm and rotation commute. One pass over the
// data each way. A group of 1 to 16 lanes has a row (b, t, q|k, h).
#pragma once
#include <vector>

#include "attention/attention.h"

// Cosine and sine of every angle, [length, D/2], computed in double. factor = length to evaluate at / trained length.
// The scaling says how positions beyond the trained length, length / factor, are squeezed; with factor 1 none are.
// fraction: of the D/2 pairs of channels that turn, those of the highest frequencies; the others keep the angle 0.
std::vector<float2> rope_table(int length, int D, double base, RopeScaling scaling = RopeScaling::none,
                               double factor = 1, double fraction = 1);
// For AttentionSetup::scale_factor: yarn's attention factor, squared, as it acts on q and on k; else 1.
float rope_scale_factor(RopeScaling scaling, double factor);

// rope [T, D/2] or nullptr; norms [B, T, 2, H] = 1 / length of each row of q and k, nullptr if qk_norm is none.
template <class T>
void prepare_forward(T* qkv, float* norms, const float2* rope, const AttentionSetup& settings,
                     const AttentionShape& shape, cudaStream_t stream, const AttentionLearned<T>& learned = {});

// Turns the gradients in dqkv, of q and k as the forward left them in qkv, into those of the forward's inputs.
// workspace: prepare_backward_workspace() bytes, used for the gradient of ssmax's scale alone.
size_t prepare_backward_workspace(const AttentionSettings& settings, const AttentionShape& shape);
template <class T>
void prepare_backward(T* dqkv, const T* qkv, const float* norms, const float2* rope, const AttentionSetup& settings,
                      const AttentionShape& shape, cudaStream_t stream, const AttentionLearned<T>& learned = {},
                      void* workspace = nullptr);
