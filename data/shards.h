// Token shards, the files that training and evaluation read, in the format FineWeb is published in for GPT-2 trainers:
// 256 x int32 header ([0] = 20240520, [1] = 1, [2] = number of tokens), then that many uint16 tokens, little-endian.
// open_shards() finds, sorts and validates the files once, at the start: whatever is wrong with a name, a header or a
// size is a user_error there, before anything is sized by a count from a file. Tokens are checked as they are read,
// plus the first few of every shard at the start, so that the wrong vocabulary shows at once.
// A window of T tokens is inputs [wT, wT + T) of one shard and targets one later; windows never cross a shard's end and
// are numbered through the shards in order. A shard too short for a window is fine if another one has a window.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

struct OpenFile {                        // closes its descriptor with the last Shard that refers to it
  explicit OpenFile(int descriptor) : fd(descriptor) {}
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  const int fd;
};

struct Shard {
  std::string path;
  int64_t tokens = 0;
  std::shared_ptr<const OpenFile> file;  // opened once: what was validated is what is read
};

// patterns: file names or glob(7) patterns. Returns all files sorted by name (byte order, the same on every machine).
// key ("data.train") is what errors call the setting.
std::vector<Shard> open_shards(const std::vector<std::string>& patterns, int vocab, const std::string& key);

// Copies are cheap and share the files; read() may be called from several threads.
class WindowReader {
 public:
  WindowReader(std::vector<Shard> shards, int T, int vocab, std::string key = "data");
  int64_t windows() const { return first_window_.back(); }
  int T() const { return T_; }
  void read(int64_t window, int* inputs /* = [T] */, int* targets /* = [T] */) const;  // user_error: token >= vocab

 private:
  std::vector<Shard> shards_;
  std::vector<int64_t> first_window_;    // [shards + 1], first_window_[i] = windows before shard i
  int T_, vocab_;
  std::string key_;
};
