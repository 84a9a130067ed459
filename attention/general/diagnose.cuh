// Statistics of the weights (attention_diagnose()), of any kind. As in the forward pass queries are held and keys
// stream past; weights are those that the backward pass computes.
#pragma once
#include "attention/policy.cuh"
#include "attention/general/tiles.cuh"

namespace {

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

}  // namespace
