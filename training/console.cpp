#include "training/console.h"

#include <cmath>

#include "base/error.h"
#include "base/text.h"

std::string console_line(const TrainReport& r, double eta_seconds) {
  std::string line = format("step %4ld/%ld | loss %s | norm %s | lr %.2e | ", r.step, r.steps,
                            cell_text("%.4f", r.loss).c_str(), cell_text("%.2f", r.grad_norm).c_str(), r.lr);
  line += format(r.ms < 9.95 ? "%.1f ms | " : "%.0f ms | ", r.ms) + count_text(r.tokens_per_s) + " tok/s";
  if (std::isfinite(r.mfu)) line += format(" | mfu %.1f%%", 100 * r.mfu);
  return line + " | eta " + duration_text(eta_seconds);
}
