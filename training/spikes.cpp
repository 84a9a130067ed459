#include "training/spikes.h"

#include <cmath>

#include "base/error.h"
#include "base/text.h"

// Adds x to the window; returns a description if x is an outlier, else "".
static std::string add(std::vector<double>& window, double x, double z, const char* name) {
  std::string outlier;
  if (window.size() >= SpikeGuard::MINIMUM) {
    double mean = 0, variance = 0, count = double(window.size());
    for (double value : window) mean += value / count;
    for (double value : window) variance += (value - mean) * (value - mean) / count;
    double deviation = std::sqrt(variance), limit = mean + z * deviation;
    if (x > limit) {
      outlier = deviation == 0
                    ? format("%s %.4g after %zu times %.4g", name, x, window.size(), mean)
                    : format("%s %.4g is %.1f standard deviations above %.4g, the mean of the last %zu steps", name, x,
                             (x - mean) / deviation, mean, window.size());
      x = limit;
    }
  }
  window.push_back(x);
  if (window.size() > SpikeHistory::WINDOW) window.erase(window.begin());
  return outlier;
}

std::string SpikeGuard::judge(double loss, double grad_norm) {
  if (z_ <= 0) return "";
  std::string reasons = add(history_.loss, loss, z_, "loss");
  std::string norm = add(history_.grad_norm, grad_norm, z_, "gradient norm");
  if (!norm.empty()) append_item(reasons, norm, "; ");
  history_.skipped += !reasons.empty();
  return reasons;
}
