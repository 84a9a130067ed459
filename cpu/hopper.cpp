// Hopper's copy engine, barriers in shared memory and products of a warpgroup, for one block at a time. Nothing here is
// done earlier than a GPU may do it, and most of it as late as a GPU may: so what a kernel fails to wait for shows.
#include "kernels/hopper.cuh"
#include <algorithm>
#include <vector>

namespace cpu {
namespace {

constexpr int most_steps = 8;     // products of 16 columns of A that are done as one
constexpr int most_named = 16;
constexpr int most_bytes = (1 << 20) - 1, most_arrivals = (1 << 20) - 1;  // of a phase of an mbarrier

struct Tile {
  TensorMap map;  // a copy: kernel arguments die with their thread
  char* place;
  int batch, row, head, channel;
};
struct Copy {
  Tile tile;
  const void* from;  // of a bulk_load; else null
  int bytes;
  Mbarrier* barrier;
  Site site;
};
struct Store {
  Tile tile;
  Thread* thread;
  bool committed;
};

struct Started {
  Product product;
  Site site;
  unsigned group;
  float* d[WARPGROUP];
  const unsigned* registers[WARPGROUP];
};
struct Member {
  int started;         // products, of those under way
  unsigned committed;  // groups
  bool fenced;
};
struct Warpgroup {
  std::vector<Started> products;  // the first n_products are under way
  int n_products, arrived;        // at wgmma_wait
  Member member[WARPGROUP], first;  // first: who came first to wgmma_wait
  int groups_left;
  Site site;
  unsigned waits;
  char key[2];  // for TSan (see fiber.h)
};
struct Named {
  int threads, arrived;
  Site site;
  unsigned passed;
  char key[2];
};

}  // namespace

struct Engine {
  std::vector<Copy> copies;
  std::vector<Store> stores;
  Named named[most_named] = {};
  Warpgroup warpgroup[max_block_threads / WARPGROUP] = {};
  alignas(64) float a[WARPGROUP / 2][16 * most_steps], b[16 * most_steps][TILE_COLUMNS];
  alignas(64) float d[WARPGROUP / 2][TILE_COLUMNS];
  char issue_key = 0;
#ifdef CPU_TSAN
  void* fiber = __tsan_create_fiber(0);
  ~Engine() { __tsan_destroy_fiber(fiber); }
#endif
};

void start_block(Engine& e) {
  Unseen unseen;
  e.copies.clear();
  e.stores.clear();
  for (Named& named : e.named) named.arrived = 0;
  for (Warpgroup& group : e.warpgroup) {
    group.n_products = group.arrived = 0;
    std::fill_n(group.member, WARPGROUP, Member{});
  }
}

void finish_block(const Engine& e) {
  Unseen unseen;
  if (!e.copies.empty())
    reject("copies under way when the block ended: %zu, the first from %s.", e.copies.size(),
           text_of(e.copies[0].site).c_str());
  for (const Warpgroup& group : e.warpgroup)
    if (group.n_products)
      reject("products under way when the block ended: %d, the first from %s.", group.n_products,
             text_of(group.products[0].site).c_str());
}

void free_engine(Engine* e) { delete e; }

namespace {

CPU_NO_TSAN [[gnu::cold, gnu::noinline]] void new_engine() {
  Unseen unseen;
  start_block(*(here.engine = new Engine));
}
CPU_NO_TSAN inline Engine& engine() {
  if (!here.engine) [[unlikely]] new_engine();
  return *here.engine;
}

// ---- mbarriers

struct State {
  uint64_t count : 20, pending : 20;
  int64_t bytes : 22;  // announced and not yet brought; less than 0 when they come first
  uint64_t parity : 1, invalid : 1;
};

// TSan sees this read, and the write of mbarrier_init: a barrier must be initialised before it is used.
State read(const Mbarrier& barrier, const Site& site) {
  State s = __builtin_bit_cast(State, __atomic_load_n(&barrier.state, __ATOMIC_RELAXED));
  if (s.invalid || s.count == 0) reject("%s: the mbarrier has not been initialised.", text_of(site).c_str());
  return s;
}

// A key of TSan's for each of two phases.
char* key_of(Mbarrier& barrier, unsigned parity) { return reinterpret_cast<char*>(&barrier) + parity; }

CPU_NO_TSAN void change(Mbarrier& barrier, State s, int arrivals, int bytes, const Site& site) {
  if (static_cast<int>(s.pending) < arrivals)
    reject("%s: more arrivals at the mbarrier than the %d of a phase.", text_of(site).c_str(), int(s.count));
  if (std::abs(s.bytes + bytes) > most_bytes)
    reject("%s: %d bytes are outstanding at the mbarrier, %d is the limit.", text_of(site).c_str(),
           int(s.bytes + bytes), most_bytes);
  order_before(key_of(barrier, s.parity));
  s.pending -= static_cast<unsigned>(arrivals);
  s.bytes += bytes;
  bool ended = s.pending == 0 && s.bytes == 0;
  if (ended) s.pending = s.count, s.parity ^= 1;
  barrier.state = __builtin_bit_cast(uint64_t, s);
  if (ended) wake(&barrier);
}

std::string missing(const void* barrier) {
  State s = __builtin_bit_cast(State, static_cast<const Mbarrier*>(barrier)->state);
  return format(" for %d arrivals and %d bytes", int(s.pending), int(s.bytes));
}

// ---- copies

bool in_dynamic_shared(const void* begin, int64_t bytes) {
  int64_t offset = static_cast<const char*>(begin) - here.dynamic_shared;
  return offset >= 0 && offset + bytes <= static_cast<int64_t>(here.shared_bytes);
}

int tile_bytes(const TensorMap& map) { return map.tile_rows * TILE_ROW_BYTES; }

void check_tile(const void* tile, int64_t bytes, const Site& site) {
  if (!in_dynamic_shared(tile, bytes) || (static_cast<const char*>(tile) - here.dynamic_shared) % TILE_ALIGNMENT)
    reject("%s: the tile at byte %lld with %lld bytes must be in the %zu bytes of dynamic shared memory, at a multiple "
           "of %d.", text_of(site).c_str(), static_cast<long long>(static_cast<const char*>(tile) - here.dynamic_shared),
           static_cast<long long>(bytes), here.shared_bytes, TILE_ALIGNMENT);
}

// Calls f(chunk in shared memory, its 8 elements in the tensor, first, last + 1 of them that are inside the tensor).
template <class F> void for_each_chunk(const Tile& t, F f) {
  const TensorShape& s = t.map.shape;
  bool inside = t.batch >= 0 && t.batch < s.batches && t.head >= 0 && t.head < s.heads;
  for (int r = 0; r < t.map.tile_rows; ++r) {
    int64_t row = int64_t(t.row) + r;
    const bf16* x = t.map.x;
    if (inside && row >= 0 && row < s.rows)
      x += size_t(t.batch) * s.batch_stride + size_t(row) * s.row_stride + size_t(t.head) * s.head_stride;
    else
      x = nullptr;
    for (int c = 0; c < TILE_COLUMNS; c += 8) {
      size_t at = static_cast<size_t>(t.place - here.dynamic_shared + r * TILE_ROW_BYTES + c * 2);
      int64_t channel = int64_t(t.channel) + c;
      int64_t first = std::clamp<int64_t>(-channel, 0, 8), end = std::clamp<int64_t>(s.channels - channel, first, 8);
      f(here.dynamic_shared + (at ^ (at >> 3 & 0x70)), x + channel, int(first), x ? int(end) : int(first));
    }
  }
}

// Both are seen by the sanitizers.
void bring(const Copy& copy) {
  if (copy.from) {
    memcpy(copy.tile.place, copy.from, size_t(copy.bytes));
    return;
  }
  for_each_chunk(copy.tile, [](char* chunk, const bf16* x, int first, int end) {
    Bytes16 v{};
    if (end - first == 8) memcpy(&v, x, 16);
    else if (end > first) memcpy(reinterpret_cast<bf16*>(&v) + first, x + first, size_t(end - first) * 2);
    *reinterpret_cast<Bytes16*>(chunk) = v;
  });
}
void take(const Tile& tile) {
  for_each_chunk(tile, [](char* chunk, const bf16* x, int first, int end) {
    bf16* to = const_cast<bf16*>(x);
    if (end - first == 8) memcpy(to, chunk, 16);
    else if (end > first) memcpy(to + first, chunk + first * 2, size_t(end - first) * 2);
  });
}

void load_later(const Copy& copy) {
  Engine& e = engine();
  read(*copy.barrier, copy.site);
  order_before(&e.issue_key);
  Unseen unseen;
  e.copies.push_back(copy);
}

}  // namespace

int copies_under_way(const Engine& e) {
  Unseen unseen;
  return static_cast<int>(e.copies.size());
}

// For TSan the engine is a thread of its own: ordered after those that ask, and before those that wait.
CPU_NO_TSAN void deliver(Engine& e, int which) {
  struct AsEngine {
#ifdef CPU_TSAN
    void* before = __tsan_get_current_fiber();
    explicit AsEngine(Engine& e) { __tsan_switch_to_fiber(e.fiber, __tsan_switch_to_fiber_no_sync); }
    ~AsEngine() { __tsan_switch_to_fiber(before, __tsan_switch_to_fiber_no_sync); }
#else
    explicit AsEngine(Engine&) {}
#endif
  } as_engine(e);
  order_after(&e.issue_key);
  Copy copy = [&] {
    Unseen unseen;
    Copy taken = e.copies[size_t(which)];
    e.copies.erase(e.copies.begin() + which);
    return taken;
  }();
  bring(copy);
  change(*copy.barrier, read(*copy.barrier, copy.site), 0, -copy.bytes, copy.site);
}

}  // namespace cpu

using namespace cpu;

void mbarrier_init(Mbarrier& barrier, int count) {
  if (count < 1 || count > most_arrivals) reject("mbarrier_init: a count of %d; 1 to %d can be.", count, most_arrivals);
  State s{};
  s.count = s.pending = static_cast<unsigned>(count);
  barrier.state = __builtin_bit_cast(uint64_t, s);
}

void mbarrier_arrive(Mbarrier& barrier, const char* file, int line) {
  Site site{"mbarrier_arrive", file, line};
  change(barrier, read(barrier, site), 1, 0, site);
}

void mbarrier_arrive_expect(Mbarrier& barrier, int bytes, const char* file, int line) {
  Site site{"mbarrier_arrive_expect", file, line};
  if (bytes < 0) reject("%s: %d bytes.", text_of(site).c_str(), bytes);
  change(barrier, read(barrier, site), 1, bytes, site);
}

void mbarrier_wait(Mbarrier& barrier, unsigned parity, const char* file, int line) {
  Site site{"mbarrier_wait", file, line};
  if (parity > 1) reject("%s: parity %u.", text_of(site).c_str(), parity);
  while (read(barrier, site).parity == parity) sleep_until_woken(&barrier, site, missing);
  order_after(key_of(barrier, parity));
}

TensorMap tensor_map(const bf16* x, const TensorShape& s, int tile_rows) {
  const char* wrong = reinterpret_cast<uintptr_t>(x) % 16 ? "its address is not a multiple of 16"
                      : s.batches < 1 || s.rows < 1 || s.heads < 1 || s.channels < 1 ? "it has nothing inside"
                      : s.batch_stride % 8 || s.row_stride % 8 || s.head_stride % 8 ? "a stride is not a multiple of 8"
                      : tile_rows < 1 || tile_rows > 256 ? "tiles have 1 to 256 rows" : nullptr;
  if (wrong)
    failure("tensor_map of %d x %d x %d x %d bf16, strides %zu, %zu, %zu, for tiles of %d rows: %s.", s.batches, s.rows,
            s.heads, s.channels, s.batch_stride, s.row_stride, s.head_stride, tile_rows, wrong);
  return {x, s, tile_rows};
}

void tile_load(void* tile, const TensorMap& map, int batch, int row, int head, int channel, Mbarrier& barrier,
               const char* file, int line) {
  Site site{"tile_load", file, line};
  check_tile(tile, tile_bytes(map), site);
  load_later({{map, static_cast<char*>(tile), batch, row, head, channel}, nullptr, tile_bytes(map), &barrier, site});
}

void bulk_load(void* shared, const void* global, int bytes, Mbarrier& barrier, const char* file, int line) {
  Site site{"bulk_load", file, line};
  if (bytes < 16 || bytes % 16 || reinterpret_cast<uintptr_t>(shared) % 16 || reinterpret_cast<uintptr_t>(global) % 16)
    reject("%s: %d bytes from %p to %p: all three must be multiples of 16.", text_of(site).c_str(), bytes, global,
           shared);
  if (in_dynamic_shared(shared, 1) && !in_dynamic_shared(shared, bytes))
    reject("%s: %d bytes reach beyond the block's shared memory.", text_of(site).c_str(), bytes);
  load_later({{{}, static_cast<char*>(shared), 0, 0, 0, 0}, global, bytes, &barrier, site});
}

void tile_store(const TensorMap& map, const void* tile, int batch, int row, int head, int channel, const char* file,
                int line) {
  check_tile(tile, tile_bytes(map), {"tile_store", file, line});
  Unseen unseen;
  Tile from{map, static_cast<char*>(const_cast<void*>(tile)), batch, row, head, channel};
  engine().stores.push_back({from, self, false});
}

void bulk_commit() {
  Unseen unseen;
  for (Store& store : engine().stores)
    if (store.thread == self) store.committed = true;
}

void bulk_wait_read() {
  auto mine = [](const Store& store) { return store.thread == self && store.committed; };
  std::vector<Store> done;
  {
    Unseen unseen;
    std::vector<Store>& all = engine().stores;
    std::copy_if(all.begin(), all.end(), std::back_inserter(done), mine);
    std::erase_if(all, mine);
  }
  for (const Store& store : done) take(store.tile);
}

CPU_NO_TSAN void named_barrier(int number, int threads, const char* file, int line) {
  Site site{"named_barrier", file, line};
  if (number < 1 || number >= most_named || threads < warp_size || threads % warp_size)
    reject("%s: barrier %d of %d threads; numbers are 1 to %d, threads a multiple of %d.", text_of(site).c_str(), number,
           threads, most_named - 1, warp_size);
  Named& barrier = engine().named[number];
  if (barrier.arrived == 0) barrier.threads = threads, barrier.site = site;
  else if (barrier.threads != threads)
    reject("%s: barrier %d of %d threads, but %s says %d.", text_of(site).c_str(), number, threads,
           text_of(barrier.site).c_str(), barrier.threads);
  [[maybe_unused]] char* key = &barrier.key[barrier.passed % 2];
  order_before(key);
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    ++barrier.passed;
    wake(&barrier);
  } else {
    sleep_until_woken(&barrier, site);
  }
  order_after(key);
}

// ---- products

TileOperand rows_operand(const void* tile, const char* file, int line) {
  check_tile(tile, 1, {"rows_operand", file, line});
  auto start = static_cast<TileOperand>(static_cast<const char*>(tile) - here.dynamic_shared);
  return start >> 4 | TileOperand(1) << 16 | TileOperand(TILE_ALIGNMENT >> 4) << 32 | TileOperand(1) << 62;
}

TileOperand columns_operand(const void* tile, int tile_bytes, const char* file, int line) {
  check_tile(tile, 1, {"columns_operand", file, line});
  auto start = static_cast<TileOperand>(static_cast<const char*>(tile) - here.dynamic_shared);
  return start >> 4 | TileOperand(tile_bytes >> 4) << 16 | TileOperand(TILE_ALIGNMENT >> 4) << 32 | TileOperand(1) << 62;
}

namespace cpu {
namespace {

// The fields of an operand, in bytes.
struct Operand {
  size_t start, leading, stride;
  explicit Operand(TileOperand bits)
      : start((bits & 0x3fff) << 4), leading((bits >> 16 & 0x3fff) << 4), stride((bits >> 32 & 0x3fff) << 4) {}
};

CPU_NO_TSAN inline Bytes16 chunk_at(size_t address) {
  return read_row(here.dynamic_shared + (address ^ (address >> 3 & 0x70)));
}

CPU_NO_TSAN inline void widen(const Bytes16& chunk, float* to) {
  __m128i zero = _mm_setzero_si128(), bits = _mm_load_si128(reinterpret_cast<const __m128i*>(&chunk));
  _mm_store_si128(reinterpret_cast<__m128i*>(to), _mm_unpacklo_epi16(zero, bits));
  _mm_store_si128(reinterpret_cast<__m128i*>(to + 4), _mm_unpackhi_epi16(zero, bits));
}

void check_operand(TileOperand bits, bool rows, int n, const Site& site) {
  Operand o(bits);
  size_t last = rows ? o.start + size_t(n / 8 - 1) * o.stride + 7 * TILE_ROW_BYTES + 31
                     : o.start + size_t(n / 64 - 1) * o.leading + o.stride + 8 * TILE_ROW_BYTES - 1;
  if (bits >> 62 != 1 || (bits & 0xc000c000c000) || (bits >> 46 & 0xffff))
    reject("%s: %016llx is not what rows_operand or columns_operand gave.", text_of(site).c_str(),
           static_cast<unsigned long long>(bits));
  if (o.start & 0x380) reject("%s: an operand begins in the middle of 8 rows.", text_of(site).c_str());
  if ((last | (TILE_ROW_BYTES - 1)) >= here.shared_bytes)
    reject("%s: an operand ends at byte %zu of %zu of the block's shared memory.", text_of(site).c_str(), last,
           here.shared_bytes);
}

// The 16 columns of A of one product, from registers or from a tile.
CPU_NO_TSAN void gather_a(Engine& e, const Started& s, int k) {
  if (s.product.from_registers) {
    for (int t = 0; t < WARPGROUP; t += 4) {  // four lanes have two rows
      Bytes16 upper[2], lower[2];
      const unsigned* const* r = s.registers + t;
      transpose(r[0], r[1], r[2], r[3], upper[0].x, lower[0].x, upper[1].x, lower[1].x);
      int row = t / WARP * 16 + t % WARP / 4;
      for (int i = 0; i < 2; ++i) widen(upper[i], &e.a[row][k + 8 * i]), widen(lower[i], &e.a[row + 8][k + 8 * i]);
    }
  } else {
    Operand o(s.product.a);
    for (int row = 0; row < WARPGROUP / 2; ++row)
      for (int i = 0; i < 2; ++i)
        widen(chunk_at(o.start + size_t(row / 8) * o.stride + size_t(row % 8 * TILE_ROW_BYTES + 16 * i)),
              &e.a[row][k + 8 * i]);
  }
}

// 16 x 64 of B, from column `column`.
CPU_NO_TSAN void gather_b(Engine& e, const Product& p, int column, int k) {
  Operand o(p.b);
  if (p.from_registers) {
    for (int row = 0; row < 16; ++row)
      for (int n = 0; n < TILE_COLUMNS; n += 8)
        widen(chunk_at(o.start + size_t(column / TILE_COLUMNS) * o.leading + size_t(row / 8) * o.stride +
                       size_t(row % 8 * TILE_ROW_BYTES + n * 2)), &e.b[k + row][n]);
  } else {
    for (int n = 0; n < TILE_COLUMNS; n += 8)
      for (int i = 0; i < 2; ++i) {
        Bytes16 m[8];
        for (int j = 0; j < 8; ++j)
          m[j] = chunk_at(o.start + size_t((column + n) / 8) * o.stride + size_t(j * TILE_ROW_BYTES + 16 * i));
        transpose8(m);
        for (int j = 0; j < 8; ++j) widen(m[j], &e.b[k + 8 * i + j][n]);
      }
  }
}

// d += a b, term by term: the result does not depend on how products are put together.
CPU_NO_TSAN void multiply(Engine& e, int depth) {
  constexpr int height = 4, lanes = sizeof(Wide) / sizeof(float), width = most_vectors;
  for (int column = 0; column < TILE_COLUMNS; column += width * lanes)
    for (int row = 0; row < WARPGROUP / 2; row += height) {
      Wide sum[height][width];
      for (int r = 0; r < height; ++r)
        for (int c = 0; c < width; ++c) sum[r][c] = reinterpret_cast<Wide*>(&e.d[row + r][column])[c];
      for (int k = 0; k < depth; ++k) {
        const Wide* b = reinterpret_cast<const Wide*>(&e.b[k][column]);
        for (int r = 0; r < height; ++r)
          for (int c = 0; c < width; ++c) sum[r][c] += e.a[row + r][k] * b[c];
      }
      for (int r = 0; r < height; ++r)
        for (int c = 0; c < width; ++c) reinterpret_cast<Wide*>(&e.d[row + r][column])[c] = sum[r][c];
    }
}

// f(two neighbours in e.d, where the thread that has them keeps them) for 64 columns of the sums.
template <class F> CPU_NO_TSAN void for_each_pair(Engine& e, const Started& s, int column, F f) {
  for (int t = 0; t < WARPGROUP; ++t) {
    float* sum = &e.d[t / WARP * 16 + t % WARP / 4][t % 4 * 2];
    float* d = s.d[t] + column / 2;
    for (int j = 0; j < TILE_COLUMNS; j += 8, d += 4) f(sum + j, d), f(sum + 8 * TILE_COLUMNS + j, d + 2);
  }
}

// Consecutive products into the same sums, as one.
CPU_NO_TSAN void execute(Engine& e, const Started* s, int steps) {
  const Product& p = s->product;
  for (int i = 0; i < steps; ++i) gather_a(e, s[i], 16 * i);
  for (int column = 0; column < p.columns; column += TILE_COLUMNS) {
    for (int i = 0; i < steps; ++i) gather_b(e, s[i].product, column, 16 * i);
    if (p.add)
      for_each_pair(e, *s, column, [](float* sum, float* d) CPU_NO_TSAN { sum[0] = d[0], sum[1] = d[1]; });
    else
      std::fill_n(e.d[0], sizeof e.d / sizeof(float), 0.0f);
    multiply(e, 16 * steps);
    for_each_pair(e, *s, column, [](float* sum, float* d) CPU_NO_TSAN { d[0] = sum[0], d[1] = sum[1]; });
  }
}

CPU_NO_TSAN inline Warpgroup& my_warpgroup() { return engine().warpgroup[self->warp->number / (WARPGROUP / WARP)]; }
CPU_NO_TSAN inline int my_place() { return self->warp->number % (WARPGROUP / WARP) * WARP + self->lane; }

void check_complete(const Site& site) {
  unsigned end = unsigned(self->warp->number / (WARPGROUP / WARP) + 1) * WARPGROUP;
  if (end > here.block_dim.x * here.block_dim.y * here.block_dim.z)
    reject("%s: the warpgroup has fewer than %d threads.", text_of(site).c_str(), WARPGROUP);
}

[[noreturn]] void diverged(const Site& here_now, const Site& there) {
  reject("warpgroup diverged: thread (%u, %u, %u) is at %s after other products than the first at %s.", self->index.x,
         self->index.y, self->index.z, text_of(here_now).c_str(), text_of(there).c_str());
}

}  // namespace

void start_product(const Product& p, float* d, const unsigned* registers, const char* file, int line) {
  Unseen unseen;
  Warpgroup& group = my_warpgroup();
  int place = my_place();
  Member& me = group.member[place];
  Site site{"wgmma", file, line};
  if (!me.fenced) [[unlikely]] reject("%s: no wgmma_fence() since the last wait.", text_of(site).c_str());
  if (me.started == group.n_products) {
    check_complete(site);
    if (!p.from_registers) check_operand(p.a, true, WARPGROUP / 2, site);
    check_operand(p.b, !p.from_registers, p.columns, site);
    if (group.products.size() == size_t(group.n_products)) group.products.emplace_back();
    Started& fresh = group.products[size_t(group.n_products++)];
    fresh.product = p, fresh.site = site, fresh.group = me.committed;
  }
  Started& s = group.products[size_t(me.started++)];
  if (!(s.product == p) || s.site.line != line || s.group != me.committed) [[unlikely]] diverged(site, s.site);
  s.d[place] = d;
  s.registers[place] = registers;
  if (knobs.poison && !p.add) std::fill_n(d, p.columns / 2, __builtin_nanf(""));
}

void finish_products(int groups_left, const Site& site) {
  Warpgroup& group = my_warpgroup();
  bool last;
  int done = 0;
  char* key;
  {
    Unseen unseen;
    Member& me = group.member[my_place()];
    me.fenced = false;
    if (group.arrived == 0) check_complete(site), group.first = me, group.site = site, group.groups_left = groups_left;
    if (group.site.line != site.line || group.groups_left != groups_left || me.started != group.first.started ||
        me.committed != group.first.committed)
      diverged(site, group.site);
    key = &group.key[group.waits % 2];
    last = ++group.arrived == WARPGROUP;
    auto finished = [&](const Started& s) { return s.group + unsigned(groups_left) < me.committed; };
    if (last)
      while (done < group.n_products && finished(group.products[size_t(done)])) ++done;
  }
  if (!last) {
    sleep_until_woken(&group, site);
    order_after(key);
    return;
  }
  for (int i = 0, steps; i < done; i += steps) {
    const Started* s = &group.products[size_t(i)];
    {
      Unseen unseen;
      for (steps = 1; i + steps < done && steps < most_steps; ++steps) {
        const Product& next = s[steps].product;
        if (!next.add || next.columns != s->product.columns || next.from_registers != s->product.from_registers ||
            memcmp(s[steps].d, s->d, sizeof s->d) != 0)
          break;
      }
    }
    execute(engine(), s, steps);
  }
  order_before(key);
  Unseen unseen;
  std::rotate(group.products.begin(), group.products.begin() + done, group.products.begin() + group.n_products);
  group.n_products -= done;
  for (Member& member : group.member) member.started -= done;
  group.arrived = 0;
  ++group.waits;
  wake(&group);
}

void fence_products() {
  Unseen unseen;
  my_warpgroup().member[my_place()].fenced = true;
}

}  // namespace cpu

void wgmma_commit() {
  Unseen unseen;
  ++my_warpgroup().member[my_place()].committed;
}
