#include "emulation/machine.h"
#include <sched.h>
#include <unistd.h>
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

// The group at the root of what is mounted there: "/docker/ID" in a container that sees only its own part, else "".
std::string mounted_group(const std::string& root, const std::string& place) {
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word, group, where;
    words >> word >> word >> word >> group >> where;  // two numbers, the device, the root, the mount point
    if (where == place && line.find(" - cgroup") != std::string::npos) return group == "/" ? "" : group;
  }
  return "";
}

// The directories whose limits of a controller apply: the process's own group and those above it, as far as they are
// mounted, in the hierarchy of cgroup v2 and in the controller's own of v1. A machine may have both.
std::vector<std::string> groups(const std::string& root, const std::string& controller) {
  std::ifstream file(root + "/proc/self/cgroup");  // lines "ID:CONTROLLER,CONTROLLER:/PATH", of v2 "0::/PATH"
  std::vector<std::string> found = {root + "/sys/fs/cgroup"};
  for (std::string line; std::getline(file, line);) {
    size_t list = line.find(':') + 1, end = line.find(':', list);
    if (list == 0 || end == std::string::npos) continue;
    std::string controllers = line.substr(list, end - list), group = line.substr(end + 1);
    std::vector<std::string> mounts = {"", "/unified"};
    if (!controllers.empty()) mounts = {"/" + controllers, "/" + controller};
    if (!controllers.empty() && ("," + controllers + ",").find("," + controller + ",") == std::string::npos) continue;
    for (const std::string& mount : mounts) {
      std::string place = "/sys/fs/cgroup" + mount, above = mounted_group(root, place), path = group;
      if ((path + "/").compare(0, above.size() + 1, above + "/") == 0) path.erase(0, above.size());
      found.push_back(root + place);
      for (; path.size() > 1 && path[0] == '/'; path.resize(path.rfind('/'))) found.push_back(root + place + path);
    }
  }
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
  for (const std::string& group : groups(root, "memory")) {
    std::string stat = group + "/memory.stat";
    apply_limit(memory, number_in(group + "/memory.max"), number_in(group + "/memory.current"),
                number_in(stat, "inactive_file "));
    apply_limit(memory, number_in(group + "/memory.limit_in_bytes"), number_in(group + "/memory.usage_in_bytes"),
                number_in(stat, "total_inactive_file "));
  }
  return memory;
}

int available_cores(const std::string& root) {
  cpu_set_t set;
  int64_t cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : sysconf(_SC_NPROCESSORS_ONLN);
  auto apply_quota = [&](std::istream& quotas, std::istream& periods) {
    int64_t quota, period;  // a quota of v1 that is -1, and one of v2 that is "max", is none
    if (quotas >> quota && periods >> period && quota > 0 && period > 0)
      cores = std::min(cores, (quota + period - 1) / period);
  };
  for (const std::string& group : groups(root, "cpu")) {
    std::ifstream both(group + "/cpu.max");  // "quota period"
    std::ifstream quota(group + "/cpu.cfs_quota_us"), period(group + "/cpu.cfs_period_us");
    apply_quota(both, both);
    apply_quota(quota, period);
  }
  return static_cast<int>(std::max<int64_t>(cores, 1));
}

}  // namespace cpu
