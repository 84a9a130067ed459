// The two ways something can end badly, and how each is said.
// user_error(): the user can fix it (config, data, memory, flags): exit 2. failure(): something broke (device, disk):
// exit 1. Both take printf formats and throw; main() prints the text and exits. Texts name the key or file, the value
// found, what is allowed and the fix.
#pragma once
#include <cstdarg>
#include <cstdio>
#include <stdexcept>
#include <string>

struct UserError : std::runtime_error { using std::runtime_error::runtime_error; };
struct Failure : std::runtime_error { using std::runtime_error::runtime_error; };

inline std::string vformat(const char* fmt, va_list args) {
  va_list copy;
  va_copy(copy, args);
  int length = std::vsnprintf(nullptr, 0, fmt, copy);
  va_end(copy);
  std::string text(length > 0 ? length : 0, '\0');
  if (length > 0) std::vsnprintf(text.data(), text.size() + 1, fmt, args);
  return text;
}

// std::format for C++20 compilers that lack it (g++ 11 and 12).
__attribute__((format(printf, 1, 2))) inline std::string format(const char* fmt, ...) {
  va_list args;
  va_start(args, fmt);
  std::string text = vformat(fmt, args);
  va_end(args);
  return text;
}

[[noreturn]] __attribute__((format(printf, 1, 2))) inline void user_error(const char* fmt, ...) {
  va_list args;
  va_start(args, fmt);
  std::string text = vformat(fmt, args);
  va_end(args);
  throw UserError(text);
}

[[noreturn]] __attribute__((format(printf, 1, 2))) inline void failure(const char* fmt, ...) {
  va_list args;
  va_start(args, fmt);
  std::string text = vformat(fmt, args);
  va_end(args);
  throw Failure(text);
}
