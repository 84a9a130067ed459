// The parts of the tensor-core attention kernels. A warp multiplies 16 M held rows by a tile of streamed rows, as
// products m16n8k16 of 16-bit elements with float32 sums:
//   scores   held rows [16 M, DIM] x streamed rows [STREAM, DIM]^T, summed over channels
//   sums     weights [16 M, STREAM] x streamed rows [STREAM, DIM], summed over streamed rows
// The scores are left in the lanes' registers exactly as the sums need their left operand, so weights never pass
// through shared memory. gpu.cuh (mma_m16n8k16) says which elements a lane has: rows lane / 4 and lane / 4 + 8 of 16,
// columns in pairs.
#pragma once
#include "attention/fragment.cuh"

// How large the tiles are, for each pass and width (channels of a tile: the least width that holds the head), with the
// reason for each: widths 32, 64, 96 and 128.
struct TensorSize {
  int groups, stream;  // groups: of 16 held rows, for each of a block's 4 warps
};
constexpr TensorSize tensor_forward_size(int width, int sweeps, bool of_file, bool biased_documents) {
  bool two_outputs = sweeps > 1;                    // in training
  if (two_outputs && width == 128) return {1, 32};  // two outputs of 128 channels leave registers for 32 keys
  if (two_outputs || width > 64) return {1, 64};    // outputs of this size leave registers for one group
  if (of_file) return {1, 64};                      // and so does a formula
  if (biased_documents) return {2, 32};             // 64 keys would spill on Blackwell
  return {2, 64};                                   // what is read from shared memory serves two products
}
constexpr TensorSize tensor_backward_size(int width, int gradient_registers) {
  if (width == 32) return {1, 64};                              // small sums leave registers for 64 rows
  if (width == 128 && gradient_registers == 2) return {1, 16};  // 32 rows would spill
  return {1, 32};  // 64 rows would take twice the memory and up to 237 registers
}

// DIM: channels, of which those beyond the head's are zeros; M: groups of 16 held rows for a warp; STREAM: streamed
// rows at a time.
template <int DIM_, TensorSize SIZE> struct TensorTile {
  static constexpr int DIM = DIM_, M = SIZE.groups, STREAM = SIZE.stream, WARPS = 4, THREADS = WARPS * WARP;
  static constexpr int WARP_ROWS = 16 * M, HELD = WARPS * WARP_ROWS;
  static constexpr int CHUNKS = DIM / 8;                 // of 16 bytes, in a row
  static constexpr int WIDTH = DIM % 64 == 0 ? 64 : 32;  // channels of a product of the sums
  static constexpr int PARTS = DIM / WIDTH, N = STREAM / 8, K = STREAM / 16;
  static_assert(DIM % 32 == 0 && STREAM % 16 == 0);
  // of shared memory: the held tensors, and two stages of two streamed tiles
  static constexpr size_t shared_elements(int held_tensors) { return (held_tensors * HELD + 4 * STREAM) * DIM; }
};

// The place of 16-byte chunk c of row r in a tile [rows][DIM]. The chunks of a row are permuted so that eight rows'
// chunks of one column, which ldmatrix reads at once, lie in different banks.
template <class Tile> __device__ __forceinline__ int swizzled(int row, int chunk) {
  return (row * Tile::CHUNKS + (chunk ^ (Tile::CHUNKS % 8 == 0 ? row & 7 : row >> 1 & 3))) * 8;
}

// tile [ROWS][DIM] = rows r0.. of a head, and 0 beyond its last row or channel. The rows have arrived after
// cp_async_wait and a barrier.
template <class Tile, int ROWS, class T>
__device__ __forceinline__ void load_rows(T* tile, const Head<T>& head, int r0) {
  // A thread's chunks: one column, every STEP-th row. Rows STEP apart permute their chunks alike, so that the places in
  // the tile differ by constants; the addresses in memory differ by the same number of bytes.
  constexpr int STEP = Tile::THREADS / Tile::CHUNKS;
  if (STEP * Tile::CHUNKS == Tile::THREADS && head.wide) {
    int row = threadIdx.x / Tile::CHUNKS, chunk = threadIdx.x % Tile::CHUNKS;
    int rows = chunk * 8 < head.D ? head.rows - r0 - row : 0;  // that there are, from this one
    T* to = tile + swizzled<Tile>(row, chunk);
    const T* from = head.x + (r0 + row) * head.stride + chunk * 8;
#pragma unroll
    for (int n = 0; n < ROWS; n += STEP) {
      cp_async16(to + n * Tile::DIM, from, n < rows);  // reads nothing past the rows
      from += STEP * head.stride;
    }
    return;
  }
#pragma unroll 1
  for (int n = threadIdx.x; n < ROWS * Tile::CHUNKS; n += Tile::THREADS) {
    int row = n / Tile::CHUNKS, d = n % Tile::CHUNKS * 8;
    T* to = tile + swizzled<Tile>(row, n % Tile::CHUNKS);
    bool valid = r0 + row < head.rows && d < head.D;
    const T* from = head.x + (valid ? (r0 + row) * head.stride + d : 0);
    if (head.wide) {
      cp_async16(to, from, valid);
    } else {
      Pack<T> pack;
      for (int i = 0; i < 8; i++) pack[i] = valid && d + i < head.D ? from[i] : from_float<T>(0);
      store16(to, pack);
    }
  }
}

// z += held rows x streamed rows, summed over all channels. held: the warp's first row in a tile.
template <class Tile, class T>
__device__ __forceinline__ void add_scores(float (&z)[Tile::M][Tile::N][4], const T* held, const T* streamed) {
  constexpr int M = Tile::M, PAIRS = Tile::N / 2;
  int lane = threadIdx.x % WARP;
#pragma unroll
  for (int k = 0; k < Tile::DIM / 16; k++) {
    unsigned a[M][4], pairs[PAIRS][4], b[Tile::N][2];
    const void *a_rows[M], *b_rows[PAIRS];
#pragma unroll
    for (int m = 0; m < M; m++) a_rows[m] = held + swizzled<Tile>(16 * m + lane % 16, 2 * k + lane / 16);
#pragma unroll
    for (int x = 0; x < PAIRS; x++)
      b_rows[x] = streamed + swizzled<Tile>(16 * x + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2);
    ldmatrix_x4(a, a_rows);
    ldmatrix_x4(pairs, b_rows);
#pragma unroll
    for (int n = 0; n < Tile::N; n++) b[n][0] = pairs[n / 2][n % 2 * 2], b[n][1] = pairs[n / 2][n % 2 * 2 + 1];
    mma_m16n8k16(z, a, b);
  }
}

// z = the same.
template <class Tile, class T>
__device__ __forceinline__ void scores(float (&z)[Tile::M][Tile::N][4], const T* held, const T* streamed) {
  clear(z);
  add_scores<Tile>(z, held, streamed);
}

// The lane's sums over streamed rows, in parts of WIDTH channels.
template <class Tile> using Sums = float[Tile::PARTS][Tile::M][Tile::WIDTH / 8][4];

// Weights as left operands, two columns to a register.
template <class Tile> using Weights = unsigned[Tile::K][Tile::M][4];

// sums += weights x streamed rows
template <class Tile, class T>
__device__ __forceinline__ void add_weighted(Sums<Tile>& sums, const Weights<Tile>& weights, const T* streamed) {
  constexpr int N = Tile::WIDTH / 8, PAIRS = N / 2;
  int lane = threadIdx.x % WARP;
#pragma unroll
  for (int k = 0; k < Tile::K; k++)
#pragma unroll
    for (int part = 0; part < Tile::PARTS; part++) {
      unsigned pairs[PAIRS][4], b[N][2];
      const void* rows[PAIRS];
#pragma unroll
      for (int x = 0; x < PAIRS; x++)
        rows[x] = streamed + swizzled<Tile>(16 * k + lane % 16, part * N + 2 * x + lane / 16);
      ldmatrix_x4_trans(pairs, rows);
#pragma unroll
      for (int n = 0; n < N; n++) b[n][0] = pairs[n / 2][n % 2 * 2], b[n][1] = pairs[n / 2][n % 2 * 2 + 1];
      mma_m16n8k16(sums[part], weights[k], b);
    }
}

// sums *= factor[m][half]
template <class Tile> __device__ __forceinline__ void scale_rows(Sums<Tile>& sums, const float (&factor)[Tile::M][2]) {
#pragma unroll
  for (int part = 0; part < Tile::PARTS; part++)
    for_rows<Tile::M>([&](int m, int half) {
#pragma unroll
      for (int n = 0; n < Tile::WIDTH / 8; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) sums[part][m][n][2 * half + c] *= factor[m][half];
    });
}

// f(m, half, channel, low, high) for every pair of neighbouring channels of the sums that the lane has.
template <class Tile, class F> __device__ __forceinline__ void for_channels(const Sums<Tile>& sums, F f) {
  Fragment mine;
#pragma unroll
  for (int part = 0; part < Tile::PARTS; part++)
    for_rows<Tile::M>([&](int m, int half) {
#pragma unroll
      for (int n = 0; n < Tile::WIDTH / 8; n++)
        f(m, half, part * Tile::WIDTH + mine.column(n), sums[part][m][n][2 * half], sums[part][m][n][2 * half + 1]);
    });
}

// Writes the sums, rounded to T, to the warp's rows from r0 of a tensor whose row r is at to + r stride. They pass
// through `tile`, the warp's own WARP_ROWS rows of a tile that no other warp reads any more, to leave in 16-byte
// pieces.
template <class Tile, class T>
__device__ __forceinline__ void store_rows(T* to, size_t stride, int r0, const KernelShape& shape,
                                           const Sums<Tile>& sums, T* tile) {
  Fragment mine;
  warp_sync();
  for_channels<Tile>(sums, [&](int m, int half, int channel, float low, float high) {
    unsigned pair = pack_pair(low, high);
    *reinterpret_cast<unsigned*>(tile + swizzled<Tile>(mine.row(half, m), channel / 8) + channel % 8) = pair;
  });
  warp_sync();
  for (int n = threadIdx.x % WARP; n < Tile::WARP_ROWS * Tile::CHUNKS; n += WARP) {
    int row = n / Tile::CHUNKS, d = n % Tile::CHUNKS * 8;
    if (r0 + row >= shape.T || d >= shape.D) continue;
    Pack<T> pack = load16(tile + swizzled<Tile>(row, n % Tile::CHUNKS));
    T* at = to + size_t(r0 + row) * stride + d;
    if (shape.wide) store16(at, pack);
    else
      for (int i = 0; i < 8 && d + i < shape.D; i++) at[i] = pack[i];
  }
}
