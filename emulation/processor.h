// All that is written for one processor, and nowhere else in the layer: x86-64 or AArch64.
#pragma once
#include <stdint.h>

// Saves the callee-saved registers and the stack pointer in *save and continues where `load` was saved.
extern "C" void cpu_switch_stack(void** save, void* load);

namespace cpu {

// The `load` that begins entry on a new stack, as if nothing had called it: backtraces end there.
void* first_frame(char* top, void (*entry)());

// The modes of this OS thread's floating-point unit. With these bits set it takes subnormal numbers for 0, in what it
// reads and in what it writes.
uint64_t float_modes();
void set_float_modes(uint64_t);
extern const uint64_t subnormals_are_zero;
// Sets them for as long as it lives.
struct FloatModes {
  uint64_t before = float_modes();
  explicit FloatModes(uint64_t modes) { set_float_modes(modes); }
  FloatModes(const FloatModes&) = delete;
  ~FloatModes() { set_float_modes(before); }
};

void relax();  // in a loop that waits for another OS thread: about 10 ns

}  // namespace cpu
