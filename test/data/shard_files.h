// Shards and label files for tests, in a folder of their own.
#pragma once
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "data/shards.h"
#include "test/support/temp_dir.h"

struct Header {
  int magic = 20240520, version = 1, count = -1;
};

inline std::string shard_bytes(const std::vector<int>& tokens, Header h = {}) {
  int32_t header[256] = {h.magic, h.version, h.count == -1 ? int32_t(tokens.size()) : h.count};
  std::string bytes(reinterpret_cast<char*>(header), sizeof header);
  for (int token : tokens) {
    bytes += char(token & 255);
    bytes += char(token >> 8);
  }
  return bytes;
}

inline std::vector<int> numbers(int count, int first = 0) {  // first, first + 1, ...
  std::vector<int> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

struct ShardFiles : testing::Test {
  TempDir dir;
  // A label file with one uint16 for each value, or with K float32.
  template <class T> std::string add_labels(const std::string& name, const std::vector<T>& values, int K = 1) {
    bool tokens = sizeof(T) == 2;
    int32_t header[256] = {20261101, 1, int32_t(values.size()) / K, tokens ? 1 : 2, K};
    write_file(dir / name, std::string(reinterpret_cast<char*>(header), sizeof header) +
                               std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)));
    return dir / name;
  }
  std::string add(const std::string& name, const std::vector<int>& tokens, Header header = {}) {
    write_file(dir / name, shard_bytes(tokens, header));
    return dir / name;
  }
  std::vector<Shard> open(const std::vector<std::string>& names, int vocab = 65536) {
    std::vector<std::string> paths;
    for (const std::string& name : names) paths.push_back(dir / name);
    return open_shards(paths, vocab, "data.train");
  }
};
