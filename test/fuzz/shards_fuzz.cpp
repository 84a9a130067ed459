// A token shard: all windows of three lengths are read; every token of an accepted window must be in the vocabulary.
// Then the same file as labels, as many as it says.
#include <cstring>

#include "data/shards.h"
#include "test/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  MemoryFile file(data, size);
  for (int T : {1, 7, 64})
    expect_user_errors_only([&] {
      WindowReader reader(open_shards({file.path()}, 256, "data.train"), T, 256);
      std::vector<int> inputs(T), targets(T);
      for (int64_t window = 0; window < reader.windows() && window < 1000; window++) {
        reader.read(window, inputs.data(), targets.data());
        for (int t = 0; t < T; t++)
          if (inputs[t] < 0 || inputs[t] >= 256 || targets[t] < 0 || targets[t] >= 256) std::abort();
      }
    });
  for (int outputs : {0, 1, 3})
    expect_user_errors_only([&] {
      std::vector<Shard> shards(1);
      int32_t count = 0;
      if (size >= 12) std::memcpy(&count, data + 8, sizeof count);
      shards[0].tokens = count;
      open_labels(shards, {file.path()}, 256, outputs, "data.labels");
      WindowReader reader(shards, 7, 256);
      for (int64_t window = 0; window < reader.windows() && window < 1000; window++)
        if (int labels = reader.labels(window); labels < 0 || labels > 7) std::abort();
    });
  return 0;
}
