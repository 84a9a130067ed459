// Stacks and the switch between them, with what ASan and TSan must be told about it. x86-64 only.
#pragma once
#include <stddef.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CPU_ASAN 1
#endif
#if __has_feature(thread_sanitizer)
#define CPU_TSAN 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#define CPU_ASAN 1
#endif
#ifdef __SANITIZE_THREAD__
#define CPU_TSAN 1
#endif

// The layer moves data between CUDA threads behind TSan's back: only barriers order their accesses.
#define CPU_NO_TSAN __attribute__((no_sanitize("thread")))

namespace cpu {

struct Stack {
  char* bottom;        // lowest usable byte; the page below is a guard
  char* top;           // where the first frame begins
};

Stack new_stack(int number);  // number staggers the tops
void free_stack(Stack);
void* fresh_context(const Stack&, void (*entry)());  // entry must not return

}  // namespace cpu

// Saves the callee-saved registers and the stack pointer in *save and continues where `load` was saved.
extern "C" void cpu_switch_stack(void** save, void* load);
