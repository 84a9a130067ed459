#include "kernels/grad_norm.cuh"

#include "kernels/elementwise.cuh"
#include "kernels/reduce.cuh"

constexpr int NORM_THREADS = 256;

__global__ void square_sums_kernel(float* partial, const float* __restrict__ x, size_t n, bool aligned) {
  __shared__ float shared[NORM_THREADS / WARP];
  size_t begin = blockIdx.x * NORM_BLOCK, end = begin + NORM_BLOCK < n ? begin + NORM_BLOCK : n;
  size_t packs = aligned ? (end - begin) / 4 : 0, i = threadIdx.x;
  float sum[4] = {};
#pragma unroll 8
  for (; i < packs; i += NORM_THREADS) {
    Pack<float> p = load16(x + begin + 4 * i);
    for (int k = 0; k < 4; k++) sum[k] = fmaf(p[k], p[k], sum[k]);
  }
  // An element belongs to the same thread and sum whether the array is aligned or not, and fmaf leaves the compiler no
  // choice of rounding: equal values give equal bits.
  for (; begin + 4 * i < end; i += NORM_THREADS) {
    for (int k = 0; k < 4; k++) {
      float v = begin + 4 * i + k < end ? x[begin + 4 * i + k] : 0.0f;
      sum[k] = fmaf(v, v, sum[k]);
    }
  }
  float total = block_sum((sum[0] + sum[1]) + (sum[2] + sum[3]), shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

void square_sums(float* partial, const float* x, size_t n, cudaStream_t stream) {
  if (n == 0) return;
  LAUNCH(square_sums_kernel, dim3(unsigned(square_sums_count(n))), dim3(NORM_THREADS), 0, stream, partial, x, n,
         aligned16(x));
}

// One block; float64, since there can be 10^4 partial sums and this costs nothing.
__global__ void clip_scale_kernel(float* norm, float* scale, const float* partial, int count, float clip) {
  __shared__ double sums[NORM_THREADS];
  double sum = 0;
#pragma unroll 4
  for (int i = threadIdx.x; i < count; i += NORM_THREADS) sum += partial[i];
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x >= WARP) return;
  for (int i = threadIdx.x + WARP; i < NORM_THREADS; i += WARP) sum += sums[i];
  sums[threadIdx.x] = sum;
  warp_sync();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < WARP; i++) sum += sums[i];
  float root = float(sqrt(sum));
  norm[0] = root;
  scale[0] = clip > 0 && root > clip ? clip / root : 1.0f;
}

void clip_scale(float* norm, float* scale, const float* partial, int count, float clip, cudaStream_t stream) {
  LAUNCH(clip_scale_kernel, dim3(1), dim3(NORM_THREADS), 0, stream, norm, scale, partial, count, clip);
}
