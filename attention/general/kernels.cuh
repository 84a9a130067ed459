// The general attention kernels: every kind, any head dimension, any T, float and bf16. Blocks keep tiles of one
// sequence in shared memory and let the other stream past (tiles.cuh); tiles that no row sees are never touched. Each
// thread computes 16 by one to four elements of a product in registers. The backward has two kernels, dK and dV by
// tiles of keys and dQ by tiles of queries, so that one thread computes each sum, in one order; a CPU may have one for
// all three. Heads of more than 128 channels are done 128 output channels at a time, and each time the scores are
// computed again.
#pragma once
#include "attention/families.h"
#include "attention/policy.cuh"
#include "attention/general/diagnose.cuh"
#include "attention/general/tiles.cuh"

namespace {

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
        for (int r = 0; r < R; r++) {
          float factor = factors[ours.held + r];
          if (on_cpu && factor == 1) continue;  // as most are; and g++ makes vectors of channels then, not of rows
          for (int n = 0; n < OUTPUTS; n++)
            for (int e = 0; e < EACH; e++) out_sum[n][r][e] *= factor;
        }
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

// Keys are held, queries stream past, for the tile of keys at `place`: dk = sum of dz q, dv = sum of P dO, over the
// queries that see a key. WITH_DQ: also dq += sum of dz k, of the head at dq, and dz_by_query += its sums.
template <bool WITH_DQ, class Policy, class Mask, class Tile, class T>
__device__ __forceinline__ void backward_of_keys(T* dqkv, float* dz_by_key, float* dq, float* dz_by_query,
                                                 const T* dout, const float* rows, const T* qkv,
                                                 const KernelSettings& settings, const KernelShape& shape,
                                                 const Place& place, float* shared) {
  constexpr int X = Tile::STREAMED_EACH, R = Tile::SUM_ROWS, ROW_VALUES = Policy::ROW_VALUES;
  float* held_tiles = shared;                                // k, v
  float* stream_tiles = held_tiles + 2 * Tile::HELD_FLOATS;  // q, dO
  float* dz_tile = stream_tiles + 2 * Tile::STREAM_FLOATS;
  float* p_tile = dz_tile + Tile::WEIGHT_FLOATS;
  float* key_rows = p_tile + Tile::WEIGHT_FLOATS;  // k as a stream tile
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

  if constexpr (WITH_DQ) {
    __syncthreads();  // the keys before these have been read
    load_stream<Tile>(key_rows, held[0], j0, chunk0);
  }
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

    // Sums for the bias, for dk and dv, and for dq
    if constexpr (Mask::ADDS)
      if (mask.bias) {
        add_held_row_sums<Tile>(dz_sums, dz_tile);
        if constexpr (WITH_DQ) add_streamed_row_sums<Tile>(dz_by_query + first_row + i0, shape.T - i0, dz_tile);
      }
    if (ours.channel >= width) continue;
    add_sums<Tile>(dk, dz_tile, stream_tiles);
    add_sums<Tile>(dv, p_tile, stream_tiles + Tile::STREAM_FLOATS);
    if constexpr (WITH_DQ)
      add_streamed_products<Tile>(dq + i0 * shape.qkv_stride, shape.T - i0, shape, dz_tile, key_rows);
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

template <class T, class Policy, class Mask, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, Tile::BLOCKS)
    attention_backward_keys_kernel(T* dqkv, float* dz_by_key, const T* dout, const float* rows, const T* qkv,
                                   KernelSettings settings, KernelShape shape) {
  DYNAMIC_SHARED(float, shared);
  backward_of_keys<false, Policy, Mask, Tile>(dqkv, dz_by_key, nullptr, nullptr, dout, rows, qkv, settings, shape,
                                              place_of_block<Tile>(shape, false), shared);
}

// All gradients of a head of one chunk in float32, whose keys a block takes tile by tile in ascending order: each score
// is computed once, and five products do the work of seven.
template <class Policy, class Mask, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, Tile::BLOCKS)
    attention_backward_heads_kernel(float* dqkv, float* dz_by_key, float* dz_by_query, const float* dout,
                                    const float* rows, const float* qkv, KernelSettings settings, KernelShape shape) {
  DYNAMIC_SHARED(float, shared);
  Place place = {int(blockIdx.z), int(blockIdx.y), 0, 0, 1};
  float* dq = dqkv + size_t(place.b) * shape.T * shape.qkv_stride + size_t(place.h) * shape.D;
  for (int i = threadIdx.x; i < shape.T; i += Tile::THREADS) {
    for (int c = 0; c < shape.D; c++) dq[i * shape.qkv_stride + c] = 0;
    if (settings.bias) dz_by_query[shape.first_row(place.b, place.h) + i] = 0;
  }
  for (; place.row < shape.T; place.row += Tile::HELD)
    backward_of_keys<true, Policy, Mask, Tile>(dqkv, dz_by_key, dq, dz_by_query, dout, rows, qkv, settings, shape,
                                               place, shared);
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

// ---- launchers

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

// Floor: 7 products of T^2 D FLOPs per head (the FlashAttention count is 5: both kernels compute scores and dP), or 5.
template <class T, class Policy, class Mask, bool CPU = on_cpu> void general_backward(const BackwardCall<T>& c) {
  KernelShape shape = kernel_shape<T>(c.call, {c.dqkv, c.dout, c.out, c.qkv});
  write_row_values<T, Policy, Mask>(c, shape);
  with_general_width<CPU>(c.call.shape.D, [&]<int WIDTH>() {
    using Tile = GeneralTile<WIDTH, general_backward_size(WIDTH, BY_POSITION<Policy>, CPU)>;
    size_t floats = Tile::BACKWARD_FLOATS;
    if constexpr (CPU && std::is_same_v<T, float> && Policy::LEARNED == 0)
      if (shape.chunks(Tile::CHANNELS) == 1 && heads_occupy(cpu_threads(), shape.B * shape.H, 0.8))
        return LAUNCH((attention_backward_heads_kernel<Policy, Mask, Tile>), dim3(1, shape.H, shape.B),
                      dim3(Tile::THREADS), (floats + Tile::STREAM_FLOATS) * sizeof(float), c.call.stream, c.dqkv,
                      c.workspace.dz_by_key, c.workspace.dz_by_query, c.dout, c.workspace.row_values, c.qkv, c.settings,
                      shape);
    LAUNCH((attention_backward_keys_kernel<T, Policy, Mask, Tile>), grid_of<Tile>(shape), dim3(Tile::THREADS),
           floats * sizeof(float), c.call.stream, c.dqkv, c.workspace.dz_by_key, c.dout, c.workspace.row_values, c.qkv,
           c.settings, shape);
    LAUNCH((attention_backward_queries_kernel<T, Policy, Mask, Tile>), grid_of<Tile>(shape), dim3(Tile::THREADS),
           (floats - Tile::WEIGHT_FLOATS + Policy::ROW_VALUES * Tile::HELD) * sizeof(float), c.call.stream, c.dqkv,
           c.workspace.dz_by_query, c.workspace.learned_sums, c.dout, c.workspace.row_values, c.qkv, c.settings, shape);
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
