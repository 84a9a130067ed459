// The training loop.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
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

// The console's line of a step, from the fields of its line in metrics.jsonl; an unknown mfu (NaN) is left out:
// "step  120/18865 | loss 6.0321 | norm 1.23 | lr 1.03e-04 | 298 ms | 1.76M tok/s | mfu 41.2% | eta 1h34m"
std::string console_line(const nlohmann::ordered_json& fields, int64_t steps, double eta_seconds);

// Trains from `state` to the last step: steps, evaluations, samples, checkpoints and the requests of signals. Called by
// all ranks. run: rank 0's folder; nullptr on the others, which write nothing. A failure if training diverges.
void train(Model& model, const DeviceInfo& device, Loader& loader, const std::vector<Evaluation>& evaluations,
           RunDir* run, RunState state, MetricsLog& metrics);
