// Warp operations as meetings: every lane leaves a request in its stack frame, and the last to arrive serves all 32.
// Lane numbers, fragment layouts and rounding are the GPU's (kernels/gpu.cuh has the contracts).
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include "emulation/pool.h"
#include "emulation/tensor_core.h"

namespace cpu {

// Meets the other lanes with a request; the last to arrive calls serve(requests), an array of 32 pointers.
template <class Request, class Serve>
CPU_NO_TSAN inline void meet(const char* what, const char* file, int line, Request& request, Serve serve) {
  Thread& thread = *self;
  if (!arrive(thread, what, file, line, &request)) return;
  serve(reinterpret_cast<Request**>(thread.warp->request));
  dismiss(*thread.warp);
}

template <class T> struct Shuffle {
  T value;
  int from;
};

template <class T> CPU_NO_TSAN inline T shuffle(const char* what, const char* file, int line, T value, int from) {
  static_assert(sizeof(T) == 4);
  Shuffle<T> mine{value, from};
  meet(what, file, line, mine, [](Shuffle<T>** all) CPU_NO_TSAN {
    T values[warp_size];
    for (int i = 0; i < warp_size; ++i) values[i] = all[i]->value;
    for (int i = 0; i < warp_size; ++i) all[i]->value = values[all[i]->from & 31];
  });
  return mine.value;
}

CPU_NO_TSAN inline unsigned vote(const char* file, int line, bool value) {
  unsigned mine = value;
  meet("ballot", file, line, mine, [](unsigned** all) CPU_NO_TSAN {
    unsigned votes = 0;
    for (int i = 0; i < warp_size; ++i) votes |= *all[i] << i;
    for (int i = 0; i < warp_size; ++i) *all[i] = votes;
  });
  return mine;
}

// The butterfly v = op(v, shuffle_xor(v, 16)), then 8, 4, 2, 1: op is commutative, so all lanes end with the same bits.
template <int X, class Op>
CPU_NO_TSAN inline void warp_reduce(const char* what, const char* file, int line, float (&v)[X], Op op) {
  meet(what, file, line, v, [op](float(**all)[X]) CPU_NO_TSAN {
    for (int x = 0; x < X; ++x) {
      float t[warp_size];
      for (int i = 0; i < warp_size; ++i) t[i] = (*all[i])[x];
      for (int half = 16; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) t[i] = op(t[i], t[i + half]);
      for (int i = 0; i < warp_size; ++i) (*all[i])[x] = t[0];
    }
  });
}

template <int X> CPU_NO_TSAN inline void quad_max(const char* file, int line, float (&v)[X]) {
  meet("quad_max", file, line, v, [](float(**all)[X]) CPU_NO_TSAN {
    for (int first = 0; first < warp_size; first += 4)
      for (int x = 0; x < X; ++x) {
        float most = (*all[first])[x];
        for (int i = 1; i < 4; ++i) most = fmaxf(most, (*all[first + i])[x]);
        for (int i = 0; i < 4; ++i) (*all[first + i])[x] = most;
      }
  });
}

template <int M, int N> struct Mma {
  float (*d)[N][4];
  const unsigned (*a)[4];
  const unsigned (*b)[2];
};

// Vectors of 16 bytes. zip: two lower, or upper, halves, element by element in turn; compilers make one shuffle of it.
using Words [[gnu::vector_size(16), gnu::aligned(4)]] = unsigned;
using Halves [[gnu::vector_size(16)]] = unsigned short;
CPU_NO_TSAN inline Words zip_low(Words a, Words b) { return Words{a[0], b[0], a[1], b[1]}; }
CPU_NO_TSAN inline Words zip_high(Words a, Words b) { return Words{a[2], b[2], a[3], b[3]}; }
CPU_NO_TSAN inline Halves zip_low(Halves a, Halves b) { return Halves{a[0], b[0], a[1], b[1], a[2], b[2], a[3], b[3]}; }
CPU_NO_TSAN inline Halves zip_high(Halves a, Halves b) {
  return Halves{a[4], b[4], a[5], b[5], a[6], b[6], a[7], b[7]};
}

// Transposes four rows of four words by two perfect shuffles.
CPU_NO_TSAN inline void transpose(const unsigned* r0, const unsigned* r1, const unsigned* r2, const unsigned* r3,
                                  unsigned* c0, unsigned* c1, unsigned* c2, unsigned* c3) {
  auto load = [](const unsigned* p) CPU_NO_TSAN { return *reinterpret_cast<const Words*>(p); };
  auto store = [](unsigned* p, Words v) CPU_NO_TSAN { *reinterpret_cast<Words*>(p) = v; };
  Words v0 = load(r0), v1 = load(r1), v2 = load(r2), v3 = load(r3);
  Words w0 = zip_low(v0, v2), w1 = zip_high(v0, v2), w2 = zip_low(v1, v3), w3 = zip_high(v1, v3);
  store(c0, zip_low(w0, w2)), store(c1, zip_high(w0, w2));
  store(c2, zip_low(w1, w3)), store(c3, zip_high(w1, w3));
}

// Splits a word that holds two bf16 elements into its lower and its upper element; or words.
CPU_NO_TSAN inline void unpack_pair(unsigned word, float& low, float& high) {
  low = __builtin_bit_cast(float, word << 16), high = __builtin_bit_cast(float, word & 0xffff0000u);
}
template <int n> CPU_NO_TSAN inline void unpack(const unsigned (&words)[n], float (&low)[n], float (&high)[n]) {
  for (int i = 0; i < n; ++i) unpack_pair(words[i], low[i], high[i]);
}

// D += A B for all tiles at once: fragments to matrices, multiply, and back to the fragments. The layouts are in
// kernels/gpu.cuh; here q counts pairs in k within four, g rows of A, columns of B.
template <int M, int N> CPU_NO_TSAN void mma_serve(Mma<M, N>** all) {
  constexpr int columns = N * 8;
  unsigned pairs_b[8][columns];
  for (int q = 0; q < 4; ++q)
    for (int g = 0; g < 8; g += 4) {
      const unsigned(*b[4])[2];
      for (int k = 0; k < 4; ++k) b[k] = all[4 * (g + k) + q]->b;
      int j = 0;
      for (; j + 1 < N; j += 2)
        transpose(b[0][j], b[1][j], b[2][j], b[3][j], &pairs_b[q][j * 8 + g], &pairs_b[q + 4][j * 8 + g],
                  &pairs_b[q][j * 8 + 8 + g], &pairs_b[q + 4][j * 8 + 8 + g]);
      if (j < N)
        for (int k = 0; k < 4; ++k) pairs_b[q][j * 8 + g + k] = b[k][j][0], pairs_b[q + 4][j * 8 + g + k] = b[k][j][1];
    }
  alignas(64) float b[16][columns];
  for (int k = 0; k < 8; ++k) unpack(pairs_b[k], b[2 * k], b[2 * k + 1]);

  for (int i = 0; i < M; ++i) {
    alignas(64) float a[16][16], d[16][columns];
    for (int g = 0; g < 8; ++g) {
      unsigned upper[8], lower[8];
      Mma<M, N>** lane = all + 4 * g;
      transpose(lane[0]->a[i], lane[1]->a[i], lane[2]->a[i], lane[3]->a[i], upper, lower, upper + 4, lower + 4);
      for (int k = 0; k < 8; ++k) {
        unpack_pair(upper[k], a[g][2 * k], a[g][2 * k + 1]);
        unpack_pair(lower[k], a[g + 8][2 * k], a[g + 8][2 * k + 1]);
      }
    }
    auto for_each_pair = [&](auto f) CPU_NO_TSAN {  // f(two neighbours in d, where their lane keeps them)
      for (int lane = 0; lane < warp_size; ++lane)
        for (int j = 0; j < N; ++j) {
          float* sum = &d[lane / 4][j * 8 + 2 * (lane % 4)];
          f(sum, all[lane]->d[i][j]), f(sum + 8 * columns, all[lane]->d[i][j] + 2);
        }
    };
    for_each_pair([](float* sum, const float* from) CPU_NO_TSAN { sum[0] = from[0], sum[1] = from[1]; });
    multiply_on_core({d[0], columns, a[0], 16, b[0], columns, 16, columns, 16}, CoreOp::mma);
    for_each_pair([](const float* sum, float* to) CPU_NO_TSAN { to[0] = sum[0], to[1] = sum[1]; });
  }
}

template <int X> struct LoadMatrix {
  unsigned (*r)[4];
  const void* const* row;
};

struct alignas(16) Bytes16 {
  unsigned x[4];
};
inline Bytes16 read_row(const void* row) { return *static_cast<const Bytes16*>(row); }  // seen by the sanitizers

// Transposes an 8 x 8 matrix of 16-bit elements by three perfect shuffles.
CPU_NO_TSAN inline void transpose8(Bytes16 (&m)[8]) {
  for (int round = 0; round < 3; ++round) {
    Halves rows[8];
    for (int i = 0; i < 4; ++i) {
      Halves upper = *reinterpret_cast<Halves*>(m[i].x), lower = *reinterpret_cast<Halves*>(m[i + 4].x);
      rows[2 * i] = zip_low(upper, lower), rows[2 * i + 1] = zip_high(upper, lower);
    }
    for (int i = 0; i < 8; ++i) *reinterpret_cast<Halves*>(m[i].x) = rows[i];
  }
}

template <int X, bool transposed> CPU_NO_TSAN void ldmatrix_serve(LoadMatrix<X>** all) {
  for (int x = 0; x < X; ++x) {
    Bytes16 m[4][8];
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < 8; ++j) m[i][j] = read_row(all[8 * i + j]->row[x]);
      if (transposed) transpose8(m[i]);
    }
    for (int g = 0; g < 8; ++g) {
      LoadMatrix<X>** lane = all + 4 * g;
      transpose(m[0][g].x, m[1][g].x, m[2][g].x, m[3][g].x, lane[0]->r[x], lane[1]->r[x], lane[2]->r[x], lane[3]->r[x]);
    }
  }
}

// cp.async: a thread's copies are queued and made at its wait, so that a missing wait changes the results.
void copy_later(void* to, const void* from, bool valid);
void commit_copies();
void deliver_copies(int groups_left);  // all but those of the newest groups_left groups

}  // namespace cpu
