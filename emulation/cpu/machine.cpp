#include "emulation/cpu/machine.h"
#include <sched.h>
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace cpu {
namespace {

constexpr uint64_t unlimited = UINT64_MAX;

// The number after `key` at the start of a line; with an empty key, the first word of the file. "max" and errors mean
// unlimited.
uint64_t number_in(const std::string& path, const std::string& key = "") {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    std::istringstream words(line.substr(key.size()));
    uint64_t value;
    return words >> value ? value : unlimited;
  }
  return unlimited;
}

// The directories whose limits apply: the process's own group and those above it.
std::vector<std::string> groups(const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  std::vector<std::string> found = {root + "/sys/fs/cgroup"};
  for (std::string line; std::getline(file, line);)
    if (line.compare(0, 3, "0::") == 0)
      for (std::string path = line.substr(3); path.size() > 1; path.resize(path.rfind('/')))
        found.push_back(root + "/sys/fs/cgroup" + path);
  return found;
}

void apply_limit(Memory& memory, uint64_t limit, uint64_t used, uint64_t file_cache) {
  if (limit == unlimited || used == unlimited) return;
  if (file_cache != unlimited) used -= std::min(used, file_cache);
  memory.total = std::min<uint64_t>(memory.total, limit);
  memory.free = std::min<uint64_t>(memory.free, limit - std::min(limit, used));
}

}  // namespace

Memory available_memory(const std::string& root) {
  std::string meminfo = root + "/proc/meminfo";
  Memory memory{number_in(meminfo, "MemAvailable:") * 1024, number_in(meminfo, "MemTotal:") * 1024};
  for (const std::string& group : groups(root))
    apply_limit(memory, number_in(group + "/memory.max"), number_in(group + "/memory.current"),
                number_in(group + "/memory.stat", "inactive_file "));
  return memory;
}

int available_cores(const std::string& root) {
  cpu_set_t set;
  uint64_t cores = sched_getaffinity(0, sizeof set, &set) == 0 ? static_cast<uint64_t>(CPU_COUNT(&set)) : 1;
  for (const std::string& group : groups(root)) {
    std::ifstream file(group + "/cpu.max");  // "quota period" or "max period"
    uint64_t quota, period;
    if (file >> quota >> period && period > 0) cores = std::min(cores, (quota + period - 1) / period);
  }
  return static_cast<int>(std::max<uint64_t>(cores, 1));
}

}  // namespace cpu
