// optimizer.skip_spikes: an update whose loss or gradient norm is an outlier is not made. Outlier: more than z standard
// deviations above the mean of the last WINDOW steps, once MINIMUM of them are known. What is skipped enters the window
// cut down to the threshold, so that one spike does not hide the next, and a level that lasts stops being one.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

// What a checkpoint carries.
struct SpikeHistory {
  std::vector<double> loss, grad_norm;  // of the last steps, oldest first
  int64_t skipped = 0;                  // updates, from the beginning of the run
};

class SpikeGuard {
 public:
  static constexpr size_t WINDOW = 128, MINIMUM = 16;
  SpikeGuard(double z, SpikeHistory history) : z_(z), history_(std::move(history)) {}  // z = 0: nothing is ever a spike
  // Why this step's update is to be skipped, "" if it is not. Finite values only.
  std::string judge(double loss, double grad_norm);
  const SpikeHistory& history() const { return history_; }

 private:
  double z_;
  SpikeHistory history_;
};
