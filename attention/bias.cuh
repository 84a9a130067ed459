// The bias of scores: z_ij += c_i - c_j, with one number c_i for each position and head, which attention's kernels read
// as an array c [B, H, T]. c may reach -100,000, where floats are 0.008 apart: each is stored as the sum of two.
// README.md has the formulas. Two of the three kinds of bias are learned: c falls from each position to the next by an
// amount that the position's logit decides. These logits are further columns of the q,k,v product, H of them, as a
// gate's are.
#pragma once
#include "attention/attention.h"
#include "attention/gate.cuh"

// The nearest float and the remainder.
__host__ __device__ inline float2 as_two_floats(double c) { return {float(c), float(c - float(c))}; }

inline bool bias_is_learned(Bias bias) { return bias == Bias::fox || bias == Bias::cable; }

// c [B, H, T] = the bias of the settings. logits [B T, H]; not read if none are learned.
// Floor: B T H elements read and twice as many floats written; a block has a head of a sequence.
template <class T> void bias_forward(float2* c, Matrix<const T> logits, const AttentionCall<T>& call);

// dlogits [B T, H] = from what attention_backward() left in its workspace; columns H .. columns - 1 become 0.
template <class T>
void bias_backward(Matrix<T> dlogits, int columns, Matrix<const T> logits, void* workspace,
                   const AttentionCall<T>& call);
