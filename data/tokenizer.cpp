#include "data/tokenizer.h"

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

std::unique_ptr<Tokenizer> open_tokenizer(TokenizerKind kind, const std::string& dir) {
  if (kind == TokenizerKind::bytes) return std::make_unique<ByteTokenizer>();
  return std::make_unique<Gpt2Tokenizer>(dir);
}
