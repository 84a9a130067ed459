// Global memory: what the runtime has given out, with nothing around it.
#pragma once
#include <cstddef>
#include <cstdint>
#include "emulation/ptx/program.h"

namespace ptx {

uint64_t new_global(size_t bytes);   // poisoned; 256-byte aligned
uint64_t global_in_use();            // bytes that are given out
bool free_global(uint64_t address);  // false where nothing begins there
bool is_global(uint64_t address, uint64_t bytes);
// The same, and noticed where it is not so.
bool check_global(const Context& context, const Instruction& instruction, uint64_t address, uint64_t bytes);

}  // namespace ptx
