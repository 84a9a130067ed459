// kernels/hopper.cuh against plain loops: operands that pass from registers through a tile to a product that takes its
// columns, and sums in the L2. The same on the CPU layer and on Hopper; the end is about mistakes, which only the CPU
// reports.
#include "kernels/hopper.cuh"
#include <gtest/gtest.h>
#include <string>
#include <vector>
#include "test/kernels/tensor_core.h"
#include "test/kernels/warpgroup.h"
#include "test/support/compare.h"
#include "test/support/device.h"
#include "test/support/error_of.h"

namespace {

struct HopperOperands : HopperTest {};

// ---- from registers to a tile

// The left operand at the beginning of x, a part of a matrix of `columns` columns.
__device__ void read_operand(unsigned (&operand)[4], const bf16* x, int columns) {
  int lane = threadIdx.x % WARP;
  for (int r = 0; r < 4; r++) {
    const bf16* pair = x + (lane / 4 + r % 2 * 8) * columns + lane % 4 * 2 + r / 2 * 8;
    operand[r] = pack_pair(to_float(pair[0]), to_float(pair[1]));
  }
}

__global__ void store_one(bf16* out, const bf16* x, int row, int column) {
  DYNAMIC_SHARED(bf16, tile);
  for (int i = threadIdx.x; i < 64 * 64; i += WARP) tile[i] = from_float<bf16>(0);
  unsigned operand[4];
  read_operand(operand, x, 16);
  warp_sync();
  store_operand(tile, row, column, operand);
  warp_sync();
  for (int i = threadIdx.x; i < 64 * 64; i += WARP) out[i] = tile[tile_place(i / 64, i % 64)];
}
TEST_F(HopperOperands, AStoredOperandIsInItsPlace) {
  std::vector<bf16> x = random_normal<bf16>(16 * 16, 4);
  for (int row : {0, 5, 8, 48})
    for (int column : {0, 8, 40, 48}) {
      std::vector<bf16> expected(64 * 64, from_float<bf16>(0));
      for (int i = 0; i < 16 * 16; i++) expected[size_t((row + i / 16) * 64 + column + i % 16)] = x[size_t(i)];
      DeviceArray<bf16> in(x), out(expected.size());
      LAUNCH(store_one, 1, WARP, 64 * TILE_ROW_BYTES, nullptr, out, in, row, column);
      expect_same_bits("store_operand", out.download(), expected);
    }
}

// d [64, 64] = x^T y: x passes through the registers of its rows' warps.
__global__ void store_and_multiply(float* d, const bf16* x, const bf16* y) {
  DYNAMIC_SHARED(bf16, tiles);
  bf16 *x_tile = tiles, *y_tile = tiles + 64 * 64;
  int top = threadIdx.x / WARP * 16;
  for (int i = threadIdx.x; i < 64 * 64; i += WARPGROUP) y_tile[tile_place(i / 64, i % 64)] = y[i];
  async_proxy_fence();  // for these stores alone: planted_bugs_ptx.sh removes the other, which store_operand needs
  for (int k = 0; k < 4; k++) {
    unsigned operand[4];
    read_operand(operand, x + top * 64 + k * 16, 64);
    store_operand(x_tile, top, k * 16, operand);
  }
  async_proxy_fence();
  __syncthreads();
  TileOperand left = columns_operand(x_tile, 0), right = columns_operand(y_tile, 0);
  float sums[8][4];
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; k++) wgmma_columns(sums, left + 128 * k, right + 128 * k, k > 0);
  wgmma_commit();
  wgmma_wait<0>(sums);
  for (int n = 0; n < 8; n++)
    for (int i = 0; i < 4; i++) d[sum_place(n, i, 64)] = sums[n][i];
}
TEST_F(HopperOperands, StoredOperandsAreMultiplied) {
  std::vector<bf16> x = random_normal<bf16>(64 * 64, 5), y = random_normal<bf16>(64 * 64, 6);
  auto reference = [&]<class P>(P) {
    std::vector<typename P::real> zeros(64 * 64);
    return product_reference<P>(transposed(widen<P>(x), 64), widen<P>(y), zeros, 64, 64);
  };
  expect_reproducible("store_and_multiply", [&] {
    DeviceArray<bf16> left(x), right(y);
    DeviceArray<float> d(64 * 64);
    LAUNCH(store_and_multiply, 1, WARPGROUP, 2 * 64 * TILE_ROW_BYTES, nullptr, d, left, right);
    expect_close("store_and_multiply", d.download(), reference(Exact()), reference(OnWgmma()), unit_roundoff<float>);
    return bits_of(d);
  });
}

// ---- sums in the L2

constexpr int ROUNDS = 5, BLOCKS = 2, THREADS = 64;

// In every round another thread of the block adds to a thread's four floats.
__global__ void add_rounds(float* sums, const float* x, float* out) {
  int block = blockIdx.x * THREADS;
  for (int round = 0; round < ROUNDS; round++) {
    Pack<float> v = load16(x + 4 * (round * BLOCKS * THREADS + block + threadIdx.x));
    float* to = sums + 4 * (block + (threadIdx.x ^ round));
    if (round == 0) store16(to, v);
    else add_in_l2(to, v.x);
    __syncthreads();
  }
  store16(out + 4 * (block + threadIdx.x), load_from_l2(sums + 4 * (block + threadIdx.x)));
}
TEST_F(HopperOperands, SumsInTheL2) {
  constexpr size_t n = 4 * BLOCKS * THREADS;
  std::vector<float> x = random_normal<float>(ROUNDS * n, 7), expected(x.begin(), x.begin() + n);
  for (size_t round = 1; round < ROUNDS; round++)
    for (size_t i = 0; i < n; i++) expected[i] += x[round * n + (i ^ 4 * round)];
  expect_reproducible("add_rounds", [&] {
    DeviceArray<float> sums(n), in(x), out(n);
    LAUNCH(add_rounds, BLOCKS, THREADS, 0, nullptr, sums, in, out);
    expect_same_bits("load_from_l2", out.download(), expected);
    expect_same_bits("add_in_l2", sums.download(), expected);
    return bits_of(sums);
  });
}

// ---- mistakes

__global__ void go_wrong(int how, float* out) {
  DYNAMIC_SHARED(bf16, tile);
  int t = threadIdx.x;
  unsigned operand[4] = {};
  float d[8][4] = {};
  float* volatile shared = reinterpret_cast<float*>(tile);  // nvcc itself refuses an address that it knows to be shared
  if (how == 0) store_operand(tile, 0, t % 2 * 8, operand);
  if (how == 1) store_operand(tile, 0, 4, operand);
  if (how == 2) store_operand(tile, 0, 56, operand);
  if (how == 3) store_operand(tile, 56, 0, operand);
  if (how == 4) store_operand(tile + 64, 0, 0, operand);
  if (how == 5 && t % WARP < 16) store_operand(tile, 0, 0, operand);
  if (how == 6) add_in_l2(out + 1, d[0]);
  if (how == 7) add_in_l2(shared, d[0]);
  if (how == 8) load_from_l2(out + 2);
  TileOperand columns = columns_operand(tile, 0);
  wgmma_fence(d);
  if (how == 9) wgmma_columns(d, columns + 2, columns, true);
  if (how == 10) wgmma_columns(d, columns, columns + 2, true);
  if (how == 11) wgmma_columns(d, columns + 4 * 128, columns, true);
  wgmma_commit();
  wgmma_wait<0>(d);
}
TEST_F(HopperOperands, MistakesEndInErrors) {
  if (!on_cpu) GTEST_SKIP() << "a GPU would hang, or worse";
  struct {
    int how;
    std::vector<std::string> parts;
  } mistakes[] = {
      {0, {"store_operand", "the lanes of the warp give different places"}},
      {1, {"store_operand", "row 0, column 4; rows begin at 0, and a column is a multiple of 8 up to 48"}},
      {2, {"row 0, column 56"}},
      {3, {"store_operand", "a tile of 9216 bytes at byte 0 of 8192"}},
      {4, {"store_operand", "at byte 128 of 8192", "multiple of 1024"}},
      {5, {"deadlock", "wait at store_operand"}},
      {6, {"add_in_l2", "is not a multiple of 16"}},
      {7, {"add_in_l2", "shared memory"}},
      {8, {"load_from_l2", "is not a multiple of 16"}},
      {9, {"wgmma", "an operand of columns begins at column 16 of a tile"}},
      {10, {"wgmma", "an operand of columns begins at column 16 of a tile"}},
      {11, {"wgmma", "an operand ends at byte 10240 of 8192"}},
  };
  DeviceArray<float> out(8);
  for (auto& mistake : mistakes) {
    SCOPED_TRACE(format("mistake %d", mistake.how));
    std::string what =
        error_of([&] { LAUNCH(go_wrong, 1, WARPGROUP, 64 * TILE_ROW_BYTES, nullptr, mistake.how, out); });
    expect_has(what, mistake.parts);
    expect_has(what, {"kernel go_wrong, block", "hopper_operands_test.cu:"});
    LAUNCH(go_wrong, 1, WARPGROUP, 64 * TILE_ROW_BYTES, nullptr, 99, out);  // nothing is left behind
  }
}

}  // namespace
