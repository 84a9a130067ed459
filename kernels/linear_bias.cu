#include "kernels/linear_bias.cuh"

#include "kernels/elementwise.cuh"
#include "kernels/reduce.cuh"

// Stage 1: a thread sums one 16-byte column of a chunk of rows; no thread waits for another. Stage 2: add_column_sums.
// There are at most MOST_CHUNKS chunks, so that stage 2 reads little, of at least LEAST_ROWS rows, so that stage 1
// dominates.
constexpr int MOST_CHUNKS = 512, LEAST_ROWS = 64;

static int chunk_rows(int N) {
  int rows = (N + MOST_CHUNKS - 1) / MOST_CHUNKS;
  return rows > LEAST_ROWS ? rows : LEAST_ROWS;
}

template <class T, int SIZE>
__global__ void bias_chunk_kernel(float* partial /* = [chunks, n] */, const T* __restrict__ dout, int N, int n, int ld,
                                  int rows) {
  int c = (blockIdx.x * blockDim.x + threadIdx.x) * SIZE;
  if (c >= n) return;
  int begin = blockIdx.y * rows, end = begin + rows < N ? begin + rows : N;
  float sum[SIZE] = {};
#pragma unroll 8
  for (int row = begin; row < end; row++) {
    const T* p = dout + size_t(row) * ld + c;
    if constexpr (SIZE == 1) {
      sum[0] += to_float(*p);
    } else {
      Pack<T> x = load16(p);
#pragma unroll
      for (int k = 0; k < SIZE; k++) sum[k] += to_float(x[k]);
    }
  }
  float* to = partial + size_t(blockIdx.y) * n + c;
  for (int k = 0; k < SIZE; k++) to[k] = sum[k];
}

size_t linear_bias_backward_workspace(int N, int n) { return size_t(blocks_for(N, chunk_rows(N))) * n * sizeof(float); }

template <class T>
void linear_bias_backward(float* dbias, const T* dout, void* workspace, int N, int n, int ld, cudaStream_t stream) {
  if (N == 0 || n == 0 || !dbias) return;
  constexpr int SIZE = Pack<T>::size;
  if (ld == 0) ld = n;
  int rows = chunk_rows(N);
  unsigned chunks = blocks_for(N, rows);
  float* partial = static_cast<float*>(workspace);
  bool packed = aligned16(dout) && n % SIZE == 0 && ld % SIZE == 0;
  unsigned columns = packed ? n / SIZE : n, threads = columns < 128 ? (columns + WARP - 1) / WARP * WARP : 128;
  LAUNCH((packed ? bias_chunk_kernel<T, SIZE> : bias_chunk_kernel<T, 1>), dim3(blocks_for(columns, threads), chunks),
         dim3(threads), 0, stream, partial, dout, N, n, ld, rows);
  add_column_sums({{dbias}, 1}, n, partial, int(chunks), stream);
}

template void linear_bias_backward(float*, const float*, void*, int, int, int, cudaStream_t);
template void linear_bias_backward(float*, const bf16*, void*, int, int, int, cudaStream_t);
