// The CPU half of kernels/hopper.cuh, which has the contracts and includes this; hopper.cpp does the work.
#pragma once
#include "kernels/hopper.cuh"

#include "emulation/scheduler.h"

struct TensorMap {
  const bf16* x;
  TensorShape shape;
  int tile_rows;
};
TensorMap tensor_map(const bf16* x, const TensorShape& shape, int tile_rows);

struct Mbarrier {
  uint64_t state;
};
void mbarrier_init(Mbarrier& barrier, int count, CPU_SITE);
inline void mbarrier_init_fence() {}
void mbarrier_arrive(Mbarrier& barrier, CPU_SITE);
void mbarrier_arrive_expect(Mbarrier& barrier, int bytes, CPU_SITE);
void mbarrier_wait(Mbarrier& barrier, unsigned parity, CPU_SITE);

// A load arrives when nothing else can run or, in random order, at any time.
void tile_load(void* tile, const TensorMap& map, int batch, int row, int head, int channel, Mbarrier& barrier,
               CPU_SITE);
void bulk_load(void* shared, const void* global, int bytes, Mbarrier& barrier, CPU_SITE);
// A store is done at its wait, so one without a wait is never done.
void tile_store(const TensorMap& map, const void* tile, int batch, int row, int head, int channel, CPU_SITE);
void bulk_commit();
void bulk_wait_read();
inline void async_proxy_fence() {}
inline int anew(int x) { return x; }

void named_barrier(int number, int threads, CPU_SITE);
template <int N> inline void registers_grow() { static_assert(N >= 24 && N <= 256 && N % 8 == 0); }
template <int N> inline void registers_shrink() { static_assert(N >= 24 && N <= 256 && N % 8 == 0); }

// As on a GPU, with addresses counted from the beginning of the dynamic shared memory.
TileOperand rows_operand(const void* tile, CPU_SITE);
TileOperand columns_operand(const void* tile, int tile_bytes, CPU_SITE);
void store_operand(bf16* tile, int row, int column, const unsigned (&operand)[4], CPU_SITE);

// Plain accesses, so that TSan reports threads that nothing orders.
void add_in_l2(float* to, const float (&x)[4], CPU_SITE);
Pack<float> load_from_l2(const float* from, CPU_SITE);

namespace cpu {

// D [64, columns] = or += A B by the calling thread's warpgroup. A is rows or columns of a tile, or in registers; B is
// rows of tiles if A is, else columns.
enum class Left : char { rows, columns, registers };
struct Product {
  TileOperand a, b;
  int columns;
  bool add;
  Left left;
  bool operator==(const Product&) const = default;
};
void start_product(const Product&, float* d, const unsigned* registers, const char* file, int line);
void finish_products(int groups_left, const Site&);

struct Registers {  // accepts any sums or left operands, which the CPU can ignore
  Registers() = default;
  template <class T, int N> Registers(T (&)[N]) {}
};
void fence_products();

}  // namespace cpu

template <class... R> inline void compute_before_wait(R&...) {}
template <class... R> inline void wgmma_fence(R&...) { cpu::fence_products(); }
void wgmma_commit();
// Products are done here, by the last of the 128 threads to arrive, so that a missing wait changes the results. Until
// then sums and A's registers must exist: they must not be variables of a scope that has ended.
template <int GROUPS>
inline void wgmma_wait(cpu::Registers = {}, cpu::Registers = {}, cpu::Registers = {}, cpu::Registers = {}, CPU_SITE) {
  cpu::finish_products(GROUPS, {"wgmma_wait", file, line});
}
template <int TILES> inline void wgmma(float (&d)[TILES][4], TileOperand a, TileOperand b, bool add, CPU_SITE) {
  static_assert(TILES == 8 || TILES == 16, "N is 64 or 128");
  cpu::start_product({a, b, TILES * 8, add, cpu::Left::rows}, d[0], nullptr, file, line);
}
template <int TILES> inline void wgmma(float (&d)[TILES][4], const unsigned (&a)[4], TileOperand b, CPU_SITE) {
  static_assert(TILES == 8 || TILES == 16, "N is 64 or 128");
  cpu::start_product({0, b, TILES * 8, true, cpu::Left::registers}, d[0], a, file, line);
}
inline void wgmma_columns(float (&d)[8][4], TileOperand a, TileOperand b, bool add, CPU_SITE) {
  cpu::start_product({a, b, 64, add, cpu::Left::columns}, d[0], nullptr, file, line);
}
