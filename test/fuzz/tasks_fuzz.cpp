// A task file: of an accepted one, every token must be in the vocabulary, and every example have its right completion.
#include <cstdlib>

#include "data/benchmark_file.h"
#include "test/fuzz/fuzz.h"

namespace {

// A folder whose file x.bin is another file.
struct TaskFolder {
  explicit TaskFolder(const std::string& file) {
    if (!::mkdtemp(path) || ::symlink(file.c_str(), (path + std::string("/x.bin")).c_str()) != 0) std::abort();
  }
  ~TaskFolder() {
    ::unlink((path + std::string("/x.bin")).c_str());
    ::rmdir(path);
  }
  char path[24] = "/tmp/plusgpt_fuzzXXXXXX";
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  MemoryFile file(data, size);
  TaskFolder folder(file.path());
  return expect_user_errors_only([&] {
    for (const BenchmarkExample& example : read_benchmark(folder.path, "x", 256, 0).examples) {
      if (example.gold < 0 || size_t(example.gold) >= example.choices.size() || example.context.empty()) std::abort();
      for (const BenchmarkChoice& choice : example.choices) {
        if (choice.tokens.empty() || choice.bytes < choice.characters || choice.words < 0) std::abort();
        for (int token : choice.tokens)
          if (token < 0 || token >= 256) std::abort();
      }
    }
  });
}
