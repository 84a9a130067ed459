// How far a long task has come.
#pragma once
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

// How long the remaining steps will take, from an average of the last ones.
class Eta {
 public:
  void add(double step_ms) { mean_ms_ = mean_ms_ == 0 ? step_ms : mean_ms_ + 0.05 * (step_ms - mean_ms_); }
  double seconds(int64_t remaining_steps) const { return mean_ms_ * static_cast<double>(remaining_steps) / 1000; }

 private:
  double mean_ms_ = 0;
};

// A bar, redrawn in place while something takes long and gone afterwards. Where `out` is no terminal it does nothing.
class ProgressBar {
 public:
  ProgressBar(const std::string& label, int64_t total, FILE* out = stderr);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  void update(int64_t done);

 private:
  std::string label_;
  int64_t total_;
  FILE* out_;  // nullptr: no terminal
  std::chrono::steady_clock::time_point begin_, drawn_;
};
std::string progress_text(const std::string& label, int64_t done, int64_t total, double elapsed_seconds);
