// Two checks that make bugs visible: NaN in shared memory, and a message about stack overflows.
#pragma once
#include <vector>
#include "emulation/fiber.h"

namespace cpu {

// Sets all bits of this OS thread's static __shared__ variables. They are stored among the executable's other
// zero-initialised thread-locals: `saved` receives a copy of all of them, and restore_static writes it back. Does
// nothing in sanitizer builds.
void poison_static(std::vector<char>& saved);
void restore_static(std::vector<char>& saved);

// While this object lives, a CUDA thread of this OS thread that overflows its stack ends the process with a message
// that names the kernel. Both pointers are read when that happens.
class OverflowWatch {
 public:
  OverflowWatch(const std::vector<Stack>* stacks, const char* const* kernel);
  ~OverflowWatch();

 private:
  std::vector<char> signal_stack_;
};

}  // namespace cpu
