// Token shards, the files that training and evaluation read, in the format in which FineWeb is published for GPT-2
// trainers: a header of 256 int32 ([0] = 20240520, [1] = 1, [2] = number of tokens), then that many uint16 tokens,
// little-endian.
// open_shards() finds, sorts and validates the files once, at the start: a wrong name, header or size is a user_error
// there, before any memory is allocated from a file's counts. Tokens are checked as they are read, and the first few of
// every shard also at the start, so that a wrong vocabulary shows at once.
// Window w of a shard has its tokens [wT, wT + T) as inputs and [wT + 1, wT + T + 1) as targets. Windows never cross a
// shard's end and are numbered through the shards in order. A shard may be too short for a window if another has one.
// Beside a shard X.bin there may be X.json, {"tokens": N, "bytes": M, "tokenizer": NAME, "vocab": V, "end_of_text": E,
// "crc32": C}: the shard's tokens, the bytes of text from which they were made (null: unknown), and by which tokenizer
// (Vocabulary); the last three may be missing. Other JSON of that name is left alone.
// A label file says what the positions of one shard are to predict instead of the next token: a header of 256 int32
// ([0] = 20261101, [1] = 1, [2] = number of labels, that of the shard's tokens, [3] = type, [4] = columns K), then a
// label for each token, which belongs to the position whose input that token is. Type 1: uint16 tokens, K = 1, 65535
// for nothing (so the last token of a vocabulary of 65536 cannot be a label). Type 2: K float32 values, NaN for
// nothing.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/tokenizer.h"

struct Shard {
  std::string path;
  std::string key;  // of the setting that names it, for errors
  int64_t tokens = 0;
  std::shared_ptr<const File> file;          // opened once, so the file that was validated is the one that is read
  size_t pattern = 0;                        // the number of the pattern that names it
  int64_t text_bytes = 0;                    // from X.json; 0: unknown
  Vocabulary vocabulary = {};                // from X.json
  std::shared_ptr<const Shard> labels = {};  // the label file, if it has one; `tokens` is there the number of labels
  int outputs = 0;                           // of a label file: K, or 0 for tokens
};

// patterns: file names or glob(7) patterns; names ending in .json are skipped. Returns all files sorted by name (byte
// order, the same on every machine).
// key ("data.train") is the setting's name in error texts.
std::vector<Shard> open_shards(const std::vector<std::string>& patterns, int vocab, const std::string& key);

// Finds the label files and gives one to each shard; no patterns: none. The first pattern has the labels of the first
// pattern of open_shards(), and so on; within a pattern both are sorted by name. A user_error if this leaves in doubt
// which belong together: other numbers of patterns are accepted only if both lists are sorted by name. vocab,
// outputs: of the model; labels are tokens if outputs is 0, else that many values. key: "data.labels". Files without
// any label are a user_error.
void open_labels(std::vector<Shard>& shards, const std::vector<std::string>& patterns, int vocab, int outputs,
                 const std::string& key);

// Sets text_bytes and vocabulary of each shard that has an X.json. Returns a warning for each of these files that
// cannot be used.
std::vector<std::string> read_descriptions(std::vector<Shard>& shards);

// Which tokenizer the JSON object of an X.json says. A user_error for numbers that are none; `what` begins its text.
Vocabulary vocabulary_in(const nlohmann::json& root, const char* what, const std::string& path);

// Reads the tokens and labels of all shards in order, in blocks. A user_error names file, position and value of the
// first one that is not allowed. proceed(tokens read so far) is called before each block; if it returns false, the
// reading ends. Returns the number of tokens read.
int64_t check_tokens(const std::vector<Shard>& shards, int vocab, const std::function<bool(int64_t)>& proceed);

// Windows at documents, each of which begins with the token `separator`.
struct DocumentWindows {
  int separator;
  bool within;   // the inputs of a window end before the next document
  int64_t most;  // windows
};

// Copies are cheap and share the files; read() may be called from several threads.
class WindowReader {
 public:
  WindowReader(std::vector<Shard> shards, int T, int vocab, std::string key = "data");
  // Replaces the windows by those that begin with a document, in order, the first of those that overlap. Returns how
  // many documents up to the last of these windows are too short for one.
  int64_t begin_with_documents(const DocumentWindows& documents);
  int64_t windows() const { return first_window_.back(); }
  int T() const { return T_; }
  size_t shard_of(int64_t window) const;      // the number of the shard that holds it
  int64_t first_token(int64_t window) const;  // within its shard
  bool has_windows(size_t shard) const { return first_window_[shard] < first_window_[shard + 1]; }
  bool has_labels() const { return shards_[0].labels != nullptr; }
  int outputs() const { return has_labels() ? shards_[0].labels->outputs : 0; }
  int labels(int64_t window) const;  // positions that are to predict something: T without a label file
  // Writes inputs[T - skip] and targets[T - skip], without the first `skip` of the window, and returns how many of
  // these positions are to predict something; the target of the others is -1. Where labels are values, targets are 0 or
  // -1, and values [T - skip, K] is written. A user_error if a token is >= vocab or a value infinite.
  int read(int64_t window, int* inputs /* = */, int* targets /* = */, int skip = 0,
           float* values /* = */ = nullptr) const;

 private:
  std::vector<Shard> shards_;
  std::vector<int64_t> first_window_;  // [shards + 1], first_window_[i] = windows before shard i
  std::vector<int64_t> starts_;        // of windows that begin with documents, within their shards
  int T_, vocab_;
  std::string key_;
};
