// Runs a kernel's threads on one OS thread per block. A CUDA thread starts on a stack shared with its predecessors and keeps
// that stack for itself from its first wait on; from then on it is a fiber. A waiting thread switches straight to the next
// runnable one, found in two bit masks: runnable lanes of its warp, runnable warps of its block. There is no scheduler
// fiber. When nothing can run and not every thread has returned, the launch fails with the lines that are waited at.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "cpu/fiber.h"

struct uint3 { unsigned x, y, z; };
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

namespace cpu {

constexpr int warp_size = 32, max_block_threads = 1024;
constexpr size_t max_shared_bytes = 227 * 1024;  // what sm_90 gives a block

struct Site {  // where a warp or a block meets
  const char* what;
  const char* file;
  int line;
};

struct Warp;
struct CopyQueue;

struct alignas(64) Thread {
  uint3 index;            // threadIdx
  int lane;
  Warp* warp;
  void* context;          // saved stack pointer; null until the first wait and again after the return
  CopyQueue* copies;      // cp.async copies under way, null if never used (cpu/warp.h)
#if defined(CPU_ASAN) || defined(CPU_TSAN)
  Stack stack;
  void* shadow;           // ASan's fake stack or TSan's fiber
#endif
};

struct Warp {
  uint32_t lanes;         // that exist
  uint32_t runnable;      // the running one included
  uint32_t arrived;       // at the meeting under way
  uint32_t number;        // in the block
  Thread* threads;
  Site site;              // of the meeting under way
  void* request[warp_size];  // what each arrived lane asks of the meeting, in its own stack frame
};

struct Here { uint3 block_index; dim3 block_dim, grid_dim; char* dynamic_shared; };

// Not zero-initialised on purpose: that keeps them out of .tbss, which the poison knob fills (scheduler.cpp).
extern __thread Thread* self;
extern __thread Here here;

// Blocks the caller until every thread of the block is here.
void barrier(const char* file, int line);

void drop_copies(CopyQueue*);  // the thread has returned (copies.cpp)
void free_copies(CopyQueue*);

// Slow ends of arrive().
void wait();
[[noreturn]] void meeting_failed(const Site& found);

// A meeting of the 32 lanes: true for the last to arrive, which does the work for all (their requests are in
// warp->request) and goes on without switching; false for the others, once that is done.
CPU_NO_TSAN inline bool arrive(Thread& thread, const Site& site, void* request) {
  Warp& warp = *thread.warp;
  uint32_t bit = 1u << thread.lane;
  if (warp.arrived == 0) {
    warp.site = site;
    if (warp.lanes != 0xffffffffu) [[unlikely]] meeting_failed(site);
  } else if (warp.site.line != site.line || warp.site.what != site.what) [[unlikely]] {
    meeting_failed(site);
  }
  warp.request[thread.lane] = request;
  warp.arrived |= bit;
  if (warp.arrived == 0xffffffffu) return true;
  warp.runnable &= ~bit;
  wait();
  return false;
}

// The last lane calls this when its work is done.
CPU_NO_TSAN inline void dismiss(Warp& warp) {
  warp.arrived = 0;
  warp.runnable = 0xffffffffu;
}

// Test knobs. Results must not depend on the order of blocks, warps and lanes. Poison fills shared memory with NaN (all
// bits set) before every block, and new device memory.
enum class Order { forward, reverse, random };
struct Knobs { Order order = Order::forward; uint64_t seed = 1; bool poison = false; };
extern Knobs knobs;

struct Launch {
  const char* name;
  dim3 grid, block;
  size_t shared_bytes;
  void (*invoke)(const void*);  // runs the kernel for the thread that `self` names
  const void* arguments;
};

void run(const Launch&);  // throws Failure, or what the kernel threw

}  // namespace cpu
