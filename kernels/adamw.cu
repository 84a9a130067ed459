#include "kernels/adamw.cuh"

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "base/error.h"
#include "kernels/elementwise.cuh"

// AdamW's numbers that depend only on the step.
struct AdamWStep {
  float decay;  // lr weight_decay, as p -= decay p: 1 - decay would be rounded, with the same error every step
  float one_minus_beta1, beta2, one_minus_beta2;
  float step_size;     // lr / (1 - beta1^step)
  float inverse_root;  // 1 / sqrt(1 - beta2^step)
  float eps;
};

static AdamWStep step_of(const AdamW& a) {
  AdamWStep s;
  s.decay = float(double(a.lr) * a.weight_decay);
  s.one_minus_beta1 = float(1.0 - double(a.beta1));
  s.beta2 = a.beta2;
  s.one_minus_beta2 = float(1.0 - double(a.beta2));
  s.step_size = float(double(a.lr) / (1.0 - std::pow(double(a.beta1), a.step)));
  s.inverse_root = float(1.0 / std::sqrt(1.0 - std::pow(double(a.beta2), a.step)));
  s.eps = a.eps;
  return s;
}

__device__ inline float adamw_step(float m, float v, const AdamWStep& s) {
  return s.step_size * (m / (sqrtf(v) * s.inverse_root + s.eps));
}
__device__ inline void adamw_element(float& p, float& m, float& v, float g, const AdamWStep& s) {
  m += s.one_minus_beta1 * (g - m);
  v = s.beta2 * v + s.one_minus_beta2 * (g * g);
  p = p - s.decay * p - adamw_step(m, v, s);
}

// A thread's packs of four floats are a block apart, so that a warp's accesses are contiguous.
constexpr int ADAMW_THREADS = 256, ADAMW_PACKS = 2;

template <class T>
__global__ void adamw_kernel(T* param, float* master, float* m, float* v, const float* __restrict__ grad,
                             const float* grad_scale, size_t n, bool aligned, AdamWStep s) {
  constexpr int STRIDE = ADAMW_THREADS * 4;
  size_t first = blockIdx.x * size_t(STRIDE * ADAMW_PACKS) + threadIdx.x * 4;
  float scale = grad_scale[0];
  if (aligned && first + STRIDE * (ADAMW_PACKS - 1) + 4 <= n) {
    struct alignas(16) Elements {
      float x[4 * ADAMW_PACKS];
      __device__ void load(const float* from) {
#pragma unroll
        for (int u = 0; u < ADAMW_PACKS; u++) *reinterpret_cast<Pack<float>*>(x + 4 * u) = load16(from + u * STRIDE);
      }
      __device__ void store(float* to) const {
#pragma unroll
        for (int u = 0; u < ADAMW_PACKS; u++)
          store16(to + u * STRIDE, *reinterpret_cast<const Pack<float>*>(x + 4 * u));
      }
    } ep, em, ev, eg;
    ep.load(master + first);
    em.load(m + first);
    ev.load(v + first);
    eg.load(grad + first);
#pragma unroll
    for (int k = 0; k < 4 * ADAMW_PACKS; k++) adamw_element(ep.x[k], em.x[k], ev.x[k], eg.x[k] * scale, s);
    ep.store(master + first);
    em.store(m + first);
    ev.store(v + first);
    if constexpr (!std::is_same_v<T, float>) {
      struct alignas(8) Four {
        T x[4];
      };
      T rounded[4 * ADAMW_PACKS];
#pragma unroll
      for (int k = 0; k < 4 * ADAMW_PACKS; k++) rounded[k] = from_float<T>(ep.x[k]);
#pragma unroll
      for (int u = 0; u < ADAMW_PACKS; u++)
        *reinterpret_cast<Four*>(param + first + u * STRIDE) = {rounded[4 * u], rounded[4 * u + 1], rounded[4 * u + 2],
                                                                rounded[4 * u + 3]};
    }
    return;
  }
  for (size_t pack = first; pack < first + STRIDE * ADAMW_PACKS; pack += STRIDE) {
    for (size_t i = pack; i < pack + 4 && i < n; i++) {
      float p = master[i], pm = m[i], pv = v[i];
      adamw_element(p, pm, pv, grad[i] * scale, s);
      master[i] = p;
      m[i] = pm;
      v[i] = pv;
      if constexpr (!std::is_same_v<T, float>) param[i] = from_float<T>(p);
    }
  }
}

template <class T>
void adamw_update(T* param, float* master, float* m, float* v, const float* grad, const float* grad_scale, size_t n,
                  const AdamW& a, cudaStream_t stream) {
  if (n == 0) return;
  if (std::is_same_v<T, float> && static_cast<void*>(param) != static_cast<void*>(master))
    failure("adamw_update: with float32 parameters the master weights must be the parameters themselves");
  // The 16-bit parameter is written 8 bytes at a time.
  bool aligned = aligned16(master, m, v, grad) && reinterpret_cast<uintptr_t>(param) % 8 == 0;
  LAUNCH(adamw_kernel<T>, dim3(blocks_for(n, ADAMW_THREADS * ADAMW_PACKS * 4)), dim3(ADAMW_THREADS), 0, stream, param,
         master, m, v, grad, grad_scale, n, aligned, step_of(a));
}

template <class T> struct AdamWElement {
  T* param;
  float *master, *m, *v;
  const float *grad, *grad_scale;
  AdamWStep step;
  __device__ void operator()(size_t i, size_t n) const {
    float p = master[i];
    adamw_element(p, m[i], v[n], grad[i] * grad_scale[0], step);
    master[i] = p;
    if constexpr (!std::is_same_v<T, float>) param[i] = from_float<T>(p);
  }
};

template <class T>
void adamw_update_rows(T* param, float* master, float* m, float* v, const float* grad, const float* grad_scale,
                       const RowBlock& block, size_t first, size_t count, const AdamW& a, cudaStream_t stream) {
  AdamWElement<T> update{param, master, m, v - first, grad, grad_scale, step_of(a)};
  for_elements(update, block, first, first + count, stream);
}

// In float64: how the elements are spread over ranks is not to be seen in the norms of metrics.jsonl.
__global__ void step_sums_kernel(double* sums, RowBlock block, size_t begin, size_t end, const float* __restrict__ grad,
                                 const float* __restrict__ master, const float* __restrict__ m,
                                 const float* __restrict__ v, size_t v_stride, AdamWStep s) {
  __shared__ double shared[3][ADAMW_THREADS];
  double squares[3] = {};
  for (size_t n = blockIdx.x * size_t(ADAMW_THREADS) + threadIdx.x; n < block.rows * block.columns;
       n += gridDim.x * size_t(ADAMW_THREADS)) {
    size_t row = n / block.columns, column = n % block.columns, i = block.offset + row * block.stride + column;
    if (i < begin || i >= end) continue;
    float update = v ? adamw_step(m[i], v[row * v_stride + column], s) : s.step_size * m[i];
    float values[3] = {grad[i], master[i], update};
    for (int k = 0; k < 3; k++) squares[k] += double(values[k]) * values[k];
  }
  for (int k = 0; k < 3; k++) shared[k][threadIdx.x] = squares[k];
  __syncthreads();
  if (threadIdx.x >= 3) return;
  double sum = 0;
  for (int i = 0; i < ADAMW_THREADS; i++) sum += shared[threadIdx.x][i];
  sums[3 * blockIdx.x + threadIdx.x] += sum;
}

void add_step_sums(double* sums, const RowBlock& block, size_t begin, size_t end, const float* grad,
                   const float* master, const float* m, const float* v, size_t v_stride, const AdamW& settings,
                   cudaStream_t stream) {
  LAUNCH(step_sums_kernel, dim3(STEP_SUM_BLOCKS), dim3(ADAMW_THREADS), 0, stream, sums, block, begin, end, grad, master,
         m, v, v_stride, step_of(settings));
}

template void adamw_update(float*, float*, float*, float*, const float*, const float*, size_t, const AdamW&,
                           cudaStream_t);
template void adamw_update(bf16*, float*, float*, float*, const float*, const float*, size_t, const AdamW&,
                           cudaStream_t);
template void adamw_update_rows(float*, float*, float*, float*, const float*, const float*, const RowBlock&, size_t,
                                size_t, const AdamW&, cudaStream_t);
template void adamw_update_rows(bf16*, float*, float*, float*, const float*, const float*, const RowBlock&, size_t,
                                size_t, const AdamW&, cudaStream_t);
