#include "kernels/mlp.cuh"

#include "kernels/elementwise.cuh"

struct Relu2 {
  __device__ float operator()(float x) const { return x > 0.0f ? x * x : x * 0.0f; }  // NaN passes
};
struct Relu2Backward {
  __device__ float operator()(float dout, float x) const { return dout * (x > 0.0f ? 2.0f * x : x * 0.0f); }
};

template <class T> void relu2_forward(T* out, const T* x, size_t n, cudaStream_t stream) {
  elementwise(Relu2(), out, n, stream, x);
}
template <class T> void relu2_backward(T* dx, const T* dout, const T* x, size_t n, cudaStream_t stream) {
  elementwise(Relu2Backward(), dx, n, stream, dout, x);
}

// Below -80 it is 0 to 1e-33, and exp stays finite. NaN passes.
__device__ __forceinline__ float sigmoid_of_gate(float x) {
  return 1.0f / (1.0f + fast_exp2((x < -80.0f ? -80.0f : x) * -1.44269504f));
}

// A thread for 8 channels of a row.
template <class T> __global__ void swiglu_forward_kernel(T* __restrict__ out, const T* __restrict__ x, int N, int F) {
  unsigned unit = blockIdx.x * blockDim.x + threadIdx.x, units = unsigned(F) / UNIT, row = unit / units;
  if (row >= unsigned(N)) return;
  unsigned c = unit % units * UNIT;
  Unit<T> gate, up, y;
  gate.load(x + size_t(row) * 2 * F + c);
  up.load(x + (size_t(row) * 2 + 1) * F + c);
#pragma unroll
  for (int k = 0; k < UNIT; k++) {
    float g = to_float(gate.x[k]);
    y.x[k] = from_float<T>(g * sigmoid_of_gate(g) * to_float(up.x[k]));
  }
  y.store(out + size_t(row) * F + c);
}

template <class T>
__global__ void swiglu_backward_kernel(T* __restrict__ dx, const T* __restrict__ dout, const T* __restrict__ x, int N,
                                       int F) {
  unsigned unit = blockIdx.x * blockDim.x + threadIdx.x, units = unsigned(F) / UNIT, row = unit / units;
  if (row >= unsigned(N)) return;
  unsigned c = unit % units * UNIT;
  size_t at = size_t(row) * 2 * F + c;
  Unit<T> gate, up, d, dgate, dup;
  gate.load(x + at);
  up.load(x + at + F);
  d.load(dout + size_t(row) * F + c);
#pragma unroll
  for (int k = 0; k < UNIT; k++) {
    float g = to_float(gate.x[k]), sigmoid = sigmoid_of_gate(g), dy = to_float(d.x[k]);
    dgate.x[k] = from_float<T>(dy * to_float(up.x[k]) * (sigmoid + g * sigmoid * (1.0f - sigmoid)));
    dup.x[k] = from_float<T>(dy * g * sigmoid);
  }
  dgate.store(dx + at);
  dup.store(dx + at + F);
}

template <class T> void swiglu_forward(T* out, const T* x, int N, int F, cudaStream_t stream) {
  if (N == 0) return;
  LAUNCH(swiglu_forward_kernel<T>, dim3(blocks_for(size_t(N) * F, 256 * UNIT)), dim3(256), 0, stream, out, x, N, F);
}
template <class T> void swiglu_backward(T* dx, const T* dout, const T* x, int N, int F, cudaStream_t stream) {
  if (N == 0) return;
  LAUNCH(swiglu_backward_kernel<T>, dim3(blocks_for(size_t(N) * F, 256 * UNIT)), dim3(256), 0, stream, dx, dout, x, N,
         F);
}

#define INSTANTIATE(T)                                                        \
  template void relu2_forward(T*, const T*, size_t, cudaStream_t);            \
  template void relu2_backward(T*, const T*, const T*, size_t, cudaStream_t); \
  template void swiglu_forward(T*, const T*, int, int, cudaStream_t);         \
  template void swiglu_backward(T*, const T*, const T*, int, int, cudaStream_t);
INSTANTIATE(float)
INSTANTIATE(bf16)
