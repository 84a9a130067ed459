#include "kernels/cross_entropy.cuh"

#include <cfloat>

#include "kernels/elementwise.cuh"

// bf16 results are far less precise than the one-instruction exponential.
template <class T> __device__ inline float softmax_exp(float x) { return fast_exp(x); }
template <> __device__ inline float softmax_exp<float>(float x) { return expf(x); }

// The sum of exp(x - base) over the columns that a thread, and then the whole row, has read. base need not be their
// maximum: it moves when a logit exceeds it by HEADROOM, which keeps exp below e^8 and avoids most of the rescaling.
constexpr float HEADROOM = 8.0f;
struct SoftmaxSum {
  float base = -FLT_MAX, sum = 0;
};

// The UNIT logits at column c as floats, padding columns as -inf: exp makes them 0.
template <class T> __device__ inline void load_logits(float (&x)[UNIT], const T* row, int c, int V) {
  Unit<T> raw;
  raw.load(row + c);
#pragma unroll
  for (int k = 0; k < UNIT; k++) x[k] = to_float(raw.x[k]);
  if (c + UNIT <= V) return;
#pragma unroll
  for (int k = 0; k < UNIT; k++) x[k] = c + k < V ? x[k] : -INFINITY;
}

// The columns of one thread out of `threads` that share a row. arrive(c) returns when its column c may be read.
template <class T, class Arrive>
__device__ inline SoftmaxSum sum_columns(const T* row, int thread, int threads, int V, Arrive arrive) {
  float base = -FLT_MAX, sums[UNIT] = {};
  arrive(thread * UNIT);
  if (thread * UNIT < V) base = fmaxf(base, to_float(row[thread * UNIT]));  // usually this base is kept to the end
#pragma unroll 2
  for (int c = thread * UNIT; c < V; c += threads * UNIT) {
    float x[UNIT];
    load_logits<T>(x, row, c, V);
    int above = 0;
#pragma unroll
    for (int k = 0; k < UNIT; k++) above |= x[k] > base + HEADROOM;
    if (above) {
      float larger = base;
      for (int k = 0; k < UNIT; k++) larger = fmaxf(larger, x[k]);
      float shrink = softmax_exp<T>(base - larger);
      for (int k = 0; k < UNIT; k++) sums[k] *= shrink;
      base = larger;
    }
#pragma unroll
    for (int k = 0; k < UNIT; k++) sums[k] += softmax_exp<T>(x[k] - base);
    arrive(c + threads * UNIT);
  }
  return {base, ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]))};
}

// row: the logits, or a copy of them; out: where their gradient goes. The thread that holds the target's column writes
// the loss: no thread reads a logit that another one replaces. Goes from the last columns to the first, because those
// that sum_columns read last are the nearest in cache.
template <class T>
__device__ inline void finish_row(float* loss, T* out, const T* row, int thread, int threads, const SoftmaxSum& s,
                                  int target, float weight, float dloss, int V, int Vp) {
  if (target / UNIT % threads == thread) *loss = (logf(s.sum) + (s.base - to_float(row[target]))) * weight;
  dloss *= weight;
  int last = Vp / UNIT - 1;
  if (dloss == 0 || thread > last) return;
  float inverse = 1.0f / s.sum;
  for (int c = (last - (last - thread) % threads) * UNIT; c >= 0; c -= threads * UNIT) {
    float x[UNIT];
    Unit<T> d;
    if (c < V) {
      load_logits<T>(x, row, c, V);
#pragma unroll
      for (int k = 0; k < UNIT; k++) x[k] = softmax_exp<T>(x[k] - s.base) * inverse;
#pragma unroll
      for (int k = 0; k < UNIT; k++) d.x[k] = from_float<T>((x[k] - (c + k == target ? 1.0f : 0.0f)) * dloss);
    } else {
#pragma unroll
      for (int k = 0; k < UNIT; k++) d.x[k] = from_float<T>(0.0f);
    }
    d.store(out + c);
  }
}

// A row without a target.
template <class T> __device__ inline void skip_row(float* loss, T* out, int thread, int threads, float dloss, int Vp) {
  if (thread == 0) *loss = 0;
  Unit<T> zero;
#pragma unroll
  for (int k = 0; k < UNIT; k++) zero.x[k] = from_float<T>(0.0f);
  for (int c = thread * UNIT; c < Vp && dloss != 0; c += threads * UNIT) zero.store(out + c);
}

constexpr int CE_WARPS = 4, CE_BLOCK = 512;

template <class T>
__global__ void cross_entropy_warp_kernel(float* losses, T* logits, const int* __restrict__ targets,
                                          const float* __restrict__ weights, float dloss, int n, int V, int Vp) {
  int lane = threadIdx.x % WARP, warps = gridDim.x * CE_WARPS;
  for (int row = blockIdx.x * CE_WARPS + threadIdx.x / WARP; row < n; row += warps) {
    T* x = logits + size_t(row) * Vp;
    if (targets[row] < 0) {
      skip_row(losses + row, x, lane, WARP, dloss, Vp);
      continue;
    }
    SoftmaxSum s = sum_columns(x, lane, WARP, V, [](int) {});
    float base = warp_max(s.base);
    s.sum = warp_sum(s.sum * softmax_exp<T>(s.base - base));
    s.base = base;
    finish_row(losses + row, x, x, lane, WARP, s, targets[row], weights ? weights[row] : 1, dloss, V, Vp);
  }
}

// COPIED: the row is read once, into shared memory, a few pieces of every thread ahead of what it sums; each thread
// reads the pieces that it copied itself, so nothing waits for another thread's copies.
template <class T, bool COPIED>
__global__ void cross_entropy_block_kernel(float* losses, T* logits, const int* __restrict__ targets,
                                           const float* __restrict__ weights, float dloss, int V, int Vp) {
  __shared__ float bases[CE_BLOCK / WARP], sums[CE_BLOCK / WARP];
  DYNAMIC_SHARED(T, copy);  // [Vp] if COPIED
  constexpr int AHEAD = 4;
  T* x = logits + size_t(blockIdx.x) * Vp;
  if (targets[blockIdx.x] < 0) return skip_row(losses + blockIdx.x, x, threadIdx.x, CE_BLOCK, dloss, Vp);
  const T* row = COPIED ? copy : x;
  auto request = [&](int c) {
    for (int k = 0; k < UNIT && c < V; k += Pack<T>::size) cp_async16(copy + c + k, x + c + k);
    cp_async_commit();
  };
  for (int i = 0; i < AHEAD && COPIED; i++) request((threadIdx.x + i * CE_BLOCK) * UNIT);
  SoftmaxSum s = sum_columns(row, threadIdx.x, CE_BLOCK, V, [&](int c) {
    if constexpr (COPIED) {
      request(c + AHEAD * CE_BLOCK * UNIT);
      cp_async_wait<AHEAD>();
    }
  });
  float base = warp_max(s.base), sum = warp_sum(s.sum * softmax_exp<T>(s.base - base));
  if (threadIdx.x % WARP == 0) {
    bases[threadIdx.x / WARP] = base;
    sums[threadIdx.x / WARP] = sum;
  }
  __syncthreads();
  s = {};
  for (int w = 0; w < CE_BLOCK / WARP; w++) s.base = fmaxf(s.base, bases[w]);
  for (int w = 0; w < CE_BLOCK / WARP; w++) s.sum += sums[w] * softmax_exp<T>(bases[w] - s.base);
  finish_row(losses + blockIdx.x, x, row, threadIdx.x, CE_BLOCK, s, targets[blockIdx.x],
             weights ? weights[blockIdx.x] : 1, dloss, V, Vp);
}

// Whether a multiprocessor holds two rows of bf16 at once, so that one is read while the other is written.
template <class T> static bool copies_rows(int Vp) {
  constexpr size_t OTHER = 2048;  // of a block's shared memory: two small arrays, and what the system keeps
  return sizeof(T) == 2 && 2 * (Vp * sizeof(T) + OTHER) <= device_properties().sharedMemPerBlockOptin;
}

template <class T>
void cross_entropy(float* losses, T* logits, const int* targets, float dloss, int n, int V, int Vp, cudaStream_t stream,
                   const float* weights) {
  if (n == 0) return;
  if (Vp <= 4096) {
    LAUNCH(cross_entropy_warp_kernel<T>, dim3(looping_blocks(n, CE_WARPS, 16)), dim3(CE_WARPS * WARP), 0, stream,
           losses, logits, targets, weights, dloss, n, V, Vp);
  } else {
    bool copied = copies_rows<T>(Vp) && dloss != 0;
    LAUNCH((copied ? cross_entropy_block_kernel<T, sizeof(T) == 2> : cross_entropy_block_kernel<T, false>), dim3(n),
           dim3(CE_BLOCK), copied ? Vp * sizeof(T) : 0, stream, losses, logits, targets, weights, dloss, V, Vp);
  }
}

template void cross_entropy(float*, float*, const int*, float, int, int, int, cudaStream_t, const float*);
template void cross_entropy(float*, bf16*, const int*, float, int, int, int, cudaStream_t, const float*);
