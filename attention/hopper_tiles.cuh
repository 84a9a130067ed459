// What the Hopper attention kernels are made of. A block is persistent, one to a multiprocessor: the first warp of its
// first warpgroup, the producer, asks the copy engine for tiles; the two other warpgroups, the consumers, multiply, 64
// held rows each. Tiles arrive in two kinds of shared memory:
//   held    the rows that a block works for, [HELD_TENSORS][PARTS][HELD][64], two buffers: the next is filled early
//   slots   a ring of streamed tiles [PARTS][STREAM][64]; tile number n of the kernel goes to slot n % SLOTS
// and each of them has two mbarriers, full and empty. Producer and consumers count the same tiles in the same order, so
// a number is all they need to agree on.
#pragma once
#include "attention/heads.cuh"
#include "kernels/hopper.cuh"

constexpr int BOX = 64;  // rows that one copy brings, and that a consumer holds

// DIM: channels, 64 or 128; heads with fewer are padded with zeros by the copy engine. STREAM: streamed rows at a time.
// ROW_VALUES: floats per streamed row that come with every second tile (queries, in the kernel for dK and dV).
template <int DIM_, HopperSize SIZE, int HELD_TENSORS_, int ROW_VALUES_ = 0>
struct HopperTile {
  static constexpr int DIM = DIM_, STREAM = SIZE.stream, SLOTS = SIZE.slots;
  static constexpr int HELD_TENSORS = HELD_TENSORS_, ROW_VALUES = ROW_VALUES_;
  static constexpr int CONSUMERS = 2, HELD = CONSUMERS * BOX, THREADS = (1 + CONSUMERS) * WARPGROUP;
  // A block begins with 168 for each thread; what the producer gives back must be enough for what the consumers take.
  static constexpr int PRODUCER_REGISTERS = 24, CONSUMER_REGISTERS = 240;
  static_assert(PRODUCER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS <= (1 + CONSUMERS) * 168);
  static constexpr int PARTS = DIM / TILE_COLUMNS, N = STREAM / 8, K = STREAM / 16;
  static constexpr int HELD_SIZE = HELD * DIM, SLOT_SIZE = STREAM * DIM;  // elements
  static constexpr int TILES_SIZE = 2 * HELD_TENSORS * HELD_SIZE + SLOTS * SLOT_SIZE;
  static constexpr int BARRIERS = 2 * (SLOTS + 2);
  static constexpr size_t SHARED_BYTES =
      TILES_SIZE * sizeof(bf16) + SLOTS / 2 * ROW_VALUES * STREAM * sizeof(float) + BARRIERS * sizeof(Mbarrier);
  // What bench/hopper_bench.cu tries the other way, in tiles of its own: compute_before_wait() in the forward pass, and
  // stagger() below.
  static constexpr bool COMPUTE_BEFORE_WAIT = true, STAGGER = false;
  static_assert(DIM % TILE_COLUMNS == 0 && STREAM % BOX == 0 && SLOTS % 2 == 0);
  static_assert(SHARED_BYTES <= 227 * 1024, "more shared memory than a block can have");
};

template <class Tile>
struct Stages {
  bf16* tiles;
  Mbarrier *full, *empty, *held_full, *held_empty;

  // Called by the whole block.
  __device__ __forceinline__ explicit Stages(bf16* shared) : tiles(shared) {
    full = reinterpret_cast<Mbarrier*>(reinterpret_cast<char*>(shared) + Tile::SHARED_BYTES) - Tile::BARRIERS;
    empty = full + Tile::SLOTS;
    held_full = empty + Tile::SLOTS;
    held_empty = held_full + 2;
    if (threadIdx.x == 0) {
      for (int n = 0; n < Tile::SLOTS; n++) mbarrier_init(full[n], 1), mbarrier_init(empty[n], Tile::CONSUMERS * 4);
      for (int n = 0; n < 2; n++) mbarrier_init(held_full[n], 1), mbarrier_init(held_empty[n], Tile::CONSUMERS);
      mbarrier_init_fence();
    }
    __syncthreads();
  }
  __device__ __forceinline__ bf16* held(int number, int tensor) const {
    return tiles + (number % 2 * Tile::HELD_TENSORS + tensor) * Tile::HELD_SIZE;
  }
  __device__ __forceinline__ bf16* slot(int number) const {
    return tiles + 2 * Tile::HELD_TENSORS * Tile::HELD_SIZE + number % Tile::SLOTS * Tile::SLOT_SIZE;
  }
  // [ROW_VALUES][STREAM], beside tile `number` and the next
  __device__ __forceinline__ float* row_values(int number) const {
    return reinterpret_cast<float*>(tiles + Tile::TILES_SIZE) +
           number % Tile::SLOTS / 2 * Tile::ROW_VALUES * Tile::STREAM;
  }

  // The producer's side, called by its whole warp: what is the same for all lanes then costs none of its few registers.
  // Held rows come in the order of their tensors, one call each.
  __device__ __forceinline__ void fetch_held(int number, int tensor, const TensorMap& map, int b, int row, int head) {
    Mbarrier& barrier = held_full[number % 2];
    if (tensor == 0) mbarrier_wait(held_empty[number % 2], (number / 2 & 1) ^ 1);
    if (threadIdx.x == 0) {
      if (tensor == 0)
        mbarrier_arrive_expect(barrier, Tile::HELD_TENSORS * Tile::HELD_SIZE * int(sizeof(bf16)));
      fetch_rows<Tile::HELD>(held(number, tensor), map, b, row, head, barrier);
    }
    warp_sync();  // no lane may run ahead by two phases, which look alike
  }
  // With `rows` come STREAM floats from each of ROW_VALUES arrays, `pitch` apart, to row_values(number).
  __device__ __forceinline__ void fetch(int number, const TensorMap& map, int b, int row, int head,
                                        const float* rows = nullptr, size_t pitch = 0) {
    constexpr int row_bytes = Tile::STREAM * int(sizeof(float));
    Mbarrier& barrier = full[number % Tile::SLOTS];
    mbarrier_wait(empty[number % Tile::SLOTS], (number / Tile::SLOTS & 1) ^ 1);
    if (threadIdx.x == 0) {
      mbarrier_arrive_expect(barrier, Tile::SLOT_SIZE * int(sizeof(bf16)) + (rows ? Tile::ROW_VALUES * row_bytes : 0));
      fetch_rows<Tile::STREAM>(slot(number), map, b, row, head, barrier);
      for (int n = 0; rows && n < Tile::ROW_VALUES; n++)
        bulk_load(row_values(number) + n * Tile::STREAM, rows + n * pitch, row_bytes, barrier);
    }
    warp_sync();
  }

  // The consumers' side. A warp frees a slot when all its products from there are done.
  __device__ __forceinline__ void await_held(int number) const {
    mbarrier_wait(held_full[number % 2], number / 2 & 1);
  }
  __device__ __forceinline__ bf16* await(int number) const {
    mbarrier_wait(full[number % Tile::SLOTS], number / Tile::SLOTS & 1);
    return slot(number);
  }
  __device__ __forceinline__ void free(int number) const {
    if (threadIdx.x % WARP == 0) mbarrier_arrive(empty[number % Tile::SLOTS]);
  }
  __device__ __forceinline__ void skip(int number) const {
    await(number);
    free(number);
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

// f(head of B H, row tile, number) for the tiles of HELD rows that are this block's, numbered from 0. A head's tiles
// stand in the order last, first, last but one, second, ...: much and little work in turn; blocks take two at a time.
template <class Tile, class F>
__device__ __forceinline__ void for_row_tiles(const Shape& shape, int B, F f) {
#pragma unroll 1
  for (int number = 0;; number++) {
    int tiles = (anew(shape.T) + Tile::HELD - 1) / Tile::HELD;
    int n = 2 * (blockIdx.x + number / 2 * anew(gridDim.x)) + number % 2, head = n / tiles, k = n % tiles;
    if (head >= anew(shape.H) * B) return;
    f(head, k % 2 == 0 ? tiles - 1 - k / 2 : k / 2, number);
  }
}

// A consumer thread's place in its block's rows. The warp's number is taken from its first lane: so the compiler knows
// that it is the same for all, and keeps it elsewhere than in each lane's registers.
struct HopperFragment {
  int thread = anew(threadIdx.x), lane_row = thread % WARP / 4, quad = thread % 4;
  int warp = shuffle(thread / WARP, 0), consumer = warp / 4 - 1;
  int first = (warp - 4) * 16;  // of the warp's 16 rows
  __device__ __forceinline__ int row(int half) const { return first + 8 * half + lane_row; }
  __device__ __forceinline__ int column(int n) const { return 8 * n + 2 * quad; }
};

// The consumers meet once a row tile: the second before its first products, the first when it has its own. So the second
// is half a step behind, and its products run beside the first one's arithmetic.
template <class Tile>
__device__ __forceinline__ void stagger() {
  if constexpr (Tile::STAGGER) named_barrier(1 + Tile::CONSUMERS, Tile::CONSUMERS * WARPGROUP);
}

// f(n, half, c) for every element [n][2 half + c] of a product's result that a thread has.
template <int N, class F>
__device__ __forceinline__ void for_elements(F f) {
#pragma unroll
  for (int half = 0; half < 2; half++)
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int c = 0; c < 2; c++) f(n, half, c);
}

// Steps of streamed rows that reach to row `end` of T.
template <class Tile>
__device__ __forceinline__ int steps_to(int end, int T) {
  return (min(end, T) + Tile::STREAM - 1) / Tile::STREAM;
}

// Scores of queries, rows of the block's from block_row on, with keys from j0 on: -inf where the key comes later.
template <class Tile>
__device__ __forceinline__ void mask_later(float (&z)[Tile::N][4], int j0, int block_row, const HopperFragment& mine) {
  if (j0 + Tile::STREAM - 1 <= block_row + mine.first) return;
  for_elements<Tile::N>([&](int n, int half, int c) {
    if (j0 + mine.column(n) + c > block_row + mine.row(half)) z[n][2 * half + c] = -INFINITY;
  });
}

// z = held rows x streamed rows, over all channels; held: the first of the consumer's rows. One group, not waited for.
template <class Tile>
__device__ __forceinline__ void start_scores(float (&z)[Tile::N][4], const bf16* held, const bf16* streamed) {
#pragma unroll
  for (int k = 0; k < Tile::DIM / 16; k++) {
    TileOperand a = rows_operand(held + k / 4 * Tile::HELD * TILE_COLUMNS) + k % 4 * 2,
                b = rows_operand(streamed + k / 4 * Tile::STREAM * TILE_COLUMNS) + k % 4 * 2;
    wgmma(z, a, b, k > 0);
  }
}

// sums += weights x streamed rows, on its way
template <class Tile>
__device__ __forceinline__ void start_sums(float (&sums)[Tile::DIM / 8][4], const unsigned (&weights)[Tile::K][4],
                                           const bf16* streamed) {
#pragma unroll
  for (int k = 0; k < Tile::K; k++)
    wgmma(sums, weights[k], columns_operand(streamed, Tile::STREAM * TILE_ROW_BYTES) + k * 128);
}

// Weights as left operands: those of columns 8 n + 2 quad and the next, in the first or second half of the rows.
template <int K>
__device__ __forceinline__ void keep_weights(unsigned (&weights)[K][4], int n, int half, float low, float high) {
  weights[n / 2][half + n % 2 * 2] = pack_pair<bf16>(low, high);
}
template <int N>
__device__ __forceinline__ void pack_weights(unsigned (&weights)[N / 2][4], const float (&values)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int half = 0; half < 2; half++)
      keep_weights(weights, n, half, values[n][2 * half], values[n][2 * half + 1]);
}

// The consumer's 64 rows, from `row` on, of a head of a tensor = sums. They pass through `held`, the consumer's rows of
// a buffer that its products have read; when this returns, its first thread may hand that back.
template <class Tile>
__device__ __forceinline__ void store_rows(const TensorMap& to, int b, int row, int head, bf16* held,
                                           const float (&sums)[Tile::DIM / 8][4]) {
  HopperFragment mine;
  named_barrier(1 + mine.consumer, WARPGROUP);  // the products of all four warps are done
#pragma unroll
  for (int n = 0; n < Tile::DIM / 8; n++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      bf16* tile = held + n / 8 * Tile::HELD * TILE_COLUMNS;
      *reinterpret_cast<unsigned*>(tile + tile_place(mine.row(half) % BOX, mine.column(n % 8))) =
          pack_pair<bf16>(sums[n][2 * half], sums[n][2 * half + 1]);
    }
  async_proxy_fence();
  named_barrier(1 + mine.consumer, WARPGROUP);
  if (threadIdx.x % WARPGROUP != 0) return;
  for (int part = 0; part < Tile::PARTS; part++)
    tile_store(to, held + part * Tile::HELD * TILE_COLUMNS, b, row, head, part * TILE_COLUMNS);
  bulk_commit();
  bulk_wait_read();
}
