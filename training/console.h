// The lines that a run prints while it trains.
#pragma once
#include <string>

#include <cstdint>

// What a step is reported with, here and in metrics.jsonl.
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

// "step  120/18865 | loss 6.0321 | norm 1.23 | lr 1.03e-04 | 298 ms | 1.76M tok/s | mfu 41.2% | eta 1h34m"
// mfu is left out if it is unknown.
std::string console_line(const TrainReport& report, double eta_seconds);
