// The parts of the Hopper attention kernels. A block is persistent and takes a multiprocessor. The first warp of its
// first warpgroup, the producer, asks the copy engine for tiles; the two other warpgroups, the consumers, multiply, 64
// held rows each. Tiles arrive in two kinds of shared memory:
//   held    the rows that the block works for, [HELD_TENSORS][PARTS][HELD][64], two buffers: the next is filled early
//   slots   a ring of streamed tiles [PARTS][STREAM][64]; tile number n of the block goes to slot n % SLOTS
// Consumers may hand gradients of scores to each other in a third:
//   dz      a ring of DZ_BUFFERS tiles [STREAM / 64][HELD][64], held keys as rows and queries as columns; one a step
// Each buffer and each slot has two mbarriers, full and empty. Producer and consumers count the same tiles in the same
// order, so a tile's number is all that they need to agree on.
#pragma once
#include "attention/fragment.cuh"
#include "kernels/hopper.cuh"

constexpr int BOX = 64;  // rows of one copy, and rows that a consumer holds

// How large the tiles are, for each pass and width (channels of a tile: the least width that holds the head), with the
// reason for each: widths 64 and 128; a block holds 128 rows.
struct HopperSize {
  int stream, slots;  // rows of a streamed tile, tiles in the ring
};
// As for the general kernels, evaluation takes the tiles of training.
constexpr HopperSize hopper_forward_size(int width, int sweeps, bool of_file) {
  if (width == 64) return {128, 8};              // a ring of 128 KB, beside 32 KB of queries
  if (sweeps == 1 && !of_file) return {128, 4};  // the same ring, beside 64 KB of queries
  return {64, 8};  // two outputs of 128 channels, or one beside a formula, leave registers for 64 keys
}
// The widest heads: with a bias or separate documents dK and dV of 128 channels spill where slopes are needed.
constexpr int hopper_widest(int gradient_registers, bool more) { return gradient_registers && more ? 64 : 128; }
constexpr HopperSize hopper_keys_size(int width, int gradient_registers) {
  // 128 KB are held: a ring of 96 KB fits beside them, where slopes need no further row values
  if (width == 128) return {64, gradient_registers ? 4 : 6};
  if (gradient_registers) return {64, 8};  // slopes of scores leave registers for 64 queries: 128 would spill
  return {128, 4};                         // z, dP, dk and dv take 192 registers of 240; half the waits of 64 queries
}
// Width 64. Where weights take the place of scores (Policy::FROM_WEIGHT) there are registers for 128 queries; relu,
// which needs its scores for dz, would spill. Consumers start their products in turn, as for dK and dV.
constexpr HopperSize hopper_heads_size(bool from_weight) { return {from_weight ? 128 : 64, from_weight ? 4 : 8}; }
constexpr HopperSize hopper_queries_size(int width, bool few_registers) {
  if (width == 128) return {64, 6};   // 128 KB are held, as above
  if (few_registers) return {64, 8};  // the same ring
  return {128, 4};                    // one sum, dq: registers for 128 keys
}

// Whether a kernel's consumers start their products in turn (PingPong): the bits are the same. On an H200, at width 64,
// dK and dV of softmax take 0.92 of the time in turn and lssar's kernels 0.87 to 1.00, but softmax's forward and dQ
// 1.01 to 1.04; at width 128 dK and dV take 0.97 to 1.02, dQ up to 1.21 (dev/bench/LOG.md). Lssa and kinds from files
// follow lssar; they were not measured.
constexpr bool hopper_forward_in_turn(int width, int sweeps) { return width == 64 && sweeps == 2; }
constexpr bool hopper_keys_in_turn(int width) { return width == 64; }
constexpr bool hopper_queries_in_turn(int width, bool gradient_registers) { return width == 64 && gradient_registers; }

// DIM: channels, 64 or 128; the copy engine pads heads that have fewer with zeros. STREAM: streamed rows at a time.
// ROW_VALUES: floats per streamed row that arrive with every second tile (queries, in the kernel for dK and dV).
// BIASED: so does the bias of these rows; where keys and values stream, with the keys.
template <int DIM_, HopperSize SIZE, int HELD_TENSORS_, int ROW_VALUES_ = 0, bool IN_TURN_ = false, bool BIASED = false,
          int DZ_BUFFERS_ = 0>
struct HopperTile {
  static constexpr int DIM = DIM_, STREAM = SIZE.stream, SLOTS = SIZE.slots;
  static constexpr int HELD_TENSORS = HELD_TENSORS_, ROW_VALUES = ROW_VALUES_, DZ_BUFFERS = DZ_BUFFERS_;
  static constexpr bool IN_TURN = IN_TURN_;
  static constexpr int CONSUMERS = 2, HELD = CONSUMERS * BOX, THREADS = (1 + CONSUMERS) * WARPGROUP;
  // A block begins with 168 for each thread; the producer must give back as many as the consumers take.
  static constexpr int PRODUCER_REGISTERS = 24, CONSUMER_REGISTERS = 240;
  static_assert(PRODUCER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS <= (1 + CONSUMERS) * 168);
  static constexpr int PARTS = DIM / TILE_COLUMNS, N = STREAM / 8, K = STREAM / 16;
  static constexpr int HELD_SIZE = HELD * DIM, SLOT_SIZE = STREAM * DIM, DZ_SIZE = HELD * STREAM;  // elements
  static constexpr int DZ_BEGIN = 2 * HELD_TENSORS * HELD_SIZE + SLOTS * SLOT_SIZE;
  static constexpr int TILES_SIZE = DZ_BEGIN + DZ_BUFFERS * DZ_SIZE;
  // What arrives beside a tile, once in ROW_SLOTS slots: [ROW_VALUES][STREAM], then c [STREAM] and two origins.
  static constexpr int BIAS_BEGIN = ROW_VALUES * STREAM, ROW_FLOATS = BIAS_BEGIN + (BIASED ? STREAM + 4 : 0);
  static constexpr int ROW_SLOTS = ROW_VALUES ? 2 : 1;
  static constexpr int BARRIERS = 2 * (SLOTS + 2 + DZ_BUFFERS) + (IN_TURN ? CONSUMERS : 0);
  static constexpr size_t SHARED_BYTES =
      TILES_SIZE * sizeof(bf16) + SLOTS / ROW_SLOTS * ROW_FLOATS * sizeof(float) + BARRIERS * sizeof(Mbarrier);
  static_assert(DIM % TILE_COLUMNS == 0 && STREAM % BOX == 0 && SLOTS % 2 == 0);
  static_assert(SHARED_BYTES <= 227 * 1024, "more shared memory than a block can have");
};

template <class Tile> struct Stages {
  bf16* tiles;
  Mbarrier *full, *empty, *held_full, *held_empty, *turns, *dz_full, *dz_empty;
  int streamed = 0;  // tiles that this role has done with

  // Called by the whole block.
  __device__ __forceinline__ explicit Stages(bf16* shared) : tiles(shared) {
    full = reinterpret_cast<Mbarrier*>(reinterpret_cast<char*>(shared) + Tile::SHARED_BYTES) - Tile::BARRIERS;
    empty = full + Tile::SLOTS;
    held_full = empty + Tile::SLOTS;
    held_empty = held_full + 2;
    turns = held_empty + 2;
    dz_full = turns + (Tile::IN_TURN ? Tile::CONSUMERS : 0);
    dz_empty = dz_full + Tile::DZ_BUFFERS;
    if (threadIdx.x == 0) {
      for (int n = 0; n < Tile::SLOTS; n++) mbarrier_init(full[n], 1), mbarrier_init(empty[n], Tile::CONSUMERS * 4);
      for (int n = 0; n < 2; n++) mbarrier_init(held_full[n], 1), mbarrier_init(held_empty[n], Tile::CONSUMERS * 4);
      for (int n = 0; Tile::IN_TURN && n < Tile::CONSUMERS; n++) mbarrier_init(turns[n], 4);
      for (int n = 0; n < 2 * Tile::DZ_BUFFERS; n++) mbarrier_init(dz_full[n], Tile::CONSUMERS * 4);  // and dz_empty
      mbarrier_init_fence();
    }
    __syncthreads();
  }
  __device__ __forceinline__ bf16* held(int number, int tensor, int consumer = 0) const {
    return tiles + ((number % 2 * Tile::HELD_TENSORS + tensor) * Tile::HELD_SIZE + consumer * BOX * TILE_COLUMNS);
  }
  __device__ __forceinline__ bf16* slot(int number) const {
    return tiles + 2 * Tile::HELD_TENSORS * Tile::HELD_SIZE + number % Tile::SLOTS * Tile::SLOT_SIZE;
  }
  // What arrives beside tile `number`, or beside it and the next: [ROW_VALUES][STREAM], then the bias
  __device__ __forceinline__ float* row_values(int number) const {
    return reinterpret_cast<float*>(tiles + Tile::TILES_SIZE) +
           number % Tile::SLOTS / Tile::ROW_SLOTS * Tile::ROW_FLOATS;
  }
  // Of tile `number`, whose first row is `row`
  __device__ __forceinline__ BiasRows bias_rows(int number, int row) const {
    const float* c = row_values(number) + Tile::BIAS_BEGIN;
    return {c, reinterpret_cast<const float2*>(c + Tile::STREAM) + row / BIAS_ROWS % 2};
  }
  __device__ __forceinline__ bf16* dz(int number) const {
    return tiles + Tile::DZ_BEGIN + number % Tile::DZ_BUFFERS * Tile::DZ_SIZE;
  }

  // The producer's side, called by its whole warp: values that are the same for all lanes then take none of its few
  // registers. Held rows are fetched in the order of their tensors, one call for each.
  __device__ __forceinline__ void fetch_held(int number, int tensor, const TensorMap& map, int b, int row, int head) {
    Mbarrier& barrier = held_full[number % 2];
    if (tensor == 0) mbarrier_wait(held_empty[number % 2], (number / 2 & 1) ^ 1);
    if (threadIdx.x == 0) {
      if (tensor == 0) mbarrier_arrive_expect(barrier, Tile::HELD_TENSORS * Tile::HELD_SIZE * int(sizeof(bf16)));
      fetch_rows<Tile::HELD>(held(number, tensor), map, b, row, head, barrier);
    }
    warp_sync();  // no lane may run ahead by two phases, which look alike
  }
  // The next streamed tile. If `rows` is given, STREAM floats of each of ROW_VALUES arrays, `pitch` apart, are copied
  // to its row_values(); `bias`, if given, to its bias_rows().
  __device__ __forceinline__ void fetch(const TensorMap& map, int b, int row, int head, BiasRows bias = {},
                                        const float* rows = nullptr, size_t pitch = 0) {
    constexpr int row_bytes = Tile::STREAM * int(sizeof(float)), origins_bytes = 2 * int(sizeof(float2));
    int number = streamed++;
    Mbarrier& barrier = full[number % Tile::SLOTS];
    mbarrier_wait(empty[number % Tile::SLOTS], (number / Tile::SLOTS & 1) ^ 1);
    if (threadIdx.x == 0) {
      mbarrier_arrive_expect(barrier, Tile::SLOT_SIZE * int(sizeof(bf16)) + (rows ? Tile::ROW_VALUES * row_bytes : 0) +
                                          (bias.c ? row_bytes + origins_bytes : 0));
      fetch_rows<Tile::STREAM>(slot(number), map, b, row, head, barrier);
      float* to = row_values(number);
      for (int n = 0; rows && n < Tile::ROW_VALUES; n++)
        bulk_load(to + n * Tile::STREAM, rows + n * pitch, row_bytes, barrier);
      if (bias.c) {
        to += Tile::BIAS_BEGIN;
        bulk_load(to, bias.c, row_bytes, barrier);
        bulk_load(to + Tile::STREAM, bias.origins - row / BIAS_ROWS % 2, origins_bytes, barrier);
      }
    }
    warp_sync();
  }

  // The consumers' side. A warp frees a slot when all its products from there are done.
  __device__ __forceinline__ void await_held(int number) const { mbarrier_wait(held_full[number % 2], number / 2 & 1); }
  __device__ __forceinline__ bf16* await(int number) const {
    mbarrier_wait(full[number % Tile::SLOTS], number / Tile::SLOTS & 1);
    return slot(number);
  }
  __device__ __forceinline__ void free(int number) const {
    if (threadIdx.x % WARP == 0) mbarrier_arrive(empty[number % Tile::SLOTS]);
  }
  __device__ __forceinline__ void skip(int number) const {
    await(number);
    warp_sync();  // otherwise the slot might be full again before a lane has looked
    free(number);
  }
  __device__ __forceinline__ void skip_pair(int number) const { skip(number), skip(number + 1); }
  // A warp waits until all consumers have read dz `number` - DZ_BUFFERS, writes its part, says so, waits for the parts
  // of others, and says when its products have read them.
  __device__ __forceinline__ void await_dz_empty(int number) const {
    mbarrier_wait(dz_empty[number % Tile::DZ_BUFFERS], (number / Tile::DZ_BUFFERS & 1) ^ 1);
  }
  __device__ __forceinline__ void dz_written(int number) const {
    async_proxy_fence();
    warp_sync();
    if (threadIdx.x % WARP == 0) mbarrier_arrive(dz_full[number % Tile::DZ_BUFFERS]);
  }
  __device__ __forceinline__ bf16* await_dz(int number) const {
    mbarrier_wait(dz_full[number % Tile::DZ_BUFFERS], number / Tile::DZ_BUFFERS & 1);
    return dz(number);
  }
  __device__ __forceinline__ void free_dz(int number) const {
    if (threadIdx.x % WARP == 0) mbarrier_arrive(dz_empty[number % Tile::DZ_BUFFERS]);
  }
  // After store_rows().
  __device__ __forceinline__ void free_held(int number) const {
    if (threadIdx.x % WARP == 0) mbarrier_arrive(held_empty[number % 2]);
  }

 private:
  template <int COUNT>
  __device__ __forceinline__ static void fetch_rows(bf16* to, const TensorMap& map, int b, int row, int head,
                                                    Mbarrier& barrier) {
#pragma unroll
    for (int part = 0; part < Tile::PARTS; part++)
#pragma unroll
      for (int r = 0; r < COUNT; r += BOX)
        tile_load(to + (part * COUNT + r) * TILE_COLUMNS, map, b, row + r, head, part * TILE_COLUMNS, barrier);
  }
};

// A thread of a consumer, and where its warp is in the block. The warp's number is read from its first lane: so the
// compiler knows that it is the same for all, and does not keep it in each lane's registers.
struct ConsumerThread : Fragment {
  int warp = shuffle(thread / WARP, 0), consumer = warp / 4 - 1;
  __device__ __forceinline__ ConsumerThread() : Fragment{int(anew(threadIdx.x))} { first = (warp - 4) * 16; }
};

// f(n, half, c) for every element [n][2 half + c] that a thread has of a product's result.
template <int N, class F> __device__ __forceinline__ void for_elements(F f) {
#pragma unroll
  for (int half = 0; half < 2; half++)
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int c = 0; c < 2; c++) f(n, half, c);
}

template <int N> __device__ __forceinline__ void clear(float (&sums)[N][4]) {
  for_elements<N>([&](int n, int half, int c) { sums[n][2 * half + c] = 0; });
}

// The array of one group of rows, as Fragment's functions take it.
template <int N, class X> __device__ __forceinline__ X (&one_group(X (&array)[N][4]))[1][N][4] {
  return reinterpret_cast<X(&)[1][N][4]>(array);
}
// The first M rows of an array in registers.
template <int M, int N, class X> __device__ __forceinline__ X (&first_rows(X (&array)[N][4]))[M][4] {
  static_assert(M <= N);
  return reinterpret_cast<X(&)[M][4]>(array);
}

// A tile of ROWS rows in shared memory, in parts of 64 channels as the copy engine writes them, from `first` on.
template <int ROWS> struct SharedTile {
  const bf16* first;
  // Its rows, of channels 16 k to 16 k + 15; its columns, of rows 16 k to 16 k + 15.
  __device__ __forceinline__ TileOperand rows(int k) const {
    return rows_operand(first + k / 4 * ROWS * TILE_COLUMNS) + k % 4 * 2;
  }
  __device__ __forceinline__ TileOperand columns(int k) const {
    return columns_operand(first, ROWS * TILE_ROW_BYTES) + k * 128;
  }
};

// Starts z = held rows x streamed rows (ADD: +=), summed over all channels, without a commit. held: the consumer's
// first row.
template <class Tile, bool ADD = false>
__device__ __forceinline__ void start_scores(float (&z)[Tile::N][4], const bf16* held, const bf16* streamed) {
#pragma unroll
  for (int k = 0; k < Tile::DIM / 16; k++)
    wgmma(z, SharedTile<Tile::HELD>{held}.rows(k), SharedTile<Tile::STREAM>{streamed}.rows(k), ADD || k > 0);
}

// Starts sums += weights x the first 16 K streamed rows, without a commit.
template <class Tile, int K>
__device__ __forceinline__ void start_sums(float (&sums)[Tile::DIM / 8][4], const unsigned (&weights)[K][4],
                                           const bf16* streamed) {
#pragma unroll
  for (int k = 0; k < K; k++) wgmma(sums, weights[k], SharedTile<Tile::STREAM>{streamed}.columns(k));
}

// Packs weights as left operands.
template <int N>
__device__ __forceinline__ void pack_weights(unsigned (&weights)[N / 2][4], const float (&values)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int half = 0; half < 2; half++)
      keep_weights(weights[n / 2], n, half, values[n][2 * half], values[n][2 * half + 1]);
}

// Where a thread has channels mine.column(n) and the next of row mine.row(half) in held rows.
template <class Tile> struct HeldRows {
  const bf16* held;
  __device__ __forceinline__ const bf16* operator()(const ConsumerThread& mine, int n, int half) const {
    const bf16* tile = held + n / 8 * Tile::HELD * TILE_COLUMNS;
    return tile + tile_place(mine.row(0) % BOX, mine.column(n % 8)) + half * 8 * TILE_COLUMNS;  // rows 8 apart: alike
  }
};

// In a thread's gradients of prepared rows of q (part 0) or k (1), undoes what prepare_forward() did, as
// prepare_backward() does. rows: the prepared rows, as HeldRows gives them. The head has DIM channels, so those that
// RoPE turns together, half a head apart, belong to one thread. Rows from T on are never stored; they read the last
// row's values.
template <class Tile, class Mask, class Rows>
__device__ __forceinline__ void undo_preparation(float (&d)[Tile::DIM / 8][4], const Preparation<bf16>& done,
                                                 const Mask& mask, const Rows& rows, int part, int b, int h,
                                                 int block_row, const KernelShape& shape) {
  constexpr int N = Tile::DIM / 8, HALF = N / 2;
  if (!done.undo) return;
  ConsumerThread mine;
  float alpha[2], inverse[2];
  const float2* angles[2];
  for (int half = 0; half < 2; half++) {
    int t = min(block_row + mine.row(half), shape.T - 1);
    alpha[half] = part == 0 ? done.scale(t - mask.first(t), h) : 1;
    inverse[half] = done.norms ? done.norms[((size_t(b) * shape.T + t) * 2 + part) * shape.H + h] : 1;
    angles[half] = done.rope + size_t(t) * (Tile::DIM / 2);
  }
  auto scale = [&](int n, int half, int c) { return alpha[half] * inverse[half] * d[n][2 * half + c]; };
  if (done.qk_norm == QkNorm::none) {
    for_elements<N>([&](int n, int half, int c) { d[n][2 * half + c] = scale(n, half, c); });
  } else {
    struct alignas(4) Pair {
      bf16 x[2];
    } prepared[N][2];
    float dots[2] = {}, along[2];
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        prepared[n][half] = *reinterpret_cast<const Pair*>(rows(mine, n, half));
#pragma unroll
        for (int c = 0; c < 2; c++) dots[half] += to_float(prepared[n][half].x[c]) * d[n][2 * half + c];
      }
    for (int half = 0; half < 2; half++) {
      for (int mask = 1; mask < 4; mask *= 2) dots[half] += shuffle_xor(dots[half], mask);
      along[half] = gradient_along(done.qk_norm, dots[half], alpha[half], inverse[half], Tile::DIM);
    }
    for_elements<N>([&](int n, int half, int c) {
      d[n][2 * half + c] = scale(n, half, c) - along[half] * to_float(prepared[n][half].x[c]);
    });
  }
  if (!done.rope) return;
#pragma unroll
  for (int half = 0; half < 2; half++)
#pragma unroll
    for (int n = 0; n < HALF; n++) {
      // cosine and sine of two channels
      Pack<float> angle = load16(reinterpret_cast<const float*>(angles[half] + mine.column(n)));
#pragma unroll
      for (int c = 0; c < 2; c++) {
        float u = d[n][2 * half + c], v = d[n + HALF][2 * half + c], cosine = angle[2 * c], sine = angle[2 * c + 1];
        d[n][2 * half + c] = u * cosine + v * sine;
        d[n + HALF][2 * half + c] = v * cosine - u * sine;
      }
    }
}

// column_sums [DIM] = the sums of the consumer's 64 rows of `held`, as products with ones: a warp has 16 columns of a
// tile as rows of A. Rows from T on must be 0: dk and dv are, because nothing sees these keys, and dq is, as its dO.
template <class Tile> __device__ __forceinline__ void sum_columns(float* column_sums, const bf16* held) {
  unsigned thread = unsigned(anew(threadIdx.x)) % WARPGROUP, lane = thread % WARP, column = thread / WARP * 16;
  const bf16* from = held + tile_place(lane / 16 * 8 + lane % 8, column + lane / 8 % 2 * 8);
  const unsigned ones[1][2] = {pack_pair(1, 1), pack_pair(1, 1)};
#pragma unroll
  for (int part = 0; part < Tile::PARTS; part++) {
    float sums[1][1][4] = {};
#pragma unroll
    for (int row = 0; row < BOX; row += 16) {
      unsigned columns[1][4];
      const void* rows[1] = {from + (part * Tile::HELD + row) * TILE_COLUMNS};  // 16 rows further chunks lie alike
      ldmatrix_x4_trans(columns, rows);
      mma_m16n8k16(sums, columns, ones);
    }
    float* to = column_sums + part * TILE_COLUMNS + column + lane / 4;
    if (lane % 4 == 0) to[0] = sums[0][0][0], to[8] = sums[0][0][2];
  }
  warp_sync();  // all lanes have read the rows, which one lane frees
}

// Writes the sums to the consumer's 64 rows, from `row` on, of a head of a tensor, and the sums of these rows to
// column_sums, if given. They pass through `held`, the consumer's rows of a buffer that its products have read; after
// this its warps may free that buffer.
template <class Tile>
__device__ __forceinline__ void store_rows(const TensorMap& to, int b, int row, int head, bf16* held,
                                           const float (&sums)[Tile::DIM / 8][4], float* column_sums = nullptr) {
  ConsumerThread mine;
  named_barrier(1 + mine.consumer, WARPGROUP);  // the products of all four warps are done
#pragma unroll
  for (int n = 0; n < Tile::DIM / 8; n++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      bf16* tile = held + n / 8 * Tile::HELD * TILE_COLUMNS;
      *reinterpret_cast<unsigned*>(tile + tile_place(mine.row(half) % BOX, mine.column(n % 8))) =
          pack_pair(sums[n][2 * half], sums[n][2 * half + 1]);
    }
  async_proxy_fence();
  named_barrier(1 + mine.consumer, WARPGROUP);
  bool stores = threadIdx.x % WARPGROUP == 0;
  if (stores) {
    for (int part = 0; part < Tile::PARTS; part++)
      tile_store(to, held + part * Tile::HELD * TILE_COLUMNS, b, row, head, part * TILE_COLUMNS);
    bulk_commit();
  }
  if (column_sums) sum_columns<Tile>(column_sums, held);
  if (stores) bulk_wait_read();
}
