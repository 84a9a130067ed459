// The memory and cores that this process may use: the machine's, or its container's (cgroup v1 or v2) if less.
// Nothing else in the program asks for the number of cores; scripts/lib/cores.sh is its likeness for make.
#pragma once
#include <stddef.h>
#include <string>

namespace cpu {

struct Memory {
  size_t free, total;
};  // bytes; free counts what the system would drop from its file cache
Memory available_memory(const std::string& root = "");  // root: a test's folder with its own /proc and /sys
int available_cores(const std::string& root = "");

}  // namespace cpu
