// The backward pass for Hopper, as in tensor/kernels.cuh: a kernel for dK and dV, and one for dQ.
#pragma once
#include "attention/hopper/roles.cuh"
#include "attention/policy.cuh"

namespace {

struct BackwardArguments {
  const TensorMap &dqkv, &dout, &qkv;
  float* dz_sums;                     // [B, H, T] = of the held rows, with a bias
  float *learned_sums, *column_sums;  // = (BackwardWorkspace); the latter or nullptr
  const float* rows;                  // [ROW_VALUES][B, H, row_pitch]
  const KernelSettings& settings;
  const KernelShape& shape;
  const Preparation<bf16>& preparation;
};

// A consumer's work where keys and values are held, and queries and dO stream past: dk = sum of dz q, dv = sum of P dO.
// Scores are computed transposed, with keys as rows.
template <class Arguments, class Policy, class Mask, class Tile> struct HeldKeys : HopperPass<Arguments, Mask, Tile> {
  using Base = HopperPass<Arguments, Mask, Tile>;
  using Base::Base, Base::a, Base::stages, Base::turns, Base::mine, Base::tile, Base::block_row, Base::mask;
  static constexpr int N = Tile::N, ROW_VALUES = Policy::ROW_VALUES, STREAM = Tile::STREAM;

  bf16 *keys = Base::held(0), *values = keys + Tile::HELD_SIZE;
  Policy policy{a.settings, 0, tile.head % a.shape.H};
  float z[N][4], dp[N][4], dk[Tile::DIM / 8][4], dv[Tile::DIM / 8][4], dz_sums[1][2] = {};
  unsigned p[Tile::K][4], dz[Tile::K][4];  // as left operands

  static __device__ __forceinline__ void load(Stages<Tile>& stages, const Arguments& a, const RowTile& tile) {
    int H = a.shape.H, b = tile.head / H, h = tile.head % H, row = tile.tile * Tile::HELD;
    const float* rows = a.rows + size_t(tile.head) * a.shape.row_pitch;
    stages.fetch_held(tile.number, 0, a.qkv, b, row, H + h);
    stages.fetch_held(tile.number, 1, a.qkv, b, row, 2 * H + h);
    Mask mask(a.settings, a.shape.T, tile.head);
    auto query_tiles = mask.template query_tiles<STREAM>(row, Tile::HELD);
    for (int i0 = query_tiles.begin; i0 < query_tiles.stop; i0 = query_tiles.next(i0)) {
      stages.fetch(a.qkv, b, i0, h, mask.bias_rows(i0), rows + i0, a.shape.row_values_pitch());
      stages.fetch(a.dout, b, i0, h);
    }
  }

  // p and dz = of the queries from i0 on, whose tile and dO's are the next two. Ends the turn in which it begins.
  __device__ __forceinline__ void find_gradients(int i0) {
    // Scores and dP
    const bf16 *queries = stages.await(stages.streamed), *douts = stages.await(stages.streamed + 1);
    this->template begin<true>(z, stages.streamed, i0);
    const float* row_values = stages.row_values(stages.streamed);
    wgmma_fence(z);
    start_scores<Tile, Mask::ADDS>(z, keys, queries);
    wgmma_commit();
    start_scores<Tile>(dp, values, douts);
    wgmma_commit();
    turns.end();
    wgmma_wait<1>(z);
    this->template hide<true>(z, i0);

    // P, in place of z, while dP is summed
    if constexpr (Policy::FROM_WEIGHT) {
      for_columns(row_values, [&](int n, const float(&row)[2][ROW_VALUES + 1]) {
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
          for (int c = 0; c < 2; c++) z[n][2 * half + c] = policy.weight(z[n][2 * half + c], row[c]);
      });
      compute_before_wait(z);
    }
    wgmma_wait<0>(z, dp);

    // P and dz
    for_columns(row_values, [&](int n, const float(&row)[2][ROW_VALUES + 1]) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        int key = block_row + mine.row(half);
        float pair_p[2], pair_dz[2], j = position(mask, key, key), first = position(mask, key, i0 + mine.column(0));
#pragma unroll
        for (int c = 0; c < 2; c++)
          finish_gradient(policy, z[n][2 * half + c], dp[n][2 * half + c], row[c], pair_p[c], pair_dz[c],
                          mine.column(first, n, c), j);
        keep_weights(p[n / 2], n, half, pair_p[0], pair_p[1]);
        keep_weights(dz[n / 2], n, half, pair_dz[0], pair_dz[1]);
        if constexpr (Mask::ADDS) dz_sums[0][half] += pair_dz[0] + pair_dz[1];
      }
    });
  }
  // f(n, row): for each n the row values of columns 8 n + 2 quad and the next.
  template <class F> __device__ __forceinline__ void for_columns(const float* row_values, F f) const {
#pragma unroll
    for (int n = 0; n < N; n++) {
      float row[2][ROW_VALUES + 1];
#pragma unroll
      for (int r = 0; r < ROW_VALUES; r++)
#pragma unroll
        for (int c = 0; c < 2; c++) row[c][r] = row_values[r * STREAM + mine.column(n) + c];
      f(n, row);
    }
  }

  // Starts the sums of the same tiles for dv and dk, without a commit. The caller waits for them and frees the tiles.
  __device__ __forceinline__ void start_sums_of_step() {
    start_sums<Tile>(dv, p, stages.slot(stages.streamed + 1));
    start_sums<Tile>(dk, dz, stages.slot(stages.streamed));
  }

  // Results, one after the other through the buffer of the consumer's values: products of the other consumer may still
  // read all keys. The caller frees the buffers.
  __device__ __forceinline__ void store_dv_and_dk() {
    Base::store_gradients(2, values, dv);
    Base::undo(1, HeldRows<Tile>{keys}, dk);
    Base::store_gradients(1, values, dk);
  }
};

// A kernel for dK and dV: from the diagonal on.
template <class Policy, class Mask, class Tile> struct BackwardKeys : HeldKeys<BackwardArguments, Policy, Mask, Tile> {
  using Base = HeldKeys<BackwardArguments, Policy, Mask, Tile>;
  using Base::Base, Base::stages, Base::turns, Base::mine, Base::tile, Base::block_row, Base::mask, Base::STREAM,
      Base::p, Base::dz, Base::dk, Base::dv;

  __device__ __forceinline__ void compute() {
    auto query_tiles = mask.template query_tiles<STREAM>(block_row, Tile::HELD);
    int own_row = block_row + mine.consumer * BOX;
    int own_begin = mask.template query_tiles<STREAM>(own_row, BOX).begin;  // earlier queries see none of its keys
    this->template hold<true>();
    clear(dk), clear(dv);
    stages.await_held(tile.number);

    // Tiles that only the other consumer uses
#pragma unroll 1
    for (int i0 = query_tiles.begin; i0 < min(own_begin, query_tiles.stop); i0 += STREAM, stages.streamed += 2)
      turns.skip(), stages.skip_pair(stages.streamed);

    turns.begin();
    for (int i0 = own_begin; i0 < query_tiles.stop; i0 += STREAM, stages.streamed += 2) step(i0);
    turns.end();
    Base::store_dv_and_dk();
    stages.free_held(tile.number);
    Base::store_sums_of_dz(Base::dz_sums);
  }

  __device__ __forceinline__ void step(int i0) {
    Base::find_gradients(i0);
    warp_sync();  // all lanes have read the row values, whose slot is freed below
    turns.begin();
    wgmma_fence(dk, dv, p, dz);
    Base::start_sums_of_step();
    wgmma_commit();
    wgmma_wait<0>(dk, dv, p, dz);
    stages.free(stages.streamed), stages.free(stages.streamed + 1);
  }
};

template <class Policy, class Mask, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, 1)
    attention_backward_keys_hopper_kernel(const __grid_constant__ TensorMap dqkv,
                                          const __grid_constant__ TensorMap dout, const __grid_constant__ TensorMap qkv,
                                          float* dz_sums, float* learned_sums, float* column_sums, const float* rows,
                                          KernelSettings settings, KernelShape shape, Preparation<bf16> preparation) {
  DYNAMIC_SHARED(bf16, shared);
  run_roles<BackwardKeys<Policy, Mask, Tile>>(
      shared,
      BackwardArguments{dqkv, dout, qkv, dz_sums, learned_sums, column_sums, rows, settings, shape, preparation});
}

// Queries and dO are held, keys and values stream past, up to the diagonal: dq = sum of dz k.
template <class Policy, class Mask, class Tile> struct BackwardQueries : HopperPass<BackwardArguments, Mask, Tile> {
  using Base = HopperPass<BackwardArguments, Mask, Tile>;
  using Base::Base, Base::a, Base::stages, Base::turns, Base::mine, Base::tile, Base::block_row, Base::mask;
  static constexpr int N = Tile::N, ROW_VALUES = Policy::ROW_VALUES, STREAM = Tile::STREAM;

  bf16 *queries = Base::held(0), *douts = queries + Tile::HELD_SIZE;
  Policy policy{a.settings, 0, tile.head % a.shape.H};
  float z[N][4], dp[N][4], dq[Tile::DIM / 8][4], row[2][ROW_VALUES + 1], dz_sums[1][2] = {};
  float learned[1][2][Policy::LEARNED + 1] = {};
  unsigned dz[Tile::K][4];  // as left operands

  static __device__ __forceinline__ void load(Stages<Tile>& stages, const BackwardArguments& a, const RowTile& tile) {
    int b = tile.head / a.shape.H, h = tile.head % a.shape.H, row = tile.tile * Tile::HELD;
    stages.fetch_held(tile.number, 0, a.qkv, b, row, h);
    stages.fetch_held(tile.number, 1, a.dout, b, row, h);
    Base::load_keys_and_values(stages, a, tile);
  }

  __device__ __forceinline__ void compute() {
    auto key_tiles = mask.template key_tiles<STREAM>(block_row, Tile::HELD);
    int steps = key_tiles.end(),
        own_steps = mask.template key_tiles<STREAM>(block_row, (mine.consumer + 1) * BOX).end();
    for (int half = 0; half < 2; half++) {
      int i = block_row + mine.row(half);
      for (int n = 0; n < ROW_VALUES; n++)
        row[half][n] =
            i < a.shape.T ? a.rows[n * a.shape.row_values_pitch() + size_t(tile.head) * a.shape.row_pitch + i] : 0;
    }
    this->template hold<false>();
    clear(dq);
    stages.await_held(tile.number);

    turns.begin();
    for (int n = 0; n < own_steps; n++, stages.streamed += 2) step(key_tiles.row(n));
    turns.end();

    // Tiles that only the other consumer uses
#pragma unroll 1
    for (int n = own_steps; n < steps; n++, stages.streamed += 2) turns.skip(), stages.skip_pair(stages.streamed);
    store();
  }

  __device__ __forceinline__ void step(int j0) {
    // Scores and dP
    const bf16 *keys = stages.await(stages.streamed), *values = stages.await(stages.streamed + 1);
    this->template begin<false>(z, stages.streamed, j0);
    wgmma_fence(z);
    start_scores<Tile, Mask::ADDS>(z, queries, keys);
    wgmma_commit();
    start_scores<Tile>(dp, douts, values);
    wgmma_commit();
    turns.end();
    wgmma_wait<1>(z);
    this->template hide<false>(z, j0);

    // P, in place of z, while dP is summed
    if constexpr (Policy::FROM_WEIGHT) {
      for_elements<N>(
          [&](int n, int half, int c) { z[n][2 * half + c] = policy.weight(z[n][2 * half + c], row[half]); });
      compute_before_wait(z);
    }
    wgmma_wait<0>(z, dp);
    stages.free(stages.streamed + 1);

    // dz, in place of dP
    for_elements<N>([&](int n, int half, int c) {
      int query = block_row + mine.row(half);
      float p, i = position(mask, query, query), j = mine.column(position(mask, query, j0 + mine.column(0)), n, c);
      if constexpr (Policy::LEARNED > 0)
        policy.add_learned(learned[0][half], z[n][2 * half + c], dp[n][2 * half + c], row[half], i, j);
      finish_gradient(policy, z[n][2 * half + c], dp[n][2 * half + c], row[half], p, dp[n][2 * half + c], i, j);
      if constexpr (Mask::ADDS) dz_sums[0][half] += dp[n][2 * half + c];
    });
    pack_weights(dz, dp);

    // Sums for dq
    turns.begin();
    wgmma_fence(dq, dz);
    start_sums<Tile>(dq, dz, keys);
    wgmma_commit();
    wgmma_wait<0>(dq, dz);
    stages.free(stages.streamed);
  }

  // The result, through the queries' buffer
  __device__ __forceinline__ void store() {
    Base::undo(0, HeldRows<Tile>{queries}, dq);
    // Behind the last position c means nothing and may make weights infinite: there dq is not a number
    if constexpr (Mask::ADDS)
      for_elements<Tile::DIM / 8>([&](int n, int half, int c) {
        if (block_row + mine.row(half) >= a.shape.T) dq[n][2 * half + c] = 0;
      });
    Base::store_gradients(0, queries, dq);
    stages.free_held(tile.number);
    Base::store_sums_of_dz(dz_sums);
    store_learned_sums<Policy>(a.learned_sums + size_t(tile.head) * a.shape.T, a.shape.rows(), block_row, a.shape.T,
                               learned, mine);
  }
};

template <class Policy, class Mask, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, 1)
    attention_backward_queries_hopper_kernel(const __grid_constant__ TensorMap dqkv,
                                             const __grid_constant__ TensorMap dout,
                                             const __grid_constant__ TensorMap qkv, float* dz_sums, float* learned_sums,
                                             float* column_sums, const float* rows, KernelSettings settings,
                                             KernelShape shape, Preparation<bf16> preparation) {
  DYNAMIC_SHARED(bf16, shared);
  run_roles<BackwardQueries<Policy, Mask, Tile>>(
      shared,
      BackwardArguments{dqkv, dout, qkv, dz_sums, learned_sums, column_sums, rows, settings, shape, preparation});
}

}  // namespace
