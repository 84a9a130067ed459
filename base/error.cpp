#include "base/error.h"

#include <cstdio>

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

void warn(const char* fmt, ...) {
  va_list args;
  va_start(args, fmt);
  std::string text = vformat(fmt, args);
  va_end(args);
  std::fprintf(stderr, "warning: %s\n", printable(text).c_str());
}
