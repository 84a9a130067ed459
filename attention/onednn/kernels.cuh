// bf16 attention on a CPU: oneDNN multiplies tiles of 64 queries and 64 keys with the CPU's bf16 instructions, and the
// kind's policy turns scores into weights between two products. Any kind, mask, head dimension and T. Tiles are
// [key][query], so a policy works on a vector of queries whose sums and constants are vectors too. q, k, v and dO are
// read where they are; weights and dz are rounded to bf16, as on tensor cores.
//
// The forward pass takes a tile of queries at a time, the backward pass a tile of keys, which adds to the queries'
// gradients too: then each score is computed once, and five products suffice where kernels for keys and for queries
// need seven. Tiles of keys add to a query tile in their order, so bits do not depend on the number of threads.
#pragma once
#include <sched.h>
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "attention/heads.cuh"
#include "attention/policy.cuh"
#include "emulation/onednn.h"
#include "emulation/pool.h"
#include "emulation/streams.h"
#include "kernels/profile.h"

namespace {

constexpr int SIDE = 64;              // of a tile
constexpr int LANES = 16;             // queries of a vector
using FloatTile = float[SIDE][SIDE];  // [key][query]
using Bf16Tile = bf16[SIDE][SIDE];
using QueryFloats = float[SIDE];  // one for each query of a tile

// d[m, n] = op(a)[m, k] op(b)[k, n], += if `add`. By plain loops where oneDNN has no kernel or a wrong one.
struct Operand {
  const bf16* x;
  int ld;
  bool transposed = false;
  float at(int row, int column) const {
    return to_float(x[size_t(transposed ? column : row) * ld + (transposed ? row : column)]);
  }
};
void multiply(int m, int n, int k, const Operand& a, const Operand& b, float* d, int ldd, bool add) {
  cpu::Product product{m, n, k, a.transposed, b.transposed, a.ld, b.ld, ldd, true, add ? 1.0f : 0.0f};
  if (cpu::multiply_by_onednn(product, a.x, b.x, d)) return;
  for (int row = 0; row < m; row++)
    for (int column = 0; column < n; column++) {
      float sum = add ? d[size_t(row) * ldd + column] : 0;
      for (int c = 0; c < k; c++) sum += a.at(row, c) * b.at(c, column);
      d[size_t(row) * ldd + column] = sum;
    }
}

// Rows of a head from `row` on, or a tile's rows, which are its keys: as they are, or as columns.
Operand rows_of(const Head<bf16>& head, int row) { return {head.x + row * head.stride, int(head.stride)}; }
Operand columns_of(const Head<bf16>& head, int row) { return {head.x + row * head.stride, int(head.stride), true}; }
Operand rows_of(const Bf16Tile& tile) { return {tile[0], SIDE}; }
Operand columns_of(const Bf16Tile& tile) { return {tile[0], SIDE, true}; }

// Rounded, and 0 beyond the last key and query: stale numbers there might be NaN, which no kernel may multiply.
void round_tile(Bf16Tile& to, const FloatTile& from, int keys, int queries) {
  for (int key = 0; key < SIDE; key++)
    for (int e = 0; e < SIDE; e++) to[key][e] = from_float<bf16>(key < keys && e < queries ? from[key][e] : 0);
}

// The memory of a thread. Elements beyond the last query or key have no meaning, but are initialised.
struct Scratch {
  FloatTile z, dp;              // scores and dP, then weights, or P and dz
  Bf16Tile weights[2];          // those, rounded
  std::vector<float> products;  // with D columns
};
Scratch& scratch_of_thread() {
  static thread_local auto scratch = std::make_unique<Scratch>();
  return *scratch;
}

// z as the mask wants it: queries from i0, `keys` keys from j0.
template <class Mask> void mask_scores(FloatTile& z, const Mask& mask, int i0, int j0, int keys) {
  if (mask.bias) {
    double c[SIDE];
    for (int e = 0; e < SIDE; e++) c[e] = mask.exact(i0 + e);
    for (int key = 0; key < keys; key++) {
      double of_key = mask.exact(j0 + key);
      for (int e = 0; e < SIDE; e++) z[key][e] += float(c[e] - of_key);
    }
  }
  hide_scores<false>(mask, i0, SIDE, j0, SIDE, [&](auto sees) {
    for (int key = 0; key < keys; key++)
      for (int e = 0; e < SIDE; e++) z[key][e] = sees(i0 + e, j0 + key) ? z[key][e] : -INFINITY;
  });
}

// Numbers of a tile's queries, N for each, and f(query, its numbers), which may change them, for a vector of queries.
template <int N> struct QueryNumbers {
  float of[N + 1][SIDE] = {};  // + 1: an array may not have length 0
  template <class F> __forceinline__ void at(int e, F f) {
    float s[N + 1];
    for (int n = 0; n < N; n++) s[n] = of[n][e];
    f(s);
    for (int n = 0; n < N; n++) of[n][e] = s[n];
  }
};

void store_row(bf16* to, const float* from, int D, float factor = 1) {
  for (int d = 0; d < D; d++) to[d] = from_float<bf16>(from[d] * factor);
}

// ---- forward

// The factor of each query's output so far, now that its sums have these scores.
template <class Policy>
void find_factors(QueryFloats& factor, const Policy& policy, QueryNumbers<Policy::SUMS>& sums, const FloatTile& z,
                  int keys) {
  std::copy_n(z[0], SIDE, factor);
  for (int key = 1; key < keys; key++)
    for (int e = 0; e < SIDE; e++) factor[e] = max(factor[e], z[key][e]);
  for (int e = 0; e < SIDE; e++) sums.at(e, [&](float* s) { factor[e] = policy.rescale(s, factor[e]); });
}

// Scores z become weights, those of a second output in dp.
template <class Policy, class Positions>
void weigh_scores(Scratch& scratch, const Policy& policy, QueryNumbers<Policy::SUMS>& sums,
                  const QueryNumbers<Policy::CONSTANTS>& constants, const Positions& at, int i0, int j0, int keys) {
  constexpr int OUTPUTS = Policy::OUTPUTS;
  for (int e0 = 0; e0 < SIDE; e0 += LANES)
    for (int key = 0; key < keys; key++)
      for (int e = e0; e < e0 + LANES; e++) {
        float w[OUTPUTS], row[Policy::CONSTANTS + 1];
        for (int n = 0; n < Policy::CONSTANTS; n++) row[n] = constants.of[n][e];
        sums.at(e,
                [&](float* s) { weigh_score(policy, scratch.z[key][e], row, s, w, at(e, i0 + e), at(e, j0 + key)); });
        scratch.z[key][e] = w[0];
        if constexpr (OUTPUTS > 1) scratch.dp[key][e] = w[1];
      }
}

struct QueryRows {  // of head h of sequence b
  int b, h, i0, count;
};

template <class Policy, class Mask>
void store_rows(const ForwardCall<bf16>& c, const KernelShape& shape, const Policy& policy, const Mask& mask,
                QueryNumbers<Policy::SUMS>& sums, QueryNumbers<Policy::CONSTANTS>& constants, float* const* out,
                QueryRows rows) {
  constexpr int OUTPUTS = Policy::OUTPUTS;
  int D = shape.D;
  for (int e = 0; e < rows.count; e++) {
    float factor[OUTPUTS], saved[Policy::SAVED + 1];
    int i = rows.i0 + e;
    constants.at(
        e, [&](float* row) { sums.at(e, [&](float* s) { policy.finish(mask.keys(i), row, s, factor, saved); }); });
    store_row(c.out + ((size_t(rows.b) * shape.T + i) * shape.H + rows.h) * D, out[0] + size_t(e) * D, D, factor[0]);
    if (!c.stats) continue;
    size_t row = shape.first_row(rows.b, rows.h) + i;
    for (int n = 0; n < Policy::SAVED; n++) c.stats[n * shape.rows() + row] = saved[n];
    if constexpr (OUTPUTS > 1) {
      float* second = c.stats + Policy::SAVED * shape.rows() + row * D;
      for (int d = 0; d < D; d++) second[d] = out[1][size_t(e) * D + d] * factor[1];
    }
  }
}

// Output and statistics of the queries from i0 of head h of sequence b.
template <class Policy, class Mask>
void forward_tile(const ForwardCall<bf16>& c, const KernelShape& shape, int b, int h, int i0) {
  constexpr int OUTPUTS = Policy::OUTPUTS;
  Scratch& scratch = scratch_of_thread();
  int T = shape.T, D = shape.D, queries = std::min(SIDE, T - i0);
  Head<bf16> q = head_of_qkv(c.qkv, 0, b, h, shape), k = head_of_qkv(c.qkv, 1, b, h, shape),
             v = head_of_qkv(c.qkv, 2, b, h, shape);
  const Policy policy(c.settings, c.sink ? to_float(c.sink[h]) : c.settings.sink, h);
  Mask mask(c.settings, T, shape.head_number(b, h));
  mask.template hold<false>(i0, SIDE);
  const Positions<Mask, SIDE> at(mask, i0);
  auto tiles = mask.template key_tiles<SIDE>(i0, SIDE);
  QueryNumbers<Policy::SUMS> sums;
  QueryNumbers<Policy::CONSTANTS> constants;
  if (scratch.products.size() < size_t(OUTPUTS) * SIDE * D) scratch.products.resize(size_t(OUTPUTS) * SIDE * D);
  float* out[OUTPUTS];
  for (int n = 0; n < OUTPUTS; n++) out[n] = &scratch.products[size_t(n) * SIDE * D];

  for (int sweep = 0; sweep < Policy::SWEEPS; sweep++) {
    bool weighing = sweep == Policy::SWEEPS - 1;
    for (int e = 0; e < SIDE; e++) sums.at(e, [&](float* s) { policy.start_sweep(sweep, mask.keys(i0 + e), s, true); });
    for (int j0 = tiles.begin; j0 < tiles.stop; j0 = tiles.next(j0)) {
      int keys = std::min(SIDE, T - j0);
      multiply(keys, queries, D, rows_of(k, j0), columns_of(q, i0), scratch.z[0], SIDE, false);
      mask_scores(scratch.z, mask, i0, j0, keys);
      if constexpr (Policy::IS_FORMULA) {
        for (int key = 0; key < keys; key++)
          for (int e = 0; e < SIDE; e++)
            scratch.z[key][e] = policy.score(scratch.z[key][e], at(e, i0 + e), at(e, j0 + key));
      }
      if (!weighing) {
        for (int e0 = 0; e0 < SIDE; e0 += LANES)
          for (int key = 0; key < keys; key++)
            for (int e = e0; e < e0 + LANES; e++)
              sums.at(e,
                      [&](float* s) { look_at_score(policy, scratch.z[key][e], s, at(e, i0 + e), at(e, j0 + key)); });
        continue;
      }
      if constexpr (Policy::RESCALES) {
        QueryFloats factor;
        find_factors(factor, policy, sums, scratch.z, keys);
        for (int e = 0; e < queries && j0 != tiles.begin; e++)
          for (int n = 0; n < OUTPUTS; n++)
            for (int d = 0; d < D; d++) out[n][size_t(e) * D + d] *= factor[e];
      }
      weigh_scores(scratch, policy, sums, constants, at, i0, j0, keys);
      round_tile(scratch.weights[0], scratch.z, keys, queries);
      if constexpr (OUTPUTS > 1) round_tile(scratch.weights[1], scratch.dp, keys, queries);
      for (int n = 0; n < OUTPUTS; n++)
        multiply(queries, D, keys, columns_of(scratch.weights[n]), rows_of(v, j0), out[n], D, j0 != tiles.begin);
    }
    if (!weighing)
      for (int e = 0; e < SIDE; e++)
        constants.at(
            e, [&](float* row) { sums.at(e, [&](float* s) { policy.row_constants(mask.keys(i0 + e), s, row); }); });
  }

  store_rows(c, shape, policy, mask, sums, constants, out, {b, h, i0, queries});
}

// ---- backward

// The work on one head. Threads take its tiles of keys in order. A tile of queries is its key tiles' in turn, so the
// first of those under way never waits, however few threads there are.
struct HeadWork {
  std::atomic<int> taken = 0;                // tiles of keys
  std::unique_ptr<std::atomic<int>[]> turn;  // by tile of queries: the first row of the tile of keys that adds next
  float* dq;                                 // [T, D]
};

// Scores z become weights P, and dp, of weights, becomes dz, of scores. learned += the gradients of learned numbers.
template <class Policy, class Positions>
void find_gradients(Scratch& scratch, const Policy& policy, QueryNumbers<Policy::ROW_VALUES>& rows,
                    QueryNumbers<Policy::LEARNED>& learned, const Positions& at, int i0, int j0, int keys) {
  for (int key = 0; key < keys; key++)
    for (int e = 0; e < SIDE; e++)
      rows.at(e, [&](float* row) {
        float z = scratch.z[key][e], dp = scratch.dp[key][e], i = at(e, i0 + e), j = at(e, j0 + key);
        score_gradient(policy, z, dp, row, scratch.z[key][e], scratch.dp[key][e], i, j);
        if constexpr (Policy::LEARNED > 0) learned.at(e, [&](float* l) { policy.add_learned(l, z, dp, row, i, j); });
      });
}

// The sums of dz, of a mask with a bias. Beyond the last query dz is no query's.
void add_dz(QueryFloats& by_key, QueryFloats& by_query, const FloatTile& dz, int keys, int queries) {
  for (int key = 0; key < keys; key++) {
    for (int e = 0; e < queries; e++) by_key[key] += dz[key][e];
    for (int e = 0; e < SIDE; e++) by_query[e] += dz[key][e];
  }
}

// Until the tile of keys from j0 may add to a tile of queries. False if another tile threw.
bool wait_for_turn(const std::atomic<int>& turn, int j0, const std::atomic<bool>& failed) {
  while (turn.load(std::memory_order_acquire) != j0) {
    if (failed) return false;
    sched_yield();
  }
  return true;
}

// dk and dv of the tile of keys from j0 of head h of sequence b, from the rows' numbers in c.workspace. Adds its share
// to work.dq and, where the settings ask for them, to the sums of dz and of the gradients of learned numbers. The last
// tile that adds to a query, at the diagonal, stores its dq. Returns early once `failed` says that another tile threw.
template <class Policy, class Mask>
void backward_tile(const BackwardCall<bf16>& c, const KernelShape& shape, int b, int h, int j0, HeadWork& work,
                   const std::atomic<bool>& failed) {
  constexpr int ROW_VALUES = Policy::ROW_VALUES, LEARNED = Policy::LEARNED;
  Scratch& scratch = scratch_of_thread();
  Bf16Tile &p_tile = scratch.weights[0], &dz_tile = scratch.weights[1];
  int T = shape.T, D = shape.D, keys = std::min(SIDE, T - j0);
  size_t first_row = shape.first_row(b, h), count = shape.rows(), A = size_t(shape.H) * D;
  Head<bf16> q = head_of_qkv(c.qkv, 0, b, h, shape), k = head_of_qkv(c.qkv, 1, b, h, shape),
             v = head_of_qkv(c.qkv, 2, b, h, shape), dout = head_of_out(c.dout, b, h, shape);
  const Policy policy(c.settings, 0, h);
  Mask mask(c.settings, T, shape.head_number(b, h));
  if (scratch.products.size() < size_t(2) * SIDE * D) scratch.products.resize(size_t(2) * SIDE * D);
  float *dk = scratch.products.data(), *dv = dk + SIDE * D, dz_by_key[SIDE] = {};
  bf16* gradients = c.dqkv + size_t(b) * T * shape.qkv_stride + size_t(h) * D;
  auto store = [&](const float* from, int part, int row) {
    store_row(gradients + row * shape.qkv_stride + part * A, from, D);
  };

  auto tiles = mask.template query_tiles<SIDE>(j0, SIDE);
  for (int i0 = tiles.begin; i0 < tiles.stop; i0 = tiles.next(i0)) {
    int queries = std::min(SIDE, T - i0);
    bool later = i0 != tiles.begin;
    mask.template hold<false>(i0, SIDE);
    const Positions<Mask, SIDE> at(mask, i0);
    multiply(keys, queries, D, rows_of(k, j0), columns_of(q, i0), scratch.z[0], SIDE, false);
    multiply(keys, queries, D, rows_of(v, j0), columns_of(dout, i0), scratch.dp[0], SIDE, false);
    mask_scores(scratch.z, mask, i0, j0, keys);
    QueryNumbers<ROW_VALUES> rows;
    QueryNumbers<LEARNED> learned;
    for (int n = 0; n < ROW_VALUES; n++)
      std::copy_n(c.workspace.row_values + n * count + first_row + i0, queries, rows.of[n]);
    QueryFloats dz_by_query = {};
    find_gradients(scratch, policy, rows, learned, at, i0, j0, keys);
    if (mask.bias) add_dz(dz_by_key, dz_by_query, scratch.dp, keys, queries);
    round_tile(p_tile, scratch.z, keys, queries);
    round_tile(dz_tile, scratch.dp, keys, queries);
    multiply(keys, D, queries, rows_of(dz_tile), rows_of(q, i0), dk, D, later);
    multiply(keys, D, queries, rows_of(p_tile), rows_of(dout, i0), dv, D, later);

    if (!wait_for_turn(work.turn[i0 / SIDE], j0, failed)) return;
    auto key_tiles = mask.template key_tiles<SIDE>(i0, SIDE);
    bool add = j0 != key_tiles.begin;
    float* dq = work.dq + size_t(i0) * D;
    multiply(queries, D, keys, columns_of(dz_tile), rows_of(k, j0), dq, D, add);
    auto add_to = [&](float* sums, const float* x) {
      for (int e = 0; e < queries; e++) sums[first_row + i0 + e] = add ? sums[first_row + i0 + e] + x[e] : x[e];
    };
    if (mask.bias) add_to(c.workspace.dz_by_query, dz_by_query);
    for (int l = 0; l < LEARNED; l++) add_to(c.workspace.learned_sums + l * count, learned.of[l]);
    if (j0 == i0)
      for (int e = 0; e < queries; e++) store(dq + size_t(e) * D, 0, i0 + e);
    work.turn[i0 / SIDE].store(key_tiles.next(j0), std::memory_order_release);
  }
  for (int key = 0; key < keys; key++) {
    store(dk + size_t(key) * D, 1, j0 + key);
    store(dv + size_t(key) * D, 2, j0 + key);
    if (mask.bias) c.workspace.dz_by_key[first_row + j0 + key] = dz_by_key[key];
  }
}

// A head for each thread; threads that find no new one help with those that are not done.
template <class Policy, class Mask> void backward_heads(const BackwardCall<bf16>& c, const KernelShape& shape) {
  int heads = shape.B * shape.H, tiles = shape.tiles(SIDE);
  size_t of_head = size_t(shape.T) * shape.D;
  auto dq = std::make_unique_for_overwrite<float[]>(heads * of_head);
  std::vector<HeadWork> work(heads);
  for (int n = 0; n < heads; n++) {
    work[n].turn = std::make_unique<std::atomic<int>[]>(tiles), work[n].dq = &dq[n * of_head];
    for (int i = 0; i < tiles; i++)
      work[n].turn[i] = Mask(c.settings, shape.T, n).template key_tiles<SIDE>(i * SIDE, SIDE).begin;
  }
  std::atomic<bool> failed = false;
  cpu::parallel_for(heads * std::min(tiles, cpu::pool_threads()), [&](int n) {
    n %= heads;
    try {
      for (int j; (j = work[n].taken++) < tiles && !failed;)
        backward_tile<Policy, Mask>(c, shape, n / shape.H, n % shape.H, j * SIDE, work[n], failed);
    } catch (...) {
      failed = true;
      throw;
    }
  });
}

// ---- the family

// A CPU has one instance for all masks, to compile in half the time.
using EveryMask = OwnDocument<Biased>;

template <class Policy> void onednn_forward(const ForwardCall<bf16>& c) {
  KernelShape shape = kernel_shape<bf16>(c.call, {c.out, c.qkv});
  ProfileScope scope("attention_forward_onednn", c.call.stream);
  int tiles = shape.tiles(SIDE), heads = shape.B * shape.H;
  cpu::put_on(c.call.stream, [=] {
    cpu::parallel_for(int64_t(tiles) * heads, [&](int n) {  // the tiles with the most keys first
      forward_tile<Policy, EveryMask>(c, shape, n % heads / shape.H, n % shape.H, (tiles - 1 - n / heads) * SIDE);
    });
  });
}

template <class Policy> void onednn_backward(const BackwardCall<bf16>& c) {
  KernelShape shape = kernel_shape<bf16>(c.call, {c.dqkv, c.dout, c.out, c.qkv});
  write_row_values<bf16, Policy, EveryMask>(c, shape);
  ProfileScope scope("attention_backward_onednn", c.call.stream);
  cpu::put_on(c.call.stream, [c, shape] { backward_heads<Policy, EveryMask>(c, shape); });
}

// The forward pass saves the same numbers as the general kernels.
template <class File> bool add_onednn(Kind kind) {
  using Policies = PolicyOf<File, FullMaths>;
  Family<bf16> f = {.name = "onednn", .has_instructions = cpu::onednn_multiplies_bf16};
  f.saved = Policies::Usual::SAVED, f.vectors = Policies::Usual::OUTPUTS - 1;
  f.forward = [](const ForwardCall<bf16>& c) {
    Policies::choose(c.settings, [&]<class Policy>() { onednn_forward<Policy>(c); });
  };
  f.evaluate = [](const ForwardCall<bf16>& c) {
    Policies::choose(c.settings, [&]<class Policy>() { onednn_forward<typename Policy::Evaluation>(c); });
  };
  f.backward = [](const BackwardCall<bf16>& c) {
    Policies::choose(c.settings, [&]<class Policy>() { onednn_backward<Policy>(c); });
  };
  return add_family(kind, f);
}

}  // namespace
