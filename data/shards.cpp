#include "data/shards.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <climits>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "base/json.h"

static_assert(std::endian::native == std::endian::little, "shards are little-endian and read without conversion");
static_assert(sizeof(off_t) == 8, "shards may be larger than 2 GB");

namespace {

constexpr int32_t FILE_VERSION = 1;
constexpr int64_t HEADER_BYTES = 256 * sizeof(int32_t);
constexpr int64_t TOKENS_CHECKED_AT_START = 1024;
constexpr uint16_t NO_LABEL = 65535;
constexpr int32_t MOST_COLUMNS = 1024;
constexpr size_t LARGEST_DESCRIPTION = 1 << 16;  // bytes of X.json

const char* const make_shards =
    "scripts/prepare_text.py makes shards from text, scripts/recall.py those of tasks, scripts/download_fineweb.py "
    "fetches FineWeb's";

struct Format {
  const char *name, *items;
  int32_t magic;
  const char* make;  // which programs write such files
};
const Format token_shard = {"token shard", "tokens", 20240520, make_shards},
             label_file = {
                 "label file", "labels", 20261101,
                 "scripts/recall.py, scripts/prepare_text.py --answer-field, scripts/passkey.py make --labels and "
                 "scripts/newton.py probe-data write label files"};

// Returns the number of bytes read, fewer than asked only at the end of the file.
int64_t read_at(const Shard& shard, void* out, int64_t bytes, int64_t offset) {
  int64_t done = 0;
  while (done < bytes) {
    ssize_t n = ::pread(shard.file->descriptor(), static_cast<char*>(out) + done, bytes - done, offset + done);
    if (n == 0) break;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      failure("%s: reading %ld bytes at %ld failed: %s", shard.path.c_str(), bytes, offset, std::strerror(errno));
    done += n;
  }
  return done;
}

// Fills values from this position on: `columns` for each.
template <class T>
void read_values(const Shard& shard, int64_t position, std::vector<T>& values, const char* what, int columns) {
  int64_t bytes = int64_t(values.size() * sizeof(T)), item = int64_t(columns * sizeof(T));
  if (read_at(shard, values.data(), bytes, HEADER_BYTES + position * item) != bytes)
    user_error("%s: %s became shorter while it was in use: %s %ld to %ld are gone; restore the file and start again",
               shard.key.c_str(), shard.path.c_str(), what, position, position + bytes / item - 1);
}

void read_tokens(const Shard& shard, int64_t position, std::vector<uint16_t>& tokens, int vocab) {
  read_values(shard, position, tokens, token_shard.items, 1);
  auto bad = std::find_if(tokens.begin(), tokens.end(), [&](uint16_t token) { return token >= vocab; });
  if (bad == tokens.end()) return;
  position += bad - tokens.begin();
  user_error(
      "%s: %s holds token %d at position %ld, but model.vocab = %d allows 0 to %d. The shard was probably made "
      "with another tokenizer: set model.vocab to its number of tokens (GPT-2: 50257, bytes: 256), or use other shards",
      shard.key.c_str(), shard.path.c_str(), int(*bad), position, vocab, vocab - 1);
}

// Reads the labels of `count` positions from this one on, and returns how many of them have one. targets [count]: the
// label, or -1 for none; of a file with values, 0 where there are some, and these are written to values [count, K].
// Both may be nullptr.
int read_labels(const Shard& labels, int64_t position, int count, int* targets, float* values, int vocab) {
  auto bad = [&](int64_t at, const char* what, const char* allowed) {
    user_error("%s: %s holds the label %s at position %ld, but %s; make the file again", labels.key.c_str(),
               labels.path.c_str(), what, position + at, allowed);
  };
  int found = 0;
  auto write = [&](int at, int target) {
    found += target >= 0;
    if (targets) targets[at] = target;
  };
  if (labels.outputs == 0) {
    std::vector<uint16_t> tokens(count);
    read_values(labels, position, tokens, label_file.items, 1);
    for (int t = 0; t < count; t++) {
      if (tokens[t] != NO_LABEL && tokens[t] >= vocab)
        bad(t, std::to_string(tokens[t]).c_str(),
            format("model.vocab = %d allows 0 to %d, and %d for none", vocab, vocab - 1, NO_LABEL).c_str());
      write(t, tokens[t] == NO_LABEL ? -1 : tokens[t]);
    }
    return found;
  }
  int K = labels.outputs;
  std::vector<float> read(size_t(count) * K);
  read_values(labels, position, read, label_file.items, K);
  for (int t = 0; t < count; t++) {
    bool any = false;
    for (int k = 0; k < K; k++) {
      float value = read[size_t(t) * K + k];
      if (std::isinf(value)) bad(t, value > 0 ? "inf" : "-inf", "a label must be a number, or NaN for none");
      any = any || !std::isnan(value);
    }
    write(t, any ? 0 : -1);
  }
  if (values) std::copy(read.begin(), read.end(), values);
  return found;
}

std::vector<std::string> expand(const std::string& pattern, const std::string& key, const Format& kind) {
  if (pattern.empty()) user_error("%s has an empty file name; name %ss (%s)", key.c_str(), kind.name, kind.make);
  struct stat status;
  if (::stat(pattern.c_str(), &status) == 0) return {pattern};  // even if the name contains * ? or [
  int missing = errno;
  glob_t matches = {};
  auto stop_at = [](const char*, int error) -> int { return error != ENOENT && error != ENOTDIR; };
  int result = ::glob(pattern.c_str(), GLOB_TILDE, stop_at, &matches);
  int error = errno;
  std::vector<std::string> paths(matches.gl_pathv, matches.gl_pathv + (result == 0 ? matches.gl_pathc : 0));
  ::globfree(&matches);
  std::erase_if(paths, [](const std::string& path) { return path.ends_with(".json"); });
  if (result == GLOB_ABORTED)
    user_error("%s = \"%s\": a folder in it cannot be read: %s", key.c_str(), pattern.c_str(), std::strerror(error));
  if (result != 0 && result != GLOB_NOMATCH)
    failure("%s = \"%s\": glob() ran out of memory", key.c_str(), pattern.c_str());
  if (paths.empty()) {
    bool wild = pattern.find_first_of("*?[") != std::string::npos;
    user_error("%s = \"%s\": %s (working directory %s); %s", key.c_str(), pattern.c_str(),
               wild ? "the pattern matches no file" : std::strerror(missing), std::filesystem::current_path().c_str(),
               kind.make);
  }
  return paths;
}

struct FoundFile {
  std::string path;
  size_t pattern;  // which one names it
};

std::vector<FoundFile> sorted_files(const std::vector<std::string>& patterns, const std::string& key,
                                    const Format& kind) {
  std::vector<FoundFile> files;
  for (size_t i = 0; i < patterns.size(); i++)
    for (const std::string& path : expand(patterns[i], key, kind))
      files.push_back({std::filesystem::path(path).lexically_normal().string(), i});
  // glob() sorts by locale, which would make the order depend on the machine.
  std::ranges::sort(files, {}, &FoundFile::path);
  auto twice = std::ranges::adjacent_find(files, {}, &FoundFile::path);
  if (twice != files.end()) user_error("%s names %s twice; remove one of the two", key.c_str(), twice->path.c_str());
  return files;
}

// Brings label files that are sorted by name into the order of the shards. A user_error names two files that would
// belong together by one order and not by the other.
void pair_with(const std::vector<Shard>& shards, std::vector<FoundFile>& labels, const char* key) {
  std::vector<size_t> written(shards.size());  // the shards' numbers, pattern by pattern
  std::iota(written.begin(), written.end(), size_t(0));
  std::ranges::stable_sort(written, {}, [&](size_t i) { return shards[i].pattern; });
  bool sorted = std::ranges::is_sorted(written) && std::ranges::is_sorted(labels, {}, &FoundFile::pattern);
  std::ranges::stable_sort(labels, {}, &FoundFile::pattern);
  bool as_many = shards[written.back()].pattern == labels.back().pattern;
  bool listed = as_many && labels.back().pattern + 1 == labels.size();  // file by file
  std::vector<FoundFile> paired(labels.size());
  for (size_t i = 0; i < written.size(); i++) {
    const Shard& shard = shards[written[i]];
    if (as_many ? shard.pattern != labels[i].pattern : !sorted)
      user_error(
          "%s: it is not clear whether %s has the labels of %s: the lists of shards and label files pair file by file "
          "(or pattern by pattern, with as many files for each); write both in the same order",
          key, labels[i].path.c_str(), shard.path.c_str());
    // A pattern pairs names that were not written side by side: is the file called after another shard?
    auto called_after = [name = std::filesystem::path(labels[i].path).filename().string()](const Shard& one) {
      return name.find(std::filesystem::path(one.path).stem().string()) != std::string::npos;
    };
    if (!listed && !called_after(shard))
      if (auto other = std::ranges::find_if(shards, called_after); other != shards.end())
        user_error(
            "%s: %s would be the labels of %s, as both are sorted by name, but is called after %s; write both as "
            "lists in the same order",
            key, labels[i].path.c_str(), shard.path.c_str(), other->path.c_str());
    paired[written[i]] = labels[i];
  }
  labels = paired;
}

// Opens a file of this kind and checks its header and size.
Shard open_file(const std::string& path, const std::string& key, const Format& kind) {
  const char *k = key.c_str(), *p = path.c_str();
  struct stat status;
  if (::stat(p, &status) != 0) user_error("%s: %s cannot be opened: %s", k, p, std::strerror(errno));
  if (S_ISDIR(status.st_mode)) user_error("%s: %s is a folder; name its files, for example \"%s/*.bin\"", k, p, p);
  if (!S_ISREG(status.st_mode)) user_error("%s: %s is not a regular file; shards are read at random positions", k, p);
  int fd = ::open(p, O_RDONLY | O_CLOEXEC);
  if (fd < 0 && errno == EMFILE)
    user_error("%s: %s cannot be opened: too many open files; raise the limit (ulimit -n) or use larger shards", k, p);
  if (fd < 0) user_error("%s: %s cannot be opened: %s; check its permissions", k, p, std::strerror(errno));
  Shard shard{path, key, 0, std::make_shared<const File>(fd, path)};
  if (::fstat(fd, &status) != 0) failure("%s: fstat failed: %s", p, std::strerror(errno));

  int32_t header[HEADER_BYTES / sizeof(int32_t)];
  int64_t size = status.st_size;
  if (size < HEADER_BYTES || read_at(shard, header, HEADER_BYTES, 0) != HEADER_BYTES)
    user_error("%s: %s has %ld bytes, too few for the %ld-byte header: it is cut short or not a %s; %s", k, p, size,
               HEADER_BYTES, kind.name, kind.make);
  if (header[0] != kind.magic)
    user_error("%s: %s is not a %s: it begins with %d where one has %d; %s", k, p, kind.name, header[0], kind.magic,
               kind.make);
  if (header[1] != FILE_VERSION)
    user_error("%s: %s is a %s of version %d, but only version %d can be read; make it again (%s)", k, p, kind.name,
               header[1], FILE_VERSION, kind.make);
  shard.tokens = header[2];
  int64_t item_bytes = 2;
  if (&kind == &label_file) {
    bool tokens = header[3] == 1 && header[4] == 1,
         values = header[3] == 2 && header[4] >= 1 && header[4] <= MOST_COLUMNS;
    if (!tokens && !values)
      user_error(
          "%s: %s has a damaged header: type %d with %d columns; possible are type 1 (uint16) with 1 and type 2 "
          "(float32) with 1 to %d; make the file again",
          k, p, header[3], header[4], MOST_COLUMNS);
    if (values) shard.outputs = header[4], item_bytes = int64_t(shard.outputs) * 4;
  }
  if (shard.tokens < 0)
    user_error("%s: %s has a damaged header: it says %d %s; make or download the file again", k, p, header[2],
               kind.items);
  int64_t expected = HEADER_BYTES + shard.tokens * item_bytes;
  if (size < expected)
    user_error(
        "%s: %s is cut short: its header says %d %s, %ld bytes in all, but the file has %ld (%ld "
        "missing); download or copy it again",
        k, p, header[2], kind.items, expected, size, expected - size);
  if (size > expected)
    user_error(
        "%s: %s is too long: its header says %d %s, %ld bytes in all, but the file has %ld (%ld too "
        "many); download or make it again",
        k, p, header[2], kind.items, expected, size, size - expected);
  return shard;
}

// Whether this text may be an X.json, perhaps a damaged one, and no other JSON that has a shard's name by chance.
bool is_description(const std::string& text, const std::string& path) {
  try {
    nlohmann::json root = parse_json(text, "bytes of text", path);
    return root.is_object() && (root.contains("tokens") || root.contains("bytes"));
  } catch (const UserError&) {
    return text.find("\"tokens\"") != text.npos || std::string_view("{\"tokens\"").starts_with(text);
  }
}

int64_t whole_number(const nlohmann::json& root, const char* key, const char* what, const std::string& path) {
  if (!root.contains(key) || !root[key].is_number_unsigned() || root[key].get<uint64_t>() > uint64_t(INT64_MAX))
    user_error("%s: \"%s\" must be a whole number  [%s]", what, key, path.c_str());
  return root[key].get<int64_t>();
}

// Takes bytes and vocabulary from the text of an X.json; a user_error says what is wrong with it.
void describe(Shard& shard, const std::string& text, const std::string& path) {
  const char* what = "bytes of text";
  nlohmann::json root = parse_json(text, what, path);
  int64_t tokens = shard.tokens;
  auto integer = [&](const char* key) { return whole_number(root, key, what, path); };
  if (integer("tokens") != tokens)
    user_error("%s: \"tokens\" is %ld, but the shard has %ld  [%s]", what, integer("tokens"), tokens, path.c_str());
  int64_t most = 1024 * tokens;                                      // GPT-2's longest token has 128 bytes
  bool unknown = root.contains("bytes") && root["bytes"].is_null();  // its text was changed before it was counted
  if (!unknown && (integer("bytes") < 1 || integer("bytes") > most))
    user_error("%s: \"bytes\" is %ld, but must be 1 to %ld for %ld tokens  [%s]", what, integer("bytes"), most, tokens,
               path.c_str());
  shard.text_bytes = unknown ? 0 : integer("bytes");
  shard.vocabulary = vocabulary_in(root, what, path);
}

}  // namespace

Vocabulary vocabulary_in(const nlohmann::json& root, const char* what, const std::string& path) {
  auto text = [&](const char* key) {
    return root.contains(key) && root[key].is_string() ? std::string(root[key]) : "";
  };
  auto number = [&](const char* key, int64_t absent) {
    return root.contains(key) && !root[key].is_null() ? whole_number(root, key, what, path) : absent;
  };
  Vocabulary found{text("tokenizer"), 0, text("crc32"), int(std::min<int64_t>(number("end_of_text", -1), INT_MAX))};
  int64_t tokens = number("vocab", found.name == "bytes" ? 256 : 0);
  if (tokens <= 1 << 16) found.tokens = int(tokens);
  return found;
}

std::vector<Shard> open_shards(const std::vector<std::string>& patterns, int vocab, const std::string& key) {
  if (patterns.empty()) user_error("%s names no files; give token shards (%s)", key.c_str(), make_shards);
  std::vector<Shard> shards;
  for (const auto& [path, pattern] : sorted_files(patterns, key, token_shard)) {
    shards.push_back(open_file(path, key, token_shard));
    shards.back().pattern = pattern;
    std::vector<uint16_t> first(std::min(shards.back().tokens, TOKENS_CHECKED_AT_START));
    read_tokens(shards.back(), 0, first, vocab);
  }
  return shards;
}

void open_labels(std::vector<Shard>& shards, const std::vector<std::string>& patterns, int vocab, int outputs,
                 const std::string& key) {
  if (patterns.empty()) return;
  std::vector<FoundFile> files = sorted_files(patterns, key, label_file);
  if (files.size() != shards.size())
    user_error("%s: %zu label file%s for %zu token shard%s; give one for each, in the same order", key.c_str(),
               files.size(), files.size() == 1 ? "" : "s", shards.size(), shards.size() == 1 ? "" : "s");
  pair_with(shards, files, key.c_str());
  bool any = false;
  for (size_t i = 0; i < files.size(); i++) {
    Shard labels = open_file(files[i].path, key, label_file);
    const char *k = key.c_str(), *p = files[i].path.c_str();
    if (labels.outputs == 0 && outputs > 0)
      user_error(
          "%s: %s holds tokens, but model.head.outputs = %d needs float32 values; use other labels, or "
          "model.head.outputs = 0",
          k, p, outputs);
    if (labels.outputs != outputs)
      user_error(
          "%s: %s holds %d value%s for each token, but model.head.outputs = %d; set that to %d, or use other labels", k,
          p, labels.outputs, labels.outputs == 1 ? "" : "s", outputs, labels.outputs);
    if (labels.tokens != shards[i].tokens)
      user_error("%s: %s has %ld labels, but its shard, %s, has %ld tokens; make it again from that shard", k, p,
                 labels.tokens, shards[i].path.c_str(), shards[i].tokens);
    any |= read_labels(labels, 0, int(std::min(labels.tokens, TOKENS_CHECKED_AT_START)), nullptr, nullptr, vocab) > 0;
    shards[i].labels = std::make_shared<const Shard>(labels);
  }
  constexpr int64_t block = 1 << 16;
  for (const Shard& shard : shards)
    for (int64_t at = 0; at < shard.tokens && !any; at += block)
      any = read_labels(*shard.labels, at, int(std::min(block, shard.tokens - at)), nullptr, nullptr, vocab) > 0;
  if (!any)
    user_error("%s: there is no label in %s%s; use other labels", key.c_str(), files[0].path.c_str(),
               files.size() > 1 ? " and the others" : "");
}

std::vector<std::string> read_descriptions(std::vector<Shard>& shards) {
  std::vector<std::string> warnings;
  for (Shard& shard : shards) {
    std::string path = std::filesystem::path(shard.path).replace_extension(".json").string();
    if (path == shard.path || !is_there(path)) continue;
    std::error_code error;
    if (std::filesystem::file_size(path, error) > LARGEST_DESCRIPTION && !error) continue;
    try {
      std::string text = read_utf8_file(path, "bytes of text", LARGEST_DESCRIPTION);
      if (is_description(text, path)) describe(shard, text, path);
    } catch (const std::runtime_error& problem) {
      warnings.push_back(std::string("bits per byte is unknown; make the shard again: ") + problem.what());
    }
  }
  return warnings;
}

int64_t check_tokens(const std::vector<Shard>& shards, int vocab, const std::function<bool(int64_t)>& proceed) {
  constexpr int64_t block = 1 << 20;
  std::vector<uint16_t> tokens;
  int64_t done = 0;
  for (const Shard& shard : shards)
    for (int64_t at = 0; at < shard.tokens; at += block) {
      if (!proceed(done)) return done;
      tokens.resize(size_t(std::min(block, shard.tokens - at)));
      read_tokens(shard, at, tokens, vocab);
      if (shard.labels) read_labels(*shard.labels, at, int(tokens.size()), nullptr, nullptr, vocab);
      done += int64_t(tokens.size());
    }
  return done;
}

WindowReader::WindowReader(std::vector<Shard> shards, int T, int vocab, std::string key)
    : shards_(std::move(shards)), first_window_{0}, T_(T), vocab_(vocab), key_(std::move(key)) {
  if (T < 1) user_error("%s: windows of %d tokens are impossible; at least 1 is needed", key_.c_str(), T);
  const Shard* longest = nullptr;
  for (const Shard& shard : shards_) {
    first_window_.push_back(first_window_.back() + std::max<int64_t>(0, shard.tokens - 1) / T);
    if (!longest || shard.tokens > longest->tokens) longest = &shard;
  }
  if (!longest) user_error("%s names no files; give token shards (%s)", key_.c_str(), make_shards);
  if (windows() == 0)
    user_error(
        "%s: no shard has the %ld tokens of one window of length %d and its last target; the longest, %s, has "
        "%ld; give more text or a shorter length (model.context, eval.lengths)",
        key_.c_str(), T + 1L, T, longest->path.c_str(), longest->tokens);
}

int64_t WindowReader::begin_with_documents(const DocumentWindows& documents) {
  constexpr int64_t block = 1 << 16;
  int64_t too_short = 0;
  std::vector<uint16_t> tokens;
  first_window_ = {0};
  auto complete = [&] { return int64_t(starts_.size()) >= documents.most; };
  for (const Shard& shard : shards_) {
    int64_t document = -1, free = 0;  // where the present document begins, and the tokens after the last window
    auto next_document = [&](int64_t at) {
      bool fits = document + T_ < shard.tokens && (!documents.within || at - document >= T_);
      if (document >= free && fits) starts_.push_back(document), free = document + T_;
      else if (document >= free) too_short++;
      document = at;
    };
    for (int64_t at = 0; at < shard.tokens && !complete(); at += block) {
      tokens.resize(size_t(std::min(block, shard.tokens - at)));
      read_tokens(shard, at, tokens, vocab_);
      for (size_t i = 0; i < tokens.size() && !complete(); i++)
        if (tokens[i] == documents.separator) next_document(at + int64_t(i));
    }
    if (!complete()) next_document(shard.tokens);
    first_window_.push_back(int64_t(starts_.size()));
  }
  return too_short;
}

size_t WindowReader::shard_of(int64_t window) const {
  if (window < 0 || window >= windows())
    failure("%s: window %ld of %ld does not exist", key_.c_str(), window, windows());
  return std::upper_bound(first_window_.begin(), first_window_.end(), window) - first_window_.begin() - 1;
}

int64_t WindowReader::first_token(int64_t window) const {
  return starts_.empty() ? (window - first_window_[shard_of(window)]) * T_ : starts_[window];
}

int WindowReader::labels(int64_t window) const {
  const Shard& shard = shards_[shard_of(window)];
  return shard.labels ? read_labels(*shard.labels, first_token(window), T_, nullptr, nullptr, vocab_) : T_;
}

int WindowReader::read(int64_t window, int* inputs, int* targets, int skip, float* values) const {
  const Shard& shard = shards_[shard_of(window)];
  int64_t first = first_token(window) + skip;
  std::vector<uint16_t> tokens(size_t(T_ - skip) + 1);
  read_tokens(shard, first, tokens, vocab_);
  std::copy(tokens.begin(), tokens.end() - 1, inputs);
  if (shard.labels) return read_labels(*shard.labels, first, T_ - skip, targets, values, vocab_);
  std::copy(tokens.begin() + 1, tokens.end(), targets);
  return T_ - skip;
}
