// The two kinds of error.
// user_error(): the user can fix it (config, data, memory, flags): exit 2. failure(): something broke (device, disk):
// exit 1. Both take printf formats and throw, with control characters but \n escaped; main() prints the text and exits.
// The text names the key or file, the value found, what is allowed and the fix. warn() prints a line to standard error
// and returns.
#pragma once
#include <stdexcept>

#include "base/format.h"

struct UserError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] __attribute__((format(printf, 1, 2))) void user_error(const char* fmt, ...);
[[noreturn]] __attribute__((format(printf, 1, 2))) void failure(const char* fmt, ...);
__attribute__((format(printf, 1, 2))) void warn(const char* fmt, ...);  // "warning: TEXT"
