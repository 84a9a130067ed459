// The contract and the bound are in prune.cuh. One kernel measures the rows of each block, the other searches c.
#include "attention/prune.cuh"

#include <cmath>

#include "attention/heads.cuh"

namespace {

constexpr int NORM_THREADS = on_cpu ? 1 : 2 * BIAS_ROWS, SEARCH_THREADS = on_cpu ? 1 : 256;
using Mask = OwnDocument<Biased>;

// A block may have rows of several documents: the largest squared lengths of q and k in its first and in its last.
// Those between lie in this block alone, whose tile is always needed.
struct alignas(16) BlockNorms {
  float first_q, first_k, last_q, last_k;
};
static_assert(sizeof(BlockNorms) == 4 * sizeof(float) && sizeof(NeededTiles) == 2 * sizeof(float));

// The larger one, or NaN if either is: then K is NaN, and no comparison prunes.
__device__ float larger(float a, float b) { return a >= b || a != a ? a : b; }

template <int W, class T> __device__ float squared_length(const T* x, int D) {
  float sums[W] = {}, v[W];
  for (int d = 0; d + W <= D; d += W) {
    read_floats(v, x + d);
    for (int i = 0; i < W; i++) sums[i] += v[i] * v[i];
  }
  for (int i = 1; i < W; i++) sums[0] += sums[i];
  return sums[0];
}

// A block of BIAS_ROWS rows, of one head: the grid is (blocks, H, B).
template <class T> __global__ void block_norms_kernel(float* c, const T* qkv, KernelSettings settings, KernelShape s) {
  constexpr int VECTOR = on_cpu ? 16 : Pack<T>::size;
  __shared__ float squares[2][BIAS_ROWS];
  int row0 = blockIdx.x * BIAS_ROWS, h = blockIdx.y, b = blockIdx.z, rows = min(BIAS_ROWS, s.T - row0);
  for (int n = threadIdx.x; n < 2 * BIAS_ROWS; n += NORM_THREADS) {
    int part = n / BIAS_ROWS, row = n % BIAS_ROWS;
    if (row >= rows) continue;
    Head<T> head = head_of_qkv(qkv, part, b, h, s);
    const T* x = head.x + (row0 + row) * head.stride;
    bool whole = s.wide && s.D % VECTOR == 0;
    squares[part][row] = whole ? squared_length<VECTOR>(x, s.D) : squared_length<1>(x, s.D);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  size_t head = s.head_number(b, h);
  Mask mask(settings, s.T, head);
  int first_stop = mask.document(row0).y - row0, last = mask.first(row0 + rows - 1) - row0;
  BlockNorms norms = {};
  for (int row = 0; row < rows; row++) {
    float q = squares[0][row], k = squares[1][row];
    if (row < first_stop) norms.first_q = larger(norms.first_q, q), norms.first_k = larger(norms.first_k, k);
    if (row >= last) norms.last_q = larger(norms.last_q, q), norms.last_k = larger(norms.last_k, k);
  }
  reinterpret_cast<BlockNorms*>(c + head * bias_floats(s.T) + bias_norms(s.T))[blockIdx.x] = norms;
}

// What c_i - c_j must fall below, negative, in units of the kind. 1.001 covers the rounding of lengths and scores.
__device__ double threshold(const BlockNorms* norms, int2 document, double per_unit) {
  float q = 0, k = 0;
  for (int n = document.x / BIAS_ROWS; n * BIAS_ROWS < document.y; n++) {
    bool first = n * BIAS_ROWS >= document.x;
    q = larger(q, first ? norms[n].first_q : norms[n].last_q);
    k = larger(k, first ? norms[n].first_k : norms[n].last_k);
  }
  return -(2 * 1.001 * sqrtf(q) * sqrtf(k) + (log(double(document.y - document.x)) + 17) * per_unit);
}

// The first of low .. high - 1 for which found() holds, as it does for all after it; else high.
template <class F> __device__ int first_of(int low, int high, F found) {
  while (low < high) {
    int middle = (low + high) / 2;
    if (found(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

// A head of a sequence: the grid is (H, B).
__global__ void needed_tiles_kernel(float* c, int2* tiles, KernelSettings settings, int T, double per_unit) {
  size_t head = blockIdx.y * gridDim.x + blockIdx.x;
  Mask mask(settings, T, head);
  c += head * bias_floats(T);
  auto norms = reinterpret_cast<const BlockNorms*>(c + bias_norms(T));
  auto needed = reinterpret_cast<NeededTiles*>(c + bias_needed(T));
  auto for_blocks = [&](auto f) {
    for (int n = threadIdx.x; n < bias_blocks(T); n += SEARCH_THREADS) f(n);
    __syncthreads();
  };
  // Of a block's queries the first has the largest c, of its keys the last has the smallest.
  for_blocks([&](int n) {
    int query = n * BIAS_ROWS;
    int2 own = mask.document(query);
    double most = threshold(norms, own, per_unit), c_i = mask.exact(query);
    needed[n].query_stop = first_of(own.x / BIAS_ROWS, n, [&](int block) {
      return !(c_i - mask.exact(block * BIAS_ROWS + BIAS_ROWS - 1) < most);
    });
  });
  // Where c hardly falls, its rounding may let it rise: of later queries the least, so that both passes agree.
  for_blocks([&](int n) {
    int least = n;
    for (int later = n; later * BIAS_ROWS < mask.document(n * BIAS_ROWS).y; later++)
      least = min(least, needed[later].query_stop);
    needed[n].first_key = least * BIAS_ROWS;
  });
  for_blocks([&](int n) {
    int stop = mask.document(min(n * BIAS_ROWS + BIAS_ROWS, T) - 1).y;
    int beyond = first_of(n + 1, (stop + BIAS_ROWS - 1) / BIAS_ROWS,
                          [&](int block) { return needed[block].first_key > n * BIAS_ROWS; });
    needed[n].query_stop = min(beyond * BIAS_ROWS, stop);
  });
  if (!tiles) return;
  Mask all = mask;
  all.prunes = false;
  for_blocks([&](int n) {
    auto some = mask.key_tiles<BIAS_ROWS>(n * BIAS_ROWS, BIAS_ROWS), seen = all.key_tiles<BIAS_ROWS>(n * BIAS_ROWS, BIAS_ROWS);
    atomicAdd(&tiles[blockIdx.x].x, some.end() - some.first());
    atomicAdd(&tiles[blockIdx.x].y, seen.end() - seen.first());
  });
}

template <class T> KernelSettings settings_of(const float* c, const AttentionCall<T>& call) {
  const AttentionSettings& s = call.settings;
  return {.window = s.window > 0 ? s.window : NO_WINDOW,
          .sink_tokens = s.sink_tokens,
          .bias = c,
          .prunes = s.prunes(),
          .heads = float(call.shape.H),
          .documents = call.separate_documents()};
}

}  // namespace

template <class T> void find_needed_tiles(float* c, int2* tiles, const T* qkv, const AttentionCall<T>& call) {
  if (!call.settings.prunes()) return;
  KernelShape shape = kernel_shape<T>(call, {qkv});
  KernelSettings settings = settings_of(c, call);
  LAUNCH(block_norms_kernel<T>, dim3(bias_blocks(shape.T), shape.H, shape.B), dim3(NORM_THREADS), 0, call.stream, c,
         qkv, settings, shape);
  LAUNCH(needed_tiles_kernel, dim3(shape.H, shape.B), dim3(SEARCH_THREADS), 0, call.stream, c, tiles, settings, shape.T,
         1 / kind_row(call.settings.kind).unit);
}

template void find_needed_tiles(float*, int2*, const float*, const AttentionCall<float>&);
template void find_needed_tiles(float*, int2*, const bf16*, const AttentionCall<bf16>&);
