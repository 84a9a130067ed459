// Stacks and the switch between them, with the annotations that ASan and TSan need.
#pragma once
#include <stddef.h>
#include "emulation/processor.h"

#ifdef __has_feature  // clang
#if __has_feature(address_sanitizer)
#define CPU_ASAN 1
#elif __has_feature(thread_sanitizer)
#define CPU_TSAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)  // gcc
#define CPU_ASAN 1
#elif defined(__SANITIZE_THREAD__)
#define CPU_TSAN 1
#endif
#ifdef CPU_ASAN
#include <sanitizer/asan_interface.h>
#endif
#ifdef CPU_TSAN
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

// For functions that move data between CUDA threads unseen by TSan, so that only barriers order the threads' accesses,
// and for functions that switch stacks.
#define CPU_NO_TSAN __attribute__((no_sanitize("thread")))

namespace cpu {

struct Stack {
  char* bottom = nullptr;
  char* top = nullptr;
};
Stack new_stack(int number);  // number staggers the tops
void free_stack(const Stack&);
bool overflowed(const Stack&, const void* address);  // is this address in the guard page?

// A suspended flow of control; sp is null if none is suspended.
struct Context {
  void* sp = nullptr;
#if defined(CPU_ASAN) || defined(CPU_TSAN)
  Stack stack;
  void* shadow = nullptr;  // ASan's fake stack; TSan's fiber, which is kept while nothing is suspended
#endif
};

// Makes the context start in entry, which must begin with entered() and end with leave().
void prepare(Context&, const Stack&, void (*entry)());

CPU_NO_TSAN inline void switch_context(Context& from, const Context& to) {
#ifdef CPU_ASAN
  __sanitizer_start_switch_fiber(&from.shadow, to.stack.bottom, static_cast<size_t>(to.stack.top - to.stack.bottom));
#elif defined(CPU_TSAN)
  __tsan_switch_to_fiber(to.shadow, __tsan_switch_to_fiber_no_sync);
#endif
  cpu_switch_stack(&from.sp, to.sp);
#ifdef CPU_ASAN
  __sanitizer_finish_switch_fiber(from.shadow, nullptr, nullptr);
#endif
}

// Must be called first on a new stack. host: the context that switches to a new stack first.
CPU_NO_TSAN inline void entered([[maybe_unused]] Context& host) {
#ifdef CPU_ASAN
  const void* bottom;
  size_t size;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
  if (!host.stack.bottom) {
    host.stack.bottom = static_cast<char*>(const_cast<void*>(bottom));
    host.stack.top = host.stack.bottom + size;
  }
#endif
}

// Switches without a way back: the current stack is free afterwards.
[[noreturn]] CPU_NO_TSAN inline void leave(const Context& to) {
#ifdef CPU_ASAN
  __sanitizer_start_switch_fiber(nullptr, to.stack.bottom, static_cast<size_t>(to.stack.top - to.stack.bottom));
#elif defined(CPU_TSAN)
  __tsan_switch_to_fiber(to.shadow, __tsan_switch_to_fiber_no_sync);
#endif
  void* nobody;
  cpu_switch_stack(&nobody, to.sp);
  __builtin_unreachable();
}

// TSan's happens-before edges: everything before order_before(key) is ordered before everything after order_after(key).
// Meetings alternate between two keys. With one, the accesses of a fast thread on its way to the next meeting would
// appear ordered before those of a slow thread after this meeting.
CPU_NO_TSAN inline void order_before([[maybe_unused]] void* key) {
#ifdef CPU_TSAN
  __tsan_release(key);
#endif
}
CPU_NO_TSAN inline void order_after([[maybe_unused]] void* key) {
#ifdef CPU_TSAN
  __tsan_acquire(key);
#endif
}

// While one lives, TSan ignores this fiber's accesses: for the layer's own containers.
struct Unseen {
#ifdef CPU_TSAN
  Unseen() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__), AnnotateIgnoreWritesBegin(__FILE__, __LINE__); }
  ~Unseen() { AnnotateIgnoreWritesEnd(__FILE__, __LINE__), AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
#else
  Unseen() {}  // not trivial, so that compilers do not warn of an unused variable
#endif
};

}  // namespace cpu
