// safetensors files: 8 bytes of header length (little-endian), a JSON header {name: {dtype, shape, data_offsets}}, the
// data.
// Reader: takes untrusted bytes. The whole header is checked when the file is opened (lengths against the file's size,
//   types, shapes against offsets, no gaps and no overlaps); an error is a user_error that names file and tensor.
//   Values are read in pieces straight into the caller's buffer: F32, F16 and BF16 become float; other types are only
//   listed.
// Writer: F32, tensors in the given order, streamed, so that no second copy of a model is needed; errors are failures.
//   The checksum is computed from the bytes given to the disk, not read back, so damage on the way is found by readers.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "base/file.h"

// An array that a file will hold or must hold, and its values in memory: rows `stride` elements apart.
struct ArrayView {
  std::string name;
  std::vector<int64_t> shape;
  const float* values = nullptr;  // only for writing
  int64_t stride = 0;
  bool transposed = false;  // the file holds columns of what is in memory as its rows
  int64_t columns() const { return shape.empty() ? 1 : shape.back(); }
  int64_t count() const;  // the product of the shape, 1 for a scalar
};

// A tensor in a file.
struct TensorInfo {
  std::string name;
  std::string dtype;  // "F32", "F16", "BF16", ...
  std::vector<int64_t> shape;
  int64_t count = 0;            // elements
  int64_t offset = 0, end = 0;  // bytes offset .. end - 1 of the file
};
std::string shape_text(const std::vector<int64_t>& shape);  // "[768, 2304]"

class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::string& path);
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in the order of their data
  const TensorInfo* find(const std::string& name) const;               // nullptr if there is no such tensor
  const std::string& path() const { return file_.path(); }
  // out[0 .. count - 1] = elements first .. first + count - 1 of the tensor, which must be one of tensors(). A
  // user_error if its type is not F32, F16 or BF16.
  void read(const TensorInfo& tensor, int64_t first, int64_t count, float* out) const;

 private:
  File file_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, size_t> index_;
};

class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::string& path, const std::vector<ArrayView>& arrays);  // their names and shapes
  void write(const float* values, int64_t count);  // the next values; how they are split over calls does not matter
  void write(const ArrayView& array);              // the next array
  void finish();                                   // after the last value: returns when the file is on the disk
  int64_t bytes() const { return bytes_; }         // the size of the file, and its XXH64
  std::string checksum() const { return checksum_.text(); }

 private:
  void put(const void* bytes, size_t count);
  File file_;
  Checksum checksum_;
  int64_t bytes_ = 0;
  int64_t missing_ = 0;  // values
};
