// What the layer does to make mistakes show: NaN in shared memory, and a word about stack overflows.
#pragma once
#include <stddef.h>
#include <vector>
#include "emulation/cpu/fiber.h"

namespace cpu {

// Sets all bits of this OS thread's static __shared__ variables. They lie among its other zero-initialised
// thread-locals of the executable: `saved` takes those, and restore_static puts everything back. Does nothing in
// sanitizer builds.
void poison_static(std::vector<char>& saved);
void restore_static(std::vector<char>& saved);

// From now on a CUDA thread of this OS thread that outgrows its stack ends the process with a message that names the
// kernel. Both pointers are read when it happens.
class OverflowWatch {
 public:
  OverflowWatch(const std::vector<Stack>* stacks, const char* const* kernel);
  ~OverflowWatch();

 private:
  std::vector<char> signal_stack_;
};

}  // namespace cpu
