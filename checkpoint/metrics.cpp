#include "checkpoint/metrics.h"

#include <chrono>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/run_dir.h"

using nlohmann::json;
using nlohmann::ordered_json;

MetricsLog::MetricsLog(const std::string& path) : file_(File::open_to_append(path)) {
  int64_t size = file_.size(), end = size;
  char last;
  for (; end > 0; end--) {
    file_.read_at(&last, 1, end - 1);
    if (last == '\n') break;
  }
  if (end < size) file_.truncate(end);
}

// A field of a line; `absent` if there is none, or one of another type.
static int64_t integer_of(const json& line, const char* key, int64_t absent) {
  auto found = line.find(key);
  return found != line.end() && found->is_number_integer() ? found->get<int64_t>() : absent;
}

static std::string text_of(const json& line, const char* key) {
  auto found = line.find(key);
  return found != line.end() && found->is_string() ? found->get<std::string>() : "";
}

void MetricsLog::write(const char* type, const ordered_json& fields) {
  if (!file_) return;
  auto now = std::chrono::system_clock::now().time_since_epoch();
  double time = double(std::chrono::duration_cast<std::chrono::milliseconds>(now).count()) / 1e3;
  ordered_json line = {{"type", type}, {"time", time}};
  line.update(fields);
  std::string text = line.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
  try {
    file_.write(text.data(), text.size());
  } catch (const Failure& error) {
    throw LostLine(error, integer_of(fields, "step", 0));
  }
}

// Whether the line was written while training, not of weights in a file. Older programs named these by their folder, or
// used another type.
static bool is_of_training(const json& line) {
  auto weights = line.find("weights");
  if (weights != line.end() && weights->is_object()) return !weights->contains("xxh64");
  return text_of(line, "type") != "eval" && step_in_name(text_of(line, "weights")) == 0;
}

// Tells of the steps up to this one that have no line, which training from here does not repeat.
static void warn_of_missing(const std::string& path, const std::set<int64_t>& found, int64_t step) {
  int64_t missing = step - int64_t(found.size()), first = 1;
  if (missing == 0) return;
  for (int64_t there : found)
    if (there == first) first++;
  auto next = found.upper_bound(first);
  int64_t last = next == found.end() ? step : *next - 1;
  warn("%s has no lines of the training steps %ld to %ld%s; they stay missing", path.c_str(), first, last,
       missing > last - first + 1 ? ", and of later ones" : "");
}

void rewind_metrics(const std::string& path, int64_t step) {
  std::string kept;
  std::set<int64_t> trained;
  int64_t number = 0, damaged = 0;  // lines
  for_each_json_line(path, [&](const std::string& whole, const json& line) {
    number++;
    if (line.empty() && damaged == 0) damaged = number;
    int64_t at = integer_of(line, "step", -1);
    if (at <= step || !is_of_training(line)) kept += whole;
    if (at > 0 && at <= step && text_of(line, "type") == "train") trained.insert(at);
  });
  if (damaged > 0) warn("%s: line %ld is damaged and is ignored", path.c_str(), damaged);
  warn_of_missing(path, trained, step);
  replace_text_file(path, kept);
}

std::set<std::string> evaluated_ids(const std::string& path, int64_t step) {
  std::set<std::string> ids;
  for_each_json_line(path, [&](const std::string&, const json& line) {
    if (integer_of(line, "step", -1) == step && is_of_training(line)) ids.insert(text_of(line, "id"));
  });
  return ids;
}
