// Shared by kernels: packs as floats, sums of packs, sizes of grids, and elementwise kernels:
//   elementwise(f, out, n, stream, in...): out[i] = f(in[i]...) for arrays of any length and alignment. f is a struct
//   whose operator() takes and returns floats; out may be one of the inputs.
//   for_elements(f, block, first, last, stream): f(i, n) for elements n = first .. last - 1 of a block, each with its
//   place i in the array. f is a struct.
// Loops over the elements of a pack have no branches and convert from and to float in the same expression, and running
// sums have one float per element of a pack, so that the CPU's compiler makes vector instructions of them.
#pragma once
#include <cstdint>

#include "kernels/gpu.cuh"
#include "kernels/row_block.h"

// x[0] + ... + x[SIZE - 1] by halves; x is overwritten.
template <int SIZE> __device__ __forceinline__ float sum_of(float (&x)[SIZE]) {
#pragma unroll
  for (int half = SIZE / 2; half > 0; half /= 2)
#pragma unroll
    for (int k = 0; k < half; k++) x[k] += x[k + half];
  return x[0];
}

// W neighbouring elements as floats: packs, or one.
template <int W, class T> __device__ __forceinline__ void read_floats(float (&v)[W], const T* p) {
  if constexpr (W == 1) {
    v[0] = to_float(*p);
  } else {
    for (int i = 0; i < W; i += Pack<T>::size) {
      Pack<T> pack = load16(p + i);
      for (int k = 0; k < Pack<T>::size; k++) v[i + k] = to_float(pack[k]);
    }
  }
}
template <int W, class T> __device__ __forceinline__ void write_floats(T* p, const float (&v)[W]) {
  if constexpr (W == 1) {
    *p = from_float<T>(v[0]);
  } else {
    for (int i = 0; i < W; i += Pack<T>::size) {
      Pack<T> pack;
      for (int k = 0; k < Pack<T>::size; k++) pack[k] = from_float<T>(v[i + k]);
      store16(p + i, pack);
    }
  }
}

// Eight elements, in one access of bf16 or two of float.
inline constexpr int UNIT = 8;
template <class T> struct alignas(16) Unit {
  T x[UNIT];
  __device__ __forceinline__ void load(const T* p) {
#pragma unroll
    for (int i = 0; i < UNIT; i += Pack<T>::size) *reinterpret_cast<Pack<T>*>(x + i) = load16(p + i);
  }
  __device__ __forceinline__ void store(T* p) const {
#pragma unroll
    for (int i = 0; i < UNIT; i += Pack<T>::size) store16(p + i, *reinterpret_cast<const Pack<T>*>(x + i));
  }
};

template <class... P> bool aligned16(const P*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

inline unsigned blocks_for(size_t items, size_t per_block) { return unsigned((items + per_block - 1) / per_block); }

// For kernels that loop over rows by gridDim.y: a thread for each of `columns` of a row.
inline dim3 grid_of_rows(int rows, int columns, int threads) {
  return dim3(blocks_for(columns, threads), unsigned(rows < 65535 ? rows : 65535));
}

// For kernels that loop: enough blocks to fill the machine, but so few that the CPU layer does not start a thread for
// every row.
inline unsigned looping_blocks(size_t items, size_t per_block, int per_multiprocessor) {
  unsigned needed = blocks_for(items, per_block);
  unsigned most = unsigned(device_properties().multiProcessorCount * per_multiprocessor);
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
      for (int k = 0; k < UNIT; k++) result.x[k] = from_float<TOut>(f(to_float(x.x[k])...));
    }(Unit<TIn>()...);
    result.store(out + i);
  } else {
    for (size_t end = i + UNIT < n ? i + UNIT : n; i < end; i++) out[i] = from_float<TOut>(f(to_float(in[i])...));
  }
}

template <class F, class TOut, class... TIn>
void elementwise(F f, TOut* out, size_t n, cudaStream_t stream, const TIn*... in) {
  if (n == 0) return;
  LAUNCH((elementwise_kernel<F, TOut, TIn...>), dim3(blocks_for(n, 256 * UNIT)), dim3(256), 0, stream, out, n,
         aligned16(out, in...), f, in...);
}

// A warp takes PART columns of a row.
template <class F> __global__ void for_elements_kernel(F f, RowBlock block, size_t first, size_t last) {
  constexpr size_t PART = UNIT * WARP;
  size_t parts = (block.columns + PART - 1) / PART, part = (blockIdx.x * size_t(blockDim.x) + threadIdx.x) / WARP;
  size_t row = part / parts, column = part % parts * PART + threadIdx.x % WARP;
  if (row >= block.rows) return;
#pragma unroll 4
  for (int k = 0; k < UNIT; k++, column += WARP) {
    size_t n = row * block.columns + column;
    if (column < block.columns && n >= first && n < last) f(block.offset + row * block.stride + column, n);
  }
}

template <class F> void for_elements(F f, const RowBlock& block, size_t first, size_t last, cudaStream_t stream) {
  if (first >= last) return;
  size_t parts = block.rows * blocks_for(block.columns, UNIT * WARP);
  LAUNCH(for_elements_kernel<F>, dim3(blocks_for(parts * WARP, 256)), dim3(256), 0, stream, f, block, first, last);
}
