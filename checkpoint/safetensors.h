// safetensors files: 8 bytes of header length (little endian), a JSON header {name: {dtype, shape, data_offsets}}, the
// data.
// Reader: takes untrusted bytes. The whole header is checked when the file is opened (lengths against the file's size,
//   types, shapes against offsets, no gaps and no overlaps); what is wrong is a user_error naming file and tensor.
//   Values are read in pieces straight into the caller's buffer: F32, F16 and BF16 become float; others are listed only.
// Writer: F32, tensors in the given order, streamed, so that no second copy of a model is needed; errors are failures.
//   The checksum is that of the bytes handed to the disk, not of bytes read back: damage on the way shows later.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "base/file.h"

struct TensorInfo {
  std::string name;
  std::string dtype;  // "F32", "F16", "BF16", ...
  std::vector<int64_t> shape;
  int64_t count = 0;   // elements: the product of the shape, 1 for a scalar
  int64_t offset = 0;  // of the first byte, from the file's beginning
};
std::string shape_text(const std::vector<int64_t>& shape);  // "[768, 2304]"

class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::string& path);
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in the order of their data
  const TensorInfo* find(const std::string& name) const;               // nullptr when there is none
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& path() const { return file_.path(); }
  // Elements first .. first + count - 1 of the tensor, which must be one of tensors().
  void read(const TensorInfo& tensor, int64_t first, int64_t count, float* out) const;

 private:
  File file_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, size_t> index_;
  std::map<std::string, std::string> metadata_;
};

class SafetensorsWriter {
 public:
  struct Tensor {
    std::string name;
    std::vector<int64_t> shape;
  };
  SafetensorsWriter(const std::string& path, const std::vector<Tensor>& tensors);
  void write(const float* values, int64_t count);  // the next values, in any pieces
  void finish();                                   // everything was written: on the disk when it returns
  int64_t bytes() const { return bytes_; }         // of the file, and their checksum
  std::string checksum() const { return checksum_.text(); }

 private:
  void put(const void* bytes, size_t count);
  File file_;
  Checksum checksum_;
  int64_t bytes_ = 0;
  int64_t missing_ = 0;  // values
};
