// Global memory: the runtime's allocations; every other address is an error.
#pragma once
#include <cstddef>
#include <cstdint>
#include "dev/ptx/program.h"

namespace ptx {

uint64_t new_global(size_t bytes);   // poisoned; 256-byte aligned
uint64_t global_in_use();            // bytes that are given out
bool free_global(uint64_t address);  // false if no allocation begins there
bool is_global(uint64_t address, uint64_t bytes);
// The same; if it is false, this is noticed.
bool check_global(const Context& context, const Instruction& instruction, uint64_t address, uint64_t bytes);

}  // namespace ptx
