#include "base/error.h"

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

// The text without what a terminal would obey: text of a file or a user may be in it.
static std::string printable(const std::string& text) {
  std::string shown;
  for (char c : text)
    if ((static_cast<unsigned char>(c) < 32 && c != '\n') || c == 127) shown += format("\\x%02x", c);
    else shown += c;
  return shown;
}

void user_error(const char* fmt, ...) {
  va_list args;
  va_start(args, fmt);
  std::string text = vformat(fmt, args);
  va_end(args);
  throw UserError(printable(text));
}

void failure(const char* fmt, ...) {
  va_list args;
  va_start(args, fmt);
  std::string text = vformat(fmt, args);
  va_end(args);
  throw Failure(printable(text));
}
