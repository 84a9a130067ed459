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

struct Spread {
  float* array;
  const float* list;
  size_t first;
  __device__ void operator()(size_t i, size_t n) const { array[i] = list[n - first]; }
};
struct Collect {
  float* list;
  const float* array;
  size_t first;
  __device__ void operator()(size_t i, size_t n) const { list[n - first] = array[i]; }
};

void spread(float* array, const float* list, const RowBlock& block, size_t first, size_t count, cudaStream_t stream) {
  for_elements(Spread{array, list, first}, block, first, first + count, stream);
}
void collect(float* list, const float* array, const RowBlock& block, size_t first, size_t count, cudaStream_t stream) {
  for_elements(Collect{list, array, first}, block, first, first + count, stream);
}
