// Files whose content matters: every error is reported with the path, and "written" can mean "on the disk".
// A file opened with open_to_read that cannot be opened is a user_error, because the user named it. Every other error
// (full disk, no permission, a read that breaks off) is a failure.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

// Whether a pipe or a device, as /dev/stdin, may take the place of a regular file. One that no process writes to is
// empty.
enum class Pipes { refused, taken };

// An open file, closed by the destructor.
class File {
 public:
  File() = default;
  File(int fd, const std::string& path) : fd(fd), path_(path) {}  // takes an open descriptor
  // what: begins the error text, as "config"
  static File open_to_read(const std::string& path, const char* what, Pipes pipes = Pipes::refused);
  static File create(const std::string& path);          // empties a file that exists
  static File open_to_append(const std::string& path);  // creates a file that does not exist; regular ones alone
  static File open_to_sync(const std::string& path);    // a file or a folder
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
  bool is_regular() const;
  int64_t size() const;                                         // bytes
  void read_at(void* out, size_t bytes, int64_t offset) const;  // all bytes, or a failure
  void write(const void* data, size_t bytes);                   // all bytes, or a failure
  void truncate(int64_t bytes);
  void sync();   // returns when the content is on the disk
  void close();  // reports errors that some file systems find only now, which the destructor cannot

 private:
  int fd = -1;
  std::string path_;
};

// A file that appears when it is complete: it is written as .tmp_NAME, and removed again by the destructor unless
// publish() gave it its name.
class PendingFile {
 public:
  explicit PendingFile(const std::string& path);
  PendingFile(const PendingFile&) = delete;
  ~PendingFile();
  void write(const void* data, size_t bytes) { file_.write(data, bytes); }
  void publish();  // syncs it; replaces a file of that name

 private:
  std::string path_;
  File file_;
};

// Whether there is a file or folder of this name, and whether it is a folder. False if that cannot be known.
bool is_there(const std::string& path);
bool is_folder(const std::string& path);

// A user_error if no file can be written under this name: its folder is missing or read-only, or it is a folder, a
// device or a pipe. where: begins the error text, as "command line: --predict x.npy".
void check_output_file(const std::string& where, const std::string& path);

// Returns the whole file; more than `limit` bytes are a user_error.
std::string read_text_file(const std::string& path, const char* what, size_t limit, Pipes pipes = Pipes::refused);
// The same for a text in UTF-8, without the mark that may begin it (BOM). A user_error if wide_encoding() knows
// another.
std::string read_utf8_file(const std::string& path, const char* what, size_t limit, Pipes pipes = Pipes::refused);
// "UTF-16", "UTF-16LE", "UTF-32BE", ... if the text begins as one does: with its mark, or mostly with a NUL byte at the
// places where letters of ASCII have one. nullptr otherwise.
const char* wide_encoding(std::string_view text);
void write_text_file(const std::string& path, std::string_view text);  // and syncs it
// The same through a PendingFile: a reader finds the old text or the new one at any moment.
void replace_text_file(const std::string& path, std::string_view text);
// Copies a file and syncs it; returns false if `from` does not exist. On a failure the unfinished copy is removed.
bool copy_text_file(const std::string& from, const std::string& to);
// Returns when the file is on the disk; for a folder, the names in it, but not its files.
inline void sync_path(const std::string& path) { File::open_to_sync(path).sync(); }
