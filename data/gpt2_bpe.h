// GPT-2's byte-level BPE over vocabulary files as those that are published with GPT-2; tokenizer.h has the contract.
// Text is cut into pieces (words with their leading space, numbers, punctuation, white space). The bytes of a piece are
// merged pair by pair: each time the pair that comes first in the list of merges, all its occurrences from left to
// right.
#pragma once
#include <climits>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/tokenizer.h"

inline constexpr std::string_view END_OF_TEXT = "<|endoftext|>";  // a token of its own, between documents

class Gpt2Tokenizer : public Tokenizer {
 public:
  // most: bytes of a text, as a test may lower it.
  explicit Gpt2Tokenizer(const std::string& dir, size_t most = INT_MAX);
  std::vector<int> encode(const std::string& text) const override;
  std::string decode(const std::vector<int>& tokens) const override;
  int vocab() const override { return int(bytes_of_.size()); }
  int end_of_text() const override { return end_of_text_; }
  std::string warning() const override { return warning_; }
  Vocabulary vocabulary() const override;

 private:
  struct Merge {
    int rank, token;
  };
  using Ids = std::unordered_map<std::string, int>;
  void add_to_checksum(std::string_view line);
  Ids load_vocabulary(const std::string& path);
  void load_merges(const std::string& path, const std::string& vocabulary_path, const Ids& ids);
  std::string differences(const std::string& tokenizer_json, const Ids& ids) const;
  void merge_piece(std::string_view piece, std::vector<int>& out /* += */) const;

  size_t most_;
  std::vector<std::string> bytes_of_;  // [vocab] the bytes of each token
  int token_of_byte_[256];
  std::unordered_map<uint64_t, Merge> merges_;  // (left token << 32 | right token)
  int end_of_text_ = -1;
  std::string warning_;
  uint32_t crc32_ = 0;  // of the tokens by number and then the merges, a line each, however the files write them
};

// The paths of the vocabulary and the merges in a folder, under either name; a user_error if one is missing.
struct Gpt2Files {
  std::string vocabulary, merges;
};
Gpt2Files gpt2_files(const std::string& dir);
bool has_gpt2_files(const std::string& dir);

// The pieces into which GPT-2 cuts valid UTF-8 text, in order; joined they are the text. A user_error without PCRE2.
std::vector<std::string_view> split_gpt2(std::string_view text);
