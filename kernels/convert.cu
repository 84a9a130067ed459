#include "kernels/convert.cuh"

#include "kernels/elementwise.cuh"

struct Same {
  __device__ float operator()(float x) const { return x; }
};

template <class TOut, class TIn> void convert(TOut* out, const TIn* in, size_t n, cudaStream_t stream) {
  elementwise(Same(), out, n, stream, in);
}

template void convert(bf16*, const float*, size_t, cudaStream_t);
template void convert(float*, const float*, size_t, cudaStream_t);
