// The program: ./train CONFIG.json. Configuration, memory plan, then the training loop, an evaluation or
// a text. Exit codes: 0, 2 for what the user can fix, 1 for what failed.
#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "data/loader.h"
#include "eval/evaluate.h"
#include "eval/generate.h"
#include "kernels/matmul.cuh"
#include "checkpoint/state.h"
#include "training/agreement.h"
#include "base/background.h"
#include "checkpoint/checkpoint.h"
#include "base/checksum.h"
#include "settings/command_line.h"
#include "training/device.h"
#include "ranks/launcher.h"
#include "checkpoint/log.h"
#include "checkpoint/resume.h"
#include "checkpoint/run_dir.h"
#include "settings/schedule.h"
#include "base/signals.h"
#include "train_gpt2.h"
#include "version.h"

// ---------------------------------------------------------------------------------------------------------------------
// Memory

struct Plan {
  size_t eval_rows;
  int eval_length;
  bool training;
  int ranks;
};

// On the device. On the CPU the snapshot for checkpoints comes from the same memory.
static size_t memory_needed(const Config& config, int micro, size_t eval_rows, const Plan& plan) {
  size_t snapshot = plan.training && on_cpu ? snapshot_bytes(config) : 0;
  return plan_memory(config, micro, eval_rows, plan.eval_length, plan.training, plan.ranks).total() + snapshot;
}

static int64_t largest_micro(const Config& config, const Plan& plan, size_t budget) {
  auto fits = [&](int64_t micro) {
    Config with = config;
    with.batch.micro = int(micro);  // longer evaluations take their batch from it
    size_t rows = std::max(plan.eval_rows, eval_rows(with, {plan.eval_length}));
    return memory_needed(with, int(micro), rows, plan) <= budget;
  };
  int64_t low = 0, high = MAX_SEQUENCES + 1;  // fits(low) holds, fits(high) is not asked for
  while (low + 1 < high) {
    int64_t middle = (low + high) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

// Chooses or checks the micro batch and prints the memory table; a user_error if it does not fit. A run that goes on
// keeps its micro batch (before; 0: it is new), because with another one sums are rounded otherwise. Ranks get the
// same.
static Plan plan_run(Config& config, const DeviceInfo& device, std::vector<int> lengths, bool training, int before,
                     Comm& comm) {
  lengths.push_back(config.model.context);
  int longest = *std::max_element(lengths.begin(), lengths.end());
  size_t budget = size_t(double(device.free_memory) * 0.92);  // the rest: matrix library, driver, host side
  Plan plan{size_t(longest), longest, training, comm.size()};
  int64_t fits = int64_t(comm.least(double(largest_micro(config, plan, budget))));
  bool divides = before > 0 && config.batch.tokens % (int64_t(before) * config.model.context * comm.size()) == 0;
  if (training && config.batch.micro == 0 && before <= fits && divides) config.batch.micro = before;
  if (training && config.batch.micro == 0 && before > fits && comm.first())
    std::fprintf(stderr,
                 "warning: the run's micro batch, %d, does not fit on this machine: with a smaller one the losses "
                 "are equal but for rounding\n",
                 before);
  if (training) resolve_batch(config, comm.size(), std::max<int64_t>(1, fits));
  else
    config.batch.micro =
        int(std::max<int64_t>(1, std::min<int64_t>(fits, config.batch.micro > 0 ? config.batch.micro : 64)));
  plan.eval_rows = eval_rows(config, lengths);
  MemoryPlan memory = plan_memory(config, config.batch.micro, plan.eval_rows, longest, training, comm.size());
  std::string table;
  for (auto& [category, bytes] : memory.categories())
    table += format("  %-22s %10s\n", category.c_str(), bytes_text(double(bytes)).c_str());
  size_t total = memory_needed(config, config.batch.micro, plan.eval_rows, plan);
  if (training)  // the parameters and moments that a checkpoint is written from while training goes on
    table += format("  %-22s %10s%s\n", "checkpoint snapshot", bytes_text(double(snapshot_bytes(config))).c_str(),
                    on_cpu ? "" : " of host memory, not counted below");
  table += format("  %-22s %10s of %s free; micro batch %d, the largest that fits is %lld\n", "in all",
                  bytes_text(double(total)).c_str(), bytes_text(double(device.free_memory)).c_str(), config.batch.micro,
                  (long long)fits);
  if (total > budget) {
    std::string fix =
        fits >= 1 ? format("batch.micro to at most %lld", (long long)fits) : "a shorter model.context or eval.lengths";
    if (config.eval.batch > 0) fix += ", a smaller eval.batch";
    user_error("memory: this run does not fit on %s:\n%sset %s, or a smaller model%s  [%s]", device.name.c_str(),
               table.c_str(), fix.c_str(), training ? ", or train.recompute=block" : "", config.file.c_str());
  }
  std::printf("memory\n%s", table.c_str());
  return plan;
}

// ---------------------------------------------------------------------------------------------------------------------
// What the program can do

// Whether all losses are finite. stop: evaluate()'s. It ends this too, and a run that continues finds what is missing.
static bool evaluate_lengths(Model& model, const std::vector<Shard>& shards, const std::vector<int>& lengths,
                             int64_t step, const char* type, MetricsLog* metrics,
                             const std::function<bool()>& stop = {}) {
  bool finite = true;
  for (int length : lengths) {
    std::optional<LengthLoss> loss = evaluate(model, shards, length, model.config().eval.tokens, stop);
    if (!loss) return finite;
    LengthLoss& result = *loss;
    finite = finite && std::isfinite(result.loss);
    std::printf("%s  step %lld  length %5d | loss %.4f | last %d: %.4f | %s tokens\n", type, (long long)step, length,
                result.loss, std::min(1024, length), result.last_loss, count_text(double(result.tokens)).c_str());
    std::fflush(stdout);
    if (!metrics) continue;
    if (std::string(type) == "eval")
      metrics->eval(step, length, result.loss, result.tokens, result.last_loss, result.by_position);
    else metrics->val(step, length, result.loss, result.tokens);
  }
  return finite;
}

static void generate_text(Model& model) {
  if (!model.comm().first()) return;
  const Config::Generate& settings = model.config().generate;
  auto tokenizer = open_tokenizer(settings.tokenizer, settings.tokenizer_dir);
  auto print = [](const std::string& text) {
    std::fputs(valid_utf8(text).c_str(), stdout);
    std::fflush(stdout);
  };
  generate(model, *tokenizer, settings, model.config().seed, print, stop_requested);
  std::printf("\n");
}

static AdamW adamw_settings(const Config& config, int64_t step) {
  const Config::Optimizer& o = config.optimizer;
  return {.lr = float(learning_rate(config, step)),
          .beta1 = float(o.beta1),
          .beta2 = float(o.beta2),
          .eps = float(o.eps),
          .weight_decay = float(o.weight_decay),
          .step = int(step + 1)};
}

static double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static bool due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

static std::vector<int> due_lengths(const Config& config, int64_t step) {
  bool at_end = config.eval.every > 0 && step == config.train.steps;
  return due(config.eval.every, step) || at_end ? config.eval.lengths : std::vector<int>{};
}

// The same for the step where a run goes on: it may have been evaluated there already, or at some of the lengths.
static std::vector<int> missing_lengths(const Config& config, const std::string& run, int64_t step) {
  std::vector<int> lengths = due_lengths(config, step);
  std::set<int> done = evaluated_lengths(run + "/metrics.jsonl", step);
  std::erase_if(lengths, [&](int length) { return done.count(length) > 0; });
  return lengths;
}

// A loss or a gradient that is no number: which step, where it began, and from where one can go on.
[[noreturn]] static void report_divergence(Model& model, const std::string& run, int64_t step, StepResult result) {
  auto largest = [&](const Tensor& tensor, Part part) {  // |x|, infinite where one is no number
    std::vector<float> values(tensor.size);
    model.read(tensor, part, values.data());
    float most = 0;
    for (float x : values) most = std::isfinite(x) ? std::max(most, std::fabs(x)) : INFINITY;
    return most;
  };
  // Parameters from the first to the last; else gradients in the order of the backward pass. Gathering parameters may
  // cost the gradients, so those are looked at before.
  std::string where;
  const Tensor* steepest = nullptr;
  float slope = -1;
  model.gather(Part::gradients);
  for (auto tensor = model.tensors().rbegin(); tensor != model.tensors().rend(); ++tensor)
    if (float most = largest(*tensor, Part::gradients); most > slope) slope = most, steepest = &*tensor;
  model.gather(Part::parameters);
  for (const Tensor& tensor : model.tensors())
    if (where.empty() && std::isinf(largest(tensor, Part::parameters)))
      where = "the first parameter that is not finite is " + tensor.name;
  if (where.empty() && std::isinf(slope)) where = "the first gradient that is not finite is that of " + steepest->name;
  else if (where.empty()) where = format("the largest gradient, %g, is that of %s", slope, steepest->name.c_str());
  // The weights of step - 1 have given this loss; those before gave a finite one.
  std::string from = checkpoint_before(run, step - 1);
  failure("step %lld: loss %g, gradient norm %g: training has diverged, and the update was not made; %s. Begin another "
          "run with a lower learning rate or a longer warmup: --set name=... --set optimizer.lr=... --set "
          "optimizer.warmup_steps=...%s",
          (long long)step, result.loss, result.grad_norm, where.c_str(),
          from.empty() ? "" : (", from weights with a finite loss: --set init=" + from).c_str());
}

// The run's metrics, with a line that says who begins to write there; nothing at ranks without a folder.
static MetricsLog begun_metrics(const RunDir* run, const Flags& flags, Model& model, const DeviceInfo& device) {
  MetricsLog metrics = run ? MetricsLog(run->metrics_path()) : MetricsLog();
  int ranks = model.comm().size();
  std::string name = ranks > 1 ? format("%d x %s", ranks, device.name.c_str()) : device.name;
  metrics.start(PLUSGPT_VERSION, flags.command, config_text(model.config()), name,
                {{"backend", on_cpu ? "cpu" : "cuda"}});
  return metrics;
}

// Loss and gradients of the next batch, before the update.
static StepResult next_gradients(Model& model, Loader& loader) {
  model.begin_step();
  for (int64_t m = 0, count = micro_steps(model.config(), model.comm().size()); m < count; m++) {
    const Batch& batch = loader.next();
    model.forward_backward(batch.inputs.data(), batch.targets.data());
  }
  return model.finish(float(model.config().optimizer.grad_clip));
}

// The training loop, from `state` on, of every rank. run: rank 0's folder, nullptr at the others, which write nothing.
static void train(Model& model, const Flags& flags, const DeviceInfo& device, Loader& loader,
                  const std::vector<Shard>& val, RunDir* run, RunState state) {
  const Config& config = model.config();
  Comm& comm = model.comm();
  const std::string path = "runs/" + config.name;
  int64_t first = state.step, steps = config.train.steps;
  int64_t saved = comm.agree(newest_step(path));  // 0: nothing yet, as when another run is continued
  std::vector<int> missing = comm.agree(missing_lengths(config, path, first));
  MetricsLog metrics = begun_metrics(run, flags, model, device);
  double peak = config.precision == "bf16" ? device.peak_bf16_flops * comm.size() : 0, flops = flops_per_token(config);
  Eta eta;
  SpikeGuard spikes(config.optimizer.skip_spikes, state.spikes);
  Background background;
  auto save_unless_saved = [&] {
    if (state.step == std::exchange(saved, state.step)) return;
    state.tokens = state.step * config.batch.tokens;
    state.next_window = state.tokens / config.model.context;
    state.spikes = spikes.history();
    state.matmul_choices = comm.agree(matmul_choices());
    if (comm.size() > 1) matmul_set_choices(state.matmul_choices);  // rank 0's, as in a run that resumes from here
    save(model, run, state, background);
  };
  metrics.failed = [&](int64_t step, const std::string& error) {
    background.wait();  // which may have something to say itself
    failure("step %lld: %s. Training stops; %s", (long long)step, error.c_str(),
            how_to_continue(path, step + 1).c_str());
  };
  // Does what signals ask for, also within an evaluation. What one rank was asked counts for all of them.
  auto stopping = [&] {
    double ranks[] = {double(stop_requested()), double(save_requested())};
    comm.sum(ranks, 2);
    if (ranks[0] + ranks[1] > 0) save_unless_saved();
    return ranks[0] > 0;
  };
  if (first > 0) {  // under its own name before the first step: --resume finds it, whatever happens then
    save_unless_saved();
    background.wait();
  }
  for (;; state.step++) {
    int64_t step = state.step;
    bool last = step == steps;
    background.check();
    if (due(config.checkpoint.every, step) || (last && config.checkpoint.at_end)) save_unless_saved();
    evaluate_lengths(model, val, step == first ? missing : due_lengths(config, step), step, "val", &metrics, stopping);
    bool stop = stopping();
    if (!stop && step > first && config.generate.every > 0 && (due(config.generate.every, step) || last)) {
      generate_text(model);
      stop = stopping();
    }
    if (stop) std::printf("asked to stop after %lld of %lld steps\n", (long long)step, (long long)steps);
    if (stop || last) break;

    double start = seconds_now();
    StepResult result;
    try {
      result = comm.agree(next_gradients(model, loader));  // what all ranks decide by
    } catch (const UserError& error) {  // the data are not what they seemed
      background.wait();
      user_error("%s. Training stops in step %lld; %s", error.what(), (long long)step + 1,
                 how_to_continue(path, step + 1).c_str());
    }
    bool finite = std::isfinite(result.loss) && std::isfinite(result.grad_norm);
    std::string spike = finite ? spikes.judge(result.loss, result.grad_norm) : "";
    if (finite && spike.empty()) model.update(adamw_settings(config, step));
    double elapsed = seconds_now() - start, tokens_per_s = double(config.batch.tokens) / elapsed;
    TrainReport report{.step = step + 1,
                       .steps = steps,
                       .loss = result.loss,
                       .grad_norm = result.grad_norm,
                       .lr = learning_rate(config, step),
                       .tokens = (step + 1) * config.batch.tokens,
                       .tokens_per_s = tokens_per_s,
                       .mfu = peak > 0 ? flops * tokens_per_s / peak : NAN,
                       .ms = elapsed * 1e3};
    metrics.train(report);
    eta.add(report.ms);
    if (!finite) {
      background.wait();
      report_divergence(model, path, step + 1, result);
    }
    if (!spike.empty()) metrics.skip(step + 1, spike, spikes.history().skipped);
    if (report.step % config.log.every == 0 || report.step == steps || !spike.empty()) {
      std::printf("%s\n", console_line(report, eta.seconds(steps - report.step)).c_str());
      if (!spike.empty())
        std::printf("step %lld: update skipped, number %lld of this run: %s\n", (long long)report.step,
                    (long long)spikes.history().skipped, spike.c_str());
      std::fflush(stdout);
    }
  }
  background.wait();
}

// ---------------------------------------------------------------------------------------------------------------------
// What a run needs, found and checked. Everything a user can get wrong is said before the first step, and before
// anything of an older run is touched.

// Measured matrix algorithms are kept between runs in the user's cache folder; without one they are measured again.
static void use_matmul_cache() {
  const char *xdg = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  if (!xdg && !home) return;
  std::filesystem::path folder =
      (xdg ? std::filesystem::path(xdg) : std::filesystem::path(home) / ".cache") / "plusgpt";
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error) matmul_cache_file((folder / "matmul.txt").string());
}

// Chooses and describes it, and completes what the configuration leaves to it.
static DeviceInfo prepare_device(Config& config, const Ranks& ranks) {
  choose_device(ranks);
  DeviceInfo device = device_info();
  if (on_cpu) device.free_memory /= size_t(ranks.size);  // they share it
  if (config.precision.empty()) config.precision = device.is_gpu ? "bf16" : "fp32";
  if (device.is_gpu) use_matmul_cache();
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

struct Data {
  std::vector<int> lengths;  // to evaluate at
  std::vector<Shard> train, val;
  std::vector<DataFile> train_files, val_files;
};

static Data open_data(const Flags& flags, const Config& config, bool training, bool evaluates) {
  Data data;
  data.lengths = flags.lengths.empty() ? config.eval.lengths : parse_lengths(flags.lengths, "--lengths");
  if (evaluates) check_lengths(config, data.lengths, flags.lengths.empty() ? "eval.lengths" : "--lengths");
  if (training) data.train = open_shards(config.data.train, config.model.vocab, "data.train");
  if (evaluates) data.val = open_shards(config.data.val, config.model.vocab, "data.val");
  for (int length : evaluates ? data.lengths : std::vector<int>{})
    check_windows(config, data.val, length, config.eval.tokens);
  data.train_files = data_files(data.train);
  data.val_files = data_files(data.val);
  return data;
}

static std::unique_ptr<WindowReader> training_windows(const Config& config, const std::vector<Shard>& shards) {
  auto windows = std::make_unique<WindowReader>(shards, config.model.context, config.model.vocab, "data.train");
  double epoch = double(windows->windows()) * config.model.context;
  std::printf("data: %zu shards, %lld windows of %d tokens; %lld steps are %.3g epochs\n", shards.size(),
              (long long)windows->windows(), config.model.context, (long long)config.train.steps,
              double(config.train.steps) * double(config.batch.tokens) / epoch);
  return windows;
}

// Rank 0 looks for the checkpoint to go on from, and the others take the same one.
template <class Find>
static std::optional<Checkpoint> agreed_point(Comm& comm, bool training, Find find) {
  std::optional<Checkpoint> found = comm.first() ? find() : std::nullopt;
  std::string path = comm.agree(found ? found->path : ""), checksum = comm.agree(found ? found->checksum : "");
  if (found || path.empty()) return found;
  Checkpoint same;
  std::string problem = read_checkpoint(path, training, &same);
  if (problem.empty() && same.checksum != checksum) problem = "it is not the one of that name that rank 0 sees";
  if (!problem.empty()) failure("checkpoint: %s: %s; all ranks must see the same runs/", path.c_str(), problem.c_str());
  return same;
}

struct Beginning {
  ResumePlace place;
  std::optional<Checkpoint> from;   // none: the run begins afresh
  std::unique_ptr<RunDir> run_dir;  // of rank 0; locks the run: what is found there stays as it is
};

// What --resume asks for. real_run: steps will be made and written down.
static Beginning find_beginning(const Flags& flags, const Config& config, Comm& comm, bool training, bool real_run) {
  Beginning found;
  if (!flags.resuming) return found;
  found.place = resume_place(flags.resume, config.name);
  const std::string& run = found.place.run;
  if (flags.overwrite && found.place.within)
    user_error("command line: --resume continues %s and --overwrite deletes it; give one of them, or another name "
               "(--set name=...)", run.c_str());
  std::error_code ignored;
  bool begun = found.place.own && std::filesystem::is_directory(run, ignored);
  if (real_run && begun && comm.first()) found.run_dir = std::make_unique<RunDir>(config.name);
  found.from = agreed_point(
      comm, training, [&] { return resume_point(found.place, training, found.run_dir.get()); });
  if (!found.from && !(training && found.place.own))
    user_error("command line: --resume: %s is neither a step_* folder nor a run that holds one", run.c_str());
  if (!found.from) std::printf("%s has no checkpoint yet: starting afresh\n", run.c_str());
  return found;
}

static void check_folder_of(const std::string& file) {
  std::filesystem::path folder = std::filesystem::path(file).parent_path();
  std::error_code ignored;
  if (!folder.empty() && !std::filesystem::is_directory(folder, ignored))
    user_error("command line: --dump-gradients %s: there is no folder %s; create it first", file.c_str(),
               folder.c_str());
  if (std::filesystem::is_directory(file, ignored))
    user_error("command line: --dump-gradients %s is a folder; name a file", file.c_str());
}

static StepResult one_step(Model& model, Loader& loader) {
  StepResult result = next_gradients(model, loader);
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm))
    failure("this step has the loss %g and the gradient norm %g: nothing can be trained from here", result.loss,
            result.grad_norm);
  return result;
}

static void dry_run(Model& model, Loader& loader) {
  StepResult result = one_step(model, loader);
  std::printf("one step: loss %.4f | norm %.4f; nothing was written\n", result.loss, result.grad_norm);
}

static void dump_gradients(Model& model, Loader& loader, const std::string& file) {
  StepResult result = one_step(model, loader);
  save_gradients(model, file);
  std::printf("loss %.9g | norm %.9g | gradients in %s\n", result.loss, result.grad_norm, file.c_str());
}

// ---------------------------------------------------------------------------------------------------------------------

static void run(const Flags& flags, const Ranks& ranks, Channel* channel) {
  bool training = !flags.eval && !flags.generating, dumping = !flags.dump_gradients.empty();
  bool real_run = training && !flags.dry_run && !dumping;
  Config config = load_config(flags.config, flags.sets, training && !dumping);
  for (const std::string& warning : config.warnings)
    if (ranks.rank == 0) std::fprintf(stderr, "warning: %s\n", warning.c_str());
  if (flags.generating) config.generate.prompt = flags.generate;
  if (flags.print_config) {
    std::fputs(print_config(config).c_str(), stdout);
    return;
  }
  bool evaluates = flags.eval || (training && !dumping && config.eval.every > 0);
  bool generates = flags.generating || (training && !dumping && config.generate.every > 0);
  attention_check(config.attention, config.model.head_dim);
  if (generates)  // not at the first sample, hours later
    prompt_tokens(*open_tokenizer(config.generate.tokenizer, config.generate.tokenizer_dir), config);
  if (real_run) watch_signals();

  DeviceInfo device = prepare_device(config, ranks);
  Data data = open_data(flags, config, training, evaluates);
  if (dumping) check_folder_of(flags.dump_gradients);
  std::printf("%s, %s, %s, %s parameters\n", device.name.c_str(), config.precision.c_str(),
              mechanism(config).c_str(), count_text(double(parameter_count(config))).c_str());
  std::unique_ptr<WindowReader> windows = training ? training_windows(config, data.train) : nullptr;

  std::unique_ptr<Comm> several = channel ? std::make_unique<Comm>(ranks, *channel) : nullptr;
  Comm& comm = several ? *several : Comm::alone();
  if (several) check_agreement(comm, facts_of(PLUSGPT_VERSION, flags, config, data.train_files, data.val_files));
  if (several && !on_cpu) device = device_info();  // NCCL has taken some memory
  auto [place, from, run_dir] = find_beginning(flags, config, comm, training, real_run);
  if (several && !from) check_agreement(comm, init_facts(config));
  if (from) {
    if (training) check_same_run(*from, config, data.train_files, data.val_files);
    else check_same_model(*from, config, place.run);
    int64_t steps = config.train.steps;
    if (real_run && from->state.step == steps && comm.agree(missing_lengths(config, place.run, steps)).empty()) {
      std::printf("%s is finished: all %lld steps are done\n", place.run.c_str(), (long long)steps);
      return;
    }
    matmul_set_choices(from->state.matmul_choices);
  }
  int micro_before = from ? from->state.config.batch.micro : 0;
  Plan plan = plan_run(config, device, evaluates ? data.lengths : std::vector<int>{}, training, micro_before, comm);

  std::unique_ptr<Model> model = make_model(config, plan.eval_rows, plan.eval_length, training, comm);
  int64_t step = initial_state(*model, from, training);
  if (flags.generating) return generate_text(*model);
  if (flags.eval) {
    if (comm.first()) run_dir = std::make_unique<RunDir>(config.name);
    MetricsLog metrics = begun_metrics(run_dir.get(), flags, *model, device);
    if (!evaluate_lengths(*model, data.val, data.lengths, step, "eval", &metrics))
      failure("a loss is not finite: the weights, or what they compute from these data, are not");
    return;
  }
  Loader loader(*windows, {.T = config.model.context, .micro = config.batch.micro,
                           .micro_steps = int(micro_steps(config, comm.size())), .rank = comm.rank(),
                           .ranks = comm.size(), .shuffle = config.data.shuffle, .seed = config.seed});
  if (from) loader.seek(step);
  if (dumping) return dump_gradients(*model, loader, flags.dump_gradients);
  if (flags.dry_run) return dry_run(*model, loader);

  comm.least(0);  // all have read what they begin from: rank 0 may remove it now
  if (comm.first()) {
    model->allocate_snapshot();
    if (!run_dir) run_dir = std::make_unique<RunDir>(config.name);
    begin_run(*run_dir, flags.overwrite, from, place, config);
  }
  RunState state;
  if (from) state = from->state;
  state.windows = windows->windows();
  state.train = data.train_files;
  state.val = data.val_files;
  state.config = config;
  train(*model, flags, device, loader, data.val, run_dir.get(), state);
}

// The end of this process: 0, or why not. Where there are several ranks, rank 0 says it for all of them.
static int ended(Channel* channel, int code, const char* text) {
  if ((std::fflush(stdout) != 0 || std::ferror(stdout)) && code == 0)
    code = 1, text = "standard output: not everything could be written (is its disk full?)";
  if (channel) return channel->end(code, text);
  if (code != 0) std::fprintf(stderr, "%s\n", text);
  return code;
}

int main(int argc, char** argv) {
  // Whoever started this may have closed standard input or output: no file of a run may take their numbers.
  for (int file; (file = open("/dev/null", O_RDWR)) >= 0;)
    if (file > 2) {
      close(file);
      break;
    }
  std::signal(SIGUSR1, SIG_IGN);  // a request to save before there is anything to save
  std::signal(SIGXFSZ, SIG_IGN);  // a file that is longer than this user may write is an error of that write
  std::unique_ptr<Channel> channel;
  auto connect = [&](const Ranks& ranks) {
    if (ranks.size == 1 || channel) return;
    prctl(PR_SET_NAME, format("train rank %d", ranks.rank).c_str());
    if (ranks.rank > 0 && !std::freopen("/dev/null", "w", stdout)) failure("cannot open /dev/null");  // rank 0 prints
    channel = std::make_unique<Channel>(ranks);
  };
  try {
    for (std::string flag : {"--help", "-h", "--version"})  // answered by each rank at once: it prints and exits
      if (std::find(argv, argv + argc, flag) != argv + argc) parse_flags(argc, argv, PLUSGPT_VERSION);
    Ranks ranks = ranks_of_environment();
    connect(ranks);  // before anything can go wrong at all ranks: one of them will say it
    Flags flags = parse_flags(argc, argv, PLUSGPT_VERSION);
    ranks = find_ranks(flags.gpus, ranks);
    connect(ranks);
    run(flags, ranks, channel.get());
    return ended(channel.get(), 0, "");
  } catch (const UserError& error) {
    return ended(channel.get(), 2, error.what());
  } catch (const std::bad_alloc&) {
    return ended(channel.get(), 1, "out of host memory");
  } catch (const std::exception& error) {
    return ended(channel.get(), 1, error.what());
  }
}
