#include "base/checksum.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/file.h"

static_assert(std::endian::native == std::endian::little, "XXH64 reads little-endian numbers");

namespace {

constexpr uint64_t P1 = 0x9e3779b185ebca87, P2 = 0xc2b2ae3d27d4eb4f, P3 = 0x165667b19e3779f9, P4 = 0x85ebca77c2b2ae63,
                   P5 = 0x27d4eb2f165667c5;

template <class T> T load(const unsigned char* at) {
  T x;
  std::memcpy(&x, at, sizeof x);
  return x;
}

uint64_t round(uint64_t lane, uint64_t input) { return std::rotl(lane + input * P2, 31) * P1; }

void stripe(uint64_t (&lanes)[4], const unsigned char* at) {
  for (int i = 0; i < 4; i++) lanes[i] = round(lanes[i], load<uint64_t>(at + 8 * i));
}

}  // namespace

void Checksum::add(const void* bytes, size_t count) {
  auto* at = static_cast<const unsigned char*>(bytes);
  size_t kept = total_ % 32;
  total_ += count;
  if (kept > 0) {
    size_t taken = std::min(count, 32 - kept);
    std::memcpy(pending_ + kept, at, taken);
    at += taken;
    count -= taken;
    if (kept + taken < 32) return;
    stripe(lanes_, pending_);
  }
  for (; count >= 32; at += 32, count -= 32) stripe(lanes_, at);
  std::memcpy(pending_, at, count);
}

uint64_t Checksum::value() const {
  uint64_t sum = P5;  // plus the seed, which is 0: the start for input shorter than a stripe
  if (total_ >= 32) {
    sum = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) + std::rotl(lanes_[3], 18);
    for (uint64_t lane : lanes_) sum = (sum ^ round(0, lane)) * P1 + P4;
  }
  sum += total_;
  const unsigned char *at = pending_, *end = pending_ + total_ % 32;
  for (; end - at >= 8; at += 8) sum = std::rotl(sum ^ round(0, load<uint64_t>(at)), 27) * P1 + P4;
  if (end - at >= 4) {
    sum = std::rotl(sum ^ load<uint32_t>(at) * P1, 23) * P2 + P3;
    at += 4;
  }
  for (; at < end; at++) sum = std::rotl(sum ^ *at * P5, 11) * P1;
  sum = (sum ^ sum >> 33) * P2;
  sum = (sum ^ sum >> 29) * P3;
  return sum ^ sum >> 32;
}

std::string Checksum::text() const { return format("%016lx", value()); }

std::string file_checksum(const std::string& path) {
  File file = File::open_to_read(path, "checkpoint");
  Checksum sum;
  std::vector<char> chunk(1 << 20);
  for (int64_t at = 0, size = file.size(); at < size;) {
    auto count = std::min(size - at, int64_t(chunk.size()));
    file.read_at(chunk.data(), size_t(count), at);
    sum.add(chunk.data(), size_t(count));
    at += count;
  }
  return sum.text();
}

std::string sampled_checksum(const std::string& path) {
  constexpr int64_t BLOCK = 4096, BLOCKS = 64;
  File file = File::open_to_read(path, "checksum");
  const int64_t size = file.size(), last = std::max<int64_t>(0, size - BLOCK);
  if (size <= BLOCK * BLOCKS) return file_checksum(path);
  char block[BLOCK];
  Checksum sum;
  for (int64_t i = 0; i <= BLOCKS; i++) {
    file.read_at(block, BLOCK, last / BLOCKS * i + last % BLOCKS * i / BLOCKS);
    sum.add(block, BLOCK);
  }
  return sum.text();
}
