// Attention on tensor cores (mma.sync, Ampere and newer): every kind, heads of up to 128 channels, bf16 with float32
// scores, statistics and sums. As in the general kernels a block holds rows of one sequence and lets the other stream
// past, here double-buffered by asynchronous copies; tiles that no row sees are never touched. The backward has two
// kernels, dK and dV by tiles of keys and dQ by tiles of queries. So it takes 7 products instead of 5, but one lane
// computes each sum, in one order, without atomics. Weights are rounded to bf16 when they enter a product, after the
// row's statistics have been taken from them in float32.
#pragma once
#include "attention/policy.cuh"
#include "attention/tensor/tiles.cuh"

namespace {

// ---- forward: queries are held, keys and values stream past

template <class T, class Policy, class Mask, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, 2)
    attention_forward_tensor_kernel(T* out, float* stats, const T* qkv, const T* sink, KernelSettings settings,
                                    KernelShape shape) {
  constexpr int M = Tile::M, N = Tile::N, OUTPUTS = Policy::OUTPUTS, SWEEPS = Policy::SWEEPS;
  constexpr int TILE = Tile::STREAM * Tile::DIM;
  DYNAMIC_SHARED(T, shared);
  T* query_tile = shared;                           // [HELD][DIM]
  T* stages = query_tile + Tile::HELD * Tile::DIM;  // [2] keys, values [STREAM][DIM]
  int b = blockIdx.z, h = blockIdx.y,
      block_row = int(gridDim.x - 1 - blockIdx.x) * Tile::HELD;  // rows with the most to do first
  int warp = threadIdx.x / WARP, i0 = block_row + warp * Tile::WARP_ROWS;
  Head<T> q = head_of_qkv(qkv, 0, b, h, shape), k = head_of_qkv(qkv, 1, b, h, shape),
          v = head_of_qkv(qkv, 2, b, h, shape);
  Policy policy(settings, sink ? to_float(sink[h]) : settings.sink, h);
  Mask mask(settings, shape.T, shape.head_number(b, h));
  mask.template hold<false>(i0, Tile::WARP_ROWS);
  Fragment mine;
  T* my_queries = query_tile + warp * Tile::WARP_ROWS * Tile::DIM;

  // Copies of the queries and of the first tiles. Steps are numbered through all sweeps; the last one has values too.
  auto key_tiles = mask.template key_tiles<Tile::STREAM>(block_row, Tile::HELD);
  int tiles = key_tiles.end(), last_sweep = (SWEEPS - 1) * tiles, steps = SWEEPS * tiles;
  auto first_key = [&](int step) { return key_tiles.row(step < last_sweep ? step : step - last_sweep); };
  auto fetch = [&](int step) {
    if (step < steps) {
      T* stage = stages + step % 2 * 2 * TILE;
      load_rows<Tile, Tile::STREAM>(stage, k, first_key(step));
      if (step >= last_sweep) load_rows<Tile, Tile::STREAM>(stage + TILE, v, first_key(step));
    }
    cp_async_commit();
  };
  load_rows<Tile, Tile::HELD>(query_tile, q, block_row);
  fetch(0);

  float z[M][N][4], sums[M][2][Policy::SUMS + 1], constants[M][2][Policy::CONSTANTS + 1];
  auto start_sweep = [&](int sweep) {
    for_rows<M>([&](int m, int half) {
      policy.start_sweep(sweep, mask.keys(i0 + mine.row(half, m)), sums[m][half], mine.quad == 0);
    });
  };
  // Copies of the next step's tiles; z = the masked scores of this one's. Returns its values.
  auto next_scores = [&](int step) {
    const T* keys = stages + step % 2 * 2 * TILE;
    fetch(step + 1);
    cp_async_wait<1>();
    __syncthreads();  // this step's tiles have arrived
    begin_scores<false>(z, mask, i0, first_key(step));
    add_scores<Tile>(z, my_queries, keys);
    mask_scores<false>(z, mask, i0, first_key(step));
    if constexpr (Policy::IS_FORMULA) score_formula(z, policy, mask, i0, first_key(step));
    return keys + TILE;
  };

  // First of two sweeps. It is a loop of its own, before the outputs need their registers.
  if constexpr (SWEEPS > 1) {
    start_sweep(0);
    for (int step = 0; step < last_sweep; step++) {
      next_scores(step);
      for_rows<M>([&](int m, int half) {
        float row[2 * N];
#pragma unroll
        for (int n = 0; n < N; n++) row[2 * n] = z[m][n][2 * half], row[2 * n + 1] = z[m][n][2 * half + 1];
        first_sweep_row(policy, mask, row, (step + 1) * 2 * N, sums[m][half], i0 + mine.row(half, m), first_key(step),
                        mine);
      });
      __syncthreads();  // all have read this step's tiles
    }
    for_rows<M>([&](int m, int half) {
      merge_quad(policy, 0, sums[m][half]);
      policy.row_constants(mask.keys(i0 + mine.row(half, m)), sums[m][half], constants[m][half]);
    });
  }

  // Last sweep
  start_sweep(SWEEPS - 1);
  Sums<Tile> out_sum[OUTPUTS] = {};
  for (int step = last_sweep; step < steps; step++) {
    const T* values = next_scores(step);

    // Larger scores: older outputs shrink
    if constexpr (Policy::RESCALES) {
      float top[2 * M], factor[M][2];
      for_rows<M>([&](int m, int half) {
        float& most = top[2 * m + half];
        most = z[m][0][2 * half];
#pragma unroll
        for (int n = 0; n < N; n++) most = fmaxf(most, fmaxf(z[m][n][2 * half], z[m][n][2 * half + 1]));
      });
      quad_max(top);
      for_rows<M>([&](int m, int half) { factor[m][half] = policy.rescale(sums[m][half], top[2 * m + half]); });
      for (int n = 0; n < OUTPUTS; n++) scale_rows<Tile>(out_sum[n], factor);
    }

    // Weights, and the outputs that they add
    Weights<Tile> weights[OUTPUTS];
    for_rows<M>([&](int m, int half) {
      int row = i0 + mine.row(half, m);
      float i = position(mask, row, row), first = position(mask, row, first_key(step) + mine.column(0));
#pragma unroll
      for (int n = 0; n < N; n++) {
        float low[OUTPUTS], high[OUTPUTS];
        weigh_score(policy, z[m][n][2 * half], constants[m][half], sums[m][half], low, i, mine.column(first, n, 0));
        weigh_score(policy, z[m][n][2 * half + 1], constants[m][half], sums[m][half], high, i,
                    mine.column(first, n, 1));
#pragma unroll
        for (int output = 0; output < OUTPUTS; output++)
          keep_weights(weights[output][n / 2][m], n, half, low[output], high[output]);
      }
    });
#pragma unroll
    for (int output = 0; output < OUTPUTS; output++) add_weighted<Tile>(out_sum[output], weights[output], values);
    __syncthreads();  // all have read this step's tiles
  }

  // End of the rows: factors and what is saved
  size_t rows = shape.rows(), first = shape.first_row(b, h), A = size_t(shape.H) * shape.D;
  float factor[OUTPUTS][M][2];
  for_rows<M>([&](int m, int half) {
    int i = i0 + mine.row(half, m);
    float f[OUTPUTS], saved[Policy::SAVED + 1];
    merge_quad(policy, SWEEPS - 1, sums[m][half]);
    policy.finish(mask.keys(i), constants[m][half], sums[m][half], f, saved);
    for (int output = 0; output < OUTPUTS; output++) factor[output][m][half] = f[output];
    if (stats && mine.quad == 0 && i < shape.T)
      for (int n = 0; n < Policy::SAVED; n++) stats[n * rows + first + i] = saved[n];
  });
  for (int output = 0; output < OUTPUTS; output++) scale_rows<Tile>(out_sum[output], factor[output]);

  // The output; the second one, for the backward pass, in float32
  store_rows<Tile>(out + size_t(b) * shape.T * A + size_t(h) * shape.D, A, i0, shape, out_sum[0], my_queries);
  if constexpr (OUTPUTS > 1)
    if (stats)
      for_channels<Tile>(out_sum[1], [&](int m, int half, int channel, float low, float high) {
        int i = i0 + mine.row(half, m);
        float* to = stats + Policy::SAVED * rows + (first + i) * shape.D + channel;
        if (i < shape.T && channel < shape.D) to[0] = low;
        if (i < shape.T && channel + 1 < shape.D) to[1] = high;
      });
}

// ---- backward

// Keys are held, queries and dO stream past: dk = sum of dz q, dv = sum of P dO, over the queries that see a key.
template <class T, class Policy, class Mask, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, 2)
    attention_backward_keys_tensor_kernel(T* dqkv, float* dz_by_key, const T* dout, const float* rows, const T* qkv,
                                          KernelSettings settings, KernelShape shape) {
  constexpr int M = Tile::M, N = Tile::N, ROW_VALUES = Policy::ROW_VALUES, HELD_TILE = Tile::HELD * Tile::DIM,
                TILE = Tile::STREAM * Tile::DIM;
  DYNAMIC_SHARED(T, shared);
  T* held = shared;                                                 // k, v [HELD][DIM]
  T* stages = held + 2 * HELD_TILE;                                 // [2] q, dO [STREAM][DIM]
  float* row_stages = reinterpret_cast<float*>(stages + 4 * TILE);  // [2][ROW_VALUES][STREAM]
  int b = blockIdx.z, h = blockIdx.y, block_row = blockIdx.x * Tile::HELD;
  int warp = threadIdx.x / WARP, j0 = block_row + warp * Tile::WARP_ROWS;
  Head<T> q = head_of_qkv(qkv, 0, b, h, shape), d = head_of_out(dout, b, h, shape);
  size_t count = shape.rows(), first_row = shape.first_row(b, h);
  rows += first_row;
  Policy policy(settings, 0, h);
  Mask mask(settings, shape.T, shape.head_number(b, h));
  mask.template hold<true>(j0, Tile::WARP_ROWS);
  Fragment mine;
  T *my_keys = held + warp * Tile::WARP_ROWS * Tile::DIM, *my_values = my_keys + HELD_TILE;

  // Copies of keys, values and the first tiles
  auto query_tiles = mask.template query_tiles<Tile::STREAM>(block_row, Tile::HELD);
  int steps = query_tiles.end();
  auto fetch = [&](int step) {
    if (step < steps) {
      T* stage = stages + step % 2 * 2 * TILE;
      load_rows<Tile, Tile::STREAM>(stage, q, query_tiles.row(step));
      load_rows<Tile, Tile::STREAM>(stage + TILE, d, query_tiles.row(step));
      for (int n = threadIdx.x; n < ROW_VALUES * Tile::STREAM; n += Tile::THREADS) {
        int i = query_tiles.row(step) + n % Tile::STREAM;
        row_stages[step % 2 * ROW_VALUES * Tile::STREAM + n] = i < shape.T ? rows[n / Tile::STREAM * count + i] : 0;
      }
    }
    cp_async_commit();
  };
  load_rows<Tile, Tile::HELD>(held, head_of_qkv(qkv, 1, b, h, shape), block_row);
  load_rows<Tile, Tile::HELD>(held + HELD_TILE, head_of_qkv(qkv, 2, b, h, shape), block_row);
  fetch(query_tiles.first());

  Sums<Tile> dk = {}, dv = {};
  float z[M][N][4], dp[M][N][4], dz_sum[M][2] = {};
  for (int step = query_tiles.first(); step < steps; step++) {
    // Copies of the next step's tiles, wait for this step's
    int i0 = query_tiles.row(step);
    const T *queries = stages + step % 2 * 2 * TILE, *douts = queries + TILE;
    const float* row_values = row_stages + step % 2 * ROW_VALUES * Tile::STREAM;
    fetch(step + 1);
    cp_async_wait<1>();
    __syncthreads();  // this step's tiles have arrived

    // Scores, masked, and dP, P and dz. Their order decides only how many registers ptxas takes: with scores first
    // sigmoid's 128 channels spill, with dP first a third block of 32 channels does not fit. The bits are the same.
    constexpr bool DP_FIRST = Tile::DIM == 128;
    if constexpr (DP_FIRST) scores<Tile>(dp, my_values, douts);
    begin_scores<true>(z, mask, j0, i0);
    add_scores<Tile>(z, my_keys, queries);
    mask_scores<true>(z, mask, j0, i0);
    if constexpr (!DP_FIRST) scores<Tile>(dp, my_values, douts);
    Weights<Tile> p, dz;
#pragma unroll
    for (int n = 0; n < N; n++) {
      float row[2][ROW_VALUES + 1];
#pragma unroll
      for (int r = 0; r < ROW_VALUES; r++)
#pragma unroll
        for (int c = 0; c < 2; c++) row[c][r] = row_values[r * Tile::STREAM + mine.column(n) + c];
      for_rows<M>([&](int m, int half) {
        int key = j0 + mine.row(half, m);
        float pair_p[2], pair_dz[2], j = position(mask, key, key), first = position(mask, key, i0 + mine.column(0));
#pragma unroll
        for (int c = 0; c < 2; c++)
          score_gradient(policy, z[m][n][2 * half + c], dp[m][n][2 * half + c], row[c], pair_p[c], pair_dz[c],
                         mine.column(first, n, c), j);
        keep_weights(p[n / 2][m], n, half, pair_p[0], pair_p[1]);
        keep_weights(dz[n / 2][m], n, half, pair_dz[0], pair_dz[1]);
        if constexpr (Mask::ADDS) dz_sum[m][half] += pair_dz[0] + pair_dz[1];
      });
    }

    // Sums
    add_weighted<Tile>(dv, p, douts);
    add_weighted<Tile>(dk, dz, queries);
    __syncthreads();  // all have read this step's tiles
  }
  size_t A = size_t(shape.H) * shape.D;
  T* to = dqkv + size_t(b) * shape.T * shape.qkv_stride + A + size_t(h) * shape.D;
  store_rows<Tile>(to, shape.qkv_stride, j0, shape, dk, my_keys);
  store_rows<Tile>(to + A, shape.qkv_stride, j0, shape, dv, my_values);
  if constexpr (Mask::ADDS) store_dz_sums(dz_by_key + first_row, j0, shape.T, dz_sum);
}

// Queries are held, keys and values stream past: dq = sum of dz k, over the keys that a query sees.
template <class T, class Policy, class Mask, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, 2)
    attention_backward_queries_tensor_kernel(T* dqkv, float* dz_by_query, float* learned_sums, const T* dout,
                                             const float* rows, const T* qkv, KernelSettings settings,
                                             KernelShape shape) {
  constexpr int M = Tile::M, N = Tile::N, ROW_VALUES = Policy::ROW_VALUES, HELD_TILE = Tile::HELD * Tile::DIM,
                TILE = Tile::STREAM * Tile::DIM;
  DYNAMIC_SHARED(T, shared);
  T* held = shared;                  // q, dO [HELD][DIM]
  T* stages = held + 2 * HELD_TILE;  // [2] k, v [STREAM][DIM]
  int b = blockIdx.z, h = blockIdx.y,
      block_row = int(gridDim.x - 1 - blockIdx.x) * Tile::HELD;  // rows with the most to do first
  int warp = threadIdx.x / WARP, i0 = block_row + warp * Tile::WARP_ROWS;
  Head<T> k = head_of_qkv(qkv, 1, b, h, shape), v = head_of_qkv(qkv, 2, b, h, shape);
  size_t count = shape.rows(), first_row = shape.first_row(b, h);
  rows += first_row;
  Policy policy(settings, 0, h);
  Mask mask(settings, shape.T, shape.head_number(b, h));
  mask.template hold<false>(i0, Tile::WARP_ROWS);
  Fragment mine;
  T *my_queries = held + warp * Tile::WARP_ROWS * Tile::DIM, *my_douts = my_queries + HELD_TILE;

  // Copies of queries, dO and the first tiles
  auto key_tiles = mask.template key_tiles<Tile::STREAM>(block_row, Tile::HELD);
  int steps = key_tiles.end();
  auto fetch = [&](int step) {
    if (step < steps) {
      T* stage = stages + step % 2 * 2 * TILE;
      load_rows<Tile, Tile::STREAM>(stage, k, key_tiles.row(step));
      load_rows<Tile, Tile::STREAM>(stage + TILE, v, key_tiles.row(step));
    }
    cp_async_commit();
  };
  load_rows<Tile, Tile::HELD>(held, head_of_qkv(qkv, 0, b, h, shape), block_row);
  load_rows<Tile, Tile::HELD>(held + HELD_TILE, head_of_out(dout, b, h, shape), block_row);
  fetch(0);
  float row[M][2][ROW_VALUES + 1];
  for_rows<M>([&](int m, int half) {
    int i = i0 + mine.row(half, m);
    for (int r = 0; r < ROW_VALUES; r++) row[m][half][r] = i < shape.T ? rows[r * count + i] : 0;
  });

  Sums<Tile> dq = {};
  float z[M][N][4], dp[M][N][4], dz_sum[M][2] = {}, learned[M][2][Policy::LEARNED + 1] = {};
  for (int step = 0; step < steps; step++) {
    // Copies of the next step's tiles, wait for this step's
    int j0 = key_tiles.row(step);
    const T *keys = stages + step % 2 * 2 * TILE, *values = keys + TILE;
    fetch(step + 1);
    cp_async_wait<1>();
    __syncthreads();  // this step's tiles have arrived

    // Scores, masked, and dP, dz
    begin_scores<false>(z, mask, i0, j0);
    add_scores<Tile>(z, my_queries, keys);
    mask_scores<false>(z, mask, i0, j0);
    scores<Tile>(dp, my_douts, values);
    Weights<Tile> dz;
    for_rows<M>([&](int m, int half) {
      int query = i0 + mine.row(half, m);
      float i = position(mask, query, query), first = position(mask, query, j0 + mine.column(0));
#pragma unroll
      for (int n = 0; n < N; n++) {
        float p, pair[2];
#pragma unroll
        for (int c = 0; c < 2; c++) {
          float j = mine.column(first, n, c);
          score_gradient(policy, z[m][n][2 * half + c], dp[m][n][2 * half + c], row[m][half], p, pair[c], i, j);
          if constexpr (Policy::LEARNED > 0)
            policy.add_learned(learned[m][half], z[m][n][2 * half + c], dp[m][n][2 * half + c], row[m][half], i, j);
        }
        keep_weights(dz[n / 2][m], n, half, pair[0], pair[1]);
        if constexpr (Mask::ADDS) dz_sum[m][half] += pair[0] + pair[1];
      }
    });

    // Sums
    add_weighted<Tile>(dq, dz, keys);
    __syncthreads();  // all have read this step's tiles
  }
  store_rows<Tile>(dqkv + size_t(b) * shape.T * shape.qkv_stride + size_t(h) * shape.D, shape.qkv_stride, i0, shape, dq,
                   my_queries);
  if constexpr (Mask::ADDS) store_dz_sums(dz_by_query + first_row, i0, shape.T, dz_sum);
  store_learned_sums<Policy>(learned_sums + first_row, count, i0, shape.T, learned);
}

// ---- launchers

template <class Tile> dim3 tensor_grid(const KernelShape& s) { return dim3(s.tiles(Tile::HELD), s.H, s.B); }

// The widths that are built, in rising order; make HEAD_DIM=64 builds just one.
#ifndef TENSOR_WIDTHS
#define TENSOR_WIDTHS 32, 64, 96, LARGEST_TENSOR_D
#endif
constexpr int tensor_widths[] = {TENSOR_WIDTHS};

// Floor: 2 T^2 D FLOPs per head (causal, FlashAttention's count) at the tensor cores' rate; lssar does twice that (1.5
// times in evaluation). A product reads its right operand from shared memory, 256 bytes for the 4096 FLOPs of an
// instruction. With M = 1 that is all that an SM can deliver at the full rate of mma.sync, with M = 2 half of it.
template <class T, class Policy, class Mask> void tensor_forward(const ForwardCall<T>& c) {
  KernelShape shape = kernel_shape<T>(c.call, {c.out, c.qkv});
  with_width<TENSOR_WIDTHS>(c.call.shape.D, [&]<int DIM>() {
    using Tile =
        TensorTile<DIM, tensor_forward_size(DIM, Policy::SWEEPS, BY_POSITION<Policy>, Mask::ADDS && Mask::DOCUMENTS)>;
    LAUNCH((attention_forward_tensor_kernel<T, Policy, Mask, Tile>), tensor_grid<Tile>(shape), dim3(Tile::THREADS),
           Tile::shared_elements(1) * sizeof(T), c.call.stream, c.out, c.stats, c.qkv, c.sink, c.settings, shape);
  });
}

// Floor: 5 T^2 D FLOPs per head (FlashAttention's count); these kernels do 7.
template <class T, class Policy, class Mask> void tensor_backward(const BackwardCall<T>& c) {
  KernelShape shape = kernel_shape<T>(c.call, {c.dqkv, c.dout, c.out, c.qkv});
  write_row_values<T, Policy, Mask>(c, shape);
  with_width<TENSOR_WIDTHS>(c.call.shape.D, [&]<int DIM>() {
    using Tile = TensorTile<DIM, tensor_backward_size(DIM, (Mask::ADDS && Policy::GRADIENT_REGISTERS) || Policy::LEARNED
                                                               ? 2
                                                               : Policy::GRADIENT_REGISTERS)>;
    size_t bytes = Tile::shared_elements(2) * sizeof(T);
    LAUNCH((attention_backward_keys_tensor_kernel<T, Policy, Mask, Tile>), tensor_grid<Tile>(shape),
           dim3(Tile::THREADS), bytes + 2 * Policy::ROW_VALUES * Tile::STREAM * sizeof(float), c.call.stream, c.dqkv,
           c.workspace.dz_by_key, c.dout, c.workspace.row_values, c.qkv, c.settings, shape);
    LAUNCH((attention_backward_queries_tensor_kernel<T, Policy, Mask, Tile>), tensor_grid<Tile>(shape),
           dim3(Tile::THREADS), bytes, c.call.stream, c.dqkv, c.workspace.dz_by_query, c.workspace.learned_sums, c.dout,
           c.workspace.row_values, c.qkv, c.settings, shape);
  });
}

// ---- the family

template <class File> bool add_tensor(Kind kind) {
  using Policies = PolicyOf<File, FastMaths>;
  Family<bf16> f = {.name = "tensor"};
  f.widest = f.widest_masked = tensor_widths[std::size(tensor_widths) - 1];
  f.saved = Policies::Usual::SAVED, f.vectors = Policies::Usual::OUTPUTS - 1;
  f.forward = [](const ForwardCall<bf16>& c) {
    with_policy_and_mask<Policies>(c, [&]<class Policy, class Mask>() { tensor_forward<bf16, Policy, Mask>(c); });
  };
  f.evaluate = [](const ForwardCall<bf16>& c) {
    with_policy_and_mask<Policies>(
        c, [&]<class Policy, class Mask>() { tensor_forward<bf16, typename Policy::Evaluation, Mask>(c); });
  };
  f.backward = [](const BackwardCall<bf16>& c) {
    with_policy_and_mask<Policies>(c, [&]<class Policy, class Mask>() { tensor_backward<bf16, Policy, Mask>(c); });
  };
  return add_family(kind, f);
}

}  // namespace
