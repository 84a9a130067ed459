// The forward pass for Hopper: queries are held, keys and values stream past.
#pragma once
#include "attention/hopper/roles.cuh"
#include "attention/policy.cuh"

namespace {

struct ForwardArguments {
  const TensorMap &qkv, &out;
  float* stats;
  const bf16* sink;
  const KernelSettings& settings;
  const KernelShape& shape;
};

// The streamed tiles of a row tile: first, for policies of two sweeps, keys 0, 1, 2 ...; then keys 0, values 0, keys 1,
// values 1 ... The weights of a step are computed while the outputs of the step before are summed.
template <class Policy, class Mask, class Tile> struct Forward : HopperPass<ForwardArguments, Mask, Tile> {
  using Base = HopperPass<ForwardArguments, Mask, Tile>;
  using Base::Base, Base::a, Base::stages, Base::turns, Base::mine, Base::tile, Base::block_row, Base::mask;
  static constexpr int N = Tile::N, DIM = Tile::DIM, STREAM = Tile::STREAM, OUTPUTS = Policy::OUTPUTS;
  static constexpr bool TWO_SWEEPS = Policy::SWEEPS == 2;
  // Computes the weights of a step beside the products of the step before; two outputs leave few registers for it.
  static constexpr bool OVERLAP = OUTPUTS == 1;

  // The steps of the block, of which this consumer takes the first ones
  decltype(mask.template key_tiles<STREAM>(0, 0)) key_tiles = mask.template key_tiles<STREAM>(block_row, Tile::HELD);
  int steps = key_tiles.end(), own_steps = mask.template key_tiles<STREAM>(block_row, (mine.consumer + 1) * BOX).end();
  bf16* queries = stages.held(tile.number, 0, mine.consumer);
  Policy policy{a.settings, a.sink ? to_float(a.sink[tile.head % a.shape.H]) : a.settings.sink, tile.head % a.shape.H};
  // A thread's quarter of the columns of two rows, called halves (Fragment). Scores become weights in z, and packed
  // weights are left operands of the products with the values.
  float z[N][4], outputs[OUTPUTS][DIM / 8][4];
  unsigned weights[OUTPUTS][Tile::K][4];
  float sums[2][Policy::SUMS + 1], constants[2][Policy::CONSTANTS + 1], factor[2];

  static __device__ __forceinline__ void load(Stages<Tile>& stages, const ForwardArguments& a, const RowTile& tile) {
    int H = a.shape.H;
    stages.fetch_held(tile.number, 0, a.qkv, tile.head / H, tile.tile * Tile::HELD, tile.head % H);
    Base::load_keys_and_values(stages, a, tile, TWO_SWEEPS);
  }

  __device__ __forceinline__ void compute() {
    this->template hold<false>();
    stages.await_held(tile.number);
    if constexpr (TWO_SWEEPS) first_sweep();
    first_step();
    // The first consumer's queries see only half of the tile that begins with them. (Scores of that half alone would
    // save more, but ptxas makes products of different sizes wait for each other.)
    bool half_last = STREAM == Tile::HELD && mine.consumer == 0 && own_steps > 1;
    for (int step = 1; step < own_steps - half_last; step++) next_step<STREAM>(step);
    if (half_last) next_step<BOX>(own_steps - 1);
    int last = keys_tile(own_steps) - 1;
    const bf16* values = stages.await(last);
    if (half_last) last_outputs<BOX>(values);
    else last_outputs<STREAM>(values);
    stages.free(last);

    // Tiles that only the other consumer uses
#pragma unroll 1
    for (int step = own_steps; step < steps; step++) turns.skip(), stages.skip_pair(keys_tile(step));
    stages.streamed += 2 * steps;

    finish_rows();
    if constexpr (OUTPUTS > 1) store_second_output();
    // through the queries' buffer
    store_rows<Tile>(a.out, tile.head / a.shape.H, block_row + mine.consumer * BOX, tile.head % a.shape.H, queries,
                     outputs[0]);
    stages.free_held(tile.number);
  }

  // ---- steps

  // Of the last sweep.
  __device__ __forceinline__ int keys_tile(int step) const { return stages.streamed + 2 * step; }
  __device__ __forceinline__ int values_tile(int step) const { return keys_tile(step) + 1; }

  __device__ __forceinline__ void start_sweep(int sweep) {
    for (int half = 0; half < 2; half++)
      policy.start_sweep(sweep, mask.keys(block_row + mine.row(half)), sums[half], mine.quad == 0);
  }
  __device__ __forceinline__ void start(int keys_number, int step) {
    const bf16* keys = stages.await(keys_number);
    this->template begin<false>(z, keys_number, key_tiles.row(step));
    turns.begin();
    wgmma_fence(z);
    start_scores<Tile, Mask::ADDS>(z, queries, keys);
    wgmma_commit();
    turns.end();
  }
  __device__ __forceinline__ void finish(int keys_number) {
    wgmma_wait<0>(z);
    stages.free(keys_number);
  }

  __device__ __forceinline__ void first_sweep() {
    start_sweep(0);
    int streamed = stages.streamed;
    for (int step = 0; step < own_steps; step++) {
      start(streamed + step, step);
      finish(streamed + step);
      look(step);
    }
#pragma unroll 1
    for (int step = own_steps; step < steps; step++) turns.skip(), stages.skip(streamed + step);
    for (int half = 0; half < 2; half++) {
      merge_quad(policy, 0, sums[half]);
      policy.row_constants(mask.keys(block_row + mine.row(half)), sums[half], constants[half]);
    }
    stages.streamed += steps;
  }
  __device__ __forceinline__ void look(int step) {
    this->template hide<false>(z, key_tiles.row(step));
    float row[2][2 * N];
    for_elements<N>([&](int n, int half, int c) { row[half][2 * n + c] = z[n][2 * half + c]; });
#pragma unroll
    for (int half = 0; half < 2; half++)
      first_sweep_row(policy, mask, row[half], (step + 1) * 2 * N, sums[half], block_row + mine.row(half),
                      key_tiles.row(step), mine);
  }

  // Weights of the first keys
  __device__ __forceinline__ void first_step() {
    start_sweep(Policy::SWEEPS - 1);
    for (int output = 0; output < OUTPUTS; output++) clear(outputs[output]);
    start(keys_tile(0), 0);
    finish(keys_tile(0));
    this->template hide<false>(z, key_tiles.row(0));
    formula(z, key_tiles.row(0));
    weigh<STREAM>(key_tiles.row(0));
    pack<STREAM>();
  }

  // Scores of a step and weights of its first KEYS keys, beside the outputs of the step before
  template <int KEYS> __device__ __forceinline__ void next_step(int step) {
    const bf16 *values = stages.await(values_tile(step - 1)), *keys = stages.await(keys_tile(step));
    this->template begin<false>(z, keys_tile(step), key_tiles.row(step));
    turns.begin();
    wgmma_fence(z, outputs, weights);
    start_scores<Tile, Mask::ADDS>(z, queries, keys);
    wgmma_commit();
    start_outputs<STREAM>(values);
    turns.end();

    // Weights, while the outputs are summed
    if constexpr (OVERLAP) wgmma_wait<1>(z);
    else wgmma_wait<0>(z, outputs, weights);
    stages.free(keys_tile(step));
    this->template hide<false>(first_rows<KEYS / 8>(z), key_tiles.row(step));
    formula(first_rows<KEYS / 8>(z), key_tiles.row(step));
    weigh<KEYS>(key_tiles.row(step));
    if constexpr (OVERLAP) {
      compute_before_wait(z);
      wgmma_wait<0>(outputs, weights);
    }
    stages.free(values_tile(step - 1));
    if constexpr (Policy::RESCALES) {
      for (int output = 0; output < OUTPUTS; output++) scale(output, factor);
    }
    pack<KEYS>();
  }

  template <int KEYS> __device__ __forceinline__ void last_outputs(const bf16* values) {
    turns.begin();
    wgmma_fence(outputs, weights);
    start_outputs<KEYS>(values);
    turns.end();
    wgmma_wait<0>(outputs, weights);
  }

  // Starts outputs += weights x values, as a group of products.
  template <int KEYS> __device__ __forceinline__ void start_outputs(const bf16* values) {
    for (int output = 0; output < OUTPUTS; output++)
      start_sums<Tile>(outputs[output], first_rows<KEYS / 16>(weights[output]), values);
    wgmma_commit();
  }

  // ---- weights

  template <int COLUMNS> __device__ __forceinline__ void formula(float (&z)[COLUMNS][4], int j0) {
    if constexpr (Policy::IS_FORMULA) score_formula(one_group(z), policy, mask, block_row, j0, mine);
  }
  // With OVERLAP z = the weights, which pack() moves to `weights` when the products have read those of the step before;
  // otherwise `weights` at once. factor = the number by which the outputs so far are to be multiplied.
  template <int KEYS> __device__ __forceinline__ void weigh(int j0) {
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
    weigh_row<KEYS>(0, j0), weigh_row<KEYS>(1, j0);  // a loop over both is too much for nvcc 12.4 to unroll
  }
  template <int KEYS> __device__ __forceinline__ void weigh_row(int half, int j0) {
    int row = block_row + mine.row(half);
    float i = position(mask, row, row), first = position(mask, row, j0 + mine.column(0));
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
      float low[OUTPUTS], high[OUTPUTS];
      weigh_score(policy, z[n][2 * half], constants[half], sums[half], low, i, mine.column(first, n, 0));
      weigh_score(policy, z[n][2 * half + 1], constants[half], sums[half], high, i, mine.column(first, n, 1));
      if constexpr (OVERLAP) {
        z[n][2 * half] = low[0], z[n][2 * half + 1] = high[0];
      } else {
        for (int output = 0; output < OUTPUTS; output++)
          keep_weights(weights[output][n / 2], n, half, low[output], high[output]);
      }
    }
  }
  template <int KEYS> __device__ __forceinline__ void pack() {
    if constexpr (OVERLAP) pack_weights(first_rows<KEYS / 16>(weights[0]), first_rows<KEYS / 8>(z));
  }
  __device__ __forceinline__ void scale(int output, const float (&by)[2]) {
    for_elements<DIM / 8>([&](int n, int half, int c) { outputs[output][n][2 * half + c] *= by[half]; });
  }

  // ---- end of the rows

  // Factors, and what is saved.
  __device__ __forceinline__ void finish_rows() {
    size_t count = a.shape.rows(), first = size_t(tile.head) * a.shape.T;
    float last[OUTPUTS][2];
    for (int half = 0; half < 2; half++) {
      int i = block_row + mine.row(half);
      merge_quad(policy, Policy::SWEEPS - 1, sums[half]);
      float f[OUTPUTS], saved[Policy::SAVED + 1];
      policy.finish(mask.keys(i), constants[half], sums[half], f, saved);
      for (int output = 0; output < OUTPUTS; output++) last[output][half] = f[output];
      if (a.stats && mine.quad == 0 && i < a.shape.T)
        for (int n = 0; n < Policy::SAVED; n++) a.stats[n * count + first + i] = saved[n];
    }
    for (int output = 0; output < OUTPUTS; output++) scale(output, last[output]);
  }

  // For the backward pass.
  __device__ __forceinline__ void store_second_output() {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      int i = block_row + mine.row(half), D = a.shape.D;
      float* to = a.stats + Policy::SAVED * a.shape.rows() + (size_t(tile.head) * a.shape.T + i) * D + 2 * mine.quad;
#pragma unroll
      for (int n = 0; n < DIM / 8; n++)
        if (a.stats && i < a.shape.T && 8 * n < D)
          *reinterpret_cast<float2*>(to + 8 * n) = make_float2(outputs[1][n][2 * half], outputs[1][n][2 * half + 1]);
    }
  }
};

template <class Policy, class Mask, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, 1)
    attention_forward_hopper_kernel(const __grid_constant__ TensorMap qkv, const __grid_constant__ TensorMap out,
                                    float* stats, const bf16* sink, KernelSettings settings, KernelShape shape) {
  DYNAMIC_SHARED(bf16, shared);
  run_roles<Forward<Policy, Mask, Tile>>(shared, ForwardArguments{qkv, out, stats, sink, settings, shape});
}

}  // namespace
