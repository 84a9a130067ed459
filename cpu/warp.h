// Warp operations as meetings: every lane leaves a request in its own frame, the last to arrive serves all 32.
// Lane numbers, fragment layouts and rounding are the GPU's (kernels/gpu.cuh has the contracts).
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include "cpu/pool.h"

namespace cpu {

// Meets the other lanes with a request; the last to arrive calls serve(requests), an array of 32 pointers.
template <class Request, class Serve>
CPU_NO_TSAN inline void meet(const Site& site, Request& request, Serve serve) {
  Thread& thread = *self;
  if (!arrive(thread, site, &request)) return;
  serve(reinterpret_cast<Request**>(thread.warp->request));
  dismiss(*thread.warp);
}

template <class T> struct Shuffle { T value; int from; };

template <class T>
CPU_NO_TSAN inline T shuffle(const char* what, const char* file, int line, T value, int from) {
  static_assert(sizeof(T) == 4);
  Shuffle<T> mine{value, from};
  meet({what, file, line}, mine, [](Shuffle<T>** all) CPU_NO_TSAN {
    T values[warp_size];
    for (int i = 0; i < warp_size; ++i) values[i] = all[i]->value;
    for (int i = 0; i < warp_size; ++i) all[i]->value = values[all[i]->from & 31];
  });
  return mine.value;
}

CPU_NO_TSAN inline void warp_sync(const char* file, int line) {
  char mine;
  meet({"warp_sync", file, line}, mine, [](char**) CPU_NO_TSAN {});
}

CPU_NO_TSAN inline unsigned vote(const char* file, int line, bool value) {
  unsigned mine = value;
  meet({"ballot", file, line}, mine, [](unsigned** all) CPU_NO_TSAN {
    unsigned votes = 0;
    for (int i = 0; i < warp_size; ++i) votes |= *all[i] << i;
    for (int i = 0; i < warp_size; ++i) *all[i] = votes;
  });
  return mine;
}

// The butterfly v = op(v, shuffle_xor(v, 16)), then 8, 4, 2, 1: op is commutative, so all lanes end with the same bits.
template <int X, class Op>
CPU_NO_TSAN inline void warp_reduce(const char* what, const char* file, int line, float (&v)[X], Op op) {
  meet({what, file, line}, v, [op](float (**all)[X]) CPU_NO_TSAN {
    for (int x = 0; x < X; ++x) {
      float t[warp_size];
      for (int i = 0; i < warp_size; ++i) t[i] = (*all[i])[x];
      for (int half = 16; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) t[i] = op(t[i], t[i + half]);
      for (int i = 0; i < warp_size; ++i) (*all[i])[x] = t[0];
    }
  });
}
inline float low_to_float(unsigned pair, __nv_bfloat16) { return __builtin_bit_cast(float, pair << 16); }
inline float high_to_float(unsigned pair, __nv_bfloat16) { return __builtin_bit_cast(float, pair & 0xffff0000u); }
inline float low_to_float(unsigned pair, __half) {
  return static_cast<float>(__half(__half_raw{static_cast<unsigned short>(pair)}));
}
inline float high_to_float(unsigned pair, __half) {
  return static_cast<float>(__half(__half_raw{static_cast<unsigned short>(pair >> 16)}));
}

template <int M, int N> struct Mma { float (*d)[N][4]; const unsigned (*a)[4]; const unsigned (*b)[2]; };

// D += A B for all tiles at once: fragments to plain matrices, multiply, and back. With lane = 4 g + q, register r of
//   A holds (row g + 8 (r % 2), columns 2q + 8 (r / 2) and one more), of B (rows 2q + 8r and one more, column g),
//   of D (row g + 8 (r / 2), column 2q + r % 2).
template <int M, int N, class T>
CPU_NO_TSAN void mma_serve(Mma<M, N>** all) {
  constexpr T type{};
  alignas(64) float a[M * 16][16], b[16][N * 8], d[M * 16][N * 8];
  for (int lane = 0; lane < warp_size; ++lane) {
    const Mma<M, N>& mine = *all[lane];
    int g = lane / 4, q = lane % 4;
    for (int i = 0; i < M; ++i)
      for (int r = 0; r < 4; ++r) {
        float* to = &a[i * 16 + g + 8 * (r % 2)][2 * q + 8 * (r / 2)];
        to[0] = low_to_float(mine.a[i][r], type), to[1] = high_to_float(mine.a[i][r], type);
      }
    for (int j = 0; j < N; ++j)
      for (int r = 0; r < 2; ++r) {
        b[2 * q + 8 * r][j * 8 + g] = low_to_float(mine.b[j][r], type);
        b[2 * q + 8 * r + 1][j * 8 + g] = high_to_float(mine.b[j][r], type);
      }
    for (int i = 0; i < M; ++i)
      for (int j = 0; j < N; ++j)
        for (int r = 0; r < 4; ++r) d[i * 16 + g + 8 * (r / 2)][j * 8 + 2 * q + r % 2] = mine.d[i][j][r];
  }
  for (int row = 0; row < M * 16; ++row)
    for (int k = 0; k < 16; ++k)
      for (int column = 0; column < N * 8; ++column) d[row][column] += a[row][k] * b[k][column];
  for (int lane = 0; lane < warp_size; ++lane) {
    const Mma<M, N>& mine = *all[lane];
    int g = lane / 4, q = lane % 4;
    for (int i = 0; i < M; ++i)
      for (int j = 0; j < N; ++j)
        for (int r = 0; r < 4; ++r) mine.d[i][j][r] = d[i * 16 + g + 8 * (r / 2)][j * 8 + 2 * q + r % 2];
  }
}

template <int X> struct LoadMatrix { unsigned (*r)[4]; const void* const* row; };

// Lane 8i + j gives the address of row j of matrix i. Lane 4g + q gets the pair of columns 2q of row g of each matrix, or
// transposed: rows 2q and 2q + 1 of column g.
template <int X, bool transposed>
CPU_NO_TSAN void ldmatrix_serve(LoadMatrix<X>** all) {
  for (int x = 0; x < X; ++x)
    for (int i = 0; i < 4; ++i) {
      unsigned short m[8][8];
      for (int j = 0; j < 8; ++j) __builtin_memcpy(m[j], all[8 * i + j]->row[x], 16);
      for (int lane = 0; lane < warp_size; ++lane) {
        int g = lane / 4, q = lane % 4;
        unsigned low = transposed ? m[2 * q][g] : m[g][2 * q], high = transposed ? m[2 * q + 1][g] : m[g][2 * q + 1];
        all[lane]->r[x][i] = low | high << 16;
      }
    }
}

// cp.async: copies wait in the thread that asked for them and happen at its wait, so that a missing wait shows.
void copy_later(void* to, const void* from, bool valid);
void commit_copies();
void deliver_copies(int groups_left);  // all but the newest groups

}  // namespace cpu
