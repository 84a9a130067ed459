// The algorithms that were chosen for matrix products, by shape: as text for checkpoints and other ranks, and in a file
// that later runs read. A line is device <tab> library's version <tab> shape <tab> algorithm <tab> date; of two lines
// for one shape the later counts, and lines that do not parse are skipped.
#pragma once
#include <istream>
#include <map>
#include <string>

class MatmulChoices {
 public:
  // device: "device <tab> library's version". Choices for other devices are kept, but never found.
  explicit MatmulChoices(std::string device) : device_(std::move(device) + '\t') {}

  // The algorithm for this shape, in the library's own encoding; nullptr: none has been chosen.
  const std::string* find(const std::string& shape) const;
  // Neither text holds a tab or a newline. measured: the choice is good for other runs too and goes to the file.
  void choose(const std::string& shape, const std::string& algorithm, bool measured = true);

  struct Taken {
    int count = 0;       // lines for this device
    std::string oldest;  // date of the oldest of them, as in 2026-11-21; "" where there are none
  };
  std::string text() const;             // all choices, a line each
  Taken take(const std::string& text);  // they replace those for the same shapes
  // Measured choices are appended to this file from here on. read: those in it are taken first. If a file cannot be
  // read or written, the only cost is new measurements.
  Taken use_file(const std::string& path, bool read);
  void forget() { choices_.clear(), version_++; }  // all of them; the file keeps its lines
  // Grows with every take() and forget(): what was looked up before may have been replaced.
  int version() const { return version_; }

 private:
  struct Choice {
    std::string algorithm, date;
  };
  static std::string line_of(const std::string& key, const Choice& choice);
  Taken take(std::istream& lines);
  void append(const std::string& line) const;  // to the file, if there is one

  std::string device_, path_;
  std::map<std::string, Choice> choices_;  // by "device <tab> version <tab> shape"
  int version_ = 0;
};
