#include "emulation/processor.h"
#include "emulation/fiber.h"

#if defined(__x86_64__)
// Ends in a jump: the processor would predict that `ret` returns to the caller, not to where the next thread waits.
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
  popq %rcx
  jmpq *%rcx
.size cpu_switch_stack, .-cpu_switch_stack
)");

namespace cpu {

// Six registers, the entry, and a null return address. The stack is then aligned as after a call.
CPU_NO_TSAN void* first_frame(char* top, void (*entry)()) {
  void** frame = reinterpret_cast<void**>(top) - 8;
  frame[0] = frame[1] = frame[2] = frame[3] = frame[4] = frame[5] = frame[7] = nullptr;
  frame[6] = reinterpret_cast<void*>(entry);
  return frame;
}

uint64_t float_modes() { return __builtin_ia32_stmxcsr(); }
void set_float_modes(uint64_t modes) { __builtin_ia32_ldmxcsr(static_cast<unsigned>(modes)); }
const uint64_t subnormals_are_zero = 0x8040;  // MXCSR.FTZ, MXCSR.DAZ

void relax() { __builtin_ia32_pause(); }

#elif defined(__aarch64__)
// Ends in `ret`: where branch targets are checked (BTI), `br` may not jump to where a call returns.
asm(R"(
.text
.p2align 4
.globl cpu_switch_stack
.type cpu_switch_stack, %function
cpu_switch_stack:
  hint #34  // bti c
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x9, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  mov x30, xzr
  ret x9
.size cpu_switch_stack, .-cpu_switch_stack
)");

namespace cpu {

// Twenty registers: the frame pointer is null, the return address is the entry. x30 will be null.
CPU_NO_TSAN void* first_frame(char* top, void (*entry)()) {
  void** frame = reinterpret_cast<void**>(top) - 20;
  frame[10] = nullptr;
  frame[11] = reinterpret_cast<void*>(entry);
  return frame;
}

uint64_t float_modes() {
  uint64_t modes;
  asm volatile("mrs %0, fpcr" : "=r"(modes));
  return modes;
}
void set_float_modes(uint64_t modes) { asm volatile("msr fpcr, %0" ::"r"(modes) : "memory"); }
const uint64_t subnormals_are_zero = 1 << 24;  // FPCR.FZ

void relax() { asm volatile("isb" ::: "memory"); }  // `yield` takes no time

#else
#error "the CPU layer switches stacks on x86-64 and AArch64 alone"
#endif

}  // namespace cpu
