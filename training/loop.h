// The training loop.
#pragma once
#include <optional>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/metrics.h"
#include "data/loader.h"
#include "data/shards.h"
#include "train_gpt2.h"
#include "training/device.h"
#include "training/evaluations.h"

// Loss and gradients of the next batch, before the update; none if no window of the batch, of all ranks, has a label
// (data.labels). Called by all ranks.
std::optional<StepResult> next_gradients(Model& model, Loader& loader);

// Trains from `state` to the last step: steps, evaluations, samples, checkpoints and the requests of signals. Called by
// all ranks. run: rank 0's folder; nullptr on the others, which write nothing. A failure if training diverges.
void train(Model& model, const DeviceInfo& device, Loader& loader, const std::vector<Evaluation>& evaluations,
           RunDir* run, RunState state, MetricsLog& metrics);
