// For all three families of kernels: where the rows of one head of one sequence are, and the numbers per row that the
// backward kernels read besides q, k, v and dO. Shapes: qkv, dqkv [B, T, 3, H, D] with rows qkv_stride apart, out, dout
// [B, T, H, D].
#pragma once
#include <initializer_list>

#include "attention/kernel_table.h"
#include "attention/tile_sizes.h"
#include "kernels/elementwise.cuh"
#include "kernels/reduce.cuh"

// One head of one sequence: row r begins at x + r stride and has D channels. wide: 16-byte accesses are possible.
template <class T> struct Head {
  const T* x;
  size_t stride;
  int rows, D;
  bool wide;
};

struct Shape {
  int T, H, D;
  bool wide;
  size_t qkv_stride;
  int row_pitch;  // rows of a head in the workspace: T or more
  __host__ __device__ int chunks(int channels) const { return (D + channels - 1) / channels; }
  __host__ __device__ size_t rows(int B) const { return size_t(B) * H * T; }
  __host__ __device__ size_t row_values(int B) const { return size_t(B) * H * row_pitch; }
};

// wide only if every array begins at a multiple of 16 bytes
template <class T> Shape shape_of(const AttentionShape& s, int qkv_stride, std::initializer_list<const void*> arrays) {
  if (qkv_stride == 0) qkv_stride = 3 * s.H * s.D;
  bool wide = s.D % Pack<T>::size == 0 && qkv_stride % Pack<T>::size == 0;
  for (const void* array : arrays) wide = wide && aligned16(array);
  return {s.T, s.H, s.D, wide, size_t(qkv_stride), s.T};
}

// A head of qkv (part 0: q, 1: k, 2: v), and of a tensor [B, T, H, D].
template <class T> __device__ Head<T> head_of_qkv(const T* qkv, int part, int b, int h, const Shape& s) {
  size_t A = size_t(s.H) * s.D;
  return {qkv + size_t(b) * s.T * s.qkv_stride + part * A + size_t(h) * s.D, s.qkv_stride, s.T, s.D, s.wide};
}
template <class T> __device__ Head<T> head_of_out(const T* out, int b, int h, const Shape& s) {
  size_t A = size_t(s.H) * s.D;
  return {out + size_t(b) * s.T * A + size_t(h) * s.D, A, s.T, s.D, s.wide};
}

namespace {

// f.operator()<WIDTH>() with the first of the rising widths that holds D, else with the last.
template <int WIDTH, int... MORE, class F> void with_width(int D, F f) {
  if constexpr (sizeof...(MORE) == 0) f.template operator()<WIDTH>();
  else if (D <= WIDTH) f.template operator()<WIDTH>();
  else with_width<MORE...>(D, f);
}

// rows [ROW_VALUES][B, H, row_pitch] = Policy::row_for_backward() of what the forward saved and of the dot products
// dO_i . O_i (and dO_i . O2_i); 0 past T. Each thread has a row; its 16-byte pieces come through the first-level cache.
template <class T, class Policy>
__global__ void attention_rows_kernel(float* rows, const T* dout, const T* out, const float* stats,
                                      PolicySettings settings, Shape shape, int B) {
  size_t count = shape.rows(B), pitched = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
  if (pitched >= shape.row_values(B)) return;
  rows += pitched;
  int t = pitched % shape.row_pitch, h = pitched / shape.row_pitch % shape.H, b = pitched / shape.row_pitch / shape.H;
  if (t >= shape.T) {
    for (int n = 0; n < Policy::ROW_VALUES; n++) rows[n * shape.row_values(B)] = 0;
    return;
  }
  size_t r = (size_t(b) * shape.H + h) * shape.T + t;
  Head<T> o = head_of_out(out, b, h, shape), d = head_of_out(dout, b, h, shape);
  float dot[2] = {0, 0}, saved[Policy::SAVED + 1], row[Policy::ROW_VALUES + 1];
  const T *x = o.x + t * o.stride, *dx = d.x + t * d.stride;
  constexpr int W = Pack<T>::size;
  if (shape.wide) {
    for (int c = 0; c < shape.D; c += W) {
      Pack<T> a = load16(x + c), b = load16(dx + c);
      for (int i = 0; i < W; i++) dot[0] += to_float(a[i]) * to_float(b[i]);
    }
  } else {
    for (int c = 0; c < shape.D; c++) dot[0] += to_float(x[c]) * to_float(dx[c]);
  }
  if constexpr (Policy::OUTPUTS > 1) {
    const float* second = stats + Policy::SAVED * count + r * shape.D;
    for (int c = 0; c < shape.D; c++) dot[1] += second[c] * to_float(dx[c]);
  }
  Policy policy(settings, 0);
  for (int n = 0; n < Policy::SAVED; n++) saved[n] = stats[n * count + r];
  policy.row_for_backward(t + 1, saved, dot, row);
  for (int n = 0; n < Policy::ROW_VALUES; n++) rows[n * shape.row_values(B)] = row[n];
}

// dS_h -= sum over rows of P_sink D, where P_sink = e^(S_h - lse) is the sink's weight. One block per head.
constexpr int SINK_THREADS = 128;
template <class T, class Policy>
__global__ void attention_sink_kernel(float* dsink, const T* sink, const float* rows, Shape shape, int B) {
  __shared__ float shared[SINK_THREADS / WARP];
  int h = blockIdx.x;
  float sum = 0, logit = to_float(sink[h]);
  for (int b = 0; b < B; b++)
    for (int t = threadIdx.x; t < shape.T; t += SINK_THREADS)
      sum += Policy::sink_grad(logit, rows + (size_t(b) * shape.H + h) * shape.row_pitch + t, shape.row_values(B));
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) dsink[h] += sum;
}

// The first part of every backward pass: workspace = the rows above; dsink += if there is one. Reads out and dout once.
template <class T, class Policy> void prepare_backward_rows(const BackwardCall<T>& c, const Shape& shape) {
  size_t rows = shape.row_values(c.shape.B);
  LAUNCH((attention_rows_kernel<T, Policy>), dim3(blocks_for(rows, 128)), dim3(128), 0, c.stream, c.workspace, c.dout,
         c.out, c.stats, c.settings, shape, c.shape.B);
  if constexpr (Policy::HAS_SINK)
    if (c.sink && c.dsink)
      LAUNCH((attention_sink_kernel<T, Policy>), dim3(c.shape.H), dim3(SINK_THREADS), 0, c.stream, c.dsink, c.sink,
             c.workspace, shape, c.shape.B);
}

}  // namespace
