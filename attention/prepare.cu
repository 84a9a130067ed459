// The contract is in prepare.cuh. A row is read once for its norm, which leaves it in the first-level cache, and once
// more to be changed.
#include "attention/prepare.cuh"

#include <climits>
#include <cmath>

#include "kernels/elementwise.cuh"
#include "kernels/reduce.cuh"

namespace {

constexpr float RMS_EPS = 1e-6f;
constexpr int THREADS = 128;

// The row that a group of lanes works on. Groups past the end get the last row but touch no q or k: they only take part
// in the shuffles, which need all lanes. (If they read the row, they would race with the group that writes it.)
struct Row {
  bool inside, is_q;
  int n, h;       // position b T + t, head
  size_t offset;  // of its first element in qkv
  size_t norm;    // of its norm in norms
};
__device__ inline Row row_of_thread(int rows, int lanes, int parts, int H, int D, size_t qkv_stride) {
  int r = int((blockIdx.x * blockDim.x + threadIdx.x) / lanes);
  Row row;
  row.inside = r < rows;
  if (!row.inside) r = rows - 1;
  int part_head = r % (parts * H);
  row.n = r / (parts * H);
  row.is_q = part_head < H;
  row.h = part_head % H;
  row.offset = row.n * qkv_stride + size_t(part_head) * D;
  row.norm = size_t(row.n) * parts * H + part_head;
  return row;
}

__device__ inline float group_sum(float v, int lanes) {
  for (int mask = lanes / 2; mask > 0; mask /= 2) v += shuffle_xor(v, mask);
  return v;
}

// A row's lanes take its pieces of W elements in turn.
struct Lanes {
  int lane, count;
};

// This lane's share of the sum of x y over a row. It reads only the elements that it will also write (in each half of a
// row that is rotated), because lanes do not wait for each other's reads.
template <int W, class T> __device__ float dot_share(const T* x, const T* y, int D, bool rotated, Lanes lanes) {
  float sum = 0;
  int width = rotated ? D / 2 : D;
  for (int start = 0; start < D; start += width)
    for (int d = start + lanes.lane * W; d < start + width; d += lanes.count * W) {
      float a[W], b[W];
      read_floats(a, x + d);
      read_floats(b, y + d);
      for (int i = 0; i < W; i++) sum += a[i] * b[i];
    }
  return sum;
}

// x <- rotation of (scale x - along y); SIGN -1 turns back. y is read only if `along` is used; otherwise pass x for it.
template <int W, int SIGN, class T>
__device__ void scale_and_rotate(T* x, const T* y, float scale, float along, const float2* angles, int D, Lanes lanes) {
  if (!angles) {
    for (int d = lanes.lane * W; d < D; d += lanes.count * W) {
      float a[W], b[W];
      read_floats(a, x + d);
      read_floats(b, y + d);
      for (int i = 0; i < W; i++) a[i] = scale * a[i] - along * b[i];
      write_floats(x + d, a);
    }
    return;
  }
  int half = D / 2;
  for (int d = lanes.lane * W; d < half; d += lanes.count * W) {
    float a[W], b[W], ya[W], yb[W];
    read_floats(a, x + d);
    read_floats(b, x + half + d);
    read_floats(ya, y + d);
    read_floats(yb, y + half + d);
    for (int i = 0; i < W; i++) {
      float2 angle = angles[d + i];
      float u = scale * a[i] - along * ya[i], v = scale * b[i] - along * yb[i], sine = SIGN * angle.y;
      a[i] = u * angle.x - v * sine;
      b[i] = v * angle.x + u * sine;
    }
    write_floats(x + d, a);
    write_floats(x + half + d, b);
  }
}

template <int W, class T>
__device__ void forward_row(T* x, float* norm, const float2* angles, QkNorm qk_norm, float alpha, int D, Lanes lanes,
                            bool inside) {
  float inverse = 1;
  if (qk_norm != QkNorm::none) {
    float squares = group_sum(dot_share<W>(x, x, inside ? D : 0, angles, lanes), lanes.count);
    inverse = qk_norm == QkNorm::l2 ? 1 / max(sqrtf(squares), L2_EPS) : 1 / sqrtf(squares / D + RMS_EPS);
    if (lanes.lane == 0 && inside) *norm = inverse;
  }
  if (inside) scale_and_rotate<W, 1>(x, x, alpha * inverse, 0, angles, D, lanes);
}

template <class T>
__global__ void prepare_forward_kernel(T* qkv, float* norms, const float2* rope, QkNorm qk_norm, RowScale<T> scale,
                                       int rows, int lane_count, int parts, int T_, int H, int D, size_t qkv_stride,
                                       bool wide) {
  Row row = row_of_thread(rows, lane_count, parts, H, D, qkv_stride);
  Lanes lanes{int(threadIdx.x) % lane_count, lane_count};
  int t = row.n % T_;
  float alpha = row.is_q ? scale(t, row.h) : 1;
  const float2* angles = rope ? rope + size_t(t) * (D / 2) : nullptr;
  T* x = qkv + row.offset;
  float* norm = norms ? norms + row.norm : nullptr;
  if (wide) forward_row<Pack<T>::size>(x, norm, angles, qk_norm, alpha, D, lanes, row.inside);
  else forward_row<1>(x, norm, angles, qk_norm, alpha, D, lanes, row.inside);
}

template <int W, class T>
__device__ void backward_row(T* dx, const T* x, float inverse, const float2* angles, QkNorm qk_norm, float alpha,
                             bool any_dots, float* row_dot, int D, Lanes lanes, bool inside) {
  float along = 0;
  if (qk_norm != QkNorm::none || any_dots) {  // the same for the whole warp, as shuffles require
    float dot = group_sum(dot_share<W>(x, dx, inside ? D : 0, angles, lanes), lanes.count);
    if (row_dot && lanes.lane == 0 && inside) *row_dot = dot;
    along = gradient_along(qk_norm, dot, alpha, inverse, D);
  }
  if (inside) scale_and_rotate<W, -1>(dx, x, alpha * inverse, along, angles, D, lanes);
}

template <class T>
__global__ void prepare_backward_kernel(T* dqkv, const T* qkv, const float* norms, const float2* rope, QkNorm qk_norm,
                                        RowScale<T> scale, float* row_dots, int rows, int lane_count, int parts, int T_,
                                        int H, int D, size_t qkv_stride, bool wide) {
  Row row = row_of_thread(rows, lane_count, parts, H, D, qkv_stride);
  Lanes lanes{int(threadIdx.x) % lane_count, lane_count};
  int t = row.n % T_, b = row.n / T_;
  float alpha = row.is_q ? scale(t, row.h) : 1, inverse = norms ? norms[row.norm] : 1;
  const float2* angles = rope ? rope + size_t(t) * (D / 2) : nullptr;
  T* dx = dqkv + row.offset;
  const T* x = qkv + row.offset;
  float* row_dot = nullptr;
  if (row_dots && row.is_q) row_dot = row_dots + (size_t(b) * H + row.h) * T_ + t;
  if (wide)
    backward_row<Pack<T>::size>(dx, x, inverse, angles, qk_norm, alpha, row_dots, row_dot, D, lanes, row.inside);
  else backward_row<1>(dx, x, inverse, angles, qk_norm, alpha, row_dots, row_dot, D, lanes, row.inside);
}

// ds_h += sum over rows of (alpha_i / s_h) (unscaled q_i) . dq_i = (sum of q'_i . dq'_i) / s_h. One block per head.
// s_h = 0 loses the direction of q, so the gradient of s_h is taken to be 0.
template <class T>
__global__ void ssmax_scale_kernel(float* dscale, const T* scale, const float* row_dots, int B, int T_, int H) {
  __shared__ float shared[THREADS / WARP];
  int h = blockIdx.x;
  float sum = 0;
  for (int b = 0; b < B; b++)
    for (int t = threadIdx.x; t < T_; t += THREADS) sum += row_dots[(size_t(b) * H + h) * T_ + t];
  sum = block_sum(sum, shared);
  float s = to_float(scale[h]);
  if (threadIdx.x == 0 && s != 0) dscale[h] += sum / s;
}

// 16-byte accesses need aligned arrays and rows (with rope, halves of rows) of whole packs.
template <class T> bool can_be_wide(int D, size_t qkv_stride, const float2* rope, const void* a, const void* b) {
  int unit = Pack<T>::size * (rope ? 2 : 1);
  return D % unit == 0 && qkv_stride % Pack<T>::size == 0 && aligned16(a, b);
}

template <class T> constexpr RowScale<T> UNSCALED = {1, false, 1, nullptr};

// Enough lanes for each to have at most 32 elements of a row; 16 lanes at most.
int lanes_for(int D) { return D <= 32 ? 1 : D <= 64 ? 2 : D <= 128 ? 4 : D <= 256 ? 8 : 16; }

dim3 grid_for(int rows, int lanes) { return dim3(blocks_for(size_t(rows) * lanes, THREADS)); }

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
  return {float(constant * call.scale_factor / score_unit(s.kind)), log_rows, s.keys_seen(INT_MAX),
          s.scale == Scale::ssmax ? call.ssmax_scale : nullptr};
}

// Floor: 4 N A elements moved (q and k read and written; where nothing changes k it stays: 2 N A).
template <class T> void prepare_forward(T* qkv, const AttentionCall<T>& call) {
  auto [B, length, H, D] = call.shape;
  QkNorm norm = call.settings.qk_norm;
  int parts = call.rope || norm != QkNorm::none ? 2 : 1, rows = B * length * parts * H, lanes = lanes_for(D);
  size_t stride = call.row_stride();
  LAUNCH(prepare_forward_kernel<T>, grid_for(rows, lanes), dim3(THREADS), 0, call.stream, qkv, call.norms, call.rope,
         norm, row_scale(call), rows, lanes, parts, length, H, D, stride,
         can_be_wide<T>(D, stride, call.rope, qkv, qkv));
}

size_t prepare_backward_workspace(const AttentionSettings& settings, const AttentionShape& shape) {
  return settings.scale == Scale::ssmax ? shape.rows() * sizeof(float) : 0;
}

// Floor: 4 N A elements moved without a norm, 6 N A with one (then the prepared q and k are read too).
template <class T> void prepare_backward(T* dqkv, const T* qkv, const AttentionCall<T>& call, void* workspace) {
  auto [B, length, H, D] = call.shape;
  QkNorm norm = call.settings.qk_norm;
  int parts = call.rope || norm != QkNorm::none ? 2 : 1, rows = B * length * parts * H, lanes = lanes_for(D);
  size_t stride = call.row_stride();
  bool learns = call.settings.scale == Scale::ssmax && call.dssmax_scale;
  float* row_dots = learns ? static_cast<float*>(workspace) : nullptr;
  LAUNCH(prepare_backward_kernel<T>, grid_for(rows, lanes), dim3(THREADS), 0, call.stream, dqkv, qkv, call.norms,
         call.rope, norm, row_scale(call), row_dots, rows, lanes, parts, length, H, D, stride,
         can_be_wide<T>(D, stride, call.rope, dqkv, qkv));
  if (row_dots)
    LAUNCH(ssmax_scale_kernel<T>, dim3(H), dim3(THREADS), 0, call.stream, call.dssmax_scale, call.ssmax_scale,
           static_cast<const float*>(row_dots), B, length, H);
}

// One part, no rotation, no scale. Floor: 2 N A elements moved, in the backward pass 3 N A.
template <class T> void norm_output(T* out, float* norms, const AttentionCall<T>& call) {
  auto [B, length, H, D] = call.shape;
  int rows = B * length * H, lanes = lanes_for(D);
  LAUNCH(prepare_forward_kernel<T>, grid_for(rows, lanes), dim3(THREADS), 0, call.stream, out, norms, nullptr,
         call.settings.norm_of_output(), UNSCALED<T>, rows, lanes, 1, length, H, D, size_t(H) * D,
         can_be_wide<T>(D, H * D, nullptr, out, out));
}

template <class T> void norm_output_backward(T* dout, const T* out, const float* norms, const AttentionCall<T>& call) {
  auto [B, length, H, D] = call.shape;
  int rows = B * length * H, lanes = lanes_for(D);
  LAUNCH(prepare_backward_kernel<T>, grid_for(rows, lanes), dim3(THREADS), 0, call.stream, dout, out, norms, nullptr,
         call.settings.norm_of_output(), UNSCALED<T>, nullptr, rows, lanes, 1, length, H, D, size_t(H) * D,
         can_be_wide<T>(D, H * D, nullptr, dout, out));
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
  template void norm_output(T*, float*, const AttentionCall<T>&);               \
  template void norm_output_backward(T*, const T*, const float*, const AttentionCall<T>&);
INSTANTIATE(float)
INSTANTIATE(bf16)
