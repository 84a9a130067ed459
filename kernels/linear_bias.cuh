// The gradient of a linear layer's bias: column sums.
#pragma once
#include "kernels/gpu.cuh"

size_t linear_bias_backward_workspace(int N, int n);  // bytes

// dbias [n] += sum over rows of dout [N, n], or nullptr: nothing. Row stride ld >= n (0 = n). Any n, ld and alignment;
// 16-byte accesses where both allow them. Two stages, deterministic: the order of the sums depends on (N, n) alone.
// Floor: N n elements read.
template <class T>
void linear_bias_backward(float* dbias, const T* dout, void* workspace, int N, int n, int ld, cudaStream_t stream);
