#include "cpu/fiber.h"
#include <sys/mman.h>
#include <unistd.h>
#include <cstring>
#include <new>

// Both sides of a switch usually sit in the same function (cpu::wait), so `ret` is predicted well.
asm(R"(
.text
.p2align 4
.globl cpu_switch_stack
.type cpu_switch_stack, @function
cpu_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size cpu_switch_stack, .-cpu_switch_stack
.section .note.GNU-stack, "", @progbits
.text
)");

namespace cpu {
namespace {

#if defined(CPU_ASAN) || defined(CPU_TSAN)
constexpr size_t stack_bytes = 512 << 10;  // instrumented frames are larger, reports are written on the stack
#else
constexpr size_t stack_bytes = 128 << 10;
#endif
constexpr size_t guard_bytes = 4096;

}  // namespace

Stack new_stack(int number) {
  void* memory = mmap(nullptr, guard_bytes + stack_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mprotect(memory, guard_bytes, PROT_NONE);  // best effort: the kernel limits the number of mappings
  Stack stack;
  stack.bottom = static_cast<char*>(memory) + guard_bytes;
  // The guard pages spread the stacks over the sets of the L2 cache, this spreads them over those of L1.
  stack.top = stack.bottom + stack_bytes - (number % 32) * 128;
  return stack;
}

void free_stack(Stack stack) { munmap(stack.bottom - guard_bytes, guard_bytes + stack_bytes); }

void* fresh_context(const Stack& stack, void (*entry)()) {
  void** frame = reinterpret_cast<void**>(stack.top) - 8;
  memset(frame, 0, 8 * sizeof(void*));         // six registers, the entry, and a null return address
  frame[6] = reinterpret_cast<void*>(entry);   // the stack is then aligned as after a call
  return frame;
}

}  // namespace cpu
