#include "kernels/cross_entropy.cuh"

#include <cfloat>

#include "kernels/elementwise.cuh"

// bf16 results are far coarser than the one-instruction exponential.
template <class T> __device__ inline float softmax_exp(float x) { return fast_exp(x); }
template <> __device__ inline float softmax_exp<float>(float x) { return expf(x); }

// A maximum and the sum of exp(x - max), over the columns a thread, and then the whole row, has seen.
struct SoftmaxSum {
  float max = -FLT_MAX, sum = 0;
};

// The pack at column c, padding columns as -inf: exp makes them 0.
template <class T>
__device__ inline void load_logits(float (&x)[Pack<T>::size], const T* row, int c, int V) {
  Pack<T> p = load16(row + c);
  if (c + Pack<T>::size <= V) {
#pragma unroll
    for (int k = 0; k < Pack<T>::size; k++) x[k] = to_float(p[k]);
  } else {
    for (int k = 0; k < Pack<T>::size; k++) x[k] = c + k < V ? to_float(p[k]) : -INFINITY;
  }
}

// The columns of one thread out of `threads` that share a row.
template <class T>
__device__ inline SoftmaxSum sum_columns(const T* row, int thread, int threads, int V) {
  constexpr int SIZE = Pack<T>::size;
  SoftmaxSum s;
#pragma unroll 2
  for (int c = thread * SIZE; c < V; c += threads * SIZE) {
    float x[SIZE], largest = -FLT_MAX, sum = 0;
    load_logits<T>(x, row, c, V);
    for (int k = 0; k < SIZE; k++) largest = fmaxf(largest, x[k]);
    float max = fmaxf(s.max, largest);
    for (int k = 0; k < SIZE; k++) x[k] = softmax_exp<T>(x[k] - max);
    for (int k = 0; k < SIZE; k++) sum += x[k];
    s.sum = s.sum * softmax_exp<T>(s.max - max) + sum;
    s.max = max;
  }
  return s;
}

// The thread that holds the target's column writes the loss: nobody reads what another thread is about to replace.
// From the last pack to the first: what sum_columns read last is still nearest.
template <class T>
__device__ inline void finish_row(float* loss, T* row, int thread, int threads, const SoftmaxSum& s, int target, float dloss,
                                  int V, int Vp) {
  constexpr int SIZE = Pack<T>::size;
  if (target / SIZE % threads == thread) *loss = logf(s.sum) + (s.max - to_float(row[target]));
  int last = Vp / SIZE - 1;
  if (dloss == 0 || thread > last) return;
  float inverse = 1.0f / s.sum;
  for (int c = (last - (last - thread) % threads) * SIZE; c >= 0; c -= threads * SIZE) {
    float x[SIZE] = {};
    if (c < V) load_logits<T>(x, row, c, V);
    Pack<T> d;
#pragma unroll
    for (int k = 0; k < SIZE; k++) {
      float probability = c < V ? softmax_exp<T>(x[k] - s.max) * inverse : 0.0f;
      d[k] = from_float<T>((probability - (c + k == target ? 1.0f : 0.0f)) * dloss);
    }
    store16(row + c, d);
  }
}

constexpr int CE_WARPS = 4, CE_BLOCK = 512;

template <class T>
__global__ void cross_entropy_warp_kernel(float* losses, T* logits, const int* __restrict__ targets, float dloss, int n, int V,
                                          int Vp) {
  int lane = threadIdx.x % WARP, warps = gridDim.x * CE_WARPS;
  for (int row = blockIdx.x * CE_WARPS + threadIdx.x / WARP; row < n; row += warps) {
    T* x = logits + size_t(row) * Vp;
    SoftmaxSum s = sum_columns(x, lane, WARP, V);
    float max = warp_max(s.max);
    s.sum = warp_sum(s.sum * softmax_exp<T>(s.max - max));
    s.max = max;
    finish_row(losses + row, x, lane, WARP, s, targets[row], dloss, V, Vp);
  }
}

template <class T>
__global__ void cross_entropy_block_kernel(float* losses, T* logits, const int* __restrict__ targets, float dloss, int V, int Vp) {
  __shared__ float maxima[CE_BLOCK / WARP], sums[CE_BLOCK / WARP];
  T* x = logits + size_t(blockIdx.x) * Vp;
  SoftmaxSum s = sum_columns(x, threadIdx.x, CE_BLOCK, V);
  float max = warp_max(s.max), sum = warp_sum(s.sum * softmax_exp<T>(s.max - max));
  if (threadIdx.x % WARP == 0) {
    maxima[threadIdx.x / WARP] = max;
    sums[threadIdx.x / WARP] = sum;
  }
  __syncthreads();
  s = {};
  for (int w = 0; w < CE_BLOCK / WARP; w++) s.max = fmaxf(s.max, maxima[w]);
  for (int w = 0; w < CE_BLOCK / WARP; w++) s.sum += sums[w] * softmax_exp<T>(maxima[w] - s.max);
  finish_row(losses + blockIdx.x, x, threadIdx.x, CE_BLOCK, s, targets[blockIdx.x], dloss, V, Vp);
}

template <class T>
void cross_entropy(float* losses, T* logits, const int* targets, float dloss, int n, int V, int Vp, cudaStream_t stream) {
  if (n == 0) return;
  if (Vp <= 4096) {
    launch(cross_entropy_warp_kernel<T>, dim3(looping_blocks(n, CE_WARPS, 16)), dim3(CE_WARPS * WARP), 0, stream, losses, logits,
           targets, dloss, n, V, Vp);
  } else {
    launch(cross_entropy_block_kernel<T>, dim3(n), dim3(CE_BLOCK), 0, stream, losses, logits, targets, dloss, V, Vp);
  }
}

template void cross_entropy(float*, float*, const int*, float, int, int, int, cudaStream_t);
template void cross_entropy(float*, bf16*, const int*, float, int, int, int, cudaStream_t);
