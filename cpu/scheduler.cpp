#include "cpu/scheduler.h"
#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>
#include "cpu/pool.h"
#include "runtime/error.h"

namespace cpu {
namespace {

struct Abandoned {};  // unwinds the fibers of a block that has failed

Thread host_thread{};

// What one OS thread needs to run blocks.
struct Worker {
  Worker();
  ~Worker();
  void prepare(const Launch&, uint64_t id);
  void run_block(int64_t block);

  Thread* next_thread();
  Thread* block_current();   // takes the current thread off the masks, returns who runs next
  void* context_of(Thread*);
  void fail(std::exception_ptr);
  void stuck();
  std::string describe() const;
  uint64_t random();

  const Launch* launch = nullptr;
  uint64_t launch_id = 0;
  dim3 shape{0, 0, 0};
  int threads = 0, warp_count = 0;
  uint32_t runnable = 0;      // warps that have runnable lanes
  uint32_t all_warps = 0;
  int returned = 0;
  int at_barrier = 0;
  Site barrier_site{};
  bool failing = false;
  std::exception_ptr error;
  void* host_context = nullptr;
  uint64_t random_state = 1;
  std::unique_ptr<Thread[]> thread;
  Warp warp[max_block_threads / warp_size];
  std::vector<Stack> stacks, free_stacks;
  Stack entering{};
  char* shared = nullptr;
};

thread_local std::unique_ptr<Worker> owned_worker;
__thread Worker* worker;
}  // namespace

__thread Thread* self = &host_thread;
__thread Here here = {{0, 0, 0}, dim3(1, 1, 1), dim3(1, 1, 1), nullptr};
Knobs knobs;

namespace {

Worker::Worker() : thread(new Thread[max_block_threads]()) {
  shared = static_cast<char*>(std::aligned_alloc(256, max_shared_bytes));
}

Worker::~Worker() {
  for (Stack& stack : stacks) free_stack(stack);
  for (int i = 0; i < max_block_threads; ++i) free_copies(thread[i].copies);
  std::free(shared);
}

uint64_t Worker::random() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}

inline int pick(uint32_t mask, Order order, Worker& worker) {
  if (order == Order::forward) [[likely]] return std::countr_zero(mask);
  if (order == Order::reverse) return 31 - std::countl_zero(mask);
  for (int skip = static_cast<int>(worker.random() % std::popcount(mask)); skip > 0; --skip) mask &= mask - 1;
  return std::countr_zero(mask);
}

// The next runnable thread: of the same warp if possible. Null if there is none.
inline Thread* Worker::next_thread() {
  Warp* w = self->warp;
  if (w->runnable == 0 || knobs.order == Order::random) {
    if (w->runnable == 0) runnable &= ~(1u << w->number);
    if (runnable == 0) return nullptr;
    w = &warp[pick(runnable, knobs.order, *this)];
  }
  return w->threads + pick(w->runnable, knobs.order, *this);
}

[[noreturn]] void carry();

// Where to switch to for this thread; one that has not run yet gets a stack.
inline void* Worker::context_of(Thread* t) {
  if (t->context) return t->context;
  if (free_stacks.empty()) {
    stacks.push_back(new_stack(static_cast<int>(stacks.size())));
    free_stacks.push_back(stacks.back());
  }
  entering = free_stacks.back();
  free_stacks.pop_back();
  return fresh_context(entering, carry);
}

// Runs threads one after another on one stack, until one of them keeps the stack for itself by waiting: then this loop
// goes on when that thread returns.
void carry() {
  Worker& w = *worker;
  Stack stack = w.entering;
  for (;;) {
    try {
      w.launch->invoke(w.launch->arguments);
    } catch (const Abandoned&) {
    } catch (...) {
      w.fail(std::current_exception());
    }
    Thread* me = self;
    me->context = nullptr;
    if (me->copies) drop_copies(me->copies);
    me->warp->runnable &= ~(1u << me->lane);
    ++w.returned;
    Thread* next = w.next_thread();
    if (!next && w.returned < w.threads && !w.failing) {
      w.stuck();
      next = w.next_thread();
    }
    if (next) self = next;
    if (next && !next->context) continue;
    w.free_stacks.push_back(stack);
    void* dead;
    cpu_switch_stack(&dead, next ? next->context : w.host_context);
  }
}

// Ends the block: threads that wait are made runnable and unwound (see wait), the others never start.
void Worker::fail(std::exception_ptr e) {
  if (!failing) error = e;
  failing = true;
  runnable = 0;
  for (int i = 0; i < warp_count; ++i) {
    warp[i].runnable = 0;
    for (int lane = 0; lane < warp_size; ++lane)
      if ((warp[i].lanes >> lane & 1) && warp[i].threads[lane].context) warp[i].runnable |= 1u << lane;
    if (warp[i].runnable) runnable |= 1u << i;
  }
}

std::string coordinates(uint3 i) { return format("(%u, %u, %u)", i.x, i.y, i.z); }

std::string place(const Site& site) { return format("%s (%s:%d)", site.what, site.file, site.line); }

// One clause for each place where threads wait.
std::string Worker::describe() const {
  std::string text;
  struct Group { Site site; int count; uint3 first; };
  std::vector<Group> groups;
  for (int i = 0; i < threads; ++i) {
    const Thread& t = thread[i];
    const Warp& w = *t.warp;
    if (!t.context || (w.runnable >> t.lane & 1)) continue;
    const Site& site = w.arrived >> t.lane & 1 ? w.site : barrier_site;
    auto same = [&](const Group& g) { return g.site.line == site.line && g.site.what == site.what; };
    auto group = std::find_if(groups.begin(), groups.end(), same);
    if (group == groups.end()) groups.push_back({site, 1, t.index});
    else ++group->count;
  }
  for (const Group& g : groups)
    text += format("%s%d thread%s wait%s at %s, the first is %s", text.empty() ? "" : "; ", g.count,
                   g.count == 1 ? "" : "s", g.count == 1 ? "s" : "", place(g.site).c_str(),
                   coordinates(g.first).c_str());
  if (returned) text += format("; %d ha%s returned", returned, returned == 1 ? "s" : "ve");
  return text;
}

std::string in_kernel(const Worker& w) {
  return format("kernel %s, block %s", w.launch->name, coordinates(here.block_index).c_str());
}

void Worker::stuck() {
  const char* kind = returned ? "early exit while other threads wait" : "deadlock";
  fail(std::make_exception_ptr(Failure(in_kernel(*this) + ": " + kind + ": " + describe() + ".")));
}

void Worker::prepare(const Launch& l, uint64_t id) {
  if (launch_id == id) return;
  launch = &l;
  launch_id = id;
  if (l.block.x != shape.x || l.block.y != shape.y || l.block.z != shape.z) {
    shape = l.block;
    threads = static_cast<int>(l.block.x * l.block.y * l.block.z);
    warp_count = (threads + warp_size - 1) / warp_size;
    all_warps = warp_count == 32 ? 0xffffffffu : (1u << warp_count) - 1;
    for (int i = 0; i < warp_count; ++i) {
      int lanes = std::min(warp_size, threads - i * warp_size);
      warp[i].lanes = lanes == warp_size ? 0xffffffffu : (1u << lanes) - 1;
      warp[i].number = static_cast<uint32_t>(i);
      warp[i].threads = thread.get() + i * warp_size;
    }
    for (int i = 0; i < threads; ++i) {
      unsigned n = static_cast<unsigned>(i), plane = shape.x * shape.y;
      thread[i].index = {n % shape.x, n % plane / shape.x, n / plane};
      thread[i].lane = i % warp_size;
      thread[i].warp = &warp[i / warp_size];
      thread[i].context = nullptr;
    }
  }
  here.block_dim = l.block;
  here.grid_dim = l.grid;
  here.dynamic_shared = shared;
}

void Worker::run_block(int64_t block) {
  uint64_t b = static_cast<uint64_t>(block), x = launch->grid.x, plane = x * launch->grid.y;
  here.block_index = {static_cast<unsigned>(b % x), static_cast<unsigned>(b % plane / x), static_cast<unsigned>(b / plane)};
  runnable = all_warps;
  returned = at_barrier = 0;
  failing = false;
  for (int i = 0; i < warp_count; ++i) {
    warp[i].runnable = warp[i].lanes;
    warp[i].arrived = 0;
  }
  if (knobs.poison) memset(shared, 0xff, launch->shared_bytes);
  random_state = (knobs.seed * 0x9e3779b97f4a7c15u) ^ (b + 1) * 0xbf58476d1ce4e5b9u;
  if (random_state == 0) random_state = 1;
  self = thread.get();
  self = next_thread();
  cpu_switch_stack(&host_context, context_of(self));
  self = &host_thread;
  if (error) std::rethrow_exception(std::exchange(error, nullptr));
}

}  // namespace

CPU_NO_TSAN void wait() {
  Worker& w = *worker;
  Thread* me = self;
  Thread* next = w.next_thread();
  if (!next) {
    void* context = me->context;
    me->context = &w;  // not null: counts as waiting, and is unwound
    w.stuck();
    me->context = context;
    throw Abandoned();
  }
  self = next;
  cpu_switch_stack(&me->context, w.context_of(next));
  if (w.failing) [[unlikely]] throw Abandoned();
}

void meeting_failed(const Site& found) {
  Worker& w = *worker;
  Warp& warp = *self->warp;
  std::string where = in_kernel(w) + ", thread " + coordinates(self->index);
  std::string text = warp.lanes != 0xffffffffu
      ? where + format(" takes part in %s, but its warp has only %d of 32 threads: make the block a multiple of 32.",
                       place(found).c_str(), std::popcount(warp.lanes))
      : where + " is at " + place(found) + " while other lanes of its warp wait at " + place(warp.site) +
        ": the warp has diverged.";
  w.fail(std::make_exception_ptr(Failure(text)));
  throw Abandoned();
}

void barrier(const char* file, int line) {
  Worker& w = *worker;
  Thread* me = self;
  if (w.at_barrier == 0) {
    w.barrier_site = {"__syncthreads", file, line};
  } else if (w.barrier_site.line != line) [[unlikely]] {
    std::string text = in_kernel(w) + format(": divergent barrier: thread %s is at __syncthreads (%s:%d) while %d wait%s at %s.",
                                             coordinates(me->index).c_str(), file, line, w.at_barrier,
                                             w.at_barrier == 1 ? "s" : "", place(w.barrier_site).c_str());
    w.fail(std::make_exception_ptr(Failure(text)));
    throw Abandoned();
  }
  if (++w.at_barrier == w.threads) {
    w.at_barrier = 0;
    w.runnable = w.all_warps;
    for (int i = 0; i < w.warp_count; ++i) w.warp[i].runnable = w.warp[i].lanes;
    return;
  }
  me->warp->runnable &= ~(1u << me->lane);
  wait();
}

void run(const Launch& l) {
  static uint64_t launches = 0;
  uint64_t threads = uint64_t(l.block.x) * l.block.y * l.block.z;
  if (threads == 0 || threads > max_block_threads || l.block.z > 64)
    failure("kernel %s: a block of %u x %u x %u threads cannot be launched (1 to %d).", l.name, l.block.x, l.block.y,
            l.block.z, max_block_threads);
  if (l.grid.x == 0 || l.grid.y == 0 || l.grid.z == 0 || l.grid.x > 0x7fffffffu || l.grid.y > 65535 || l.grid.z > 65535)
    failure("kernel %s: a grid of %u x %u x %u blocks cannot be launched (1 to 2147483647 x 65535 x 65535).", l.name,
            l.grid.x, l.grid.y, l.grid.z);
  if (l.shared_bytes > max_shared_bytes)
    failure("kernel %s: %zu bytes of shared memory were asked for, a block has at most %zu.", l.name, l.shared_bytes,
            max_shared_bytes);
  if (self != &host_thread) failure("kernel %s: launched from inside a kernel.", l.name);
  struct Job { const Launch* launch; uint64_t id; uint64_t blocks; } job{&l, ++launches, uint64_t(l.grid.x) * l.grid.y * l.grid.z};
  pool_run(static_cast<int64_t>(job.blocks), [](void* context, int64_t block) {
    const Job& job = *static_cast<Job*>(context);
    if (!worker) {
      owned_worker = std::make_unique<Worker>();
      worker = owned_worker.get();
    }
    worker->prepare(*job.launch, job.id);
    if (knobs.order == Order::reverse) block = static_cast<int64_t>(job.blocks) - 1 - block;
    worker->run_block(block);
  }, &job);
}

}  // namespace cpu
