#include "base/progress.h"

#include <unistd.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

std::string progress_text(const std::string& label, int64_t done, int64_t total, double elapsed_seconds) {
  constexpr int WIDTH = 24;
  double part = total > 0 ? std::clamp(double(done) / double(total), 0.0, 1.0) : 1;
  int full = int(part * WIDTH);
  std::string line =
      label + " [" + std::string(full, '#') + std::string(WIDTH - full, '.') + "]" + format(" %3.0f%%", 100 * part);
  if (part > 0 && part < 1) line += " eta " + duration_text(elapsed_seconds * (1 - part) / part);
  return line;
}

ProgressBar::ProgressBar(const std::string& label, int64_t total, FILE* out, int quiet)
    : label_(label),
      total_(total),
      out_(out && ::isatty(::fileno(out)) ? out : nullptr),
      quiet_(quiet),
      begin_(std::chrono::steady_clock::now()) {}

void ProgressBar::update(int64_t done) {
  if (!out_) return;
  auto now = std::chrono::steady_clock::now();
  if (now - drawn_ < std::chrono::milliseconds(100) || now - begin_ < std::chrono::seconds(quiet_)) return;
  drawn_ = now;
  double elapsed = std::chrono::duration<double>(now - begin_).count();
  std::fprintf(out_, "\r%s\033[K", progress_text(label_, done, total_, elapsed).c_str());  // \033[K: clear what follows
  std::fflush(out_);
}

ProgressBar::~ProgressBar() { clear(); }

void ProgressBar::clear() {
  if (!out_ || drawn_ < begin_) return;
  std::fprintf(out_, "\r\033[K");
  std::fflush(out_);
}
