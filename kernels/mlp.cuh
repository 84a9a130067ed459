// What an MLP does between its products where that is not GELU, which a product's epilogue computes (kernels/gelu.cuh):
// ReLU squared, and SwiGLU, whose product makes a gate and a value for each of its F channels. Computed in float32.
#pragma once
#include "kernels/gpu.cuh"

// out [n] = max(0, x)^2. Floor: 2 n elements moved.
template <class T> void relu2_forward(T* out, const T* x, size_t n, cudaStream_t stream);
// dx [n] = dout 2 max(0, x); dx may be dout. Floor: 3 n elements moved.
template <class T> void relu2_backward(T* dx, const T* dout, const T* x, size_t n, cudaStream_t stream);

// out [N, F] = silu(gate) up, silu(x) = x sigmoid(x); x [N, 2F]: gate in columns 0..F, up in F..2F. F is a multiple of
// 8. Floor: 3 N F elements moved.
template <class T> void swiglu_forward(T* out, const T* x, int N, int F, cudaStream_t stream);
// dx [N, 2F] = the gradients of gate and up from dout [N, F]. Floor: 5 N F elements moved.
template <class T> void swiglu_backward(T* dx, const T* dout, const T* x, int N, int F, cudaStream_t stream);
