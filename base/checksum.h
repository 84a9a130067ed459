// XXH64 (xxhash.com), seed 0: 64 bits over any number of bytes, as fast as memory can be read. It detects damage, not
// forgery. `xxhsum -H64 FILE` prints the same sixteen digits.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

class Checksum {
 public:
  void add(const void* bytes, size_t count);  // the next bytes; how they are split over calls does not matter
  uint64_t value() const;                     // of all bytes added so far
  std::string text() const;                   // value() as 16 hexadecimal digits

 private:
  uint64_t lanes_[4] = {0x60ea27eeadc0b5d6, 0xc2b2ae3d27d4eb4f, 0, 0x61c8864e7a143579};
  unsigned char pending_[32];  // the bytes that do not fill a stripe yet: total_ % 32 of them
  uint64_t total_ = 0;
};

inline std::string checksum_text(std::string_view bytes) {  // 16 hexadecimal digits, as are the two below
  Checksum sum;
  sum.add(bytes.data(), bytes.size());
  return sum.text();
}
std::string file_checksum(const std::string& path);  // a file that cannot be opened is a user_error
// The checksum of 65 blocks of 4 KiB spread evenly from the first to the last (of the whole file up to 256 KiB), so it
// takes no longer for a larger file. It detects a file that was made anew from something else, but not every changed
// byte. Errors as file_checksum()'s.
std::string sampled_checksum(const std::string& path);
