// What a run says: metrics.jsonl, one JSON object a line, for programs; console lines and progress bars for people.
// Metrics are written line by line, each whole and at once, so that a killed process tears at most the last one.
// NaN and infinities become null: of a loss that exploded, or of an mfu whose peak is unknown.
#pragma once
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"

struct TrainReport {
  int64_t step, steps;  // 1 .. steps
  double loss;          // mean over the whole batch
  double grad_norm;     // before clipping
  double lr;
  int64_t tokens;  // from the beginning of the run
  double tokens_per_s;
  double mfu;  // 0 .. 1; NaN where the device's peak is unknown
  double ms;
};

class MetricsLog {
 public:
  MetricsLog() = default;                        // writes nothing
  explicit MetricsLog(const std::string& path);  // appends; a torn last line is dropped first
  // commit: of this build. config: JSON, as config_text() gives it. versions: {"cuda", "12.4"}, ...
  void start(const std::string& commit, const std::string& command, const std::string& config,
             const std::string& device, const std::vector<std::pair<std::string, std::string>>& versions);
  void train(const TrainReport& report);
  void val(int64_t step, int length, double loss, int64_t tokens);
  void skip(int64_t step, const std::string& reason, int64_t skipped);  // skipped: updates of the whole run
  void eval(int64_t step, int length, double loss, int64_t tokens, double last_loss,
            const std::vector<double>& by_position);
  // Called instead of the failure of a line that cannot be written, with its step and what went wrong; throws its own.
  std::function<void(int64_t step, const std::string& error)> failed;

 private:
  void write(int64_t step, const std::string& line);
  File file_;
};

// Before a run goes on from `step`: removes what it will say again, train, val and skip lines of later steps, and a
// torn last line. Whoever looks meanwhile finds the old file or the new one.
void rewind_metrics(const std::string& path, int64_t step);
std::set<int> evaluated_lengths(const std::string& path, int64_t step);  // those with a val line of this step

// "step  120/18865 | loss 6.0321 | norm 1.23 | lr 1.03e-04 | 298 ms | 1.76M tok/s | mfu 41.2% | eta 1h34m"
// Without mfu where it is unknown.
std::string console_line(const TrainReport& report, double eta_seconds);

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

std::string duration_text(double seconds);  // 43s, 12m05s, 1h34m, 2d03h
std::string count_text(double count);       // 999, 52.4K, 1.76M, 10.0G
std::string bytes_text(double bytes);       // 512 B, 1.2 GiB
