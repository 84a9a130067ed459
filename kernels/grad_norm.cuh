// Global gradient norm and clipping. Squares are summed in fixed blocks of 2^16 elements and the blocks' sums in their
// order in the table of parameters, so the norm has the same bits whichever rank computed a block.
#pragma once
#include "kernels/gpu.cuh"

inline constexpr size_t NORM_BLOCK = size_t(1) << 16;
inline size_t square_sums_count(size_t n) { return (n + NORM_BLOCK - 1) / NORM_BLOCK; }

// partial [square_sums_count(n)] = sum of x^2 over each block of NORM_BLOCK elements. Floor: n floats read.
void square_sums(float* partial, const float* x, size_t n, cudaStream_t stream);

// norm [1] = sqrt(sum of partial [count]); scale [1] = clip / norm where clip > 0 and norm > clip, else 1. All on the
// device: the update reads the scale there, so the host does not wait for the norm.
void clip_scale(float* norm, float* scale, const float* partial, int count, float clip, cudaStream_t stream);
