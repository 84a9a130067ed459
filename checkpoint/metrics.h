// metrics.jsonl: what a run reports to programs, one JSON object per line. Each line is written immediately, by one
// call, so a killed process tears at most the last one. NaN and infinities become null (an exploded loss, an unknown
// mfu).
#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
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
  double mfu;  // 0 .. 1; NaN if the device's peak is unknown
  double ms;
};

class MetricsLog {
 public:
  MetricsLog() = default;                        // writes nothing
  explicit MetricsLog(const std::string& path);  // appends; a torn last line is dropped first
  // commit: of this build. config: the resolved settings. versions: {"cuda", "12.4"}, ...
  void start(const std::string& commit, const std::string& command, const nlohmann::ordered_json& config,
             const std::string& device, const std::vector<std::pair<std::string, std::string>>& versions);
  void train(const TrainReport& report);
  void val(int64_t step, int length, double loss, int64_t tokens);
  void skip(int64_t step, const std::string& reason, int64_t skipped);  // skipped: updates skipped in the whole run
  void eval(int64_t step, int length, double loss, int64_t tokens, double last_loss,
            const std::vector<double>& by_position);
  // Called if a line cannot be written, with its step and the reason; must throw. Unset: the failure itself.
  std::function<void(int64_t step, const std::string& error)> failed;

 private:
  void write(int64_t step, const nlohmann::ordered_json& line);
  File file_;
};

// Before a run resumes from `step`: removes the train, val and skip lines of later steps, which will be written again,
// and a torn last line. A reader finds the old file or the new one, never a part.
void rewind_metrics(const std::string& path, int64_t step);
std::set<int> evaluated_lengths(const std::string& path, int64_t step);  // the lengths with a val line of this step
