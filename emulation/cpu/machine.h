// What this process may use: the machine's memory and cores, or its container's (cgroup v1 and v2) where those are
// less.
#pragma once
#include <stddef.h>
#include <string>

namespace cpu {

struct Memory { size_t free, total; };  // bytes; free counts what the system would drop from its file cache
Memory available_memory(const std::string& root = "");  // root: where tests keep their /proc and /sys
int available_cores(const std::string& root = "");

}  // namespace cpu
