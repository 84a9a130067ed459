// For all families of kernels: where the rows of one head of one sequence are, and the numbers per row that the
// backward kernels read besides q, k, v and dO. Shapes: qkv, dqkv [B, T, 3, H, D] with rows qkv_stride apart, out, dout
// [B, T, H, D].
#pragma once
#include <cstdint>

#include "attention/masks.cuh"
#include "kernels/elementwise.cuh"
#include "kernels/reduce.cuh"

// One head of one sequence: row r begins at x + r stride and has D channels. wide: 16-byte accesses are possible.
template <class T> struct Head {
  const T* x;
  size_t stride;
  int rows, D;
  bool wide;
};

// The shape of a call, and where its rows are.
struct KernelShape : AttentionShape {
  bool wide;
  size_t qkv_stride;
  int row_pitch;  // rows of a head in BackwardWorkspace::row_values: T or more
  __host__ __device__ int chunks(int channels) const { return (D + channels - 1) / channels; }
  __host__ __device__ int tiles(int rows) const { return (T + rows - 1) / rows; }
  __host__ __device__ size_t row_values_pitch() const { return size_t(B) * H * row_pitch; }  // of their arrays
};

// wide only if every array begins at a multiple of 16 bytes
template <class T> KernelShape kernel_shape(const AttentionCall<T>& call, Addresses arrays) {
  const AttentionShape& s = call.shape;
  bool wide = s.D % Pack<T>::size == 0 && call.row_stride() % Pack<T>::size == 0;
  for (const void* array : arrays) wide = wide && aligned16(array);
  return {s, wide, size_t(call.row_stride()), s.T};
}

// A head of qkv (part 0: q, 1: k, 2: v), and of a tensor [B, T, H, D].
template <class T> __device__ Head<T> head_of_qkv(const T* qkv, int part, int b, int h, const KernelShape& s) {
  size_t A = size_t(s.H) * s.D;
  return {qkv + size_t(b) * s.T * s.qkv_stride + part * A + size_t(h) * s.D, s.qkv_stride, s.T, s.D, s.wide};
}
template <class T> __device__ Head<T> head_of_out(const T* out, int b, int h, const KernelShape& s) {
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

// v = the piece of W elements at from, of which `left` exist; the rest 0.
template <bool WIDE, int W, class T>
__device__ __forceinline__ void read_piece(float (&v)[W], const T* from, int left) {
  constexpr int SIZE = WIDE ? Pack<T>::size : 1;
#pragma unroll
  for (int i = 0; i < W; i += SIZE) {
    float some[SIZE] = {};
    if (WIDE || i < left) read_floats(some, from + i);
    for (int k = 0; k < SIZE; k++) v[i + k] = some[k];
  }
}

// A lane's share of dot[0] += x . dx, dot[1] += second . dx, the latter only if second is there. Pieces are the same
// whether they are read at once (WIDE) or by elements, and so are the sums.
template <bool WIDE, class T>
__device__ __forceinline__ void add_row_dots(float (&dot)[2], const T* x, const T* dx, const float* second, int D,
                                             int lane, int lanes) {
  constexpr int W = Pack<T>::size;
#pragma unroll 1
  for (int c = lane * W; c < D; c += lanes * W) {
    float v[W], dv[W], v2[W] = {};
    read_piece<WIDE>(v, x + c, D - c);
    read_piece<WIDE>(dv, dx + c, D - c);
    if (second) read_piece<WIDE>(v2, second + c, D - c);
    for (int i = 0; i < W; i++) dot[0] = fmaf(v[i], dv[i], dot[0]);
    if (second)
      for (int i = 0; i < W; i++) dot[1] = fmaf(v2[i], dv[i], dot[1]);
  }
}

// rows [ROW_VALUES][B, H, row_pitch] = Policy::row_for_backward() of what the forward saved and of the dot products
// dO_i . O_i (and dO_i . O2_i); 0 past T. LANES neighbouring threads have a row and take its 16-byte pieces in turn;
// the grid is (rows of a head, H, B).
template <class T, class Policy, class Mask, int LANES>
__global__ void attention_rows_kernel(float* rows, const T* dout, const T* out, const float* stats,
                                      KernelSettings settings, KernelShape shape) {
  int thread = blockIdx.x * blockDim.x + threadIdx.x, t = thread / LANES, lane = thread % LANES, h = blockIdx.y;
  int b = blockIdx.z;
  size_t count = shape.rows(), r = shape.first_row(b, h) + t;
  float dot[2] = {0, 0}, saved[Policy::SAVED + 1], row[Policy::ROW_VALUES + 1] = {};
  if (t < shape.T) {
    Head<T> o = head_of_out(out, b, h, shape), d = head_of_out(dout, b, h, shape);
    const T *x = o.x + t * o.stride, *dx = d.x + t * d.stride;
    const float* second = Policy::OUTPUTS > 1 ? stats + Policy::SAVED * count + r * shape.D : nullptr;
    if (shape.wide && reinterpret_cast<uintptr_t>(second) % 16 == 0)
      add_row_dots<true>(dot, x, dx, second, shape.D, lane, LANES);
    else add_row_dots<false>(dot, x, dx, second, shape.D, lane, LANES);
  }
  for (int mask = LANES / 2; mask > 0; mask /= 2)
    for (int n = 0; n < Policy::OUTPUTS; n++) dot[n] += shuffle_xor(dot[n], mask);
  if (lane != 0 || t >= shape.row_pitch) return;
  if (t < shape.T) {
    Policy policy(settings, 0, h);
    for (int n = 0; n < Policy::SAVED; n++) saved[n] = stats[n * count + r];
    policy.row_for_backward(Mask(settings, shape.T, shape.head_number(b, h)).keys(t), saved, dot, row);
  }
  rows += shape.head_number(b, h) * shape.row_pitch + t;
  for (int n = 0; n < Policy::ROW_VALUES; n++) rows[n * shape.row_values_pitch()] = row[n];
}

// dS_h -= sum over rows of P_sink delta, where P_sink = e^(S_h - lse) is the sink's weight. One block per head.
constexpr int SINK_THREADS = 128;
template <class T, class Policy>
__global__ void attention_sink_kernel(float* dsink, const T* sink, const float* rows, KernelShape shape) {
  __shared__ float shared[SINK_THREADS / WARP];
  int h = blockIdx.x;
  float sum = 0, logit = to_float(sink[h]);
  for (int b = 0; b < shape.B; b++)
    for (int t = threadIdx.x; t < shape.T; t += SINK_THREADS)
      sum += Policy::sink_grad(logit, rows + shape.head_number(b, h) * shape.row_pitch + t, shape.row_values_pitch());
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) dsink[h] += sum;
}

// The first part of every backward pass: the workspace's row_values = the rows above; dsink += if there is one. Reads
// out and dout once.
template <class T, class Policy, class Mask> void write_row_values(const BackwardCall<T>& c, const KernelShape& shape) {
  static_assert(Policy::ROW_VALUES + Policy::LEARNED <= ROW_VALUES_MOST);
  auto launch = [&]<int LANES>() {
    LAUNCH((attention_rows_kernel<T, Policy, Mask, LANES>),
           dim3(blocks_for(shape.row_pitch * LANES, 128), shape.H, shape.B), dim3(128), 0, c.call.stream,
           c.workspace.row_values, c.dout, c.out, c.stats, c.settings, shape);
  };
  // On the CPU layer waiting for other lanes would be most of the cost of a short row.
  constexpr int SHORT_ROW_LANES = on_cpu ? 1 : 8;
  shape.D <= 64 ? launch.template operator()<SHORT_ROW_LANES>() : launch.template operator()<8>();
  if constexpr (Policy::HAS_SINK)
    if (c.sink && c.call.dsink)
      LAUNCH((attention_sink_kernel<T, Policy>), dim3(c.call.shape.H), dim3(SINK_THREADS), 0, c.call.stream,
             c.call.dsink, c.sink, c.workspace.row_values, shape);
}

}  // namespace
