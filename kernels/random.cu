#include "kernels/random.cuh"

#include <cstdint>

#include "kernels/elementwise.cuh"

__device__ inline uint64_t splitmix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

__global__ void normal_fill_kernel(float* out, size_t n, size_t columns, size_t stride, float std, uint64_t seed) {
  size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
  if (i >= n) return;
  uint64_t bits = splitmix64(splitmix64(seed) + i);
  float u = (unsigned(bits >> 40) + 0.5f) * 0x1p-24f;  // (0, 1), never 0: its logarithm is finite
  float angle = 6.2831853f * (unsigned(bits & 0xFFFFFF) * 0x1p-24f);
  out[i / columns * stride + i % columns] = std * sqrtf(-2.0f * logf(u)) * cosf(angle);
}

void normal_fill(float* out, size_t rows, size_t columns, size_t stride, float std, uint64_t seed,
                 cudaStream_t stream) {
  size_t n = rows * columns;
  if (n == 0) return;
  LAUNCH(normal_fill_kernel, dim3(blocks_for(n, 256)), dim3(256), 0, stream, out, n, columns, stride, std, seed);
}
