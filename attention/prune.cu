// The contract and the bound are in prune.cuh. One kernel measures the rows of each block, the other searches c.
#include "attention/prune.cuh"

#include <cmath>

#include "attention/heads.cuh"

namespace {

constexpr int NORM_THREADS = on_cpu ? 1 : 2 * BIAS_ROWS, SEARCH_THREADS = on_cpu ? 1 : 256;

template <class Mask> __device__ int2 document_of(const Mask& mask, int row) {
  if constexpr (Mask::DOCUMENTS) return mask.document(row);
  else return {0, mask.T};
}

// A block may have rows of several documents: the largest squared lengths of q and k in its first and in its last.
// Those between lie in this block alone, whose tile is always needed.
struct alignas(16) BlockNorms {
  float first_q, first_k, last_q, last_k;
  __device__ float& threshold() { return last_q; }  // in the first block of a document of several, once it is known
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
template <class T, class Mask>
__global__ void block_norms_kernel(float* c, const T* qkv, KernelSettings settings, KernelShape s) {
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
  int first_stop = document_of(mask, row0).y - row0, last = mask.first(row0 + rows - 1) - row0;
  BlockNorms norms = {};
  for (int row = 0; row < rows; row++) {
    float q = squares[0][row], k = squares[1][row];
    if (row < first_stop) norms.first_q = larger(norms.first_q, q), norms.first_k = larger(norms.first_k, k);
    if (row >= last) norms.last_q = larger(norms.last_q, q), norms.last_k = larger(norms.last_k, k);
  }
  reinterpret_cast<BlockNorms*>(c + head * bias_floats(s.T) + bias_norms(s.T))[blockIdx.x] = norms;
}

// What c_i - c_j must fall below, negative, in units of the kind. 1.001 covers the rounding of lengths and scores.
__device__ float threshold_of(const BlockNorms* norms, int2 document, double per_unit) {
  float q = 0, k = 0;
  for (int n = document.x / BIAS_ROWS; n * BIAS_ROWS < document.y; n++) {
    bool first = n * BIAS_ROWS >= document.x;
    q = larger(q, first ? norms[n].first_q : norms[n].last_q);
    k = larger(k, first ? norms[n].first_k : norms[n].last_k);
  }
  return float(-(2 * 1.001 * sqrtf(q) * sqrtf(k) + (logf(float(document.y - document.x)) + 17) * per_unit));
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
template <class Mask> __global__ void needed_tiles_kernel(float* c, KernelSettings settings, int T, double per_unit) {
  size_t head = blockIdx.y * gridDim.x + blockIdx.x;
  Mask mask(settings, T, head);
  c += head * bias_floats(T);
  auto norms = reinterpret_cast<BlockNorms*>(c + bias_norms(T));
  auto needed = reinterpret_cast<NeededTiles*>(c + bias_needed(T));
  auto for_blocks = [&](auto f) {
    for (int n = threadIdx.x; n < bias_blocks(T); n += SEARCH_THREADS) f(n);
    __syncthreads();
  };
  auto last_row = [&](int n) { return min(n * BIAS_ROWS + BIAS_ROWS, T) - 1; };
  // f(each document that begins in block n and has rows of later blocks): what belongs to a document is done once.
  auto for_documents = [&](auto f) {
    for_blocks([&](int n) {
      int2 last = document_of(mask, last_row(n));
      if (last.x >= n * BIAS_ROWS && last.y > last_row(n) + 1) f(n, last);
    });
  };
  for_documents([&](int n, int2 document) { norms[n].threshold() = threshold_of(norms, document, per_unit); });
  // Of a block's queries the first has the largest c, of its keys the last has the smallest.
  for_blocks([&](int n) {
    int query = n * BIAS_ROWS, first = document_of(mask, query).x / BIAS_ROWS;
    double most = norms[first].threshold(), c_i = mask.exact(query);
    needed[n].first_key =
        BIAS_ROWS * first_of(first, n, [&](int block) { return !(c_i - mask.exact(last_row(block)) < most); });
  });
  // Where c hardly falls, its rounding may let it rise: the least of later queries, so that both passes agree.
  for_documents([&](int, int2 document) {
    int least = T;
    for (int block = (document.y - 1) / BIAS_ROWS; block * BIAS_ROWS >= document.x; block--)
      least = needed[block].first_key = min(least, needed[block].first_key);
  });
  for_blocks([&](int n) {
    int stop = document_of(mask, last_row(n)).y;
    int beyond = first_of(n + 1, (stop + BIAS_ROWS - 1) / BIAS_ROWS,
                          [&](int block) { return needed[block].first_key > n * BIAS_ROWS; });
    needed[n].query_stop = min(beyond * BIAS_ROWS, stop);
  });
}

// A head of the first B sequences, so that one block adds to a number.
template <class Mask> __global__ void count_tiles_kernel(float2* tiles, KernelSettings settings, int B, int T) {
  __shared__ float shared[SEARCH_THREADS / WARP + 1];
  KernelSettings all = settings;
  all.prunes = false;
  int needed = 0, seen = 0;
  for (int n = threadIdx.x; n < B * bias_blocks(T); n += SEARCH_THREADS) {
    size_t head = size_t(n / bias_blocks(T)) * gridDim.x + blockIdx.x;
    int row = n % bias_blocks(T) * BIAS_ROWS;
    auto some = Mask(settings, T, head).template key_tiles<BIAS_ROWS>(row, BIAS_ROWS),
         whole = Mask(all, T, head).template key_tiles<BIAS_ROWS>(row, BIAS_ROWS);
    needed += some.end() - some.first(), seen += whole.end() - whole.first();
  }
  float sums[2] = {float(needed), float(seen)};
  if constexpr (SEARCH_THREADS > 1) {
    for (float& sum : sums) sum = block_sum(sum, shared), __syncthreads();
  }
  if (threadIdx.x == 0) tiles[blockIdx.x].x += sums[0], tiles[blockIdx.x].y += sums[1];
}

}  // namespace

template <class T>
void find_needed_tiles(float* c, float2* tiles, const T* qkv, const AttentionCall<T>& call, int counted) {
  if (!call.prunes()) return;
  KernelShape shape = kernel_shape<T>(call, {qkv});
  KernelSettings settings = kernel_settings(call);
  auto find = [&]<class Mask>(std::type_identity<Mask>) {
    LAUNCH((block_norms_kernel<T, Mask>), dim3(bias_blocks(shape.T), shape.H, shape.B), dim3(NORM_THREADS), 0,
           call.stream, c, qkv, settings, shape);
    LAUNCH(needed_tiles_kernel<Mask>, dim3(shape.H, shape.B), dim3(SEARCH_THREADS), 0, call.stream, c, settings,
           shape.T, 1 / kind_row(call.settings.kind).unit);
    if (tiles)
      LAUNCH(count_tiles_kernel<Mask>, dim3(shape.H), dim3(SEARCH_THREADS), 0, call.stream, tiles, settings,
             min(shape.B, counted), shape.T);
  };
  if (settings.documents) find(std::type_identity<OwnDocument<Biased>>());
  else find(std::type_identity<Biased>());
}

template void find_needed_tiles(float*, float2*, const float*, const AttentionCall<float>&, int);
template void find_needed_tiles(float*, float2*, const bf16*, const AttentionCall<bf16>&, int);
