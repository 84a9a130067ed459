// AdamW as in PyTorch: decoupled weight decay, bias correction, float32 master weights and moments.
#pragma once
#include "kernels/gpu.cuh"
#include "kernels/row_block.h"

struct AdamW {
  float lr, beta1, beta2, eps, weight_decay;
  int step;  // from 1
};

// With g = grad_scale[0] grad:  m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2,
//   master = master (1 - lr weight_decay) - lr (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + eps)
// and param = master, rounded.
// param [n], master, m, v, grad [n]; for T = float master must be param. Any n and alignment.
// Floor: 28 bytes moved per element for float32 (4 reads, 3 writes), 30 for bf16.
template <class T>
void adamw_update(T* param, float* master, float* m, float* v, const float* grad, const float* grad_scale, size_t n,
                  const AdamW& settings, cudaStream_t stream);

// The same for elements first .. first + count - 1 of a block. Element i of param, master, m and grad is at [i]; v has
// these elements alone, one after the other.
template <class T>
void adamw_update_rows(T* param, float* master, float* m, float* v, const float* grad, const float* grad_scale,
                       const RowBlock& block, size_t first, size_t count, const AdamW& settings, cudaStream_t stream);

inline constexpr int STEP_SUM_BLOCKS = 32;

// sums [STEP_SUM_BLOCKS, 3] +=, to be added up: squares of the gradient, of the weight and of what the last update took
// from it (without weight decay), over the block's elements i with begin <= i < end. Element i of each array is at [i],
// but that of v at [row v_stride + column]. Without v the update is lr / (1 - beta1^step) m.
void add_step_sums(double* sums, const RowBlock& block, size_t begin, size_t end, const float* grad,
                   const float* master, const float* m, const float* v, size_t v_stride, const AdamW& settings,
                   cudaStream_t stream);
