// A safetensors file: if it is accepted, every tensor is read in two pieces.
#include "checkpoint/safetensors.h"
#include "test/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  MemoryFile file(data, size);
  return expect_user_errors_only([&] {
    SafetensorsReader reader(file.path());
    for (const TensorInfo& tensor : reader.tensors()) {
      if (reader.find(tensor.name) != &tensor || tensor.count < 0 || uint64_t(tensor.count) > size * 8) std::abort();
      if (tensor.dtype != "F32" && tensor.dtype != "F16" && tensor.dtype != "BF16") continue;
      std::vector<float> values(tensor.count);
      int64_t half = tensor.count / 2;
      reader.read(tensor, 0, half, values.data());
      reader.read(tensor, half, tensor.count - half, values.data() + half);
    }
  });
}
