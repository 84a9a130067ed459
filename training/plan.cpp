#include "training/plan.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <string>

#include "base/text.h"
#include "eval/evaluate.h"
#include "kernels/matmul.cuh"
#include "train_gpt2.h"
#include "training/flops.h"

// A copy of parameters and moments, from which a checkpoint is written while training continues.
static const char* const SNAPSHOT = "checkpoint snapshot";

// Memory of a GPU that is not the model's arrays.
static constexpr size_t MIB = size_t(1) << 20;
// The code of all kernels, each of which CUDA loads when it is first used: 8.3 to 9.7 MiB (.text and .nv.constant in
// the cubins of an executable with all kinds and head sizes, by nvcc 13.0 for 80, 90a, 100 or 120).
static constexpr size_t KERNELS = 10 * MIB;
// Users of other programs report about 3 MiB a multiprocessor: 107 MiB on an RTX 4060 Ti (34), 256 on an RTX 3090 (82),
// 426 on an RTX 6000 Ada (142), 555 on an RTX PRO 6000 (188). With 8 to 24 GB, a GPU has at most 7 of them a GB.
static size_t context_on(double memory) { return std::min(560 * MIB, size_t(0.02 * memory)); }
// A channel, which occupies a multiprocessor, has a buffer for each protocol to either neighbor in the ring: LL, LL128
// and NCCL_BUFFSIZE (src/init.cc of NCCL 2.30). Less if NCCL uses fewer channels, or memory of the host.
static constexpr size_t NCCL_BUFFERS =
    2 * Comm::MULTIPROCESSORS * ((size_t(8) * 512 * 8 * 16) + (size_t(120) * 640 * 8 * 8) + 4 * MIB);

MemoryRows memory_rows(const Config& config, const ModelSize& size) {
  MemoryRows rows =
      plan_memory(config, config.batch.micro, size.eval_rows, size.eval_length, size.training, size.ranks).categories();
  if (planned_for_cpu(config)) {
    if (size.training) rows.emplace_back(SNAPSHOT, snapshot_bytes(config));
    return rows;
  }
  rows.emplace_back("matmul workspace", MATMUL_WORKSPACE);
  rows.emplace_back("kernels", KERNELS);
  if (!config.plan.plans_other_gpu()) return rows;  // the rest was taken before free memory was read
  rows.emplace_back("CUDA context", context_on(size_in_bytes(config.plan.memory)));
  if (size.ranks > 1) rows.emplace_back("NCCL's buffers", NCCL_BUFFERS);
  return rows;
}

// Which families of attention's kernels the layers take in training.
template <class Real> static std::string families_text(const Config& config) {
  const Config::Model& m = config.model;
  std::set<std::string> names;
  for (int l = 0; l < m.layers; l++) {
    AttentionSettings s = config.layer(l).attention;
    AttentionShape shape{config.batch.micro, m.context, m.heads, m.head_dim};
    names.insert(attention_family<Real>({.settings = s, .shape = shape, .qkv_stride = qkv_columns(m, s).Q}));
  }
  std::string text = "attention: the kernels of";
  for (const std::string& name : names) text += " " + name;
  return text;
}

size_t total_bytes(const MemoryRows& rows) {
  size_t sum = 0;
  for (auto& [name, bytes] : rows) sum += bytes;
  return sum;
}

// No plan uses this share of the free memory. On a GPU it is for the kernels of cuBLASLt and NCCL, loaded when first
// used, and for fragments; on the CPU for libraries and all that the host needs.
static double reserved_share(const Config& config) { return planned_for_cpu(config) ? 0.08 : 0.03; }

static bool fits(Config config, ModelSize size, int micro, size_t budget) {
  config.batch.micro = micro;  // the batches of evaluations depend on it
  size.eval_rows = std::max(size.eval_rows, eval_rows(config, {size.eval_length}));
  return total_bytes(memory_rows(config, size)) <= budget;
}

// The largest micro batch that fits on every rank, in training one that divides a rank's sequences; 0 if none does.
// Each is tried: one that fits says nothing of a smaller one, whose logits may be in fewer and thus larger chunks.
static int largest_micro(const Config& config, const ModelSize& size, size_t budget, int most, Comm& comm) {
  int64_t sequences = size.training ? config.batch.tokens / config.model.context / size.ranks : 0;
  int micro = std::min(most, most_sequences(config, config.model.context));
  while (micro > 0 && (sequences % micro != 0 || comm.all_reduce_min(fits(config, size, micro, budget)) == 0)) micro--;
  return micro;
}

// Changes with which the run fits; each was planned.
static std::string what_fits(Config config, ModelSize size, size_t budget) {
  std::string changes, offers;
  auto offer = [&](const std::string& length) {
    int micro = largest_micro(config, size, budget, MOST_MICRO, Comm::alone());
    std::string settings = changes;
    if (!length.empty()) append_item(settings, length);
    if (size.training) append_item(settings, format("batch.micro=%d", micro));
    if (micro > 0) append_item(offers, settings, ", or ");
  };
  size.eval_rows = size_t(size.eval_length);
  if (config.eval.batch > 0) config.eval.batch = 0, changes = "eval.batch=0";
  offer("");
  if (size.training && config.train.recompute != Recompute::block) {
    config.train.recompute = Recompute::block;
    append_item(changes, "train.recompute=block");
    offer("");
  }
  int shortest = size.training ? 1 : config.model.context;  // which cannot change any more
  while (offers.empty() && size.eval_length / 2 >= shortest) {
    size.eval_length /= 2, size.eval_rows /= 2;
    config.model.context = std::min(config.model.context, size.eval_length);
    offer(format("model.context and eval.lengths of at most %d", size.eval_length));
  }
  return offers.empty() ? "no length fits: use a smaller model, or more memory" : "it fits with " + offers;
}

ModelSize plan_run(Config config, const DeviceInfo& device, std::vector<int> lengths, bool training, int before,
                   Comm& comm) {
  lengths.push_back(config.model.context);
  int longest = *std::max_element(lengths.begin(), lengths.end());
  size_t reserve = size_t(double(device.free_memory) * reserved_share(config)), budget = device.free_memory - reserve;
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
  size.micro = config.batch.micro;
  size.eval_rows = eval_rows(config, lengths);
  MemoryRows rows = memory_rows(config, size);
  std::string table;
  for (auto& [name, bytes] : rows) table += format("  %-22s %10s\n", name.c_str(), bytes_text(double(bytes)).c_str());
  if (training && !planned_for_cpu(config))
    table += format("  %-22s %10s of host memory, not counted below\n", SNAPSHOT,
                    bytes_text(double(snapshot_bytes(config))).c_str());
  table += format("  %-22s %10s of %s free, %s in reserve", "in all", bytes_text(double(total_bytes(rows))).c_str(),
                  bytes_text(double(device.free_memory)).c_str(), bytes_text(double(reserve)).c_str());
  if (training) {
    table += format("; micro batch %d", config.batch.micro);
    if (largest > config.batch.micro) table += format(" (up to %d fits)", largest);
  }
  table += "\n";
  if (total_bytes(rows) > budget)
    user_error("memory: this run does not fit on %s:\n%s%s  [%s]", device.name.c_str(), table.c_str(),
               what_fits(config, size, budget).c_str(), config.file.c_str());
  std::printf("memory\n%s", table.c_str());
  if (training && !config.plan.plans_other_gpu())
    std::puts((config.precision == Precision::bf16 ? families_text<bf16> : families_text<float>)(config).c_str());
  return size;
}

static std::string hours_text(const Config& config, double flops, int ranks) {
  double rate = config.plan.tflops;
  return rate > 0 ? format(", %.3g hours at %g TFLOP/s a rank", flops / (rate * 1e12 * ranks * 3600), rate) : "";
}

static double work_of_steps(const Config& config, int64_t step, const std::vector<int>& documents) {
  double of_tokens = flops_per_token(config, documents) * double(config.batch.tokens);
  return (of_tokens + update_flops(config)) * double(config.train.steps - step);
}

std::string work_text(const Config& config, int64_t step, int ranks, const std::vector<int>& documents) {
  double flops = work_of_steps(config, step, documents);
  std::string text = format("%.3g FLOP in %ld steps", flops, config.train.steps - step);
  double muon = update_flops(config) * double(config.train.steps - step);
  if (muon > 0) text += format(", %.2g%% of them Muon's", 100 * muon / flops);
  return text + hours_text(config, flops, ranks);
}

void print_work(const Config& config, const std::vector<Evaluation>& evaluations, int64_t step, int ranks,
                const std::vector<int>& documents) {
  EvaluationWork work = evaluation_work(config, evaluations, step, ranks, documents);
  std::string text = format("%.3g FLOP for %s tokens", work.flops, count_text(work.tokens).c_str()) +
                     hours_text(config, work.flops, ranks);
  if (std::ranges::any_of(evaluations, &Evaluation::asked))
    return void(std::printf("the evaluation: %s\n", text.c_str()));
  std::printf("the run: %s\n", work_text(config, step, ranks, documents).c_str());
  if (double steps = work_of_steps(config, step, documents); work.flops > 0 && steps > 0)
    std::printf("its evaluations: %s, %.3g%% of the steps' work\n", text.c_str(), 100 * work.flops / steps);
  if (config.checkpoint.every > 0 || config.checkpoint.at_end)
    std::printf("its checkpoints: %s each, up to %d on disk\n", bytes_text(double(snapshot_bytes(config))).c_str(),
                config.checkpoint.keep + 1);
}

void plan_elsewhere(Config& config, const std::vector<Evaluation>& evaluations, bool training, int started,
                    const std::optional<RunState>& from) {
  size_t memory = size_t(size_in_bytes(config.plan.memory));
  DeviceInfo device{"a GPU with " + bytes_text(double(memory)), true, 0, memory, 0};
  if (config.plan.ranks == 0) config.plan.ranks = started;
  if (on_cpu) config.attention.family = "";  // this build lacks those of a GPU
  std::vector<int> lengths = lengths_of(evaluations);
  if (training && config.task.every > 0 && config.task.max_length > 0) lengths.push_back(config.task.max_length);
  config.batch.micro =
      plan_run(config, device, lengths, training, from ? from->config.batch.micro : 0, Comm::alone()).micro;
  std::string per_token =
      training ? format(", %.6g GFLOP a token of training", flops_per_token(config) / 1e9) : std::string();
  std::printf(
      "planned for %s, %d rank%s, %s, %ld parameters%s: nothing was allocated, no data were read, no step was run%s\n",
      device.name.c_str(), config.plan.ranks, config.plan.ranks > 1 ? "s" : "", precision_names[int(config.precision)],
      parameter_count(config), per_token.c_str(),
      config.attention.documents == Documents::separate ? "; FLOP are those of joined documents" : "");
  print_work(config, evaluations, from ? from->step : 0, config.plan.ranks);
}
