// out[i] = f(in[i]...) for arrays of any length: eight elements a thread, in 16-byte accesses where every array is aligned,
// one by one otherwise. f is a struct whose operator() takes and returns floats. out may be one of the inputs.
// Also here: what launchers share to size their grids.
#pragma once
#include <cstdint>

#include "kernels/gpu.cuh"

inline constexpr int UNIT = 8;   // elements of a thread: one access of bf16, two of float

// UNIT elements in registers, moved by 16-byte accesses.
template <class T>
struct Unit {
  static constexpr int packs = UNIT / Pack<T>::size;
  Pack<T> pack[packs];
  __device__ float get(int k) const { return to_float(pack[k / Pack<T>::size].x[k % Pack<T>::size]); }
  __device__ void set(int k, float v) { pack[k / Pack<T>::size].x[k % Pack<T>::size] = from_float<T>(v); }
  __device__ void load(const T* p) {
    for (int i = 0; i < packs; i++) pack[i] = load16(p + i * Pack<T>::size);
  }
  __device__ void store(T* p) const {
    for (int i = 0; i < packs; i++) store16(p + i * Pack<T>::size, pack[i]);
  }
};

template <class... P>
bool aligned16(const P*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

inline unsigned blocks_for(size_t items, size_t per_block) { return unsigned((items + per_block - 1) / per_block); }

// For kernels that loop: enough blocks to fill the machine, few enough that the CPU layer does not start a thread per row.
inline unsigned looping_blocks(size_t items, size_t per_block, int per_multiprocessor) {
  static const int multiprocessors = [] {
    cudaDeviceProp properties;
    int device = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
    return properties.multiProcessorCount > 0 ? properties.multiProcessorCount : 1;
  }();
  unsigned needed = blocks_for(items, per_block), most = unsigned(multiprocessors * per_multiprocessor);
  return needed < most ? needed : most;
}

template <class F, class TOut, class... TIn>
__global__ void elementwise_kernel(TOut* out, size_t n, bool aligned, F f, const TIn*... in) {
  size_t i = (blockIdx.x * size_t(blockDim.x) + threadIdx.x) * UNIT;
  if (aligned && i + UNIT <= n) {
    Unit<TOut> result;
    [&](Unit<TIn>... x) {
      (x.load(in + i), ...);
#pragma unroll
      for (int k = 0; k < UNIT; k++) result.set(k, f(x.get(k)...));
    }(Unit<TIn>()...);
    result.store(out + i);
  } else {
    for (size_t end = i + UNIT < n ? i + UNIT : n; i < end; i++) out[i] = from_float<TOut>(f(to_float(in[i])...));
  }
}

template <class F, class TOut, class... TIn>
void elementwise(F f, TOut* out, size_t n, cudaStream_t stream, const TIn*... in) {
  if (n == 0) return;
  launch((elementwise_kernel<F, TOut, TIn...>), dim3(blocks_for(n, 256 * UNIT)), dim3(256), 0, stream, out, n,
         aligned16(out, in...), f, in...);
}
