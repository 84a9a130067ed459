// Normal random numbers for the initial weights: element i of a matrix is a function of (seed, i) alone, so the weights
// do not depend on grid sizes, thread counts or the order in which tensors are filled.
#pragma once
#include <cstdint>

#include "kernels/gpu.cuh"

// out = [rows, columns] ~ Normal(0, std), rows `stride` elements apart. Box-Muller over SplitMix64 (Steele, Lea, Flood
// 2014). Writes 4 bytes an element; done once.
void normal_fill(float* out, size_t rows, size_t columns, size_t stride, float std, uint64_t seed, cudaStream_t stream);
