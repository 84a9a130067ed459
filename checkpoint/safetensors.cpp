#include "checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/json.h"

using nlohmann::json;
static_assert(std::endian::native == std::endian::little, "little-endian numbers are read without conversion");

namespace {

constexpr int64_t MAX_HEADER_BYTES = 16 << 20;  // GPT-2 XL has 60 KB; the parsed header takes several times its size

int64_t element_bytes(const std::string& dtype) {  // 0: unknown
  static const std::map<std::string, int64_t> sizes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U16", 2}, {"I16", 2}, {"F16", 2},
      {"BF16", 2}, {"U32", 4}, {"I32", 4}, {"F32", 4},     {"U64", 8},     {"I64", 8}, {"F64", 8}};
  auto found = sizes.find(dtype);
  return found == sizes.end() ? 0 : found->second;
}

std::string tensor_name(const std::string& name) { return shortened(json_quote(name), 120); }

// Reads a list of whole numbers >= 0, as shapes and offsets must be.
std::optional<std::vector<int64_t>> natural_numbers(const json& entry, const char* key) {
  auto list = entry.find(key);
  if (list == entry.end() || !list->is_array()) return std::nullopt;
  std::vector<int64_t> numbers;
  for (auto& item : *list) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() > uint64_t(INT64_MAX)) return std::nullopt;
    numbers.push_back(int64_t(item.get<uint64_t>()));
  }
  return numbers;
}

// The header's entry of one tensor, checked by itself. `data`: the offset of the file's data, `bytes`: their size.
TensorInfo parse_entry(const std::string& name, const json& entry, int64_t data, int64_t bytes,
                       const std::string& path) {
  auto bad = [&](const std::string& problem) {
    user_error("safetensors: tensor %s %s  [%s]", tensor_name(name).c_str(), problem.c_str(), path.c_str());
  };
  if (!entry.is_object()) bad("is not described by an object");
  auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string()) bad("has no dtype");
  int64_t size = element_bytes(dtype->get<std::string>());
  if (size == 0) bad("has the unknown dtype " + tensor_name(dtype->get<std::string>()));
  auto shape = natural_numbers(entry, "shape");
  if (!shape) bad("has no shape of whole numbers");
  auto offsets = natural_numbers(entry, "data_offsets");
  if (!offsets || offsets->size() != 2) bad("has no data_offsets of two whole numbers");
  int64_t begin = (*offsets)[0], end = (*offsets)[1];
  if (begin > end) bad(format("ends before it begins: data_offsets [%ld, %ld]", begin, end));
  if (end > bytes)
    bad(format("lies beyond the file's end: data_offsets [%ld, %ld], %ld bytes of data; was the file cut short?", begin,
               end, bytes));
  std::string shown_shape = shortened(shape_text(*shape));
  int64_t count = 1;
  for (int64_t length : *shape)
    if (__builtin_mul_overflow(count, length, &count)) bad("has too many elements: shape " + shown_shape);
  int64_t expected;
  if (__builtin_mul_overflow(count, size, &expected) || expected != end - begin)
    bad(format("takes %ld bytes of data, which does not fit %s %s", end - begin, dtype->get<std::string>().c_str(),
               shown_shape.c_str()));
  return {name, dtype->get<std::string>(), *shape, count, data + begin, data + end};
}

float half_to_float(uint16_t half) {
  uint32_t sign = uint32_t(half & 0x8000) << 16, exponent = half >> 10 & 31, mantissa = half & 1023;
  if (exponent == 0) {  // zero and denormals: mantissa x 2^-24
    float x = float(mantissa) * 0x1p-24f;
    return sign ? -x : x;
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000 | mantissa << 13);  // infinities and NaN
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(uint32_t(bits) << 16); }

}  // namespace

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (int64_t length : shape) append_item(text, std::to_string(length));
  return "[" + text + "]";
}

SafetensorsReader::SafetensorsReader(const std::string& path) : file_(File::open_to_read(path, "safetensors")) {
  int64_t size = file_.size();
  if (size < 8)
    user_error("safetensors: the file has %ld bytes, too few for a safetensors file  [%s]", size, path.c_str());
  uint64_t length;
  file_.read_at(&length, 8, 0);
  if (length > uint64_t(std::min(size - 8, MAX_HEADER_BYTES)))
    user_error(
        "safetensors: the header's length is given as %lu bytes, but the file has %ld (and headers at most %ld): not a "
        "safetensors file, or cut short  [%s]",
        length, size, MAX_HEADER_BYTES, path.c_str());
  std::string header(length, '\0');
  file_.read_at(header.data(), length, 8);
  json root = parse_json(header, "safetensors", path);
  if (!root.is_object()) user_error("safetensors: the header is not a JSON object  [%s]", path.c_str());

  int64_t data = 8 + int64_t(length);
  for (auto& [name, value] : root.items()) {
    if (name != "__metadata__") {
      tensors_.push_back(parse_entry(name, value, data, size - data, path));
      continue;
    }
    if (!value.is_object()) user_error("safetensors: __metadata__ is not an object  [%s]", path.c_str());
    for (auto& [key, text] : value.items())
      if (!text.is_string())
        user_error("safetensors: __metadata__ %s is not text  [%s]", tensor_name(key).c_str(), path.c_str());
  }
  // In the order of the data each tensor must begin where the previous one ends: no byte is shared or left over.
  std::stable_sort(tensors_.begin(), tensors_.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.offset, a.end) < std::pair(b.offset, b.end);
  });
  int64_t end = data;
  for (size_t i = 0; i < tensors_.size(); i++) {
    const TensorInfo& tensor = tensors_[i];
    if (tensor.offset != end)
      user_error("safetensors: tensor %s begins at byte %ld of the data, the previous one ends at %ld: they %s  [%s]",
                 tensor_name(tensor.name).c_str(), tensor.offset - data, end - data,
                 tensor.offset < end ? "overlap" : "leave a gap", path.c_str());
    end = tensor.end;
    index_[tensor.name] = i;
  }
  if (end != size)
    user_error("safetensors: the file has %ld bytes after the last tensor  [%s]", size - end, path.c_str());
}

const TensorInfo* SafetensorsReader::find(const std::string& name) const {
  auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

void SafetensorsReader::read(const TensorInfo& tensor, int64_t first, int64_t count, float* out) const {
  if (first < 0 || count < 0 || first > tensor.count - count)
    failure("%s: elements %ld to %ld of tensor %s do not exist; it has %ld", path().c_str(), first, first + count - 1,
            tensor_name(tensor.name).c_str(), tensor.count);
  if (tensor.dtype == "F32") return file_.read_at(out, count * sizeof(float), tensor.offset + first * 4);
  if (tensor.dtype != "F16" && tensor.dtype != "BF16")
    user_error("safetensors: tensor %s has type %s, but only F32, F16 and BF16 can be read  [%s]",
               tensor_name(tensor.name).c_str(), tensor.dtype.c_str(), path().c_str());
  auto convert = tensor.dtype == "F16" ? half_to_float : bf16_to_float;
  std::vector<uint16_t> chunk(std::min<int64_t>(count, 1 << 16));
  for (int64_t done = 0; done < count; done += int64_t(chunk.size())) {
    int64_t n = std::min(count - done, int64_t(chunk.size()));
    file_.read_at(chunk.data(), n * 2, tensor.offset + (first + done) * 2);
    std::transform(chunk.begin(), chunk.begin() + n, out + done, convert);
  }
}

int64_t ArrayView::count() const {
  int64_t count = 1;
  for (int64_t length : shape) count *= length;
  return count;
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, const std::vector<ArrayView>& arrays)
    : file_(File::create(path)) {
  nlohmann::ordered_json root = {{"__metadata__", {{"format", "pt"}}}};  // transformers refuses files without it
  int64_t offset = 0;
  for (const ArrayView& array : arrays) {
    int64_t end = offset + 4 * array.count();
    root[array.name] = {{"dtype", "F32"}, {"shape", array.shape}, {"data_offsets", {offset, end}}};
    missing_ += array.count();
    offset = end;
  }
  std::string header = root.dump();
  header.resize((header.size() + 7) / 8 * 8, ' ');  // so that the data are aligned
  uint64_t length = header.size();
  put(&length, 8);
  put(header.data(), header.size());
}

void SafetensorsWriter::put(const void* bytes, size_t count) {
  file_.write(bytes, count);
  checksum_.add(bytes, count);
  bytes_ += int64_t(count);
}

void SafetensorsWriter::write(const float* values, int64_t count) {
  if (count > missing_)
    failure("%s: cannot write %ld values more than its tensors hold", file_.path().c_str(), count - missing_);
  put(values, count * sizeof(float));
  missing_ -= count;
}

void SafetensorsWriter::write(const ArrayView& array) {
  int64_t columns = array.columns(), count = array.count();
  if (array.transposed) {  // 64 rows of the file at a time: they share what is read of a row in memory
    std::vector<float> rows;
    for (int64_t first = 0; first < count / columns; first += 64) {
      int64_t height = std::min<int64_t>(64, count / columns - first);
      rows.resize(height * columns);
      for (int64_t c = 0; c < columns; c++)
        for (int64_t r = 0; r < height; r++) rows[r * columns + c] = array.values[c * array.stride + first + r];
      write(rows.data(), height * columns);
    }
    return;
  }
  if (array.stride == columns || count == 0) return write(array.values, count);
  for (int64_t row = 0; row < count / columns; row++) write(array.values + row * array.stride, columns);
}

void SafetensorsWriter::finish() {
  if (missing_ != 0) failure("%s: %ld values of its tensors were not written", file_.path().c_str(), missing_);
  file_.sync();
  file_.close();
}
