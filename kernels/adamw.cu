#include "kernels/adamw.cuh"

#include <cmath>
#include <type_traits>

#include "kernels/elementwise.cuh"
#include "runtime/error.h"

// AdamW with everything that depends only on the step already worked out.
struct AdamWStep {
  float decay;            // lr weight_decay; 1 - that would be rounded, the same way at every step
  float one_minus_beta1, beta2, one_minus_beta2;
  float step_size;        // lr / (1 - beta1^step)
  float inverse_root;     // 1 / sqrt(1 - beta2^step)
  float eps;
};

__device__ inline void adamw_element(float& p, float& m, float& v, float g, const AdamWStep& s) {
  m += s.one_minus_beta1 * (g - m);
  v = s.beta2 * v + s.one_minus_beta2 * (g * g);
  p = p - s.decay * p - s.step_size * (m / (sqrtf(v) * s.inverse_root + s.eps));
}

constexpr int ADAMW_THREADS = 256, ADAMW_PACKS = 2;   // packs of four floats: a warp's accesses stay contiguous

template <class T>
__global__ void adamw_kernel(T* param, float* master, float* m, float* v, const float* __restrict__ grad, const float* grad_scale,
                             size_t n, bool aligned, AdamWStep s) {
  float scale = grad_scale[0];
  size_t first = blockIdx.x * size_t(ADAMW_THREADS * ADAMW_PACKS * 4) + threadIdx.x * 4;
#pragma unroll
  for (int u = 0; u < ADAMW_PACKS; u++) {
    size_t i = first + u * size_t(ADAMW_THREADS * 4);
    if (aligned && i + 4 <= n) {
      Pack<float> p = load16(master + i), pm = load16(m + i), pv = load16(v + i), g = load16_streaming(grad + i);
#pragma unroll
      for (int k = 0; k < 4; k++) adamw_element(p[k], pm[k], pv[k], g[k] * scale, s);
      store16(master + i, p);
      store16(m + i, pm);
      store16(v + i, pv);
      if constexpr (!std::is_same_v<T, float>) {
        struct alignas(8) Four { T x[4]; } four;
#pragma unroll
        for (int k = 0; k < 4; k++) four.x[k] = from_float<T>(p[k]);
        *reinterpret_cast<Four*>(param + i) = four;
      }
    } else {
      for (size_t end = i + 4 < n ? i + 4 : n; i < end; i++) {
        float p = master[i], pm = m[i], pv = v[i];
        adamw_element(p, pm, pv, grad[i] * scale, s);
        master[i] = p;
        m[i] = pm;
        v[i] = pv;
        if constexpr (!std::is_same_v<T, float>) param[i] = from_float<T>(p);
      }
    }
  }
}

template <class T>
void adamw_update(T* param, float* master, float* m, float* v, const float* grad, const float* grad_scale, size_t n,
                  const AdamW& a, cudaStream_t stream) {
  if (n == 0) return;
  if (std::is_same_v<T, float> && static_cast<void*>(param) != static_cast<void*>(master))
    failure("adamw_update: with float32 parameters the master weights must be the parameters themselves.");
  AdamWStep s;
  s.decay = float(double(a.lr) * a.weight_decay);
  s.one_minus_beta1 = float(1.0 - double(a.beta1));
  s.beta2 = a.beta2;
  s.one_minus_beta2 = float(1.0 - double(a.beta2));
  s.step_size = float(double(a.lr) / (1.0 - std::pow(double(a.beta1), a.step)));
  s.inverse_root = float(1.0 / std::sqrt(1.0 - std::pow(double(a.beta2), a.step)));
  s.eps = a.eps;
  // The 16-bit parameter is written 8 bytes at a time.
  bool aligned = aligned16(master, m, v, grad) && reinterpret_cast<uintptr_t>(param) % 8 == 0;
  launch(adamw_kernel<T>, dim3(blocks_for(n, ADAMW_THREADS * ADAMW_PACKS * 4)), dim3(ADAMW_THREADS), 0, stream, param, master, m, v,
         grad, grad_scale, n, aligned, s);
}

template void adamw_update(float*, float*, float*, float*, const float*, const float*, size_t, const AdamW&, cudaStream_t);
template void adamw_update(bf16*, float*, float*, float*, const float*, const float*, size_t, const AdamW&, cudaStream_t);
