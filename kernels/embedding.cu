#include "kernels/embedding.cuh"

#include <numeric>
#include <utility>
#include <vector>

#include "kernels/elementwise.cuh"

// ---- forward: a thread per eight elements ---------------------------------------------------------------------------

template <class T>
__global__ void embedding_forward_kernel(T* __restrict__ out, const int* __restrict__ tokens, const T* __restrict__ wte,
                                         const T* __restrict__ wpe, const int2* __restrict__ documents, unsigned units,
                                         int T_, int C) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x, per_row = unsigned(C) / UNIT, row = i / per_row;
  if (i >= units) return;
  unsigned c = (i - row * per_row) * UNIT;
  Unit<T> x;
  x.load(wte + size_t(tokens[row]) * C + c);
  if (wpe) {
    Unit<T> position;
    unsigned first = documents ? unsigned(documents[row].x) : 0;
    position.load(wpe + size_t(row % unsigned(T_) - first) * C + c);
#pragma unroll
    for (int k = 0; k < UNIT; k++) x.x[k] = from_float<T>(to_float(x.x[k]) + to_float(position.x[k]));
  }
  x.store(out + size_t(i) * UNIT);
}

// ---- backward of the tokens: sum the rows of equal ones -------------------------------------------------------------
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
void embedding_forward(T* out, const int* tokens, const T* wte, const T* wpe, const int2* documents, int B, int T_,
                       int C, cudaStream_t stream) {
  size_t units = size_t(B) * T_ * C / UNIT;
  if (units == 0) return;
  if (units >> 32) failure("embedding_forward: %d x %d x %d activations are too many for one call", B, T_, C);
  LAUNCH(embedding_forward_kernel<T>, dim3(blocks_for(units, 256)), dim3(256), 0, stream, out, tokens, wte, wpe,
         documents, unsigned(units), T_, C);
}

void sort_by_token(int* sorted, const int* tokens, int N, int Vp) {
  std::vector<int> next(size_t(Vp) + 1);  // where the next row of a token goes
  for (int row = 0; row < N; row++) next[tokens[row] + 1]++;
  std::partial_sum(next.begin(), next.end(), next.begin());
  for (int row = 0; row < N; row++) {
    int at = next[tokens[row]]++;
    sorted[at] = tokens[row];
    sorted[N + at] = row;
  }
}

size_t embedding_backward_workspace(int N, int C) { return size_t(blocks_for(N, RUN_ROWS)) * 2 * C * sizeof(float); }

template <class T>
void embedding_backward(float* dwte, float* dwpe, const T* dout, const int* sorted, void* workspace, int B, int T_,
                        int C, cudaStream_t stream) {
  int N = B * T_;
  if (N == 0) return;
  float* edges = static_cast<float*>(workspace);  // [chunks, 2, C]
  const int *keys = sorted, *rows = sorted + N;
  unsigned chunks = blocks_for(N, RUN_ROWS);
  auto grid = [&](int per_thread, unsigned x) {  // columns of a row over the block and blockIdx.y
    unsigned columns = blocks_for(C, per_thread), threads = columns < 128 ? (columns + 31) / 32 * 32 : 128;
    return std::pair(dim3(x, blocks_for(columns, threads)), dim3(threads));
  };
  auto [blocks, threads] = grid(Pack<T>::size, chunks);
  LAUNCH(sum_runs_kernel<T>, blocks, threads, 0, stream, dwte, edges, dout, keys, rows, N, C);
  if (chunks > 1) {
    auto [edge_blocks, edge_threads] = grid(4, chunks - 1);
    LAUNCH(sum_edges_kernel, edge_blocks, edge_threads, 0, stream, dwte, edges, keys, N, C);
  }
  if (dwpe) {
    size_t TC = size_t(T_) * C;
    LAUNCH(position_backward_kernel<T>, dim3(blocks_for(TC, 256 * Pack<T>::size)), dim3(256), 0, stream, dwpe, dout, B,
           TC);
  }
}

template void embedding_forward(float*, const int*, const float*, const float*, const int2*, int, int, int,
                                cudaStream_t);
template void embedding_forward(bf16*, const int*, const bf16*, const bf16*, const int2*, int, int, int, cudaStream_t);
template void embedding_backward(float*, float*, const float*, const int*, void*, int, int, int, cudaStream_t);
template void embedding_backward(float*, float*, const bf16*, const int*, void*, int, int, int, cudaStream_t);
