#include "kernels/reduce.cuh"

#include "kernels/elementwise.cuh"

constexpr int SUM_THREADS = 256;

__global__ void sum_to_kernel(float* out, const float* __restrict__ x, size_t n, bool aligned) {
  __shared__ float shared[SUM_THREADS / WARP];
  float sum = 0;
  size_t packs = aligned ? n / 4 : 0;
#pragma unroll 4
  for (size_t i = threadIdx.x; i < packs; i += SUM_THREADS) {
    Pack<float> p = load16(x + 4 * i);
    sum += (p[0] + p[1]) + (p[2] + p[3]);
  }
  for (size_t i = 4 * packs + threadIdx.x; i < n; i += SUM_THREADS) sum += x[i];
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) out[0] += sum;
}

cudaError_t load_a_kernel() { return load_kernel(sum_to_kernel); }

void sum_to(float* out, const float* x, size_t n, cudaStream_t stream) {
  if (n == 0) return;
  LAUNCH(sum_to_kernel, dim3(1), dim3(SUM_THREADS), 0, stream, out, x, n, aligned16(x));
}

// Few rows: a thread per column, no barrier. Many rows: 32 columns per block, whose warps share the rows.
constexpr int FEW_ROWS = 64, COLUMN_WARPS = 8;

__device__ inline void add_column(const ColumnSums& to, int n, int column, float sum) {
  if (float* out = to.out[column / n]) out[column % n] += sum;
}

__global__ void add_few_rows_kernel(ColumnSums to, int width, const float* __restrict__ partial, int count) {
  int column = blockIdx.x * blockDim.x + threadIdx.x, n = width * to.arrays;
  if (column >= n) return;
  float sum = 0;
#pragma unroll 8
  for (int row = 0; row < count; row++) sum += partial[size_t(row) * n + column];
  add_column(to, width, column, sum);
}

__global__ void add_many_rows_kernel(ColumnSums to, int width, const float* __restrict__ partial, int count) {
  __shared__ float sums[COLUMN_WARPS][WARP];
  int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, column = blockIdx.x * WARP + lane, n = width * to.arrays;
  float sum = 0;
  if (column < n) {
#pragma unroll 8
    for (int row = warp; row < count; row += COLUMN_WARPS) sum += partial[size_t(row) * n + column];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= n) return;
  sum = 0;
  for (int w = 0; w < COLUMN_WARPS; w++) sum += sums[w][lane];
  add_column(to, width, column, sum);
}

void add_column_sums(const ColumnSums& to, int n, const float* partial, int count, cudaStream_t stream) {
  if (n == 0 || count == 0) return;
  if (count <= FEW_ROWS) {
    LAUNCH(add_few_rows_kernel, dim3(blocks_for(n * to.arrays, 128)), dim3(128), 0, stream, to, n, partial, count);
  } else {
    LAUNCH(add_many_rows_kernel, dim3(blocks_for(n * to.arrays, WARP)), dim3(COLUMN_WARPS * WARP), 0, stream, to, n,
           partial, count);
  }
}
