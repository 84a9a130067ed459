// One bug at a time, for test/emulation/planted_bugs.sh: the build that can find it must report `planted_bugs NAME
// bug`, and must not report `planted_bugs NAME clean`, the same kernel without the bug. Without arguments: lists the
// names.
#include <cstdio>
#include <cstring>
#include "kernels/hopper.cuh"

namespace {

constexpr int n = 128;

// These access one element past the end; the static array through a pointer, so that the compiler does not notice.
template <bool bug> __global__ void write_global(float* x) { x[threadIdx.x + (bug ? 1 : 0)] = 1; }
template <bool bug> __global__ void read_global(float* x) { x[threadIdx.x] += x[threadIdx.x + (bug ? 1 : 0)]; }

template <bool bug> __global__ void write_static(float* x) {
  __shared__ float tile[n];
  float* volatile hidden = tile;
  float* p = hidden;
  p[threadIdx.x + (bug ? 1 : 0)] = 1;
  __syncthreads();
  x[threadIdx.x] = tile[threadIdx.x ? threadIdx.x : 1];
}

template <bool bug> __global__ void write_dynamic(float* x) {
  DYNAMIC_SHARED(float, tile);
  tile[threadIdx.x + (bug ? 1 : 0)] = 1;
  __syncthreads();
  x[threadIdx.x] = tile[threadIdx.x ? threadIdx.x : 1];
}

template <bool bug> __global__ void copy_async(float* x) {
  DYNAMIC_SHARED(float, tile);
  if (threadIdx.x < n / 4) cp_async16(tile + 4 * threadIdx.x, x + 4 * threadIdx.x + (bug ? 4 : 0));
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  x[threadIdx.x] = tile[threadIdx.x];
}

template <bool bug> __global__ void miss_syncthreads(float* x) {
  DYNAMIC_SHARED(float, tile);
  tile[threadIdx.x] = x[threadIdx.x];
  if (!bug) __syncthreads();
  x[threadIdx.x] = tile[n - 1 - threadIdx.x];
}

// The barrier before the next round is missing: a fast thread overwrites a value that a slow one has not read yet.
template <bool bug> __global__ void miss_second_syncthreads(float* x) {
  __shared__ float tile[n];
  float v = x[threadIdx.x];
  for (int round = 0; round < 3; ++round) {
    tile[threadIdx.x] = v;
    __syncthreads();
    v += tile[n - 1 - threadIdx.x];
    if (!bug) __syncthreads();
  }
  x[threadIdx.x] = v;
}

template <bool bug> __global__ void miss_syncwarp(float* x) {
  __shared__ float tile[n];
  tile[threadIdx.x] = x[threadIdx.x];
  if (!bug) warp_sync();
  x[threadIdx.x] = tile[threadIdx.x ^ 1];
}

// A shuffle makes lanes wait for each other, but orders no memory.
template <bool bug> __global__ void shuffle_for_syncwarp(float* x) {
  __shared__ float tile[n];
  tile[threadIdx.x] = x[threadIdx.x];
  float v = shuffle_xor(1.0f, 1);
  if (!bug) warp_sync();
  x[threadIdx.x] = v + tile[threadIdx.x ^ 1];
}

template <bool bug> __global__ void miss_sync_before_ldmatrix(float* x) {
  __shared__ __align__(16) unsigned short tile[n / WARP][32 * 8];
  int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  for (int i = 0; i < 8; ++i) tile[warp][i * WARP + lane] = static_cast<unsigned short>(x[threadIdx.x]);
  if (!bug) warp_sync();
  unsigned r[1][4];
  const void* const row[1] = {&tile[warp][8 * lane]};
  ldmatrix_x4(r, row);
  x[threadIdx.x] = static_cast<float>(r[0][0]);
}

template <bool bug> __global__ void update_unsynchronised(float* x) {
  float* mine = bug ? x : x + blockIdx.x;
  if (threadIdx.x == 0) *mine += 1;
}

template <bool bug> __global__ void diverge(float* x) {
  if (bug && threadIdx.x < 7) __syncthreads();
  else __syncthreads();
  x[threadIdx.x] = 1;
}

template <bool bug> __global__ void exit_early(float* x) {
  if (bug && threadIdx.x == 5) return;
  __syncthreads();
  x[threadIdx.x] = 1;
}

template <bool bug> __global__ void lock_up(float* x) {
  if (bug && threadIdx.x == 5) warp_sync();
  __syncthreads();
  x[threadIdx.x] = 1;
}

// Hopper's copies: twice, one thread requests x and all threads wait for it.
enum class Miss { nothing, expect, sync_after_init, mbarrier_wait, release };
template <Miss miss> __device__ void load_twice(float* x) {
  DYNAMIC_SHARED(float, tile);
  __shared__ Mbarrier arrived;
  if (threadIdx.x == 0) mbarrier_init(arrived, 1), mbarrier_init_fence();
  if (miss != Miss::sync_after_init) __syncthreads();
  float v = 0;
  for (unsigned round = 0; round < 2; ++round) {
    if (threadIdx.x == 0) {
      if (miss != Miss::expect) mbarrier_arrive_expect(arrived, n * sizeof(float));
      bulk_load(tile, x, n * sizeof(float), arrived);
    }
    if (miss != Miss::mbarrier_wait || threadIdx.x < WARP) mbarrier_wait(arrived, round);
    v += tile[n - 1 - threadIdx.x];
    if (miss != Miss::release) named_barrier(1, n);
  }
  named_barrier(2, n);
  x[threadIdx.x] = v;
}
template <bool bug> __global__ void miss_expect(float* x) { load_twice<bug ? Miss::expect : Miss::nothing>(x); }
template <bool bug> __global__ void miss_sync_after_init(float* x) {
  load_twice<bug ? Miss::sync_after_init : Miss::nothing>(x);
}
template <bool bug> __global__ void miss_mbarrier_wait(float* x) {
  load_twice<bug ? Miss::mbarrier_wait : Miss::nothing>(x);
}
template <bool bug> __global__ void miss_release(float* x) { load_twice<bug ? Miss::release : Miss::nothing>(x); }

// x as 4 rows of 64 bf16; the tensor map promises a fifth.
template <bool bug, bool store> __device__ void copy_tile(float* x) {
  DYNAMIC_SHARED(float, tile);
  __shared__ Mbarrier arrived;
  TensorMap map = tensor_map(reinterpret_cast<const bf16*>(x), {1, bug ? 5 : 4, 1, 64, 256, 64, 64}, 4);
  if (threadIdx.x != 0) return;
  mbarrier_init(arrived, 1);
  mbarrier_arrive_expect(arrived, 4 * TILE_ROW_BYTES);
  tile_load(tile, map, 0, bug && !store, 0, 0, arrived);
  mbarrier_wait(arrived, 0);
  tile_store(map, tile, 0, bug && store, 0, 0);
  bulk_commit();
  bulk_wait_read();
}
template <bool bug> __global__ void load_tile(float* x) { copy_tile<bug, false>(x); }
template <bool bug> __global__ void store_tile(float* x) { copy_tile<bug, true>(x); }

template <bool bug> __global__ void miss_sync_before_wgmma(float* x) {
  DYNAMIC_SHARED(bf16, tile);
  for (int i = threadIdx.x; i < 64 * 64; i += n) tile[i] = from_float<bf16>(x[threadIdx.x]);
  async_proxy_fence();
  if (!bug) named_barrier(1, n);
  float d[8][4];
  wgmma_fence();
  wgmma(d, rows_operand(tile), rows_operand(tile), false);
  wgmma_commit();
  wgmma_wait<0>(d);
  tile[threadIdx.x] = from_float<bf16>(d[0][0]);  // the products are done, by whichever thread
  x[threadIdx.x] = d[0][0];
}
template <bool half, bool unordered> __device__ void multiply_stored(float* x) {
  DYNAMIC_SHARED(bf16, tile);
  unsigned operand[4] = {};
  for (int k = 0; k < 4; ++k)
    if (!half || threadIdx.x % WARP < 16) store_operand(tile, threadIdx.x / WARP * 16, k * 16, operand);
  async_proxy_fence();
  if (!unordered) __syncthreads();
  float d[8][4];
  wgmma_fence();
  wgmma_columns(d, columns_operand(tile, 0), columns_operand(tile, 0), false);
  wgmma_commit();
  wgmma_wait<0>(d);
  x[threadIdx.x] = d[0][0];
}
template <bool bug> __global__ void half_warp_before_wgmma(float* x) { multiply_stored<bug, false>(x); }
template <bool bug> __global__ void miss_sync_of_stored_before_wgmma(float* x) { multiply_stored<false, bug>(x); }

template <bool bug> __global__ void add_misaligned(float* x) {
  if (threadIdx.x == 0) add_in_l2(x + (bug ? 1 : 4), {1, 2, 3, 4});
}
// Additions to the same floats: which thread is first decides the bits.
template <bool bug> __global__ void add_unordered(float* x) {
  if (threadIdx.x < n / 4) add_in_l2(bug ? x : x + 4 * threadIdx.x, {1, 2, 3, 4});
}

template <bool bug> __global__ void miss_wgmma_wait(float* x) {
  DYNAMIC_SHARED(bf16, tile);
  float d[8][4] = {};
  wgmma_fence();
  wgmma(d, rows_operand(tile), rows_operand(tile), true);
  wgmma_commit();
  if (!bug) wgmma_wait<0>(d);
  x[threadIdx.x] = d[0][0];
}

struct Bug {
  const char* name;
  void (*kernels[2])(float*);
};
#define BUG(kernel)                          \
  {                                          \
#kernel, { kernel<false>, kernel<true> } \
  }
constexpr Bug bugs[] = {
    BUG(write_global),
    BUG(read_global),
    BUG(write_static),
    BUG(write_dynamic),
    BUG(copy_async),
    BUG(miss_syncthreads),
    BUG(miss_second_syncthreads),
    BUG(miss_syncwarp),
    BUG(shuffle_for_syncwarp),
    BUG(miss_sync_before_ldmatrix),
    BUG(update_unsynchronised),
    BUG(diverge),
    BUG(exit_early),
    BUG(lock_up),
    BUG(miss_expect),
    BUG(miss_sync_after_init),
    BUG(miss_mbarrier_wait),
    BUG(miss_release),
    BUG(load_tile),
    BUG(store_tile),
    BUG(miss_sync_before_wgmma),
    BUG(miss_wgmma_wait),
    BUG(half_warp_before_wgmma),
    BUG(miss_sync_of_stored_before_wgmma),
    BUG(add_misaligned),
    BUG(add_unordered),
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    for (const Bug& bug : bugs) puts(bug.name);
    return 0;
  }
  for (const Bug& bug : bugs) {
    if (strcmp(bug.name, argv[1]) != 0) continue;
    try {
      float* x = nullptr;
      CUDA_CHECK(cudaMalloc(&x, n * sizeof(float)));
      CUDA_CHECK(cudaMemset(x, 0, n * sizeof(float)));
      set_cpu_threads(2);
      bool planted = strcmp(argv[2], "bug") == 0;
      int blocks = bug.kernels[0] == update_unsynchronised<false> ? 4 : 1;
      size_t shared = strstr(bug.name, "wgmma") ? 64 * TILE_ROW_BYTES : n * sizeof(float);
      launch_kernel(bug.name, bug.kernels[planted], blocks, n, shared, nullptr, x);
      CUDA_CHECK(cudaDeviceSynchronize());
      CUDA_CHECK(cudaFree(x));
    } catch (const Failure& e) {
      fprintf(stderr, "%s\n", e.what());
      return 1;
    }
    return 0;
  }
  fprintf(stderr, "no planted bug is called %s\n", argv[1]);
  return 2;
}
