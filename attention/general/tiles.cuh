// The parts of the general attention kernels. A block holds a tile of rows of one sequence (queries, or keys) and lets
// the rows of the other stream past it, in float32 whatever the type in memory is:
//   held tile    [channel][row]             transposed, so that a thread reads EACH neighbouring rows at once
//   stream tile  [row][channel]             as in memory
//   weight tile  [streamed row][held row]
// There are two products: scores (summed over channels) and sums (over streamed rows). In both a thread multiplies EACH
// neighbouring floats by single ones that its neighbours read too: add_products() of gpu.cuh. 16 of them are four
// 16-byte reads on a GPU, and two AVX registers or one of AVX-512 on a CPU, where g++ makes vector code of the
// policies' loops.
#pragma once
#include <utility>

#include "attention/heads.cuh"

// How large the tiles are, for each pass and width (channels of a tile: the least width that holds the head), with the
// reason for each: widths 32, 64 and 128, on a CPU 128; larger heads take several chunks of 128 channels.
struct GeneralSize {
  int held, stream, threads;
};
// A CPU wants few threads with many sums each: the sums fill its vector registers, and a barrier costs it a change of
// stacks for every thread.
constexpr GeneralSize GENERAL_ON_CPU = {64, 64, 16};
// A narrow head leaves some of these threads idle, which takes next to no time, and halves the time to compile a kind.
constexpr int general_width(int width, bool cpu) { return cpu ? 128 : width; }
// Kinds of two sweeps have two outputs in training. Evaluation takes the same tiles, and so gives the same bits.
constexpr GeneralSize general_forward_size(int width, bool heavy, bool cpu) {
  if (cpu) return GENERAL_ON_CPU;
  if (width == 32 && heavy) return {64, 32, 128};  // half the scores and half the outputs for each thread
  if (width == 64 && heavy) return {32, 64, 128};  // the same
  if (width == 32) return {64, 64, 64};            // with half the channels, twice the held rows of width 64
  if (width == 64) return {32, 64, 64};            // 45 KB
  return {32, 64, 128};                            // with twice the channels, twice the threads
}
constexpr GeneralSize general_backward_size(int width, bool heavy, bool cpu) {
  if (cpu) return GENERAL_ON_CPU;
  if (width == 32 && heavy) return {64, 32, 128};  // half the scores for each thread, as in the forward
  if (width == 64 && heavy) return {32, 64, 128};
  if (width == 32) return {64, 32, 64};  // two tensors are held and two stream: half the streamed rows of the forward
  if (width == 64) return {32, 64, 64};  // as the forward: 74 KB
  return {16, 64, 64};                   // with twice the channels, half the held rows: 98 KB
}

inline constexpr int EACH = 16;  // neighbouring floats that a thread works on
// How many of these a policy works on at once: all on a CPU, where they are a vector; fewer on a GPU, where their
// temporaries take registers.
inline constexpr int AT_ONCE = on_cpu ? EACH : 4;

// f(0), ..., f(N - 1), unrolled, so that arrays indexed by the argument stay in registers on both machines.
template <int N, class F> __device__ __forceinline__ void unrolled(F f) {
  if constexpr (N > 1) unrolled<N - 1>(f);
  f(N - 1);
}

// Column c of a row in shared memory: 4 floats of padding after every 32, so that the 16-byte reads of neighbouring
// threads, EACH floats apart, fall into different banks.
__host__ __device__ constexpr int bank_padded(int c) { return c + (c >> 5) * 4; }

// CHANNELS of the head at a time (larger heads come in chunks), HELD and STREAM rows, THREADS of a block.
template <int CHANNELS_, GeneralSize SIZE> struct GeneralTile {
  static constexpr int CHANNELS = CHANNELS_, HELD = SIZE.held, STREAM = SIZE.stream, THREADS = SIZE.threads;
  // streamed rows begin in 8 different banks (an odd multiple of 4 floats apart)
  static constexpr int HELD_STRIDE = bank_padded(HELD),
                       STREAM_STRIDE = bank_padded(CHANNELS) + (bank_padded(CHANNELS) % 8 ? 0 : 4);
  static constexpr int HELD_FLOATS = CHANNELS * HELD_STRIDE, STREAM_FLOATS = STREAM * STREAM_STRIDE,
                       WEIGHT_FLOATS = STREAM * HELD_STRIDE;
  // scores: a thread has EACH held rows x STREAMED_EACH streamed rows, which lie SHARERS apart
  static constexpr int SHARERS = THREADS / (HELD / EACH), STREAMED_EACH = STREAM / SHARERS;
  // sums: a thread has SUM_ROWS held rows x EACH channels
  static constexpr int COLUMN_GROUPS = CHANNELS / EACH, SUM_ROWS = HELD / (THREADS / COLUMN_GROUPS);
  static constexpr int ROWS_EACH = (HELD + THREADS - 1) / THREADS;  // held rows of a thread, where each has one thread
  // of shared memory: the forward, and the backward by keys
  template <class Policy>
  static constexpr int FORWARD_FLOATS = HELD_FLOATS + STREAM_FLOATS + Policy::OUTPUTS* WEIGHT_FLOATS +
                                        (Policy::SUMS * SHARERS + Policy::OUTPUTS + Policy::CONSTANTS) * HELD;
  static constexpr int BACKWARD_FLOATS = 2 * (HELD_FLOATS + STREAM_FLOATS + WEIGHT_FLOATS);
  // at least this many blocks on a multiprocessor: that permits the 255 registers that a thread can have (without it
  // the compiler aims lower)
  static constexpr int BLOCKS = 256 / THREADS;
  static_assert(HELD % EACH == 0 && THREADS % (HELD / EACH) == 0 && STREAM % SHARERS == 0 && STREAMED_EACH >= 1);
  static_assert(THREADS % COLUMN_GROUPS == 0 && HELD % (THREADS / COLUMN_GROUPS) == 0 && SUM_ROWS >= 1 &&
                32 % SUM_ROWS == 0);
  static_assert(THREADS % HELD == 0 || HELD % THREADS == 0);
};

__host__ __device__ constexpr int round_up_8(int n) { return (n + 7) / 8 * 8; }

// W channels from channel d of row r, 0 outside the matrix. W is 1, or a pack if D is a multiple of it.
template <int W, class T>
__device__ __forceinline__ void read_channels(float (&v)[W], const Head<T>& head, int r, int d) {
  if (r >= head.rows || d >= head.D) {
    for (int i = 0; i < W; i++) v[i] = 0;
  } else {
    read_floats(v, head.x + r * head.stride + d);
  }
}

// tile [channel][bank_padded(row)] = rows r0.. , channels c0.. up to the next multiple of 8 beyond the head's last. On
// a CPU a thread takes EACH rows at once: their reads wait for memory together, their channels are written as vectors.
template <class Tile, int W, class T>
__device__ __forceinline__ void load_held_by(float* tile, const Head<T>& head, int r0, int c0) {
  constexpr int TOGETHER = on_cpu ? EACH : 1, GROUPS = Tile::HELD / TOGETHER;
  constexpr int EACH = GROUPS < Tile::THREADS ? GROUPS : Tile::THREADS, PARTS = Tile::THREADS / EACH;
  int depth = min(Tile::CHANNELS, round_up_8(head.D - c0));
  for (int r = threadIdx.x % EACH * TOGETHER; r < Tile::HELD; r += EACH * TOGETHER) {
    for (int d = int(threadIdx.x) / EACH * W; d < depth; d += PARTS * W) {
      float v[TOGETHER][W];
      for (int n = 0; n < TOGETHER; n++) read_channels(v[n], head, r0 + r + n, c0 + d);
      for (int i = 0; i < W; i++)
        for (int n = 0; n < TOGETHER; n++) tile[(d + i) * Tile::HELD_STRIDE + bank_padded(r) + n] = v[n][i];
    }
  }
}
template <class Tile, class T>
__device__ CPU_OUT_OF_LINE void load_held(float* tile, const Head<T>& head, int r0, int c0) {
  if (head.wide) load_held_by<Tile, Pack<T>::size>(tile, head, r0, c0);
  else load_held_by<Tile, 1>(tile, head, r0, c0);
}

// tile [row][bank_padded(channel)], the same range.
template <class Tile, int W, class T>
__device__ __forceinline__ void load_stream_by(float* tile, const Head<T>& head, int r0, int c0) {
  constexpr int PER_ROW = Tile::CHANNELS / W;
  int depth = min(Tile::CHANNELS, round_up_8(head.D - c0));
  for (int n = threadIdx.x; n < Tile::STREAM * PER_ROW; n += Tile::THREADS) {
    int r = n / PER_ROW, d = n % PER_ROW * W;
    if (d >= depth) continue;
    float v[W];
    read_channels(v, head, r0 + r, c0 + d);
    float* to = tile + r * Tile::STREAM_STRIDE + bank_padded(d);
    if constexpr (W == 1) {
      to[0] = v[0];
    } else {
      for (int i = 0; i < W; i += 4) store16(to + i, Pack<float>{{v[i], v[i + 1], v[i + 2], v[i + 3]}});
    }
  }
}
template <class Tile, class T>
__device__ CPU_OUT_OF_LINE void load_stream(float* tile, const Head<T>& head, int r0, int c0) {
  if (on_cpu && head.wide && head.D % 32 == 0) load_stream_by<Tile, 32>(tile, head, r0, c0);  // as vectors
  else if (head.wide) load_stream_by<Tile, Pack<T>::size>(tile, head, r0, c0);
  else load_stream_by<Tile, 1>(tile, head, r0, c0);
}

// Read and write N neighbours in shared memory; N is a multiple of 4.
template <int N> __device__ __forceinline__ void read_neighbours(float (&v)[N], const float* x) {
  for (int i = 0; i < N; i += 4) {
    Pack<float> pack = load16(x + i);
    for (int k = 0; k < 4; k++) v[i + k] = pack[k];
  }
}
template <int N> __device__ __forceinline__ void write_neighbours(float* x, const float (&v)[N]) {
  for (int i = 0; i < N; i += 4) store16(x + i, Pack<float>{{v[i], v[i + 1], v[i + 2], v[i + 3]}});
}

// A thread's part of the scores: EACH held rows from `held`, and the streamed rows first, first + SHARERS, ...
template <class Tile> struct ScorePlace {
  int held = int(threadIdx.x) % (Tile::HELD / EACH) * EACH, first = int(threadIdx.x) / (Tile::HELD / EACH);
  __device__ __forceinline__ int streamed(int x) const { return first + x * Tile::SHARERS; }
};

// z[x][e] += sum over channels of stream[row x][channel] held[channel][row e]; depth channels, a multiple of 8.
template <class Tile>
__device__ __forceinline__ void add_scores(float (&z)[Tile::STREAMED_EACH][EACH], const float* stream,
                                           const float* held, int depth) {
  ScorePlace<Tile> place;
  stream += place.first * Tile::STREAM_STRIDE;
  held += bank_padded(place.held);
  constexpr int STEP = on_cpu ? 32 : 8;  // a count that is constant takes fewer of a GPU's registers
  for (int d = 0; d < depth; d += STEP)
    add_products(z, on_cpu ? min(STEP, depth - d) : STEP, stream + bank_padded(d), Tile::SHARERS * Tile::STREAM_STRIDE,
                 1, held + d * Tile::HELD_STRIDE, Tile::HELD_STRIDE);
}

// Scores z[x][e] of held rows from held0 and streamed rows from stream0 as the mask wants them; KEYS: keys are held.
template <class Tile, bool KEYS, class Mask>
__device__ CPU_OUT_OF_LINE void mask_scores(float (&z)[Tile::STREAMED_EACH][EACH], const Mask& mask, int held0,
                                            int stream0) {
  ScorePlace<Tile> mine;
  int first = held0 + mine.held;
  if constexpr (Mask::ADDS) {
    if (mask.bias) {  // in float64: the same bits whichever rows are held
      double held[EACH];
      for (int e = 0; e < EACH; e++) held[e] = mask.exact(first + e);
      for (int x = 0; x < Tile::STREAMED_EACH; x++) {
        double streamed = mask.exact(stream0 + mine.streamed(x));
        for (int e = 0; e < EACH; e++) z[x][e] += float(KEYS ? streamed - held[e] : held[e] - streamed);
      }
    }
  }
  hide_scores<KEYS>(mask, held0, Tile::HELD, stream0, Tile::STREAM, [&](auto sees) {
    for (int x = 0; x < Tile::STREAMED_EACH; x++) {
      int streamed = stream0 + mine.streamed(x);
      for (int e = 0; e < EACH; e++) z[x][e] = !sees(first + e, streamed) ? -INFINITY : z[x][e];
    }
  });
}

// The rows of a weight tile whose sums a thread makes: ROWS_EACH from here, if the tile has them.
template <class Tile> __device__ __forceinline__ int first_own_row() { return threadIdx.x * Tile::ROWS_EACH; }

// With a bias: sums[n] += the sum over a weight tile's streamed rows of dz of the thread's held row n.
template <class Tile>
__device__ __forceinline__ void add_held_row_sums(float (&sums)[Tile::ROWS_EACH], const float* dz) {
  if (first_own_row<Tile>() >= Tile::HELD) return;
  float sum[Tile::ROWS_EACH] = {};
  for (int s = 0; s < Tile::STREAM; s++)
    for (int n = 0; n < Tile::ROWS_EACH; n++)
      sum[n] += dz[s * Tile::HELD_STRIDE + bank_padded(first_own_row<Tile>() + n)];
  for (int n = 0; n < Tile::ROWS_EACH; n++) sums[n] += sum[n];
}
// to[row] = its sum, for the first `rows` held rows.
template <class Tile>
__device__ __forceinline__ void store_held_row_sums(float* to, const float (&sums)[Tile::ROWS_EACH], int rows) {
  for (int n = 0; n < Tile::ROWS_EACH; n++)
    if (int row = first_own_row<Tile>() + n; row < min(Tile::HELD, rows)) to[row] = sums[n];
}

// A thread's part of the sums: SUM_ROWS held rows from `held`, and EACH channels from `channel`.
template <class Tile> struct SumPlace {
  int held = int(threadIdx.x) / Tile::COLUMN_GROUPS * Tile::SUM_ROWS,
      channel = int(threadIdx.x) % Tile::COLUMN_GROUPS * EACH;
};

// sum[r][e] += sum over streamed rows s of weights[s][row r] stream[s][channel e].
template <class Tile>
__device__ __forceinline__ void add_sums(float (&sum)[Tile::SUM_ROWS][EACH], const float* weights,
                                         const float* stream) {
  SumPlace<Tile> place;
  add_products(sum, Tile::STREAM, weights + bank_padded(place.held), 1, Tile::HELD_STRIDE,
               stream + bank_padded(place.channel), Tile::STREAM_STRIDE);
}

// Stores the thread's EACH channels, from channel c, into a row of D channels at `to`; channels beyond D are dropped.
template <class T>
__device__ __forceinline__ void store_channels(T* to, const float (&v)[EACH], int c, int D, bool wide) {
  if (wide) {
    for (int i = 0; i < EACH; i += Pack<T>::size) {
      Pack<T> pack;
      for (int k = 0; k < Pack<T>::size; k++) pack[k] = from_float<T>(v[i + k]);
      if (c + i < D) store16(to + c + i, pack);
    }
  } else {
    for (int i = 0; i < EACH; i++)
      if (c + i < D) to[c + i] = from_float<T>(v[i]);
  }
}

namespace {

// add_sums() by streamed row, on a CPU: to[s][channel] += the sum over held rows r of weights[s][row r]
// held_rows[r][channel], for the first `rows` streamed rows. `to` is a head with the rows of qkv, held_rows is laid out
// as a stream tile.
template <class Tile>
__device__ CPU_OUT_OF_LINE void add_streamed_products(float* to, int rows, const KernelShape& shape,
                                                      const float* weights, const float* held_rows) {
  SumPlace<Tile> place;
  int left = shape.D - place.channel;
  rows = min(rows - place.held, Tile::SUM_ROWS);
  to += place.held * shape.qkv_stride;
  float sum[Tile::SUM_ROWS][EACH] = {};
  for (int r = 0; r < rows; r++) {
    const float* from = to + r * shape.qkv_stride + place.channel;
    if (shape.wide && left >= EACH) read_piece<true>(sum[r], from, left);
    else read_piece<false>(sum[r], from, left);
  }
  for (int r = 0; r < Tile::HELD; r += 32)
    add_products(sum, 32, weights + place.held * Tile::HELD_STRIDE + bank_padded(r), Tile::HELD_STRIDE, 1,
                 held_rows + r * Tile::STREAM_STRIDE + bank_padded(place.channel), Tile::STREAM_STRIDE);
  for (int r = 0; r < rows; r++) store_channels(to + r * shape.qkv_stride, sum[r], place.channel, shape.D, shape.wide);
}
// And with a bias: to[s] += the sum over held rows of dz, which are added up as add_held_row_sums() does.
template <class Tile> __device__ void add_streamed_row_sums(float* to, int rows, const float* dz) {
  static_assert(Tile::HELD == Tile::STREAM);
  int first = first_own_row<Tile>();
  float sum[Tile::ROWS_EACH] = {};
  for (int r = 0; r < Tile::HELD; r++)
    for (int n = 0; n < Tile::ROWS_EACH; n++) sum[n] += dz[(first + n) * Tile::HELD_STRIDE + bank_padded(r)];
  for (int n = 0; n < Tile::ROWS_EACH; n++)
    if (first + n < rows) to[first + n] += sum[n];
}

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

#ifndef GENERAL_WIDTHS
#define GENERAL_WIDTHS 32, 64, 128
#endif

// f.operator()<WIDTH>() with the width for heads of D channels.
template <bool CPU, class F> void with_general_width(int D, F f) {
  [&]<int... WIDTHS>(std::integer_sequence<int, WIDTHS...>) { with_width<general_width(WIDTHS, CPU)...>(D, f); }
  (std::integer_sequence<int, GENERAL_WIDTHS>());
}

}  // namespace
