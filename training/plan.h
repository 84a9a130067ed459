// The memory plan of a run: which micro batch fits, and what it takes.
#pragma once
#include <vector>

#include "ranks/comm.h"
#include "settings/config.h"
#include "training/device.h"

struct Plan {
  size_t eval_rows;  // the most rows that are evaluated at once
  int eval_length;   // the longest sequence
  bool training;
  int ranks;
};

// Chooses or checks batch.micro and prints the memory table; a user_error if the run does not fit. lengths: to evaluate
// at. A resumed run keeps its micro batch (before; 0 for a new run), because another one rounds sums differently. All
// ranks get the same.
Plan plan_run(Config& config, const DeviceInfo& device, std::vector<int> lengths, bool training, int before, Comm& comm);
