// The training loop.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/metrics.h"
#include "data/loader.h"
#include "data/shards.h"
#include "data/task_file.h"
#include "train_gpt2.h"
#include "training/device.h"

// Loss and gradients of the next batch, before the update. Called by all ranks.
StepResult next_gradients(Model& model, Loader& loader);

// Warns of the parameters whose gradient, as next_gradients() left it, is exactly 0. Called by all ranks; rank 0 prints.
void warn_of_zero_gradients(Model& model);

// The lengths that are still to be evaluated at the step where a run resumes: those due and not in its metrics.jsonl.
std::vector<int> missing_lengths(const Config& config, const std::string& run, int64_t step);
// The same of task.names, as their numbers.
std::vector<int> missing_tasks(const Config& config, const std::string& run, int64_t step);

// The same for diagnostics.
std::vector<int> missing_diagnostics(const Config& config, const std::string& run, int64_t step);

// Trains from `state` to the last step: steps, evaluations, samples, checkpoints and the requests of signals. tasks:
// those of task.names, if task.every > 0. Called by all ranks. run: rank 0's folder; nullptr on the others, which write
// nothing. A failure if training diverges.
void train(Model& model, const DeviceInfo& device, Loader& loader, const std::vector<Shard>& val,
           const std::vector<Task>& tasks, RunDir* run, RunState state, MetricsLog& metrics);
