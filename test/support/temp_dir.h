// For tests that need files: a folder that its object's destructor removes, and what is in them.
#pragma once
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/file.h"
#include "test/support/error_of.h"

struct TempDir {
  std::string path;
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "plusgpt_test_XXXXXX").string();
    if (!mkdtemp(name.data())) failure("mkdtemp(%s) failed", name.c_str());
    path = name;
    ::chmod(path.c_str(), 0755);  // a test may read it as another user
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string operator/(const std::string& name) const { return path + "/" + name; }
};

// Makes a new file each time: ext4 writes a file that was shortened to the disk on every close, in some tests thousands
// of times.
inline void write_file(const std::string& path, const std::string& bytes) {
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string bytes_of(const std::string& path) { return read_text_file(path, "test", 1 << 20); }

// Runs f without root's rights, with which every file would be readable.
template <class F> void without_root(F f) {
  const bool root = ::geteuid() == 0;
  ASSERT_EQ(::seteuid(root ? 65534 : ::geteuid()), 0);
  f();
  ASSERT_EQ(::seteuid(root ? 0 : ::geteuid()), 0);
}

// Runs f while neither the folder's owner nor root can write to it.
template <class F> void without_writing_to(const std::string& folder, F f) {
  ASSERT_EQ(::chmod(folder.c_str(), 0555), 0);
  without_root(f);
  ASSERT_EQ(::chmod(folder.c_str(), 0755), 0);
}

// Runs f while no file can grow, as on a full disk: "File too large".
template <class F> void without_space(F f) {
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit none = {0, before.rlim_max};
  auto handler = ::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  f();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, handler);
}
