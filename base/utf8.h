// UTF-8, strictly: no overlong forms, no surrogates, nothing beyond U+10FFFF.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

// The number of bytes of the character that begins at text[at]; 0 if no valid character begins there.
inline size_t utf8_length(std::string_view text, size_t at) {
  auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  unsigned lead = byte(at), second = byte(at + 1);
  auto continues = [&](size_t i) { return (byte(at + i) & 0xc0) == 0x80; };
  if (at >= text.size()) return 0;
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return continues(1) ? 2 : 0;
  if (lead >= 0xe0 && lead <= 0xef) {
    if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f)) return 0;  // overlong; surrogate
    return continues(1) && continues(2) ? 3 : 0;
  }
  if (lead >= 0xf0 && lead <= 0xf4) {
    if ((lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f)) return 0;  // overlong; beyond U+10FFFF
    return continues(1) && continues(2) && continues(3) ? 4 : 0;
  }
  return 0;
}

inline bool is_utf8(std::string_view text) {
  size_t at = 0;
  while (size_t length = utf8_length(text, at)) at += length;
  return at == text.size();
}

// The mark that some editors put before a text (BOM); it is not part of the text.
inline constexpr std::string_view UTF8_MARK = "\xef\xbb\xbf";

inline bool is_utf8_continuation(char c) { return (c & 0xc0) == 0x80; }  // a byte of a character other than its first

// The text with every byte that belongs to no character replaced by U+FFFD, as terminals and JSON need it.
inline constexpr const char* UTF8_REPLACEMENT = "\xef\xbf\xbd";
inline std::string valid_utf8(std::string_view text) {
  std::string valid;
  for (size_t i = 0, length; i < text.size(); i += length ? length : 1) {
    length = utf8_length(text, i);
    valid += length ? text.substr(i, length) : UTF8_REPLACEMENT;
  }
  return valid;
}

// The text's bytes without an incomplete character at its end: up to 3, the first of which announces more.
inline size_t utf8_complete(std::string_view text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); back++) {
    auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if (is_utf8_continuation(text[text.size() - back])) continue;
    return text.size() - (byte >= 0xc0 && back < (byte >= 0xf0 ? 4u : byte >= 0xe0 ? 3u : 2u) ? back : 0);
  }
  return text.size();
}

inline void utf8_append(std::string& text, unsigned code_point) {  // code_point: below U+10000, not a surrogate
  if (code_point < 0x80) {
    text += char(code_point);
  } else if (code_point < 0x800) {
    text += char(0xc0 | code_point >> 6);
    text += char(0x80 | (code_point & 0x3f));
  } else {
    text += char(0xe0 | code_point >> 12);
    text += char(0x80 | (code_point >> 6 & 0x3f));
    text += char(0x80 | (code_point & 0x3f));
  }
}
