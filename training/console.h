// The lines that a run prints while it trains.
#pragma once
#include <string>

#include "checkpoint/metrics.h"

// "step  120/18865 | loss 6.0321 | norm 1.23 | lr 1.03e-04 | 298 ms | 1.76M tok/s | mfu 41.2% | eta 1h34m"
// mfu is left out if it is unknown.
std::string console_line(const TrainReport& report, double eta_seconds);
