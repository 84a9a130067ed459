#include "data/tokenizer.h"

#include <algorithm>
#include <climits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"
#include "data/gpt2_bpe.h"

namespace {

class ByteTokenizer : public Tokenizer {
 public:
  std::vector<int> encode(const std::string& text) const override {
    std::vector<int> tokens;
    for (unsigned char byte : text) tokens.push_back(byte);
    return tokens;
  }
  std::string decode(const std::vector<int>& tokens) const override {
    std::string text;
    for (int token : tokens) {
      if (token >= 0 && token < 256) text += char(token);
      else text += UTF8_REPLACEMENT;
    }
    return text;
  }
  int vocab() const override { return 256; }
  int end_of_text() const override { return -1; }
};

}  // namespace

bool Vocabulary::differs(const Vocabulary& other) const {
  if (!known() || !other.known()) return false;
  if (tokens > 0 && other.tokens > 0 && tokens != other.tokens) return true;
  if (end_of_text >= 0 && other.end_of_text >= 0 && end_of_text != other.end_of_text) return true;
  if (!crc32.empty() && !other.crc32.empty()) return crc32 != other.crc32;
  return name != other.name && !name.ends_with("/" + other.name) && !other.name.ends_with("/" + name);  // older: a path
}

std::string Vocabulary::text() const {
  std::string said = shortened(name);
  if (tokens > 0) said += format(", %d tokens", tokens);
  if (end_of_text >= 0) said += format(", %d between documents", end_of_text);
  if (!crc32.empty()) said += ", CRC-32 " + shortened(crc32);
  return said;
}

Vocabulary vocabulary_in(const nlohmann::json& root, const char* what, const std::string& path) {
  auto text = [&](const char* key) {
    return root.contains(key) && root[key].is_string() ? std::string(root[key]) : "";
  };
  auto number = [&](const char* key, int64_t absent) {
    if (!root.contains(key) || root[key].is_null()) return absent;
    if (!root[key].is_number_unsigned() || root[key].get<uint64_t>() > uint64_t(INT64_MAX))
      user_error("%s: \"%s\" must be a whole number  [%s]", what, key, path.c_str());
    return root[key].get<int64_t>();
  };
  Vocabulary found{text("tokenizer"), 0, text("crc32"), int(std::min<int64_t>(number("end_of_text", -1), INT_MAX))};
  int64_t tokens = number("vocab", found.name == "bytes" ? 256 : 0);
  if (tokens <= 1 << 16) found.tokens = int(tokens);
  return found;
}

std::unique_ptr<Tokenizer> open_tokenizer(TokenizerKind kind, const std::string& dir) {
  if (kind == TokenizerKind::bytes) return std::make_unique<ByteTokenizer>();
  return std::make_unique<Gpt2Tokenizer>(dir);
}
