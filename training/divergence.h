// Reports a non-finite loss or gradient: the step, the first bad tensor, and a checkpoint to restart from.
#pragma once
#include <string>

#include "train_gpt2.h"

// A failure. run: the folder of the run; step: the one that had this result; before_any_update: the weights are those
// that the run began with. Called by all ranks.
[[noreturn]] void report_divergence(Model& model, const std::string& run, int64_t step, bool before_any_update,
                                    StepResult result);
