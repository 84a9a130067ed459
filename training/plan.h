// The memory plan of a run: which micro batch fits, and how much memory is used.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "ranks/comm.h"
#include "settings/config.h"
#include "training/device.h"
#include "training/evaluations.h"

struct ModelSize {   // what a model is made for
  size_t eval_rows;  // the most rows (windows x length) that are evaluated at once
  int eval_length;   // the longest sequence
  bool training;
  int ranks;
  int micro = 0;  // batch.micro, as plan_run() chose it
};

// The memory of a run with config.batch.micro on the device, in bytes by name: the model's arrays and, on a GPU, what
// is still to come when free memory is read. That is all that CUDA takes for a GPU of plan.memory; on the GPU itself
// the context and NCCL's buffers are there before.
using MemoryRows = std::vector<std::pair<std::string, size_t>>;
MemoryRows memory_rows(const Config& config, const ModelSize& size);
size_t total_bytes(const MemoryRows& rows);

// Chooses or checks batch.micro and prints the memory table; a user_error if the run does not fit. lengths: those that
// will be evaluated. before: a resumed run's micro batch (0 for a new run), kept because another one rounds sums
// differently. All ranks get the same plan.
// With config.plan.ranks set, the plan is for that many ranks, not for comm's.
ModelSize plan_run(Config config, const DeviceInfo& device, std::vector<int> lengths, bool training, int before,
                   Comm& comm);
// The work of the run's steps after `step`, "8e+18 FLOP in 19,073 steps", and the hours if plan.tflops is given.
// documents: as for flops_per_token().
std::string work_text(const Config& config, int64_t step, int ranks, const std::vector<int>& documents = {});
// --dry-run: prints the work of the run's steps after `step`, the share of its evaluations and the bytes of its
// checkpoints, or the work of an evaluation that a flag asks for. config.batch.micro must be chosen.
void print_work(const Config& config, const std::vector<Evaluation>& evaluations, int64_t step, int ranks,
                const std::vector<int>& documents = {});

// --dry-run with plan.memory: prints the plan of a training run, or of an evaluation, on another GPU. Allocates
// nothing. evaluations: of planned_evaluations(config), whose config.batch.micro this sets. started: the ranks, if
// plan.ranks names none. from: the state from which --resume continues.
void plan_elsewhere(Config& config, const std::vector<Evaluation>& evaluations, bool training, int started,
                    const std::optional<RunState>& from);
