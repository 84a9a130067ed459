// metrics.jsonl: a run's report to programs, one JSON object per line; docs/metrics.md lists the fields. Each line is
// written immediately, by one call, so a killed process tears at most the last one. NaN and infinities become null (an
// exploded loss, an unknown mfu).
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"

// A line that could not be written, and its step (0: none).
struct LostLine : Failure {
  LostLine(const Failure& why, int64_t step) : Failure(why), step(step) {}
  int64_t step;
};

class MetricsLog {
 public:
  MetricsLog() = default;                        // writes nothing
  explicit MetricsLog(const std::string& path);  // appends; a torn last line is dropped first
  // A line of this type; NaN and infinities in the fields become null. Throws LostLine.
  void write(const char* type, const nlohmann::ordered_json& fields);

 private:
  File file_;
};

// Before a run resumes from `step`: removes what was written while training after it, which will be written again, and
// a torn last line. Lines of evaluations that asked for weights in a file, whose checksum they have, stay. A reader
// finds the old file or the new one, never a part.
void rewind_metrics(const std::string& path, int64_t step);
// The `id` of each evaluation after this step that was made while training.
std::set<std::string> evaluated_ids(const std::string& path, int64_t step);
