// The roles in a block of Hopper's kernels and what they work on. A pass is a struct: load() is what the producer does
// for a row tile, compute() what a consumer does.
#pragma once
#include "attention/hopper/tiles.cuh"

// The n-th of the row tiles of all heads of B H, of which a block takes two at a time. A head's tiles come in the order
// last, first, last but one, second, ..., so much and little work alternate. Where nearly all tiles need as much (EVEN)
// the pair with less comes from each head at a time: otherwise the same blocks might get it from every head.
struct RowTile {
  int head, tile, number = 0;  // number: of the block's row tiles
  template <class Mask> __host__ __device__ __forceinline__ static RowTile at(int n, int tiles, int heads) {
    int head = n / tiles, k = n % tiles;
    if constexpr (Mask::EVEN) {
      int pair = n / (2 * heads), rest = n % (2 * heads);
      bool two = 2 * pair + 1 < tiles;
      head = n < tiles * heads ? rest / (two ? 2 : 1) : heads;
      k = 2 * pair + two * (rest % 2);
    }
    return {head, k % 2 == 0 ? tiles - 1 - k / 2 : k / 2};
  }
};

// f(row tile) for this block's tiles of HELD rows, numbered from 0.
template <class Tile, class Mask, class F>
__device__ __forceinline__ void for_row_tiles(const KernelShape& shape, F f) {
#pragma unroll 1
  for (int number = 0;; number++) {
    int tiles = (anew(shape.T) + Tile::HELD - 1) / Tile::HELD;
    int n = 2 * (blockIdx.x + number / 2 * anew(gridDim.x)) + number % 2, heads = anew(shape.H) * shape.B;
    RowTile mine = RowTile::at<Mask>(n, tiles, heads);
    if (mine.head >= heads) return;
    mine.number = number;
    f(mine);
  }
}

// With IN_TURN the consumers start products one after the other, so that the products of one run beside the other's
// arithmetic. The first consumer begins. Both take as many turns in a row tile; a step that one of them skips is a turn
// too. Without, this does nothing.
template <class Tile> struct PingPong {
  Mbarrier* turns;
  int consumer, number = 0;
  __device__ __forceinline__ void begin() {
    if constexpr (Tile::IN_TURN) mbarrier_wait(turns[consumer], (number++ & 1) ^ (consumer == 0));
  }
  __device__ __forceinline__ void end() const {
    if constexpr (Tile::IN_TURN) {
      warp_sync();  // all lanes have begun
      if (threadIdx.x % WARP == 0) mbarrier_arrive(turns[1 - consumer]);
    }
  }
  __device__ __forceinline__ void skip() { begin(), end(); }
};

// f(row tile) for all tiles of this block's heads, each head's in ascending order.
template <class Tile, class F> __device__ __forceinline__ void for_heads(const KernelShape& shape, F f) {
  int number = 0;
#pragma unroll 1
  for (int head = blockIdx.x; head < anew(shape.H) * shape.B; head += gridDim.x)
#pragma unroll 1
    for (int tile = 0; tile * Tile::HELD < anew(shape.T); tile++) f(RowTile{head, tile, number++});
}

// Divides the block into its roles, for each of its row tiles: load() by the producer's warp, compute() by the
// consumers, which get the registers of the producer's warpgroup.
template <class Pass, class Arguments> __device__ __forceinline__ void run_roles(bf16* shared, const Arguments& a) {
  using Tile = typename Pass::Tile;
  Stages<Tile> stages(shared);
  auto for_tiles = [&](auto f) {
    if constexpr (Pass::WHOLE_HEADS) for_heads<Tile>(a.shape, f);
    else for_row_tiles<Tile, typename Pass::Mask>(a.shape, f);
  };
  if (threadIdx.x < WARPGROUP) {
    registers_shrink<Tile::PRODUCER_REGISTERS>();
    if (ConsumerThread().warp != 0) return;
    for_tiles([&](const RowTile& tile) { Pass::load(stages, a, tile); });
  } else {
    registers_grow<Tile::CONSUMER_REGISTERS>();
    ConsumerThread mine;
    PingPong<Tile> turns{stages.turns, mine.consumer};
    for_tiles([&](const RowTile& tile) { Pass(a, stages, turns, mine, tile).compute(); });
  }
}

// The base of both passes: a consumer's work on its 64 held rows of a row tile.
template <class Arguments, class Mask_, class Tile_> struct HopperPass {
  using Mask = Mask_;
  using Tile = Tile_;
  static constexpr bool WHOLE_HEADS = false;  // a block takes whole heads, not row tiles of any
  const Arguments& a;
  Stages<Tile>& stages;
  PingPong<Tile>& turns;
  const ConsumerThread& mine;
  RowTile tile;
  int block_row = tile.tile * Tile::HELD;
  Mask mask{a.settings, a.shape.T, size_t(tile.head)};

  __device__ __forceinline__ HopperPass(const Arguments& a, Stages<Tile>& stages, PingPong<Tile>& turns,
                                        const ConsumerThread& mine, const RowTile& tile)
      : a(a), stages(stages), turns(turns), mine(mine), tile(tile) {}
  __device__ __forceinline__ bf16* held(int tensor) const {
    return stages.held(tile.number, tensor) + mine.consumer * BOX * TILE_COLUMNS;
  }
  // Prepares the mask for the warp's held rows.
  template <bool KEYS> __device__ __forceinline__ void hold() { mask.template hold<KEYS>(block_row + mine.first, 16); }
  // z = what the mask adds to the scores of streamed tile `number`, which has arrived, before the fence of the products
  // that add the rest; KEYS: keys are held.
  template <bool KEYS, int N> __device__ __forceinline__ void begin(float (&z)[N][4], int number, int stream0) const {
    if constexpr (Mask::ADDS) {
      begin_with_bias<KEYS>(one_group(z), mask, block_row, stream0, stages.bias_rows(number, stream0), mine);
      warp_sync();  // all lanes have read the bias, which is freed with the tile
    }
  }
  // Hides scores as the mask wants it.
  template <bool KEYS, int N> __device__ __forceinline__ void hide(float (&z)[N][4], int stream0) const {
    mask_scores<KEYS>(one_group(z), mask, block_row, stream0, mine);
  }
  // In gradients of held rows of q (part 0) or k (1), undoes their preparation. rows: see undo_preparation().
  template <class Rows> __device__ __forceinline__ void undo(int part, const Rows& rows, float (&d)[Tile::DIM / 8][4]) {
    int b = tile.head / a.shape.H, h = tile.head % a.shape.H;
    undo_preparation<Tile>(d, a.preparation, mask, rows, part, b, h, block_row, a.shape);
  }
  // a.dqkv = gradients of held rows, which pass through `buffer`; a.column_sums, if there are any, = their sums.
  __device__ __forceinline__ void store_gradients(int part, bf16* buffer, const float (&d)[Tile::DIM / 8][4]) const {
    int H = a.shape.H, b = tile.head / H, head = part * H + tile.head % H, row = block_row + mine.consumer * BOX;
    float* sums = nullptr;
    if (a.column_sums && row < a.shape.T)
      sums = a.column_sums + ((size_t(b) * a.shape.tiles(BOX) + row / BOX) * 3 * H + head) * Tile::DIM;
    store_rows<Tile>(a.dqkv, b, row, head, buffer, d, sums);
  }
  // With a bias: a.dz_sums = the held rows' sums of dz.
  __device__ __forceinline__ void store_sums_of_dz(float (&sums)[1][2]) const {
    if constexpr (Mask::ADDS)
      store_dz_sums(a.dz_sums + size_t(tile.head) * a.shape.T, block_row, a.shape.T, sums, mine);
  }
  // load() where keys and values stream past; before them the keys alone, if there are two sweeps.
  static __device__ __forceinline__ void load_keys_and_values(Stages<Tile>& stages, const Arguments& a,
                                                              const RowTile& tile, bool two_sweeps = false) {
    int H = a.shape.H, b = tile.head / H, h = tile.head % H;
    Mask mask(a.settings, a.shape.T, tile.head);
    auto key_tiles = mask.template key_tiles<Tile::STREAM>(tile.tile * Tile::HELD, Tile::HELD);
    int steps = key_tiles.end();
    auto fetch_keys = [&](int row) { stages.fetch(a.qkv, b, row, H + h, mask.bias_rows(row)); };
    for (int step = 0; step < two_sweeps * steps; step++) fetch_keys(key_tiles.row(step));
    for (int step = 0; step < steps; step++) {
      fetch_keys(key_tiles.row(step));
      stages.fetch(a.qkv, b, key_tiles.row(step), 2 * H + h);
    }
  }
};
