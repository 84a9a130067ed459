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
