// Conversion between storage types, rounding to nearest even, and between layouts.
#pragma once
#include "kernels/gpu.cuh"
#include "kernels/row_block.h"

// out [n] = in [n]; <bf16, float>, <float, float>. Any n and alignment. Floor: n of each moved.
template <class TOut, class TIn> void convert(TOut* out, const TIn* in, size_t n, cudaStream_t stream);

// Elements first .. first + count - 1 of a block of `array`, and `list` [count] of these alone: spread() makes array =
// list, collect() list = array. Floor: count elements read and written.
template <class T>
void spread(float* array, const T* list, const RowBlock& block, size_t first, size_t count, cudaStream_t stream);
void collect(float* list, const float* array, const RowBlock& block, size_t first, size_t count, cudaStream_t stream);
