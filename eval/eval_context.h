// Shared by all evaluations: their context (EvalContext), how their lines begin, and the loop over their batches.
#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "checkpoint/metrics.h"
#include "train_gpt2.h"

// Whose weights are evaluated: those of a run after a step.
struct WeightsOrigin {
  std::string run;               // its name
  std::string path;              // the folder of the run while it trains, of the checkpoint, of `init`; else "random"
  int64_t step = 0, tokens = 0;  // the steps they have had, and the tokens of these steps
  // "" while a run trains. Otherwise of the checkpoint, or of what determines the weights without one: the files of
  // `init` and the settings of the model.
  std::string checksum = {};
};

// Called before every batch, equally often on every rank; must return the same on all: true ends an evaluation without
// a result. May be empty.
using Stop = std::function<bool()>;

struct EvalContext {
  Model& model;
  WeightsOrigin origin;
  MetricsLog& metrics;
  Stop stop;
};

// The identity of an evaluation: equal for those that asked the same in the same way, of whatever weights. `what` holds
// all that this depends on; the names of its files (data_json()) do not count.
std::string evaluation_id(const nlohmann::ordered_json& what);
// What every evaluation at a length has in `of`: the precision, and what replaces the model's settings there.
nlohmann::ordered_json conditions_at(const Config& config, int length);
// The beginning of an evaluation's line: {"id", "step", "tokens", "weights"}.
nlohmann::ordered_json line_of(const WeightsOrigin& origin, const std::string& id);

// Divides `count` windows or prompts among the ranks and calls f(first, n) for each batch of this rank, in order; n is
// `batch`, or less in a last batch. Returns false if `stop` ended it.
bool for_batches_of_rank(Comm& comm, int64_t count, int batch, const Stop& stop,
                         const std::function<void(int64_t first, int n)>& f);

// The same for windows of this length, with the rotations of this length and a progress bar of this title.
bool for_windows_of_rank(Model& model, const std::string& title, int length, int64_t windows, int batch,
                         const Stop& stop, const std::function<void(int64_t first, int n)>& f);

// Of the mean of `count` values that are 0 or 1: the spread sqrt(p (1 - p)) of one of them, estimated from count - 1
// degrees of freedom as that of other means is, over the root of their number. NaN for a single value.
double share_error(double share, double count);

double mean_of(const std::vector<double>& values);
