// The bias of scores: z_ij += c_i - c_j, with one number c_i for each position and head, which attention's kernels read
// as bias_floats() in attention.h says. README.md has the formulas. Two of the three kinds of bias are learned: c falls
// from each position to the next by an amount that the position's logit decides. These logits are further columns of
// the q,k,v product, H of them, as a gate's are. A third takes the logits of its caller as these steps.
#pragma once
#include "attention/attention.h"
#include "attention/gate.cuh"

// The origins of a head; an origin, as the nearest float and the remainder; c of a position, whose origin is there.
__host__ __device__ inline float2& origin_of(float* head, int t) {
  return reinterpret_cast<float2*>(head)[t / BIAS_ROWS];
}
__host__ __device__ inline float2 as_two_floats(double c) { return {float(c), float(c - float(c))}; }
__host__ __device__ inline void write_bias(float* head, int T, int t, double c, int document_start = 0) {
  float2 from = has_origin_0(t, document_start) ? make_float2(0, 0) : origin_of(head, t);
  double rest = c - from.x - from.y;
  head += bias_origins(T) + t;
  head[0] = float(rest);
  head[T] = float(rest - head[0]);
}

inline bool bias_is_learned(Bias bias) { return bias == Bias::fox || bias == Bias::cable || bias == Bias::given; }

// c = the bias of the settings, bias_floats(call.shape) floats. logits [B T, H]; not read if none are learned.
// Floor: B T H elements read and twice as many floats written; a block has a head of a sequence.
template <class T> void position_bias_forward(float* c, Matrix<const T> logits, const AttentionCall<T>& call);

// dlogits [B T, H] = from what attention_backward() left in its workspace; columns H .. columns - 1 become 0.
template <class T>
void position_bias_backward(Matrix<T> dlogits, int columns, Matrix<const T> logits, void* workspace,
                            const AttentionCall<T>& call);
