#include "kernels/squared_error.cuh"

#include "kernels/elementwise.cuh"

constexpr int SE_THREADS = 128;

template <class T>
__global__ void squared_error_kernel(float* losses, float* y, T* dy, const T* __restrict__ bias,
                                     const float* __restrict__ targets, const float* __restrict__ weights, float dloss,
                                     int n, int K, int Kp) {
  int row = blockIdx.x * SE_THREADS + threadIdx.x;
  if (row >= n) return;
  y += size_t(row) * Kp;
  const float* target = targets ? targets + size_t(row) * K : nullptr;
  float sum = 0;
  int count = 0;
  for (int k = 0; k < K; k++) {
    y[k] += to_float(bias[k]);
    if (!target || isnan(target[k])) continue;
    float error = y[k] - target[k];
    sum += error * error;
    count++;
  }
  if (!target) return;
  float weight = weights ? weights[row] : 1, scale = count > 0 ? weight / float(count) : 0;
  losses[row] = sum * scale;
  if (dloss == 0) return;
  scale *= 2 * dloss;
  dy += size_t(row) * Kp;
  for (int k = 0; k < Kp; k++) dy[k] = from_float<T>(k < K && !isnan(target[k]) ? (y[k] - target[k]) * scale : 0.0f);
}

template <class T>
void squared_error(float* losses, float* y, T* dy, const T* bias, const float* targets, const float* weights,
                   float dloss, int n, int K, int Kp, cudaStream_t stream) {
  if (n == 0) return;
  LAUNCH(squared_error_kernel<T>, dim3(blocks_for(n, SE_THREADS)), dim3(SE_THREADS), 0, stream, losses, y, dy, bias,
         targets, weights, dloss, n, K, Kp);
}

template void squared_error(float*, float*, float*, const float*, const float*, const float*, float, int, int, int,
                            cudaStream_t);
template void squared_error(float*, float*, bf16*, const bf16*, const float*, const float*, float, int, int, int,
                            cudaStream_t);
