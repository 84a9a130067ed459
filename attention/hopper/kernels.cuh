// Attention for Hopper (sm_90a): every kind, heads of up to 128 channels in bf16, as in tensor/kernels.cuh (the same
// policies, the same 7 products in the backward, no atomics), but with wgmma instead of mma.sync, the copy engine
// instead of cp.async, and a producer instead of barriers of the block. While one consumer works on its scores, the
// other's products run.
#pragma once
#include "attention/hopper/tiles.cuh"
#include "attention/policies.cuh"

namespace {

// ---- forward: queries are held, keys and values stream past

// A consumer thread's part of 64 queries: a quarter of the columns of two rows, called halves (Fragment). Scores
// become weights in z, and packed weights are left operands of the products with the values.
template <class Policy, class Tile> struct QueryRows {
  static constexpr int N = Tile::N, DIM = Tile::DIM, OUTPUTS = Policy::OUTPUTS;
  // Computes the weights of a step beside the products of the step before; two outputs leave few registers for it.
  static constexpr bool OVERLAP = OUTPUTS == 1 || (Tile::WAYS & OVERLAP_ALL && Tile::SLOT_SIZE == BOX * TILE_COLUMNS);
  float z[N][4], outputs[OUTPUTS][DIM / 8][4] = {};
  unsigned weights[OUTPUTS][Tile::K][4];
  float sums[2][Policy::SUMS + 1], constants[2][Policy::CONSTANTS + 1], factor[2];

  template <class Mask>
  __device__ __forceinline__ void start_sweep(const Policy& policy, const Mask& mask, int sweep,
                                              const ConsumerThread& mine, int block_row) {
    for (int half = 0; half < 2; half++)
      policy.start_sweep(sweep, mask.keys(block_row + mine.row(half)), sums[half], mine.quad == 0);
  }
  __device__ __forceinline__ void first_sweep(const Policy& policy, const float (&z)[N][4], int step) {
    float row[2][2 * N];
    for_elements<N>([&](int n, int half, int c) { row[half][2 * n + c] = z[n][2 * half + c]; });
#pragma unroll
    for (int half = 0; half < 2; half++) policy.first_sweep_tile(row[half], (step + 1) * 2 * N, sums[half]);
  }
  template <class Mask>
  __device__ __forceinline__ void finish_first_sweep(const Policy& policy, const Mask& mask, const ConsumerThread& mine,
                                                     int block_row) {
    for (int half = 0; half < 2; half++) {
      merge_quad(policy, 0, sums[half]);
      policy.row_constants(mask.keys(block_row + mine.row(half)), sums[half], constants[half]);
    }
  }
  __device__ __forceinline__ void clear_outputs() {
    for (int output = 0; output < OUTPUTS; output++) clear(outputs[output]);
  }
  // With OVERLAP z = the weights (two outputs: both of a score as bf16 in the place of a float), which pack() moves to
  // `weights` when the products have read those of the step before; otherwise `weights` at once. factor = the number by
  // which rescale_outputs() multiplies the outputs so far.
  template <int KEYS> __device__ __forceinline__ void weigh(const Policy& policy) {
    if constexpr (Policy::RESCALES) {
      float top[2] = {z[0][0], z[0][2]}, other[2] = {z[0][1], z[0][3]};  // two chains for each row
#pragma unroll
      for (int n = 1; n < KEYS / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          top[half] = fmaxf(top[half], z[n][2 * half]);
          other[half] = fmaxf(other[half], z[n][2 * half + 1]);
        }
      for (int half = 0; half < 2; half++) top[half] = fmaxf(top[half], other[half]);
      quad_max(top);
      for (int half = 0; half < 2; half++) factor[half] = policy.rescale(sums[half], top[half]);
    }
    weigh_row<KEYS>(policy, 0), weigh_row<KEYS>(policy, 1);  // a loop over both is too much for nvcc 12.4 to unroll
  }
  template <int KEYS> __device__ __forceinline__ void weigh_row(const Policy& policy, int half) {
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
      float low[OUTPUTS], high[OUTPUTS];
      policy.weigh(z[n][2 * half], constants[half], sums[half], low);
      policy.weigh(z[n][2 * half + 1], constants[half], sums[half], high);
      if constexpr (OVERLAP && OUTPUTS == 1) {
        z[n][2 * half] = low[0], z[n][2 * half + 1] = high[0];
      } else if constexpr (OVERLAP) {
        z[n][2 * half] = __builtin_bit_cast(float, pack_pair<bf16>(low[0], low[1]));
        z[n][2 * half + 1] = __builtin_bit_cast(float, pack_pair<bf16>(high[0], high[1]));
      } else {
        for (int output = 0; output < OUTPUTS; output++)
          keep_weights<bf16>(weights[output][n / 2], n, half, low[output], high[output]);
      }
    }
  }
  template <int KEYS> __device__ __forceinline__ void pack() {
    if constexpr (OVERLAP && OUTPUTS == 1) {
      pack_weights(first_rows<KEYS / 16>(weights[0]), first_rows<KEYS / 8>(z));
    } else if constexpr (OVERLAP) {
#pragma unroll
      for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          unsigned low = __builtin_bit_cast(unsigned, z[n][2 * half]);
          unsigned high = __builtin_bit_cast(unsigned, z[n][2 * half + 1]);
          weights[0][n / 2][half + n % 2 * 2] = (low & 0xffff) | high << 16;
          weights[1][n / 2][half + n % 2 * 2] = low >> 16 | (high & 0xffff0000);
        }
    }
  }
  __device__ __forceinline__ void scale(int output, const float (&by)[2]) {
    for_elements<DIM / 8>([&](int n, int half, int c) { outputs[output][n][2 * half + c] *= by[half]; });
  }
  __device__ __forceinline__ void rescale_outputs() {
    if constexpr (Policy::RESCALES) {
      for (int output = 0; output < OUTPUTS; output++) scale(output, factor);
    }
  }
  // Starts outputs += weights x values, as a group of products.
  template <int KEYS> __device__ __forceinline__ void start_outputs(const bf16* values) {
    for (int output = 0; output < OUTPUTS; output++)
      start_sums<Tile>(outputs[output], first_rows<KEYS / 16>(weights[output]), values);
    wgmma_commit();
  }
};

// The streamed tiles of a row tile: first, for policies of two sweeps, keys 0, 1, 2 ...; then keys 0, values 0, keys 1,
// values 1 ... The weights of a step are computed while the outputs of the step before are summed.
template <class Policy, class Mask, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, 1)
    attention_forward_hopper_kernel(const __grid_constant__ TensorMap qkv, const __grid_constant__ TensorMap out,
                                    float* stats, const bf16* sink, KernelSettings settings, Shape shape, int B) {
  using Rows = QueryRows<Policy, Tile>;
  constexpr int DIM = Tile::DIM, STREAM = Tile::STREAM, OUTPUTS = Policy::OUTPUTS;
  constexpr bool TWO_SWEEPS = Policy::SWEEPS == 2, OVERLAP = Rows::OVERLAP;
  DYNAMIC_SHARED(bf16, shared);
  Stages<Tile> stages(shared);
  int streamed = 0;                                                // tiles before those of this sweep
  auto keys_tile = [&](int step) { return streamed + 2 * step; };  // in the last sweep
  auto values_tile = [&](int step) { return streamed + 2 * step + 1; };

  if (produce<Tile, Mask>(shape, B, [&](int head, int tile, int number) {
        int b = head / shape.H, h = head % shape.H, block_row = tile * Tile::HELD;
        auto key_tiles = Mask(settings, shape.T, head).template key_tiles<STREAM>(block_row, Tile::HELD);
        int steps = key_tiles.end();
        stages.fetch_held(number, 0, qkv, b, block_row, h);
        for (int step = 0; step < TWO_SWEEPS * steps; step++)
          stages.fetch(streamed++, qkv, b, key_tiles.row(step), shape.H + h);
        for (int step = 0; step < steps; step++) {
          stages.fetch(streamed++, qkv, b, key_tiles.row(step), shape.H + h);
          stages.fetch(streamed++, qkv, b, key_tiles.row(step), 2 * shape.H + h);
        }
      }))
    return;

  ConsumerThread mine;
  Turns<Tile> turns{stages.turns, mine.consumer};
  Rows rows;
  if constexpr (Tile::WAYS & OVERLAP_ALL) clear(rows.z);  // nvcc copies it before a product overwrites it
  for_row_tiles<Tile, Mask>(shape, B, [&](int head, int tile, int number) {
    // The row tile: steps of the block, of which this consumer takes the first ones
    Mask mask(settings, shape.T, head);
    int block_row = tile * Tile::HELD;
    auto key_tiles = mask.template key_tiles<STREAM>(block_row, Tile::HELD);
    int steps = key_tiles.end(),
        own_steps = mask.template key_tiles<STREAM>(block_row, (mine.consumer + 1) * BOX).end();
    bf16* queries = stages.held(number, 0) + mine.consumer * BOX * TILE_COLUMNS;
    Policy policy(settings, sink ? to_float(sink[head % shape.H]) : settings.sink);
    using Scores = float[Tile::N][4];
    auto start = [&](Scores& z, int keys_number) {
      const bf16* keys = stages.await(keys_number);
      turns.begin();
      wgmma_fence(z);
      start_scores<Tile>(z, queries, keys);
      wgmma_commit();
      turns.end();
    };
    auto finish = [&](Scores& z, int keys_number) {
      wgmma_wait<0>(z);
      stages.free(keys_number);
    };
    auto mask_step = [&]<int M>(float(&z)[M][4], int step) {
      mask_scores<false>(one_group(z), mask, block_row, key_tiles.row(step), mine);
    };
    stages.await_held(number);

    // First of two sweeps
    if constexpr (TWO_SWEEPS) {
      rows.start_sweep(policy, mask, 0, mine, block_row);
      auto look = [&](Scores& z, int step) {
        mask_step(z, step);
        rows.first_sweep(policy, z, step);
      };
      int step = 0;
      if constexpr (Tile::WAYS & OVERLAP_ALL) {
        // A look at one step beside the scores of the next, in pairs: ptxas makes all products wait for each other if some
        // are under way at a branch back.
        Scores other = {};
        for (; step + 1 < own_steps; step += 2) {
          start(rows.z, streamed + step), start(other, streamed + step + 1);
          wgmma_wait<1>(rows.z);
          stages.free(streamed + step);
          look(rows.z, step);
          compute_before_wait(rows.sums);
          finish(other, streamed + step + 1);
          look(other, step + 1);
        }
      }
      for (; step < own_steps; step++) {
        start(rows.z, streamed + step);
        finish(rows.z, streamed + step);
        look(rows.z, step);
      }
#pragma unroll 1
      for (int step = own_steps; step < steps; step++) turns.skip(), stages.skip(streamed + step);
      rows.finish_first_sweep(policy, mask, mine, block_row);
      streamed += steps;
    }

    // Weights of the first keys
    rows.start_sweep(policy, mask, Policy::SWEEPS - 1, mine, block_row);
    rows.clear_outputs();
    start(rows.z, keys_tile(0));
    finish(rows.z, keys_tile(0));
    mask_step(rows.z, 0);
    rows.template weigh<STREAM>(policy);
    rows.template pack<STREAM>();

    // Scores of a step and weights of its first KEYS keys, beside the outputs of the step before
    auto score_step = [&]<int KEYS>(int step) {
      const bf16 *values = stages.await(values_tile(step - 1)), *keys = stages.await(keys_tile(step));
      turns.begin();
      wgmma_fence(rows.z, rows.outputs, rows.weights);
      start_scores<Tile>(rows.z, queries, keys);
      wgmma_commit();
      rows.template start_outputs<STREAM>(values);
      turns.end();

      // Weights, while the outputs are summed
      if constexpr (OVERLAP) wgmma_wait<1>(rows.z);
      else wgmma_wait<0>(rows.z, rows.outputs, rows.weights);
      stages.free(keys_tile(step));
      mask_step(first_rows<KEYS / 8>(rows.z), step);
      rows.template weigh<KEYS>(policy);
      if constexpr (OVERLAP) {
        if constexpr (!(Tile::WAYS & WITHOUT_FENCE)) compute_before_wait(rows.z);
        wgmma_wait<0>(rows.outputs, rows.weights);
      }
      stages.free(values_tile(step - 1));
      rows.rescale_outputs();
      rows.template pack<KEYS>();
    };
    // The first consumer's queries see only half of the tile that begins with them. (Scores of that half alone would
    // save more, but ptxas makes products of different sizes wait for each other.)
    bool half_last = STREAM == Tile::HELD && mine.consumer == 0 && own_steps > 1;
    for (int step = 1; step < own_steps - half_last; step++) score_step.template operator()<STREAM>(step);
    if (half_last) score_step.template operator()<BOX>(own_steps - 1);

    // Outputs of the last step
    int last_values_tile = keys_tile(own_steps) - 1;
    const bf16* values = stages.await(last_values_tile);
    auto last_outputs = [&]<int KEYS>() {
      turns.begin();
      wgmma_fence(rows.outputs, rows.weights);
      rows.template start_outputs<KEYS>(values);
      turns.end();
      wgmma_wait<0>(rows.outputs, rows.weights);
    };
    if (half_last) last_outputs.template operator()<BOX>();
    else last_outputs.template operator()<STREAM>();
    stages.free(last_values_tile);

    // Tiles that only the other consumer uses
#pragma unroll 1
    for (int step = own_steps; step < steps; step++) turns.skip(), stages.skip_pair(keys_tile(step));
    streamed += 2 * steps;

    // End of the rows: factors and what is saved
    size_t count = shape.rows(B), first = size_t(head) * shape.T;
    float last[OUTPUTS][2];
    for (int half = 0; half < 2; half++) {
      int i = block_row + mine.row(half);
      merge_quad(policy, Policy::SWEEPS - 1, rows.sums[half]);
      float f[OUTPUTS], saved[Policy::SAVED + 1];
      policy.finish(mask.keys(i), rows.constants[half], rows.sums[half], f, saved);
      for (int output = 0; output < OUTPUTS; output++) last[output][half] = f[output];
      if (stats && mine.quad == 0 && i < shape.T)
        for (int n = 0; n < Policy::SAVED; n++) stats[n * count + first + i] = saved[n];
    }
    for (int output = 0; output < OUTPUTS; output++) rows.scale(output, last[output]);

    // The second output, for the backward pass
    if constexpr (OUTPUTS > 1) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        int i = block_row + mine.row(half);
        float* to = stats + Policy::SAVED * count + (first + i) * shape.D + 2 * mine.quad;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
          if (stats && i < shape.T && 8 * n < shape.D)
            *reinterpret_cast<float2*>(to + 8 * n) =
                make_float2(rows.outputs[1][n][2 * half], rows.outputs[1][n][2 * half + 1]);
      }
    }

    // The output, through the queries' buffer
    store_rows<Tile>(out, head / shape.H, block_row + mine.consumer * BOX, head % shape.H, queries, rows.outputs[0]);
    stages.free_held(number);
  });
}

// ---- backward

// Keys and values are held, queries and dO stream past, from the diagonal on: dk = sum of dz q, dv = sum of P dO.
// Scores are computed transposed, with keys as rows.
template <class Policy, class Mask, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, 1)
    attention_backward_keys_hopper_kernel(const __grid_constant__ TensorMap dqkv,
                                          const __grid_constant__ TensorMap dout, const __grid_constant__ TensorMap qkv,
                                          float* dz_by_key, const float* rows, KernelSettings settings, Shape shape,
                                          int B, Preparation<bf16> preparation) {
  constexpr int N = Tile::N, ROW_VALUES = Policy::ROW_VALUES, STREAM = Tile::STREAM;
  DYNAMIC_SHARED(bf16, shared);
  Stages<Tile> stages(shared);
  int streamed = 0;  // tiles before this step's: queries, then dO

  if (produce<Tile, Mask>(shape, B, [&](int head, int tile, int number) {
        int b = head / shape.H, h = head % shape.H;
        stages.fetch_held(number, 0, qkv, b, tile * Tile::HELD, shape.H + h);
        stages.fetch_held(number, 1, qkv, b, tile * Tile::HELD, 2 * shape.H + h);
        auto query_tiles = Mask(settings, shape.T, head).template query_tiles<STREAM>(tile * Tile::HELD, Tile::HELD);
        for (int i0 = query_tiles.begin; i0 < query_tiles.stop; i0 = query_tiles.next(i0), streamed += 2) {
          stages.fetch(streamed, qkv, b, i0, h, rows + size_t(head) * shape.row_pitch + i0, shape.row_values(B));
          stages.fetch(streamed + 1, dout, b, i0, h);
        }
      }))
    return;

  ConsumerThread mine;
  Turns<Tile> turns{stages.turns, mine.consumer};
  Policy policy(settings, 0);
  float z[N][4], dp[N][4], dk[Tile::DIM / 8][4], dv[Tile::DIM / 8][4];
  unsigned p[Tile::K][4], dz[Tile::K][4];  // as left operands
  for_row_tiles<Tile, Mask>(shape, B, [&](int head, int tile, int number) {
    // Held rows
    Mask mask(settings, shape.T, head);
    int block_row = tile * Tile::HELD;
    auto query_tiles = mask.template query_tiles<STREAM>(block_row, Tile::HELD);
    int own_row = block_row + mine.consumer * BOX;
    int own_begin = mask.template query_tiles<STREAM>(own_row, BOX).begin;  // earlier queries see none of its keys
    bf16 *keys = stages.held(number, 0) + mine.consumer * BOX * TILE_COLUMNS, *values = keys + Tile::HELD_SIZE;
    float dz_sums[1][2] = {};
    clear(dk), clear(dv);
    stages.await_held(number);

    // Tiles that only the other consumer uses
#pragma unroll 1
    for (int i0 = query_tiles.begin; i0 < min(own_begin, query_tiles.stop); i0 += STREAM, streamed += 2)
      turns.skip(), stages.skip_pair(streamed);

    turns.begin();
    for (int i0 = own_begin; i0 < query_tiles.stop; i0 += STREAM, streamed += 2) {
      // Scores and dP
      const bf16 *queries = stages.await(streamed), *douts = stages.await(streamed + 1);
      const float* row_values = stages.row_values(streamed);
      wgmma_fence();
      start_scores<Tile>(z, keys, queries);
      wgmma_commit();
      start_scores<Tile>(dp, values, douts);
      wgmma_commit();
      turns.end();
      wgmma_wait<1>(z);

      mask_scores<true>(one_group(z), mask, block_row, i0, mine);

      // P, in place of z, while dP is summed
      auto read_rows = [&](int n, float(&row)[2][ROW_VALUES + 1]) {
#pragma unroll
        for (int r = 0; r < ROW_VALUES; r++)
#pragma unroll
          for (int c = 0; c < 2; c++) row[c][r] = row_values[r * STREAM + mine.column(n) + c];
      };
      if constexpr (Policy::FROM_WEIGHT) {
#pragma unroll
        for (int n = 0; n < N; n++) {
          float row[2][ROW_VALUES + 1];
          read_rows(n, row);
#pragma unroll
          for (int half = 0; half < 2; half++)
#pragma unroll
            for (int c = 0; c < 2; c++) z[n][2 * half + c] = policy.weight(z[n][2 * half + c], row[c]);
        }
        compute_before_wait(z);
      }
      wgmma_wait<0>(z, dp);

      // P and dz
#pragma unroll
      for (int n = 0; n < N; n++) {
        float row[2][ROW_VALUES + 1];
        read_rows(n, row);
#pragma unroll
        for (int half = 0; half < 2; half++) {
          float pair_p[2], pair_dz[2];
#pragma unroll
          for (int c = 0; c < 2; c++)
            finish_gradient(policy, z[n][2 * half + c], dp[n][2 * half + c], row[c], pair_p[c], pair_dz[c]);
          keep_weights<bf16>(p[n / 2], n, half, pair_p[0], pair_p[1]);
          keep_weights<bf16>(dz[n / 2], n, half, pair_dz[0], pair_dz[1]);
          if constexpr (Mask::ADDS) dz_sums[0][half] += pair_dz[0] + pair_dz[1];
        }
      }

      // Sums for dv and dk
      turns.begin();
      wgmma_fence(dk, dv, p, dz);
      start_sums<Tile>(dv, p, douts);
      start_sums<Tile>(dk, dz, queries);
      wgmma_commit();
      wgmma_wait<0>(dk, dv, p, dz);
      stages.free(streamed), stages.free(streamed + 1);
    }
    turns.end();

    // Results, through the buffers of keys and values
    int b = head / shape.H, h = head % shape.H, row = block_row + mine.consumer * BOX;
    store_rows<Tile>(dqkv, b, row, 2 * shape.H + h, values, dv);
    undo_preparation<Tile>(dk, preparation, keys, 1, b, h, block_row, shape);
    store_rows<Tile>(dqkv, b, row, shape.H + h, keys, dk);
    stages.free_held(number);
    if constexpr (Mask::ADDS)
      if (mask.adds()) store_dz_sums(dz_by_key + size_t(head) * shape.T, block_row, shape.T, dz_sums, mine);
  });
}

// Queries and dO are held, keys and values stream past, up to the diagonal: dq = sum of dz k.
template <class Policy, class Mask, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, 1)
    attention_backward_queries_hopper_kernel(const __grid_constant__ TensorMap dqkv,
                                             const __grid_constant__ TensorMap dout,
                                             const __grid_constant__ TensorMap qkv, float* dz_by_query,
                                             const float* rows, KernelSettings settings, Shape shape, int B,
                                             Preparation<bf16> preparation) {
  constexpr int N = Tile::N, ROW_VALUES = Policy::ROW_VALUES, STREAM = Tile::STREAM;
  DYNAMIC_SHARED(bf16, shared);
  Stages<Tile> stages(shared);
  int streamed = 0;  // tiles before this step's: keys, then values

  if (produce<Tile, Mask>(shape, B, [&](int head, int tile, int number) {
        int b = head / shape.H, h = head % shape.H, block_row = tile * Tile::HELD;
        auto key_tiles = Mask(settings, shape.T, head).template key_tiles<STREAM>(block_row, Tile::HELD);
        int steps = key_tiles.end();
        stages.fetch_held(number, 0, qkv, b, block_row, h);
        stages.fetch_held(number, 1, dout, b, block_row, h);
        for (int step = 0; step < steps; step++, streamed += 2) {
          stages.fetch(streamed, qkv, b, key_tiles.row(step), shape.H + h);
          stages.fetch(streamed + 1, qkv, b, key_tiles.row(step), 2 * shape.H + h);
        }
      }))
    return;

  ConsumerThread mine;
  Turns<Tile> turns{stages.turns, mine.consumer};
  Policy policy(settings, 0);
  float z[N][4], dp[N][4], dq[Tile::DIM / 8][4];
  unsigned dz[Tile::K][4];  // as left operands
  for_row_tiles<Tile, Mask>(shape, B, [&](int head, int tile, int number) {
    // Held rows and their values
    Mask mask(settings, shape.T, head);
    int block_row = tile * Tile::HELD;
    auto key_tiles = mask.template key_tiles<STREAM>(block_row, Tile::HELD);
    int steps = key_tiles.end(),
        own_steps = mask.template key_tiles<STREAM>(block_row, (mine.consumer + 1) * BOX).end();
    bf16 *queries = stages.held(number, 0) + mine.consumer * BOX * TILE_COLUMNS, *douts = queries + Tile::HELD_SIZE;
    float row[2][ROW_VALUES + 1];
    for (int half = 0; half < 2; half++) {
      int i = block_row + mine.row(half);
      for (int n = 0; n < ROW_VALUES; n++)
        row[half][n] = i < shape.T ? rows[n * shape.row_values(B) + size_t(head) * shape.row_pitch + i] : 0;
    }
    float dz_sums[1][2] = {};
    clear(dq);
    stages.await_held(number);

    turns.begin();
    for (int step = 0; step < own_steps; step++, streamed += 2) {
      // Scores and dP
      const bf16 *keys = stages.await(streamed), *values = stages.await(streamed + 1);
      wgmma_fence();
      start_scores<Tile>(z, queries, keys);
      wgmma_commit();
      start_scores<Tile>(dp, douts, values);
      wgmma_commit();
      turns.end();
      wgmma_wait<1>(z);
      mask_scores<false>(one_group(z), mask, block_row, key_tiles.row(step), mine);

      // P, in place of z, while dP is summed
      if constexpr (Policy::FROM_WEIGHT) {
        for_elements<N>(
            [&](int n, int half, int c) { z[n][2 * half + c] = policy.weight(z[n][2 * half + c], row[half]); });
        compute_before_wait(z);
      }
      wgmma_wait<0>(z, dp);
      stages.free(streamed + 1);

      // dz, in place of dP
      for_elements<N>([&](int n, int half, int c) {
        float p;
        finish_gradient(policy, z[n][2 * half + c], dp[n][2 * half + c], row[half], p, dp[n][2 * half + c]);
        if constexpr (Mask::ADDS) dz_sums[0][half] += dp[n][2 * half + c];
      });
      pack_weights(dz, dp);

      // Sums for dq
      turns.begin();
      wgmma_fence(dq, dz);
      start_sums<Tile>(dq, dz, keys);
      wgmma_commit();
      wgmma_wait<0>(dq, dz);
      stages.free(streamed);
    }
    turns.end();

    // Tiles that only the other consumer uses
#pragma unroll 1
    for (int step = own_steps; step < steps; step++, streamed += 2) turns.skip(), stages.skip_pair(streamed);

    // The result, through the queries' buffer
    int b = head / shape.H, h = head % shape.H;
    undo_preparation<Tile>(dq, preparation, queries, 0, b, h, block_row, shape);
    store_rows<Tile>(dqkv, b, block_row + mine.consumer * BOX, h, queries, dq);
    stages.free_held(number);
    if constexpr (Mask::ADDS)
      if (mask.adds()) store_dz_sums(dz_by_query + size_t(head) * shape.T, block_row, shape.T, dz_sums, mine);
  });
}

// ---- launchers

// q, k and v are 3 H heads of one tensor.
inline TensorMap qkv_map(const bf16* x, const Shape& s, int B) {
  return tensor_map(x, {B, s.T, 3 * s.H, s.D, s.T * s.qkv_stride, s.qkv_stride, size_t(s.D)}, BOX);
}
inline TensorMap out_map(const bf16* x, const Shape& s, int B) {
  size_t A = size_t(s.H) * s.D;
  return tensor_map(x, {B, s.T, s.H, s.D, s.T * A, A, size_t(s.D)}, BOX);
}

// A block takes a whole multiprocessor. While another kernel holds some, as NCCL's do beside the backward pass, blocks
// without a place wait until others have ended, and the time doubles: so `spare` multiprocessors are left free. (Blocks
// could take their tiles from a counter instead, but that costs an atomic and a broadcast within the block for every
// tile, always.)
template <class Tile> dim3 hopper_grid(const Shape& s, int B, int spare) {
  int tiles = (s.T + Tile::HELD - 1) / Tile::HELD;
  int most = std::max(1, device_properties().multiProcessorCount - spare);
  return dim3(std::min(most, (tiles * s.H * B + 1) / 2));
}

template <class Policy, int DIM, int WAYS = 0>
using ForwardTile = HopperTile<DIM, hopper_forward_size(DIM, Policy::SWEEPS), 1, 0, WAYS>;
// The sums of dz that WindowOrBias takes leave registers for fewer queries, unless P is made in place of z.
template <class Policy, int DIM, int WAYS = 0, class Mask = Causal>
using KeysTile = HopperTile<DIM, hopper_keys_size(DIM, Policy::HEAVY || (Mask::ADDS && !Policy::FROM_WEIGHT)), 2,
                            Policy::ROW_VALUES, WAYS>;
template <int DIM, int WAYS = 0> using QueriesTile = HopperTile<DIM, hopper_queries_size(DIM), 2, 0, WAYS>;

// Launchers of a kernel with any tile, for ForwardTile and the like and for what tests and benchmarks try.
template <class Policy, class Tile, class Mask = Causal> void hopper_forward_by(const ForwardCall<bf16>& c) {
  Shape shape = shape_of<bf16>(c.call, {c.out, c.qkv});
  int B = c.call.shape.B;
  LAUNCH((attention_forward_hopper_kernel<Policy, Mask, Tile>),
         hopper_grid<Tile>(shape, B, c.call.spare_multiprocessors), dim3(Tile::THREADS), Tile::SHARED_BYTES,
         c.call.stream, qkv_map(c.qkv, shape, B), out_map(c.out, shape, B), c.stats, c.sink, c.settings, shape, B);
}
inline Shape backward_shape(const BackwardCall<bf16>& c) {
  Shape shape = shape_of<bf16>(c.call, {c.dqkv, c.dout, c.out, c.qkv});
  shape.row_pitch = workspace_rows(c.call.shape.T);
  return shape;
}
// The workspace has the row values already.
template <class Policy, class Tile, class Mask = Causal> void hopper_keys_by(const BackwardCall<bf16>& c) {
  Shape shape = backward_shape(c);
  int B = c.call.shape.B;
  LAUNCH((attention_backward_keys_hopper_kernel<Policy, Mask, Tile>),
         hopper_grid<Tile>(shape, B, c.call.spare_multiprocessors), dim3(Tile::THREADS), Tile::SHARED_BYTES,
         c.call.stream, qkv_map(c.dqkv, shape, B), out_map(c.dout, shape, B), qkv_map(c.qkv, shape, B),
         c.dz_sums.by_key, c.workspace, c.settings, shape, B, c.preparation);
}
template <class Policy, class Tile, class Mask = Causal> void hopper_queries_by(const BackwardCall<bf16>& c) {
  Shape shape = backward_shape(c);
  int B = c.call.shape.B;
  LAUNCH((attention_backward_queries_hopper_kernel<Policy, Mask, Tile>),
         hopper_grid<Tile>(shape, B, c.call.spare_multiprocessors), dim3(Tile::THREADS), Tile::SHARED_BYTES,
         c.call.stream, qkv_map(c.dqkv, shape, B), out_map(c.dout, shape, B), qkv_map(c.qkv, shape, B),
         c.dz_sums.by_query, c.workspace, c.settings, shape, B, c.preparation);
}

template <class Policy, class Mask, class F> void with_hopper_width(int D, F f) {
  if constexpr (hopper_widest(Policy::HEAVY, Mask::ADDS) == 128) with_width<64, 128>(D, f);
  else with_width<64>(D, f);
}

// Floor: as tensor_forward's, 2 T^2 D FLOPs per head at the tensor cores' rate (lssar 4, evaluation 3).
template <class Policy, class Mask = Causal, int WAYS = 0> void hopper_forward(const ForwardCall<bf16>& c) {
  with_hopper_width<Policy, Mask>(
      c.call.shape.D, [&]<int DIM>() { hopper_forward_by<Policy, ForwardTile<Policy, DIM, WAYS>, Mask>(c); });
}

// Floor: 5 T^2 D FLOPs per head (FlashAttention's count); these kernels do 7.
template <class Policy, class Mask = Causal, int WAYS = 0> void hopper_backward(const BackwardCall<bf16>& c) {
  row_values<bf16, Policy, Mask>(c, backward_shape(c));
  with_hopper_width<Policy, Mask>(c.call.shape.D, [&]<int DIM>() {
    hopper_keys_by<Policy, KeysTile<Policy, DIM, WAYS, Mask>, Mask>(c);
    hopper_queries_by<Policy, QueriesTile<DIM, WAYS>, Mask>(c);
  });
}

// ---- the family

// The copy engine needs heads that begin at multiples of 16 bytes, rows that are whole heads apart, and arrays at
// multiples of 128 bytes (CUDA Programming Guide 4.11.2; the driver's own header asks for 16).
template <class Policy> bool hopper_supports(const AttentionCall<bf16>& call, Arrays arrays) {
  int D = call.shape.D;
  bool aligned = D % 8 == 0 && call.row_stride() % D == 0;
  for (const void* array : arrays) aligned = aligned && reinterpret_cast<size_t>(array) % 128 == 0;
  return aligned && D <= hopper_widest(Policy::HEAVY, call.window_or_bias());
}

template <Kind KIND> bool add_hopper() {
  using Policies = PolicyOf<KIND, FastMaths>;
  Family<bf16> f = {.name = "hopper", .order = 1};
  f.suits_device = [] { return device_properties().major == 9; };
  f.supports = hopper_supports<typename Policies::Usual>;
  f.saved = Policies::Usual::SAVED, f.vectors = Policies::Usual::OUTPUTS - 1;
  f.forward = [](const ForwardCall<bf16>& c) {
    with_policy_and_mask<Policies>(c, [&]<class Policy, class Mask>() { hopper_forward<Policy, Mask>(c); });
  };
  f.evaluate = [](const ForwardCall<bf16>& c) {
    with_policy_and_mask<Policies>(
        c, [&]<class Policy, class Mask>() { hopper_forward<typename Policy::Evaluation, Mask>(c); });
  };
  f.backward = [](const BackwardCall<bf16>& c) {
    with_policy_and_mask<Policies>(c, [&]<class Policy, class Mask>() { hopper_backward<Policy, Mask>(c); });
  };
  f.undoes_preparation = true;
  return add_family(KIND, f);
}

}  // namespace
