#include "data/encode.h"

#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "base/utf8.h"
#include "data/gpt2_bpe.h"

// The last place where GPT-2's text can be cut without changing its tokens: before white space that follows something
// else. A piece ends there, and none looks back. 0 if there is no such place.
static size_t safe_cut(std::string_view text) {
  for (size_t end = text.size(); end > 0;) {
    size_t space = text.find_last_of(" \n", end - 1);
    size_t before = space == text.npos ? text.npos : text.find_last_not_of(" \n", space);
    if (before == text.npos) return 0;
    size_t cut = before + 1;
    size_t character = before;  // where the one before the cut begins
    while (character > 0 && cut - character < 4 && is_utf8_continuation(text[character])) character--;
    // White space of other kinds makes one piece with this one. A byte that is not UTF-8 is never in one with others.
    if (utf8_length(text, character) != cut - character ||
        split_gpt2(text.substr(character, cut + 1 - character)).size() > 1)
      return cut;
    end = character;
  }
  return 0;
}

void encode_documents(const Tokenizer& tokenizer, std::FILE* in, std::FILE* out, size_t block) {
  if (tokenizer.end_of_text() < 0 || tokenizer.vocab() > 1 << 16)
    user_error(
        "--encode: the vocabulary must have <|endoftext|>, the token before each document, and at most 65536 tokens; "
        "it has %d%s",
        tokenizer.vocab(), tokenizer.end_of_text() < 0 ? ", without <|endoftext|>" : "");
  std::string text;
  std::vector<uint16_t> tokens;
  bool begins = true;  // the next token is the first of a document
  for (bool last = false; !last;) {
    size_t have = text.size();
    text.resize(have + block);
    text.resize(have + std::fread(&text[have], 1, block, in));
    if (std::ferror(in)) failure("standard input cannot be read");
    last = text.size() < have + block;
    size_t cut = last ? text.size() : safe_cut(text);
    tokens.clear();
    for (int token : tokenizer.encode(text.substr(0, cut))) {
      bool ends = token == tokenizer.end_of_text();
      if (begins && !ends) tokens.push_back(uint16_t(tokenizer.end_of_text()));
      if (!ends) tokens.push_back(uint16_t(token));
      begins = ends;
    }
    text.erase(0, cut);
    if (!tokens.empty() && std::fwrite(tokens.data(), 2, tokens.size(), out) != tokens.size())
      failure("standard output: not everything could be written (is its disk full?)");
  }
}
