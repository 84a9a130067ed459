// Token shards, the files that training and evaluation read, in the format in which FineWeb is published for GPT-2
// trainers: a header of 256 int32 ([0] = 20240520, [1] = 1, [2] = number of tokens), then that many uint16 tokens,
// little-endian.
// open_shards() finds, sorts and validates the files once, at the start: a wrong name, header or size is a user_error
// there, before any memory is allocated from a file's counts. Tokens are checked as they are read, and the first few of
// every shard also at the start, so that a wrong vocabulary shows at once.
// Window w of a shard has its tokens [wT, wT + T) as inputs and [wT + 1, wT + T + 1) as targets. Windows never cross a
// shard's end and are numbered through the shards in order. A shard may be too short for a window if another has one.
// Beside a shard X.bin there may be X.json, {"tokens": N, "bytes": M, ...}: the shard's tokens, and the bytes of text
// from which they were made.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

struct OpenFile {  // closes its descriptor with the last Shard that refers to it
  explicit OpenFile(int descriptor) : fd(descriptor) {}
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  const int fd;
};

struct Shard {
  std::string path;
  int64_t tokens = 0;
  std::shared_ptr<const OpenFile> file;  // opened once, so the file that was validated is the one that is read
  int64_t text_bytes = 0;                // from X.json; 0: unknown
};

// patterns: file names or glob(7) patterns, which leave out names in .json. Returns all files sorted by name (byte
// order, the same on every machine).
// key ("data.train") is the setting's name in error texts.
std::vector<Shard> open_shards(const std::vector<std::string>& patterns, int vocab, const std::string& key);

// Sets text_bytes of each shard that has an X.json. Returns a warning for each of these files that cannot be used.
std::vector<std::string> read_text_bytes(std::vector<Shard>& shards);

// Copies are cheap and share the files; read() may be called from several threads.
class WindowReader {
 public:
  WindowReader(std::vector<Shard> shards, int T, int vocab, std::string key = "data");
  int64_t windows() const { return first_window_.back(); }
  int T() const { return T_; }
  size_t shard_of(int64_t window) const;  // the number of the shard that holds it
  // Writes inputs[T - skip] and targets[T - skip], without the first `skip` of the window. A user_error if a token is >=
  // vocab.
  void read(int64_t window, int* inputs /* = */, int* targets /* = */, int skip = 0) const;

 private:
  std::vector<Shard> shards_;
  std::vector<int64_t> first_window_;  // [shards + 1], first_window_[i] = windows before shard i
  int T_, vocab_;
  std::string key_;
};
