// Softmax cross-entropy, forward and backward at once and in place: the logits become their own gradient.
#pragma once
#include "kernels/gpu.cuh"

// losses [n] = logsumexp(logits[0..V)) - logits[target], in nats. When dloss != 0, logits [n, Vp] = dloss (softmax -
// onehot), the padding columns V..Vp become 0; when dloss == 0 logits are only read. targets [n] in [0, V), or -1: loss
// and gradient are 0, and the row is not read. weights [n], if given, multiply a row's loss and its gradient. Vp is a
// multiple of 8; the values in the padding columns are never used. A warp per row up to 4096 columns, a block per row
// beyond. Floor: n Vp elements read, and written when dloss != 0 (the second read of a row comes from shared memory if
// a multiprocessor holds two rows of bf16, else from cache). 2 exp per logit.
template <class T>
void cross_entropy(float* losses, T* logits, const int* targets, float dloss, int n, int V, int Vp, cudaStream_t stream,
                   const float* weights = nullptr);
