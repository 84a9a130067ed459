// The keys that a query sees, and the bias that is added to its scores. A mask is a struct that kernels take as a
// template argument, beside the kind's policy. Queries i and keys j are counted from 0 here. A mask is made for one
// head of one sequence: Mask(settings, T, head_number(b, h)). Its functions:
//
//   key_tiles<STREAM>(i0, rows), query_tiles<STREAM>(j0, rows)    the StreamedTiles that these held rows need
//   keys(i)                         the number of keys that query i sees
//   hold<KEYS>(held0, rows)         prepares cuts() for these held rows, where keys are held (KEYS) or queries
//   first(row)                      the position from which policies count those of `row` and of what it sees
//   EVEN                            whether most row tiles need equally many streamed tiles (RowTile, hopper/roles.cuh)
//
// and, of held rows from held0 and streamed rows from stream0 on:
//
//   below<KEYS>(held0, rows, stream0, columns)    whether they lie below the diagonal: all keys j <= all queries i
//   cuts<KEYS>(held0, rows, stream0, columns)     whether one of these queries may not see one of these keys j <= i
//   sees<KEYS>(held, streamed)                    any other score is -inf
//   ADDS                            whether c_i - c_j is added to z_ij before that, if there is a `bias` (on a CPU it
//                                   may be nullptr); backward kernels then sum dz_ij by query and by key
//   bias_rows(row)                  what is read of c of the rows from `row` on, or nothing; of masks that add also:
//   exact(row)                      all of c of a row
//   c()[row], origin_difference(row, alike, other, origin)      c less its origin's; the origin of row less that of
//                                   another, whose origin is given; alike: a row of the same origin, one for all lanes
//   DOCUMENTS                       whether rows see their own document alone, if there are `documents` (on a CPU
//                                   they may be nullptr)
#pragma once
#include "attention/family.h"
#include "attention/prune.cuh"

// The tiles of STREAM rows that cover [begin, stop) except [near, far).
// To be counted by their first rows, from begin to next(...) < stop, or by numbers from first() to end() - 1. With a
// gap number 0 is the tile of row `base`.
template <int STREAM, bool WITH_GAP = false> struct StreamedTiles {
  int begin, stop, near = 0, far = 0, base = 0;
  __host__ __device__ __forceinline__ int next(int row) const {
    row += STREAM;
    return WITH_GAP && row == near ? far : row;
  }
  __host__ __device__ __forceinline__ int first() const { return WITH_GAP ? 0 : begin / STREAM; }
  __host__ __device__ __forceinline__ int end() const {
    return (stop + STREAM - 1 - (WITH_GAP ? base + far - near : 0)) / STREAM;
  }
  __host__ __device__ __forceinline__ int row(int number) const {
    int row = number * STREAM + base;
    return WITH_GAP && row >= near ? row + far - near : row;
  }
  // Those that reach to `from` or beyond.
  __host__ __device__ __forceinline__ StreamedTiles reaching(int from) const {
    from = from / STREAM * STREAM;
    if (from < near) return {max(begin, from), stop, near, far, max(base, from)};
    return {max(far, from), stop, base, max(far, from), base};
  }
};

// Of neighbouring rows: c less its origin's, and the origins of each BIAS_ROWS.
struct BiasRows {
  const float* c = nullptr;
  const float2* origins = nullptr;
};

// Query i sees the keys j <= i.
struct Causal {
  static constexpr bool ADDS = false, EVEN = false, DOCUMENTS = false;
  int T;
  __host__ __device__ Causal(const KernelSettings&, int T, size_t) : T(T) {}
  template <int STREAM> __host__ __device__ __forceinline__ StreamedTiles<STREAM> key_tiles(int i0, int rows) const {
    return {0, min(i0 + rows, T)};
  }
  template <int STREAM> __host__ __device__ __forceinline__ StreamedTiles<STREAM> query_tiles(int j0, int) const {
    return {j0 / STREAM * STREAM, T};
  }
  __host__ __device__ __forceinline__ int keys(int i) const { return i + 1; }
  __host__ __device__ __forceinline__ int first(int) const { return 0; }
  __device__ __forceinline__ BiasRows bias_rows(int) const { return {}; }
  template <bool KEYS> __host__ __device__ __forceinline__ void hold(int, int) {}
  template <bool KEYS> __device__ __forceinline__ bool below(int held0, int rows, int stream0, int columns) const {
    return KEYS ? held0 + rows - 1 <= stream0 : stream0 + columns - 1 <= held0;
  }
  template <bool KEYS> __host__ __device__ __forceinline__ bool cuts(int, int, int, int) const { return false; }
  template <bool KEYS> __host__ __device__ __forceinline__ bool sees(int held, int streamed) const {
    return KEYS ? held <= streamed : streamed <= held;
  }
};

// Query i sees the keys j <= i that are among its last `window` or the first `sink_tokens`.
struct Window : Causal {
  static constexpr bool EVEN = true;
  int window, sink_tokens;
  __host__ __device__ Window(const KernelSettings& s, int T, size_t head)
      : Causal(s, T, head), window(s.window), sink_tokens(s.sink_tokens) {}
  template <int STREAM>
  __host__ __device__ __forceinline__ StreamedTiles<STREAM, true> key_tiles(int i0, int rows) const {
    int far = max(i0 - window + 1, 0) / STREAM * STREAM, near = min((sink_tokens + STREAM - 1) / STREAM * STREAM, far);
    return {near > 0 ? 0 : far, min(i0 + rows, T), near, far};
  }
  template <int STREAM> __host__ __device__ __forceinline__ StreamedTiles<STREAM> query_tiles(int j0, int rows) const {
    return {j0 / STREAM * STREAM, j0 < sink_tokens ? T : min(j0 + rows + window - 1, T)};
  }
  __host__ __device__ __forceinline__ int keys(int i) const { return min(i + 1, window + sink_tokens); }
  template <bool KEYS>
  __host__ __device__ __forceinline__ bool cuts(int held0, int rows, int stream0, int columns) const {
    if (KEYS) return cuts<false>(stream0, columns, held0, rows);
    return held0 + rows - window > stream0 && stream0 + columns > sink_tokens;
  }
  template <bool KEYS> __host__ __device__ __forceinline__ bool sees(int held, int streamed) const {
    if (KEYS) return sees<false>(streamed, held);
    return (streamed <= held) & ((held - window < streamed) | (streamed < sink_tokens));  // && and || would be branches
  }
};

// The same, and c_i - c_j is added to z_ij, where c is KernelSettings::bias. Behind the last position c and its origin
// have no meaning, and z might become too large: queries there see nothing.
struct Biased : Window {
  static constexpr bool ADDS = true;
  const float* bias;
  bool prunes;
  __host__ __device__ Biased(const KernelSettings& s, int T, size_t head)
      : Window(s, T, head), bias(s.bias ? s.bias + head * bias_floats(T) : nullptr), prunes(s.prunes) {}
  __host__ __device__ __forceinline__ const NeededTiles& needed(int row) const {
    return reinterpret_cast<const NeededTiles*>(bias + bias_needed(T))[row / BIAS_ROWS];
  }
  // The key tiles of queries from i0 on, and where the query tiles of keys before j end, without those that prune.cuh
  // leaves out.
  template <int STREAM>
  __host__ __device__ __forceinline__ StreamedTiles<STREAM, true> pruned_keys(StreamedTiles<STREAM, true> tiles,
                                                                              int i0) const {
    return prunes ? tiles.reaching(needed(i0).first_key) : tiles;
  }
  __host__ __device__ __forceinline__ int pruned_stop(int stop, int j) const {
    return prunes ? min(stop, needed(min(j, T) - 1).query_stop) : stop;
  }
  template <int STREAM>
  __host__ __device__ __forceinline__ StreamedTiles<STREAM, true> key_tiles(int i0, int rows) const {
    return pruned_keys(Window::key_tiles<STREAM>(i0, rows), i0);
  }
  template <int STREAM> __host__ __device__ __forceinline__ StreamedTiles<STREAM> query_tiles(int j0, int rows) const {
    auto tiles = Window::query_tiles<STREAM>(j0, rows);
    return {tiles.begin, pruned_stop(tiles.stop, j0 + rows)};
  }
  template <bool KEYS>
  __host__ __device__ __forceinline__ bool cuts(int held0, int rows, int stream0, int columns) const {
    return (KEYS && stream0 + columns > T) || Window::cuts<KEYS>(held0, rows, stream0, columns);
  }
  template <bool KEYS> __host__ __device__ __forceinline__ bool sees(int held, int streamed) const {
    return (!KEYS | (streamed < T)) & Window::sees<KEYS>(held, streamed);
  }
  __device__ __forceinline__ const float* c() const { return bias + bias_origins(T); }
  __device__ __forceinline__ const float2& origin(int row) const {
    return reinterpret_cast<const float2*>(bias)[min(row, T - 1) / BIAS_ROWS];
  }
  __device__ __forceinline__ BiasRows bias_rows(int row) const { return {c() + row, &origin(row)}; }
  __device__ __forceinline__ float origin_difference(int, int alike, int, float2 others) const {
    return difference(origin(alike), others);
  }
  // a.x - b.x is exact where they are within a factor of 2.
  static __device__ __forceinline__ float difference(float2 a, float2 b) { return (a.x - b.x) + (a.y - b.y); }
  __device__ __forceinline__ double exact(int row) const {
    float2 from = origin(row);
    row = min(row, T - 1);
    return double(from.x) + from.y + c()[row] + c()[row + T];
  }
};

// What policies take as the place of `row`: from 1, counted as the mask does for a held row.
template <class Mask> __device__ __forceinline__ float position(const Mask& mask, int held, int row) {
  return float(row + 1 - mask.first(held));
}

// The same for ROWS neighbouring held rows, of which row e is one.
template <class Mask, int ROWS> struct Positions {
  int firsts[Mask::DOCUMENTS ? ROWS : 1] = {};
  __device__ __forceinline__ Positions(const Mask& mask, int held) {
    if constexpr (Mask::DOCUMENTS) {
      for (int e = 0; e < ROWS; e++) firsts[e] = mask.first(held + e);
    }
  }
  __device__ __forceinline__ float operator()(int e, int row) const {
    return float(row + 1 - firsts[Mask::DOCUMENTS ? e : 0]);
  }
};

// Rows see what Keys, one of the masks above, shows them of their own document; keys, sinks and the bias count from its
// first position. documents[t]: the first position of t's document, and the one behind its last. Of a tile's queries
// only those of its first document see keys of earlier tiles, and of its keys only those of its last document are seen
// from later ones.
template <class Keys> struct OwnDocument : Keys {
  static constexpr bool EVEN = true, DOCUMENTS = true;
  using Keys::T, Keys::window, Keys::sink_tokens;
  const int2* documents;
  int sequence_row;  // of the sequence's first position in `documents`: an int takes fewer registers than its address
  // Of the held rows: streamed rows before `low`, and those of tiles that reach beyond `near` up to `far`, are in tiles
  // that are cut. Until hold() is called all are.
  int low = NO_WINDOW, near = 0, far = 0;
  __host__ __device__ OwnDocument(const KernelSettings& s, int T, size_t head)
      : Keys(s, T, head), documents(s.documents), sequence_row(s.documents ? int(head / int(s.heads)) * T : 0) {}
  __host__ __device__ __forceinline__ int2 document(int row) const {
    if (on_cpu && !documents) return {0, T};
    return documents[sequence_row + min(row, T - 1)];
  }
  __host__ __device__ __forceinline__ int first(int row) const { return document(row).x; }
  __host__ __device__ __forceinline__ int keys(int i) const { return Keys::keys(i - first(i)); }

  template <int STREAM>
  __host__ __device__ __forceinline__ StreamedTiles<STREAM, true> key_tiles(int i0, int rows) const {
    int start = first(i0), base = start / STREAM * STREAM, far = max(i0 - window + 1, start) / STREAM * STREAM;
    int near = sink_tokens > 0 ? min((start + sink_tokens + STREAM - 1) / STREAM * STREAM, far) : base;
    StreamedTiles<STREAM, true> tiles = {near > base ? base : far, min(i0 + rows, T), near, far, base};
    if constexpr (Keys::ADDS) return Keys::pruned_keys(tiles, i0);
    return tiles;
  }
  template <int STREAM> __host__ __device__ __forceinline__ StreamedTiles<STREAM> query_tiles(int j0, int rows) const {
    int2 last = document(j0 + rows - 1);
    bool sinks = sink_tokens > 0 && j0 < last.x + sink_tokens;
    int stop = sinks ? last.y : min(j0 + rows + window - 1, last.y);
    if constexpr (Keys::ADDS) stop = Keys::pruned_stop(stop, j0 + rows);
    return {j0 / STREAM * STREAM, stop};
  }
  template <bool KEYS> __host__ __device__ __forceinline__ bool cuts(int, int, int stream0, int columns) const {
    if (KEYS) return stream0 + columns > near;
    return stream0 < low || (stream0 + columns > near && stream0 <= far);
  }
  template <bool KEYS> __host__ __device__ __forceinline__ void hold(int held0, int rows) {
    int2 own = document(KEYS ? held0 : held0 + rows - 1);
    int sinks = own.x + sink_tokens;
    if (KEYS) near = held0 + rows > sinks ? min(own.y, held0 + window) : own.y;
    else low = own.x, near = sinks, far = held0 + rows - 1 - window;
  }
  template <bool KEYS> __host__ __device__ __forceinline__ bool sees(int held, int streamed) const {
    int2 own = document(held);
    int sinks = own.x + sink_tokens;
    if (KEYS) {  // a number for each held row: kernels have few registers left here
      int stop = held < sinks ? own.y : min(own.y, held + window);
      return (held <= streamed) & (streamed < stop);
    }
    int begin = max(own.x, held - window + 1);
    return (streamed <= held) & ((streamed >= begin) | ((streamed >= own.x) & (streamed < sinks)));
  }

  // Of c of `row`, for a document that begins at `start`
  __device__ __forceinline__ float2 origin(int row, int start) const { return origin(row, start, Keys::origin(row)); }
  __device__ __forceinline__ float2 origin(int row, int start, float2 of_block) const {
    return has_origin_0(row, start) ? make_float2(0, 0) : of_block;
  }
  __device__ __forceinline__ float origin_difference(int row, int, int other, float2 others) const {
    int start = first(row);
    return Keys::difference(origin(row, start), origin(other, start, others));
  }
  __device__ __forceinline__ double exact(int row) const {
    float2 from = origin(row, first(row));
    row = min(row, T - 1);
    return double(from.x) + from.y + Keys::c()[row] + Keys::c()[row + T];
  }
};

// hide(sees), unless all of these scores (as for below() and cuts()) are seen: sees(held, streamed) says which are, by
// the diagonal alone where nothing else cuts.
template <bool KEYS, class Mask, class F>
__host__ __device__ __forceinline__ void hide_scores(const Mask& mask, int held0, int rows, int stream0, int columns,
                                                     F hide) {
  bool cut = mask.template cuts<KEYS>(held0, rows, stream0, columns);
  if (!cut && mask.template below<KEYS>(held0, rows, stream0, columns)) return;
  if (cut) hide([&](int held, int streamed) { return mask.template sees<KEYS>(held, streamed); });
  else hide([&](int held, int streamed) { return mask.Causal::template sees<KEYS>(held, streamed); });
}
