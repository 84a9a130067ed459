#include "checkpoint/metrics.h"

#include <chrono>
#include <cstdio>
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

void MetricsLog::write(int64_t step, const char* type, const ordered_json& fields) {
  if (!file_) return;
  auto now = std::chrono::system_clock::now().time_since_epoch();
  double time = double(std::chrono::duration_cast<std::chrono::milliseconds>(now).count()) / 1e3;
  ordered_json line = {{"type", type}, {"time", time}};
  line.update(fields);
  std::string text = line.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
  try {
    file_.write(text.data(), text.size());
  } catch (const Failure& error) {
    if (failed) failed(step, error.what());
    throw;
  }
}

void MetricsLog::start(const std::string& commit, const std::string& command, const ordered_json& config,
                       const std::string& device, const std::vector<std::pair<std::string, std::string>>& versions,
                       int64_t parameters, double flops_per_token) {
  ordered_json list = ordered_json::object();
  for (auto& [name, version] : versions) list[name] = version;
  write(0, "start",
        {{"commit", commit},
         {"command", command},
         {"config", config},
         {"device", device},
         {"versions", list},
         {"parameters", parameters},
         {"flops_per_token", flops_per_token}});
}

void MetricsLog::train(const TrainReport& r) {
  write(r.step, "train",
        {{"step", r.step},
         {"loss", r.loss},
         {"grad_norm", r.grad_norm},
         {"lr", r.lr},
         {"tokens", r.tokens},
         {"tokens_per_s", r.tokens_per_s},
         {"mfu", r.mfu},
         {"ms", r.ms}});
}

// To 1e-6: enough to compare runs, and short.
static std::vector<double> rounded(std::vector<double> values) {
  for (double& x : values) x = std::round(x * 1e6) / 1e6;
  return values;
}

void MetricsLog::evaluation(const char* type, const EvalReport& r) {
  bool suffix = r.mode == EvalMode::suffix;
  ordered_json fields = {{"step", r.weights.step},
                         {"tokens", r.weights.tokens},
                         {"mode", eval_mode_names[int(r.mode)]},
                         {"length", r.length}};
  if (suffix) fields.update({{"context_of", r.window}, {"suffix", r.targets}});
  fields.update({{"loss", r.loss},
                 {"stderr", r.standard_error},
                 {"perplexity", r.perplexity},
                 {"bits_per_byte", r.bits_per_byte}});
  if (suffix)
    fields["difference"] = {
        {"from", r.difference.from}, {"loss", r.difference.loss}, {"stderr", r.difference.standard_error}};
  else fields["last_loss"] = r.last_loss;
  fields["of"] = {{"data", data_json(r.data)}, {"tokens_asked", r.tokens_asked}, {"tokens", r.tokens},
                  {"windows", r.windows},      {"rope_scaling", r.rope_scaling}, {"weights", r.weights.path}};
  if (r.keys_window) fields["of"].update({{"window", r.keys_window}, {"sink_tokens", r.sink_tokens}});
  if (!suffix) fields.update({{"position_edges", r.position_edges}, {"by_position", rounded(r.by_position)}});
  fields["window_losses"] = rounded(r.window_losses);
  write(r.weights.step, type, fields);
}

void MetricsLog::skip(int64_t step, const std::string& reason, int64_t skipped) {
  write(step, "skip", {{"step", step}, {"reason", reason}, {"skipped", skipped}});
}

void MetricsLog::passkey(const PasskeyReport& r) {
  ordered_json fields = {{"step", r.weights.step},
                         {"form", r.form},
                         {"length", r.length},
                         {"trials", r.trials},
                         {"depths", r.depths},
                         {"exact", r.exact},
                         {"nll", r.nll},
                         {"rank", r.rank},
                         {"distance", r.distance},
                         {"control", r.control},
                         {"stderr", r.standard_error},
                         {"weights", r.weights.path}};
  if (r.window) fields.update({{"window", r.window}, {"sink_tokens", r.sink_tokens}});
  write(r.weights.step, "passkey", fields);
}

void MetricsLog::task(const BenchmarkReport& r) {
  write(r.weights.step, "task",
        {{"step", r.weights.step},
         {"tokens", r.weights.tokens},
         {"task", r.task},
         {"n", r.examples},
         {"acc", r.acc},
         {"acc_norm", r.acc_norm},
         {"acc_bytes", r.acc_bytes},
         {"acc_norm_tokens", r.acc_norm_tokens},
         {"stderr", r.standard_error},
         {"margin", r.margin},
         {"chance", r.chance},
         {"max_length", r.max_length},
         {"cut", r.cut},
         {"xxh64", r.checksum},
         {"weights", r.weights.path}});
}

static int64_t integer_of(const json& line, const char* key, int64_t absent) {
  auto found = line.find(key);
  return found != line.end() && found->is_number_integer() ? found->get<int64_t>() : absent;
}

static std::string text_of(const json& line, const char* key, const char* absent) {
  auto found = line.find(key);
  return found != line.end() && found->is_string() ? found->get<std::string>() : absent;
}

// Of the weights of a run as it trained, not of a checkpoint.
static bool is_of_training(const json& line) { return step_in_name(text_of(line, "weights", "")) == 0; }

// Tells of the steps up to this one that have no line, which training from here does not repeat.
static void warn_of_missing(const std::string& path, const std::set<int64_t>& found, int64_t step) {
  int64_t missing = step - static_cast<int64_t>(found.size()), first = 1;
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
    static const std::set<std::string> repeated = {"train", "val", "skip", "groups", "diagnostics", "task"};
    bool again = repeated.count(text_of(line, "type", "")) && is_of_training(line);
    int64_t at = integer_of(line, "step", -1);
    if (at <= step || !again) kept += whole;
    if (at > 0 && at <= step && text_of(line, "type", "") == "train") trained.insert(at);
  });
  if (damaged > 0) warn("%s: line %ld is damaged and is ignored", path.c_str(), damaged);
  warn_of_missing(path, trained, step);
  replace_text_file(path, kept);
}

std::set<int> evaluated_lengths(const std::string& path, int64_t step, const Config::Eval& eval) {
  std::set<int> lengths;
  for_each_json_line(path, [&](const std::string&, const json& line) {
    int length = static_cast<int>(integer_of(line, "length", 0));
    if (text_of(line, "type", "") == "val" && integer_of(line, "step", -1) == step &&
        text_of(line, "mode", "windows") == eval_mode_names[int(eval.mode)] &&
        integer_of(line, "context_of", length) == eval.window(length) &&
        integer_of(line, "suffix", length) == eval.targets(length))
      lengths.insert(length);
  });
  return lengths;
}

std::set<std::string> evaluated_benchmarks(const std::string& path, int64_t step) {
  std::set<std::string> benchmarks;
  for_each_json_line(path, [&](const std::string&, const json& line) {
    if (text_of(line, "type", "") == "task" && is_of_training(line) && integer_of(line, "step", -1) == step)
      benchmarks.insert(text_of(line, "task", ""));
  });
  return benchmarks;
}

std::set<int> diagnosed_lengths(const std::string& path, int64_t step) {
  std::set<int> lengths;
  for_each_json_line(path, [&](const std::string&, const json& line) {
    if (text_of(line, "type", "") == "diagnostics" && is_of_training(line) && integer_of(line, "step", -1) == step)
      lengths.insert(static_cast<int>(integer_of(line, "length", 0)));
  });
  return lengths;
}
