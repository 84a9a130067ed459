// kernels/hopper.cuh against plain loops: the layouts of the copy engine, when barriers open, and the products of a
// warpgroup. The same on the CPU layer and on Hopper; the end is about bugs in kernels, which only the CPU reports.
#include "kernels/hopper.cuh"
#include <gtest/gtest.h>
#include <cmath>
#include <string>
#include <vector>
#include "test/kernels/tensor_core.h"
#include "test/kernels/warpgroup.h"
#include "test/support/compare.h"
#include "test/support/device.h"
#include "test/support/error_of.h"

namespace {

#ifndef __SANITIZE_THREAD__
#define __SANITIZE_THREAD__ 0
#endif
constexpr bool under_tsan = __SANITIZE_THREAD__;

struct Hopper : HopperTest {};

bf16 of_bits(unsigned bits) { return __ushort_as_bfloat16(static_cast<unsigned short>(bits)); }
std::vector<bf16> counted(size_t n) {  // all different, up to 2^16 elements
  std::vector<bf16> values(n);
  for (size_t i = 0; i < n; i++) values[i] = of_bits(unsigned(i) + 1);
  return values;
}

// ---- copies -------------------------------------------------------------------------------------------------------

struct Place {
  int batch, row, head, channel;
};

__global__ void load_one(const __grid_constant__ TensorMap map, Place from, int rows, bf16* out) {
  DYNAMIC_SHARED(bf16, tile);
  __shared__ Mbarrier arrived;
  if (threadIdx.x == 0) mbarrier_init(arrived, 1), mbarrier_init_fence();
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect(arrived, rows * TILE_ROW_BYTES);
    tile_load(tile, map, from.batch, from.row, from.head, from.channel, arrived);
  }
  mbarrier_wait(arrived, 0);
  for (int i = threadIdx.x; i < rows * TILE_COLUMNS; i += blockDim.x) out[i] = tile[i];
}

__global__ void store_one(const __grid_constant__ TensorMap map, Place to, int rows, const bf16* in) {
  DYNAMIC_SHARED(bf16, tile);
  for (int i = threadIdx.x; i < rows * TILE_COLUMNS; i += blockDim.x) tile[i] = in[i];
  async_proxy_fence();
  __syncthreads();
  if (threadIdx.x == 0) {
    tile_store(map, tile, to.batch, to.row, to.head, to.channel);
    bulk_commit();
    bulk_wait_read();
  }
}

// Element (row, column) of the box is element index() of the tensor's array, or outside.
struct Box {
  TensorShape shape;
  Place place;
  bool inside(int row, int column) const {
    int r = place.row + row, c = place.channel + column;
    return r >= 0 && r < shape.rows && c >= 0 && c < shape.channels;
  }
  size_t index(int row, int column) const {
    return size_t(place.batch) * shape.batch_stride + size_t(place.row + row) * shape.row_stride +
           size_t(place.head) * shape.head_stride + size_t(place.channel + column);
  }
};

// [B, T, 3, H, D] as attention's inputs, heads one after the other, channels with padding, and far apart
const TensorShape shapes[] = {{2, 77, 3, 64, 77 * 576, 576, 64},
                              {2, 50, 2, 128, 50 * 432, 432, 144},
                              {1, 9, 2, 40, 960, 96, 48},
                              {2, 130, 1, 8, 130 * 16, 16, 8}};
size_t elements(const TensorShape& s) {
  return s.batch_stride * size_t(s.batches) + s.row_stride * size_t(s.rows) + s.head_stride * size_t(s.heads);
}

TEST_F(Hopper, TileLoadPutsEveryElementInItsPlaceAndZerosAround) {
  for (const TensorShape& shape : shapes)
    for (int rows : {1, 8, 64, 128})
      for (int row : {-3, 0, 40})
        for (int channel : {-16, 0, 8, 64}) {
          Box box{shape, {shape.batches - 1, row, shape.heads - 1, channel}};
          std::vector<bf16> values = counted(elements(shape)), expected(size_t(rows) * TILE_COLUMNS, of_bits(0));
          for (int r = 0; r < rows; r++)
            for (int c = 0; c < TILE_COLUMNS; c++)
              if (box.inside(r, c)) expected[size_t(tile_place(r, c))] = values[box.index(r, c)];
          DeviceArray<bf16> x(values), out(expected.size());
          LAUNCH(load_one, 1, 64, size_t(rows) * TILE_ROW_BYTES, nullptr, tensor_map(x, shape, rows), box.place, rows,
                 out);
          expect_same_bits("tile_load", out.download(), expected);
        }
}

TEST_F(Hopper, TileStoreWritesOnlyInsideTheTensor) {
  for (const TensorShape& shape : shapes)
    for (int rows : {1, 64})
      for (int row : {0, 40})  // only a load may begin before the tensor
        for (int channel : {0, 8, 64}) {
          Box box{shape, {0, row, shape.heads - 1, channel}};
          std::vector<bf16> tile = counted(size_t(rows) * TILE_COLUMNS), expected(elements(shape), of_bits(0xffff));
          for (int r = 0; r < rows; r++)
            for (int c = 0; c < TILE_COLUMNS; c++)
              if (box.inside(r, c)) expected[box.index(r, c)] = tile[size_t(tile_place(r, c))];
          DeviceArray<bf16> in(tile), x(expected.size());
          LAUNCH(store_one, 1, 64, size_t(rows) * TILE_ROW_BYTES, nullptr, tensor_map(x, shape, rows), box.place, rows,
                 in);
          expect_same_bits("tile_store", x.download(), expected);
        }
}

__global__ void load_bytes(const char* in, int bytes, char* out) {
  DYNAMIC_SHARED(char, buffer);
  __shared__ Mbarrier arrived[2];
  if (threadIdx.x < 2) mbarrier_init(arrived[threadIdx.x], 1), mbarrier_init_fence();
  __syncthreads();
  if (threadIdx.x < 2) {  // two halves, asked for by two threads
    mbarrier_arrive_expect(arrived[threadIdx.x], bytes);
    bulk_load(buffer + threadIdx.x * bytes, in + threadIdx.x * bytes, bytes, arrived[threadIdx.x]);
  }
  for (int half = 1; half >= 0; half--) {
    mbarrier_wait(arrived[half], 0);
    for (int i = threadIdx.x; i < bytes; i += blockDim.x) out[half * bytes + i] = buffer[half * bytes + i];
  }
}
TEST_F(Hopper, BulkLoadCopiesBytes) {
  for (CpuOrder order : {CpuOrder::forward, CpuOrder::reverse, CpuOrder::random})
    for (int bytes : {16, 48, 4096}) {
      set_cpu_order(order);
      std::vector<char> values(2 * size_t(bytes));
      for (size_t i = 0; i < values.size(); i++) values[i] = char(i % 251);
      DeviceArray<char> in(values), out(values.size());
      LAUNCH(load_bytes, 1, 64, values.size(), nullptr, in, bytes, out);
      EXPECT_EQ(out.download(), values);
    }
}

// ---- barriers -----------------------------------------------------------------------------------------------------

// One warp fills a slot of a ring, three read it; every round two phases end, those of full and of empty.
__global__ void pass_on(int* out, int rounds) {
  constexpr int slots = 2;
  __shared__ int slot[slots];
  __shared__ Mbarrier full[slots], empty[slots];
  int t = threadIdx.x;
  if (t < slots) mbarrier_init(full[t], WARP), mbarrier_init(empty[t], 3), mbarrier_init_fence();
  __syncthreads();
  for (int i = 0; i < rounds; i++) {
    int s = i % slots;
    unsigned parity = i / slots % 2;
    if (t < WARP) {
      mbarrier_wait(empty[s], parity ^ 1);  // passes in the first round
      if (t == 0) slot[s] = 7 * i + 1;
      mbarrier_arrive(full[s]);
    } else {
      mbarrier_wait(full[s], parity);
      out[i * blockDim.x + t] = slot[s];
      warp_sync();
      if (t % WARP == 0) mbarrier_arrive(empty[s]);
    }
  }
}
TEST_F(Hopper, MbarriersOpenPhaseByPhase) {
  int rounds = 9, threads = 4 * WARP;
  expect_reproducible("pass_on", [&] {
    DeviceArray<int> out(size_t(rounds * threads));
    LAUNCH(pass_on, 1, threads, 0, nullptr, out, rounds);
    std::vector<int> values = out.download();
    for (int i = 0; i < rounds; i++)
      for (int t = WARP; t < threads; t++) EXPECT_EQ(values[size_t(i * threads + t)], 7 * i + 1);
    return bits_of(out);
  });
}

// Two warpgroups reverse their halves, each at its own pace, while one warp has exited already; then both meet.
__global__ void turn_around(float* x) {
  __shared__ float tile[2 * WARPGROUP];
  int t = threadIdx.x, group = t / WARPGROUP;
  if (group == 2) return;
  float v = x[t];
  for (int i = 0; i < 3 + 4 * group; i++) {
    tile[t] = v;
    named_barrier(1 + group, WARPGROUP);
    v = tile[t ^ (WARPGROUP - 1)] + 1;
    named_barrier(1 + group, WARPGROUP);
  }
  tile[t] = v;
  named_barrier(15, 2 * WARPGROUP);
  x[t] = tile[2 * WARPGROUP - 1 - t];
}
TEST_F(Hopper, NamedBarriersDoNotWaitForOthers) {
  expect_reproducible("turn_around", [] {
    std::vector<float> values(2 * WARPGROUP), expected(values.size());
    for (size_t i = 0; i < values.size(); i++) values[i] = float(i);
    for (int t = 0; t < 2 * WARPGROUP; t++) {  // an odd number of turns each
      int from = 2 * WARPGROUP - 1 - t;
      expected[size_t(t)] = float(from ^ (WARPGROUP - 1)) + float(from < WARPGROUP ? 3 : 7);
    }
    DeviceArray<float> x(values);
    LAUNCH(turn_around, 1, 2 * WARPGROUP + WARP, 0, nullptr, x);
    expect_same_bits("turn_around", x.download(), expected);
    return bits_of(x);
  });
}

// ---- products -----------------------------------------------------------------------------------------------------

constexpr int ROWS = 64, DEPTH = 64;  // of A

// d (+)= a b with a [64, 64] and b [64, 8 TILES], given as b^T where A is in shared memory.
template <int TILES, bool FROM_REGISTERS> __global__ void multiply(float* d, const bf16* a, const bf16* b, bool add) {
  constexpr int N = 8 * TILES;
  DYNAMIC_SHARED(bf16, tiles);
  bf16 *a_tile = tiles, *b_tile = tiles + ROWS * TILE_COLUMNS;
  int t = threadIdx.x, lane = t % WARP, top = t / WARP * 16 + lane / 4;
  for (int i = t; i < ROWS * DEPTH; i += blockDim.x) a_tile[tile_place(i / DEPTH, i % DEPTH)] = a[i];
  for (int i = t; i < N * DEPTH; i += blockDim.x) {
    if (FROM_REGISTERS) b_tile[i % N / 64 * DEPTH * TILE_COLUMNS + tile_place(i / N, i % 64)] = b[i];
    else b_tile[tile_place(i / DEPTH, i % DEPTH)] = b[i];
  }
  async_proxy_fence();
  __syncthreads();

  float sums[TILES][4];
  unsigned registers[DEPTH / 16][4];
  for (int n = 0; n < TILES; n++)
    for (int i = 0; i < 4; i++) sums[n][i] = d[sum_place(n, i, N)];
#pragma unroll
  for (int k = 0; k < DEPTH / 16; k++)
    for (int r = 0; r < 4; r++) {
      const bf16* pair = a + (top + r % 2 * 8) * DEPTH + k * 16 + lane % 4 * 2 + r / 2 * 8;
      registers[k][r] = pack_pair(to_float(pair[0]), to_float(pair[1]));
    }
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < DEPTH / 16; k++) {
    if constexpr (FROM_REGISTERS) wgmma(sums, registers[k], columns_operand(b_tile, DEPTH * TILE_ROW_BYTES) + 128 * k);
    else wgmma(sums, rows_operand(a_tile) + 2 * k, rows_operand(b_tile) + 2 * k, add || k > 0);
  }
  wgmma_commit();
  wgmma_wait<0>(sums);
  for (int n = 0; n < TILES; n++)
    for (int i = 0; i < 4; i++) d[sum_place(n, i, N)] = sums[n][i];
}

// b [64, n] here; d must hold its old value if add.
template <int TILES, bool FROM_REGISTERS>
std::vector<float> product(const std::vector<bf16>& a, const std::vector<bf16>& b, std::vector<float> d, bool add) {
  size_t n = 8 * TILES;
  DeviceArray<float> sums(d);
  DeviceArray<bf16> left(a), right(FROM_REGISTERS ? b : transposed(b, n));
  LAUNCH((multiply<TILES, FROM_REGISTERS>), 1, WARPGROUP, (ROWS + n) * TILE_ROW_BYTES, nullptr, sums, left, right, add);
  return sums.download();
}

template <int TILES, bool FROM_REGISTERS> void check_products() {
  size_t n = 8 * TILES;
  // row i of A has its 1 at column (i + shift) % 64: so row i of D is that row of B, whose elements tell where they are
  for (int shift = 0; shift < DEPTH; shift++) {
    std::vector<bf16> a(ROWS * DEPTH, of_bits(0)), by_row(DEPTH * n), by_column(DEPTH * n);
    for (int i = 0; i < ROWS; i++) a[size_t(i * DEPTH + (i + shift) % DEPTH)] = from_float<bf16>(1);
    for (size_t i = 0; i < DEPTH * n; i++)
      by_row[i] = from_float<bf16>(float(i / n) + 1), by_column[i] = from_float<bf16>(float(i % n) + 1);
    std::vector<float> zeros(ROWS * n), rows = product<TILES, FROM_REGISTERS>(a, by_row, zeros, true),
                                        columns = product<TILES, FROM_REGISTERS>(a, by_column, zeros, true);
    for (size_t i = 0; i < ROWS * n; i++) {
      ASSERT_EQ(rows[i], float((i / n + size_t(shift)) % DEPTH) + 1) << "row " << i / n << ", column " << i % n;
      ASSERT_EQ(columns[i], float(i % n) + 1) << "row " << i / n << ", column " << i % n;
    }
  }
  for (bool add : {true, false}) {
    if (!add && FROM_REGISTERS) continue;
    std::vector<bf16> a = random_normal<bf16>(ROWS * DEPTH, 1), b = random_normal<bf16>(DEPTH * n, 2);
    std::vector<float> d = random_normal<float>(ROWS * n, 3), zeros(d.size());
    const std::vector<float>& start = add ? d : zeros;
    expect_close("wgmma", product<TILES, FROM_REGISTERS>(a, b, d, add),
                 product_reference<Exact>(widen<Exact>(a), widen<Exact>(b), widen<Exact>(start), n, DEPTH),
                 product_reference<OnWgmma>(widen<Naive<float>>(a), widen<Naive<float>>(b), start, n, DEPTH),
                 unit_roundoff<float>);
  }
}
TEST_F(Hopper, ProductsFromTiles) {
  check_products<8, false>();
  check_products<16, false>();
}
TEST_F(Hopper, ProductsFromRegisters) {
  check_products<8, true>();
  check_products<16, true>();
}

TEST_F(Hopper, ProductsAreAddedAsKnown) {
  for (const KnownProduct& known : KNOWN_PRODUCTS) {
    KnownInputs in(known, unsigned(&known - KNOWN_PRODUCTS) + 1);
    std::vector<bf16> a(ROWS * DEPTH, of_bits(0)), b(DEPTH * 64, of_bits(0));
    std::vector<float> c(ROWS * 64), sums(16 * 8);
    auto at = [](size_t i) { return i / 8 * 64 + i % 8; };
    for (size_t i = 0; i < in.a.size(); i++) a[i / 16 * DEPTH + i % 16] = from_float<bf16>(in.a[i]);
    for (size_t i = 0; i < sums.size(); i++) b[at(i)] = from_float<bf16>(in.b[i]), c[at(i)] = in.c[i];
    std::vector<float> d = product<8, false>(a, b, c, true);
    for (size_t i = 0; i < sums.size(); i++) sums[i] = d[at(i)];
    EXPECT_EQ(hash_of(sums), known.hopper) << "inputs from exponent " << known.exponent;
  }
}

// s = a a^T and o = s v, for each of two warpgroups: the second product takes the first's sums as they lie in the
// registers. Two groups are in flight.
__global__ void two_products(float* s_out, float* o_out, const bf16* a, const bf16* v) {
  DYNAMIC_SHARED(bf16, tiles);
  int group = threadIdx.x / WARPGROUP, t = threadIdx.x % WARPGROUP;
  bf16 *a_tile = tiles + group * 64 * 64, *v_tile = tiles + (2 + group) * 64 * 64;
  for (int i = t; i < 64 * 64; i += WARPGROUP) {
    a_tile[tile_place(i / 64, i % 64)] = a[group * 64 * 64 + i];
    v_tile[tile_place(i / 64, i % 64)] = v[group * 64 * 64 + i];
  }
  async_proxy_fence();
  named_barrier(1 + group, WARPGROUP);
  float s[8][4], again[8][4], o[8][4] = {};
  auto start = [&](float(&sums)[8][4]) {
#pragma unroll
    for (int k = 0; k < 4; k++) wgmma(sums, rows_operand(a_tile) + 2 * k, rows_operand(a_tile) + 2 * k, k > 0);
    wgmma_commit();
  };
  wgmma_fence(s, again);
  start(s);
  start(again);
  wgmma_wait<1>(s);
  unsigned p[4][4];
#pragma unroll
  for (int k = 0; k < 4; k++)
    for (int r = 0; r < 4; r++) p[k][r] = pack_pair(s[2 * k + r / 2][r % 2 * 2], s[2 * k + r / 2][r % 2 * 2 + 1]);
  wgmma_fence(o, p);
#pragma unroll
  for (int k = 0; k < 4; k++) wgmma(o, p[k], columns_operand(v_tile, 64 * TILE_ROW_BYTES) + 128 * k);
  wgmma_commit();
  wgmma_wait<0>(again, o, p);
  for (int n = 0; n < 8; n++)
    for (int i = 0; i < 4; i++) {
      int place = group * 64 * 64 + sum_place(n, i, 64);
      s_out[place] = s[n][i] == again[n][i] ? s[n][i] : NAN;
      o_out[place] = o[n][i];
    }
}
TEST_F(Hopper, GroupsInFlightAndSumsAsOperands) {
  std::vector<bf16> a = random_normal<bf16>(2 * 64 * 64, 4, 0.125f), v = random_normal<bf16>(2 * 64 * 64, 5);
  std::vector<double> s_exact, o_exact;
  std::vector<float> s_naive, o_naive;
  for (size_t group = 0; group < 2; group++) {
    auto both = [&]<class P>(P, auto& s_all, auto& o_all) {
      auto of_group = [&](const std::vector<bf16>& x) {
        return widen<P>(std::vector<bf16>(x.begin() + group * 64 * 64, x.begin() + (group + 1) * 64 * 64));
      };
      auto x = of_group(a), zeros = std::vector(x.size(), typename P::real(0));
      auto s = product_reference<P>(x, transposed(x, 64), zeros, 64, 64);
      s_all.insert(s_all.end(), s.begin(), s.end());
      for (auto& p : s) p = P::round(p);
      auto o = product_reference<P>(s, of_group(v), zeros, 64, 64);
      o_all.insert(o_all.end(), o.begin(), o.end());
    };
    both(Exact(), s_exact, o_exact);
    both(Naive<bf16>(), s_naive, o_naive);
  }
  expect_reproducible("two_products", [&] {
    DeviceArray<bf16> left(a), right(v);
    DeviceArray<float> s(a.size()), o(a.size());
    LAUNCH(two_products, 1, 2 * WARPGROUP, 4 * 64 * TILE_ROW_BYTES, nullptr, s, o, left, right);
    expect_close("s", s.download(), s_exact, s_naive, unit_roundoff<float>);
    expect_close("o", o.download(), o_exact, o_naive, unit_roundoff<float>);
    return bits_of(s, o);
  });
}

// ---- together -----------------------------------------------------------------------------------------------------

// out [m, 128] = x [m, depth] w [128, depth]^T, 128 rows a block: a warpgroup keeps a ring of tiles full, two multiply.
// `early` releases a slot before the products that read it are done. Each warp releases it: a wait is only known to be
// for the warp's own part of a product.
constexpr int SLOTS = 2, SLOT_ROWS = 128 + 128;
__global__ void __launch_bounds__(3 * WARPGROUP, 1)
    ring(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w,
         const __grid_constant__ TensorMap out, int depth, bool early) {
  DYNAMIC_SHARED(bf16, tiles);
  __shared__ Mbarrier full[SLOTS], empty[SLOTS];
  int group = threadIdx.x / WARPGROUP, t = threadIdx.x % WARPGROUP, row = blockIdx.x * 128;
  if (threadIdx.x < SLOTS)
    mbarrier_init(full[threadIdx.x], 1), mbarrier_init(empty[threadIdx.x], 2 * 4), mbarrier_init_fence();
  __syncthreads();
  if (group == 2) {
    registers_shrink<24>();
    if (t != 0) return;
    for (int i = 0; i < depth / 64; i++) {
      int s = i % SLOTS;
      mbarrier_wait(empty[s], i / SLOTS % 2 ^ 1);
      mbarrier_arrive_expect(full[s], SLOT_ROWS * TILE_ROW_BYTES);
      bf16* slot = tiles + s * SLOT_ROWS * TILE_COLUMNS;
      tile_load(slot, x, 0, row, 0, i * 64, full[s]);
      tile_load(slot + 64 * TILE_COLUMNS, x, 0, row + 64, 0, i * 64, full[s]);
      tile_load(slot + 128 * TILE_COLUMNS, w, 0, 0, 0, i * 64, full[s]);
    }
    return;
  }
  registers_grow<240>();
  float sums[16][4] = {};
  for (int i = 0; i < depth / 64; i++) {
    int s = i % SLOTS;
    const bf16* slot = tiles + s * SLOT_ROWS * TILE_COLUMNS;
    TileOperand a = rows_operand(slot + group * 64 * TILE_COLUMNS), b = rows_operand(slot + 128 * TILE_COLUMNS);
    mbarrier_wait(full[s], i / SLOTS % 2);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) wgmma(sums, a + 2 * k, b + 2 * k, true);
    wgmma_commit();
    if (early && t % WARP == 0) mbarrier_arrive(empty[s]);
    wgmma_wait<0>(sums);
    if (!early && t % WARP == 0) mbarrier_arrive(empty[s]);
  }
  bf16* result = tiles + (SLOTS * SLOT_ROWS + group * 128) * TILE_COLUMNS;  // two tiles beside each other
  for (int n = 0; n < 16; n++)
    for (int i = 0; i < 4; i++) {
      int place = sum_place(n, i, 128), column = place % 128;
      result[column / 64 * 64 * TILE_COLUMNS + tile_place(place / 128, column % 64)] = from_float<bf16>(sums[n][i]);
    }
  async_proxy_fence();
  named_barrier(1 + group, WARPGROUP);
  if (t != 0) return;
  for (int half = 0; half < 2; half++)
    tile_store(out, result + half * 64 * TILE_COLUMNS, 0, row + group * 64, 0, half * 64);
  bulk_commit();
  bulk_wait_read();
}

struct Ring {
  static constexpr int m = 200, n = 128, depth = 320;
  std::vector<bf16> x = random_normal<bf16>(m * depth, 6), w = random_normal<bf16>(n * depth, 7);
  DeviceArray<bf16> run(bool early) const {
    DeviceArray<bf16> left(x), right(w), out(m * n);
    LAUNCH(ring, (m + 127) / 128, 3 * WARPGROUP, (SLOTS * SLOT_ROWS + 256) * TILE_ROW_BYTES, nullptr,
           tensor_map(left, {1, m, 1, depth, m * depth, depth, depth}, 64),
           tensor_map(right, {1, n, 1, depth, n * depth, depth, depth}, 128),
           tensor_map(out, {1, m, 1, n, m * n, n, n}, 64), int(depth), early);
    return out;
  }
};

TEST_F(Hopper, ARingOfTilesInAnyOrder) {
  Ring ring;
  std::vector<bf16> right = transposed(ring.w, ring.depth);
  auto reference = [&]<class P>(P) {
    std::vector<typename P::real> zeros(ring.m * ring.n);
    auto out = product_reference<P>(widen<P>(ring.x), widen<P>(right), zeros, ring.n, ring.depth);
    for (auto& v : out) v = P::round(v);
    return out;
  };
  std::vector<double> exact = reference(Exact());
  std::vector<float> naive = reference(Naive<bf16>());
  expect_reproducible("ring", [&] {
    DeviceArray<bf16> out = ring.run(false);
    expect_close("ring", out.download(), exact, naive, unit_roundoff<bf16>);
    return bits_of(out);
  });
}

// ---- mistakes -----------------------------------------------------------------------------------------------------

TEST_F(Hopper, ASlotReleasedTooEarlyShowsInRandomOrder) {
  if (!on_cpu || under_tsan) GTEST_SKIP() << "only the CPU layer makes bad luck happen, and TSan reports the race";
  Ring ring;
  std::vector<unsigned char> right = bits_of(ring.run(false));
  int wrong = 0;
  for (unsigned seed = 1; seed <= 10; seed++) {
    set_cpu_order(CpuOrder::random, seed);
    EXPECT_EQ(bits_of(ring.run(false)), right);
    try {
      wrong += bits_of(ring.run(true)) != right;
    } catch (const Failure&) {  // the ring went round before a thread looked at its barrier
      wrong++;
    }
  }
  EXPECT_GT(wrong, 0);
}

TEST_F(Hopper, TensorMapsThatTheDriverWouldRefuse) {
  if (!on_cpu) GTEST_SKIP() << "the driver has its own words";
  alignas(16) bf16 x[64] = {};
  TensorShape good{1, 4, 1, 64, 256, 64, 64};
  tensor_map(x, good, 256);
  EXPECT_THROW(tensor_map(x + 1, good, 64), Failure);
  for (int rows : {0, 257}) EXPECT_THROW(tensor_map(x, good, rows), Failure);
  auto refuse = [&](int rows, size_t batch, size_t row, size_t head, int channels = 64) {
    EXPECT_THROW(tensor_map(x, {1, rows, 1, channels, batch, row, head}, 64), Failure) << rows << " rows, " << batch;
  };
  // No rows; channels or a stride that are not multiples of 8; strides that are not multiples of each other.
  refuse(0, 256, 64, 64), refuse(4, 256, 64, 64, 60), refuse(4, 272, 68, 68), refuse(4, 72, 64, 64);
  refuse(4, 288, 72, 64), refuse(4, 256, 64, 40);
}

constexpr int first_line = __LINE__;
__global__ void go_wrong(const __grid_constant__ TensorMap map, int how, float* out) {
  DYNAMIC_SHARED(bf16, tile);
  __shared__ Mbarrier barrier, forgotten;
  int t = threadIdx.x;
  if (t == 0) mbarrier_init(barrier, 1);
  __syncthreads();
  if (how <= 3 && t == 0) {
    if (how == 1) mbarrier_arrive_expect(barrier, 64 * TILE_ROW_BYTES + 64);
    if (how >= 2) mbarrier_arrive_expect(barrier, 64 * TILE_ROW_BYTES);
    tile_load(tile, map, 0, 0, 0, 0, barrier);  // first_line + 10
  }
  if (how <= 1) mbarrier_wait(barrier, 0);                                       // first_line + 12
  if (how == 2) mbarrier_wait(barrier, 1);                                       // the wrong parity: passes at once
  if (how == 4) mbarrier_wait(barrier, 0);                                       // first_line + 14
  if (how == 5) mbarrier_arrive(barrier), mbarrier_arrive_expect(forgotten, 8);  // first_line + 15
  if (how == 6) mbarrier_arrive_expect(barrier, 16);                             // first_line + 16
  if (how == 7) tile_load(tile + 64, map, 0, 0, 0, 0, barrier);                  // first_line + 17
  if (how == 8) tile_load(tile + 64 * 64, map, 0, 0, 0, 0, barrier);
  if (how == 9 || how == 10) named_barrier(how == 9 ? 1 : 16, t < 64 ? 128 : 64);  // first_line + 19
  if (how == 11) named_barrier(3, 100);
  if (how == 12 && t != 99) named_barrier(2, 128);  // first_line + 21
  float d[8][4] = {};
  TileOperand rows = rows_operand(tile);
  if (how != 13) wgmma_fence();
  if (how >= 13 && how <= 16) wgmma(d, rows, rows + (how == 14 && t == 40 ? 2 : 0), false);  // first_line + 25
  out[blockIdx.x * WARPGROUP + t] = d[0][0];                                                 // too early
  if (how == 15) wgmma_commit();
  if (how == 17) wgmma(d, rows, rows + 8, false);  // first_line + 28
  if (how == 18 && t == 70) return;
  if (how == 18) wgmma_wait<0>(d);            // first_line + 30
  if (how == 19 && t < 64) wgmma_wait<0>(d);  // first_line + 31
  if (how == 19 && t >= 64) wgmma_wait<1>(d);
  if (how == 20 && t == 0) bulk_load(tile, out, 8, barrier);
  if (how == 21) wgmma(d, rows, rows + 64, false);
  if (how == 22 && t == 0) tile_store(map, tile, 0, -1, 0, 0);  // first_line + 35
}

TEST_F(Hopper, MistakesEndInErrorsThatNameKernelFileAndLine) {
  if (!on_cpu) GTEST_SKIP() << "a GPU would hang, or worse";
  auto line = [](int n) { return "hopper_test.cu:" + std::to_string(first_line + n); };
  struct {
    int how;
    std::vector<std::string> parts;
  } mistakes[] = {
      {0, {"deadlock", "128 threads wait at mbarrier_wait", line(12), "for 1 arrivals and -8192 bytes"}},
      {1, {"deadlock", "128 threads wait at mbarrier_wait", line(12), "for 0 arrivals and 64 bytes"}},
      {2, {"copies under way when the block ended", "tile_load", line(10)}},
      {3, {"copies under way when the block ended", "tile_load", line(10)}},
      {4, {"deadlock", "128 threads wait at mbarrier_wait", line(14), "for 1 arrivals and 0 bytes"}},
      {5, {"mbarrier", line(15)}},
      {6, {"mbarrier_arrive_expect", line(16), "more arrivals at the mbarrier than the 1 of a phase"}},
      {7, {"tile_load", line(17), "at byte 128 of 8192", "inside and at a multiple of 1024"}},
      {8, {"tile_load", "a tile of 8192 bytes at byte 8192 of 8192"}},
      {9, {"named_barrier", line(19), "barrier 1 of"}},
      {10, {"named_barrier", line(19), "numbers are 1 to 15"}},
      {11, {"threads a multiple of 32"}},
      {12, {"deadlock", "127 threads wait at named_barrier", line(21)}},
      {13, {"wgmma", line(25), "no wgmma_fence()"}},
      {14, {"divergent warpgroup", line(25)}},
      {15, {"1 products under way when the block ended", line(25)}},
      {16, {"1 products under way when the block ended", line(25)}},
      {17, {"wgmma", line(28), "begins in the middle", "of 8 rows"}},
      {18, {"deadlock", "127 threads wait at wgmma_wait", line(30)}},
      {19, {"divergent warpgroup", line(31)}},
      {20, {"bulk_load", "8 bytes", "multiples of 16"}},
      {21, {"wgmma", "an operand ends at byte 9216 of 8192"}},
      {22, {"tile_store", line(35), "begins before the tensor, at batch 0, row -1, head 0"}},
  };
  DeviceArray<bf16> x(64 * 64);
  DeviceArray<float> out(2 * WARPGROUP);
  TensorMap map = tensor_map(x, {1, 64, 1, 64, 64 * 64, 64, 64}, 64);
  for (CpuOrder order : {CpuOrder::forward, CpuOrder::reverse, CpuOrder::random})
    for (auto& mistake : mistakes) {
      set_cpu_order(order, 3);
      SCOPED_TRACE(format("mistake %d", mistake.how));
      std::string what =
          error_of([&] { LAUNCH(go_wrong, 2, WARPGROUP, 64 * TILE_ROW_BYTES, nullptr, map, mistake.how, out); });
      expect_has(what, mistake.parts);
      expect_has(what, {"kernel go_wrong, block"});
      LAUNCH(go_wrong, 2, WARPGROUP, 64 * TILE_ROW_BYTES, nullptr, map, 99, out);  // nothing is left behind
      for (float v : out.download()) EXPECT_EQ(v, 0);
    }
}

__global__ void read_early(float* out, bool wait) {
  DYNAMIC_SHARED(bf16, tile);
  for (int i = threadIdx.x; i < 64 * 64; i += blockDim.x) tile[i] = from_float<bf16>(1);
  async_proxy_fence();
  __syncthreads();
  float d[8][4] = {};
  wgmma_fence();
  wgmma(d, rows_operand(tile), rows_operand(tile), false);
  wgmma_commit();
  if (wait) wgmma_wait<0>(d);
  out[threadIdx.x] = d[7][3];
  if (!wait) wgmma_wait<0>(d);
}
__global__ void store_and_go(const __grid_constant__ TensorMap map, bool commit, bool wait) {
  DYNAMIC_SHARED(bf16, tile);
  tile[threadIdx.x] = from_float<bf16>(1);
  async_proxy_fence();
  __syncthreads();
  if (threadIdx.x != 0) return;
  tile_store(map, tile, 0, 0, 0, 0);
  if (commit) bulk_commit();
  if (wait) bulk_wait_read();
}
TEST_F(Hopper, ResultsAreMissingWithoutTheirWait) {
  if (!on_cpu) GTEST_SKIP() << "a GPU may be quick";
  DeviceArray<float> out(WARPGROUP);
  for (bool wait : {true, false}) {
    LAUNCH(read_early, 1, WARPGROUP, 64 * TILE_ROW_BYTES, nullptr, out, wait);
    for (float v : out.download()) EXPECT_TRUE(wait ? v == 16 : std::isnan(v)) << v;
  }
  for (int way = 0; way < 4; way++) {
    DeviceArray<bf16> x(64);
    LAUNCH(store_and_go, 1, 64, TILE_ROW_BYTES, nullptr, tensor_map(x, {1, 1, 1, 64, 64, 64, 64}, 1), way / 2, way % 2);
    for (bf16 v : x.download()) EXPECT_EQ(to_float(v) == 1, way == 3);
  }
}

}  // namespace
