// The backward pass for Hopper as one kernel, with 5 products: those of backward.cuh make 7, because each computes the
// scores for itself. A block takes a whole head, and its key tiles in ascending order. For each, as in the kernel for
// dK and dV, queries and dO stream past; beside that, a step later, dQ is multiplied: consumers hand their dz to each
// other in shared memory, and each has dQ of 64 queries for all 128 keys. A query's dQ is complete after the key tile
// of its own rows. Until then its sums lie in global memory, where they stay in the L2 if the sums of all blocks fit,
// and a thread adds to the same floats in every key tile. So bits do not depend on the order of threads.
#pragma once
#include "attention/families.h"
#include "attention/hopper/backward.cuh"

namespace {

struct HeadArguments : BackwardArguments {
  float* dq_sums;        // [blocks][tiles of HELD queries][DIM / 8][consumers' threads][4]
  const bf16* qkv_rows;  // qkv, for prepared queries
};

template <class Policy, class Mask, class Tile> struct BackwardHeads : HeldKeys<HeadArguments, Policy, Mask, Tile> {
  using Base = HeldKeys<HeadArguments, Policy, Mask, Tile>;
  using Base::Base, Base::a, Base::stages, Base::turns, Base::mine, Base::tile, Base::block_row, Base::mask,
      Base::STREAM, Base::keys, Base::values, Base::p, Base::dz, Base::dk, Base::dv;
  static constexpr bool WHOLE_HEADS = true;
  // Of 128 streamed queries each consumer has dQ of 64. Of 64 one has all: the first, if they are the first half of the
  // 128 queries that share a tile of sums.
  static constexpr bool ONE_HAS_DQ = STREAM == BOX;
  static constexpr int PITCH = Tile::CONSUMERS * WARPGROUP * 4;  // floats from four of a thread to its next four
  static_assert(Tile::DIM == 64 && Tile::HELD == 128 && Tile::DZ_BUFFERS == 2);  // dq_sums_bytes()

  float dq[Tile::DIM / 8][4];

  __device__ __forceinline__ void compute() {
    int stop = mask.template query_tiles<STREAM>(block_row, Tile::HELD).stop, last = (stop - 1) / STREAM * STREAM;
    clear(dk), clear(dv);
    stages.await_held(tile.number);
    turns.begin();
    step<true>(block_row);
    for (int i0 = block_row + STREAM; i0 < stop; i0 += STREAM) step<false>(i0);
    start_dq(step_number() - 1, last);
    turns.end();
    finish_dq(step_number() - 1, last);
    store();
  }

  // dQ of a step is multiplied in the next one: by then the other consumer has written its dz, and nothing waits.
  template <bool FIRST> __device__ __forceinline__ void step(int i0) {
    Base::find_gradients(i0);
    stages.await_dz_empty(step_number());
#pragma unroll
    for (int k = 0; k < Tile::K; k++)
      store_operand(stages.dz(step_number()) + k / 4 * Tile::HELD * TILE_COLUMNS, mine.first, k % 4 * 16, dz[k]);
    stages.dz_written(step_number());

    turns.begin();
    if constexpr (!FIRST) start_dq(step_number() - 1, i0 - STREAM);
    wgmma_fence(dk, dv, p, dz);
    Base::start_sums_of_step();
    wgmma_commit();
    if constexpr (!FIRST) finish_dq<1>(step_number() - 1, i0 - STREAM);
    wgmma_wait<0>(dk, dv, p, dz);
    stages.free(stages.streamed), stages.free(stages.streamed + 1);
    stages.streamed += 2;
  }

  __device__ __forceinline__ int step_number() const { return stages.streamed / 2; }
  __device__ __forceinline__ bool has_dq(int i0) const { return !ONE_HAS_DQ || i0 / BOX % 2 == mine.consumer; }

  // Starts dq = dz^T K of step `number`, with queries from i0 on, and commits it.
  __device__ __forceinline__ void start_dq(int number, int i0) {
    const bf16* gradients = stages.await_dz(number) + (ONE_HAS_DQ ? 0 : mine.consumer * Tile::HELD * TILE_COLUMNS);
    if (!has_dq(i0)) return;
    const bf16* all_keys = keys - mine.consumer * BOX * TILE_COLUMNS;
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < Tile::HELD / 16; k++)
      wgmma_columns(dq, SharedTile<Tile::HELD>{gradients}.columns(k), SharedTile<Tile::HELD>{all_keys}.columns(k),
                    k > 0);
    wgmma_commit();
  }
  // Waits for it, while the newest GROUPS groups of products may run, and adds it to the head's sums.
  template <int GROUPS = 0> __device__ __forceinline__ void finish_dq(int number, int i0) {
    wgmma_wait<GROUPS>(dq);
    stages.free_dz(number);
    if (!has_dq(i0)) return;
    float* sums = dq_sums(i0);
    if (block_row == mask.template key_tiles<Tile::HELD>(i0, STREAM).begin) {  // the first of these queries
#pragma unroll
      for (int n = 0; n < Tile::DIM / 8; n++)
        store16(sums + n * PITCH, Pack<float>{dq[n][0], dq[n][1], dq[n][2], dq[n][3]});
    } else {
#pragma unroll
      for (int n = 0; n < Tile::DIM / 8; n++) add_in_l2(sums + n * PITCH, dq[n]);
    }
  }
  // The thread's sums of dq for the 64 queries that its consumer has, of the tile of HELD queries around i0.
  __device__ __forceinline__ float* dq_sums(int i0) const {
    unsigned tiles = (anew(a.shape.T) + Tile::HELD - 1) / Tile::HELD, tile = anew(blockIdx.x) * tiles + i0 / Tile::HELD;
    return a.dq_sums + (tile * (Tile::DIM / 8 * PITCH) + (mine.thread - WARPGROUP) * 4);
  }

  // Results: dv, dk, and dq of the queries in the same rows, through the same buffer. Beyond the last query dq may be
  // sums that nobody wrote.
  __device__ __forceinline__ void store() {
    const float* sums = dq_sums(block_row);
#pragma unroll
    for (int n = 0; n < Tile::DIM / 8; n++) {
      Pack<float> sum = load_from_l2(sums + n * PITCH);
      for (int i = 0; i < 4; i++) dq[n][i] = sum[i];
    }
    Base::store_dv_and_dk();
    int b = tile.head / a.shape.H, h = tile.head % a.shape.H;
    const bf16* queries = a.qkv_rows + size_t(b) * a.shape.T * a.shape.qkv_stride + h * a.shape.D;
    auto prepared = [&](const ConsumerThread& mine, int n, int half) {
      return queries + min(block_row + mine.row(half), a.shape.T - 1) * a.shape.qkv_stride + mine.column(n);
    };
    Base::undo(0, prepared, dq);
    Base::store_gradients(0, values, dq);
    stages.free_held(tile.number);
  }
};

template <class Policy, class Mask, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, 1)
    attention_backward_heads_hopper_kernel(const __grid_constant__ TensorMap dqkv,
                                           const __grid_constant__ TensorMap dout,
                                           const __grid_constant__ TensorMap qkv, float* column_sums, float* dq_sums,
                                           const bf16* qkv_rows, const float* rows, KernelSettings settings,
                                           KernelShape shape, Preparation<bf16> preparation) {
  DYNAMIC_SHARED(bf16, shared);
  BackwardArguments common{dqkv, dout, qkv, nullptr, nullptr, column_sums, rows, settings, shape, preparation};
  run_roles<BackwardHeads<Policy, Mask, Tile>>(shared, HeadArguments{common, dq_sums, qkv_rows});
}

}  // namespace
