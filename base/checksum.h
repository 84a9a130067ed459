// XXH64 (xxhash.com), seed 0: 64 bits over any number of bytes, as fast as memory is read. It finds damage, not
// forgery. `xxhsum -H64 FILE` prints the same sixteen digits.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

class Checksum {
 public:
  void add(const void* bytes, size_t count);  // in any pieces
  uint64_t value() const;                     // of what was added so far
  std::string text() const;                   // value() as 16 hexadecimal digits

 private:
  uint64_t lanes_[4] = {0x60ea27eeadc0b5d6, 0xc2b2ae3d27d4eb4f, 0, 0x61c8864e7a143579};
  unsigned char pending_[32];  // what does not fill a stripe yet: total_ % 32 bytes
  uint64_t total_ = 0;
};

inline std::string checksum_text(std::string_view bytes) {
  Checksum sum;
  sum.add(bytes.data(), bytes.size());
  return sum.text();
}
std::string file_checksum(const std::string& path);  // a file that cannot be read is a user_error
// Of 65 blocks of 4 KB, from the first to the last of the file: at once, however large it is. It finds that a file was
// made anew from something else, not every byte that has changed.
std::string sampled_checksum(const std::string& path);
