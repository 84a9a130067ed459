#include "kernels/cross_entropy.cuh"

#include <cfloat>

#include "kernels/elementwise.cuh"
#include "kernels/reduce.cuh"

// bf16 results are far less precise than the one-instruction exponential.
template <class T> __device__ inline float softmax_exp(float x) { return fast_exp(x); }
template <> __device__ inline float softmax_exp<float>(float x) { return expf(x); }

// The sum of exp(x - base) over the columns that a thread, and then the whole row, has read. base need not be their
// maximum: it moves when a logit exceeds it by HEADROOM, which keeps exp below e^8 and avoids most of the rescaling.
constexpr float HEADROOM = 8.0f;
struct SoftmaxSum {
  float base = -FLT_MAX, sum = 0;
};

// What becomes of a logit: x itself, or with a cap y = cap tanh(x / cap), whose derivative is slope(y).
struct Uncapped {
  __device__ float operator()(float x) const { return x; }
};
struct Capped {
  float cap;
  // fmaf, so that no caller's sum takes the product in unrounded: the same logit has the same value everywhere.
  __device__ float operator()(float x) const { return fmaf(cap, tanhf(x / cap), 0.0f); }
  __device__ float slope(float y) const { return 1.0f - y / cap * (y / cap); }
};

// The UNIT logits at column c as floats, padding columns as -inf: exp makes them 0.
template <class T, class Cap>
__device__ inline void load_logits(float (&x)[UNIT], const T* row, int c, int V, Cap cap) {
  Unit<T> raw;
  raw.load(row + c);
#pragma unroll
  for (int k = 0; k < UNIT; k++) x[k] = cap(to_float(raw.x[k]));
  if (c + UNIT <= V) return;
#pragma unroll
  for (int k = 0; k < UNIT; k++) x[k] = c + k < V ? x[k] : -INFINITY;
}

struct Unseen {
  __device__ void operator()(int, const float (&)[UNIT]) const {}
};

// The columns of one thread out of `threads` that share a row. arrive(c) returns when its column c may be read; see(c,
// x) gets the UNIT logits at column c.
template <class T, class Cap, class Arrive, class See>
__device__ inline SoftmaxSum sum_columns(const T* row, int thread, int threads, int V, Cap cap, Arrive arrive,
                                         See see) {
  float base = -FLT_MAX, sums[UNIT] = {};
  arrive(thread * UNIT);
  if (thread * UNIT < V) base = fmaxf(base, cap(to_float(row[thread * UNIT])));  // usually this base is kept to the end
#pragma unroll 2
  for (int c = thread * UNIT; c < V; c += threads * UNIT) {
    float x[UNIT];
    load_logits<T>(x, row, c, V, cap);
    see(c, x);
    int exceeds = 0;
#pragma unroll
    for (int k = 0; k < UNIT; k++) exceeds |= x[k] > base + HEADROOM;
    if (exceeds) {
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

template <class T, class Cap> __device__ inline float loss_of(const SoftmaxSum& s, const T* row, int target, Cap cap) {
  return logf(s.sum) + (s.base - cap(to_float(row[target])));
}

// row: the logits, or a copy of them; out: where their gradient goes. The thread that holds the target's column writes
// the loss: no thread reads a logit that another one replaces. Goes from the last columns to the first, because those
// that sum_columns read last are the nearest in cache.
template <class T, class Cap>
__device__ inline void finish_row(float* loss, T* out, const T* row, int thread, int threads, const SoftmaxSum& s,
                                  int target, float weight, float dloss, int V, int Vp, Cap cap) {
  if (target / UNIT % threads == thread) *loss = loss_of(s, row, target, cap) * weight;
  dloss *= weight;
  int last = Vp / UNIT - 1;
  if (thread > last) return;
  float inverse = 1.0f / s.sum;
  for (int c = (last - (last - thread) % threads) * UNIT; c >= 0; c -= threads * UNIT) {
    float x[UNIT];
    Unit<T> d;
    if (c < V) {
      load_logits<T>(x, row, c, V, cap);
      float slopes[UNIT];
#pragma unroll
      for (int k = 0; k < UNIT; k++) {
        if constexpr (std::is_same_v<Cap, Capped>) slopes[k] = dloss * (c + k < V ? cap.slope(x[k]) : 0.0f);
        else slopes[k] = dloss;
      }
#pragma unroll
      for (int k = 0; k < UNIT; k++) x[k] = softmax_exp<T>(x[k] - s.base) * inverse;
#pragma unroll
      for (int k = 0; k < UNIT; k++) d.x[k] = from_float<T>((x[k] - (c + k == target ? 1.0f : 0.0f)) * slopes[k]);
    } else {
#pragma unroll
      for (int k = 0; k < UNIT; k++) d.x[k] = from_float<T>(0.0f);
    }
    d.store(out + c);
  }
}

// A row without a target.
template <class T> __device__ inline void skip_row(float* loss, T* out, int thread, int threads, int Vp) {
  if (thread == 0) *loss = 0;
  Unit<T> zero;
#pragma unroll
  for (int k = 0; k < UNIT; k++) zero.x[k] = from_float<T>(0.0f);
  for (int c = thread * UNIT; c < Vp; c += threads * UNIT) zero.store(out + c);
}

constexpr int CE_WARPS = 4, CE_BLOCK = 512, LONGEST_FOR_WARPS = 4096;

// The sums of all lanes' columns, the same in every lane.
template <class T> __device__ inline SoftmaxSum warp_sum(const SoftmaxSum& s) {
  float base = warp_max(s.base);
  return {base, warp_sum(s.sum * softmax_exp<T>(s.base - base))};
}

template <class T, class Cap>
__global__ void cross_entropy_warp_kernel(float* losses, T* logits, const int* __restrict__ targets,
                                          const float* __restrict__ weights, float dloss, int n, int V, int Vp,
                                          Cap cap) {
  int lane = threadIdx.x % WARP, warps = gridDim.x * CE_WARPS;
  for (int row = blockIdx.x * CE_WARPS + threadIdx.x / WARP; row < n; row += warps) {
    T* x = logits + size_t(row) * Vp;
    if (targets[row] < 0) {
      skip_row(losses + row, x, lane, WARP, Vp);
      continue;
    }
    SoftmaxSum s = warp_sum<T>(sum_columns(
        x, lane, WARP, V, cap, [](int) {}, Unseen()));
    finish_row(losses + row, x, x, lane, WARP, s, targets[row], weights ? weights[row] : 1, dloss, V, Vp, cap);
  }
}

// The sums of all threads' columns, the same in every thread of a block.
template <class T> __device__ inline SoftmaxSum block_sum(const SoftmaxSum& of_thread) {
  __shared__ float bases[CE_BLOCK / WARP], sums[CE_BLOCK / WARP];
  SoftmaxSum of_warp = warp_sum<T>(of_thread), s;
  if (threadIdx.x % WARP == 0) {
    bases[threadIdx.x / WARP] = of_warp.base;
    sums[threadIdx.x / WARP] = of_warp.sum;
  }
  __syncthreads();
  for (int w = 0; w < CE_BLOCK / WARP; w++) s.base = fmaxf(s.base, bases[w]);
  for (int w = 0; w < CE_BLOCK / WARP; w++) s.sum += sums[w] * softmax_exp<T>(bases[w] - s.base);
  return s;
}

// COPIED: the row is read once, into shared memory, a few pieces of every thread ahead of what it sums; each thread
// reads the pieces that it copied itself, so nothing waits for another thread's copies.
template <class T, bool COPIED, class Cap>
__global__ void cross_entropy_block_kernel(float* losses, T* logits, const int* __restrict__ targets,
                                           const float* __restrict__ weights, float dloss, int V, int Vp, Cap cap) {
  DYNAMIC_SHARED(T, copy);  // [Vp] if COPIED
  constexpr int AHEAD = 4;
  T* x = logits + size_t(blockIdx.x) * Vp;
  if (targets[blockIdx.x] < 0) return skip_row(losses + blockIdx.x, x, threadIdx.x, CE_BLOCK, Vp);
  const T* row = COPIED ? copy : x;
  auto request = [&](int c) {
    for (int k = 0; k < UNIT && c < V; k += Pack<T>::size) cp_async16(copy + c + k, x + c + k);
    cp_async_commit();
  };
  for (int i = 0; i < AHEAD && COPIED; i++) request((threadIdx.x + i * CE_BLOCK) * UNIT);
  auto arrive = [&](int c) {
    if constexpr (COPIED) {
      request(c + AHEAD * CE_BLOCK * UNIT);
      cp_async_wait<AHEAD>();
    }
  };
  SoftmaxSum s = block_sum<T>(sum_columns(row, threadIdx.x, CE_BLOCK, V, cap, arrive, Unseen()));
  finish_row(losses + blockIdx.x, x, row, threadIdx.x, CE_BLOCK, s, targets[blockIdx.x],
             weights ? weights[blockIdx.x] : 1, dloss, V, Vp, cap);
}

// BLOCK: a block per row, else a warp.
template <class T, bool BLOCK, class Cap>
__global__ void token_losses_kernel(float* losses, int* above, const T* __restrict__ logits,
                                    const int* __restrict__ targets, int n, int V, int Vp, Cap cap) {
  __shared__ float counts[CE_BLOCK / WARP];
  constexpr int THREADS = BLOCK ? CE_BLOCK : WARP, ROWS = BLOCK ? 1 : CE_WARPS;
  int thread = threadIdx.x % THREADS;
  for (int row = blockIdx.x * ROWS + threadIdx.x / THREADS; row < n; row += gridDim.x * ROWS) {
    const T* x = logits + size_t(row) * Vp;
    int target = targets[row];
    float loss = 0, count = 0;
    if (target >= 0) {
      float own = cap(to_float(x[target]));
      auto see = [&](int c, const float(&logits)[UNIT]) {
#pragma unroll
        for (int k = 0; k < UNIT; k++) count += logits[k] < own || (logits[k] == own && c + k >= target) ? 0.0f : 1.0f;
      };
      SoftmaxSum s = sum_columns(
          x, thread, THREADS, V, cap, [](int) {}, see);
      s = BLOCK ? block_sum<T>(s) : warp_sum<T>(s);
      count = BLOCK ? block_sum(count, counts) : warp_sum(count);
      loss = loss_of(s, x, target, cap);
    }
    if (thread == 0) losses[row] = loss, above[row] = int(count);
  }
}

// Whether a multiprocessor holds two rows of bf16 at once, so that one is read while the other is written.
template <class T> static bool copies_rows(int Vp) {
  constexpr size_t OTHER = 2048;  // of a block's shared memory: two small arrays, and what the system keeps
  return sizeof(T) == 2 && 2 * (Vp * sizeof(T) + OTHER) <= device_properties().sharedMemPerBlockOptin;
}

template <class T, class Cap>
static void cross_entropy_of(Cap cap, float* losses, T* logits, const int* targets, float dloss, int n, int V, int Vp,
                             cudaStream_t stream, const float* weights) {
  if (Vp <= LONGEST_FOR_WARPS) {
    LAUNCH((cross_entropy_warp_kernel<T, Cap>), dim3(looping_blocks(n, CE_WARPS, 16)), dim3(CE_WARPS * WARP), 0, stream,
           losses, logits, targets, weights, dloss, n, V, Vp, cap);
  } else {
    bool copied = copies_rows<T>(Vp);
    LAUNCH((copied ? cross_entropy_block_kernel<T, sizeof(T) == 2, Cap> : cross_entropy_block_kernel<T, false, Cap>),
           dim3(n), dim3(CE_BLOCK), copied ? Vp * sizeof(T) : 0, stream, losses, logits, targets, weights, dloss, V, Vp,
           cap);
  }
}

template <class T>
void cross_entropy(float* losses, T* logits, const int* targets, float dloss, int n, int V, int Vp, cudaStream_t stream,
                   const float* weights, float cap) {
  if (n == 0) return;
  if (cap > 0) cross_entropy_of(Capped{cap}, losses, logits, targets, dloss, n, V, Vp, stream, weights);
  else cross_entropy_of(Uncapped(), losses, logits, targets, dloss, n, V, Vp, stream, weights);
}

template <class T, class Cap>
static void token_losses_of(Cap cap, float* losses, int* above, const T* logits, const int* targets, int n, int V,
                            int Vp, cudaStream_t stream) {
  if (Vp <= LONGEST_FOR_WARPS) {
    LAUNCH((token_losses_kernel<T, false, Cap>), dim3(looping_blocks(n, CE_WARPS, 16)), dim3(CE_WARPS * WARP), 0,
           stream, losses, above, logits, targets, n, V, Vp, cap);
  } else {
    LAUNCH((token_losses_kernel<T, true, Cap>), dim3(n), dim3(CE_BLOCK), 0, stream, losses, above, logits, targets, n,
           V, Vp, cap);
  }
}

template <class T>
void token_losses(float* losses, int* above, const T* logits, const int* targets, int n, int V, int Vp,
                  cudaStream_t stream, float cap) {
  if (n == 0) return;
  if (cap > 0) token_losses_of(Capped{cap}, losses, above, logits, targets, n, V, Vp, stream);
  else token_losses_of(Uncapped(), losses, above, logits, targets, n, V, Vp, stream);
}

#define INSTANTIATE(T)                                                                                          \
  template void cross_entropy(float*, T*, const int*, float, int, int, int, cudaStream_t, const float*, float); \
  template void token_losses(float*, int*, const T*, const int*, int, int, int, cudaStream_t, float);
INSTANTIATE(float)
INSTANTIATE(bf16)
