// The progress of a long task: a bar on a terminal, and the time that is left.
#pragma once
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

// Estimates how long the remaining steps will take, from a moving average of the last ones.
class Eta {
 public:
  void add(double step_ms) { mean_ms_ = mean_ms_ == 0 ? step_ms : mean_ms_ + 0.05 * (step_ms - mean_ms_); }
  double seconds(int64_t remaining_steps) const { return mean_ms_ * double(remaining_steps) / 1000; }

 private:
  double mean_ms_ = 0;
};

// A bar that is redrawn in place and removed by the destructor. It does nothing if `out` is not a terminal or nullptr,
// nor in the first `quiet` seconds, so that a short task shows no bar.
class ProgressBar {
 public:
  ProgressBar(const std::string& label, int64_t total, FILE* out = stderr, int quiet = 0);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  void update(int64_t done);
  void clear();  // removes the bar until the next update(), so that a line can be printed

 private:
  std::string label_;
  int64_t total_;
  FILE* out_;  // nullptr: not a terminal
  int quiet_;
  std::chrono::steady_clock::time_point begin_, drawn_;
};
// The bar as text: "label [######......]  50% eta 12s".
std::string progress_text(const std::string& label, int64_t done, int64_t total, double elapsed_seconds);
