#include "data/tokenizer.h"

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

std::unique_ptr<Tokenizer> open_tokenizer(TokenizerKind kind, const std::string& dir) {
  if (kind == TokenizerKind::bytes) return std::make_unique<ByteTokenizer>();
  return std::make_unique<Gpt2Tokenizer>(dir);
}
