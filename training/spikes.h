// optimizer.skip_spikes: an update whose loss or gradient norm is an outlier is not made. An outlier is more than z
// standard deviations above the mean of the last SpikeHistory::WINDOW steps, once MINIMUM of them are known. A skipped
// value enters the window clipped to the threshold, so one spike does not hide the next, and a lasting level stops
// being an outlier.
#pragma once
#include <string>
#include <utility>

#include "checkpoint/checkpoint.h"

class SpikeGuard {
 public:
  static constexpr size_t MINIMUM = 16;
  SpikeGuard(double z, SpikeHistory history) : z_(z), history_(std::move(history)) {}  // z = 0: nothing is ever a spike
  // Returns why this step's update is to be skipped, "" if it is not. Both values must be finite.
  std::string judge(double loss, double grad_norm);
  void skip() { history_.skipped++; }  // counts an update that is skipped for another reason
  const SpikeHistory& history() const { return history_; }

 private:
  double z_;
  SpikeHistory history_;
};
