// Sums in a fixed order.
#pragma once
#include "kernels/gpu.cuh"

// Every thread of the block gets the sum of v over the block. shared: one float per warp. Has one barrier; the caller
// adds another between two uses of the same shared array.
__device__ inline float block_sum(float v, float* shared) {
  v = warp_sum(v);
  if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = v;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < int(blockDim.x) / WARP; w++) sum += shared[w];
  return sum;
}

// Groups of 1 to 16 neighbouring lanes that each have a row of D elements: enough lanes for each to have at most 32
// elements, 16 at most. group_sum: every lane of a group gets the group's sum of v; all lanes of the warp call it.
inline int lanes_for(int D) { return D <= 32 ? 1 : D <= 64 ? 2 : D <= 128 ? 4 : D <= 256 ? 8 : 16; }
__device__ inline float group_sum(float v, int lanes) {
  for (int mask = lanes / 2; mask > 0; mask /= 2) v += shuffle_xor(v, mask);
  return v;
}

// out [1] += sum of x [n]; one block, meant for a micro batch's losses. Floor: n floats read, by one multiprocessor.
void sum_to(float* out, const float* x, size_t n, cudaStream_t stream);

// The second stage of deterministic column sums: out[i] [n] += the column sums of the i-th array of partial [count,
// arrays, n], unless it is nullptr. Floor: count arrays n floats read.
struct ColumnSums {
  float* out[3];
  int arrays;
};
void add_column_sums(const ColumnSums& to, int n, const float* partial, int count, cudaStream_t stream);
