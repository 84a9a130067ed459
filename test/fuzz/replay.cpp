// Calls a fuzz target with the bytes of files, where there is no libFuzzer: replay_NAME FILE...
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "test/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int main(int count, char** files) {
  for (int i = 1; i < count; i++) {
    std::fprintf(stderr, "%s\n", files[i]);  // above a sanitizer's report
    std::ifstream file(files[i], std::ios::binary);
    std::string bytes(std::istreambuf_iterator<char>(file), {});
    if (!file.is_open()) std::abort();
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }
  std::printf("%s: %d inputs, nothing found\n", std::strrchr(files[0], '/') + 1, count - 1);
}
