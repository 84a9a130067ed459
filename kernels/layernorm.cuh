// LayerNorm over the last dimension, eps 1e-5: out = (x - mean) rstd gamma + beta. N rows of C channels, C a multiple
// of 8. Mean and variance in float32, by two passes over values that stay in registers where they fit. The backward's
// column sums add in an order that depends on (N, C) alone.
// rms: RMSNorm, in which the mean counts as 0: out = x rstd gamma, rstd = 1 / sqrt(mean(x^2) + eps). It has no beta.
#pragma once
#include "kernels/gpu.cuh"

inline constexpr float LAYERNORM_EPS = 1e-5f;

// out [N, C] = layernorm(x); mean, rstd [N] = , or both nullptr; rms leaves mean alone. beta may be nullptr: 0. Floor:
// 2 N C elements moved.
template <class T>
void layernorm_forward(T* out, float* mean, float* rstd, const T* x, const T* gamma, const T* beta, int N, int C,
                       cudaStream_t stream, bool rms = false);

size_t layernorm_backward_workspace(int N, int C);  // bytes

// dx [N, C] += , dgamma, dbeta [C] += ; x is the layernorm's input; the forward saved mean and rstd (rms: rstd alone).
// dbias [C] += column sums of the new dx, the gradient of a bias that was added to x. dbeta and dbias may be nullptr.
// Floor: 4 N C elements moved (dout, x, and dx both ways).
template <class T>
void layernorm_backward(T* dx, float* dgamma, float* dbeta, float* dbias, const T* dout, const T* x, const float* mean,
                        const float* rstd, const T* gamma, void* workspace, int N, int C, cudaStream_t stream,
                        bool rms = false);
