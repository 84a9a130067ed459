// The contract is in prepare.cuh. A row is read once for its norm, which leaves it in the first-level cache, and once
// more to be changed.
#include "attention/prepare.cuh"

#include <climits>
#include <cmath>

#include "kernels/elementwise.cuh"
#include "kernels/reduce.cuh"

namespace {

constexpr int THREADS = 128;

// The row that a group of `lanes` lanes works on, as lane number `lane`. Groups past the end get the last row but touch
// no q or k: they only take part in the shuffles, which need all lanes. (If they read the row, they would race with the
// group that writes it.) Functions take it by value: by reference g++ fuses other products, and last bits change.
struct Row {
  bool inside, is_q;
  int lane, lanes;              // they take its pieces of W elements in turn
  size_t offset, norm, result;  // its first element; its place in [B, T, parts, H], and in [B, H, T]
  float alpha;
  const float2* angles;  // of its position, or nullptr
};

// Rows, one of D elements for each of B T positions, `parts` (q and k, or q) and H heads, and what is done to them.
template <class T> struct RowJob {
  int rows, parts, length, H, D;
  size_t stride;  // from position to position
  QkNorm norm;
  RowScale<T> scale = {1, false, 1, nullptr};
  const float2* rope = nullptr;
  const int2* documents = nullptr;  // of AttentionCall, or nullptr
  bool wide = false;                // 16-byte accesses
  int lanes = lanes_for(D);

  __device__ Row row_of_thread() const {
    int r = int((blockIdx.x * blockDim.x + threadIdx.x) / lanes);
    bool inside = r < rows;
    if (!inside) r = rows - 1;
    int part_head = r % (parts * H), n = r / (parts * H), h = part_head % H, b = n / length, t = n % length;
    bool is_q = part_head < H;
    return {.inside = inside,
            .is_q = is_q,
            .lane = int(threadIdx.x) % lanes,
            .lanes = lanes,
            .offset = n * stride + size_t(part_head) * D,
            .norm = size_t(n) * parts * H + part_head,
            .result = (size_t(b) * H + h) * length + t,
            .alpha = is_q ? scale(documents ? t - documents[n].x : t, h) : 1,
            .angles = rope ? rope + size_t(t) * (D / 2) : nullptr};
  }
};

// This lane's share of the sum of x y over a row. It reads only the elements that it will also write (in each half of a
// row that is rotated), because lanes do not wait for each other's reads.
template <int W, class T> __device__ float dot_share(const T* x, const T* y, int D, Row row) {
  float sum = 0;
  int width = row.angles ? D / 2 : D;
  for (int start = 0; start < D; start += width)
    for (int d = start + row.lane * W; d < start + width; d += row.lanes * W) {
      float a[W], b[W];
      read_floats(a, x + d);
      read_floats(b, y + d);
      for (int i = 0; i < W; i++) sum += a[i] * b[i];
    }
  return sum;
}

// x <- rotation of (scale x - along y); SIGN -1 turns back. y is read only if `along` is used; otherwise pass x for it.
template <int W, int SIGN, class T>
__device__ void scale_and_rotate(T* x, const T* y, float scale, float along, int D, Row row) {
  if (!row.angles) {
    for (int d = row.lane * W; d < D; d += row.lanes * W) {
      float a[W], b[W];
      read_floats(a, x + d);
      read_floats(b, y + d);
      for (int i = 0; i < W; i++) a[i] = scale * a[i] - along * b[i];
      write_floats(x + d, a);
    }
    return;
  }
  int half = D / 2;
  for (int d = row.lane * W; d < half; d += row.lanes * W) {
    float a[W], b[W], ya[W], yb[W];
    read_floats(a, x + d);
    read_floats(b, x + half + d);
    read_floats(ya, y + d);
    read_floats(yb, y + half + d);
    for (int i = 0; i < W; i++) {
      float2 angle = row.angles[d + i];
      float u = scale * a[i] - along * ya[i], v = scale * b[i] - along * yb[i], sine = SIGN * angle.y;
      a[i] = u * angle.x - v * sine;
      b[i] = v * angle.x + u * sine;
    }
    write_floats(x + d, a);
    write_floats(x + half + d, b);
  }
}

template <int W, class T> __device__ void forward_row(T* x, float* norms, RowJob<T> job, Row row) {
  float inverse = 1;
  if (job.norm != QkNorm::none) {
    float squares = group_sum(dot_share<W>(x, x, row.inside ? job.D : 0, row), row.lanes);
    inverse = inverse_length(job.norm, squares, job.D);
    if (row.lane == 0 && row.inside) norms[row.norm] = inverse;
  }
  if (row.inside) scale_and_rotate<W, 1>(x, x, row.alpha * inverse, 0, job.D, row);
}

template <class T> __global__ void prepare_forward_kernel(T* x, float* norms, RowJob<T> job) {
  Row row = job.row_of_thread();
  if (job.wide) forward_row<Pack<T>::size>(x + row.offset, norms, job, row);
  else forward_row<1>(x + row.offset, norms, job, row);
}

template <int W, class T>
__device__ void backward_row(T* dx, const T* x, const float* norms, float* row_dots, const RowJob<T>& job, Row row) {
  float along = 0, inverse = norms ? norms[row.norm] : 1;
  if (job.norm != QkNorm::none || row_dots) {  // the same for the whole warp, as shuffles require
    float dot = group_sum(dot_share<W>(x, dx, row.inside ? job.D : 0, row), row.lanes);
    if (row_dots && row.is_q && row.lane == 0 && row.inside) row_dots[row.result] = dot;
    along = gradient_along(job.norm, dot, row.alpha, inverse, job.D);
  }
  if (row.inside) scale_and_rotate<W, -1>(dx, x, row.alpha * inverse, along, job.D, row);
}

template <class T>
__global__ void prepare_backward_kernel(T* dx, const T* x, const float* norms, float* row_dots, RowJob<T> job) {
  Row row = job.row_of_thread();
  if (job.wide) backward_row<Pack<T>::size>(dx + row.offset, x + row.offset, norms, row_dots, job, row);
  else backward_row<1>(dx + row.offset, x + row.offset, norms, row_dots, job, row);
}

// One block per head. A divisor of 0 takes the sum for 0.
template <class T>
__global__ void head_sums_kernel(float* to, const T* divisor, const float* rows, int B, int T_, int H) {
  __shared__ float shared[THREADS / WARP];
  int h = blockIdx.x;
  float sum = 0;
  for (int b = 0; b < B; b++)
    for (int t = threadIdx.x; t < T_; t += THREADS) sum += rows[(size_t(b) * H + h) * T_ + t];
  sum = block_sum(sum, shared);
  float s = divisor ? to_float(divisor[h]) : 1;
  if (threadIdx.x == 0 && s != 0) to[h] += sum / s;
}

// The rows of q and, if anything is done to them, of k. 16-byte accesses need aligned arrays and rows of whole packs
// (with rope, halves of rows).
template <class T> RowJob<T> qk_rows(const AttentionCall<T>& call, const void* a, const void* b) {
  auto [B, length, H, D] = call.shape;
  QkNorm norm = call.settings.qk_norm;
  int parts = call.rope || norm != QkNorm::none ? 2 : 1;
  RowJob<T> job{B * length * parts * H,    parts, length,          H,         D,
                size_t(call.row_stride()), norm,  row_scale(call), call.rope, call.separate_documents()};
  job.wide = D % (Pack<T>::size * (call.rope ? 2 : 1)) == 0 && job.stride % Pack<T>::size == 0 && aligned16(a, b);
  return job;
}

template <class T> dim3 grid_of(const RowJob<T>& job) {
  return dim3(blocks_for(size_t(job.rows) * job.lanes, THREADS));
}

}  // namespace

template <class T> RowScale<T> row_scale(const AttentionCall<T>& call) {
  const AttentionSettings& s = call.settings;
  double root = 1 / std::sqrt(double(call.shape.D)), constant = 0;
  bool log_rows = false;
  switch (s.scale) {
    case Scale::rsqrt_d: constant = root; break;
    case Scale::logd_logn: constant = std::log(double(call.shape.D)), log_rows = true; break;
    case Scale::logn: constant = root / std::log(double(call.context)), log_rows = true; break;
    case Scale::ssmax: constant = root, log_rows = true; break;
    case Scale::number: constant = float(s.scale_number); break;
  }
  return {float(constant * call.scale_factor / kind_row(s.kind).unit), log_rows, s.keys_seen(INT_MAX),
          s.scale == Scale::ssmax ? call.ssmax_scale : nullptr};
}

// Floor: 4 N A elements moved (q and k read and written; where nothing changes k it stays: 2 N A).
template <class T> void prepare_forward(T* qkv, const AttentionCall<T>& call) {
  RowJob<T> job = qk_rows(call, qkv, qkv);
  LAUNCH(prepare_forward_kernel<T>, grid_of(job), dim3(THREADS), 0, call.stream, qkv, call.norms, job);
}

size_t prepare_backward_workspace(const AttentionSettings& settings, const AttentionShape& shape) {
  return settings.scale == Scale::ssmax ? shape.rows() * sizeof(float) : 0;
}

// Floor: 4 N A elements moved without a norm, 6 N A with one (then the prepared q and k are read too).
template <class T> void prepare_backward(T* dqkv, const T* qkv, const AttentionCall<T>& call, void* workspace) {
  bool learns = call.settings.scale == Scale::ssmax && call.dssmax_scale;
  float* row_dots = learns ? static_cast<float*>(workspace) : nullptr;
  RowJob<T> job = qk_rows(call, dqkv, qkv);
  LAUNCH(prepare_backward_kernel<T>, grid_of(job), dim3(THREADS), 0, call.stream, dqkv, qkv, call.norms, row_dots, job);
  // ds_h += sum over rows of (alpha_i / s_h) (unscaled q_i) . dq_i = (sum of q'_i . dq'_i) / s_h. s_h = 0 loses the
  // direction of q, so its gradient is taken to be 0.
  if (row_dots) add_sums_of_heads(call.dssmax_scale, row_dots, call, call.ssmax_scale);
}

template <class T>
void add_sums_of_heads(float* to, const float* rows, const AttentionCall<T>& call, const T* divisor) {
  LAUNCH(head_sums_kernel<T>, dim3(call.shape.H), dim3(THREADS), 0, call.stream, to, divisor, rows, call.shape.B,
         call.shape.T, call.shape.H);
}

std::vector<float2> rope_table(int length, int D, double base, RopeScaling scaling, double factor, double fraction) {
  constexpr double pi = 3.14159265358979323846;
  int half = D / 2;
  double trained = length / factor;
  if (factor <= 1) scaling = RopeScaling::none;
  if (scaling == RopeScaling::ntk && D > 2) base *= std::pow(factor, double(D) / (D - 2));
  std::vector<float2> table(size_t(length) * half);
  for (int k = 0; k < half; k++) {
    double frequency = std::pow(base, -2.0 * k / D);
    if (scaling == RopeScaling::linear) frequency /= factor;
    if (scaling == RopeScaling::yarn) {
      // frequencies that turn often within the trained length are kept, those that turn less than once are squeezed
      double turns = trained * frequency / (2 * pi), keep = std::fmin(std::fmax((turns - 1) / (32 - 1), 0.0), 1.0);
      frequency *= keep + (1 - keep) / factor;
    }
    if (k >= std::lround(fraction * half)) frequency = 0;
    for (int t = 0; t < length; t++)
      table[size_t(t) * half + k] = make_float2(float(std::cos(t * frequency)), float(std::sin(t * frequency)));
  }
  return table;
}

float rope_scale_factor(RopeScaling scaling, double factor) {
  if (scaling != RopeScaling::yarn || factor <= 1) return 1;
  double attention = 0.1 * std::log(factor) + 1;
  return float(attention * attention);
}

#define INSTANTIATE(T)                                                          \
  template RowScale<T> row_scale(const AttentionCall<T>&);                      \
  template void prepare_forward(T*, const AttentionCall<T>&);                   \
  template void prepare_backward(T*, const T*, const AttentionCall<T>&, void*); \
  template void add_sums_of_heads(float*, const float*, const AttentionCall<T>&, const T*);
INSTANTIATE(float)
INSTANTIATE(bf16)
