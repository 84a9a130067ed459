#include "data/encode.h"

#include <algorithm>
#include <climits>
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

// The last place where a piece or <|endoftext|> surely ends, whatever follows the text; 0 if there is none. For text in
// which safe_cut() finds no place: it costs as much as splitting the text.
static size_t piece_cut(std::string_view text) {
  constexpr size_t LOOKED_AT = 8 + END_OF_TEXT.size();  // two characters after a piece; what may become <|endoftext|>
  size_t end = text.size() < LOOKED_AT ? 0 : text.size() - LOOKED_AT, marker = text.rfind(END_OF_TEXT);
  size_t cut = marker == text.npos ? 0 : marker + END_OF_TEXT.size();
  for (size_t at = cut; at < end;) {
    cut = at;
    size_t valid = at;
    while (size_t length = utf8_length(text, valid)) valid += length;
    if (valid == at) {  // a run of bytes that are not UTF-8 is a piece
      while (at < text.size() && !utf8_length(text, at)) at++;
      continue;
    }
    for (std::string_view piece : split_gpt2(text.substr(at, valid - at)))
      if ((at += piece.size()) <= end) cut = at;
  }
  return cut;
}

void encode_documents(const Tokenizer& tokenizer, std::FILE* in, std::FILE* out, size_t block, size_t most) {
  if (tokenizer.end_of_text() < 0 || tokenizer.vocab() > 1 << 16)
    user_error(
        "--encode: the vocabulary must have <|endoftext|>, the token before each document, and at most 65536 tokens; "
        "it has %d%s",
        tokenizer.vocab(), tokenizer.end_of_text() < 0 ? ", without <|endoftext|>" : "");
  std::string text(UTF8_MARK.size(), '\0');
  text.resize(std::fread(text.data(), 1, text.size(), in));
  if (text == UTF8_MARK) text.clear();
  std::vector<uint16_t> tokens;
  bool begins = true;  // the next token is the first of a document
  size_t cut = 0;
  for (bool last = false; !last;) {
    size_t have = text.size(), more = cut > 0 ? block : std::max(block, have);  // doubled until there is a cut
    text.resize(have + more);
    text.resize(have + std::fread(&text[have], 1, more, in));
    if (std::ferror(in)) failure("standard input cannot be read");
    last = text.size() < have + more;
    cut = last ? text.size() : safe_cut(text);
    if (cut == 0 && !last) cut = piece_cut(text);
    if (cut == 0 && text.size() > most)
      user_error(
          "--encode: %zu bytes of text have no place where GPT-2's pattern splits them, such as a space or a digit "
          "behind a letter; at most %zu are possible: divide the text into lines",
          text.size(), most);
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
