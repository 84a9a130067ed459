// Files whose content matters: every error is reported with the path, and "written" can mean "on the disk".
// A path that the user named and that cannot be opened is a user_error; what fails while writing (full disk, no
// permission) or in the middle of reading is a failure.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

// An open file; closed at the end of its life.
class File {
 public:
  File() = default;
  static File open_to_read(const std::string& path, const char* what);  // what: begins the error text, "config"
  static File create(const std::string& path);                          // empty, whatever was there before
  static File open_to_append(const std::string& path);                  // created when missing
  static File open_to_sync(const std::string& path);                    // a file or a folder
  File(File&& other) noexcept : fd(std::exchange(other.fd, -1)), path_(std::move(other.path_)) {}
  File& operator=(File&& other) noexcept {
    std::swap(fd, other.fd);
    std::swap(path_, other.path_);
    return *this;
  }
  ~File();

  explicit operator bool() const { return fd >= 0; }
  const std::string& path() const { return path_; }
  int descriptor() const { return fd; }
  int64_t size() const;
  void read_at(void* out, size_t bytes, int64_t offset) const;  // all of them, or a failure
  void write(const void* data, size_t bytes);                   // all of them, or a failure
  void truncate(int64_t bytes);
  void sync();   // returns when the content is on the disk
  void close();  // reports what some file systems only find out now

 private:
  File(int fd, const std::string& path) : fd(fd), path_(path) {}
  int fd = -1;
  std::string path_;
};

// The whole file; more than `limit` bytes are a user_error.
std::string read_text_file(const std::string& path, const char* what, size_t limit);
void write_text_file(const std::string& path, std::string_view text);  // and syncs it
// The same, but whoever looks, at any moment, finds the old text or the new one: written beside (.tmp_*) and renamed.
void replace_text_file(const std::string& path, std::string_view text);
// Copies a file and syncs it; false where there is none at `from`. What is half written of it is removed on a failure.
bool copy_text_file(const std::string& from, const std::string& to);
// What was written at `path` is on the disk; of a folder only the names in it, not the files.
inline void sync_path(const std::string& path) { File::open_to_sync(path).sync(); }
