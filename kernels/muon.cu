#include "kernels/muon.cuh"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "kernels/convert.cuh"
#include "kernels/elementwise.cuh"
#include "kernels/grad_norm.cuh"
#include "kernels/matmul.cuh"
#include "kernels/reduce.cuh"

constexpr int MUON_THREADS = 256, STEPS = 5;
constexpr float IDENTITY = 3.4445f, LINEAR = -4.7750f, SQUARE = 2.0315f, TINY = 1e-7f;

float Muon::scale(const RowBlock& matrix) const {
  auto m = double(matrix.rows), n = double(matrix.columns);
  return float(rms ? 0.2 * std::sqrt(std::max(m, n)) : std::sqrt(std::max(1.0, n / m)));
}

struct Momentum {
  float *m, *grad;
  const float* grad_scale;
  float momentum, rest;
  __device__ void operator()(size_t i, size_t) const {
    float g = grad[i] * grad_scale[0];
    m[i] += rest * (g - m[i]);
    grad[i] = rest * g + momentum * m[i];
  }
};

void muon_momentum(float* m, float* grad, const float* grad_scale, const RowBlock& matrix, size_t first, size_t last,
                   const Muon& settings, cudaStream_t stream) {
  Momentum f{m, grad, grad_scale, settings.momentum, float(1.0 - double(settings.momentum))};
  for_elements(f, matrix, first, last, stream);
}

// ---- an orthogonal update

// squares [MUON_BLOCKS] = sums of squares of the matrix, to be added up in their order.
__global__ void muon_squares_kernel(float* squares, const float* __restrict__ u, RowBlock matrix) {
  __shared__ float shared[MUON_THREADS / WARP];
  float sum = 0;
  for (size_t row = blockIdx.x; row < matrix.rows; row += MUON_BLOCKS) {
    const float* x = u + matrix.offset + row * matrix.stride;
    for (size_t column = threadIdx.x; column < matrix.columns; column += MUON_THREADS)
      sum = fmaf(x[column], x[column], sum);
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}

template <class T> struct Normalise {
  T* x;  // [m, n]
  const float *u, *norm;
  __device__ void operator()(size_t i, size_t n) const { x[n] = from_float<T>(u[i] / (norm[0] + TINY)); }
};

// P from A and A A [count, k, k], in place of A A.
template <class T> struct Polynomial {
  T* p;
  const T* a;
  size_t k;
  __device__ void operator()(size_t i, size_t) const {
    size_t within = i % (k * k);
    float identity = within / k == within % k ? IDENTITY : 0;
    p[i] = from_float<T>(identity + (LINEAR * to_float(a[i]) + SQUARE * to_float(p[i])));
  }
};

template <class T> void MuonWork<T>::plan(MemoryPlan& plan, std::span<const RowBlock> matrices, int most) {
  size_t largest = 0, square = 0;
  for (const RowBlock& matrix : matrices) {
    size_t k = std::min(matrix.rows, matrix.columns);
    largest = std::max(largest, matrix.size()), square = std::max(square, k * k);
  }
  for (T** array : {&x, &y}) plan.add(array, size_t(most) * largest, "workspace");
  for (T** array : {&gram, &polynomial}) plan.add(array, size_t(most) * square, "workspace");
  plan.add(&squares, MUON_BLOCKS, "workspace");
  plan.add(&norm, 2, "workspace");
}

template <class T>
void orthogonalise(float* u, std::span<const RowBlock> matrices, const MuonWork<T>& work, cudaStream_t stream) {
  const RowBlock& first = matrices[0];
  int m = int(first.rows), n = int(first.columns), k = std::min(m, n), count = int(matrices.size());
  size_t size = first.size(), squares = size_t(count) * k * k;
  bool tall = m > n;
  T *x = work.x, *y = work.y;
  for (int j = 0; j < count; j++) {
    LAUNCH(muon_squares_kernel, dim3(MUON_BLOCKS), dim3(MUON_THREADS), 0, stream, work.squares, u, matrices[j]);
    clip_scale(work.norm, work.norm + 1, work.squares, MUON_BLOCKS, 0, stream);
    for_elements(Normalise<T>{x + j * size, u, work.norm}, matrices[j], 0, size, stream);
  }
  for (int step = 0; step < STEPS; step++) {
    T *a = work.gram, *p = work.polynomial;
    matmul<T, T>(
        {.d = a, .a = x, .b = x, .m = k, .n = k, .k = tall ? m : n, .trans_a = tall, .trans_b = !tall, .batch = count},
        stream);
    matmul<T, T>({.d = p, .a = a, .b = a, .m = k, .n = k, .k = k, .batch = count}, stream);
    for_elements(Polynomial<T>{p, a, size_t(k)}, {0, 1, squares, squares}, 0, squares, stream);
    matmul<T, T>({.d = y, .a = tall ? x : p, .b = tall ? p : x, .m = m, .n = n, .k = k, .batch = count}, stream);
    std::swap(x, y);
  }
  for (int j = 0; j < count; j++) spread(u, x + j * size, matrices[j], 0, size, stream);
}

double orthogonalise_flops(const RowBlock& matrix) {
  double rows = double(matrix.rows), columns = double(matrix.columns);
  double k = std::min(rows, columns), l = std::max(rows, columns);
  return STEPS * (4 * k * k * l + 2 * k * k * k);
}

template <class T> struct Apply {
  T* param;
  float* master;
  const float* x;
  float decay, step;
  __device__ void operator()(size_t i, size_t) const {
    float p = master[i];
    master[i] = p = p - decay * p - step * x[i];
    if constexpr (!std::is_same_v<T, float>) param[i] = from_float<T>(p);
  }
};

template <class T>
void muon_apply(T* param, float* master, const float* x, const RowBlock& matrix, size_t first, size_t last,
                const Muon& settings, cudaStream_t stream) {
  auto lr = double(settings.lr);
  Apply<T> f{param, master, x, float(lr * settings.weight_decay), float(lr * settings.scale(matrix))};
  for_elements(f, matrix, first, last, stream);
}

#define FOR_TYPE(T)                                                                                 \
  template struct MuonWork<T>;                                                                      \
  template void orthogonalise(float*, std::span<const RowBlock>, const MuonWork<T>&, cudaStream_t); \
  template void muon_apply(T*, float*, const float*, const RowBlock&, size_t, size_t, const Muon&, cudaStream_t);
FOR_TYPE(float)
FOR_TYPE(bf16)
