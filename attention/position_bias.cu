// The contract is in position_bias.cuh. c is a running sum over the positions of a head, or of each of its documents. A
// thread has a part of the positions, one after the other: it adds them up, then adds what the parts before it
// (backward: behind it) have. Sums are in double, so that c is as exact as its two floats, however long the sequence
// is.
#include "attention/position_bias.cuh"

#include <cmath>

#include "attention/maths.cuh"

namespace {

constexpr int THREADS = 128;

// The step of c at a position with logit x. fox: ln sigmoid(x) = -softplus(-x); cable: -softplus(x).
template <Bias BIAS> struct Step {
  static constexpr float SIGN = BIAS == Bias::fox ? -1 : 1;
  __device__ static float value(float x) { return -FullMaths::softplus(SIGN * x); }
  __device__ static float slope(float x) { return -SIGN * FullMaths::sigmoid(SIGN * x); }
};
template <> struct Step<Bias::given> {  // by the logit itself
  __device__ static float value(float x) { return x; }
  __device__ static float slope(float) { return 1; }
};

// The document of a position; without `documents` all are one.
__device__ inline int2 document_of(const int2* documents, int t, int T) {
  return documents ? documents[t] : make_int2(0, T);
}

// g(t, the sum of f over the positions of t's document up to t) for all t < T, by a block; from the last position to
// the first if BACKWARD. With several g all threads have called one before any calls the next.
template <bool BACKWARD, class F, class... G> __device__ void running_sums(int T, const int2* documents, F f, G... g) {
  __shared__ double parts[THREADS];
  __shared__ bool begins_anew[THREADS];  // parts: of the last document in them alone
  int size = (T + THREADS - 1) / THREADS, first = min(int(threadIdx.x) * size, T), end = min(first + size, T);
  auto position = [&](int n) { return BACKWARD ? T - 1 - n : n; };
  double sum = 0;
  bool anew = false;
  auto add = [&](int t) {
    int2 document = document_of(documents, t, T);
    if (documents && t == (BACKWARD ? document.y - 1 : document.x)) sum = 0, anew = true;
    sum += f(t);
  };
  for (int n = first; n < end; n++) add(position(n));
  parts[threadIdx.x] = sum, begins_anew[threadIdx.x] = anew;
  auto call = [&](auto g) {
    __syncthreads();
    sum = 0;
    for (int n = 0; n < int(threadIdx.x); n++) sum = begins_anew[n] ? parts[n] : sum + parts[n];
    for (int n = first; n < end; n++) add(position(n)), g(position(n), sum);
  };
  (call(g), ...);
}

// c_t = -slope t, t from 0 in its document, with slope = 2^(-8 h / H), h = 1 .. H; the slope is a float, exact if it is
// a power of 2.
__global__ void alibi_kernel(float* c, const int2* documents, int T, double per_unit) {
  int h = blockIdx.x, H = gridDim.x;
  if (documents) documents += size_t(blockIdx.y) * T;
  c += (size_t(blockIdx.y) * H + h) * bias_floats(T);
  double slope = exp2f(-8.0f * float(h + 1) / float(H)) * per_unit;
  auto start = [&](int t) { return document_of(documents, t, T).x; };
  for (int t = threadIdx.x * BIAS_ROWS; t < T; t += THREADS * BIAS_ROWS)
    origin_of(c, t) = as_two_floats(-slope * (t - start(t)));
  __syncthreads();
  for (int t = threadIdx.x; t < T; t += THREADS) write_bias(c, T, t, -slope * (t - start(t)), start(t));
}

template <class T, Bias BIAS>
__global__ void bias_forward_kernel(float* c, Matrix<const T> logits, const int2* documents, int T_, double per_unit) {
  int h = blockIdx.x, first = blockIdx.y * T_;
  if (documents) documents += first;
  c += (size_t(blockIdx.y) * gridDim.x + h) * bias_floats(T_);
  running_sums<false>(
      T_, documents, [&](int t) { return Step<BIAS>::value(to_float(*logits.at(first + t, h))); },
      [&](int t, double sum) {
        if (t % BIAS_ROWS == 0) origin_of(c, t) = as_two_floats(sum * per_unit);
      },
      [&](int t, double sum) { write_bias(c, T_, t, sum * per_unit, document_of(documents, t, T_).x); });
}

// dc_t = (sums by query - sums by key) / unit; c_i has the step at t if i >= t, in t's document.
template <class T, Bias BIAS>
__global__ void bias_backward_kernel(Matrix<T> dlogits, Matrix<const T> logits, BackwardWorkspace sums,
                                     const int2* documents, float per_unit, int T_, int H) {
  int h = blockIdx.x, first = blockIdx.y * T_;
  if (documents) documents += first;
  if (h >= H) {
    for (int t = threadIdx.x; t < T_; t += THREADS) *dlogits.at(first + t, h) = from_float<T>(0);
    return;
  }
  size_t head = (size_t(blockIdx.y) * H + h) * T_;
  running_sums<true>(
      T_, documents, [&](int t) { return double(sums.dz_by_query[head + t]) - double(sums.dz_by_key[head + t]); },
      [&](int t, double sum) {
        float slope = Step<BIAS>::slope(to_float(*logits.at(first + t, h)));
        *dlogits.at(first + t, h) = from_float<T>(float(sum) * per_unit * slope);
      });
}

// f.operator()<BIAS>() for a bias that is learned.
template <class F> void with_learned(Bias bias, F f) {
  if (bias == Bias::fox) f.template operator()<Bias::fox>();
  else if (bias == Bias::cable) f.template operator()<Bias::cable>();
  else f.template operator()<Bias::given>();
}

}  // namespace

template <class T> void position_bias_forward(float* c, Matrix<const T> logits, const AttentionCall<T>& call) {
  Bias bias = call.settings.bias;
  if (bias == Bias::none) return;
  dim3 grid(call.shape.H, call.shape.B);
  double per_unit = 1 / kind_row(call.settings.kind).unit;
  float* slack = c + bias_floats(call.shape) - BIAS_SLACK;
  CUDA_CHECK(cudaMemsetAsync(slack, 0, BIAS_SLACK * sizeof(float), call.stream));
  if (bias == Bias::alibi)
    LAUNCH(alibi_kernel, grid, dim3(THREADS), 0, call.stream, c, call.separate_documents(), call.shape.T, per_unit);
  else
    with_learned(bias, [&]<Bias BIAS>() {
      LAUNCH((bias_forward_kernel<T, BIAS>), grid, dim3(THREADS), 0, call.stream, c, logits, call.separate_documents(),
             call.shape.T, per_unit);
    });
}

// Floor: B T H elements and twice as many floats read, B T columns elements written.
template <class T>
void position_bias_backward(Matrix<T> dlogits, int columns, Matrix<const T> logits, void* workspace,
                            const AttentionCall<T>& call) {
  if (!bias_is_learned(call.settings.bias)) return;
  with_learned(call.settings.bias, [&]<Bias BIAS>() {
    LAUNCH((bias_backward_kernel<T, BIAS>), dim3(columns, call.shape.B), dim3(THREADS), 0, call.stream, dlogits, logits,
           backward_workspace(workspace, call.settings, call.shape), call.separate_documents(),
           float(1 / kind_row(call.settings.kind).unit), call.shape.T, call.shape.H);
  });
}

#define INSTANTIATE(T)                                                                   \
  template void position_bias_forward(float*, Matrix<const T>, const AttentionCall<T>&); \
  template void position_bias_backward(Matrix<T>, int, Matrix<const T>, void*, const AttentionCall<T>&);
INSTANTIATE(float)
INSTANTIATE(bf16)
