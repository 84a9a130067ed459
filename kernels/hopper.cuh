// The portability header's second part, for kernels that are written for Hopper (sm_90a): the copy engine (TMA),
// barriers in shared memory (mbarrier), products of a warpgroup (wgmma), additions in the L2 (red). As in gpu.cuh a GPU
// gets PTX and the CPU layer (emulation/hopper.h) does the same thread by thread. Sources: PTX ISA 8.7, sections
// 9.7.9.25 (tensor copies), 9.7.13.15 (mbarrier), 9.7.15 (wgmma) and 5.5 (tensor maps).
//
// A *tile* is a number of rows of 64 bf16 in shared memory, 128 bytes a row, at a multiple of 1024 bytes. The 16-byte
// chunk c of row r is stored at chunk c ^ (r % 8) of the row, where the copy engine writes it and wgmma reads it. Wider
// rows take several tiles, one after the other. A *warpgroup* is 128 threads, and its first thread's number is
// divisible by 128.
#pragma once
#include <cstdint>

#include "kernels/gpu.cuh"

constexpr int WARPGROUP = 4 * WARP, TILE_COLUMNS = 64, TILE_ROW_BYTES = 128, TILE_ALIGNMENT = 1024;

// The place of element `column` (< 64) of row `row` in a tile, in elements.
__host__ __device__ constexpr int tile_place(int row, int column) {
  return row * TILE_COLUMNS + ((column / 8 ^ row % 8) * 8 + column % 8);
}

// A tensor [batches, rows, heads, channels] of bf16 in global memory, of which tiles are copied. Strides are in
// elements and, like the address, multiples of 8 (16 bytes); channels are contiguous, and a multiple of 8 too: an H200
// stores whole 16 bytes, also those that end behind the last channel. The driver's header describes the stride of a
// batch as a multiple of a row's, and a row's as a multiple of a head's.
struct TensorShape {
  int batches, rows, heads, channels;
  size_t batch_stride, row_stride, head_stride;
};

// A tile as an operand of wgmma: 64 bits, with the tile's address in units of 16 bytes in the low bits. Adding to it
// moves it: + 2 is 16 columns (32 bytes) further, + 128 is 16 rows (2048 bytes) further.
using TileOperand = uint64_t;

#ifdef PLUSGPT_CPU
#include "emulation/hopper.h"
#endif

#ifdef __CUDACC__
#include <cuda.h>

// ---- host

struct TensorMap {
  CUtensorMap map;
};

// Describes the tensor to the copy engine, for tiles of tile_rows (at most 256) rows. Throws Failure if the driver
// refuses. Pass it to the kernel by value, as `const __grid_constant__ TensorMap`.
inline TensorMap tensor_map(const bf16* x, const TensorShape& shape, int tile_rows) {
  if (shape.channels % 8) failure("tensor_map of %d channels: they are not a multiple of 8", shape.channels);
  // looked up by name, so that the program links and starts without a driver
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
#else
    cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found);
#endif
    if (!function || found != cudaDriverEntryPointSuccess)
      failure("the CUDA driver has no cuTensorMapEncodeTiled: Hopper's kernels need a driver for CUDA 12.0 or newer");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  TensorMap result;
  cuuint64_t extents[4] = {cuuint64_t(shape.channels), cuuint64_t(shape.heads), cuuint64_t(shape.rows),
                           cuuint64_t(shape.batches)};
  cuuint64_t strides[3] = {shape.head_stride * sizeof(bf16), shape.row_stride * sizeof(bf16),
                           shape.batch_stride * sizeof(bf16)};
  cuuint32_t box[4] = {TILE_COLUMNS, 1, cuuint32_t(tile_rows), 1}, steps[4] = {1, 1, 1, 1};
  CUresult error = encode(&result.map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<bf16*>(x), extents, strides, box,
                          steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                          CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (error != CUDA_SUCCESS)
    failure("cuTensorMapEncodeTiled refused a tensor of %d x %d x %d x %d bf16: error %d", shape.batches, shape.rows,
            shape.heads, shape.channels, int(error));
  return result;
}

// ---- mbarriers: a phase ends after `count` arrivals and all the bytes that were announced for it

struct Mbarrier {
  uint64_t state;
};

// Called by one thread; all may use the barrier after that thread's mbarrier_init_fence() and a __syncthreads().
__device__ inline void mbarrier_init(Mbarrier& barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(count) : "memory");
}
__device__ inline void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void mbarrier_arrive(Mbarrier& barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}
// Arrives and announces bytes that copies will bring.
__device__ inline void mbarrier_arrive_expect(Mbarrier& barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
               "r"(bytes)
               : "memory");
}
// Returns when the phase of that parity (0 for the first) has ended; parity 1 of a fresh barrier counts as ended.
__device__ inline void mbarrier_wait(Mbarrier& barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n"
      "@done bra arrived;\n"
      "bra again;\n"
      "arrived:\n"
      "}" ::"r"(shared_address(&barrier)),
      "r"(parity)
      : "memory");
}

// ---- the copy engine: one thread calls it

// tile = rows from `row`, 64 channels from `channel`, of one head of one batch. Elements outside the
// tensor become 0 and count as copied: tile_rows * 128 bytes always arrive at the barrier.
__device__ inline void tile_load(void* tile, const TensorMap& map, int batch, int row, int head, int channel,
                                 Mbarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared_address(tile)),
      "l"(&map), "r"(channel), "r"(head), "r"(row), "r"(batch), "r"(shared_address(&barrier))
      : "memory");
}
// The other way. Coordinates are at least 0 (for loads they need not be: CUDA Programming Guide 4.11.2); nothing is
// written past the tensor's end. The tile may be written again after that thread's bulk_commit() and bulk_wait_read().
__device__ inline void tile_store(const TensorMap& map, const void* tile, int batch, int row, int head, int channel) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
               "r"(shared_address(tile)), "r"(channel), "r"(head), "r"(row), "r"(batch)
               : "memory");
}
__device__ inline void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ inline void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
// Copies bytes (a multiple of 16, as are both addresses) from global to shared memory, unchanged.
__device__ inline void bulk_load(void* shared, const void* global, int bytes, Mbarrier& barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(shared_address(&barrier))
               : "memory");
}
// Comes between a thread's stores to shared memory (store_operand's too) and the copy engine or wgmma that reads them,
// before a barrier.
__device__ inline void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- warpgroups

// Returns x. The compiler computes values derived from it here, not before a loop that must then keep them in
// registers.
__device__ inline int anew(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
// A barrier of `threads` threads; `number` 1..15 identifies it (0 is __syncthreads).
__device__ inline void named_barrier(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
// Called by a whole warpgroup at once: from here on its threads have N registers each.
template <int N> __device__ inline void registers_grow() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ inline void registers_shrink() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

// ---- wgmma: D [64, N] (+)= A [64, 16] B [16, N], bf16 with float32 sums, executed by the 128 threads of a warpgroup
// together. Warp w has rows 16 w .. 16 w + 15; within them a thread's part of D and of an A in registers is laid out as
// mma_m16n8k16's (gpu.cuh). A product is running from the call until wgmma_wait: until then its registers must not be
// touched and its tiles must not change. wgmma_fence() comes before the first product after a wait, wgmma_commit()
// after the last product of a group.

// The address, the distance of 1024 bytes from 8 rows to the next 8, and the 128-byte swizzle.
__device__ inline TileOperand tile_operand(const void* tile) {
  return TileOperand((shared_address(tile) & 0x3ffff) >> 4) | TileOperand(TILE_ALIGNMENT >> 4) << 32 |
         TileOperand(1) << 62;
}

// Rows of a tile as rows of A or as columns of B; the sum is over 16 columns of the tile.
__device__ inline TileOperand rows_operand(const void* tile) { return tile_operand(tile) | TileOperand(1) << 16; }
// 16 rows of tiles as B: columns of the tiles are columns of B. tile_bytes: distance to the tile with the next 64
// columns. As A (wgmma_columns) 16 rows of one tile, whose 64 columns are rows of A.
__device__ inline TileOperand columns_operand(const void* tile, int tile_bytes) {
  return tile_operand(tile) | TileOperand(tile_bytes >> 4) << 16;
}

// A warp stores a left operand in its registers, 16 x 16, to rows from `row` on and columns from `column` on of a tile.
// column: a multiple of 8, at most 48.
__device__ inline void store_operand(bf16* tile, int row, int column, const unsigned (&operand)[4]) {
  int lane = threadIdx.x % WARP;
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   shared_address(tile + tile_place(row + lane % 16, column + lane / 16 * 8))),
               "r"(operand[0]), "r"(operand[1]), "r"(operand[2]), "r"(operand[3])
               : "memory");
}

// The compiler computes x before the next asm statement and does not read it before the last one.
__device__ inline void hold_in_place(float& x) { asm volatile("" : "+f"(x)::"memory"); }
__device__ inline void hold_in_place(unsigned& x) { asm volatile("" : "+r"(x)::"memory"); }
template <class T, int N> __device__ inline void hold_in_place(T (&x)[N]) {
#pragma unroll
  for (int n = 0; n < N; n++) hold_in_place(x[n]);
}

// The registers are computed before the wait that follows. Otherwise ptxas (12.9, 13.0) moves the wait above arithmetic
// that does not depend on it, and nothing overlaps; of the statements that were tried only this one prevents it.
template <class... Registers> __device__ inline void compute_before_wait(Registers&... registers) {
  (hold_in_place(registers), ...);
  asm volatile("fence.acq_rel.cta;" ::: "memory");
}
// Orders the last use of the registers before the products that follow. Name the registers that the products read: left
// operands and the sums that they add to, but not sums that they overwrite.
template <class... Registers> __device__ inline void wgmma_fence(Registers&... registers) {
  (hold_in_place(registers), ...);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Returns when all but the newest GROUPS groups are done; the registers named may be used from here on.
template <int GROUPS, class... Registers> __device__ inline void wgmma_wait(Registers&... registers) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS) : "memory");
  (hold_in_place(registers), ...);
}

// clang-format off
#define WGMMA_32_REGISTERS \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26," \
  "%27,%28,%29,%30,%31}, "
#define WGMMA_64_REGISTERS \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26," \
  "%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50," \
  "%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
#define FOUR(d) "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define THIRTY_TWO(d, n)                                                                                       \
  FOUR(d[n]), FOUR(d[n + 1]), FOUR(d[n + 2]), FOUR(d[n + 3]), FOUR(d[n + 4]), FOUR(d[n + 5]), FOUR(d[n + 6]), \
      FOUR(d[n + 7])

// A and B are rows of tiles. d += if `add`, else d =.
template <int TILES> __device__ inline void wgmma(float (&d)[TILES][4], TileOperand a, TileOperand b, bool add) {
  static_assert(TILES == 8 || TILES == 16, "N is 64 or 128");
  if constexpr (TILES == 8)
    asm volatile("{.reg .pred add; setp.ne.b32 add, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " WGMMA_32_REGISTERS
                 "%32, %33, add, 1, 1, 0, 0;}"
                 : THIRTY_TWO(d, 0) : "l"(a), "l"(b), "r"(int(add)));
  else
    asm volatile("{.reg .pred add; setp.ne.b32 add, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " WGMMA_64_REGISTERS
                 "%64, %65, add, 1, 1, 0, 0;}"
                 : THIRTY_TWO(d, 0), THIRTY_TWO(d, 8) : "l"(a), "l"(b), "r"(int(add)));
}
// A is in registers, B is columns of tiles. d +=
template <int TILES> __device__ inline void wgmma(float (&d)[TILES][4], const unsigned (&a)[4], TileOperand b) {
  static_assert(TILES == 8 || TILES == 16, "N is 64 or 128");
  if constexpr (TILES == 8)
    asm volatile("{.reg .pred add; setp.eq.u32 add, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " WGMMA_32_REGISTERS
                 "{%32, %33, %34, %35}, %36, add, 1, 1, 1;}"
                 : THIRTY_TWO(d, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  else
    asm volatile("{.reg .pred add; setp.eq.u32 add, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " WGMMA_64_REGISTERS
                 "{%64, %65, %66, %67}, %68, add, 1, 1, 1;}"
                 : THIRTY_TWO(d, 0), THIRTY_TWO(d, 8) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
// A and B are columns of tiles, so the sum is over 16 rows of them; N is 64. d += if `add`, else d =.
__device__ inline void wgmma_columns(float (&d)[8][4], TileOperand a, TileOperand b, bool add) {
  asm volatile("{.reg .pred add; setp.ne.b32 add, %34, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " WGMMA_32_REGISTERS "%32, %33, add, 1, 1, 1, 1;}"
               : THIRTY_TWO(d, 0) : "l"(a), "l"(b), "r"(int(add)));
}
#undef FOUR
#undef THIRTY_TWO
#undef WGMMA_32_REGISTERS
#undef WGMMA_64_REGISTERS
// clang-format on

// ---- sums in global memory, whose place is the L2: nothing waits for an addition there

// to[i] += x[i], rounded to nearest; subnormal numbers count as 0. to: a multiple of 16 bytes. Each float is added by
// itself; where threads add to the same one, barriers must order them, or its bits depend on who is first.
__device__ inline void add_in_l2(float* to, const float (&x)[4]) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "f"(x[0]),
               "f"(x[1]), "f"(x[2]), "f"(x[3])
               : "memory");
}
// Four floats (from: a multiple of 16 bytes) as additions left them: a multiprocessor's L1 may hold older ones.
__device__ inline Pack<float> load_from_l2(const float* from) {
  Pack<float> x;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return x;
}

#endif
