#include "training/start.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <thread>

#include "base/checksum.h"
#include "data/tokenizer.h"
#include "eval/evaluate.h"
#include "training/products.h"

DeviceInfo prepare_device(Config& config, const Ranks& ranks, bool remeasure) {
  choose_device(ranks);
  DeviceInfo device = device_info();
  if (on_cpu) device.free_memory /= size_t(ranks.size);  // the ranks share it
  if (config.precision.empty()) config.precision = device.is_gpu ? "bf16" : "fp32";
  if (ranks.rank == 0) use_product_cache(device, remeasure);
  int cores = int(std::thread::hardware_concurrency());
  set_cpu_threads(config.threads > 0 ? config.threads : std::max(1, cores / ranks.size));
  return device;
}

static std::vector<DataFile> data_files(const std::vector<Shard>& shards) {
  std::vector<DataFile> files;
  for (const Shard& shard : shards)
    files.push_back({valid_utf8(std::filesystem::path(shard.path).filename().string()), shard.tokens,
                     sampled_checksum(shard.path)});
  return files;
}

Data open_data(const Flags& flags, Config& config, bool training, bool evaluates) {
  Data data;
  if (!flags.lengths.empty()) config.eval.lengths = parse_lengths(flags.lengths, "--lengths");
  Config checked = config;
  if (flags.passkey) checked.eval.tokens = std::numeric_limits<int64_t>::max();  // its prompts are no validation tokens
  if (evaluates || flags.passkey)
    check_lengths(checked, config.eval.lengths, flags.lengths.empty() ? "eval.lengths" : "--lengths");
  if (training) data.train = open_shards(config.data.train, config.model.vocab, "data.train");
  if (evaluates) data.val = open_shards(config.data.val, config.model.vocab, "data.val");
  for (int length : evaluates ? config.eval.lengths : std::vector<int>{})
    check_windows(config, data.val, length, config.eval.tokens);
  data.train_files = data_files(data.train);
  data.val_files = data_files(data.val);
  return data;
}

std::unique_ptr<WindowReader> training_windows(const Config& config, const std::vector<Shard>& shards) {
  auto windows = std::make_unique<WindowReader>(shards, config.model.context, config.model.vocab, "data.train");
  double epoch = double(windows->windows()) * config.model.context;
  std::printf("data: %zu shards, %lld windows of %d tokens; %lld steps are %.3g epochs\n", shards.size(),
              (long long)windows->windows(), config.model.context, (long long)config.train.steps,
              double(config.train.steps) * double(config.batch.tokens) / epoch);
  return windows;
}

// Rank 0 looks for the checkpoint to resume from, and the other ranks take the same one.
template <class Find> static std::optional<Checkpoint> agreed_point(Comm& comm, bool training, Find find) {
  std::optional<Checkpoint> found = comm.first() ? find() : std::nullopt;
  std::string path = comm.broadcast(found ? found->path : ""), checksum = comm.broadcast(found ? found->checksum : "");
  if (found || path.empty()) return found;
  Checkpoint same;
  std::string problem = read_checkpoint(path, training, &same);
  if (problem.empty() && same.checksum != checksum) problem = "it is not the one of that name that rank 0 sees";
  if (!problem.empty()) failure("checkpoint: %s: %s; all ranks must see the same runs/", path.c_str(), problem.c_str());
  return same;
}

Beginning find_beginning(const Flags& flags, const Config& config, Comm& comm, bool training, bool real_run) {
  Beginning found;
  if (!flags.resuming) return found;
  found.place = resume_place(flags.resume, config.name);
  const std::string& run = found.place.run;
  if (flags.overwrite && found.place.within)
    user_error(
        "command line: --resume continues %s and --overwrite deletes it; give only one of them, or another name "
        "(--set name=...)",
        run.c_str());
  std::error_code ignored;
  bool begun = found.place.own && std::filesystem::is_directory(run, ignored);
  if (real_run && begun && comm.first()) found.run_dir = std::make_unique<RunDir>(config.name);
  found.from = agreed_point(comm, training, [&] { return resume_point(found.place, training, found.run_dir.get()); });
  if (!found.from && !(training && found.place.own))
    user_error("command line: --resume: %s is neither a step_* folder nor a run that holds one", run.c_str());
  if (!found.from) std::printf("%s has no checkpoint yet: starting afresh\n", run.c_str());
  return found;
}
