// The general attention kernels: every kind, any head dimension, any T, float and bf16. Blocks keep tiles of one sequence in
// shared memory and let the other stream past (tiles.cuh); tiles above the diagonal are never touched; a product is 4 x 8 or
// more per thread in registers. The backward is two kernels, dK and dV by tiles of keys and dQ by tiles of queries, so that
// every number is summed by one thread in one order. Heads of more than 128 channels are done 128 output channels at a time,
// each of which computes the scores anew. Only dispatch.cu calls these; Policy is a struct of policies.cuh.
#pragma once
#include "attention/attention.h"
#include "attention/policies.cuh"

// sink [H] or nullptr; dsink [H] += or nullptr
template <class T, class Policy>
void general_forward(T* out, float* stats, const T* qkv, const PolicySettings& settings, const T* sink, int B, int T_, int H,
                     int D, int qkv_stride, cudaStream_t stream);

// workspace: Policy::ROWS floats per row (b, h, t)
template <class T, class Policy>
void general_backward(T* dqkv, const T* dout, const T* out, const float* stats, const T* qkv, float* workspace,
                      const PolicySettings& settings, const T* sink, float* dsink, int B, int T_, int H, int D,
                      int qkv_stride, cudaStream_t stream);
