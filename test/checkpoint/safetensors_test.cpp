// safetensors: the written bytes follow the format and read back in any pieces; every broken file is refused with its
// name.
#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "test/support/temp_dir.h"

using namespace std::string_literals;

static std::string with_length(const std::string& header, const std::string& data = "") {
  uint64_t length = header.size();
  return std::string(reinterpret_cast<char*>(&length), 8) + header + data;
}

// The entry of a tensor in the header.
static std::string tensor(const char* name, const char* shape, const char* offsets) {
  return format(R"("%s":{"dtype":"F32","shape":%s,"data_offsets":%s})", name, shape, offsets);
}

struct Safetensors : testing::Test {
  TempDir dir;
  std::string path = dir / "t.safetensors";
  void write_tensors(const std::vector<ArrayView>& tensors, const std::vector<float>& values) {
    SafetensorsWriter writer(path, tensors);
    writer.write(values.data(), int64_t(values.size()));
    writer.finish();
  }
  std::string error(const std::string& bytes) {
    write_file(path, bytes);
    std::string text = error_of([&] { SafetensorsReader reader(path); });
    std::string begin = "user: safetensors: ", end = "  [" + path + "]";
    if (text.rfind(begin, 0) != 0) return text;
    size_t at = text.rfind(end);
    return at == std::string::npos ? text : text.substr(begin.size(), at - begin.size());
  }
  std::string header_error(const std::string& header, size_t data_bytes) {
    return error(with_length(header, std::string(data_bytes, '\1')));
  }
  std::string tensor_error(const char* shape, const char* offsets, size_t data_bytes) {
    return header_error("{" + tensor("x", shape, offsets) + "}", data_bytes);
  }
};

TEST_F(Safetensors, WriterWritesTheFormat) {
  SafetensorsWriter writer(path, {{"wte.weight", {2, 3}}, {"a\"b", {}}, {"empty", {0, 4}}});
  const float values[] = {1, -2, 3.5f, 0, 1e-40f, 6, 7};
  writer.write(values, 2);
  writer.write(values + 2, 5);
  writer.finish();
  std::string header =
      R"({"__metadata__":{"format":"pt"},"wte.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("a\"b":{"dtype":"F32","shape":[],"data_offsets":[24,28]},)"
      R"("empty":{"dtype":"F32","shape":[0,4],"data_offsets":[28,28]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  EXPECT_EQ(bytes_of(path), with_length(header, std::string(reinterpret_cast<const char*>(values), 28)));
}

TEST_F(Safetensors, ReadsBackInAnyPieces) {
  std::vector<float> values(100003);
  for (size_t i = 0; i < values.size(); i++) values[i] = std::sin(static_cast<float>(i));
  write_tensors({{"first", {3}}, {"second", {1000, 100}}}, values);
  SafetensorsReader reader(path);
  ASSERT_EQ(reader.tensors().size(), 2u);
  EXPECT_EQ(reader.tensors()[0].name, "first");
  EXPECT_EQ(reader.find("third"), nullptr);
  const TensorInfo* second = reader.find("second");
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(second->shape, (std::vector<int64_t>{1000, 100}));
  EXPECT_EQ(second->count, 100000);
  EXPECT_EQ(second->offset % 4, 0);
  std::vector<float> read(100000, NAN);
  reader.read(*second, 0, 7, read.data());
  reader.read(*second, 7, 99993, read.data() + 7);
  EXPECT_EQ(std::memcmp(read.data(), values.data() + 3, 400000), 0);
  EXPECT_EQ(error_of([&] { reader.read(*second, 99999, 2, read.data()); }),
            "failure: " + path + ": elements 99999 to 100000 of tensor \"second\" do not exist; it has 100000");
  EXPECT_NE(error_of([&] { reader.read(*second, -1, 2, read.data()); }), "");
}

TEST_F(Safetensors, HalfTypesBecomeFloat) {
  struct Case {
    uint16_t bits;
    float value;
  };
  auto check = [&](const char* dtype, const std::vector<Case>& cases, int copies) {
    std::string data;
    for (int i = 0; i < copies; i++)
      for (auto& c : cases) data.append(reinterpret_cast<const char*>(&c.bits), 2);
    int64_t count = static_cast<int64_t>(cases.size()) * copies;
    write_file(path, with_length(format(R"({"x":{"dtype":"%s","shape":[%ld],"data_offsets":[0,%ld]}})", dtype, count,
                                        2 * count),
                                 data));
    SafetensorsReader reader(path);
    std::vector<float> read(count);
    reader.read(reader.tensors()[0], 0, count, read.data());
    for (int64_t i = 0; i < count; i++) {
      float expected = cases[i % cases.size()].value;
      if (std::isnan(expected)) EXPECT_TRUE(std::isnan(read[i])) << dtype << i;
      else
        EXPECT_TRUE(read[i] == expected && std::signbit(read[i]) == std::signbit(expected))
            << dtype << " " << i << " " << read[i];
    }
  };
  check("F16",
        {{0x0000, 0.f},
         {0x8000, -0.f},
         {0x3C00, 1},
         {0xC000, -2},
         {0x7BFF, 65504},
         {0x0400, 0x1p-14f},
         {0x0001, 0x1p-24f},
         {0x83FF, -1023 * 0x1p-24f},
         {0x3555, 0.333251953125f},
         {0x7C00, INFINITY},
         {0xFC00, -INFINITY},
         {0x7E01, NAN}},
        1);
  check("BF16",
        {{0x0000, 0.f},
         {0x8000, -0.f},
         {0x3F80, 1},
         {0xC040, -3},
         {0x0001, 0x1p-133f},
         {0x7F80, INFINITY},
         {0x7FC0, NAN}},
        1);
  check("F16", {{0x3C00, 1}, {0x4000, 2}, {0x4200, 3}}, 50000);  // more than one chunk
}

TEST_F(Safetensors, OtherTypesAreListedButNotRead) {
  write_file(path, with_length(R"({"mask":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})", "\1\1"));
  SafetensorsReader reader(path);
  EXPECT_EQ(reader.tensors()[0].dtype, "BOOL");
  float x[2];
  EXPECT_EQ(error_of([&] { reader.read(reader.tensors()[0], 0, 2, x); }),
            "user: safetensors: tensor \"mask\" has type BOOL, but only F32, F16 and BF16 can be read  [" + path + "]");
}

TEST_F(Safetensors, HeaderMayHaveAnyOrderAndSpaces) {
  write_file(path, with_length("{ \"a\" : {\"data_offsets\":[4,8],\"shape\":[1],\"dtype\":\"F32\", \"more\":1},\n"
                               " \"b\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[0,4]}}   ",
                               "\0\0\x80?\0\0\0@"s));
  SafetensorsReader reader(path);
  ASSERT_EQ(reader.tensors().size(), 2u);
  EXPECT_EQ(reader.tensors()[0].name, "b");  // in the order of their data, not of their names
  EXPECT_EQ(reader.tensors()[1].name, "a");
  float x = 0;
  reader.read(*reader.find("a"), 0, 1, &x);
  EXPECT_EQ(x, 2);
}

TEST_F(Safetensors, BrokenFiles) {
  EXPECT_EQ(error_of([&] { SafetensorsReader reader(dir / "none"); }),
            "user: safetensors: cannot read the file: No such file or directory  [" + (dir / "none") + "]");
  EXPECT_EQ(error(""), "the file has 0 bytes, too few for a safetensors file");
  EXPECT_EQ(error("1234567"), "the file has 7 bytes, too few for a safetensors file");
  EXPECT_EQ(error(std::string(8, '\xff')),
            "the header's length is given as 18446744073709551615 bytes, but the file has 8 (and headers at "
            "most 16777216): not a safetensors file, or cut short");
  EXPECT_EQ(error(std::string("\x03\0\0\0\0\0\0\0{}", 10)),
            "the header's length is given as 3 bytes, but the file has 10 (and headers at "
            "most 16777216): not a safetensors file, or cut short");
  EXPECT_EQ(header_error("[]", 0), "the header is not a JSON object");
  EXPECT_EQ(header_error("{]", 0).rfind("not valid JSON at line 1, column 2: ", 0), 0u);
  EXPECT_EQ(header_error("", 0).rfind("not valid JSON at line 1, column 1: ", 0), 0u);
  EXPECT_EQ(header_error(R"({"__metadata__":[]})", 0), "__metadata__ is not an object");
  EXPECT_EQ(header_error(R"({"__metadata__":{"a":1}})", 0), "__metadata__ \"a\" is not text");
  EXPECT_EQ(header_error("{}", 5), "the file has 5 bytes after the last tensor");
  EXPECT_EQ(header_error(R"({"x":{},"x":{}})", 5), "the key \"x\" is given twice in one object; remove one");
  EXPECT_EQ(header_error("{\"_\":" + std::string(100000, '['), 0), "more than 32 levels of nested JSON");
}

TEST_F(Safetensors, BrokenTensors) {
  EXPECT_EQ(header_error(R"({"x":[]})", 0), "tensor \"x\" is not described by an object");
  EXPECT_EQ(header_error(R"({"x":{"shape":[1],"data_offsets":[0,4]}})", 4), "tensor \"x\" has no dtype");
  EXPECT_EQ(header_error(R"({"x":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", 4),
            "tensor \"x\" has the unknown dtype \"F31\"");
  for (auto* shape : {"[-1]", "[1.0]", "[\"1\"]", "1", "null", "[[1]]", "[9223372036854775808]"})
    EXPECT_EQ(tensor_error(shape, "[0,4]", 4), "tensor \"x\" has no shape of whole numbers");
  for (auto* offsets : {"[]", "[0]", "[0,4,8]", "[-4,0]", "[0,4.0]", "{}"})
    EXPECT_EQ(tensor_error("[1]", offsets, 4), "tensor \"x\" has no data_offsets of two whole numbers");
  EXPECT_EQ(tensor_error("[1]", "[4,0]", 4), "tensor \"x\" ends before it begins: data_offsets [4, 0]");
  EXPECT_EQ(tensor_error("[2]", "[0,8]", 7),
            "tensor \"x\" lies beyond the file's end: data_offsets [0, 8], 7 bytes of data; was the file cut short?");
  EXPECT_EQ(tensor_error("[3]", "[0,8]", 8), "tensor \"x\" takes 8 bytes of data, which does not fit F32 [3]");
  EXPECT_EQ(tensor_error("[4294967296,4294967296]", "[0,0]", 0),
            "tensor \"x\" has too many elements: shape [4294967296, 4294967296]");
  EXPECT_EQ(tensor_error("[4611686018427387904]", "[0,0]", 0),
            "tensor \"x\" takes 0 bytes of data, which does not fit F32 [4611686018427387904]");
  EXPECT_EQ(header_error("{" + tensor("x", "[1]", "[0,4]") + "," + tensor("y", "[2]", "[0,8]") + "}", 8),
            "tensor \"y\" begins at byte 0 of the data, the previous one ends at 4: they overlap");
  EXPECT_EQ(header_error("{" + tensor("x", "[1]", "[0,4]") + "," + tensor("y", "[1]", "[8,12]") + "}", 12),
            "tensor \"y\" begins at byte 8 of the data, the previous one ends at 4: they leave a gap");
  EXPECT_EQ(tensor_error("[1]", "[4,8]", 8),
            "tensor \"x\" begins at byte 4 of the data, the previous one ends at 0: they leave a gap");
  EXPECT_EQ(tensor_error("[1]", "[0,4]", 5), "the file has 1 bytes after the last tensor");
  std::string long_name(10000, 'n');
  EXPECT_LT(header_error("{\"" + long_name + "\":1}", 0).size(), 300u);
}

TEST_F(Safetensors, FileThatShrinksWhileItIsRead) {
  write_tensors({{"x", {4}}}, std::vector<float>(4));
  SafetensorsReader reader(path);
  std::filesystem::resize_file(path, reader.tensors()[0].offset + 8);
  float x[4];
  EXPECT_EQ(error_of([&] { reader.read(reader.tensors()[0], 0, 4, x); }),
            format("failure: %s ended early, at byte %ld: was it changed while being read?", path.c_str(),
                   reader.tensors()[0].offset + 8));
}

TEST_F(Safetensors, ErrorsOfTheWriter) {
  EXPECT_EQ(error_of([] {
              SafetensorsWriter writer("/dev/full", {{"x", {1}}});
            }),
            "failure: cannot write /dev/full: No space left on device");
  EXPECT_EQ(error_of([&] { SafetensorsWriter writer(dir / "no/such", {}); }),
            "failure: cannot create " + (dir / "no/such") + ": No such file or directory");
  SafetensorsWriter writer(path, {{"x", {3}}});
  float x[4] = {};
  EXPECT_EQ(error_of([&] { writer.write(x, 4); }),
            "failure: " + path + ": cannot write 1 values more than its tensors hold");
  writer.write(x, 2);
  EXPECT_EQ(error_of([&] { writer.finish(); }), "failure: " + path + ": 1 values of its tensors were not written");
}

// For any bytes the result is a list of tensors within the file or a UserError.
TEST_F(Safetensors, UntrustedBytes) {
  write_tensors({{"wte.weight", {2, 3}}, {"h.0.ln_1.bias", {4}}}, std::vector<float>(10));
  const std::string good = bytes_of(path);
  int refused = 0;
  for (size_t n = 0; n < good.size(); n++) refused += !error(good.substr(0, n)).empty();
  EXPECT_EQ(refused, static_cast<int>(good.size()));
  std::mt19937 random(1);
  int accepted = 0;
  for (int i = 0; i < 5000; i++) {
    std::string bytes = good;
    for (int edits = 1 + random() % 3; edits > 0; edits--)
      bytes[random() % bytes.size()] = "0123456789[]{},\":-.eF\xff\0"[random() % 24];
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    write_file(path, bytes);
    std::string text = error_of([&] {
      SafetensorsReader reader(path);
      std::vector<float> values;
      for (auto& tensor : reader.tensors()) {
        ASSERT_LE(tensor.offset + tensor.count, static_cast<int64_t>(bytes.size()));
        values.resize(tensor.count);
        if (tensor.dtype == "F32" || tensor.dtype == "F16") reader.read(tensor, 0, tensor.count, values.data());
      }
    });
    EXPECT_TRUE(text.empty() || text.rfind("user: safetensors: ", 0) == 0) << text;
    accepted += text.empty();
  }
  EXPECT_GT(accepted, 100);
}
