#include "checkpoint/log.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"

namespace {

// {"type":"train","step":1,...}: the fields in the order in which they are added.
class Line {
 public:
  explicit Line(const char* type) { text("type", type); }
  Line& text(const char* key, const std::string& value) { return raw(key, json_quote(value)); }
  Line& integer(const char* key, int64_t value) { return raw(key, std::to_string(value)); }
  Line& number(const char* key, double value) { return raw(key, json_number(value)); }
  Line& raw(const char* key, const std::string& json) {
    append_item(line_, json_quote(key) + ":" + json, ",");
    return *this;
  }
  std::string str() const { return format("{%s}\n", line_.c_str()); }

 private:
  std::string line_;
};

// Indented JSON on one line: within texts newlines are escaped, so every one in the text stands between values.
std::string on_one_line(const std::string& json) {
  std::string line;
  for (size_t i = 0; i < json.size(); i++) {
    if (json[i] != '\n') line += json[i];
    else
      while (i + 1 < json.size() && json[i + 1] == ' ') i++;
  }
  return line;
}

}  // namespace

MetricsLog::MetricsLog(const std::string& path) : file_(File::open_to_append(path)) {
  int64_t size = file_.size(), end = size;
  char last;
  for (; end > 0; end--) {
    file_.read_at(&last, 1, end - 1);
    if (last == '\n') break;
  }
  if (end < size) file_.truncate(end);
}

void MetricsLog::write(int64_t step, const std::string& line) {
  try {
    if (file_) file_.write(line.data(), line.size());
  } catch (const Failure& error) {
    if (failed) failed(step, error.what());
    throw;
  }
}

void MetricsLog::start(const std::string& commit, const std::string& command, const std::string& config,
                       const std::string& device, const std::vector<std::pair<std::string, std::string>>& versions) {
  std::string list;
  for (auto& [name, version] : versions) append_item(list, json_quote(name) + ":" + json_quote(version), ",");
  write(0, Line("start")
             .text("commit", commit)
             .text("command", command)
             .raw("config", on_one_line(config))
             .text("device", device)
             .raw("versions", "{" + list + "}")
             .str());
}

void MetricsLog::train(const TrainReport& r) {
  write(r.step, Line("train")
                  .integer("step", r.step)
                  .number("loss", r.loss)
                  .number("grad_norm", r.grad_norm)
                  .number("lr", r.lr)
                  .integer("tokens", r.tokens)
                  .number("tokens_per_s", r.tokens_per_s)
                  .number("mfu", r.mfu)
                  .number("ms", r.ms)
                  .str());
}

void MetricsLog::val(int64_t step, int length, double loss, int64_t tokens) {
  write(step, Line("val")
                  .integer("step", step)
                  .integer("length", length)
                  .number("loss", loss)
                  .integer("tokens", tokens)
                  .str());
}

void MetricsLog::skip(int64_t step, const std::string& reason, int64_t skipped) {
  write(step, Line("skip").integer("step", step).text("reason", reason).integer("skipped", skipped).str());
}

void MetricsLog::eval(int64_t step, int length, double loss, int64_t tokens, double last_loss,
                      const std::vector<double>& by_position) {
  std::string list;
  for (double x : by_position) append_item(list, json_number(x), ",");
  write(step, Line("eval")
                .integer("step", step)
                .integer("length", length)
                .number("loss", loss)
                .integer("tokens", tokens)
                .number("last_loss", last_loss)
                .raw("by_position", "[" + list + "]")
                .str());
}

// Calls f(line, type, step, length) for every whole line, with "", -1, 0 for what is not there; a torn last line is
// left out. A file that is not there has no lines.
template <class F> static void for_each_line(const std::string& path, F f) {
  std::ifstream lines(path);
  for (std::string text; std::getline(lines, text) && !lines.eof();) {
    nlohmann::json line = nlohmann::json::parse(text, nullptr, false);
    auto integer = [&](const char* key, int64_t absent) {
      return line.is_object() && line.contains(key) && line[key].is_number_integer() ? line[key].get<int64_t>()
                                                                                     : absent;
    };
    bool typed = line.is_object() && line.contains("type") && line["type"].is_string();
    f(text + '\n', typed ? line["type"].get<std::string>() : "", integer("step", -1), integer("length", 0));
  }
  if (lines.bad()) failure("cannot read %s", path.c_str());
}

void rewind_metrics(const std::string& path, int64_t step) {
  std::string kept;
  for_each_line(path, [&](const std::string& text, const std::string& type, int64_t at, int64_t) {
    if (at <= step || (type != "train" && type != "val" && type != "skip")) kept += text;
  });
  replace_text_file(path, kept);
}

std::set<int> evaluated_lengths(const std::string& path, int64_t step) {
  std::set<int> lengths;
  for_each_line(path, [&](const std::string&, const std::string& type, int64_t at, int64_t length) {
    if (at == step && type == "val") lengths.insert(static_cast<int>(length));
  });
  return lengths;
}

std::string console_line(const TrainReport& r, double eta_seconds) {
  std::string line =
    format("step %4ld/%ld | loss %.4f | norm %.2f | lr %.2e | ", r.step, r.steps, r.loss, r.grad_norm, r.lr);
  line += format(r.ms < 9.95 ? "%.1f ms | " : "%.0f ms | ", r.ms) + count_text(r.tokens_per_s) + " tok/s";
  if (std::isfinite(r.mfu)) line += format(" | mfu %.1f%%", 100 * r.mfu);
  return line + " | eta " + duration_text(eta_seconds);
}

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e12) return "?";
  auto s = static_cast<int64_t>(std::llround(seconds));
  if (s < 60) return format("%lds", s);
  if (s < 3600) return format("%ldm%02lds", s / 60, s % 60);
  if (s < 86400) return format("%ldh%02ldm", s / 3600, s / 60 % 60);
  return format("%ldd%02ldh", s / 86400, s / 3600 % 24);
}

std::string count_text(double count) {
  const char* units[] = {"", "K", "M", "G", "T", "P"};
  if (!std::isfinite(count)) return "?";
  size_t unit = 0;
  for (; unit < 5 && std::fabs(count) >= 999.5; unit++) count /= 1000;  // 999.5 would be printed with four digits
  if (unit == 0) return format("%.0f", count);
  double size = std::fabs(count);
  return format("%.*f%s", size < 9.995 ? 2 : size < 99.95 ? 1 : 0, count, units[unit]);
}

std::string bytes_text(double bytes) {
  const char* units[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return format("%.0f B", bytes);
  size_t unit = 0;
  for (bytes /= 1024; unit < 4 && bytes >= 1023.95; unit++) bytes /= 1024;
  return format("%.1f %s", bytes, units[unit]);
}

std::string progress_text(const std::string& label, int64_t done, int64_t total, double elapsed_seconds) {
  constexpr int WIDTH = 24;
  double part = total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0) : 1;
  int full = static_cast<int>(part * WIDTH);
  std::string line =
    label + " [" + std::string(full, '#') + std::string(WIDTH - full, '.') + "]" + format(" %3.0f%%", 100 * part);
  if (part > 0 && part < 1) line += " eta " + duration_text(elapsed_seconds * (1 - part) / part);
  return line;
}

ProgressBar::ProgressBar(const std::string& label, int64_t total, FILE* out)
    : label_(label),
      total_(total),
      out_(::isatty(::fileno(out)) ? out : nullptr),
      begin_(std::chrono::steady_clock::now()) {}

void ProgressBar::update(int64_t done) {
  if (!out_) return;
  auto now = std::chrono::steady_clock::now();
  if (now - drawn_ < std::chrono::milliseconds(100)) return;
  drawn_ = now;
  double elapsed = std::chrono::duration<double>(now - begin_).count();
  std::fprintf(out_, "\r%s\033[K", progress_text(label_, done, total_, elapsed).c_str());  // \033[K: clear what follows
  std::fflush(out_);
}

ProgressBar::~ProgressBar() {
  if (!out_) return;
  std::fprintf(out_, "\r\033[K");
  std::fflush(out_);
}
