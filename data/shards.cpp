#include "data/shards.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

static_assert(std::endian::native == std::endian::little, "shards are little-endian and read without conversion");
static_assert(sizeof(off_t) == 8, "shards may be larger than 2 GB");

OpenFile::~OpenFile() { ::close(fd); }

namespace {

constexpr int32_t shard_magic = 20240520, shard_version = 1;
constexpr int64_t header_bytes = 256 * sizeof(int32_t);
constexpr int64_t tokens_checked_at_start = 1024;

const char* const make_shards =
    "scripts/prepare_text.py makes shards from text, scripts/download_fineweb.py fetches FineWeb's";

// Returns the number of bytes read, fewer than asked only at the end of the file.
int64_t read_at(const Shard& shard, void* out, int64_t bytes, int64_t offset) {
  int64_t done = 0;
  while (done < bytes) {
    ssize_t n = ::pread(shard.file->fd, static_cast<char*>(out) + done, bytes - done, offset + done);
    if (n == 0) break;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      failure("%s: reading %lld bytes at %lld failed: %s", shard.path.c_str(), (long long)bytes, (long long)offset,
              std::strerror(errno));
    done += n;
  }
  return done;
}

void read_tokens(const Shard& shard, int64_t position, std::vector<uint16_t>& tokens, int vocab,
                 const std::string& key) {
  const int64_t bytes = int64_t(tokens.size()) * 2;
  if (read_at(shard, tokens.data(), bytes, header_bytes + position * 2) != bytes)
    user_error(
        "%s: %s became shorter while it was in use: tokens %lld to %lld are gone; restore the file and start "
        "again",
        key.c_str(), shard.path.c_str(), (long long)position, (long long)position + bytes / 2 - 1);
  auto bad = std::find_if(tokens.begin(), tokens.end(), [&](uint16_t token) { return token >= vocab; });
  if (bad == tokens.end()) return;
  position += bad - tokens.begin();
  user_error(
      "%s: %s holds token %d at position %lld, but model.vocab = %d allows 0 to %d. The shard was probably made "
      "with another tokenizer: set model.vocab = 50257 for GPT-2 tokens (256 for bytes), or use other shards",
      key.c_str(), shard.path.c_str(), int(*bad), (long long)position, vocab, vocab - 1);
}

std::vector<std::string> expand(const std::string& pattern, const std::string& key) {
  if (pattern.empty()) user_error("%s has an empty file name; name token shards (%s)", key.c_str(), make_shards);
  struct stat status;
  if (::stat(pattern.c_str(), &status) == 0) return {pattern};  // even if the name contains * ? or [
  const int missing = errno;
  glob_t matches = {};
  const auto stop_at = [](const char*, int error) -> int { return error != ENOENT && error != ENOTDIR; };
  const int result = ::glob(pattern.c_str(), GLOB_TILDE, stop_at, &matches);
  const int error = errno;
  std::vector<std::string> paths(matches.gl_pathv, matches.gl_pathv + (result == 0 ? matches.gl_pathc : 0));
  ::globfree(&matches);
  std::erase_if(paths, [](const std::string& path) { return path.ends_with(".json"); });
  if (result == GLOB_ABORTED)
    user_error("%s = \"%s\": a folder in it cannot be read: %s", key.c_str(), pattern.c_str(), std::strerror(error));
  if (result != 0 && result != GLOB_NOMATCH)
    failure("%s = \"%s\": glob() ran out of memory", key.c_str(), pattern.c_str());
  if (paths.empty()) {
    const bool wild = pattern.find_first_of("*?[") != std::string::npos;
    user_error("%s = \"%s\": %s (working directory %s); %s", key.c_str(), pattern.c_str(),
               wild ? "the pattern matches no file" : std::strerror(missing), std::filesystem::current_path().c_str(),
               make_shards);
  }
  return paths;
}

Shard open_shard(const std::string& path, int vocab, const std::string& key) {
  const char *k = key.c_str(), *p = path.c_str();
  struct stat status;
  if (::stat(p, &status) != 0) user_error("%s: %s cannot be opened: %s", k, p, std::strerror(errno));
  if (S_ISDIR(status.st_mode)) user_error("%s: %s is a folder; name its files, for example \"%s/*.bin\"", k, p, p);
  if (!S_ISREG(status.st_mode)) user_error("%s: %s is not a regular file; shards are read at random positions", k, p);
  const int fd = ::open(p, O_RDONLY | O_CLOEXEC);
  if (fd < 0 && errno == EMFILE)
    user_error("%s: %s cannot be opened: too many open files; raise the limit (ulimit -n) or use larger shards", k, p);
  if (fd < 0) user_error("%s: %s cannot be opened: %s; check its permissions", k, p, std::strerror(errno));
  Shard shard{path, 0, std::make_shared<OpenFile>(fd)};
  if (::fstat(fd, &status) != 0) failure("%s: fstat failed: %s", p, std::strerror(errno));

  int32_t header[header_bytes / sizeof(int32_t)];
  const int64_t size = status.st_size;
  if (size < header_bytes || read_at(shard, header, header_bytes, 0) != header_bytes)
    user_error("%s: %s has %lld bytes, too few for the %lld-byte header: it is cut short or not a shard; %s", k, p,
               (long long)size, (long long)header_bytes, make_shards);
  if (header[0] != shard_magic)
    user_error("%s: %s is not a token shard: it begins with %d where a shard has %d; %s", k, p, header[0], shard_magic,
               make_shards);
  if (header[1] != shard_version)
    user_error(
        "%s: %s is a shard of version %d, but only version %d (uint16 tokens) can be read; make it again with "
        "scripts/prepare_text.py",
        k, p, header[1], shard_version);
  shard.tokens = header[2];
  if (shard.tokens < 0)
    user_error("%s: %s has a damaged header: it says %d tokens; make or download the file again", k, p, header[2]);
  const int64_t expected = header_bytes + shard.tokens * 2;
  if (size < expected)
    user_error(
        "%s: %s is cut short: its header says %d tokens, %lld bytes in all, but the file has %lld (%lld "
        "missing); download or copy it again",
        k, p, header[2], (long long)expected, (long long)size, (long long)(expected - size));
  if (size > expected)
    user_error(
        "%s: %s is too long: its header says %d tokens, %lld bytes in all, but the file has %lld (%lld too "
        "many); download or make it again",
        k, p, header[2], (long long)expected, (long long)size, (long long)(size - expected));

  std::vector<uint16_t> first(std::min(shard.tokens, tokens_checked_at_start));
  read_tokens(shard, 0, first, vocab, key);
  return shard;
}

// The "bytes" of X.json; a runtime_error says what is wrong with the file.
int64_t bytes_of_text(const std::string& path, int64_t tokens) {
  const char* what = "bytes of text";
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored))  // opening a pipe would wait for ever
    user_error("%s: not a regular file  [%s]", what, path.c_str());
  const nlohmann::json root = parse_json(read_text_file(path, what, 1 << 16), what, path);
  auto integer = [&](const char* key) {
    if (!root.contains(key) || !root[key].is_number_unsigned() || root[key].get<uint64_t>() > uint64_t(INT64_MAX))
      user_error("%s: \"%s\" must be a whole number  [%s]", what, key, path.c_str());
    return root[key].get<int64_t>();
  };
  if (integer("tokens") != tokens)
    user_error("%s: \"tokens\" is %lld, but the shard has %lld  [%s]", what, (long long)integer("tokens"),
               (long long)tokens, path.c_str());
  const int64_t most = 1024 * tokens;  // GPT-2's longest token has 128 bytes
  if (integer("bytes") < 1 || integer("bytes") > most)
    user_error("%s: \"bytes\" is %lld, but must be 1 to %lld for %lld tokens  [%s]", what, (long long)integer("bytes"),
               (long long)most, (long long)tokens, path.c_str());
  return integer("bytes");
}

}  // namespace

std::vector<Shard> open_shards(const std::vector<std::string>& patterns, int vocab, const std::string& key) {
  if (patterns.empty()) user_error("%s names no files; give token shards (%s)", key.c_str(), make_shards);
  std::vector<std::string> paths;
  for (const std::string& pattern : patterns)
    for (const std::string& path : expand(pattern, key))
      paths.push_back(std::filesystem::path(path).lexically_normal().string());
  std::sort(paths.begin(), paths.end());  // glob() sorts by locale, which would make the order depend on the machine
  auto twice = std::adjacent_find(paths.begin(), paths.end());
  if (twice != paths.end()) user_error("%s names %s twice; remove one of the two", key.c_str(), twice->c_str());
  std::vector<Shard> shards;
  for (const std::string& path : paths) shards.push_back(open_shard(path, vocab, key));
  return shards;
}

std::vector<std::string> read_text_bytes(std::vector<Shard>& shards) {
  std::vector<std::string> warnings;
  for (Shard& shard : shards) {
    std::error_code ignored;
    const std::string path = std::filesystem::path(shard.path).replace_extension(".json").string();
    if (path == shard.path || !std::filesystem::exists(path, ignored)) continue;
    try {
      shard.text_bytes = bytes_of_text(path, shard.tokens);
    } catch (const std::runtime_error& error) {
      warnings.push_back(std::string("bits per byte is unknown; make the shard again: ") + error.what());
    }
  }
  return warnings;
}

int64_t check_tokens(const std::vector<Shard>& shards, int vocab, const std::string& key,
                     const std::function<bool(int64_t)>& proceed) {
  constexpr int64_t block = 1 << 20;
  std::vector<uint16_t> tokens;
  int64_t done = 0;
  for (const Shard& shard : shards)
    for (int64_t at = 0; at < shard.tokens; at += block) {
      if (!proceed(done)) return done;
      tokens.resize(size_t(std::min(block, shard.tokens - at)));
      read_tokens(shard, at, tokens, vocab, key);
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
        "%s: no shard has the %lld tokens of one window of length %d and its last target; the longest, %s, has "
        "%lld; give more text or a shorter length (model.context, eval.lengths)",
        key_.c_str(), (long long)T + 1, T, longest->path.c_str(), (long long)longest->tokens);
}

size_t WindowReader::shard_of(int64_t window) const {
  if (window < 0 || window >= windows())
    failure("%s: window %lld of %lld does not exist", key_.c_str(), (long long)window, (long long)windows());
  return std::upper_bound(first_window_.begin(), first_window_.end(), window) - first_window_.begin() - 1;
}

void WindowReader::read(int64_t window, int* inputs, int* targets, int skip) const {
  const size_t shard = shard_of(window);
  std::vector<uint16_t> tokens(size_t(T_ - skip) + 1);
  read_tokens(shards_[shard], (window - first_window_[shard]) * T_ + skip, tokens, vocab_, key_);
  std::copy(tokens.begin(), tokens.end() - 1, inputs);
  std::copy(tokens.begin() + 1, tokens.end(), targets);
}
