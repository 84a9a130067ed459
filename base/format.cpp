#include "base/format.h"

#include <cstdio>

std::string vformat(const char* fmt, va_list args) {
  va_list copy;
  va_copy(copy, args);
  int length = std::vsnprintf(nullptr, 0, fmt, copy);
  va_end(copy);
  std::string text(length > 0 ? length : 0, '\0');
  if (length > 0) std::vsnprintf(text.data(), text.size() + 1, fmt, args);
  return text;
}

std::string format(const char* fmt, ...) {
  va_list args;
  va_start(args, fmt);
  std::string text = vformat(fmt, args);
  va_end(args);
  return text;
}

// The bytes of the control character at text[i], or 0: one of ASCII, or U+0080 to U+009F in UTF-8.
static size_t control_bytes(std::string_view text, size_t i) {
  auto byte = [&](size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0; };
  if (byte(i) < 32 || byte(i) == 127) return 1;
  return byte(i) == 0xC2 && byte(i + 1) >= 0x80 && byte(i + 1) < 0xA0 ? 2 : 0;
}

bool has_control_characters(std::string_view text) {
  for (size_t i = 0; i < text.size(); i++)
    if (control_bytes(text, i) > 0) return true;
  return false;
}

std::string printable(std::string_view text) {
  std::string shown;
  size_t escaped = 0;  // bytes still to be escaped
  for (size_t i = 0; i < text.size(); i++) {
    if (escaped == 0 && text[i] != '\n') escaped = control_bytes(text, i);
    if (escaped == 0) shown += text[i];
    else shown += format("\\x%02x", static_cast<unsigned char>(text[i])), escaped--;
  }
  return shown;
}
