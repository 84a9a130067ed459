// The general attention kernels: every kind, any head dimension, any T, float and bf16. Blocks keep tiles of one
// sequence in shared memory and let the other stream past (tiles.cuh); tiles that no row sees are never touched. Each
// thread computes 16 by one to four elements of a product in registers. The backward has two kernels, dK and dV by
// tiles of keys and dQ by tiles of queries, so that one thread computes each sum, in one order. Heads of more than 128
// channels are done 128 output channels at a time, and each time the scores are computed again.
#pragma once
#include "attention/policy.cuh"
#include "attention/general/tiles.cuh"

namespace {

// The tile of rows and the chunk of channels that a block computes. With last_rows_first, the rows that see the most
// keys come first.
struct Place {
  int b, h, row, chunk, chunks;
};
template <class Tile> __device__ Place place_of_block(const KernelShape& s, bool last_rows_first) {
  int chunks = s.chunks(Tile::CHANNELS), tiles = gridDim.x / chunks, tile = blockIdx.x / chunks;
  if (last_rows_first) tile = tiles - 1 - tile;
  return {int(blockIdx.z), int(blockIdx.y), tile * Tile::HELD, int(blockIdx.x % chunks), chunks};
}

// z[n] = scores of held[n]'s rows from r0 and streamed[n]'s rows from s0, n < N, over all channels, a chunk at a time
// and always in the same order: forward and backward must agree on z to the last bit, as e^z magnifies any difference.
// If the head is one chunk, the held tiles are loaded only when `fresh`. Begins with a barrier.
template <class Tile, int N, class T>
__device__ CPU_OUT_OF_LINE void score_tiles(float (&z)[N][Tile::STREAMED_EACH][EACH], float* held_tiles,
                                            float* stream_tiles, const Head<T> (&held)[N], int r0,
                                            const Head<T> (&streamed)[N], int s0, const Place& place, bool fresh) {
  for (int n = 0; n < N; n++)
    for (int x = 0; x < Tile::STREAMED_EACH; x++)
      for (int e = 0; e < EACH; e++) z[n][x][e] = 0;
  for (int chunk = 0; chunk < place.chunks; chunk++) {
    int c0 = chunk * Tile::CHANNELS;
    __syncthreads();
    unrolled<N>([&](int n) {
      if (fresh || place.chunks > 1) load_held<Tile>(held_tiles + n * Tile::HELD_FLOATS, held[n], r0, c0);
      load_stream<Tile>(stream_tiles + n * Tile::STREAM_FLOATS, streamed[n], s0, c0);
    });
    __syncthreads();
    int depth = min(Tile::CHANNELS, round_up_8(held[0].D - c0));
    unrolled<N>([&](int n) {
      add_scores<Tile>(z[n], stream_tiles + n * Tile::STREAM_FLOATS, held_tiles + n * Tile::HELD_FLOATS, depth);
    });
  }
}

// After score_tiles(): loads the block's own chunk of channels into the stream tiles again. A barrier must follow.
template <class Tile, int N, class T>
__device__ __forceinline__ void reload_own_chunk(float* stream_tiles, const Head<T> (&streamed)[N], int s0,
                                                 const Place& place) {
  if (place.chunk == place.chunks - 1) return;
  __syncthreads();
  unrolled<N>([&](int n) {
    load_stream<Tile>(stream_tiles + n * Tile::STREAM_FLOATS, streamed[n], s0, place.chunk * Tile::CHANNELS);
  });
}

// ---- forward: queries are held, keys and then values stream past

template <class T, class Policy, class Mask, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, Tile::BLOCKS)
    attention_forward_kernel(T* out, float* stats, const T* qkv, const T* sink, KernelSettings settings,
                             KernelShape shape) {
  constexpr int X = Tile::STREAMED_EACH, R = Tile::SUM_ROWS, OUTPUTS = Policy::OUTPUTS, SUMS = Policy::SUMS,
                CONSTANTS = Policy::CONSTANTS;
  DYNAMIC_SHARED(float, shared);
  float* query_tile = shared;
  float* stream_tile = query_tile + Tile::HELD_FLOATS;
  float* weight_tile = stream_tile + Tile::STREAM_FLOATS;        // [OUTPUTS]
  float* partial = weight_tile + OUTPUTS * Tile::WEIGHT_FLOATS;  // [SUMS][SHARERS][HELD]
  float* factors = partial + SUMS * Tile::SHARERS * Tile::HELD;  // [OUTPUTS][HELD]
  float* constants = factors + OUTPUTS * Tile::HELD;             // [CONSTANTS][HELD]
  Place place = place_of_block<Tile>(shape, true);
  ScorePlace<Tile> mine;
  SumPlace<Tile> ours;
  int i0 = place.row, chunk0 = place.chunk * Tile::CHANNELS, width = min(Tile::CHANNELS, shape.D - chunk0);
  Head<T> q[1] = {head_of_qkv(qkv, 0, place.b, place.h, shape)}, k[1] = {head_of_qkv(qkv, 1, place.b, place.h, shape)};
  Head<T> v = head_of_qkv(qkv, 2, place.b, place.h, shape);
  Policy policy(settings, sink ? to_float(sink[place.h]) : settings.sink, place.h);
  Mask mask(settings, shape.T, shape.head_number(place.b, place.h));
  auto tiles = mask.template key_tiles<Tile::STREAM>(i0, Tile::HELD);
  mask.template hold<false>(i0, Tile::HELD);
  Positions<Mask, EACH> at(mask, i0 + mine.held);

  float out_sum[OUTPUTS][R][EACH] = {}, sums[SUMS + 1][EACH], z[1][X][EACH];  // + 1: an array may not have length 0
  // f(the sums of row e). Sums are stored by sum, then by row, so that loops over e become vector code.
  auto with_sums = [&](int e, auto f) {
    float s[SUMS + 1];
    for (int n = 0; n < SUMS; n++) s[n] = sums[n][e];
    f(s);
    for (int n = 0; n < SUMS; n++) sums[n][e] = s[n];
  };
  for (int sweep = 0; sweep < Policy::SWEEPS; sweep++) {
    bool weighing = sweep == Policy::SWEEPS - 1;
    for (int e = 0; e < EACH; e++)
      with_sums(e, [&](float* s) { policy.start_sweep(sweep, mask.keys(i0 + mine.held + e), s, mine.first == 0); });
    for (int j0 = tiles.begin; j0 < tiles.stop; j0 = tiles.next(j0)) {
      // Scores, masked
      score_tiles<Tile>(z, query_tile, stream_tile, q, i0, k, j0, place, sweep == 0 && j0 == tiles.begin);
      mask_scores<Tile, false>(z[0], mask, i0, j0);
      if constexpr (Policy::IS_FORMULA) {
#pragma unroll
        for (int x = 0; x < X; x++)
#pragma unroll
          for (int e = 0; e < EACH; e++)
            z[0][x][e] = policy.score(z[0][x][e], at(e, i0 + mine.held + e), at(e, j0 + mine.streamed(x)));
      }

      // First of two sweeps
      if (!weighing) {
#pragma unroll
        for (int x = 0; x < X; x++)
          for (int e = 0; e < EACH; e++)
            with_sums(e, [&](float* s) {
              look_at_score(policy, z[0][x][e], s, at(e, i0 + mine.held + e), at(e, j0 + mine.streamed(x)));
            });
        continue;
      }

      // Largest score of each row so far, factor for older sums
      if constexpr (Policy::RESCALES) {
        float top[EACH];
        for (int e = 0; e < EACH; e++) {
          top[e] = z[0][0][e];
          for (int x = 1; x < X; x++) top[e] = max(top[e], z[0][x][e]);
        }
        write_neighbours(partial + mine.first * Tile::HELD + mine.held, top);
      }
      __syncthreads();  // the keys have been read, the maxima written
      load_stream<Tile>(stream_tile, v, j0, chunk0);
      if constexpr (Policy::RESCALES) {
        float top[EACH];
        read_neighbours(top, partial + mine.held);
#pragma unroll 1  // more at a time would spill
        for (int n = 1; n < Tile::SHARERS; n++) {
          float other[EACH];
          read_neighbours(other, partial + n * Tile::HELD + mine.held);
          for (int e = 0; e < EACH; e++) top[e] = max(top[e], other[e]);
        }
        for (int e = 0; e < EACH; e++)
          with_sums(e, [&](float* s) { top[e] = policy.rescale(s, top[e]); });  // now factors
        if (mine.first == 0) write_neighbours(factors + mine.held, top);
      }

      // Weights
#pragma unroll
      for (int x = 0; x < X; x++) {
        float* to = weight_tile + mine.streamed(x) * Tile::HELD_STRIDE + bank_padded(mine.held);
#pragma unroll
        for (int e0 = 0; e0 < EACH; e0 += AT_ONCE) {
          float weights[OUTPUTS][AT_ONCE], row[CONSTANTS + 1][AT_ONCE];
          for (int n = 0; n < CONSTANTS; n++) read_neighbours(row[n], constants + n * Tile::HELD + mine.held + e0);
          for (int e = 0; e < AT_ONCE; e++) {
            float c[CONSTANTS + 1], w[OUTPUTS];
            for (int n = 0; n < CONSTANTS; n++) c[n] = row[n][e];
            with_sums(e0 + e, [&](float* s) {
              weigh_score(policy, z[0][x][e0 + e], c, s, w, at(e0 + e, i0 + mine.held + e0 + e),
                          at(e0 + e, j0 + mine.streamed(x)));
            });
            for (int n = 0; n < OUTPUTS; n++) weights[n][e] = w[n];
          }
          for (int n = 0; n < OUTPUTS; n++) write_neighbours(to + n * Tile::WEIGHT_FLOATS + e0, weights[n]);
        }
      }
      __syncthreads();

      // Outputs
      if (ours.channel >= width) continue;
      if constexpr (Policy::RESCALES) {
        for (int r = 0; r < R; r++)
          for (int n = 0; n < OUTPUTS; n++)
            for (int e = 0; e < EACH; e++) out_sum[n][r][e] *= factors[ours.held + r];
      }
      for (int n = 0; n < OUTPUTS; n++) add_sums<Tile>(out_sum[n], weight_tile + n * Tile::WEIGHT_FLOATS, stream_tile);
    }

    // End of the sweep: one of the threads that share a row merges their sums, always in the same order
    for (int n = 0; n < SUMS; n++)
      write_neighbours(partial + (n * Tile::SHARERS + mine.first) * Tile::HELD + mine.held, sums[n]);
    __syncthreads();
    if (mine.first != 0) continue;
#pragma unroll 1
    for (int m = 1; m < Tile::SHARERS; m++) {
      float other[SUMS + 1][EACH];
      for (int n = 0; n < SUMS; n++)
        read_neighbours(other[n], partial + (n * Tile::SHARERS + m) * Tile::HELD + mine.held);
      for (int e = 0; e < EACH; e++) {
        float o[SUMS + 1];
        for (int n = 0; n < SUMS; n++) o[n] = other[n][e];
        with_sums(e, [&](float* s) { policy.merge(sweep, s, o); });
      }
    }
#pragma unroll  // or softmaxr's sums, whose index is e, would not be in registers
    for (int e = 0; e < EACH; e++) {
      int r = mine.held + e, i = i0 + r;
      float c[CONSTANTS + 1], factor[OUTPUTS], saved[Policy::SAVED + 1];
      if (!weighing) {
        with_sums(e, [&](float* s) { policy.row_constants(mask.keys(i), s, c); });
        for (int n = 0; n < CONSTANTS; n++) constants[n * Tile::HELD + r] = c[n];
        continue;
      }
      for (int n = 0; n < CONSTANTS; n++) c[n] = constants[n * Tile::HELD + r];
      with_sums(e, [&](float* s) { policy.finish(mask.keys(i), c, s, factor, saved); });
      for (int n = 0; n < OUTPUTS; n++) factors[n * Tile::HELD + r] = factor[n];
      if (!stats || place.chunk != 0 || i >= shape.T) continue;
      for (int n = 0; n < Policy::SAVED; n++)
        stats[n * shape.rows() + shape.first_row(place.b, place.h) + i] = saved[n];
    }
  }
  __syncthreads();

  // Store outputs
  size_t A = size_t(shape.H) * shape.D;
  for (int r = 0; r < R; r++) {
    int i = i0 + ours.held + r;
    if (i >= shape.T || ours.channel >= width) continue;
    for (int n = 0; n < OUTPUTS; n++)
      for (int e = 0; e < EACH; e++) out_sum[n][r][e] *= factors[n * Tile::HELD + ours.held + r];
    T* to = out + (size_t(place.b) * shape.T + i) * A + size_t(place.h) * shape.D;
    store_channels(to, out_sum[0][r], chunk0 + ours.channel, shape.D, shape.wide);
    if constexpr (OUTPUTS > 1)
      if (stats) {
        float* second = stats + Policy::SAVED * shape.rows();
        second += (shape.first_row(place.b, place.h) + i) * shape.D;
        store_channels(second, out_sum[1][r], chunk0 + ours.channel, shape.D, false);
      }
  }
}

// ---- backward

// Keys are held, queries stream past: dk = sum of dz q, dv = sum of P dO, over the queries that see a key.
template <class T, class Policy, class Mask, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, Tile::BLOCKS)
    attention_backward_keys_kernel(T* dqkv, float* dz_by_key, const T* dout, const float* rows, const T* qkv,
                                   KernelSettings settings, KernelShape shape) {
  constexpr int X = Tile::STREAMED_EACH, R = Tile::SUM_ROWS, ROW_VALUES = Policy::ROW_VALUES;
  DYNAMIC_SHARED(float, shared);
  float* held_tiles = shared;                                // k, v
  float* stream_tiles = held_tiles + 2 * Tile::HELD_FLOATS;  // q, dO
  float* dz_tile = stream_tiles + 2 * Tile::STREAM_FLOATS;
  float* p_tile = dz_tile + Tile::WEIGHT_FLOATS;
  Place place = place_of_block<Tile>(shape, false);
  ScorePlace<Tile> mine;
  SumPlace<Tile> ours;
  int j0 = place.row, chunk0 = place.chunk * Tile::CHANNELS, width = min(Tile::CHANNELS, shape.D - chunk0);
  Head<T> held[2] = {head_of_qkv(qkv, 1, place.b, place.h, shape), head_of_qkv(qkv, 2, place.b, place.h, shape)};
  Head<T> streamed[2] = {head_of_qkv(qkv, 0, place.b, place.h, shape), head_of_out(dout, place.b, place.h, shape)};
  size_t count = shape.rows(), first_row = shape.first_row(place.b, place.h);
  rows += first_row;
  Policy policy(settings, 0, place.h);
  Mask mask(settings, shape.T, shape.head_number(place.b, place.h));
  auto tiles = mask.template query_tiles<Tile::STREAM>(j0, Tile::HELD);
  mask.template hold<true>(j0, Tile::HELD);
  Positions<Mask, EACH> at(mask, j0 + mine.held);

  float dk[R][EACH] = {}, dv[R][EACH] = {}, z[2][X][EACH], dz_sums[Tile::ROWS_EACH] = {};
  for (int i0 = tiles.begin; i0 < tiles.stop; i0 = tiles.next(i0)) {
    // Scores, masked, and dP
    score_tiles<Tile>(z, held_tiles, stream_tiles, held, j0, streamed, i0, place, i0 == tiles.begin);
    reload_own_chunk<Tile>(stream_tiles, streamed, i0, place);
    mask_scores<Tile, true>(z[0], mask, j0, i0);

    // P and dz
#pragma unroll
    for (int x = 0; x < X; x++) {
      int i = i0 + mine.streamed(x);
      float row[ROW_VALUES + 1];
      for (int n = 0; n < ROW_VALUES; n++) row[n] = i < shape.T ? rows[n * count + i] : 0;
      int to = mine.streamed(x) * Tile::HELD_STRIDE + bank_padded(mine.held);
#pragma unroll
      for (int e0 = 0; e0 < EACH; e0 += AT_ONCE) {
        float p[AT_ONCE], dz[AT_ONCE];
        for (int e = 0; e < AT_ONCE; e++)
          score_gradient(policy, z[0][x][e0 + e], z[1][x][e0 + e], row, p[e], dz[e], at(e0 + e, i),
                         at(e0 + e, j0 + mine.held + e0 + e));
        write_neighbours(p_tile + to + e0, p);
        write_neighbours(dz_tile + to + e0, dz);
      }
    }
    __syncthreads();

    // Sums for the bias, and for dk and dv
    if constexpr (Mask::ADDS)
      if (mask.bias) add_held_row_sums<Tile>(dz_sums, dz_tile);
    if (ours.channel >= width) continue;
    add_sums<Tile>(dk, dz_tile, stream_tiles);
    add_sums<Tile>(dv, p_tile, stream_tiles + Tile::STREAM_FLOATS);
  }
  size_t A = size_t(shape.H) * shape.D;
  for (int r = 0; r < R; r++) {
    int j = j0 + ours.held + r;
    if (j >= shape.T || ours.channel >= width) continue;
    T* to = dqkv + (size_t(place.b) * shape.T + j) * shape.qkv_stride + A + size_t(place.h) * shape.D;
    store_channels(to, dk[r], chunk0 + ours.channel, shape.D, shape.wide);
    store_channels(to + A, dv[r], chunk0 + ours.channel, shape.D, shape.wide);
  }
  if constexpr (Mask::ADDS)
    if (mask.bias && place.chunk == 0) store_held_row_sums<Tile>(dz_by_key + first_row + j0, dz_sums, shape.T - j0);
}

// Queries are held, keys stream past: dq = sum of dz k, over the keys that a query sees.
template <class T, class Policy, class Mask, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, Tile::BLOCKS)
    attention_backward_queries_kernel(T* dqkv, float* dz_by_query, float* learned_sums, const T* dout,
                                      const float* rows, const T* qkv, KernelSettings settings, KernelShape shape) {
  constexpr int X = Tile::STREAMED_EACH, R = Tile::SUM_ROWS, ROW_VALUES = Policy::ROW_VALUES;
  DYNAMIC_SHARED(float, shared);
  float* held_tiles = shared;                                // q, dO
  float* stream_tiles = held_tiles + 2 * Tile::HELD_FLOATS;  // k, v
  float* dz_tile = stream_tiles + 2 * Tile::STREAM_FLOATS;
  float* row_tile = dz_tile + Tile::WEIGHT_FLOATS;  // [ROW_VALUES][HELD]
  Place place = place_of_block<Tile>(shape, true);
  ScorePlace<Tile> mine;
  SumPlace<Tile> ours;
  int i0 = place.row, chunk0 = place.chunk * Tile::CHANNELS, width = min(Tile::CHANNELS, shape.D - chunk0);
  Head<T> held[2] = {head_of_qkv(qkv, 0, place.b, place.h, shape), head_of_out(dout, place.b, place.h, shape)};
  Head<T> streamed[2] = {head_of_qkv(qkv, 1, place.b, place.h, shape), head_of_qkv(qkv, 2, place.b, place.h, shape)};
  size_t count = shape.rows(), first_row = shape.first_row(place.b, place.h);
  rows += first_row;
  Policy policy(settings, 0, place.h);
  Mask mask(settings, shape.T, shape.head_number(place.b, place.h));
  auto tiles = mask.template key_tiles<Tile::STREAM>(i0, Tile::HELD);
  mask.template hold<false>(i0, Tile::HELD);
  Positions<Mask, EACH> at(mask, i0 + mine.held);

  float dq[R][EACH] = {}, z[2][X][EACH], dz_sums[Tile::ROWS_EACH] = {}, learned[EACH][Policy::LEARNED + 1] = {};
  for (int n = threadIdx.x; n < ROW_VALUES * Tile::HELD; n += Tile::THREADS) {
    int i = i0 + n % Tile::HELD;
    row_tile[n] = i < shape.T ? rows[n / Tile::HELD * count + i] : 0;
  }
  for (int j0 = tiles.begin; j0 < tiles.stop; j0 = tiles.next(j0)) {
    // Scores, masked, and dP
    score_tiles<Tile>(z, held_tiles, stream_tiles, held, i0, streamed, j0, place, j0 == tiles.begin);
    reload_own_chunk<Tile>(stream_tiles, streamed, j0, place);
    mask_scores<Tile, false>(z[0], mask, i0, j0);

    // dz
#pragma unroll
    for (int x = 0; x < X; x++) {
      float* to = dz_tile + mine.streamed(x) * Tile::HELD_STRIDE + bank_padded(mine.held);
#pragma unroll
      for (int e0 = 0; e0 < EACH; e0 += AT_ONCE) {
        float dz[AT_ONCE], row[ROW_VALUES + 1][AT_ONCE];
        for (int n = 0; n < ROW_VALUES; n++) read_neighbours(row[n], row_tile + n * Tile::HELD + mine.held + e0);
#pragma unroll
        for (int e = 0; e < AT_ONCE; e++) {
          float r[ROW_VALUES + 1], p;
          for (int n = 0; n < ROW_VALUES; n++) r[n] = row[n][e];
          float i = at(e0 + e, i0 + mine.held + e0 + e), j = at(e0 + e, j0 + mine.streamed(x));
          score_gradient(policy, z[0][x][e0 + e], z[1][x][e0 + e], r, p, dz[e], i, j);
          if constexpr (Policy::LEARNED > 0)
            policy.add_learned(learned[e0 + e], z[0][x][e0 + e], z[1][x][e0 + e], r, i, j);
        }
        write_neighbours(to + e0, dz);
      }
    }
    __syncthreads();

    // Sums for the bias, and for dq
    if constexpr (Mask::ADDS)
      if (mask.bias) add_held_row_sums<Tile>(dz_sums, dz_tile);
    if (ours.channel < width) add_sums<Tile>(dq, dz_tile, stream_tiles);
  }
  for (int r = 0; r < R; r++) {
    int i = i0 + ours.held + r;
    if (i >= shape.T || ours.channel >= width) continue;
    T* to = dqkv + (size_t(place.b) * shape.T + i) * shape.qkv_stride + size_t(place.h) * shape.D;
    store_channels(to, dq[r], chunk0 + ours.channel, shape.D, shape.wide);
  }
  if constexpr (Mask::ADDS)
    if (mask.bias && place.chunk == 0) store_held_row_sums<Tile>(dz_by_query + first_row + i0, dz_sums, shape.T - i0);

      // Sums for learned numbers: of the threads that share a row, always in the same order
#pragma unroll
  for (int l = 0; l < Policy::LEARNED; l++) {
    __syncthreads();
#pragma unroll
    for (int e = 0; e < EACH; e++) dz_tile[mine.first * Tile::HELD + mine.held + e] = learned[e][l];
    __syncthreads();
    for (int r = threadIdx.x; r < Tile::HELD && place.chunk == 0; r += Tile::THREADS) {
      float sum = 0;
      for (int n = 0; n < Tile::SHARERS; n++) sum += dz_tile[n * Tile::HELD + r];
      if (i0 + r < shape.T) learned_sums[l * count + first_row + i0 + r] = sum;
    }
  }
}

// ---- statistics of the weights: queries are held, keys stream past

// The bin of RowStatistic::REACH: the length of the distance as a binary number. Exact up to 2^24.
__device__ inline int reach_bin(int distance) { return max((__float_as_int(float(distance)) >> 23) - 126, 0); }

// Which of the tile's weights a thread adds up: those of ROWS held rows, a vector on a CPU, and of a part of the keys.
template <class Tile> struct StatisticPlace {
  static constexpr int ROWS = on_cpu ? EACH : 1, PARTS = on_cpu ? 1 : Tile::THREADS / Tile::HELD;
  static constexpr int KEYS = Tile::STREAM / PARTS;
  static_assert(PARTS >= 1 && Tile::STREAM % PARTS == 0);
  int held = int(threadIdx.x) % (Tile::HELD / ROWS) * ROWS, part = int(threadIdx.x) / (Tile::HELD / ROWS);
};

// sums [PARTS][count][HELD] += the statistics of a tile of weights, -1 where a row does not see the key.
template <class Tile, class Mask>
__device__ CPU_OUT_OF_LINE void add_statistics(float* sums, const float* weight_tile, const Mask& mask, int i0, int j0,
                                               int count) {
  constexpr int ROWS = StatisticPlace<Tile>::ROWS, PARTS = StatisticPlace<Tile>::PARTS,
                KEYS = StatisticPlace<Tile>::KEYS;
  StatisticPlace<Tile> ours;
  if (ours.part >= PARTS) return;
  sums += size_t(ours.part) * count * Tile::HELD + ours.held;
  int starts[ROWS];
  for (int r = 0; r < ROWS; r++) starts[r] = mask.first(i0 + ours.held + r);
  float sum[RowStatistic::REACH][ROWS];
  for (int n = 0; n < RowStatistic::REACH; n++)
    for (int r = 0; r < ROWS; r++) sum[n][r] = sums[n * Tile::HELD + r];
  for (int s = ours.part * KEYS; s < (ours.part + 1) * KEYS; s++) {
    int distance = i0 + ours.held - (j0 + s);  // of the first row
    if (distance + ROWS <= 0) break;
    const float* weights = weight_tile + s * Tile::HELD_STRIDE + bank_padded(ours.held);
    float p[ROWS];
    for (int r = 0; r < ROWS; r++) {
      p[r] = max(weights[r], 0.0f);
      sum[RowStatistic::SUM][r] += p[r];
      sum[RowStatistic::P_LOG_P][r] = fmaf(p[r], log_normal(max(p[r], 0x1p-126f)), sum[RowStatistic::P_LOG_P][r]);
      sum[RowStatistic::FIRST][r] = fmaf(j0 + s == starts[r] ? 1.0f : 0.0f, p[r], sum[RowStatistic::FIRST][r]);
      sum[RowStatistic::LARGEST][r] = max(sum[RowStatistic::LARGEST][r], p[r]);
      sum[RowStatistic::DISTANCE][r] = fmaf(p[r], float(distance + r), sum[RowStatistic::DISTANCE][r]);
      sum[RowStatistic::ZEROS][r] += weights[r] == 0 ? 1.0f : 0.0f;
      sum[RowStatistic::KEYS][r] += weights[r] >= 0 ? 1.0f : 0.0f;
    }
    float* reach = sums + RowStatistic::REACH * Tile::HELD;
    // Rows beyond T, which are never written, have distances beyond the last bin.
    auto bin = [&](int d) { return min(reach_bin(max(d, 0)), count - RowStatistic::REACH - 1); };
    int near = bin(distance), far = bin(distance + ROWS - 1);
    if (near == far) {
      for (int r = 0; r < ROWS; r++) reach[near * Tile::HELD + r] += p[r];
    } else {
      for (int r = 0; r < ROWS; r++) reach[bin(distance + r) * Tile::HELD + r] += p[r];
    }
  }
  for (int n = 0; n < RowStatistic::REACH; n++)
    for (int r = 0; r < ROWS; r++) sums[n * Tile::HELD + r] = sum[n][r];
}

template <class T, class Policy, class Mask, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, Tile::BLOCKS)
    attention_diagnose_kernel(float* statistics, const float* stats, const T* qkv, KernelSettings settings,
                              KernelShape shape, int count) {
  constexpr int X = Tile::STREAMED_EACH, ROW_VALUES = Policy::ROW_VALUES, PARTS = StatisticPlace<Tile>::PARTS;
  DYNAMIC_SHARED(float, shared);
  float* query_tile = shared;
  float* key_tile = query_tile + Tile::HELD_FLOATS;
  float* weight_tile = key_tile + Tile::STREAM_FLOATS;   // -1 where the row does not see the key
  float* row_tile = weight_tile + Tile::WEIGHT_FLOATS;   // [ROW_VALUES][HELD]
  float* all_sums = row_tile + ROW_VALUES * Tile::HELD;  // [PARTS][count][HELD]
  Place place = {int(blockIdx.z), int(blockIdx.y), int(gridDim.x - 1 - blockIdx.x) * Tile::HELD, 0,
                 shape.chunks(Tile::CHANNELS)};
  ScorePlace<Tile> mine;
  int i0 = place.row;
  Head<T> q[1] = {head_of_qkv(qkv, 0, place.b, place.h, shape)}, k[1] = {head_of_qkv(qkv, 1, place.b, place.h, shape)};
  size_t all_rows = shape.rows(), first_row = shape.first_row(place.b, place.h);
  Policy policy(settings, 0, place.h);
  Mask mask(settings, shape.T, shape.head_number(place.b, place.h));
  auto tiles = mask.template key_tiles<Tile::STREAM>(i0, Tile::HELD);
  mask.template hold<false>(i0, Tile::HELD);
  Positions<Mask, EACH> at(mask, i0 + mine.held);

  for (int n = threadIdx.x; n < PARTS * count * Tile::HELD; n += Tile::THREADS) all_sums[n] = 0;
  for (int r = threadIdx.x; r < Tile::HELD; r += Tile::THREADS) {
    float dot[2] = {0, 0}, saved[Policy::SAVED + 1], row[ROW_VALUES + 1] = {};
    if (i0 + r < shape.T) {
      for (int n = 0; n < Policy::SAVED; n++) saved[n] = stats[n * all_rows + first_row + i0 + r];
      policy.row_for_backward(mask.keys(i0 + r), saved, dot, row);
    }
    for (int n = 0; n < ROW_VALUES; n++) row_tile[n * Tile::HELD + r] = row[n];
  }
  float z[1][X][EACH], sizes[EACH] = {}, largest[EACH] = {};  // of |z| in units of the kind
  for (int j0 = tiles.begin; j0 < tiles.stop; j0 = tiles.next(j0)) {
    // Scores, masked
    score_tiles<Tile>(z, query_tile, key_tile, q, i0, k, j0, place, j0 == tiles.begin);
    mask_scores<Tile, false>(z[0], mask, i0, j0);

    // Weights
#pragma unroll
    for (int x = 0; x < X; x++) {
      for (int e = 0; e < EACH; e++) {
        float size = z[0][x][e] == -INFINITY ? 0 : fabsf(z[0][x][e]);
        sizes[e] += size, largest[e] = max(largest[e], size);
      }
      float* to = weight_tile + mine.streamed(x) * Tile::HELD_STRIDE + bank_padded(mine.held);
#pragma unroll
      for (int e0 = 0; e0 < EACH; e0 += AT_ONCE) {
        float weights[AT_ONCE], row[ROW_VALUES + 1][AT_ONCE];
        for (int n = 0; n < ROW_VALUES; n++) read_neighbours(row[n], row_tile + n * Tile::HELD + mine.held + e0);
        for (int e = 0; e < AT_ONCE; e++) {
          float r[ROW_VALUES + 1], p, dz, score = z[0][x][e0 + e];
          for (int n = 0; n < ROW_VALUES; n++) r[n] = row[n][e];
          score_gradient(policy, score, 0, r, p, dz, at(e0 + e, i0 + mine.held + e0 + e),
                         at(e0 + e, j0 + mine.streamed(x)));
          weights[e] = score == -INFINITY ? -1 : p;
        }
        write_neighbours(to + e0, weights);
      }
    }
    __syncthreads();

    add_statistics<Tile>(all_sums, weight_tile, mask, i0, j0, count);
  }
  // The sizes of scores: of the threads that share a row, one after the other
  for (int statistic = RowStatistic::SCORES; statistic <= RowStatistic::SCORE; statistic++) {
    bool sum = statistic == RowStatistic::SCORES;
    __syncthreads();
    write_neighbours(weight_tile + mine.first * Tile::HELD + mine.held, sum ? sizes : largest);
    __syncthreads();
    for (int r = threadIdx.x; r < Tile::HELD; r += Tile::THREADS) {
      float all = 0;
      for (int n = 0; n < Tile::SHARERS; n++)
        all = sum ? all + weight_tile[n * Tile::HELD + r] : max(all, weight_tile[n * Tile::HELD + r]);
      all_sums[statistic * Tile::HELD + r] = all;
    }
  }
  __syncthreads();

  // The parts together, always in the same order
  for (int n = threadIdx.x; n < count * Tile::HELD; n += Tile::THREADS) {
    int i = i0 + n % Tile::HELD;
    if (i >= shape.T) continue;
    float sum = all_sums[n];
    for (int part = 1; part < PARTS; part++) {
      float other = all_sums[part * count * Tile::HELD + n];
      bool largest_of = n / Tile::HELD == RowStatistic::LARGEST || n / Tile::HELD == RowStatistic::SCORE;
      sum = largest_of ? max(sum, other) : sum + other;
    }
    statistics[(n / Tile::HELD) * all_rows + first_row + i] = sum;
  }
}

// ---- launchers

#ifndef GENERAL_WIDTHS
#define GENERAL_WIDTHS 32, 64, 128
#endif

// f.operator()<WIDTH>() with the width for heads of D channels.
template <bool CPU, class F> void with_general_width(int D, F f) {
  [&]<int... WIDTHS>(std::integer_sequence<int, WIDTHS...>) { with_width<general_width(WIDTHS, CPU)...>(D, f); }
  (std::integer_sequence<int, GENERAL_WIDTHS>());
}

template <class Tile> dim3 grid_of(const KernelShape& s) {
  return dim3(s.tiles(Tile::HELD) * s.chunks(Tile::CHANNELS), s.H, s.B);
}

// Floor: 2 T^2 D FLOPs per head and product pair (causal), at float32's rate of the plain units; bytes 4 N A elements.
// If scores take C chunks (D > 128), the work is (C + 1) / 2 times as much.
template <class T, class Policy, class Mask, bool CPU = on_cpu> void general_forward(const ForwardCall<T>& c) {
  KernelShape shape = kernel_shape<T>(c.call, {c.out, c.qkv});
  with_general_width<CPU>(c.call.shape.D, [&]<int WIDTH>() {
    using Tile = GeneralTile<WIDTH, general_forward_size(WIDTH, Policy::SWEEPS > 1 || BY_POSITION<Policy>, CPU)>;
    size_t floats = Tile::template FORWARD_FLOATS<Policy>;
    LAUNCH((attention_forward_kernel<T, Policy, Mask, Tile>), grid_of<Tile>(shape), dim3(Tile::THREADS),
           floats * sizeof(float), c.call.stream, c.out, c.stats, c.qkv, c.sink, c.settings, shape);
  });
}

// Floor: 7 products of T^2 D FLOPs per head (the FlashAttention count is 5: both kernels compute scores and dP).
template <class T, class Policy, class Mask, bool CPU = on_cpu> void general_backward(const BackwardCall<T>& c) {
  KernelShape shape = kernel_shape<T>(c.call, {c.dqkv, c.dout, c.out, c.qkv});
  write_row_values<T, Policy, Mask>(c, shape);
  with_general_width<CPU>(c.call.shape.D, [&]<int WIDTH>() {
    using Tile = GeneralTile<WIDTH, general_backward_size(WIDTH, BY_POSITION<Policy>, CPU)>;
    size_t floats = Tile::BACKWARD_FLOATS;
    LAUNCH((attention_backward_keys_kernel<T, Policy, Mask, Tile>), grid_of<Tile>(shape), dim3(Tile::THREADS),
           floats * sizeof(float), c.call.stream, c.dqkv, c.workspace.dz_by_key, c.dout, c.workspace.row_values, c.qkv,
           c.settings, shape);
    LAUNCH((attention_backward_queries_kernel<T, Policy, Mask, Tile>), grid_of<Tile>(shape), dim3(Tile::THREADS),
           (floats - Tile::WEIGHT_FLOATS + Policy::ROW_VALUES * Tile::HELD) * sizeof(float), c.call.stream, c.dqkv,
           c.workspace.dz_by_query, c.workspace.learned_sums, c.dout, c.workspace.row_values, c.qkv, c.settings, shape);
  });
}

// Floor: a product of T^2 D FLOPs per head, and some 20 operations for each pair.
template <class T, class Policy, class Mask>
void general_diagnose(float* statistics, const float* stats, const T* qkv, const AttentionCall<T>& call,
                      const KernelSettings& settings) {
  KernelShape shape = kernel_shape<T>(call, {qkv});
  with_general_width<on_cpu>(call.shape.D, [&]<int WIDTH>() {
    using Tile = GeneralTile<WIDTH, general_backward_size(WIDTH, BY_POSITION<Policy>, on_cpu)>;
    int count = row_statistics(call.shape.T);
    size_t floats = Tile::HELD_FLOATS + Tile::STREAM_FLOATS + Tile::WEIGHT_FLOATS +
                    (Policy::ROW_VALUES + StatisticPlace<Tile>::PARTS * count) * Tile::HELD;
    LAUNCH((attention_diagnose_kernel<T, Policy, Mask, Tile>), dim3(shape.tiles(Tile::HELD), shape.H, shape.B),
           dim3(Tile::THREADS), floats * sizeof(float), call.stream, statistics, stats, qkv, settings, shape, count);
  });
}

// ---- the family

// A CPU has one instance for all masks, to compile in half the time.
template <class T, class File> bool add_general_of(Kind kind) {
  using Policies = PolicyOf<File, FullMaths>;
  using Mask = std::conditional_t<on_cpu, OwnDocument<Biased>, Causal>;
  Family<T> f = {.name = "general"};
  f.saved = Policies::Usual::SAVED, f.vectors = Policies::Usual::OUTPUTS - 1;
  f.forward = [](const ForwardCall<T>& c) {
    Policies::choose(c.settings, [&]<class Policy>() { general_forward<T, Policy, Mask>(c); });
  };
  f.evaluate = [](const ForwardCall<T>& c) {
    Policies::choose(c.settings, [&]<class Policy>() { general_forward<T, typename Policy::Evaluation, Mask>(c); });
  };
  f.backward = [](const BackwardCall<T>& c) {
    Policies::choose(c.settings, [&]<class Policy>() { general_backward<T, Policy, Mask>(c); });
  };
  f.diagnose = [](float* statistics, const float* stats, const T* qkv, const AttentionCall<T>& call,
                  const KernelSettings& settings) {
    Policies::choose(
        settings, [&]<class Policy>() { general_diagnose<T, Policy, Mask>(statistics, stats, qkv, call, settings); });
  };
  return add_family(kind, f);
}
template <class File> bool add_general(Kind kind) {
  return add_general_of<float, File>(kind) && add_general_of<bf16, File>(kind);
}

}  // namespace
