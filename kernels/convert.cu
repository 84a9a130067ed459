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

template <class T> struct Spread {
  float* array;
  const T* list;
  __device__ void operator()(size_t i, size_t n) const { array[i] = to_float(list[n]); }
};
struct Collect {
  float* list;
  const float* array;
  __device__ void operator()(size_t i, size_t n) const { list[n] = array[i]; }
};

template <class T>
void spread(float* array, const T* list, const RowBlock& block, size_t first, size_t count, cudaStream_t stream) {
  for_elements(Spread<T>{array, list - first}, block, first, first + count, stream);
}
void collect(float* list, const float* array, const RowBlock& block, size_t first, size_t count, cudaStream_t stream) {
  for_elements(Collect{list - first, array}, block, first, first + count, stream);
}

template void spread(float*, const float*, const RowBlock&, size_t, size_t, cudaStream_t);
template void spread(float*, const bf16*, const RowBlock&, size_t, size_t, cudaStream_t);
