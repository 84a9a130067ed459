#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "base/utf8.h"

using std::string_view_literals::operator""sv;

// Does not wait for the other end of a pipe, in which no signal would end a program that handles signals.
static int open_at_once(const std::string& path, int flags) {
  int fd;
  do fd = ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0666);
  while (fd < 0 && errno == EINTR);
  if (fd >= 0) ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK);
  return fd;
}

bool File::is_regular() const {
  struct stat info;
  return ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
}

File File::open_to_read(const std::string& path, const char* what, Pipes pipes) {
  File file(open_at_once(path, O_RDONLY), path);
  struct stat info;
  if (file && ::fstat(file.fd, &info) == 0 && S_ISDIR(info.st_mode)) file.close(), errno = EISDIR;
  if (!file) user_error("%s: cannot read the file: %s  [%s]", what, std::strerror(errno), path.c_str());
  if (pipes == Pipes::refused && !file.is_regular()) user_error("%s: not a regular file  [%s]", what, path.c_str());
  return file;
}

File File::create(const std::string& path) {
  int fd = open_at_once(path, O_WRONLY | O_CREAT | O_TRUNC);
  if (fd < 0) failure("cannot create %s: %s", path.c_str(), std::strerror(errno));
  return File(fd, path);
}

File File::open_to_append(const std::string& path) {
  int fd = open_at_once(path, O_RDWR | O_CREAT | O_APPEND);
  if (fd < 0) failure("cannot open %s: %s", path.c_str(), std::strerror(errno));
  File file(fd, path);
  if (!file.is_regular()) user_error("%s is not a regular file; remove it", path.c_str());
  return file;
}

File File::open_to_sync(const std::string& path) {
  int fd = open_at_once(path, O_RDONLY);
  if (fd < 0) failure("cannot open %s: %s", path.c_str(), std::strerror(errno));
  return File(fd, path);
}

File::~File() {
  if (fd >= 0) ::close(fd);
}

int64_t File::size() const {
  struct stat info;
  if (fstat(fd, &info) != 0) failure("cannot find the size of %s: %s", path_.c_str(), std::strerror(errno));
  return info.st_size;
}

void File::read_at(void* out, size_t bytes, int64_t offset) const {
  auto* at = static_cast<char*>(out);
  while (bytes > 0) {
    ssize_t got = ::pread(fd, at, bytes, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) failure("cannot read %s: %s", path_.c_str(), std::strerror(errno));
    if (got == 0) failure("%s ended early, at byte %ld: was it changed while being read?", path_.c_str(), offset);
    at += got;
    offset += got;
    bytes -= size_t(got);
  }
}

void File::write(const void* data, size_t bytes) {
  auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    ssize_t put = ::write(fd, at, std::min<size_t>(bytes, 1 << 30));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) failure("cannot write %s: %s", path_.c_str(), std::strerror(errno));
    at += put;
    bytes -= size_t(put);
  }
}

void File::truncate(int64_t bytes) {
  if (::ftruncate(fd, bytes) != 0) failure("cannot shorten %s: %s", path_.c_str(), std::strerror(errno));
}

void File::sync() {
  // EINVAL: a pipe or a device, which has no disk behind it and needs no sync
  if (::fsync(fd) != 0 && errno != EINVAL) failure("cannot write %s to disk: %s", path_.c_str(), std::strerror(errno));
}

void File::close() {
  if (fd >= 0 && ::close(std::exchange(fd, -1)) != 0)
    failure("cannot write %s: %s", path_.c_str(), std::strerror(errno));
}

bool is_there(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0;
}

bool is_folder(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

std::string read_text_file(const std::string& path, const char* what, size_t limit, Pipes pipes) {
  File file = File::open_to_read(path, what, pipes);
  std::string text;
  char chunk[1 << 16];
  for (;;) {  // to the end: the size that a pipe or a file of /proc reports means nothing
    ssize_t got = ::read(file.descriptor(), chunk, sizeof chunk);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) failure("cannot read %s: %s", path.c_str(), std::strerror(errno));
    if (got == 0) return text;
    text.append(chunk, size_t(got));
    if (text.size() > limit) user_error("%s: the file has more than %zu bytes  [%s]", what, limit, path.c_str());
  }
}

const char* wide_encoding(std::string_view text) {
  if (text.size() < 4) return nullptr;  // not one character after a mark, or two without
  if (text.starts_with("\xff\xfe\0\0"sv) || text.starts_with("\0\0\xfe\xff"sv)) return "UTF-32";
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")) return "UTF-16";
  text = text.substr(0, 4096);
  size_t zeros[4] = {};
  for (size_t i = 0; i < text.size(); i++) zeros[i % 4] += text[i] == '\0';
  std::string mostly;
  for (size_t count : zeros) mostly += 8 * count > text.size() ? '0' : 'x';
  for (auto [places, name] :
       {std::pair{"x0x0", "UTF-16LE"}, {"0x0x", "UTF-16BE"}, {"x000", "UTF-32LE"}, {"000x", "UTF-32BE"}})
    if (mostly == places) return name;
  return nullptr;
}

std::string read_utf8_file(const std::string& path, const char* what, size_t limit, Pipes pipes) {
  std::string text = read_text_file(path, what, limit, pipes);
  if (const char* wide = wide_encoding(text))
    user_error("%s: the file is %s text; convert it to UTF-8 (iconv -f %s -t UTF-8)  [%s]", what, wide, wide,
               path.c_str());
  if (text.starts_with(UTF8_MARK)) text.erase(0, UTF8_MARK.size());
  return text;
}

void write_text_file(const std::string& path, std::string_view text) {
  File file = File::create(path);
  file.write(text.data(), text.size());
  file.sync();
  file.close();
}

static std::string hidden(const std::string& path) {
  size_t name = path.rfind('/') + 1;  // 0 if the path has no folder
  return path.substr(0, name) + ".tmp_" + path.substr(name);
}

PendingFile::PendingFile(const std::string& path) : path_(path), file_(File::create(hidden(path))) {}

PendingFile::~PendingFile() {
  if (file_) ::unlink(file_.path().c_str());
}

void PendingFile::publish() {
  file_.sync();
  if (::rename(file_.path().c_str(), path_.c_str()) != 0)
    failure("cannot rename %s to %s: %s", file_.path().c_str(), path_.c_str(), std::strerror(errno));
  file_.close();
}

void replace_text_file(const std::string& path, std::string_view text) {
  PendingFile file(path);
  file.write(text.data(), text.size());
  file.publish();
}

void check_output_file(const std::string& where, const std::string& path) {
  const char *w = where.c_str(), *p = path.c_str();
  std::string folder = path.find('/') == std::string::npos ? "." : path.substr(0, path.rfind('/') + 1);
  struct stat info;
  if (!is_folder(folder)) user_error("%s: there is no folder %s; create it first", w, folder.c_str());
  if (is_folder(path)) user_error("%s: %s is a folder; name a file", w, p);
  if (::stat(p, &info) == 0 && !S_ISREG(info.st_mode))
    user_error("%s: %s is a device or a pipe, which the new file would replace; name another file", w, p);
  if (::access(folder.c_str(), W_OK) != 0)
    user_error("%s: the folder %s cannot be written: %s; name another", w, folder.c_str(), std::strerror(errno));
}

bool copy_text_file(const std::string& from, const std::string& to) {
  if (::access(from.c_str(), F_OK) != 0 && errno == ENOENT) return false;
  File source = File::open_to_read(from, "copy"), target = File::create(to);
  try {
    std::string piece(1 << 20, '\0');
    for (int64_t at = 0, size = source.size(); at < size; at += int64_t(piece.size())) {
      piece.resize(size_t(std::min<int64_t>(size - at, 1 << 20)));
      source.read_at(piece.data(), piece.size(), at);
      target.write(piece.data(), piece.size());
    }
    target.sync();
    target.close();
  } catch (...) {
    ::unlink(to.c_str());
    throw;
  }
  return true;
}
