#include "attention/kv_heads.cuh"

#include "kernels/elementwise.cuh"

namespace {

constexpr int THREADS = 128;

// A thread has W columns of a row of `wide`, of one head.
template <class T, int W> __global__ void repeat_heads_kernel(T* wide, const T* narrow, GroupedRows rows) {
  int column = int(blockIdx.x * blockDim.x + threadIdx.x) * W, A = rows.H * rows.D, KD = rows.K * rows.D;
  if (column >= rows.wide) return;
  int from = column;  // in narrow
  if (column >= 3 * A) {
    from = column < 3 * A + rows.more ? column - 2 * (A - KD) : -1;
  } else if (column >= A) {
    int part = column / A, h = column % A / rows.D;
    from = A + (part - 1) * KD + h / (rows.H / rows.K) * rows.D + column % rows.D;
  }
  for (int row = blockIdx.y; row < rows.N; row += gridDim.y) {
    float x[W] = {};
    if (from >= 0) read_floats<W>(x, narrow + size_t(row) * rows.narrow + from);
    write_floats<W>(wide + size_t(row) * rows.wide + column, x);
  }
}

// A thread has W columns of a row of `narrow`.
template <class T, int W> __global__ void add_repeated_heads_kernel(T* narrow, const T* wide, GroupedRows rows) {
  int column = int(blockIdx.x * blockDim.x + threadIdx.x) * W, A = rows.H * rows.D, KD = rows.K * rows.D;
  if (column >= rows.narrow) return;
  int from = column, heads = 1;  // in wide
  if (column >= A + 2 * KD) {
    from = column + 2 * (A - KD), heads = column < A + 2 * KD + rows.more;
  } else if (column >= A) {
    heads = rows.H / rows.K;
    int part = (column - A) / KD, k = (column - A) % KD / rows.D;
    from = (part + 1) * A + k * heads * rows.D + (column - A) % rows.D;
  }
  for (int row = blockIdx.y; row < rows.N; row += gridDim.y) {
    float sum[W] = {}, x[W];
    for (int h = 0; h < heads; h++) {
      read_floats<W>(x, wide + size_t(row) * rows.wide + from + h * rows.D);
      for (int i = 0; i < W; i++) sum[i] += x[i];
    }
    write_floats<W>(narrow + size_t(row) * rows.narrow + column, sum);
  }
}

// launch.operator()<W>(grid of a row of `width` columns): 16-byte accesses where no pack crosses heads or parts.
template <class T, class F> void with_packs(const GroupedRows& rows, int width, const T* a, const T* b, F launch) {
  constexpr int W = Pack<T>::size;
  bool wide = rows.D % W == 0 && rows.more % W == 0 && rows.narrow % W == 0 && rows.wide % W == 0 && aligned16(a, b);
  if (wide) launch.template operator()<W>(grid_of_rows(rows.N, width / W, THREADS));
  else launch.template operator()<1>(grid_of_rows(rows.N, width, THREADS));
}

}  // namespace

template <class T> void repeat_heads(T* wide, const T* narrow, const GroupedRows& rows, cudaStream_t stream) {
  if (rows.N == 0) return;
  with_packs<T>(rows, rows.wide, wide, narrow, [&]<int W>(dim3 grid) {
    LAUNCH((repeat_heads_kernel<T, W>), grid, dim3(THREADS), 0, stream, wide, narrow, rows);
  });
}

template <class T> void add_repeated_heads(T* narrow, const T* wide, const GroupedRows& rows, cudaStream_t stream) {
  if (rows.N == 0) return;
  with_packs<T>(rows, rows.narrow, narrow, wide, [&]<int W>(dim3 grid) {
    LAUNCH((add_repeated_heads_kernel<T, W>), grid, dim3(THREADS), 0, stream, narrow, wide, rows);
  });
}

#define INSTANTIATE(T)                                                        \
  template void repeat_heads(T*, const T*, const GroupedRows&, cudaStream_t); \
  template void add_repeated_heads(T*, const T*, const GroupedRows&, cudaStream_t);
INSTANTIATE(float)
INSTANTIATE(bf16)
