// Attention for Hopper (sm_90a): every kind, heads of up to 128 channels in bf16, as in tensor_kernels.cuh (the same
// policies, the same 7 products in the backward, no atomics), with wgmma for mma.sync, the copy engine for cp.async, a
// producer for barriers of the block. While one consumer works on its scores the other's products run.
#pragma once
#include "attention/hopper_tiles.cuh"
#include "attention/policies.cuh"

namespace {

// ---- forward: queries are held, keys and values stream past
//
// A row tile's streamed tiles: for policies of two sweeps first keys 0, 1, 2 ..., then keys 0, values 0, keys 1,
// values 1 ... The weights of one step are made while the sums of the step before run.
template <class Policy, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, 1)
    attention_forward_hopper_kernel(const __grid_constant__ TensorMap qkv, const __grid_constant__ TensorMap out,
                                    float* stats, const bf16* sink, PolicySettings settings, Shape shape, int B) {
  constexpr int N = Tile::N, DIM = Tile::DIM, OUTPUTS = Policy::OUTPUTS, LOOKS = Policy::SWEEPS - 1;
  constexpr bool OVERLAP = OUTPUTS == 1;  // two sums leave no registers for it
  DYNAMIC_SHARED(bf16, shared);
  Stages<Tile> stages(shared);
  int streamed = 0;  // tiles before this row tile's

  if (threadIdx.x < WARPGROUP) {
    registers_shrink<Tile::PRODUCER_REGISTERS>();
    if (HopperFragment().warp != 0) return;
    for_row_tiles<Tile>(shape, B, [&](int head, int tile, int number) {
      int b = head / shape.H, h = head % shape.H, block_row = tile * Tile::HELD;
      int steps = steps_to<Tile>(block_row + Tile::HELD, shape.T);
      stages.fetch_held(number, 0, qkv, b, block_row, h);
      for (int step = 0; step < LOOKS * steps; step++)
        stages.fetch(streamed++, qkv, b, step * Tile::STREAM, shape.H + h);
      for (int step = 0; step < steps; step++) {
        stages.fetch(streamed++, qkv, b, step * Tile::STREAM, shape.H + h);
        stages.fetch(streamed++, qkv, b, step * Tile::STREAM, 2 * shape.H + h);
      }
    });
    return;
  }

  registers_grow<Tile::CONSUMER_REGISTERS>();
  HopperFragment mine;
  float z[N][4], out_sums[OUTPUTS][DIM / 8][4] = {};
  unsigned weights[OUTPUTS][Tile::K][4];
  float sums[2][Policy::SUMS + 1], constants[2][Policy::CONSTANTS + 1];
  for_row_tiles<Tile>(shape, B, [&](int head, int tile, int number) {
    int block_row = tile * Tile::HELD, steps = steps_to<Tile>(block_row + Tile::HELD, shape.T);
    int own_steps = steps_to<Tile>(block_row + (mine.consumer + 1) * BOX, shape.T);
    bf16* queries = stages.held(number, 0) + mine.consumer * BOX * TILE_COLUMNS;
    Policy policy(settings, sink ? to_float(sink[head % shape.H]) : settings.sink);
    auto start = [&] {
      for (int half = 0; half < 2; half++) policy.start_sweep(sums[half], mine.quad == 0);
    };
    auto scores_of = [&](int keys_number) {  // z =
      const bf16* keys = stages.await(keys_number);
      wgmma_fence(z);
      start_scores<Tile>(z, queries, keys);
      wgmma_commit();
      wgmma_wait<0>(z);
      stages.free(keys_number);
    };
    // z = weights, to be packed when those of the step before have been used; factor: for the sums made so far
    float factor[2];
    auto weigh = [&](int step) {
      mask_later<Tile>(z, step * Tile::STREAM, block_row, mine);
      if constexpr (Policy::RESCALES) {
        float top[2] = {-INFINITY, -INFINITY};
        for_elements<N>([&](int n, int half, int c) { top[half] = fmaxf(top[half], z[n][2 * half + c]); });
        quad_max(top);
        for (int half = 0; half < 2; half++) factor[half] = policy.rescale(sums[half], top[half]);
      }
#pragma unroll
      for (int half = 0; half < 2; half++)
#pragma unroll
        for (int n = 0; n < N; n++) {
          float low[OUTPUTS], high[OUTPUTS];
          policy.weigh(z[n][2 * half], constants[half], sums[half], low);
          policy.weigh(z[n][2 * half + 1], constants[half], sums[half], high);
          if constexpr (OVERLAP) {
            z[n][2 * half] = low[0], z[n][2 * half + 1] = high[0];
          } else {
            for (int output = 0; output < OUTPUTS; output++)
              keep_weights(weights[output], n, half, low[output], high[output]);
          }
        }
    };
    auto pack = [&] {
      if constexpr (OVERLAP) pack_weights(weights[0], z);
    };
    auto scale = [&](int output, const float (&by)[2]) {
      for_elements<DIM / 8>([&](int n, int half, int c) { out_sums[output][n][2 * half + c] *= by[half]; });
    };

    stages.await_held(number);
    if constexpr (LOOKS > 0) {
      start();
      for (int step = 0; step < own_steps; step++) {
        scores_of(streamed + step);
        mask_later<Tile>(z, step * Tile::STREAM, block_row, mine);
        for_elements<N>([&](int n, int half, int c) { policy.first_sweep(z[n][2 * half + c], sums[half]); });
      }
#pragma unroll 1
      for (int step = own_steps; step < steps; step++) stages.skip(streamed + step);
      for (int half = 0; half < 2; half++) {
        merge_quad(policy, 0, sums[half]);
        policy.row_constants(block_row + mine.row(half) + 1, sums[half], constants[half]);
      }
      streamed += steps;
    }

    start();
    for (int output = 0; output < OUTPUTS; output++)
      for_elements<DIM / 8>([&](int n, int half, int c) { out_sums[output][n][2 * half + c] = 0; });
    if (mine.consumer == 1) stagger<Tile>();
    scores_of(streamed);
    if (mine.consumer == 0) stagger<Tile>();
    weigh(0);
    pack();
    auto start_output = [&](const bf16* values) {
      for (int output = 0; output < OUTPUTS; output++) start_sums<Tile>(out_sums[output], weights[output], values);
      wgmma_commit();
    };
    for (int step = 1; step < own_steps; step++) {
      int keys_number = streamed + 2 * step, values_number = keys_number - 1;
      const bf16 *values = stages.await(values_number), *keys = stages.await(keys_number);
      wgmma_fence(z, out_sums, weights);
      start_scores<Tile>(z, queries, keys);
      wgmma_commit();
      start_output(values);
      if constexpr (OVERLAP) wgmma_wait<1>(z);
      else wgmma_wait<0>(z, out_sums, weights);
      stages.free(keys_number);
      weigh(step);
      if constexpr (OVERLAP) {
        if constexpr (Tile::COMPUTE_BEFORE_WAIT) compute_before_wait(z);
        wgmma_wait<0>(out_sums, weights);
      }
      stages.free(values_number);
      if constexpr (Policy::RESCALES) {
        for (int output = 0; output < OUTPUTS; output++) scale(output, factor);
      }
      pack();
    }
    const bf16* values = stages.await(streamed + 2 * own_steps - 1);
    wgmma_fence(out_sums, weights);
    start_output(values);
    wgmma_wait<0>(out_sums, weights);
    stages.free(streamed + 2 * own_steps - 1);
#pragma unroll 1
    for (int n = 2 * own_steps; n < 2 * steps; n++) stages.skip(streamed + n);
    streamed += 2 * steps;

    size_t rows = shape.rows(B), first = size_t(head) * shape.T;
    float last[OUTPUTS][2];
    for (int half = 0; half < 2; half++) {
      int i = block_row + mine.row(half);
      merge_quad(policy, Policy::SWEEPS - 1, sums[half]);
      float f[OUTPUTS], saved[Policy::SAVED + 1];
      policy.finish(i + 1, constants[half], sums[half], f, saved);
      for (int output = 0; output < OUTPUTS; output++) last[output][half] = f[output];
      if (stats && mine.quad == 0 && i < shape.T)
        for (int n = 0; n < Policy::SAVED; n++) stats[n * rows + first + i] = saved[n];
    }
    for (int output = 0; output < OUTPUTS; output++) scale(output, last[output]);
    if constexpr (OUTPUTS > 1) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        int i = block_row + mine.row(half);
        float* to = stats + Policy::SAVED * rows + (first + i) * shape.D + 2 * mine.quad;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
          if (stats && i < shape.T && 8 * n < shape.D)
            *reinterpret_cast<float2*>(to + 8 * n) =
                make_float2(out_sums[1][n][2 * half], out_sums[1][n][2 * half + 1]);
      }
    }
    store_rows<Tile>(out, head / shape.H, block_row + mine.consumer * BOX, head % shape.H, queries, out_sums[0]);
    if (threadIdx.x % WARPGROUP == 0) mbarrier_arrive(stages.held_empty[number % 2]);
  });
}

// ---- backward

// Keys and values are held, queries and dO stream past, from the diagonal on: dk = sum of dz q, dv = sum of P dO.
// Scores are made transposed, keys as rows.
template <class Policy, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, 1)
    attention_backward_keys_hopper_kernel(const __grid_constant__ TensorMap dqkv,
                                          const __grid_constant__ TensorMap dout,
                                          const __grid_constant__ TensorMap qkv, const float* rows,
                                          PolicySettings settings, Shape shape, int B) {
  constexpr int N = Tile::N, ROW_VALUES = Policy::ROW_VALUES, STREAM = Tile::STREAM;
  DYNAMIC_SHARED(bf16, shared);
  Stages<Tile> stages(shared);
  int steps = steps_to<Tile>(shape.T, shape.T);
  int streamed = 0;  // tiles before this key tile's

  if (threadIdx.x < WARPGROUP) {
    registers_shrink<Tile::PRODUCER_REGISTERS>();
    if (HopperFragment().warp != 0) return;
    for_row_tiles<Tile>(shape, B, [&](int head, int tile, int number) {
      int b = head / shape.H, h = head % shape.H;
      stages.fetch_held(number, 0, qkv, b, tile * Tile::HELD, shape.H + h);
      stages.fetch_held(number, 1, qkv, b, tile * Tile::HELD, 2 * shape.H + h);
      for (int step = tile * Tile::HELD / STREAM; step < steps; step++) {
        stages.fetch(streamed, qkv, b, step * STREAM, h, rows + size_t(head) * shape.row_pitch + step * STREAM,
                     shape.row_values(B));
        stages.fetch(streamed + 1, dout, b, step * STREAM, h);
        streamed += 2;
      }
    });
    return;
  }

  registers_grow<Tile::CONSUMER_REGISTERS>();
  HopperFragment mine;
  Policy policy(settings, 0);
  float z[N][4], dp[N][4], dk[Tile::DIM / 8][4], dv[Tile::DIM / 8][4];
  unsigned p[Tile::K][4], dz[Tile::K][4];
  for_row_tiles<Tile>(shape, B, [&](int head, int tile, int number) {
    int block_row = tile * Tile::HELD, first = block_row / STREAM, j0 = block_row + mine.first;
    int own_first = (block_row + mine.consumer * BOX) / STREAM;  // what comes before sees none of these keys
    bf16 *keys = stages.held(number, 0) + mine.consumer * BOX * TILE_COLUMNS, *values = keys + Tile::HELD_SIZE;
    for_elements<Tile::DIM / 8>([&](int n, int half, int c) { dk[n][2 * half + c] = dv[n][2 * half + c] = 0; });
    stages.await_held(number);
#pragma unroll 1
    for (int step = first; step < min(own_first, steps); step++, streamed += 2)
      stages.skip(streamed), stages.skip(streamed + 1);
    if (mine.consumer == 1) stagger<Tile>();
    for (int i0 = own_first * STREAM; i0 < shape.T; i0 += STREAM, streamed += 2) {
      const bf16 *queries = stages.await(streamed), *douts = stages.await(streamed + 1);
      const float* row_values = stages.row_values(streamed);
      wgmma_fence();
      start_scores<Tile>(z, keys, queries);
      start_scores<Tile>(dp, values, douts);
      wgmma_commit();
      wgmma_wait<0>(z, dp);
      if (mine.consumer == 0 && i0 == block_row) stagger<Tile>();
      if (i0 < j0 + 15)  // on the diagonal
        for_elements<N>([&](int n, int half, int c) {
          if (block_row + mine.row(half) > i0 + mine.column(n) + c) z[n][2 * half + c] = -INFINITY;
        });
#pragma unroll
      for (int n = 0; n < N; n++) {
        float row[2][ROW_VALUES + 1];
#pragma unroll
        for (int r = 0; r < ROW_VALUES; r++)
#pragma unroll
          for (int c = 0; c < 2; c++) row[c][r] = row_values[r * STREAM + mine.column(n) + c];
#pragma unroll
        for (int half = 0; half < 2; half++) {
          float pair_p[2], pair_dz[2];
#pragma unroll
          for (int c = 0; c < 2; c++)
            policy.grad(z[n][2 * half + c], dp[n][2 * half + c], row[c], pair_p[c], pair_dz[c]);
          keep_weights(p, n, half, pair_p[0], pair_p[1]);
          keep_weights(dz, n, half, pair_dz[0], pair_dz[1]);
        }
      }
      wgmma_fence(dk, dv, p, dz);
      start_sums<Tile>(dv, p, douts);
      start_sums<Tile>(dk, dz, queries);
      wgmma_commit();
      wgmma_wait<0>(dk, dv, p, dz);
      stages.free(streamed), stages.free(streamed + 1);
    }
    int b = head / shape.H, h = head % shape.H, row = block_row + mine.consumer * BOX;
    store_rows<Tile>(dqkv, b, row, shape.H + h, keys, dk);
    store_rows<Tile>(dqkv, b, row, 2 * shape.H + h, values, dv);
    if (threadIdx.x % WARPGROUP == 0) mbarrier_arrive(stages.held_empty[number % 2]);
  });
}

// Queries and dO are held, keys and values stream past, up to the diagonal: dq = sum of dz k.
template <class Policy, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, 1)
    attention_backward_queries_hopper_kernel(const __grid_constant__ TensorMap dqkv,
                                             const __grid_constant__ TensorMap dout,
                                             const __grid_constant__ TensorMap qkv, const float* rows,
                                             PolicySettings settings, Shape shape, int B) {
  constexpr int N = Tile::N, ROW_VALUES = Policy::ROW_VALUES, STREAM = Tile::STREAM;
  DYNAMIC_SHARED(bf16, shared);
  Stages<Tile> stages(shared);
  int streamed = 0;  // tiles before this query tile's

  if (threadIdx.x < WARPGROUP) {
    registers_shrink<Tile::PRODUCER_REGISTERS>();
    if (HopperFragment().warp != 0) return;
    for_row_tiles<Tile>(shape, B, [&](int head, int tile, int number) {
      int b = head / shape.H, h = head % shape.H, block_row = tile * Tile::HELD;
      int steps = steps_to<Tile>(block_row + Tile::HELD, shape.T);
      stages.fetch_held(number, 0, qkv, b, block_row, h);
      stages.fetch_held(number, 1, dout, b, block_row, h);
      for (int step = 0; step < steps; step++, streamed += 2) {
        stages.fetch(streamed, qkv, b, step * STREAM, shape.H + h);
        stages.fetch(streamed + 1, qkv, b, step * STREAM, 2 * shape.H + h);
      }
    });
    return;
  }

  registers_grow<Tile::CONSUMER_REGISTERS>();
  HopperFragment mine;
  Policy policy(settings, 0);
  float z[N][4], dp[N][4], dq[Tile::DIM / 8][4];
  unsigned dz[Tile::K][4];
  for_row_tiles<Tile>(shape, B, [&](int head, int tile, int number) {
    int block_row = tile * Tile::HELD, steps = steps_to<Tile>(block_row + Tile::HELD, shape.T);
    int own_steps = steps_to<Tile>(block_row + (mine.consumer + 1) * BOX, shape.T);
    bf16 *queries = stages.held(number, 0) + mine.consumer * BOX * TILE_COLUMNS, *douts = queries + Tile::HELD_SIZE;
    float row[2][ROW_VALUES + 1];
    for (int half = 0; half < 2; half++) {
      int i = block_row + mine.row(half);
      for (int n = 0; n < ROW_VALUES; n++)
        row[half][n] = i < shape.T ? rows[n * shape.row_values(B) + size_t(head) * shape.row_pitch + i] : 0;
    }
    for_elements<Tile::DIM / 8>([&](int n, int half, int c) { dq[n][2 * half + c] = 0; });
    stages.await_held(number);
    if (mine.consumer == 1) stagger<Tile>();
    for (int step = 0; step < own_steps; step++, streamed += 2) {
      const bf16 *keys = stages.await(streamed), *values = stages.await(streamed + 1);
      wgmma_fence();
      start_scores<Tile>(z, queries, keys);
      start_scores<Tile>(dp, douts, values);
      wgmma_commit();
      wgmma_wait<0>(z, dp);
      if (mine.consumer == 0 && step == 0) stagger<Tile>();
      stages.free(streamed + 1);
      mask_later<Tile>(z, step * STREAM, block_row, mine);
      for_elements<N>([&](int n, int half, int c) {
        float p;
        policy.grad(z[n][2 * half + c], dp[n][2 * half + c], row[half], p, dp[n][2 * half + c]);
      });
      pack_weights(dz, dp);
      wgmma_fence(dq, dz);
      start_sums<Tile>(dq, dz, keys);
      wgmma_commit();
      wgmma_wait<0>(dq, dz);
      stages.free(streamed);
    }
#pragma unroll 1
    for (int step = own_steps; step < steps; step++, streamed += 2) stages.skip(streamed), stages.skip(streamed + 1);
    store_rows<Tile>(dqkv, head / shape.H, block_row + mine.consumer * BOX, head % shape.H, queries, dq);
    if (threadIdx.x % WARPGROUP == 0) mbarrier_arrive(stages.held_empty[number % 2]);
  });
}

// ---- launchers

// q, k, v are 3 H heads of one tensor.
inline TensorMap qkv_map(const bf16* x, const Shape& s, int B) {
  return tensor_map(x, {B, s.T, 3 * s.H, s.D, s.T * s.qkv_stride, s.qkv_stride, size_t(s.D)}, BOX);
}
inline TensorMap out_map(const bf16* x, const Shape& s, int B) {
  size_t A = size_t(s.H) * s.D;
  return tensor_map(x, {B, s.T, s.H, s.D, s.T * A, A, size_t(s.D)}, BOX);
}

// A block takes a whole multiprocessor. While another kernel holds some, as NCCL's do beside the backward pass, blocks
// without a place wait until others have ended, and the time doubles: so `spare` multiprocessors are left free. (Blocks
// could take their tiles from a counter instead: an atomic and a broadcast within the block for every tile, always.)
template <class Tile>
dim3 hopper_grid(const Shape& s, int B, int spare) {
  int tiles = (s.T + Tile::HELD - 1) / Tile::HELD;
  int most = std::max(1, device_properties().multiProcessorCount - spare);
  return dim3(std::min(most, (tiles * s.H * B + 1) / 2));
}

template <class Policy, int DIM>
using ForwardTile = HopperTile<DIM, hopper_forward_size(DIM, Policy::OUTPUTS), 1>;
template <class Policy, int DIM>
using KeysTile = HopperTile<DIM, hopper_keys_size(DIM), 2, Policy::ROW_VALUES>;
template <int DIM>
using QueriesTile = HopperTile<DIM, hopper_queries_size(DIM), 2>;

// Floor: as tensor_forward's, 2 T^2 D FLOPs per head at the tensor cores' rate (lssar 4, evaluation 3).
template <class Policy>
void hopper_forward(const ForwardCall<bf16>& c) {
  Shape shape = shape_of<bf16>(c.shape, c.qkv_stride, {c.out, c.qkv});
  int B = c.shape.B;
  with_width<64, 128>(c.shape.D, [&]<int DIM>() {
    using Tile = ForwardTile<Policy, DIM>;
    LAUNCH((attention_forward_hopper_kernel<Policy, Tile>), hopper_grid<Tile>(shape, B, c.spare_multiprocessors),
           dim3(Tile::THREADS), Tile::SHARED_BYTES, c.stream, qkv_map(c.qkv, shape, B), out_map(c.out, shape, B),
           c.stats, c.sink, c.settings, shape, B);
  });
}

// Floor: 5 T^2 D FLOPs per head (FlashAttention's count); 7 are done.
template <class Policy>
void hopper_backward(const BackwardCall<bf16>& c) {
  Shape shape = shape_of<bf16>(c.shape, c.qkv_stride, {c.dqkv, c.dout, c.out, c.qkv});
  int B = c.shape.B;
  shape.row_pitch = workspace_rows(c.shape.T);
  prepare_backward_rows<bf16, Policy>(c, shape);
  TensorMap dqkv = qkv_map(c.dqkv, shape, B), dout = out_map(c.dout, shape, B), qkv = qkv_map(c.qkv, shape, B);
  with_width<64, 128>(c.shape.D, [&]<int DIM>() {
    using Keys = KeysTile<Policy, DIM>;
    LAUNCH((attention_backward_keys_hopper_kernel<Policy, Keys>), hopper_grid<Keys>(shape, B, c.spare_multiprocessors),
           dim3(Keys::THREADS), Keys::SHARED_BYTES, c.stream, dqkv, dout, qkv, c.workspace, c.settings, shape, B);
    using Queries = QueriesTile<DIM>;
    LAUNCH((attention_backward_queries_hopper_kernel<Policy, Queries>),
           hopper_grid<Queries>(shape, B, c.spare_multiprocessors), dim3(Queries::THREADS), Queries::SHARED_BYTES,
           c.stream, dqkv, dout, qkv, c.workspace, c.settings, shape, B);
  });
}

template <class Policy>
bool enter_hopper_kernels(Kind kind, PowerClass power = PowerClass::usual) {
  KindKernels& k = kernels_of(kind, power);
  k.hopper_D = 128;
  k.hopper_bf16 = {hopper_forward<Policy>, hopper_forward<typename Policy::Evaluation>, hopper_backward<Policy>};
  return true;
}

}  // namespace
