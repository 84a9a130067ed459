// The portability header's second part, for kernels that are written for Hopper (sm_90a): the copy engine (TMA),
// barriers in shared memory (mbarrier), products of a warpgroup (wgmma). As in gpu.cuh a GPU gets PTX and the CPU layer
// (emulation/cpu/hopper.h) does the same thread by thread. Sources: PTX ISA 8.7, sections 9.7.9.25 (tensor copies), 9.7.13.15
// (mbarrier), 9.7.15 (wgmma) and 5.5 (tensor maps).
//
// A *tile* is a number of rows of 64 bf16 in shared memory, 128 bytes a row, at a multiple of 1024 bytes. The 16-byte
// chunk c of row r lies at chunk c ^ (r % 8) of the row: so the copy engine writes it and wgmma reads it. Wider rows
// are several tiles one after the other. A *warpgroup* is 128 threads whose first has a number divisible by 128.
#pragma once
#include "kernels/gpu.cuh"

constexpr int WARPGROUP = 4 * WARP, TILE_COLUMNS = 64, TILE_ROW_BYTES = 128, TILE_ALIGNMENT = 1024;

// Where element `column` (< 64) of row `row` of a tile is, in elements.
__host__ __device__ constexpr int tile_place(int row, int column) {
  return row * TILE_COLUMNS + ((column / 8 ^ row % 8) * 8 + column % 8);
}

// A tensor [batches, rows, heads, channels] of bf16 in global memory, any of its tiles to be copied. Strides are in
// elements and, as the address, multiples of 8 (16 bytes); channels are contiguous. The driver's header describes a
// batch's stride as a multiple of a row's, and that of a head's.
struct TensorShape {
  int batches, rows, heads, channels;
  size_t batch_stride, row_stride, head_stride;
};

// What a tile operand of a wgmma is: 64 bits, with the tile's address in units of 16 bytes in the low bits. Adding
// moves it: 16 columns (32 bytes) further is + 2, 16 rows (2048 bytes) further + 128.
using TileOperand = uint64_t;

#ifdef PLUSGPT_CPU
#include "emulation/cpu/hopper.h"
#endif

#ifdef __CUDACC__
#include <cuda.h>

// ---- host

struct TensorMap {
  CUtensorMap map;
};

// Describes the tensor to the copy engine, for tiles of tile_rows (at most 256) rows. Throws Failure where the driver
// refuses. Pass it to the kernel by value, as `const __grid_constant__ TensorMap`.
inline TensorMap tensor_map(const bf16* x, const TensorShape& shape, int tile_rows) {
  // asked for by name, so that the program needs no driver to link or to start
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
#else
    cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found);
#endif
    if (!function || found != cudaDriverEntryPointSuccess)
      failure("the CUDA driver has no cuTensorMapEncodeTiled: Hopper's kernels need a driver for CUDA 12.0 or newer.");
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
    failure("cuTensorMapEncodeTiled refused a tensor of %d x %d x %d x %d bf16: error %d.", shape.batches, shape.rows,
            shape.heads, shape.channels, int(error));
  return result;
}

// ---- mbarriers: in a phase `count` arrivals are awaited, and the bytes that were announced for it

struct Mbarrier {
  uint64_t state;
};

// By one thread; all may use it after mbarrier_init_fence() of that thread and a __syncthreads().
__device__ inline void mbarrier_init(Mbarrier& barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(shared_address(&barrier)), "r"(count) : "memory");
}
__device__ inline void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void mbarrier_arrive(Mbarrier& barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" :: "r"(shared_address(&barrier)) : "memory");
}
// Arrives and announces bytes that copies will bring.
__device__ inline void mbarrier_arrive_expect(Mbarrier& barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;"
               :: "r"(shared_address(&barrier)), "r"(bytes) : "memory");
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
      "}" :: "r"(shared_address(&barrier)), "r"(parity) : "memory");
}

// ---- the copy engine; one thread asks

// tile = rows from `row`, 64 channels from `channel`, of one head of one batch. What lies outside the tensor becomes 0
// and counts as brought: tile_rows * 128 bytes always arrive at the barrier.
__device__ inline void tile_load(void* tile, const TensorMap& map, int batch, int row, int head, int channel,
                                 Mbarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];"
      :: "r"(shared_address(tile)), "l"(&map), "r"(channel), "r"(head), "r"(row), "r"(batch),
         "r"(shared_address(&barrier)) : "memory");
}
// The other way. Coordinates are at least 0 (for loads they need not be: CUDA Programming Guide 4.11.2); what lies past
// the tensor's end is not written. The tile may be written again after bulk_commit(), bulk_wait_read() of that thread.
__device__ inline void tile_store(const TensorMap& map, const void* tile, int batch, int row, int head, int channel) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];"
               :: "l"(&map), "r"(shared_address(tile)), "r"(channel), "r"(head), "r"(row), "r"(batch) : "memory");
}
__device__ inline void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ inline void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
// bytes (a multiple of 16, as are both addresses) from global to shared memory, as they are.
__device__ inline void bulk_load(void* shared, const void* global, int bytes, Mbarrier& barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :: "r"(shared_address(shared)), "l"(__cvta_generic_to_global(global)), "r"(bytes),
                  "r"(shared_address(&barrier)) : "memory");
}
// Between a thread's stores to shared memory and the copy engine or wgmma reading them (a barrier comes after it).
__device__ inline void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- warpgroups

// x; what is made from it is made here, and not before a loop that then has to carry it in registers.
__device__ inline int anew(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
// A barrier of `threads` threads; `number` 1..15 tells it from others (0 is __syncthreads).
__device__ inline void named_barrier(int number, int threads) {
  asm volatile("bar.sync %0, %1;" :: "r"(number), "r"(threads) : "memory");
}
// All of a warpgroup, at once: from here on its threads have N registers each.
template <int N> __device__ inline void registers_grow() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N));
}
template <int N> __device__ inline void registers_shrink() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N));
}

// ---- wgmma: D [64, N] (+)= A [64, 16] B [16, N], bf16 with float32 sums, executed by the 128 threads of a warpgroup
// together. Warp w has rows 16 w .. 16 w + 15; within them a thread's part of D and of an A in registers is laid out as
// mma_m16n8k16's (gpu.cuh). A product is on its way from the call until wgmma_wait: till then its registers must not be
// touched and its tiles must stay. wgmma_fence() comes before the first product after a wait, wgmma_commit() after a
// group's last.

// Address, 1024 bytes from 8 rows to the next 8, 128-byte swizzle.
__device__ inline TileOperand tile_operand(const void* tile) {
  return TileOperand((shared_address(tile) & 0x3ffff) >> 4) | TileOperand(TILE_ALIGNMENT >> 4) << 32 |
         TileOperand(1) << 62;
}

// Rows of a tile as rows of A, or as columns of B: 16 of its columns are summed over.
__device__ inline TileOperand rows_operand(const void* tile) {
  return tile_operand(tile) | TileOperand(1) << 16;
}
// 16 rows of tiles as B: columns of the tiles are columns of B. tile_bytes: from a tile to the next 64 columns.
__device__ inline TileOperand columns_operand(const void* tile, int tile_bytes) {
  return tile_operand(tile) | TileOperand(tile_bytes >> 4) << 16;
}

// The compiler has x ready before the next asm statement, and reads nothing of it before the last.
__device__ inline void hold_in_place(float& x) { asm volatile("" : "+f"(x) :: "memory"); }
__device__ inline void hold_in_place(unsigned& x) { asm volatile("" : "+r"(x) :: "memory"); }
template <class T, int N> __device__ inline void hold_in_place(T (&x)[N]) {
#pragma unroll
  for (int n = 0; n < N; n++) hold_in_place(x[n]);
}

// These are computed before the wait that follows. Without it ptxas (12.9, 13.0) moves a wait above arithmetic that does
// not need what is waited for, and nothing overlaps; of the statements that were tried only this one stops it.
template <class... Registers> __device__ inline void compute_before_wait(Registers&... registers) {
  (hold_in_place(registers), ...);
  asm volatile("fence.acq_rel.cta;" ::: "memory");
}
// Orders the registers' last use before the products that follow. What they read is named: left operands, and sums that
// they add to; sums that they overwrite need not be.
template <class... Registers> __device__ inline void wgmma_fence(Registers&... registers) {
  (hold_in_place(registers), ...);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Returns when all but the newest GROUPS groups are done; the registers named may be used from here on.
template <int GROUPS, class... Registers> __device__ inline void wgmma_wait(Registers&... registers) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(GROUPS) : "memory");
  (hold_in_place(registers), ...);
}

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

// A: rows of a tile, B: rows of a tile. d = without `add`, d += with it.
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
// A: registers, B: columns of tiles. d +=
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
#undef FOUR
#undef THIRTY_TWO
#undef WGMMA_32_REGISTERS
#undef WGMMA_64_REGISTERS

#endif
