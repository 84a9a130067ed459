// The contract is in output.cuh. A group reads its row once for each sum that it needs, which leaves it in the
// first-level cache, and once more to write.
#include "attention/output.cuh"

#include "attention/maths.cuh"
#include "attention/prepare.cuh"
#include "kernels/elementwise.cuh"
#include "kernels/reduce.cuh"

namespace {

constexpr int THREADS = 128;
constexpr float ROUNDING_SQUARED = 0x1p-32f;  // of what is left of o to o, as squares

// Where the rows are, and what is done to them.
template <class T> struct OutputJob {
  int rows, H, D;
  size_t stride;  // of qkv
  QkNorm norm;
  int lanes;
};

// The row of a group, as its lane sees it. Groups past the end have no elements: they only take part in the shuffles.
template <class T, OutputOperation OP, int W> struct OutputRow {
  size_t r;  // in [B, T, H]
  int D, lane, lanes;
  const T *out, *value;         // o and v
  size_t value_offset;          // in qkv
  float share = 0, length = 1;  // exclusive: x = o - share v, of |v| = length, at least 1e-12

  __device__ OutputRow(const T* all_out, const T* qkv, const OutputJob<T>& job) : lanes(job.lanes) {
    int thread = int(blockIdx.x * blockDim.x + threadIdx.x), n = thread / lanes;
    bool inside = n < job.rows;
    r = inside ? n : 0, lane = thread % lanes, D = inside ? job.D : 0;
    value_offset = r / job.H * job.stride + size_t(2 * job.H + r % job.H) * job.D;
    out = all_out + r * job.D, value = qkv + value_offset;
    if constexpr (OP == OutputOperation::exclusive) {
      length = max(sqrtf(sum([&](int, float, float v) { return v * v; })), L2_EPS);
      share = sum([&](int, float o, float v) { return o * v; }) / length / length;
    }
  }

  // x from o and v, and its slope by o where that is a matter of each element.
  __device__ float operated(float o, float v) const {
    if constexpr (OP == OutputOperation::silu) return FullMaths::silu(o);
    else if constexpr (OP == OutputOperation::exclusive) return o - share * v;
    else return o;
  }
  __device__ float slope(float o) const {
    if constexpr (OP == OutputOperation::silu) return FullMaths::silu_slope(o);
    else return 1;
  }

  // f(d, o, v) with packs of this lane's elements, from d on; without exclusive v is not read.
  template <class F> __device__ void for_packs(F f) const {
    for (int d = lane * W; d < D; d += lanes * W) {
      float o[W], v[W] = {};
      read_floats<W>(o, out + d);
      if constexpr (OP == OutputOperation::exclusive) read_floats<W>(v, value + d);
      f(d, o, v);
    }
  }
  // The group's sum of f(index, o, v) over the row.
  template <class F> __device__ float sum(F f) const {
    float total = 0;
    for_packs([&](int d, float(&o)[W], float(&v)[W]) {
      for (int i = 0; i < W; i++) total += f(d + i, o[i], v[i]);
    });
    return group_sum(total, lanes);
  }
  // 1 / length of x; 0 where nothing but rounding is left of o, as in the first row of a document, where o = v.
  __device__ float inverse(QkNorm norm) const {
    if (norm == QkNorm::none) return 1;
    float squares = sum([&](int, float o, float v) { return operated(o, v) * operated(o, v); });
    if constexpr (OP == OutputOperation::exclusive) {
      float all = sum([&](int, float o, float) { return o * o; });
      if (squares <= all * ROUNDING_SQUARED) return 0;
    }
    return inverse_length(norm, squares, D);
  }
};

template <class T, OutputOperation OP, int W>
__global__ void output_forward_kernel(T* y, const T* out, const T* qkv, OutputJob<T> job) {
  OutputRow<T, OP, W> row(out, qkv, job);
  float inverse = row.inverse(job.norm);
  row.for_packs([&](int d, float(&o)[W], float(&v)[W]) {
    for (int i = 0; i < W; i++) o[i] = inverse * row.operated(o[i], v[i]);
    write_floats<W>(y + row.r * row.D + d, o);
  });
}

template <class T, OutputOperation OP, int W>
__global__ void output_backward_kernel(T* dout, float* along, const T* out, const T* qkv, OutputJob<T> job) {
  OutputRow<T, OP, W> row(out, qkv, job);
  T* dy = dout + row.r * row.D;
  float inverse = row.inverse(job.norm), along_x = 0, along_u = 0;
  if (job.norm != QkNorm::none) {
    float dot = row.sum([&](int d, float o, float v) { return row.operated(o, v) * to_float(dy[d]); });
    along_x = gradient_along(job.norm, inverse * dot, 1, inverse, job.D) * inverse;
  }
  if constexpr (OP == OutputOperation::exclusive) {
    // dx . u. Where little is left of o, rounding leaves x with a part along u that counts beside dy's.
    along_u = row.sum(
        [&](int d, float o, float v) { return v * (inverse * to_float(dy[d]) - along_x * row.operated(o, v)); });
    along_u /= row.length;
    if (row.lane == 0 && row.D) along[row.r] = along_u;
  }
  row.for_packs([&](int d, float(&o)[W], float(&v)[W]) {
    float dx[W];
    read_floats<W>(dx, dy + d);
    for (int i = 0; i < W; i++) {
      dx[i] = inverse * dx[i] - along_x * row.operated(o[i], v[i]);
      dx[i] = dx[i] * row.slope(o[i]) - along_u / row.length * v[i];
    }
    write_floats<W>(dy + d, dx);
  });
}

// With p = o . u, s = dx . u and do = dx - s u, which is orthogonal to u, the gradient of u is -(p dx + s o), and dv =
// (du - (du . u) u) / |v| = -(p do + s o - p s u) / |v|. A shorter v than 1e-12 was divided by a constant, so du . u
// counts: + p s u.
template <class T, int W>
__global__ void output_backward_values_kernel(T* dqkv, const T* dout, const float* along, const T* out, const T* qkv,
                                              OutputJob<T> job) {
  OutputRow<T, OutputOperation::exclusive, W> row(out, qkv, job);
  float p = row.share * row.length, s = row.D ? along[row.r] : 0, ps = row.length > L2_EPS ? p * s : -p * s;
  row.for_packs([&](int d, float(&o)[W], float(&v)[W]) {
    float dv[W], dx[W];
    read_floats<W>(dv, dqkv + row.value_offset + d);
    read_floats<W>(dx, dout + row.r * row.D + d);
    for (int i = 0; i < W; i++) dv[i] -= (p * dx[i] + s * o[i] - ps / row.length * v[i]) / row.length;
    write_floats<W>(dqkv + row.value_offset + d, dv);
  });
}

// launch.operator()<OP, W>(grid, job) for the settings of a call; 16-byte accesses need aligned arrays and whole packs.
template <class T, class F, class... P> void with_rows(const AttentionCall<T>& call, F launch, const P*... arrays) {
  auto [B, length, H, D] = call.shape;
  OutputJob<T> job{int(B * length * H), H, D, size_t(call.row_stride()), call.settings.output_norm, lanes_for(D)};
  dim3 grid(blocks_for(size_t(job.rows) * job.lanes, THREADS));
  bool wide = D % Pack<T>::size == 0 && job.stride % Pack<T>::size == 0 && aligned16(arrays...);
  auto with_width = [&]<OutputOperation OP>() {
    if (wide) launch.template operator()<OP, Pack<T>::size>(grid, job);
    else launch.template operator()<OP, 1>(grid, job);
  };
  switch (call.settings.output) {
    case OutputOperation::none: return with_width.template operator()<OutputOperation::none>();
    case OutputOperation::silu: return with_width.template operator()<OutputOperation::silu>();
    case OutputOperation::exclusive: return with_width.template operator()<OutputOperation::exclusive>();
  }
}

}  // namespace

template <class T> void output_forward(T* y, const T* out, const T* qkv, const AttentionCall<T>& call) {
  with_rows(
      call,
      [&]<OutputOperation OP, int W>(dim3 grid, const OutputJob<T>& job) {
        LAUNCH((output_forward_kernel<T, OP, W>), grid, dim3(THREADS), 0, call.stream, y, out, qkv, job);
      },
      y, out, qkv);
}

template <class T>
void output_backward(T* dout, float* along, const T* out, const T* qkv, const AttentionCall<T>& call) {
  with_rows(
      call,
      [&]<OutputOperation OP, int W>(dim3 grid, const OutputJob<T>& job) {
        LAUNCH((output_backward_kernel<T, OP, W>), grid, dim3(THREADS), 0, call.stream, dout, along, out, qkv, job);
      },
      dout, out, qkv);
}

template <class T>
void output_backward_values(T* dqkv, const T* dout, const float* along, const T* out, const T* qkv,
                            const AttentionCall<T>& call) {
  if (call.settings.output != OutputOperation::exclusive) return;
  with_rows(
      call,
      [&]<OutputOperation OP, int W>(dim3 grid, const OutputJob<T>& job) {
        LAUNCH((output_backward_values_kernel<T, W>), grid, dim3(THREADS), 0, call.stream, dqkv, dout, along, out, qkv,
               job);
      },
      dqkv, dout, out, qkv);
}

#define INSTANTIATE(T)                                                                    \
  template void output_forward(T*, const T*, const T*, const AttentionCall<T>&);          \
  template void output_backward(T*, float*, const T*, const T*, const AttentionCall<T>&); \
  template void output_backward_values(T*, const T*, const float*, const T*, const T*, const AttentionCall<T>&);
INSTANTIATE(float)
INSTANTIATE(bf16)
