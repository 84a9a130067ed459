// Conversion between storage types, rounding to nearest even.
#pragma once
#include "kernels/gpu.cuh"

// out [n] = in [n]; <bf16, float>, <float, float>. Any n and alignment. Floor: n of each moved.
template <class TOut, class TIn> void convert(TOut* out, const TIn* in, size_t n, cudaStream_t stream);
