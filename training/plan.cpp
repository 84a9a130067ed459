#include "training/plan.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "base/text.h"
#include "eval/evaluate.h"
#include "train_gpt2.h"

// Bytes on the device. On the CPU the snapshot for checkpoints is in the same memory.
static size_t memory_needed(const Config& config, int micro, size_t eval_rows, const ModelSize& size) {
  size_t snapshot = size.training && planned_for_cpu(config) ? snapshot_bytes(config) : 0;
  return plan_memory(config, micro, eval_rows, size.eval_length, size.training, size.ranks).total() + snapshot;
}

static bool fits(Config config, ModelSize size, int micro, size_t budget) {
  config.batch.micro = micro;  // the batches of evaluations depend on it
  size.eval_rows = std::max(size.eval_rows, eval_rows(config, {size.eval_length}));
  return memory_needed(config, micro, size.eval_rows, size) <= budget;
}

// The largest micro batch that fits on every rank, in training one that divides a rank's sequences; 0 if none does.
// Each is tried: one that fits says nothing of a smaller one, whose logits may be in fewer and thus larger chunks.
static int largest_micro(const Config& config, const ModelSize& size, size_t budget, int most, Comm& comm) {
  int64_t sequences = size.training ? config.batch.tokens / config.model.context / size.ranks : 0;
  int micro = std::min(most, most_sequences(config, config.model.context));
  while (micro > 0 && (sequences % micro != 0 || comm.all_reduce_min(fits(config, size, micro, budget)) == 0)) micro--;
  return micro;
}

ModelSize plan_run(Config& config, const DeviceInfo& device, std::vector<int> lengths, bool training, int before,
                   Comm& comm) {
  lengths.push_back(config.model.context);
  int longest = *std::max_element(lengths.begin(), lengths.end());
  size_t budget = size_t(double(device.free_memory) * 0.92);  // the rest: matrix library, driver, host side
  int ranks = config.plan.ranks > 0 ? config.plan.ranks : comm.size();
  ModelSize size{size_t(longest), longest, training, ranks};
  int most = !training && config.batch.micro > 0 ? config.batch.micro : MOST_MICRO;
  int largest = largest_micro(config, size, budget, most, comm);
  if (training && config.batch.micro == 0 && before > 0) {
    bool divides = config.batch.tokens % (int64_t(before) * config.model.context * ranks) == 0;
    bool fit = comm.all_reduce_min(fits(config, size, before, budget)) > 0;
    if (fit && divides) config.batch.micro = before;
    if (!fit && comm.first())
      warn(
          "the run's micro batch, %d, does not fit on this machine: a smaller one is used, and losses "
          "will differ by rounding",
          before);
  }
  if (training) resolve_batch(config, ranks, std::max(1, largest));
  else config.batch.micro = std::max(1, largest);
  size.eval_rows = eval_rows(config, lengths);
  MemoryPlan memory = plan_memory(config, config.batch.micro, size.eval_rows, longest, training, ranks);
  std::string table;
  for (auto& [category, bytes] : memory.categories())
    table += format("  %-22s %10s\n", category.c_str(), bytes_text(double(bytes)).c_str());
  size_t total = memory_needed(config, config.batch.micro, size.eval_rows, size);
  if (training)  // a copy of parameters and moments, from which a checkpoint is written while training continues
    table += format("  %-22s %10s%s\n", "checkpoint snapshot", bytes_text(double(snapshot_bytes(config))).c_str(),
                    planned_for_cpu(config) ? "" : " of host memory, not counted below");
  table += format("  %-22s %10s of %s free", "in all", bytes_text(double(total)).c_str(),
                  bytes_text(double(device.free_memory)).c_str());
  if (training) {
    table += format("; micro batch %d", config.batch.micro);
    if (largest > config.batch.micro) table += format(", %d fits too", largest);
  }
  table += "\n";
  if (total > budget) {
    std::string fix = largest > 0 ? format("batch.micro to %d", largest) : "a shorter model.context or eval.lengths";
    if (config.eval.batch > 0) fix += ", a smaller eval.batch";
    user_error("memory: this run does not fit on %s:\n%sset %s, or a smaller model%s  [%s]", device.name.c_str(),
               table.c_str(), fix.c_str(),
               training && config.train.recompute != Recompute::block ? ", or train.recompute=block" : "",
               config.file.c_str());
  }
  std::printf("memory\n%s", table.c_str());
  return size;
}

void plan_elsewhere(Config config, bool evaluates, int started) {
  size_t memory = size_t(size_in_bytes(config.plan.memory));
  DeviceInfo device{"a GPU with " + bytes_text(double(memory)), true, 0, memory, 0};
  if (config.plan.ranks == 0) config.plan.ranks = started;
  std::vector<int> lengths = evaluates || config.diagnoses ? config.eval.lengths : std::vector<int>{};
  if (config.task.every > 0 && config.task.max_length > 0) lengths.push_back(config.task.max_length);
  plan_run(config, device, lengths, true, 0, Comm::alone());
  std::printf(
      "planned for %s, %d rank%s, %s, %ld parameters, %.6g GFLOP a token of training: nothing was allocated, no data "
      "were read, no step was run\n",
      device.name.c_str(), config.plan.ranks, config.plan.ranks > 1 ? "s" : "", precision_names[int(config.precision)],
      parameter_count(config), flops_per_token(config) / 1e9);
}
