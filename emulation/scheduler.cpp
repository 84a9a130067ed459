#include "emulation/scheduler.h"
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>
#include "base/error.h"
#include "emulation/checks.h"
#include "emulation/pool.h"

namespace cpu {
namespace {

Thread host_thread{};

#ifdef CPU_TSAN
constexpr bool own_stacks = true;  // a stack and a TSan fiber for every CUDA thread, from its start
#else
constexpr bool own_stacks = false;
#endif

}  // namespace

// The state with which one OS thread runs blocks.
struct Worker {
  struct Abandoned {};  // unwinds the fibers of a block that has failed

  ~Worker();
  void adopt(const Launch&, uint64_t id);
  void run_block(uint64_t block);
  Thread* next_thread();
  Thread* next_thread_at_last();
  bool copy_arrives();
  uint64_t random();
  const Context& context_of(Thread*);
  [[gnu::noinline]] void start(Thread*);
  [[gnu::cold]] void fail(std::exception_ptr);
  [[gnu::cold, gnu::format(printf, 2, 3)]] void fail(const char* format, ...);
  [[gnu::cold]] void fail_stuck();
  std::string waiting() const;
  int pick(uint32_t mask);

  // the members that every switch uses
  uint32_t runnable = 0;  // warps with runnable lanes
  Order order = Order::forward;
  int threads = 0, warps = 0;
  int at_barrier = 0;
  uint32_t all_warps = 0;
  Site barrier_site{};
  std::vector<Stack> free_stacks;
  Stack entering;  // handed to carry()
  std::unique_ptr<Thread[]> thread{new Thread[max_block_threads]()};
  Warp warp[max_block_threads / warp_size]{};
  struct Sleeper {
    Thread* thread;
    const void* key;
    Site site;
    std::string (*describe)(const void*);
  };
  int sleepers = 0;
  Sleeper sleeper[max_block_threads];

  const Launch* launch = nullptr;
  const char* kernel = "";
  uint64_t launch_id = 0;
  dim3 shape{0, 0, 0};
  std::exception_ptr error;
  uint64_t random_state = 1;
  Context host;
  std::vector<Stack> stacks;
  OverflowWatch watch{&stacks, &kernel};
  std::vector<char> saved_static;
  char* shared = nullptr;  // the block's dynamic shared memory
  char start_key = 0;      // for TSan (see fiber.h)
};

// Deliberately not zero, so that they are not in .tbss, which holds the static shared memory that the poison knob
// fills.
__thread Thread* self = &host_thread;
__thread Here here = {{0, 0, 0}, dim3(1, 1, 1), dim3(1, 1, 1), nullptr, nullptr, 0, false, false, 0, {}, 0, 0, nullptr};
Knobs knobs;

namespace {

// Runs threads one after another on one stack, until one keeps the stack by waiting; the loop continues when that
// thread has returned.
CPU_NO_TSAN void carry() {
  Worker& w = *here.worker;
  Stack stack = w.entering;
  entered(w.host);
  for (;;) {
    order_after(&w.start_key);
    try {
      w.launch->invoke(w.launch->arguments);
    } catch (const Worker::Abandoned&) {
    } catch (...) {
      w.fail(std::current_exception());
    }
    returned(*self);
    Thread* next = w.next_thread();
    if (!next && !here.failing) next = w.next_thread_at_last();
    order_before(&here.finish_key);
    if (next) self = next;
    if (next && !next->context.sp && !own_stacks) {
#ifdef CPU_ASAN
      next->context.stack = stack;
#endif
      continue;
    }
    if (!own_stacks) w.free_stacks.push_back(stack);
    leave(next ? w.context_of(next) : w.host);
  }
}

}  // namespace

Worker::~Worker() {
  for (const Stack& stack : stacks) free_stack(stack);
  for (int i = 0; i < max_block_threads; ++i) {
    free_copies(thread[i].copies);
#ifdef CPU_TSAN
    if (thread[i].context.shadow) __tsan_destroy_fiber(thread[i].context.shadow);
#endif
  }
  std::free(shared);
  free_engine(std::exchange(here.engine, nullptr));
  here.worker = nullptr;
}

CPU_NO_TSAN inline uint64_t Worker::random() {
  random_state ^= random_state << 13, random_state ^= random_state >> 7;
  return random_state ^= random_state << 17;
}

CPU_NO_TSAN inline int Worker::pick(uint32_t mask) {
  if (order == Order::forward) [[likely]]
    return __builtin_ctz(mask);
  if (order == Order::reverse) return 31 - __builtin_clz(mask);
  for (uint64_t skip = random() % static_cast<unsigned>(std::popcount(mask)); skip > 0; --skip) mask &= mask - 1;
  return __builtin_ctz(mask);
}

// The next runnable thread, of the same warp if possible; null if there is none.
CPU_NO_TSAN inline Thread* Worker::next_thread() {
  Warp* w = self->warp;
  if (w->runnable == 0) {
    runnable &= ~(1u << w->number);
    if (runnable == 0) return nullptr;
    w = &warp[pick(runnable)];
  } else if (order == Order::random) {
    w = &warp[pick(runnable)];
  }
  return w->threads + pick(w->runnable);
}

// Delivers one of the copies under way; false if there are none.
CPU_NO_TSAN bool Worker::copy_arrives() {
  int n = here.engine ? copies_under_way(*here.engine) : 0;
  if (n == 0) return false;
  try {
    int newest = n - 1, any = static_cast<int>(random() % static_cast<unsigned>(n));
    deliver(*here.engine, order == Order::forward ? 0 : order == Order::reverse ? newest : any);
  } catch (const Abandoned&) {
  }
  return true;
}

// Called when no thread is runnable: returns one that becomes so by a copy or by the failure of the block, or null at
// the end of the block.
CPU_NO_TSAN Thread* Worker::next_thread_at_last() {
  if (here.returned == static_cast<uint64_t>(threads)) {
    try {
      if (here.engine) finish_block(*here.engine);
    } catch (const Abandoned&) {
    }
    return nullptr;
  }
  Thread* next = nullptr;
  while (!next && copy_arrives()) next = next_thread();
  if (next) return next;
  if (!here.failing) fail_stuck();
  return next_thread();
}

CPU_NO_TSAN inline const Context& Worker::context_of(Thread* t) {
  if (!t->context.sp) start(t);
  return t->context;
}

// Gives a thread that is about to run for the first time a stack to run on.
CPU_NO_TSAN void Worker::start(Thread* t) {
#ifdef CPU_TSAN
  prepare(t->context, t->context.stack, carry);
#else
  if (free_stacks.empty()) {
    stacks.push_back(new_stack(static_cast<int>(stacks.size())));
    free_stacks.push_back(stacks.back());
  }
  entering = free_stacks.back();
  free_stacks.pop_back();
  prepare(t->context, entering, carry);
#endif
}

// Ends the block: waiting threads are made runnable and unwound (see wait); the others never start.
CPU_NO_TSAN void Worker::fail(std::exception_ptr e) {
  if (!here.failing) error = e;
  here.failing = true;
  runnable = 0;
  for (int i = 0; i < warps; ++i) {
    warp[i].runnable = 0;
    for (int lane = 0; lane < warp_size; ++lane)
      if ((warp[i].lanes >> lane & 1) && warp[i].threads[lane].context.sp) warp[i].runnable |= 1u << lane;
    if (warp[i].runnable) runnable |= 1u << i;
  }
}

static std::string text_of(uint3 i) { return format("(%u, %u, %u)", i.x, i.y, i.z); }
std::string text_of(const Site& site) { return format("%s (%s:%d)", site.what, site.file, site.line); }

void Worker::fail(const char* fmt, ...) {
  va_list arguments;
  va_start(arguments, fmt);
  std::string what = vformat(fmt, arguments);
  va_end(arguments);
  fail(std::make_exception_ptr(
      Failure(format("kernel %s, block %s: %s", kernel, text_of(here.block_index).c_str(), what.c_str()))));
}

void Worker::fail_stuck() {
  // a thread that waits for a key does not wait for a thread that has returned
  const char* kind = here.returned && !sleepers ? "some threads have returned while others wait for them" : "deadlock";
  fail("%s: %s", kind, waiting().c_str());
}

// One clause for each place where threads wait.
CPU_NO_TSAN std::string Worker::waiting() const {
  struct Group {
    Site site;
    int count;
    uint3 first;
    std::string missing;
  };
  std::vector<Group> groups;
  for (int i = 0; i < threads; ++i) {
    const Thread& t = thread[i];
    if (!t.context.sp || (t.warp->runnable >> t.lane & 1)) continue;
    const Sleeper* asleep = std::find_if(sleeper, sleeper + sleepers, [&](const Sleeper& s) { return s.thread == &t; });
    bool in_warp = t.warp->arrived >> t.lane & 1, at_key = asleep != sleeper + sleepers;
    const Site& site = in_warp ? t.warp->site : at_key ? asleep->site : barrier_site;
    auto same = [&](const Group& g) { return g.site.line == site.line && g.site.what == site.what; };
    auto group = std::find_if(groups.begin(), groups.end(), same);
    std::string missing = at_key && asleep->describe ? asleep->describe(asleep->key) : "";
    if (group == groups.end()) groups.push_back({site, 1, t.index, missing});
    else ++group->count;
  }
  std::string text;
  for (const Group& g : groups)
    text += format("%d thread%s at %s%s, the first is %s; ", g.count, g.count == 1 ? " waits" : "s wait",
                   text_of(g.site).c_str(), g.missing.c_str(), text_of(g.first).c_str());
  return text + format("%d returned", static_cast<int>(here.returned));
}

// Prepares this worker for the blocks of a launch.
void Worker::adopt(const Launch& l, uint64_t id) {
  if (launch_id == id) return;
  launch_id = id;
  launch = &l;
  kernel = l.name;
  order = knobs.order;
  if (l.block.x != shape.x || l.block.y != shape.y || l.block.z != shape.z) {
    shape = l.block;
    threads = static_cast<int>(l.block.x * l.block.y * l.block.z);
    warps = (threads + warp_size - 1) / warp_size;
    all_warps = all_lanes_mask >> (32 - warps);
    for (int i = 0; i < warps; ++i) {
      warp[i].lanes = all_lanes_mask >> (warp_size - std::min(warp_size, threads - i * warp_size));
      warp[i].number = i;
      warp[i].threads = &thread[static_cast<size_t>(i * warp_size)];
    }
    for (int i = 0; i < threads; ++i) {
      unsigned n = static_cast<unsigned>(i), plane = shape.x * shape.y;
      Thread& t = thread[n];
      t.index = {n % shape.x, n % plane / shape.x, n / plane};
      t.lane = i % warp_size;
      t.warp = &warp[i / warp_size];
#ifdef CPU_TSAN  // here, because everything before the creation of a fiber is ordered before what the fiber does
      if (t.context.shadow) continue;
      stacks.push_back(t.context.stack = new_stack(i));
      t.context.shadow = __tsan_create_fiber(0);
      __tsan_set_fiber_name(t.context.shadow, format("CUDA thread %d", i).c_str());
#endif
    }
  }
#ifdef CPU_ASAN  // exactly what was asked for, between redzones
  std::free(std::exchange(shared, nullptr));
  if (l.shared_bytes && posix_memalign(reinterpret_cast<void**>(&shared), 1024, l.shared_bytes)) throw std::bad_alloc();
#else
  if (!shared && posix_memalign(reinterpret_cast<void**>(&shared), 1024, max_shared_bytes)) throw std::bad_alloc();
#endif
  here.block_dim = l.block;
  here.grid_dim = l.grid;
  here.dynamic_shared = shared;
  here.shared_bytes = l.shared_bytes;
#if !defined(CPU_ASAN) && !defined(CPU_TSAN)
  here.in_order = order == Order::forward;
#endif
}

CPU_NO_TSAN void Worker::run_block(uint64_t block) {
  uint64_t x = launch->grid.x, plane = x * launch->grid.y;
  here.block_index = {static_cast<unsigned>(block % x), static_cast<unsigned>(block % plane / x),
                      static_cast<unsigned>(block / plane)};
  here.returned = 0;
  runnable = all_warps;
  at_barrier = 0;
  sleepers = 0;
  here.failing = false;
  if (here.engine) start_block(*here.engine);
  for (int i = 0; i < warps; ++i) warp[i].runnable = warp[i].lanes, warp[i].arrived = 0;
  random_state = (knobs.seed + block + 1) * 0x9e3779b97f4a7c15u | 1;
  if (knobs.poison) {
    poison_static(saved_static);
    if (shared) memset(shared, 0xff, launch->shared_bytes);
  }
#ifdef CPU_TSAN
  host.shadow = __tsan_get_current_fiber();
#endif
  order_before(&start_key);
  const Warp& first = warp[pick(runnable)];
  self = first.threads + pick(first.runnable);
  switch_context(host, context_of(self));
  order_after(&here.finish_key);
  self = &host_thread;
  if (knobs.poison) restore_static(saved_static);
  if (error) std::rethrow_exception(std::exchange(error, nullptr));
}

CPU_NO_TSAN const Context& next_context() {
  Worker& w = *here.worker;
  Thread* me = self;
  if (!me->context.sp) me->context.sp = &w;  // not null: this thread counts as waiting, and may be woken by a copy
  if (here.engine && w.order == Order::random && w.random() % 16 == 0) w.copy_arrives();
  Thread* next = w.next_thread();
  if (!next) [[unlikely]]
    next = w.next_thread_at_last();
  self = next;
  return w.context_of(next);
}

CPU_NO_TSAN void sleep_until_woken(const void* key, const Site& site, std::string (*describe)(const void*)) {
  Worker& w = *here.worker;
  w.sleeper[w.sleepers++] = {self, key, site, describe};
  wait(*self);
}

CPU_NO_TSAN void wake(const void* key) {
  Worker& w = *here.worker;
  int left = 0;
  for (int i = 0; i < w.sleepers; ++i) {
    const Worker::Sleeper& s = w.sleeper[i];
    if (s.key == key) {
      s.thread->warp->runnable |= 1u << s.thread->lane;
      w.runnable |= 1u << s.thread->warp->number;
    } else {
      w.sleeper[left++] = s;
    }
  }
  w.sleepers = left;
}

void abandon() { throw Worker::Abandoned(); }

void reject(const Site& site, const char* fmt, ...) {
  va_list arguments;
  va_start(arguments, fmt);
  std::string what = vformat(fmt, arguments);
  va_end(arguments);
  here.worker->fail("%s: %s", text_of(site).c_str(), what.c_str());
  abandon();
}

void cannot_meet(const char* what, const char* file, int line) {
  Site site{what, file, line};
  Worker& w = *here.worker;
  const Warp& warp = *self->warp;
  if (warp.lanes != all_lanes_mask)
    w.fail("thread %s is at %s, but its warp has %d threads: make the block a multiple of 32",
           text_of(self->index).c_str(), text_of(site).c_str(), std::popcount(warp.lanes));
  else
    w.fail("divergent warp: thread %s is at %s while %d of its lanes wait at %s", text_of(self->index).c_str(),
           text_of(site).c_str(), std::popcount(warp.arrived), text_of(warp.site).c_str());
  abandon();
}

[[gnu::cold]] static void cannot_pass(Worker& w, const Site& site) {
  w.fail("divergent barrier: thread %s is at %s while %d wait%s at %s", text_of(self->index).c_str(),
         text_of(site).c_str(), w.at_barrier, w.at_barrier == 1 ? "s" : "", text_of(w.barrier_site).c_str());
  abandon();
}

CPU_NO_TSAN bool arrive_at_barrier(const char* file, int line) {
  Worker& w = *here.worker;
  if (w.at_barrier == 0) w.barrier_site = {"__syncthreads", file, line};
  else if (w.barrier_site.line != line) [[unlikely]] cannot_pass(w, {"__syncthreads", file, line});
  if (++w.at_barrier == w.threads) {
    w.at_barrier = 0;
    ++here.barriers;
    w.runnable = w.all_warps;
    for (int i = 0; i < w.warps; ++i) w.warp[i].runnable = w.warp[i].lanes;
    return true;
  }
  return false;
}

void check(const Launch& l) {
  uint64_t threads = uint64_t(l.block.x) * l.block.y * l.block.z;
  if (threads == 0 || threads > max_block_threads)
    failure("kernel %s: a block of %u x %u x %u threads cannot be launched (1 to %d)", l.name, l.block.x, l.block.y,
            l.block.z, max_block_threads);
  if (l.grid.x == 0 || l.grid.y == 0 || l.grid.z == 0 || l.grid.x > 0x7fffffff || l.grid.y > 65535 || l.grid.z > 65535)
    failure("kernel %s: a grid of %u x %u x %u blocks cannot be launched (1 to 2147483647 x 65535 x 65535)", l.name,
            l.grid.x, l.grid.y, l.grid.z);
  if (l.shared_bytes > max_shared_bytes)
    failure("kernel %s: %zu bytes of shared memory were asked for, but a block can have %zu", l.name, l.shared_bytes,
            max_shared_bytes);
}

void run(const Launch& l) {
  check(l);
  if (self != &host_thread) failure("kernel %s: launched from inside kernel %s", l.name, here.worker->kernel);

  static std::atomic<uint64_t> launches;
  struct Job {
    const Launch& launch;
    uint64_t id, blocks, step, shift;
  };
  Job job{l, ++launches, uint64_t(l.grid.x) * l.grid.y * l.grid.z, 1, 0};
  if (knobs.order == Order::random) {  // a permutation of the blocks: multiples of a number coprime to their count
    job.shift = knobs.seed * 0x9e3779b97f4a7c15u >> 20;
    for (job.step = job.shift % job.blocks; std::gcd(job.step, job.blocks) != 1;) ++job.step;
  }
  pool_run(
      static_cast<int64_t>(job.blocks),
      [](void* context, int64_t index) {
        const Job& job = *static_cast<const Job*>(context);
        static thread_local std::unique_ptr<Worker> worker;
        if (!worker) worker = std::make_unique<Worker>(), here.worker = worker.get();
        worker->adopt(job.launch, job.id);
        uint64_t block = static_cast<uint64_t>(index);
        if (knobs.order == Order::reverse) block = job.blocks - 1 - block;
        if (knobs.order == Order::random)
          block = static_cast<uint64_t>((static_cast<__uint128_t>(block) * job.step + job.shift) % job.blocks);
        worker->run_block(block);
      },
      &job);
}

}  // namespace cpu
