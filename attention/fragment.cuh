// For both families on tensor cores, mma.sync's and wgmma's: the elements of a product's result that a lane has, and
// the work on scores and weights there.
#pragma once
#include "attention/heads.cuh"
#include "attention/policy.cuh"

// A warp's result d[M][N][4] has 16 M rows and 8 N columns: d[m][n][2 half + c] is in row(half, m) and column(n) + c.
// first: the warp's first row, where a caller counts the rows of several warps.
struct Fragment {
  int thread = int(threadIdx.x), lane_row = thread % WARP / 4, quad = thread % 4, first = 0;
  __device__ __forceinline__ int row(int half, int m = 0) const { return first + 16 * m + 8 * half + lane_row; }
  __device__ __forceinline__ int column(int n) const { return 8 * n + 2 * quad; }
  // The same as a number, if column(0) is `first`: an addition is cheaper than a conversion.
  static __device__ __forceinline__ float column(float first, int n, int c) { return first + float(8 * n + c); }
};

// f(m, half) for every row of which a lane has elements, unrolled.
template <int M, class F> __device__ __forceinline__ void for_rows(F f) {
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int half = 0; half < 2; half++) f(m, half);
}

// Two weights, of column(n) and the next, as a register of the left operand of columns 16 (n / 2) to 16 (n / 2) + 15.
__device__ __forceinline__ void keep_weights(unsigned (&operand)[4], int n, int half, float low, float high) {
  operand[half + n % 2 * 2] = pack_pair(low, high);
}

template <int M, int N> __device__ __forceinline__ void clear(float (&z)[M][N][4]) {
  for_rows<M>([&](int m, int half) {
#pragma unroll
    for (int n = 0; n < N; n++) z[m][n][2 * half] = z[m][n][2 * half + 1] = 0;
  });
}

// z = c_i - c_j of the warp's held rows, counted from held0, and streamed rows from stream0 on, for products to add to;
// KEYS: keys are held. streamed: the mask's bias_rows(stream0), or a copy.
template <bool KEYS, class Mask, int M, int N>
__device__ __forceinline__ void begin_with_bias(float (&z)[M][N][4], const Mask& mask, int held0, int stream0,
                                                const BiasRows& streamed, const Fragment& mine) {
  constexpr int ALIKE = N < BIAS_ROWS / 8 ? N : BIAS_ROWS / 8;
  static_assert(8 * N <= BIAS_SLACK && 16 * M <= BIAS_ROWS);
  auto columns = reinterpret_cast<const float2*>(streamed.c + mine.column(0));
#pragma unroll
  for (int first = 0; first < N; first += ALIKE) {  // columns of one origin
    float2 origin = streamed.origins[first / ALIKE];
    float held[M][2];
    for_rows<M>([&](int m, int half) {
      int row = held0 + mine.row(half, m);
      held[m][half] = mask.c()[row] + mask.origin_difference(row, held0 + mine.first, stream0 + 8 * first, origin);
    });
#pragma unroll
    for (int n = first; n < first + ALIKE; n++) {
      float2 c = columns[4 * n];
      for_rows<M>([&](int m, int half) {
        z[m][n][2 * half] = KEYS ? c.x - held[m][half] : held[m][half] - c.x;
        z[m][n][2 * half + 1] = KEYS ? c.y - held[m][half] : held[m][half] - c.y;
      });
    }
  }
}

// z = what the mask adds to the scores of these rows, read where it is stored, or 0.
template <bool KEYS, class Mask, int M, int N>
__device__ __forceinline__ void begin_scores(float (&z)[M][N][4], const Mask& mask, int held0, int stream0,
                                             const Fragment& mine = {}) {
  if constexpr (Mask::ADDS) begin_with_bias<KEYS>(z, mask, held0, stream0, mask.bias_rows(stream0), mine);
  else clear(z);
}

// Hides scores z of the same rows as the mask wants it.
template <bool KEYS, class Mask, int M, int N>
__device__ __forceinline__ void mask_scores(float (&z)[M][N][4], const Mask& mask, int held0, int stream0,
                                            const Fragment& mine = {}) {
  hide_scores<KEYS>(mask, held0 + mine.first, 16 * M, stream0, 8 * N, [&](auto sees) {
    for_rows<M>([&](int m, int half) {
#pragma unroll
      for (int n = 0; n < N; n++)
#pragma unroll
        for (int c = 0; c < 2; c++)
          if (!sees(held0 + mine.row(half, m), stream0 + mine.column(n) + c)) z[m][n][2 * half + c] = -INFINITY;
    });
  });
}

// With a policy of a file: z = what weigh() takes, of the warp's queries, counted from i0, and keys from j0 on.
template <class Policy, class Mask, int M, int N>
__device__ __forceinline__ void score_formula(float (&z)[M][N][4], const Policy& policy, const Mask& mask, int i0,
                                              int j0, const Fragment& mine = {}) {
  for_rows<M>([&](int m, int half) {
    int row = i0 + mine.row(half, m);
    float i = position(mask, row, row), first = position(mask, row, j0 + mine.column(0));
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int c = 0; c < 2; c++) {
        float& score = z[m][n][2 * half + c];
        score = policy.score(score, i, mine.column(first, n, c));
      }
  });
}

// The first sweep over the scores that a lane has of query i, from 0, in a tile of keys from j0 on: N / 2 pairs of
// neighbouring columns. seen: how many of the query's scores the lane has had, with these.
template <class Policy, class Mask, int N>
__device__ __forceinline__ void first_sweep_row(const Policy& policy, const Mask& mask, const float (&z)[N], int seen,
                                                float* sums, int i, int j0, const Fragment& mine) {
  if constexpr (HAS_TILE<Policy> && !Policy::POSITIONS) {
    policy.first_sweep_tile(z, seen, sums);
  } else {
    float first = position(mask, i, j0 + mine.column(0));
#pragma unroll
    for (int n = 0; n < N; n++)
      look_at_score(policy, z[n], sums, position(mask, i, i), mine.column(first, n / 2, n % 2));
  }
}

// With a bias: to[row] = the sum of dz of each of the warp's held rows, of which the four lanes of a row have parts.
template <int M>
__device__ __forceinline__ void store_dz_sums(float* to, int held0, int T, float (&sums)[M][2],
                                              const Fragment& mine = {}) {
  for_rows<M>([&](int m, int half) {
    float& sum = sums[m][half];
#pragma unroll
    for (int mask = 1; mask <= 2; mask *= 2) sum += shuffle_xor(sum, mask);
    int row = held0 + mine.row(half, m);
    if (mine.quad == 0 && row < T) to[row] = sum;
  });
}

// With learned numbers: to[l * count + row] = those sums of their gradients.
template <class Policy, int M>
__device__ __forceinline__ void store_learned_sums(float* to, size_t count, int held0, int T,
                                                   const float (&sums)[M][2][Policy::LEARNED + 1],
                                                   const Fragment& mine = {}) {
#pragma unroll
  for (int l = 0; l < Policy::LEARNED; l++) {
    float of_rows[M][2];
    for_rows<M>([&](int m, int half) { of_rows[m][half] = sums[m][half][l]; });
    store_dz_sums(to + l * count, held0, T, of_rows, mine);
  }
}
