#include "attention/gate.cuh"

#include "attention/maths.cuh"
#include "kernels/elementwise.cuh"

namespace {

// The activations: value and derivative of act at g. Each is finite wherever act is; exp may overflow.
struct Sigmoid {
  __device__ static float value(float g) { return FullMaths::sigmoid(g); }
  __device__ static float slope(float g) { return FullMaths::sigmoid(g) * FullMaths::sigmoid(-g); }
};
struct TwoSigmoid {
  __device__ static float value(float g) { return 2 * Sigmoid::value(g); }
  __device__ static float slope(float g) { return 2 * Sigmoid::slope(g); }
};
struct Softplus {
  __device__ static float value(float g) { return FullMaths::softplus(g); }
  __device__ static float slope(float g) { return FullMaths::sigmoid(g); }
};
struct Silu {
  __device__ static float value(float g) { return FullMaths::silu(g); }
  __device__ static float slope(float g) { return FullMaths::silu_slope(g); }
};
struct Relu {
  __device__ static float value(float g) { return max(g, 0.0f); }
  __device__ static float slope(float g) { return g > 0 ? 1.0f : 0.0f; }
};
struct Tanh {  // 2 sigmoid(2g) - 1 would lose the digits of a small g; (1 - e) / (1 + e) with e = exp(-2|g|) loses
               // them only below 1e-4, where g itself is accurate
  __device__ static float value(float g) {
    float size = fabsf(g), e = expf(-2 * size), t = (1 - e) / (1 + e);
    t = size < 0.02f ? size * (1 - size * size * (1.0f / 3 - size * size * (2.0f / 15))) : t;
    return g < 0 ? -t : t;
  }
  __device__ static float slope(float g) {
    float e = expf(-2 * fabsf(g)), s = 1 + e;
    return 4 * e / (s * s);
  }
};
struct HalfSigmoid {  // from 1/2 to 1
  __device__ static float value(float g) { return fmaf(0.5f, Sigmoid::value(g), 0.5f); }
  __device__ static float slope(float g) { return 0.5f * Sigmoid::slope(g); }
};
struct Identity {
  __device__ static float value(float g) { return g; }
  __device__ static float slope(float) { return 1; }
};
struct Exp {
  __device__ static float value(float g) { return expf(g); }
  __device__ static float slope(float g) { return expf(g); }
};

struct Open {
  __device__ static float value(float) { return 1; }
};

// ---- elementwise and shared: a thread has W channels of a row, in the backward pass W logits and all channels that
// use them. period: logits of a row, which is `width` channels wide

template <class T, class Act, bool ADD, int W>
__global__ void gate_forward_kernel(Matrix<T> y, Matrix<const T> x, Matrix<const T> logits, Matrix<const T> residual,
                                    int N, int width, int period) {
  int column = int(blockIdx.x * blockDim.x + threadIdx.x) * W, row = blockIdx.y;
  if (column >= width) return;
  for (; row < N; row += gridDim.y) {
    float v[W], g[W];
    read_floats<W>(v, x.at(row, column));
    read_floats<W>(g, logits.at(row, column < period ? column : column % period));
    for (int i = 0; i < W; i++) v[i] = ADD ? v[i] + Act::value(g[i]) : v[i] * Act::value(g[i]);
    if (residual.data) {
      read_floats<W>(g, residual.at(row, column));
      for (int i = 0; i < W; i++) v[i] += g[i];
    }
    write_floats<W>(y.at(row, column), v);
  }
}

template <class T, class Act, bool ADD, int W>
__global__ void gate_backward_kernel(Matrix<T> dx, Matrix<T> dlogits, Matrix<const T> dy, Matrix<const T> x,
                                     Matrix<const T> logits, int N, int width, int period, int padded) {
  int column = int(blockIdx.x * blockDim.x + threadIdx.x) * W, row = blockIdx.y;
  if (column >= padded) return;
  for (; row < N; row += gridDim.y) {
    float d[W], v[W], g[W], dg[W] = {};
    if (column < period) {
      read_floats<W>(g, logits.at(row, column));
      for (int c = column; c < width; c += period) {
        read_floats<W>(d, dy.at(row, c));
        read_floats<W>(v, x.at(row, c));
        for (int i = 0; i < W; i++) {
          dg[i] += ADD ? d[i] : d[i] * v[i];
          if (!ADD) d[i] *= Act::value(g[i]);
        }
        write_floats<W>(dx.at(row, c), d);
      }
      for (int i = 0; i < W; i++) dg[i] *= Act::slope(g[i]);
    }
    write_floats<W>(dlogits.at(row, column), dg);
  }
}

// ---- headwise: a warp has a head of a row; in the backward each column of padding has a warp too

constexpr int WARPS = 4;

template <class T, class Act, bool ADD>
__global__ void headwise_forward_kernel(Matrix<T> y, Matrix<const T> x, Matrix<const T> logits,
                                        Matrix<const T> residual, int N, int H, int D) {
  size_t item = blockIdx.x * size_t(WARPS) + threadIdx.x / WARP;
  int row = int(item / H), h = int(item % H);
  if (row >= N) return;
  float g = Act::value(to_float(*logits.at(row, h)));
  for (int d = threadIdx.x % WARP; d < D; d += WARP) {
    float v = to_float(*x.at(row, h * D + d));
    v = ADD ? v + g : v * g;
    *y.at(row, h * D + d) = from_float<T>(residual.data ? v + to_float(*residual.at(row, h * D + d)) : v);
  }
}

template <class T, class Act, bool ADD>
__global__ void headwise_backward_kernel(Matrix<T> dx, Matrix<T> dlogits, Matrix<const T> dy, Matrix<const T> x,
                                         Matrix<const T> logits, int N, int H, int D, int padded) {
  size_t item = blockIdx.x * size_t(WARPS) + threadIdx.x / WARP;
  int row = int(item / padded), h = int(item % padded), lane = threadIdx.x % WARP;
  if (row >= N) return;
  float sum = 0, g = 0, value = 0;
  if (h < H) {
    g = to_float(*logits.at(row, h));
    value = Act::value(g);
    for (int d = lane; d < D; d += WARP) {
      float dv = to_float(*dy.at(row, h * D + d));
      sum += ADD ? dv : dv * to_float(*x.at(row, h * D + d));
      *dx.at(row, h * D + d) = from_float<T>(ADD ? dv : dv * value);
    }
  }
  sum = warp_sum(sum);
  if (lane == 0) *dlogits.at(row, h) = from_float<T>(h < H ? sum * Act::slope(g) : 0.0f);
}

// ---- statistics: each thread has a column of its own for its sums, which are added in one order

constexpr int STATISTICS_THREADS = 128;

// A row of blocks has a head. per_logit: channels of a head that share a logit
template <class T, class Act>
__global__ void gate_statistics_kernel(float* statistics, Matrix<const T> x, Matrix<const T> logits, bool added, int N,
                                       int D, int per_logit, int head_logits) {
  __shared__ float sums[GateStatistic::COUNT][STATISTICS_THREADS];
  for (int f = 0; f < GateStatistic::COUNT; f++) sums[f][threadIdx.x] = 0;
  auto add = [&](int f, float amount) { sums[f][threadIdx.x] += amount; };
  for (int row = blockIdx.x, h = blockIdx.y; row < N; row += gridDim.x)
    for (int c = threadIdx.x; c < D; c += STATISTICS_THREADS) {
      float g = Act::value(logits.data ? to_float(*logits.at(row, h * head_logits + c / per_logit)) : 0);
      float v = to_float(*x.at(row, h * D + c));
      float y = added ? v + g : v * g;
      add(GateStatistic::BEFORE, fabsf(v));
      add(GateStatistic::AFTER, fabsf(y));
      add(GateStatistic::BELOW_001, fabsf(y) < 0.01f);
      add(GateStatistic::BELOW_0001, fabsf(y) < 0.001f);
      add(GateStatistic::GATE, g);
      add(GateStatistic::CLOSED, g < 0.01f);
      add(GateStatistic::NARROW, g < 0.1f);
      if (g < 0) add(GateStatistic::NEGATIVE, 1);
      else if (g > 1) add(GateStatistic::ABOVE, 1);
      else if (g >= 0)
        add(GateStatistic::SHARES + min(int(g * GateStatistic::BINS), GateStatistic::BINS - 1), 1);  // no NaN
    }
  __syncthreads();
  if (threadIdx.x >= GateStatistic::COUNT) return;
  float sum = 0;
  for (int n = 0; n < STATISTICS_THREADS; n++) sum += sums[threadIdx.x][n];
  statistics[(blockIdx.y * gridDim.x + blockIdx.x) * GateStatistic::COUNT + threadIdx.x] = sum;
}

// f.operator()<Act, ADD>() for these settings.
template <class F> void with_gate(const GateSettings& settings, F f) {
  auto with_op = [&]<class Act>() {
    settings.op == GateOp::add ? f.template operator()<Act, true>() : f.template operator()<Act, false>();
  };
  switch (settings.activation) {
    case GateActivation::none: break;
    case GateActivation::sigmoid: return with_op.template operator()<Sigmoid>();
    case GateActivation::softplus: return with_op.template operator()<Softplus>();
    case GateActivation::silu: return with_op.template operator()<Silu>();
    case GateActivation::relu: return with_op.template operator()<Relu>();
    case GateActivation::tanh: return with_op.template operator()<Tanh>();
    case GateActivation::exp: return with_op.template operator()<Exp>();
    case GateActivation::two_sigmoid: return with_op.template operator()<TwoSigmoid>();
    case GateActivation::half_sigmoid: return with_op.template operator()<HalfSigmoid>();
    case GateActivation::identity: return with_op.template operator()<Identity>();
  }
  failure("a gate without an activation was launched");
}

bool multiples(int of, std::initializer_list<int> sizes) {
  for (int size : sizes)
    if (size % of) return false;
  return true;
}

// Logits of a row of the elementwise kernels.
int period_of(const GateSettings& settings, int H, int D) {
  return settings.granularity == GateGranularity::shared ? D : H * D;
}

constexpr int THREADS = 128;

}  // namespace

template <class T>
void gate_forward(Matrix<T> y, Matrix<const T> x, Matrix<const T> logits, const GateSettings& settings, int N, int H,
                  int D, cudaStream_t stream, Matrix<const T> residual) {
  if (N == 0) return;
  constexpr int W = Pack<T>::size;
  int period = period_of(settings, H, D);
  bool wide = multiples(W, {H * D, period, y.ld, x.ld, logits.ld, residual.ld}) &&
              aligned16(y.data, x.data, logits.data, residual.data);
  with_gate(settings, [&]<class Act, bool ADD>() {
    if (settings.granularity == GateGranularity::headwise)
      LAUNCH((headwise_forward_kernel<T, Act, ADD>), dim3(blocks_for(size_t(N) * H, WARPS)), dim3(WARPS * WARP), 0,
             stream, y, x, logits, residual, N, H, D);
    else if (wide)
      LAUNCH((gate_forward_kernel<T, Act, ADD, W>), grid_of_rows(N, H * D / W, THREADS), dim3(THREADS), 0, stream, y, x,
             logits, residual, N, H * D, period);
    else
      LAUNCH((gate_forward_kernel<T, Act, ADD, 1>), grid_of_rows(N, H * D, THREADS), dim3(THREADS), 0, stream, y, x,
             logits, residual, N, H * D, period);
  });
}

template <class T>
void gate_backward(Matrix<T> dx, Matrix<T> dlogits, int columns, Matrix<const T> dy, Matrix<const T> x,
                   Matrix<const T> logits, const GateSettings& settings, int N, int H, int D, cudaStream_t stream) {
  if (N == 0) return;
  constexpr int W = Pack<T>::size;
  int width = H * D, period = period_of(settings, H, D);
  bool wide = multiples(W, {width, period, columns, dx.ld, dlogits.ld, dy.ld, x.ld, logits.ld}) &&
              aligned16(dx.data, dlogits.data, dy.data, x.data, logits.data);
  with_gate(settings, [&]<class Act, bool ADD>() {
    if (settings.granularity == GateGranularity::headwise)
      LAUNCH((headwise_backward_kernel<T, Act, ADD>), dim3(blocks_for(size_t(N) * columns, WARPS)), dim3(WARPS * WARP),
             0, stream, dx, dlogits, dy, x, logits, N, H, D, columns);
    else if (wide)
      LAUNCH((gate_backward_kernel<T, Act, ADD, W>), grid_of_rows(N, columns / W, THREADS), dim3(THREADS), 0, stream,
             dx, dlogits, dy, x, logits, N, width, period, columns);
    else
      LAUNCH((gate_backward_kernel<T, Act, ADD, 1>), grid_of_rows(N, columns, THREADS), dim3(THREADS), 0, stream, dx,
             dlogits, dy, x, logits, N, width, period, columns);
  });
}

template <class T>
void gate_statistics(float* statistics, Matrix<const T> x, Matrix<const T> logits, const GateSettings& settings, int N,
                     int H, int D, cudaStream_t stream) {
  bool headwise = settings.granularity == GateGranularity::headwise;
  int head_logits = headwise ? 1 : settings.granularity == GateGranularity::elementwise ? D : 0;
  auto launch = [&]<class Act, bool ADD>() {
    LAUNCH((gate_statistics_kernel<T, Act>), dim3(GATE_STATISTICS_BLOCKS, H), dim3(STATISTICS_THREADS), 0, stream,
           statistics, x, logits, ADD, N, D, headwise ? D : 1, head_logits);
  };
  if (settings.activation != GateActivation::none) return with_gate(settings, launch);
  logits.data = nullptr;
  launch.template operator()<Open, false>();
}

#define INSTANTIATE(T)                                                                                        \
  template void gate_forward(Matrix<T>, Matrix<const T>, Matrix<const T>, const GateSettings&, int, int, int, \
                             cudaStream_t, Matrix<const T>);                                                  \
  template void gate_backward(Matrix<T>, Matrix<T>, int, Matrix<const T>, Matrix<const T>, Matrix<const T>,   \
                              const GateSettings&, int, int, int, cudaStream_t);                              \
  template void gate_statistics(float*, Matrix<const T>, Matrix<const T>, const GateSettings&, int, int, int, \
                                cudaStream_t);
INSTANTIATE(float)
INSTANTIATE(bf16)
