// PTX out of fat binaries, and bugs planted in it.
//
// A fat binary is a header and entries. CUDA documents the wrapper alone (fatbinary_section.h), not the rest: a header of
// magic, version (2 bytes), its size (2), size of all entries (8); before each entry kind (2; 1 is PTX), version (2), size of
// this header (4), size of what follows (8). nvcc -no-compress leaves PTX as text.
#include "ptx/module.h"
#include <fatbinary_section.h>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <vector>
#include "ptx/options.h"
#include "ptx/parse.h"

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

// Replaces the N-th FROM, or each, between two places of the text. True where it was there.
bool replace_between(std::string& text, size_t begin, size_t end, const std::string& from, const std::string& to, int n) {
  bool found = false;
  for (int seen = 0;;) {
    begin = text.find(from, begin);
    if (begin == std::string::npos || begin >= end) return found;
    seen++;
    if (n && seen != n) {
      begin += from.size();
      continue;
    }
    text.replace(begin, from.size(), to);
    begin += to.size();
    end += to.size() - from.size();
    found = true;
    if (n) return true;
  }
}

// PTX_MUTATE (options.h).
void mutate(std::string& text) {
  const std::string& mutation = options().mutation;
  if (mutation.empty()) return;
  std::vector<std::string> parts;
  for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = mutation.find('/', begin);
    parts.push_back(mutation.substr(begin, end == std::string::npos ? end : end - begin));
  }
  if (parts.size() != 4) throw Error("PTX_MUTATE=" + mutation + " is not KERNEL/FROM/TO/N");
  for (size_t entry = text.find(".entry "); entry != std::string::npos; entry = text.find(".entry ", entry + 1)) {
    const std::string name = text.substr(entry, text.find('(', entry) - entry);
    if (name.find(parts[0]) == std::string::npos) continue;
    const size_t end = text.find(".entry ", entry + 1);
    if (replace_between(text, entry, end, parts[1], parts[2], atoi(parts[3].c_str()))) {
      fprintf(stderr, "ptx: planted a bug in kernel %s\n", name.c_str() + strlen(".entry "));
    }
  }
}

void parse_all() {
  for (std::string& text : texts()) {
    mutate(text);
    parse_module(text, kernels());
  }
  texts().clear();
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
