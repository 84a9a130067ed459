// Softmax cross-entropy: forward and backward at once and in place, where the logits become their own gradient, and
// forward alone for evaluations. With cap > 0 all is of cap tanh(z / cap) in place of the logits z, in float32; the
// gradient is that of z.
#pragma once
#include "kernels/gpu.cuh"

// losses [n] = (logsumexp(logits[0..V)) - logits[target]) weight, in nats; logits [n, Vp] = dloss weight (softmax -
// onehot), and 0 in the padding columns V..Vp. targets [n] in [0, V), or -1: loss and gradient are 0, and the row is
// not read. weights [n], 1 if not given. Vp is a multiple of 8; the values in the padding columns are never used. A
// warp per row up to 4096 columns, a block per row beyond. Floor: n Vp elements read and written (the second read of
// a row comes from shared memory if a multiprocessor holds two rows of bf16, else from cache). 2 exp per logit.
template <class T>
void cross_entropy(float* losses, T* logits, const int* targets, float dloss, int n, int V, int Vp, cudaStream_t stream,
                   const float* weights = nullptr, float cap = 0);

// losses [n] = the same with weights of 1, to the bit. above [n] = how many of the row's logits are above the
// target's: larger, as large and before it, or NaN (if its own is NaN, a number above 0); so 0 if the target is the
// likeliest token, of equal ones the first. Both are 0 without a target. Floor: n Vp elements read. 1 exp per logit.
template <class T>
void token_losses(float* losses, int* above, const T* logits, const int* targets, int n, int V, int Vp,
                  cudaStream_t stream, float cap = 0);
