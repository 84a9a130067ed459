// Hopper's copy engine, barriers in shared memory and products of a warpgroup. Nothing here happens earlier than a GPU
// may do it, and most of it as late as a GPU may do it, so a missing wait changes the results.
#include "kernels/hopper.cuh"
#include <algorithm>
#include <vector>

namespace cpu {
namespace {

constexpr int most_named = 16;                                            // named barriers of a block
constexpr int most_arrivals = (1 << 20) - 1, most_bytes = most_arrivals;  // of a phase of an mbarrier
constexpr int rows_of_a = 64, most_steps = 8;                             // of 16 columns of A, done as one product

struct Tile {
  TensorMap map;  // a copy: kernel arguments die with their thread
  const void* shared;
  int batch, row, head, channel;
};
struct Copy {
  Tile tile;
  const void* from;  // the source of a bulk_load, else null
  int bytes;
  Mbarrier* barrier;
  Site site;
};
struct Store {
  Tile tile;
  Thread* thread;
  bool committed;
};

struct Named {
  int threads, arrived;
  Site site;
  unsigned passed;
  char key[2];  // for TSan (see fiber.h)
};

struct Started {  // a product under way
  Product product;
  Site site;
  unsigned group;
  float* d[WARPGROUP];
  const unsigned* registers[WARPGROUP];
};
struct Member {
  int started;         // products under way that this thread has started
  unsigned committed;  // groups that it has committed
  bool fenced;
};
struct Warpgroup {
  std::vector<Started> products;  // the first `started` are under way
  int started, arrived;           // arrived: at wgmma_wait
  Member member[WARPGROUP], first;
  int groups_left;  // as the first thread to arrive asked
  Site site;
  unsigned waits;
  char key[2];
};

}  // namespace

struct Engine {
  std::vector<Copy> copies;  // the oldest first
  std::vector<Store> stores;
  Named named[most_named] = {};
  Warpgroup warpgroup[max_block_threads / WARPGROUP] = {};
  alignas(64) float a[rows_of_a][16 * most_steps], b[16 * most_steps][TILE_COLUMNS], d[rows_of_a][TILE_COLUMNS];
  Copy arriving;  // a member, because the stack may belong to any thread
  char ask_key = 0;
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
    group.started = group.arrived = 0;
    std::fill_n(group.member, WARPGROUP, Member{});
  }
}

void finish_block(const Engine& e) {
  if (!e.copies.empty()) reject(e.copies[0].site, "%zu copies under way when the block ended", e.copies.size());
  for (const Warpgroup& group : e.warpgroup)
    if (group.started) reject(group.products[0].site, "%d products under way when the block ended", group.started);
}

void free_engine(Engine* e) { delete e; }
int copies_under_way(const Engine& e) { return static_cast<int>(e.copies.size()); }

namespace {

[[gnu::cold, gnu::noinline]] CPU_NO_TSAN void new_engine() {
  Unseen unseen;
  start_block(*(here.engine = new Engine));
}
CPU_NO_TSAN inline Engine& engine() {
  if (!here.engine) [[unlikely]]
    new_engine();
  return *here.engine;
}

// ---- mbarriers

struct State {
  uint64_t count : 20, pending : 20;
  int64_t bytes : 22;                // announced minus arrived; negative if they arrive first
  uint64_t parity : 1, invalid : 1;  // poison has `invalid` set; 0 is invalid too, because count is 0
};

// TSan sees this read and the write of mbarrier_init, so it reports a missing barrier between the two.
State state_of(const Mbarrier& barrier, const Site& site) {
  State s = __builtin_bit_cast(State, __atomic_load_n(&barrier.state, __ATOMIC_RELAXED));
  if (s.invalid || s.count == 0) reject(site, "the mbarrier has not been initialised");
  return s;
}

char* key_of(Mbarrier& barrier, unsigned parity) { return reinterpret_cast<char*>(&barrier) + parity; }

CPU_NO_TSAN void change(Mbarrier& barrier, State s, int arrivals, int bytes, const Site& site) {
  if (int(s.pending) < arrivals) reject(site, "more arrivals at the mbarrier than the %d of a phase", int(s.count));
  int outstanding = int(s.bytes) + bytes;
  if (std::abs(outstanding) > most_bytes)
    reject(site, "%d bytes are outstanding at the mbarrier, but at most %d can be", outstanding, most_bytes);
  s.pending -= unsigned(arrivals);
  s.bytes = outstanding;
  bool ended = s.pending == 0 && s.bytes == 0;
  if (ended) s.pending = s.count, s.parity ^= 1;
  barrier.state = __builtin_bit_cast(uint64_t, s);
  if (ended) wake(&barrier);
}

void arrive(Mbarrier& barrier, int bytes, const Site& site) {
  if (bytes < 0) reject(site, "%d bytes; the count must be at least 0", bytes);
  State s = state_of(barrier, site);
  order_before(key_of(barrier, s.parity));
  change(barrier, s, 1, bytes, site);
}

std::string missing(const void* barrier) {
  State s = __builtin_bit_cast(State, static_cast<const Mbarrier*>(barrier)->state);
  return format(" for %d arrivals and %d bytes", int(s.pending), int(s.bytes));
}

// ---- copies

size_t place_of(const void* shared) { return size_t(static_cast<const char*>(shared) - here.dynamic_shared); }

// A GPU's swizzle, by address: the number of the 16-byte chunk within its 128 bytes is XORed with the number of those
// 128 bytes within 1024.
CPU_NO_TSAN inline char* chunk_at(size_t place) { return here.dynamic_shared + (place ^ (place >> 3 & 0x70)); }

void check_tile(const void* tile, size_t bytes, const Site& site) {
  size_t place = place_of(tile);
  if (place > here.shared_bytes || bytes > here.shared_bytes - place || place % TILE_ALIGNMENT)
    reject(site,
           "a tile of %zu bytes at byte %td of %zu bytes of dynamic shared memory; it must be inside and at a "
           "multiple of %d",
           bytes, ptrdiff_t(place), here.shared_bytes, TILE_ALIGNMENT);
}

size_t bytes_of(const TensorMap& map) { return size_t(map.tile_rows) * TILE_ROW_BYTES; }

// Calls f(chunk of the tile, its 8 elements of the tensor, first, end): elements first .. end - 1 are inside the
// tensor.
template <class F> CPU_NO_TSAN void for_each_chunk(const Tile& t, F f) {
  const TensorShape& s = t.map.shape;
  size_t place = place_of(t.shared);
  for (int r = 0; r < t.map.tile_rows; ++r) {
    int64_t row = int64_t(t.row) + r;
    bool inside = t.batch >= 0 && t.batch < s.batches && row >= 0 && row < s.rows && t.head >= 0 && t.head < s.heads;
    size_t offset =
        inside ? size_t(t.batch) * s.batch_stride + size_t(row) * s.row_stride + size_t(t.head) * s.head_stride : 0;
    for (int c = 0; c < TILE_COLUMNS; c += 8, place += 16) {
      int64_t channel = int64_t(t.channel) + c, end = inside ? s.channels - channel : 0;
      f(chunk_at(place), t.map.x + (int64_t(offset) + channel), channel < 0 ? int(-channel) : 0,
        end < 8 ? int(end) : 8);
    }
  }
}

inline void write_row(char* row, Bytes16 v) { *reinterpret_cast<Bytes16*>(row) = v; }  // seen by the sanitizers

CPU_NO_TSAN void bring(const Copy& copy) {
  if (copy.from) {
    const char* from = static_cast<const char*>(copy.from);
    for (int i = 0; i < copy.bytes; i += 16)
      write_row(static_cast<char*>(const_cast<void*>(copy.tile.shared)) + i, read_row(from + i));
    return;
  }
  for_each_chunk(copy.tile, [](char* chunk, const bf16* x, int first, int end) CPU_NO_TSAN {
    Bytes16 v{};
    if (first == 0 && end == 8 && reinterpret_cast<uintptr_t>(x) % 16 == 0) v = read_row(x);
    else
      for (int i = first; i < end; ++i) reinterpret_cast<bf16*>(&v)[i] = x[i];
    write_row(chunk, v);
  });
}

void take(const Tile& tile) {
  for_each_chunk(tile, [](const char* chunk, const bf16* x, int first, int end) {
    for (int i = first; i < end; ++i) const_cast<bf16*>(x)[i] = reinterpret_cast<const bf16*>(chunk)[i];
  });
}

void load_later(const Copy& copy) {
  Engine& e = engine();
  state_of(*copy.barrier, copy.site);
  order_before(&e.ask_key);
  Unseen unseen;
  e.copies.push_back(copy);
}

}  // namespace

CPU_NO_TSAN void deliver(Engine& e, int which) {
  {
    Unseen unseen;
    e.arriving = e.copies[size_t(which)];
    e.copies.erase(e.copies.begin() + which);
  }
  const Copy& copy = e.arriving;
  State s = state_of(*copy.barrier, copy.site);
#ifdef CPU_TSAN  // for TSan the engine is a thread, ordered after the threads that ask and before those that wait
  void* fiber = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(e.fiber, __tsan_switch_to_fiber_no_sync);
#endif
  order_after(&e.ask_key);
  bring(copy);
  order_before(key_of(*copy.barrier, s.parity));
  order_before(&here.finish_key);
#ifdef CPU_TSAN
  __tsan_switch_to_fiber(fiber, __tsan_switch_to_fiber_no_sync);
#endif
  change(*copy.barrier, s, 0, -copy.bytes, copy.site);
}

// ---- products

namespace {

struct Operand {  // its fields, in bytes
  size_t start, leading, stride;
  explicit Operand(TileOperand bits)
      : start((bits & 0x3fff) << 4), leading((bits >> 16 & 0x3fff) << 4), stride((bits >> 32 & 0x3fff) << 4) {}
};
TileOperand operand(const void* tile, int leading) {
  return place_of(tile) >> 4 | TileOperand(leading) << 16 | TileOperand(TILE_ALIGNMENT >> 4) << 32 |
         TileOperand(1) << 62;
}

// n: rows of A or B, or B's columns if they are the columns of tiles.
void check_operand(TileOperand bits, bool rows, int n, const Site& site) {
  Operand o(bits);
  size_t end = o.start + 8 * TILE_ROW_BYTES +
               (rows ? size_t(n / 8 - 1) * o.stride : size_t(n / TILE_COLUMNS - 1) * o.leading + o.stride);
  if (bits >> 62 != 1 || (bits & 0x3fffc000c000c000))
    reject(site, "%016llx is not an operand", static_cast<unsigned long long>(bits));
  if (o.start & 0x380) reject(site, "an operand begins in the middle of 8 rows");
  if (!rows && o.start % TILE_ROW_BYTES)
    reject(site, "an operand of columns begins at column %zu of a tile", o.start % TILE_ROW_BYTES / sizeof(bf16));
  if (end / TILE_ROW_BYTES * TILE_ROW_BYTES > here.shared_bytes)  // rounded down: it may begin inside its first row
    reject(site, "an operand ends at byte %zu of %zu of dynamic shared memory", end, here.shared_bytes);
}

CPU_NO_TSAN inline void widen(const Bytes16& chunk, float* to) {
  Halves zero = {}, bits = *reinterpret_cast<const Halves*>(&chunk);
  Halves* floats = reinterpret_cast<Halves*>(to);
  floats[0] = zip_low(zero, bits), floats[1] = zip_high(zero, bits);
}

// A's columns k .. k + 15, which one product uses.
CPU_NO_TSAN void gather_a(Engine& e, const Started& s, int k) {
  if (s.product.left == Left::registers) {
    for (int t = 0; t < WARPGROUP; t += 4) {  // four lanes have two rows
      Bytes16 upper[2], lower[2];
      const unsigned* const* r = s.registers + t;
      transpose(r[0], r[1], r[2], r[3], upper[0].x, lower[0].x, upper[1].x, lower[1].x);
      int row = t / WARP * 16 + t % WARP / 4;
      for (int i = 0; i < 2; ++i) widen(upper[i], &e.a[row][k + 8 * i]), widen(lower[i], &e.a[row + 8][k + 8 * i]);
    }
  } else if (s.product.left == Left::columns) {
    Operand o(s.product.a);
    for (int row = 0; row < rows_of_a; row += 8)
      for (int i = 0; i < 2; ++i) {
        Bytes16 m[8];
        size_t start = o.start + size_t(i) * o.stride + size_t(row * 2);
        for (int j = 0; j < 8; ++j) m[j] = read_row(chunk_at(start + size_t(j * TILE_ROW_BYTES)));
        transpose8(m);
        for (int j = 0; j < 8; ++j) widen(m[j], &e.a[row + j][k + 8 * i]);
      }
  } else {
    Operand o(s.product.a);
    for (int row = 0; row < rows_of_a; ++row)
      for (int i = 0; i < 2; ++i)
        widen(read_row(chunk_at(o.start + size_t(row / 8) * o.stride + size_t(row % 8 * TILE_ROW_BYTES + 16 * i))),
              &e.a[row][k + 8 * i]);
  }
}

// B's rows k .. k + 15, 64 columns from `column`.
CPU_NO_TSAN void gather_b(Engine& e, const Product& p, int k, int column) {
  Operand o(p.b);
  if (p.left != Left::rows) {
    size_t start = o.start + size_t(column / TILE_COLUMNS) * o.leading;
    for (int row = 0; row < 16; ++row)
      for (int n = 0; n < TILE_COLUMNS; n += 8)
        widen(read_row(chunk_at(start + size_t(row / 8) * o.stride + size_t(row % 8 * TILE_ROW_BYTES + n * 2))),
              &e.b[k + row][n]);
  } else {
    for (int n = 0; n < TILE_COLUMNS; n += 8)
      for (int i = 0; i < 2; ++i) {
        Bytes16 m[8];
        size_t start = o.start + size_t((column + n) / 8) * o.stride + size_t(16 * i);
        for (int j = 0; j < 8; ++j) m[j] = read_row(chunk_at(start + size_t(j * TILE_ROW_BYTES)));
        transpose8(m);
        for (int j = 0; j < 8; ++j) widen(m[j], &e.b[k + 8 * i + j][n]);
      }
  }
}

// f(two neighbours in e.d, where their thread keeps them) for 64 columns of the sums.
template <class F> CPU_NO_TSAN void for_each_pair(Engine& e, const Started& s, int column, F f) {
  for (int t = 0; t < WARPGROUP; ++t) {
    float *sum = &e.d[t / WARP * 16 + t % WARP / 4][t % 4 * 2], *d = s.d[t] + column / 2;
    for (int n = 0; n < TILE_COLUMNS; n += 8, d += 4) f(sum + n, d), f(sum + 8 * TILE_COLUMNS + n, d + 2);
  }
}

// Does consecutive products into the same sums as one: none of the roundings depends on it.
CPU_NO_TSAN void execute(Engine& e, const Started* s, int steps) {
  for (int i = 0; i < steps; ++i) gather_a(e, s[i], 16 * i);
  for (int column = 0; column < s->product.columns; column += TILE_COLUMNS) {
    for (int i = 0; i < steps; ++i) gather_b(e, s[i].product, 16 * i, column);
    bool add = s->product.add;
    for_each_pair(e, *s, column,
                  [add](float* sum, const float* d) CPU_NO_TSAN { sum[0] = add ? d[0] : 0, sum[1] = add ? d[1] : 0; });
    multiply_on_core(
        {e.d[0], TILE_COLUMNS, e.a[0], 16 * most_steps, e.b[0], TILE_COLUMNS, rows_of_a, TILE_COLUMNS, 16 * steps},
        CoreOp::wgmma);
    for_each_pair(e, *s, column, [](const float* sum, float* d) CPU_NO_TSAN { d[0] = sum[0], d[1] = sum[1]; });
  }
}

// Called by the last thread of the warpgroup: does all groups but the newest `groups_left`. Returns the number of
// products.
CPU_NO_TSAN int execute_groups(Warpgroup& group, unsigned newest) {
  int done = 0;
  while (done < group.started && group.products[size_t(done)].group < newest) {
    const Started* s = &group.products[size_t(done)];
    int steps = 1;
    auto continues = [&](const Started& next) CPU_NO_TSAN {
      if (!next.product.add || next.product.columns != s->product.columns || next.product.left != s->product.left)
        return false;
      for (int t = 0; t < WARPGROUP; ++t)
        if (next.d[t] != s->d[t]) return false;
      return true;
    };
    int most = std::min(most_steps, group.started - done);
    while (steps < most && s[steps].group < newest && continues(s[steps])) ++steps;
    execute(engine(), s, steps);
    done += steps;
  }
  return done;
}

CPU_NO_TSAN inline Warpgroup& my_warpgroup() { return engine().warpgroup[self->warp->number / (WARPGROUP / WARP)]; }
CPU_NO_TSAN inline Member& my_place(Warpgroup& group) {
  return group.member[self->warp->number % (WARPGROUP / WARP) * WARP + self->lane];
}

void check_complete(const Site& site) {
  unsigned end = unsigned(self->warp->number / (WARPGROUP / WARP) + 1) * WARPGROUP;
  if (end > here.block_dim.x * here.block_dim.y * here.block_dim.z)
    reject(site, "the warpgroup has fewer than %d threads", WARPGROUP);
}

[[noreturn]] void diverged(const Site& site, const Site& first) {
  reject(site,
         "divergent warpgroup: thread (%u, %u, %u) arrives with other operands or after other products than "
         "the first at %s",
         self->index.x, self->index.y, self->index.z, text_of(first).c_str());
}

}  // namespace

void start_product(const Product& p, float* d, const unsigned* registers, const char* file, int line) {
  Unseen unseen;
  Warpgroup& group = my_warpgroup();
  Member& me = my_place(group);
  Site site{"wgmma", file, line};
  if (!me.fenced) [[unlikely]]
    reject(site, "no wgmma_fence() since the last wait");
  if (me.started == group.started) {
    check_complete(site);
    if (p.left != Left::registers) check_operand(p.a, p.left == Left::rows, rows_of_a, site);
    check_operand(p.b, p.left == Left::rows, p.columns, site);
    if (group.products.size() == size_t(group.started)) group.products.emplace_back();
    Started& fresh = group.products[size_t(group.started++)];
    fresh.product = p, fresh.site = site, fresh.group = me.committed;
  }
  Started& s = group.products[size_t(me.started++)];
  if (!(s.product == p) || s.site.line != line || s.group != me.committed) [[unlikely]]
    diverged(site, s.site);
  s.d[&me - group.member] = d;
  s.registers[&me - group.member] = registers;
  if (knobs.poison && !p.add) std::fill_n(d, p.columns / 2, __builtin_nanf(""));
}

CPU_NO_TSAN void finish_products(int groups_left, const Site& site) {
  Warpgroup& group = my_warpgroup();
  Member& me = my_place(group);
  if (group.arrived == 0) {
    check_complete(site);
    group.first = me, group.site = site, group.groups_left = groups_left;
  } else if (me.started != group.first.started || me.committed != group.first.committed ||
             group.site.line != site.line || group.groups_left != groups_left) {
    diverged(site, group.site);
  }
  me.fenced = false;
  [[maybe_unused]] char* key = &group.key[group.waits % 2];  // orders only the products
  if (++group.arrived < WARPGROUP) {
    sleep_until_woken(&group, site);
    order_after(key);
    return;
  }
  int done = execute_groups(group, me.committed < unsigned(groups_left) ? 0 : me.committed - unsigned(groups_left));
  order_before(key);
  Unseen unseen;
  std::rotate(group.products.begin(), group.products.begin() + done, group.products.begin() + group.started);
  group.started -= done;
  for (Member& member : group.member) member.started -= done;
  group.arrived = 0;
  ++group.waits;
  wake(&group);
}

}  // namespace cpu

using namespace cpu;

void mbarrier_init(Mbarrier& barrier, int count, const char* file, int line) {
  if (count < 1 || count > most_arrivals)
    reject({"mbarrier_init", file, line}, "%d arrivals (1 to %d)", count, most_arrivals);
  State s{};
  s.count = s.pending = unsigned(count);
  barrier.state = __builtin_bit_cast(uint64_t, s);
}

void mbarrier_arrive(Mbarrier& barrier, const char* file, int line) {
  arrive(barrier, 0, {"mbarrier_arrive", file, line});
}

void mbarrier_arrive_expect(Mbarrier& barrier, int bytes, const char* file, int line) {
  arrive(barrier, bytes, {"mbarrier_arrive_expect", file, line});
}

void mbarrier_wait(Mbarrier& barrier, unsigned parity, const char* file, int line) {
  Site site{"mbarrier_wait", file, line};
  if (parity > 1) reject(site, "parity %u; it must be 0 or 1", parity);
  while (state_of(barrier, site).parity == parity) sleep_until_woken(&barrier, site, missing);
  order_after(key_of(barrier, parity));
}

TensorMap tensor_map(const bf16* x, const TensorShape& s, int tile_rows) {
  const char* wrong = reinterpret_cast<uintptr_t>(x) % 16 ? "its address is not a multiple of 16"
                      : s.batches < 1 || s.rows < 1 || s.heads < 1 || s.channels < 1 ? "an extent is below 1"
                      : s.channels % 8                                              ? "channels are not a multiple of 8"
                      : s.batch_stride % 8 || s.row_stride % 8 || s.head_stride % 8 ? "a stride is not a multiple of 8"
                      : !s.head_stride || s.row_stride % s.head_stride || !s.row_stride || s.batch_stride % s.row_stride
                          ? "strides are not multiples of each other"
                      : tile_rows < 1 || tile_rows > 256 ? "tiles have 1 to 256 rows"
                                                         : nullptr;
  if (wrong)
    failure("tensor_map of %d x %d x %d x %d bf16, strides %zu, %zu, %zu, in tiles of %d rows: %s", s.batches, s.rows,
            s.heads, s.channels, s.batch_stride, s.row_stride, s.head_stride, tile_rows, wrong);
  return {x, s, tile_rows};
}

void tile_load(void* tile, const TensorMap& map, int batch, int row, int head, int channel, Mbarrier& barrier,
               const char* file, int line) {
  Site site{"tile_load", file, line};
  check_tile(tile, bytes_of(map), site);
  load_later({{map, tile, batch, row, head, channel}, nullptr, int(bytes_of(map)), &barrier, site});
}

void bulk_load(void* shared, const void* global, int bytes, Mbarrier& barrier, const char* file, int line) {
  Site site{"bulk_load", file, line};
  if (bytes < 16 || bytes % 16 || reinterpret_cast<uintptr_t>(shared) % 16 || reinterpret_cast<uintptr_t>(global) % 16)
    reject(site, "%d bytes from %p to %p: all three must be multiples of 16", bytes, global, shared);
  if (size_t place = place_of(shared); place < here.shared_bytes && here.shared_bytes - place < size_t(bytes))
    reject(site, "%d bytes at byte %zu of %zu of dynamic shared memory", bytes, place, here.shared_bytes);
  load_later({{{}, shared, 0, 0, 0, 0}, global, bytes, &barrier, site});
}

void tile_store(const TensorMap& map, const void* tile, int batch, int row, int head, int channel, const char* file,
                int line) {
  Site site{"tile_store", file, line};
  check_tile(tile, bytes_of(map), site);
  if (batch < 0 || row < 0 || head < 0 || channel < 0)
    reject(site, "the tile begins before the tensor, at batch %d, row %d, head %d, channel %d; only a load may", batch,
           row, head, channel);
  Unseen unseen;
  engine().stores.push_back({{map, tile, batch, row, head, channel}, self, false});
}

void bulk_commit() {
  Unseen unseen;
  for (Store& store : engine().stores)
    if (store.thread == self) store.committed = true;
}

void bulk_wait_read() {
  std::vector<Store>& stores = engine().stores;
  auto mine = [](const Store& store) { return store.thread == self && store.committed; };
  for (const Store& store : stores)
    if (mine(store)) take(store.tile);
  Unseen unseen;
  std::erase_if(stores, mine);
}

CPU_NO_TSAN void named_barrier(int number, int threads, const char* file, int line) {
  Site site{"named_barrier", file, line};
  if (number < 1 || number >= most_named || threads < WARP || threads % WARP)
    reject(site, "barrier %d of %d threads; numbers are 1 to %d, threads a multiple of %d", number, threads,
           most_named - 1, WARP);
  Named& barrier = engine().named[number];
  if (barrier.arrived == 0) barrier.threads = threads, barrier.site = site;
  else if (barrier.threads != threads)
    reject(site, "barrier %d of %d threads, but of %d at %s", number, threads, barrier.threads,
           text_of(barrier.site).c_str());
  [[maybe_unused]] char* key = &barrier.key[barrier.passed % 2];
  order_before(key);
  if (++barrier.arrived < threads) {
    sleep_until_woken(&barrier, site);
  } else {
    barrier.arrived = 0;
    ++barrier.passed;
    wake(&barrier);
  }
  order_after(key);
}

TileOperand rows_operand(const void* tile, const char* file, int line) {
  check_tile(tile, 1, {"rows_operand", file, line});
  return operand(tile, 1);
}
TileOperand columns_operand(const void* tile, int tile_bytes, const char* file, int line) {
  check_tile(tile, 1, {"columns_operand", file, line});
  return operand(tile, tile_bytes >> 4);
}

namespace {

struct StoreMatrix {
  const unsigned* operand;
  bf16* tile;
  int row, column;
  Bytes16 part;  // of the operand: a row of one of its 8 x 8 matrices, which this lane stores
};

void check_floats(const float* global, const Site& site) {
  if (reinterpret_cast<uintptr_t>(global) % 16) reject(site, "the address %p is not a multiple of 16", global);
  if (place_of(global) < here.shared_bytes) reject(site, "the address is in shared memory, not in global");
}

}  // namespace

void store_operand(bf16* tile, int row, int column, const unsigned (&operand)[4], const char* file, int line) {
  Site site{"store_operand", file, line};
  if (row < 0 || column < 0 || column % 8 || column > TILE_COLUMNS - 16)
    reject(site, "row %d, column %d; rows begin at 0, and a column is a multiple of 8 up to %d", row, column,
           TILE_COLUMNS - 16);
  check_tile(tile, size_t(row + 16) * TILE_ROW_BYTES, site);
  StoreMatrix mine{operand, tile, row, column, {}};
  meet(site.what, file, line, mine, [&](StoreMatrix** all) CPU_NO_TSAN {
    for (int i = 0; i < warp_size; ++i)
      if (all[i]->tile != tile || all[i]->row != row || all[i]->column != column)
        reject(site, "the lanes of the warp give different places");
    for (int g = 0; g < 8; ++g) {  // ldmatrix_serve's other way
      StoreMatrix** lane = all + 4 * g;
      transpose(lane[0]->operand, lane[1]->operand, lane[2]->operand, lane[3]->operand, all[g]->part.x,
                all[8 + g]->part.x, all[16 + g]->part.x, all[24 + g]->part.x);
    }
  });
  int lane = self->lane;
  write_row(reinterpret_cast<char*>(tile + tile_place(row + lane % 16, column + lane / 16 * 8)), mine.part);
}

void add_in_l2(float* to, const float (&x)[4], const char* file, int line) {
  check_floats(to, {"add_in_l2", file, line});
  for (int i = 0; i < 4; ++i) to[i] += x[i];
}
Pack<float> load_from_l2(const float* from, const char* file, int line) {
  check_floats(from, {"load_from_l2", file, line});
  return load16(from);
}

CPU_NO_TSAN void cpu::fence_products() { my_place(my_warpgroup()).fenced = true; }
CPU_NO_TSAN void wgmma_commit() { ++my_place(my_warpgroup()).committed; }
