// Normal random numbers for the initial weights: out[i] is a function of (seed, i) alone, so the weights do not depend on
// grid sizes, thread counts or the order in which tensors are filled.
#pragma once
#include <cstdint>

#include "kernels/gpu.cuh"

// out = [n] ~ Normal(0, std). Box-Muller over SplitMix64 (Steele, Lea, Flood 2014). Writes 4 n bytes; done once.
void normal_fill(float* out, size_t n, float std, uint64_t seed, cudaStream_t stream);
