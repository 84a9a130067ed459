#include "kernels/gelu.cuh"

#include "kernels/elementwise.cuh"

struct Gelu {
  __device__ float operator()(float x) const { return gelu(x); }
};

template <class T> void gelu_forward(T* out, const T* x, size_t n, cudaStream_t stream) {
  elementwise(Gelu(), out, n, stream, x);
}

template void gelu_forward(float*, const float*, size_t, cudaStream_t);
template void gelu_forward(bf16*, const bf16*, size_t, cudaStream_t);
