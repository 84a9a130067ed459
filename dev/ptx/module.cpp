// PTX out of fat binaries, and bugs planted in it.
//
// A fat binary is a header and entries. CUDA documents only its wrapper (fatbinary_section.h). The header: magic,
// version (2 bytes), its own size (2), size of all entries (8). Before each entry: kind (2; 1 is PTX), version (2),
// size of this header (4), size of the entry (8). nvcc -no-compress leaves PTX as text.
#include "dev/ptx/module.h"
#include <fatbinary_section.h>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <regex>
#include <sstream>
#include <utility>
#include <vector>
#include "dev/ptx/options.h"
#include "dev/ptx/parse.h"

namespace ptx {
namespace {

constexpr uint16_t KIND_PTX = 1;

std::vector<std::string>& texts() {  // not parsed yet
  static std::vector<std::string> all;
  return all;
}
std::map<std::string, std::unique_ptr<Kernel>>& kernels() {
  static std::map<std::string, std::unique_ptr<Kernel>> all;
  return all;
}
int architecture = 0;

template <class T> T read(const char* from) {
  T value;
  memcpy(&value, from, sizeof value);
  return value;
}

// PTX_MUTATE (options.h): returns the text of a module with the bug in it.
std::string mutated(const std::string& text, const std::string& mutation) {
  const std::vector<std::string> parts = split(mutation, '/');
  if (parts.size() != 4) throw Error("PTX_MUTATE=" + mutation + " is not KERNEL/FROM/TO/N");
  const std::regex from(parts[1]);
  const int which = atoi(parts[3].c_str());
  std::istringstream lines(text);
  std::string result;
  bool in_kernel = false;
  int seen = 0;
  for (std::string line; std::getline(lines, line); result += line + '\n') {
    if (const size_t entry = line.find(".entry "); entry != std::string::npos) {
      in_kernel = line.find(parts[0], entry) != std::string::npos;
      seen = 0;
    }
    if (!in_kernel || !std::regex_search(line, from) || (++seen != which && which)) continue;
    line = std::regex_replace(line, from, parts[2]);
    fprintf(stderr, "ptx: planted \"%s\"\n", line.c_str());
  }
  return result;
}

void parse_all() {
  const std::string& mutation = options().mutation;
  for (const std::string& text : std::exchange(texts(), {})) {
    parse_module(mutation.empty() ? text : mutated(text, mutation), kernels());
  }
}

}  // namespace

void add_fat_binary(const void* wrapper) {
  const char* header = reinterpret_cast<const char*>(static_cast<const __fatBinC_Wrapper_t*>(wrapper)->data);
  const char* entry = header + read<uint16_t>(header + 6);
  const char* end = entry + read<uint64_t>(header + 8);
  while (entry < end) {
    const uint32_t header_size = read<uint32_t>(entry + 4);
    const uint64_t size = read<uint64_t>(entry + 8);
    if (read<uint16_t>(entry) == KIND_PTX) {
      std::string text(entry + header_size, size);
      text.resize(strlen(text.c_str()));
      const size_t begin = text.find(".version"), target = text.find(".target sm_");
      if (begin == std::string::npos || target == std::string::npos) {
        fprintf(stderr, "ptx: no PTX text in a fat binary; compile with -no-compress\n");
        exit(1);
      }
      architecture = std::max(architecture, atoi(text.c_str() + target + strlen(".target sm_")));
      texts().push_back(text.substr(begin));
    }
    entry += header_size + size;
  }
}

const Kernel& kernel_named(const std::string& name) {
  parse_all();
  auto found = kernels().find(name);
  if (found == kernels().end()) throw Error("no PTX of kernel " + name);
  return *found->second;
}

int target_architecture() { return architecture; }

}  // namespace ptx
