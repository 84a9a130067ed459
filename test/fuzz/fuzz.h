// For the fuzz targets of the readers of untrusted bytes: libFuzzer calls LLVMFuzzerTestOneInput with generated
// inputs. A bad input must give a UserError or a Failure; a sanitizer's report or an exception of another type ends the
// program and names the input.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"

// A file in memory with these bytes, which exists while the object lives.
class MemoryFile {
 public:
  MemoryFile(const uint8_t* bytes, size_t size) : fd_(memfd_create("fuzz", 0)) {
    if (fd_ < 0 || (size > 0 && ::write(fd_, bytes, size) != ssize_t(size))) std::abort();
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

template <class F> int expect_user_errors_only(F f) {
  try {
    f();
  } catch (const UserError&) {
  } catch (const Failure&) {
  }
  return 0;
}
