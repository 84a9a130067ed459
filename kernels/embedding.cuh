// Token and position embedding. N = B T rows, tokens in [0, Vp).
// The backward adds, for every token value, the rows of dout in their order in the batch: the host sorts the rows by
// token, and the kernels sum runs of equal tokens, without atomics, so their bits are always the same.
#pragma once
#include "kernels/gpu.cuh"

// out = wte[tokens] + wpe, out [N, C]; wpe [>= T, C] or nullptr. C is a multiple of 8. documents: nullptr, or as
// attention/documents.cuh has them, from whose first position a row's position counts then.
// Floor: N C writes and, at worst, N C reads of wte; wpe stays in cache.
template <class T>
void embedding_forward(T* out, const int* tokens /* [N] */, const T* wte /* [Vp, C] */, const T* wpe,
                       const int2* documents /* [N] */, int B, int T_, int C, cudaStream_t stream);

// On the host, sorted = [2, N]: the tokens in ascending order, then their rows; equal tokens in the order of the rows.
void sort_by_token(int* sorted, const int* tokens /* [N] */, int N, int Vp);

// Bytes for the sums of runs that cross a block's end: N C / 4.
size_t embedding_backward_workspace(int N, int C);

// dwte [Vp, C] += , dwpe [>= T, C] += or nullptr; dout [N, C]; sorted: sort_by_token()'s, on the device.
// dwpe has the rows of t = 0 .. T - 1; other positions are sorted as tokens are, and a second call takes their dwpe for
// dwte. Floor: N C reads of dout (twice with dwpe), and one read and write of every float32 row of dwte that occurs.
template <class T>
void embedding_backward(float* dwte, float* dwpe, const T* dout, const int* sorted, void* workspace, int B, int T_,
                        int C, cudaStream_t stream);
