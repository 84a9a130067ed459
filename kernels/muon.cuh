// Muon as torch.optim.Muon: momentum by Nesterov, an update whose singular values are near 1, decoupled weight decay.
// For a matrix W [m inputs, n outputs] with the gradient G:
//   M = mu M + (1 - mu) G,  U = (1 - mu) G + mu M,  X = orthogonalised U,  W = W - lr weight_decay W - lr scale X
// Matrices are blocks of flat float32 arrays, element i of each at [i]; ranks may share the elementwise parts.
#pragma once
#include <span>

#include "kernels/device_memory.h"
#include "kernels/row_block.h"

struct Muon {
  float lr = 0, momentum = 0, weight_decay = 0;
  bool rms = false;                           // else spectral
  float scale(const RowBlock& matrix) const;  // spectral: sqrt(max(1, n / m)); rms: 0.2 sqrt(max(m, n))
};

// For the elements first .. last - 1 of a matrix, with G = grad_scale[0] grad: m = M and grad = U.
// Floor: 16 bytes moved per element.
void muon_momentum(float* m, float* grad, const float* grad_scale, const RowBlock& matrix, size_t first, size_t last,
                   const Muon& settings, cudaStream_t stream);

// What orthogonalise() needs, for `most` matrices of one shape at once.
template <class T> struct MuonWork {
  T *x = nullptr, *y, *gram, *polynomial;  // [most, m, n] twice, [most, min(m, n), min(m, n)] twice
  float *squares, *norm;                   // [MUON_BLOCKS], [2]
  void plan(MemoryPlan& plan, std::span<const RowBlock> matrices, int most);
};
inline constexpr int MUON_BLOCKS = 64;

// u = X for matrices of one shape in the array u: X = U / (|U|_F + 1e-7); then five times, with A = X X^T if m <= n and
// X^T X otherwise, X = P X or X P, where P = 3.4445 I - 4.7750 A + 2.0315 A A. Products of type T with float32 sums.
// Floor: 5 (4 k^2 l + 2 k^3) FLOPs a matrix, k = min(m, n), l = max(m, n).
template <class T>
void orthogonalise(float* u, std::span<const RowBlock> matrices, const MuonWork<T>& work, cudaStream_t stream);
double orthogonalise_flops(const RowBlock& matrix);

// For the elements first .. last - 1 of a matrix: master = W, and param = W, rounded; for T = float master is param.
// Floor: 12 bytes moved per element for float32, 14 for bf16.
template <class T>
void muon_apply(T* param, float* master, const float* x, const RowBlock& matrix, size_t first, size_t last,
                const Muon& settings, cudaStream_t stream);
