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

// An array that a file is to hold or must hold, and where its values are in memory: rows `stride` elements apart.
struct ArrayView {
  std::string name;
  std::vector<int64_t> shape;
  const float* values = nullptr;  // where they are to be written from
  int64_t stride = 0;
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
  SafetensorsWriter(const std::string& path, const std::vector<ArrayView>& arrays);  // their names and shapes
  void write(const float* values, int64_t count);  // the next values, in any pieces
  void write(const ArrayView& array);              // the next array, from where its values are
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
