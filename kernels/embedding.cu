#include "kernels/embedding.cuh"

#include <utility>

#include "kernels/elementwise.cuh"

// ---- forward: a thread per eight elements ---------------------------------------------------------------------------

template <class T>
__global__ void embedding_forward_kernel(T* __restrict__ out, const int* __restrict__ tokens, const T* __restrict__ wte,
                                         const T* __restrict__ wpe, unsigned units, int T_, int C) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x, per_row = unsigned(C) / UNIT, row = i / per_row;
  if (i >= units) return;
  unsigned c = (i - row * per_row) * UNIT;
  Unit<T> x;
  x.load(wte + size_t(tokens[row]) * C + c);
  if (wpe) {
    Unit<T> position;
    position.load(wpe + size_t(row % unsigned(T_)) * C + c);
#pragma unroll
    for (int k = 0; k < UNIT; k++) x.x[k] = from_float<T>(to_float(x.x[k]) + to_float(position.x[k]));
  }
  x.store(out + size_t(i) * UNIT);
}

// ---- backward, step 1: sort (token, row) by token -------------------------------------------------------------------
// Stable radix sort, 8 bits a pass. A block owns a tile of keys, a warp a contiguous part of the tile, and goes through
// it 32 keys at a time; lanes with equal digits find each other by ballots, so counting needs no atomics and keeps the
// order.

constexpr int DIGIT_BITS = 8, DIGITS = 1 << DIGIT_BITS;
constexpr int SORT_THREADS = 256, SORT_WARPS = SORT_THREADS / WARP, SORT_ROUNDS = 8;
constexpr int SORT_TILE = SORT_THREADS * SORT_ROUNDS;
static_assert(SORT_THREADS == DIGITS, "one thread per digit");

// The lanes of the warp that hold the same digit.
__device__ inline unsigned lanes_with_digit(unsigned digit) {
  unsigned same = 0xFFFFFFFFu;
#pragma unroll
  for (int bit = 0; bit < DIGIT_BITS; bit++) {
    bool set = digit >> bit & 1;
    unsigned lanes = warp_ballot(set);
    same &= set ? lanes : ~lanes;
  }
  return same;
}

// Keys past the end get the largest digit: in a stable order they come after all real ones, at positions >= n.
__device__ inline unsigned digit_at(const int* keys, int i, int n, int shift) {
  return i < n ? unsigned(keys[i]) >> shift & (DIGITS - 1) : DIGITS - 1;
}

// Counts this warp's keys by digit into count[DIGITS] and remembers each key's rank among the warp's keys of its digit.
__device__ inline void count_digits(int* count, unsigned (&digit)[SORT_ROUNDS], int (&rank)[SORT_ROUNDS],
                                    const int* keys, int begin, int n, int shift) {
  int lane = threadIdx.x % WARP;
#pragma unroll
  for (int round = 0; round < SORT_ROUNDS; round++) {
    digit[round] = digit_at(keys, begin + round * WARP + lane, n, shift);
    unsigned same = lanes_with_digit(digit[round]);
    int first = __ffs(int(same)) - 1, before = 0;
    if (lane == first) {
      before = count[digit[round]];
      count[digit[round]] = before + __popc(same);
    }
    rank[round] = shuffle(before, first) + __popc(same & ((1u << lane) - 1));
    warp_sync();  // in the next round another lane may be the first
  }
}

__device__ inline void clear_counts(int (&count)[SORT_WARPS][DIGITS]) {
  for (int w = 0; w < SORT_WARPS; w++) count[w][threadIdx.x] = 0;
  __syncthreads();
}

__global__ void digit_counts_kernel(int* counts /* = [DIGITS, blocks] */, const int* keys, int n, int shift) {
  __shared__ int count[SORT_WARPS][DIGITS];
  unsigned digit[SORT_ROUNDS];
  int rank[SORT_ROUNDS], warp = threadIdx.x / WARP;
  clear_counts(count);
  count_digits(count[warp], digit, rank, keys, (blockIdx.x * SORT_WARPS + warp) * SORT_ROUNDS * WARP, n, shift);
  __syncthreads();
  int sum = 0;
  for (int w = 0; w < SORT_WARPS; w++) sum += count[w][threadIdx.x];
  counts[size_t(threadIdx.x) * gridDim.x + blockIdx.x] = sum;
}

// counts [DIGITS, blocks] become the position where each (digit, block) begins. One block, a thread per digit.
__global__ void digit_offsets_kernel(int* counts, int blocks) {
  __shared__ int warp_total[SORT_WARPS];
  int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  int* mine = counts + size_t(threadIdx.x) * blocks;
  int total = 0;
  for (int b = 0; b < blocks; b++) total += mine[b];
  int through = total;  // inclusive sum over the warp's digits
  for (int delta = 1; delta < WARP; delta *= 2) {
    int lower = shuffle_up(through, delta);
    if (lane >= delta) through += lower;
  }
  if (lane == WARP - 1) warp_total[warp] = through;
  __syncthreads();
  int position = through - total;
  for (int w = 0; w < warp; w++) position += warp_total[w];
  for (int b = 0; b < blocks; b++) {
    int count = mine[b];
    mine[b] = position;
    position += count;
  }
}

// rows == nullptr: the rows are 0, 1, 2, ...
__global__ void sort_scatter_kernel(int* keys_out, int* rows_out, const int* keys, const int* rows, const int* offsets,
                                    int n, int shift) {
  __shared__ int count[SORT_WARPS][DIGITS];
  unsigned digit[SORT_ROUNDS];
  int rank[SORT_ROUNDS], lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  int begin = (blockIdx.x * SORT_WARPS + warp) * SORT_ROUNDS * WARP;
  clear_counts(count);
  count_digits(count[warp], digit, rank, keys, begin, n, shift);
  __syncthreads();
  int position =
      offsets[size_t(threadIdx.x) * gridDim.x + blockIdx.x];  // this thread's digit: from counts to positions
  for (int w = 0; w < SORT_WARPS; w++) {
    int here = count[w][threadIdx.x];
    count[w][threadIdx.x] = position;
    position += here;
  }
  __syncthreads();
#pragma unroll
  for (int round = 0; round < SORT_ROUNDS; round++) {
    int from = begin + round * WARP + lane, to = count[warp][digit[round]] + rank[round];
    if (from >= n) continue;
    keys_out[to] = keys[from];
    rows_out[to] = rows ? rows[from] : from;
  }
}

// ---- backward, step 2: sum the rows of equal tokens -----------------------------------------------------------------
// The sorted list is cut into chunks of RUN_ROWS. A run of equal tokens inside one chunk is added to dwte at
// once. A run that crosses an edge leaves its parts in edges [chunks, 2, C]: [.., 1, ..] in the chunk where it begins,
// [.., 0, ..] in those that it continues into; sum_edges_kernel adds them up, in order, for the chunk where it begins.
// So each row of dwte has one writer.

constexpr int RUN_ROWS = 32, RUN_LOADS = 8;

// to [SIZE] += v, or = v.
template <int SIZE> __device__ inline void put_floats(float* to, const float (&v)[SIZE], bool add) {
#pragma unroll
  for (int k = 0; k < SIZE; k += 4) {
    Pack<float> x = {};
    if (add) x = load16(to + k);
    for (int i = 0; i < 4; i++) x[i] += v[k + i];
    store16(to + k, x);
  }
}

template <class T>
__global__ void sum_runs_kernel(float* dwte, float* edges, const T* __restrict__ dout, const int* __restrict__ keys,
                                const int* __restrict__ rows, int n, int C) {
  constexpr int SIZE = Pack<T>::size;
  int c = (blockIdx.y * blockDim.x + threadIdx.x) * SIZE;
  if (c >= C) return;
  int begin = blockIdx.x * RUN_ROWS, end = begin + RUN_ROWS < n ? begin + RUN_ROWS : n;
  float* edge = edges + size_t(blockIdx.x) * 2 * C + c;
  int key = keys[begin];
  bool from_before = begin > 0 && keys[begin - 1] == key;
  float sum[SIZE] = {};
  for (int i = begin; i < end; i += RUN_LOADS) {
    Pack<T> loaded[RUN_LOADS];
#pragma unroll
    for (int u = 0; u < RUN_LOADS; u++) {
      if (i + u < end) loaded[u] = load16(dout + size_t(rows[i + u]) * C + c);
    }
#pragma unroll
    for (int u = 0; u < RUN_LOADS; u++) {
      if (i + u >= end) break;
      int next = keys[i + u];
      if (next != key) {
        put_floats(from_before ? edge : dwte + size_t(key) * C + c, sum, !from_before);
        key = next;
        from_before = false;
        for (int k = 0; k < SIZE; k++) sum[k] = 0;
      }
#pragma unroll
      for (int k = 0; k < SIZE; k++) sum[k] += to_float(loaded[u][k]);
    }
  }
  bool goes_on = end < n && keys[end] == key;
  put_floats(from_before ? edge : goes_on ? edge + C : dwte + size_t(key) * C + c, sum, !from_before && !goes_on);
}

__global__ void sum_edges_kernel(float* dwte, const float* __restrict__ edges, const int* __restrict__ keys, int n,
                                 int C) {
  constexpr int AHEAD = 8;  // a frequent token's run crosses hundreds of chunks: read several at a time
  int c = (blockIdx.y * blockDim.x + threadIdx.x) * 4;
  int chunk = blockIdx.x, begin = chunk * RUN_ROWS,
      end = begin + RUN_ROWS;  // the grid leaves out the last chunk: end < n
  int key = keys[end - 1];
  if (c >= C || keys[end] != key || (begin > 0 && keys[begin - 1] == key)) return;
  const float* edge = edges + size_t(chunk) * 2 * C + c;
  Pack<float> sum = load16(edge + C);
  auto add = [&](const Pack<float>& x) {
    for (int k = 0; k < 4; k++) sum[k] += x.x[k];
  };
  int next = end;
  edge += size_t(2) * C;
  for (; next + (AHEAD - 1) * RUN_ROWS < n && keys[next + (AHEAD - 1) * RUN_ROWS] == key; next += AHEAD * RUN_ROWS) {
    Pack<float> x[AHEAD];
#pragma unroll
    for (int u = 0; u < AHEAD; u++) x[u] = load16(edge + size_t(2) * C * u);
#pragma unroll
    for (int u = 0; u < AHEAD; u++) add(x[u]);
    edge += size_t(2) * C * AHEAD;
  }
  for (; next < n && keys[next] == key; next += RUN_ROWS, edge += size_t(2) * C) add(load16(edge));
  float total[4] = {sum[0], sum[1], sum[2], sum[3]};
  put_floats(dwte + size_t(key) * C + c, total, true);
}

// ---- backward of the positions: a thread per 16 bytes of a position, over the batch ---------------------------------

template <class T> __global__ void position_backward_kernel(float* dwpe, const T* __restrict__ dout, int B, size_t TC) {
  constexpr int SIZE = Pack<T>::size;
  size_t i = (blockIdx.x * size_t(blockDim.x) + threadIdx.x) * SIZE;
  if (i >= TC) return;
  float sum[SIZE] = {};
#pragma unroll 4
  for (int b = 0; b < B; b++) {
    Pack<T> x = load16(dout + b * TC + i);
#pragma unroll
    for (int k = 0; k < SIZE; k++) sum[k] += to_float(x[k]);
  }
  put_floats(dwpe + i, sum, true);
}

// ---- launchers ------------------------------------------------------------------------------------------------------

template <class T>
void embedding_forward(T* out, const int* tokens, const T* wte, const T* wpe, int B, int T_, int C,
                       cudaStream_t stream) {
  size_t units = size_t(B) * T_ * C / UNIT;
  if (units == 0) return;
  if (units >> 32) failure("embedding_forward: %d x %d x %d activations are too many for one call", B, T_, C);
  LAUNCH(embedding_forward_kernel<T>, dim3(blocks_for(units, 256)), dim3(256), 0, stream, out, tokens, wte, wpe,
         unsigned(units), T_, C);
}

struct SortWorkspace {
  int *keys[2], *rows[2], *counts;  // [N] each; [DIGITS, blocks]
  float* edges;                     // [chunks, 2, C]
  size_t bytes;
  SortWorkspace(void* base, int N, int C) {
    size_t n = (size_t(N) + 3) / 4 * 4;
    char* at = static_cast<char*>(base);
    auto take = [&](size_t count) {
      char* p = at;
      at += count * 4;
      return p;
    };
    for (auto& p : keys) p = reinterpret_cast<int*>(take(n));
    for (auto& p : rows) p = reinterpret_cast<int*>(take(n));
    counts = reinterpret_cast<int*>(take(size_t(DIGITS) * blocks_for(N, SORT_TILE)));
    edges = reinterpret_cast<float*>(take(size_t(blocks_for(N, RUN_ROWS)) * 2 * C));
    bytes = size_t(at - static_cast<char*>(base));
  }
};

size_t embedding_backward_workspace(int N, int C, int /* Vp */) { return SortWorkspace(nullptr, N, C).bytes; }

template <class T>
void embedding_backward(float* dwte, float* dwpe, const T* dout, const int* tokens, void* workspace, int B, int T_,
                        int C, int Vp, cudaStream_t stream) {
  int N = B * T_;
  if (N == 0) return;
  SortWorkspace w(workspace, N, C);
  unsigned tiles = blocks_for(N, SORT_TILE), chunks = blocks_for(N, RUN_ROWS);
  const int *keys = tokens, *rows = nullptr;
  for (int shift = 0, to = 0; shift == 0 || (shift < 32 && (Vp - 1) >> shift != 0); shift += DIGIT_BITS, to ^= 1) {
    LAUNCH(digit_counts_kernel, dim3(tiles), dim3(SORT_THREADS), 0, stream, w.counts, keys, N, shift);
    LAUNCH(digit_offsets_kernel, dim3(1), dim3(DIGITS), 0, stream, w.counts, int(tiles));
    LAUNCH(sort_scatter_kernel, dim3(tiles), dim3(SORT_THREADS), 0, stream, w.keys[to], w.rows[to], keys, rows,
           w.counts, N, shift);
    keys = w.keys[to];
    rows = w.rows[to];
  }
  auto grid = [&](int per_thread, unsigned x) {  // columns of a row over the block and blockIdx.y
    unsigned columns = blocks_for(C, per_thread), threads = columns < 128 ? (columns + 31) / 32 * 32 : 128;
    return std::pair(dim3(x, blocks_for(columns, threads)), dim3(threads));
  };
  auto [blocks, threads] = grid(Pack<T>::size, chunks);
  LAUNCH(sum_runs_kernel<T>, blocks, threads, 0, stream, dwte, w.edges, dout, keys, rows, N, C);
  if (chunks > 1) {
    auto [edge_blocks, edge_threads] = grid(4, chunks - 1);
    LAUNCH(sum_edges_kernel, edge_blocks, edge_threads, 0, stream, dwte, w.edges, keys, N, C);
  }
  if (dwpe) {
    size_t TC = size_t(T_) * C;
    LAUNCH(position_backward_kernel<T>, dim3(blocks_for(TC, 256 * Pack<T>::size)), dim3(256), 0, stream, dwpe, dout, B,
           TC);
  }
}

template void embedding_forward(float*, const int*, const float*, const float*, int, int, int, cudaStream_t);
template void embedding_forward(bf16*, const int*, const bf16*, const bf16*, int, int, int, cudaStream_t);
template void embedding_backward(float*, float*, const float*, const int*, void*, int, int, int, int, cudaStream_t);
template void embedding_backward(float*, float*, const bf16*, const int*, void*, int, int, int, int, cudaStream_t);
