// The memory and cores that this process may use: the machine's, or its container's (cgroup v2) if those are
// less.
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
