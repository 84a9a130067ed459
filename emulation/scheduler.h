// Runs a kernel's threads, one block per OS thread at a time. A CUDA thread starts on the stack that the threads before
// it used; at its first wait it keeps that stack and becomes a fiber. A waiting thread switches directly to the next
// runnable one, found in two bit masks: runnable lanes of its warp, runnable warps of its block. There is no scheduler
// fiber. When no thread can run, the copy engine (hopper.cpp) delivers a copy; if it has none left and not every thread
// has returned, the launch fails and names the lines where threads wait.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string>
#include "emulation/fiber.h"

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

namespace cpu {

constexpr int warp_size = 32, max_block_threads = 1024;
constexpr size_t max_shared_bytes = 227 * 1024;  // per block, as on sm_90

struct Launch {
  const char* name;
  dim3 grid, block;
  size_t shared_bytes;
  void (*invoke)(const void*);  // runs the kernel for `self`, and again while next_fresh()
  const void* arguments;
};
void check(const Launch&);  // throws Failure if no GPU would accept it
void run(const Launch&);    // throws Failure, or the kernel's exception

// Test knobs. Results must not depend on the order of blocks, warps and lanes. Poison is NaN (all bits set) in shared
// memory before every block, and in new device memory.
enum class Order { forward, reverse, random };
struct Knobs {
  Order order = Order::forward;
  uint64_t seed = 1;
  bool poison = false;
};
extern Knobs knobs;

struct Warp;
struct Worker;
struct CopyQueue;
struct Engine;

struct alignas(64) Thread {  // one cache line
  uint3 index;               // threadIdx
  int lane;
  Warp* warp;
  Context context;    // null until the first wait, and again after the return
  CopyQueue* copies;  // cp.async copies under way (copies.cpp); null before the first
};
void drop_copies(CopyQueue*);
void free_copies(CopyQueue*);

// hopper.cpp: the copies and products of a block that are under way.
void start_block(Engine&);
int copies_under_way(const Engine&);
void deliver(Engine&, int which);  // one of the copies; the oldest is 0
void finish_block(const Engine&);  // throws if any are left
void free_engine(Engine*);

struct Site {  // where threads meet
  const char* what;
  const char* file;
  int line;
};
std::string text_of(const Site&);

constexpr uint32_t all_lanes_mask = 0xffffffffu;

struct Warp {
  uint32_t lanes;     // those that exist
  uint32_t runnable;  // includes the running one
  uint32_t arrived;   // at the current meeting
  int number;         // in the block
  Thread* threads;
  Site site;                 // of the current meeting
  void* request[warp_size];  // of each arrived lane: an object in its own stack frame
  unsigned syncs;            // warp_syncs completed
  char sync_key[2];          // for TSan (see fiber.h)
};

// The values that kernels read most, one thread-local object per OS thread. `self` is the running CUDA thread.
struct Here {
  uint3 block_index;
  dim3 block_dim, grid_dim;
  char* dynamic_shared;
  Worker* worker;
  uint64_t returned;                // threads of the block
  bool in_order;                    // threads start in the order of their numbers
  bool failing;                     // the block is being unwound
  unsigned barriers;                // completed
  char barrier_key[2], finish_key;  // for TSan (see fiber.h)
  size_t shared_bytes;              // of dynamic shared memory
  Engine* engine;                   // null until a kernel asks for it
};
extern __thread Thread* self;
extern __thread Here here;

// Called when the current thread has returned from the kernel. next_fresh() continues with its neighbour if that has
// not started, so kernels that never wait run as a loop.
CPU_NO_TSAN inline void returned(Thread& thread) {
  thread.context.sp = nullptr;
  thread.warp->runnable &= ~(1u << thread.lane);
  ++here.returned;
  if (thread.copies) [[unlikely]]
    drop_copies(thread.copies);
}
CPU_NO_TSAN inline bool next_fresh() {
  Thread* me = self;
  uint64_t later = static_cast<uint64_t>(me->warp->runnable) >> me->lane >> 1;
  if (!here.in_order || !(later & 1) || me[1].context.sp) return false;
  returned(*me);
  self = me + 1;
  return true;
}

// Slow paths. next_context: the context of the next thread to run, which it makes `self`; the current thread's, with
// here.failing set, if none can run.
const Context& next_context();
bool arrive_at_barrier(const char* file, int line);  // true for the last thread of the block, which need not wait
[[noreturn]] void cannot_meet(const char* what, const char* file, int line);
[[noreturn]] void abandon();

// Waits until wake(key): for all waits but the meetings of a warp and __syncthreads. `describe` says in reports what
// the thread waits for.
void sleep_until_woken(const void* key, const Site&, std::string (*describe)(const void* key) = nullptr);
void wake(const void* key);
[[noreturn, gnu::format(printf, 2, 3)]] void reject(const Site&, const char* format, ...);  // fails the block

// Removes the current thread from the runnable ones and switches to another. That is usually its neighbour, and trying
// it first keeps the bit masks out of the chain of dependent loads. Inlined down to the switch, which ends in a jump
// into the kernel: returns through stack frames would be mispredicted whenever the next thread waits at another line.
CPU_NO_TSAN inline void wait(Thread& me) {
  uint32_t left = me.warp->runnable & ~(1u << me.lane);
  me.warp->runnable = left;
  if (here.in_order && (left >> me.lane & 2) && (&me)[1].context.sp) [[likely]] {
    self = &me + 1;
    switch_context(me.context, self->context);
  } else {
    const Context& next = next_context();
    if (&next != &me.context) switch_context(me.context, next);
  }
  if (here.failing) [[unlikely]]
    abandon();
}

// A meeting of the 32 lanes. Returns true to the last lane to arrive, which does the work for all (their requests are
// in warp->request), then calls dismiss() and continues without a switch. Returns false to the others, after the work.
CPU_NO_TSAN inline bool arrive(Thread& me, const char* what, const char* file, int line, void* request) {
  Warp& warp = *me.warp;
  if (warp.arrived == 0) {
    warp.site = {what, file, line};
    if (warp.lanes != all_lanes_mask) [[unlikely]]
      cannot_meet(what, file, line);
  } else if (warp.site.line != line || warp.site.what != what) [[unlikely]] {
    cannot_meet(what, file, line);
  }
  warp.request[me.lane] = request;
  warp.arrived |= 1u << me.lane;
  if (warp.arrived == all_lanes_mask) return true;
  wait(me);
  return false;
}
CPU_NO_TSAN inline void dismiss(Warp& warp) {
  warp.arrived = 0;
  warp.runnable = all_lanes_mask;
}

// The two meetings that order memory: every thread of the block (of the warp) arrives before any continues.
CPU_NO_TSAN inline void barrier(const char* file, int line) {
  [[maybe_unused]] char* key = &here.barrier_key[here.barriers % 2];
  order_before(key);
  if (!arrive_at_barrier(file, line)) wait(*self);
  order_after(key);
}
CPU_NO_TSAN inline void warp_sync(const char* file, int line) {
  Thread& thread = *self;
  Warp& warp = *thread.warp;
  [[maybe_unused]] char* key = &warp.sync_key[warp.syncs % 2];
  order_before(key);
  if (arrive(thread, "warp_sync", file, line, nullptr)) {
    ++warp.syncs;
    dismiss(warp);
  }
  order_after(key);
}

}  // namespace cpu
