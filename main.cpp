// The program: ./train CONFIG.json. Flags and settings, then a training run, an evaluation, generated text, a dry run
// or a dump of gradients. Exit codes: 0, 2 for errors that the user can fix, 1 for other failures; a run that a signal
// stopped dies of that signal.
#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/signals.h"
#include "base/text.h"
#include "checkpoint/hugging_face.h"
#include "checkpoint/state.h"
#include "data/encode.h"
#include "data/gpt2_bpe.h"
#include "eval/generate.h"
#include "eval/predict.h"
#include "eval/benchmarks.h"
#include "ranks/spawn.h"
#include "training/agreement.h"
#include "training/dead_gradients.h"
#include "training/loop.h"
#include "training/plan.h"
#include "training/products.h"
#include "training/evaluations.h"
#include "training/start.h"
#include "version.h"

// Starts the run's metrics with a line that names this program, its settings and the device. A rank without a folder
// writes nothing.
static MetricsLog begun_metrics(const RunDir* run, const Flags& flags, Model& model, const DeviceInfo& device) {
  MetricsLog metrics = run ? MetricsLog(run->metrics_path()) : MetricsLog();
  int ranks = model.comm().size();
  std::string name = ranks > 1 ? format("%d x %s", ranks, device.name.c_str()) : device.name;
  metrics.start(PLUSGPT_VERSION, flags.command, config_json(model.config()), name,
                {{"backend", on_cpu ? "cpu" : "cuda"}}, parameter_count(model.config()),
                flops_per_token(model.config()));
  return metrics;
}

// The first step that has labels.
static StepResult one_step(Model& model, Loader& loader) {
  std::optional<StepResult> computed;
  int64_t steps = model.config().train.steps;
  for (int64_t step = 0; step < steps && !computed; step++) computed = next_gradients(model, loader);
  if (!computed) user_error("data.labels: %ld steps (train.steps) have no label; use other labels", steps);
  StepResult result = *computed;
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm))
    failure("this step's loss is %g and its gradient norm %g: training cannot start from here", result.loss,
            result.grad_norm);
  return result;
}

static void dry_run(Model& model, Loader& loader, const Data& data, bool fresh) {
  if (model.comm().first()) check_all_tokens(model.config(), data);
  StepResult result = one_step(model, loader);
  if (fresh) warn_of_zero_gradients(model);
  std::printf("one step: loss %.4f | norm %.4f; nothing was written\n", result.loss, result.grad_norm);
}

static void dump_gradients(Model& model, Loader& loader, const std::string& file) {
  StepResult result = one_step(model, loader);
  save_gradients(model, file);
  std::printf("loss %.9g | norm %.9g | gradients in %s\n", result.loss, result.grad_norm, file.c_str());
}

// ---------------------------------------------------------------------------------------------------------------------

// Standard output; all that is printed from here on goes to standard error instead.
static std::FILE* taken_stdout() {
  std::fflush(stdout);
  std::FILE* out = fdopen(dup(STDOUT_FILENO), "w");
  if (!out || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) failure("cannot redirect standard output");
  return out;
}

// Checks now that the file of a flag can be written when it is complete.
static void check_output(const char* flag, const std::string& path, const Data& data) {
  const std::string where = format("command line: %s %s", flag, path.c_str());
  check_output_file(where, path);
  for (auto* shards : {&data.train, &data.val})
    for (const Shard& shard : *shards)
      for (const Shard* read : {&shard, shard.labels.get()})
        if (std::error_code ignored; read && std::filesystem::equivalent(path, read->path, ignored))
          user_error("%s: this is a file of %s, which would be lost; name another", where.c_str(), read->key.c_str());
}

// ---------------------------------------------------------------------------------------------------------------------
// The stages of a run. Each ends with everything checked that it can check, so errors come early and in this order.

// 1. The settings, and what the program does between the steps or instead of them.
struct Settings {
  Config config;
  bool evaluates = false;                        // the losses by length
  std::map<std::string, std::string> tokenizer;  // of rank 0; read now: its folder may be gone at the first checkpoint
};

static Settings read_settings(const Flags& flags, const Ranks& ranks) {
  Settings settings;
  settings.config = load_config(flags);
  Config& config = settings.config;
  for (const std::string& warning : config.warnings)
    if (ranks.rank == 0) warn("%s", warning.c_str());
  if (flags.is(Mode::generate)) config.generate.prompt = flags.value;
  if (flags.is(Mode::tasks)) config.task.names = split(flags.value, ',');
  return settings;
}

static void check_settings(Settings& settings, const Flags& flags, const Ranks& ranks) {
  const ModeRow& mode = *flags.mode;
  Config& config = settings.config;
  if (mode.head == (config.model.head.outputs > 0 ? HeadNeeded::tokens : HeadNeeded::outputs))
    user_error("config: model.head.outputs = %d: %s  [%s]", config.model.head.outputs,
               mode.head == HeadNeeded::outputs ? "--predict needs a model with outputs"
                                                : "--passkey, --tasks and --generate need a model of tokens",
               config.file.c_str());
  if (flags.is(Mode::predict)) config.eval.lengths = {config.model.context};
  if (mode.all_of_val) config.eval.tokens = std::numeric_limits<int64_t>::max();
  settings.evaluates = mode.losses || (mode.whole_run && config.eval.every > 0);
  config.diagnoses = flags.is(Mode::diagnostics) || (mode.whole_run && config.diagnostics.every > 0);
  bool elsewhere = config.plan.elsewhere();
  if (elsewhere && !flags.is(Mode::dry_run))
    user_error("config: plan.memory = \"%s\" only plans: add --dry-run, or leave it out%s", config.plan.memory.c_str(),
               source_tag(source_of(config, {"plan.memory"})).c_str());
  if (elsewhere && config.precision == Precision::automatic) config.precision = Precision::bf16;
  for (int length : {config.model.context, std::numeric_limits<int>::max()})
    for (int l = 0; l < config.model.layers; l++)
      attention_check(config.layer(l, length).attention, config.model.head_dim, config.precision == Precision::fp32,
                      config.diagnoses, !planned_for_cpu(config));
  if (elsewhere) return;
  if (flags.generates() || (mode.whole_run && config.generate.every > 0))  // not at the first sample, hours later
    prompt_tokens(*open_tokenizer(config.generate.tokenizer, config.generate.tokenizer_dir), config,
                  config.generate.prompt);
  if (flags.is(Mode::train) && ranks.rank == 0) settings.tokenizer = tokenizer_files(config);
}

// 2. The device and the data.
struct Inputs {
  DeviceInfo device;
  std::unique_ptr<Data> data;  // at an address that stays
  std::vector<Evaluation> evaluations;
  std::unique_ptr<Tokenizer> tokenizer;  // of --generate-file
  std::vector<FilePrompt> prompts;
  std::unique_ptr<WindowReader> windows;  // of data.train
};

static Inputs open_inputs(const Flags& flags, Settings& settings, const Ranks& ranks) {
  Config& config = settings.config;
  Inputs inputs;
  inputs.device = prepare_device(config, ranks, flags.remeasure);
  inputs.data = std::make_unique<Data>(open_data(flags, config, settings.evaluates));
  Data& data = *inputs.data;
  for (const std::string& warning : read_text_bytes(data.val))
    if (ranks.rank == 0) warn("%s", warning.c_str());
  if (flags.is(Mode::tasks) || (flags.mode->whole_run && config.task.every > 0))
    data.benchmarks = open_benchmarks(config);
  inputs.evaluations = open_evaluations(flags, config, data, settings.evaluates, ranks.rank);
  if (flags.is(Mode::generate_file)) {
    inputs.tokenizer = open_tokenizer(config.generate.tokenizer, config.generate.tokenizer_dir);
    inputs.prompts = read_prompts(flags.value, *inputs.tokenizer, config);
  }
  if (flags.mode->writes_file) check_output(flags.mode->flag, flags.value, data);
  std::printf("%s, %s, %s, %s parameters\n", inputs.device.name.c_str(), precision_names[int(config.precision)],
              attention_text(config).c_str(), count_text(double(parameter_count(config))).c_str());
  if (flags.mode->makes_steps) inputs.windows = training_windows(config, data.train);
  return inputs;
}

// 3. The ranks agree on all this, and on where they begin.
static Beginning agree_on_beginning(Comm& comm, const Flags& flags, const Settings& settings, const Inputs& inputs) {
  const Config& config = settings.config;
  const Data& data = *inputs.data;
  bool training = flags.mode->makes_steps;
  bool several = comm.size() > 1;
  if (several)
    check_agreement(comm, facts_of(PLUSGPT_VERSION, flags, config, data.train_files, data.val_files, data.benchmarks));
  Beginning beginning = find_beginning(flags, config, comm);
  const std::optional<Checkpoint>& from = beginning.from;
  if (several && !from) check_agreement(comm, init_facts(config));
  if (!from && training && config.optimizer.schedule_start > 0)
    user_error("config: optimizer.schedule_start = %ld needs --resume from that step; use 0%s",
               config.optimizer.schedule_start, source_tag(source_of(config, {"optimizer.schedule_start"})).c_str());
  if (comm.first() && settings.evaluates) report_validation(config, data, from ? from->state.train : data.train_files);
  if (!from) return beginning;
  if (training) check_same_run(*from, config, data.train_files, data.val_files);
  else check_same_model(*from, config, beginning.place.run);
  return beginning;
}

// Whether the run has made all its steps and all their evaluations.
static bool finished(Comm& comm, const Config& config, const Beginning& beginning,
                     const std::vector<Evaluation>& evaluations) {
  int64_t steps = config.train.steps;
  auto answered = [&](const Evaluation& evaluation) {
    return comm.broadcast(missing_items(evaluation, config, beginning.place.run, steps)).empty();
  };
  return beginning.from && beginning.from->state.step == steps &&
         std::all_of(evaluations.begin(), evaluations.end(), answered);
}

// 4. The memory plan.
static Plan plan_memory_of(Settings& settings, const Flags& flags, const Inputs& inputs, const Beginning& beginning,
                           Comm& comm) {
  std::vector<int> lengths;
  for (const Evaluation& evaluation : inputs.evaluations)
    lengths.insert(lengths.end(), evaluation.lengths.begin(), evaluation.lengths.end());
  if (!inputs.prompts.empty()) lengths.push_back(longest_text(inputs.prompts, settings.config));
  const std::optional<Checkpoint>& from = beginning.from;
  Plan plan = plan_run(settings.config, inputs.device, lengths, flags.mode->makes_steps,
                       from ? from->state.config.batch.micro : 0, comm);
  if (from) std::printf("continuing from %s, after %ld steps\n", from->path.c_str(), from->state.step);
  return plan;
}

// 5. The model, which does what the flags ask for.
static void ask(Model& model, const Flags& flags, const Inputs& inputs, const Beginning& beginning, int64_t step) {
  std::unique_ptr<RunDir> run_dir;
  if (model.comm().first()) run_dir = std::make_unique<RunDir>(model.config().name);
  MetricsLog metrics = begun_metrics(run_dir.get(), flags, model, inputs.device);
  Weights weights{"random", step};
  if (beginning.from) weights = {beginning.from->path, step, beginning.from->state.tokens};
  else if (!model.config().init.empty()) weights.path = named_folder(model.config().init).path;
  for (const Evaluation& evaluation : inputs.evaluations)
    if (evaluation.asked && !evaluation.run({model, weights, metrics, {}}, evaluation.items))
      failure("%s", evaluation.not_finite);
}

static void train_run(Model& model, const Flags& flags, const Settings& settings, const Inputs& inputs,
                      Beginning& beginning, Loader& loader) {
  const Config& config = model.config();
  Comm& comm = model.comm();
  comm.barrier();  // all ranks have read their starting point: rank 0 may remove it now
  std::unique_ptr<RunDir>& run_dir = beginning.run_dir;
  if (comm.first()) {
    model.parameters().allocate_snapshot();
    if (!run_dir) run_dir = std::make_unique<RunDir>(config.name);
    begin_run(*run_dir, flags.overwrite, beginning.from, beginning.place, config);
  }
  RunState state;
  if (beginning.from) state = beginning.from->state;
  state.windows = inputs.windows->windows();
  state.train = inputs.data->train_files;
  state.val = inputs.data->val_files;
  state.config = config;
  state.tokenizer = settings.tokenizer;
  MetricsLog metrics = begun_metrics(run_dir.get(), flags, model, inputs.device);
  train(model, inputs.device, loader, inputs.evaluations, run_dir.get(), state, metrics);
}

static void make_steps(Model& model, const Flags& flags, const Settings& settings, const Inputs& inputs,
                       Beginning& beginning, int64_t step) {
  const Config& config = model.config();
  Comm& comm = model.comm();
  Loader loader(*inputs.windows, {.T = config.model.context,
                                  .micro = config.batch.micro,
                                  .micro_steps = int(micro_steps(config, comm.size())),
                                  .rank = comm.rank(),
                                  .ranks = comm.size(),
                                  .shuffle = config.data.shuffle,
                                  .seed = config.seed,
                                  .outputs = config.model.head.outputs,
                                  .by_sequence = config.train.label_mean == LabelMean::sequence});
  if (beginning.from) loader.seek(step);
  if (flags.is(Mode::dump_gradients)) dump_gradients(model, loader, flags.value);
  else if (flags.is(Mode::dry_run)) dry_run(model, loader, *inputs.data, !beginning.from);
  else train_run(model, flags, settings, inputs, beginning, loader);
}

static void run(Flags flags, const Ranks& ranks, Links* links) {
  std::FILE* answers = flags.is(Mode::generate_file) && ranks.rank == 0 ? taken_stdout() : nullptr;
  take_run_folder(flags);
  Settings settings = read_settings(flags, ranks);
  if (flags.is(Mode::print_config)) {
    std::fputs(print_config(settings.config).c_str(), stdout);
    return;
  }
  check_settings(settings, flags, ranks);
  if (settings.config.plan.elsewhere()) return plan_elsewhere(settings.config, settings.evaluates, ranks.size);
  if (flags.is(Mode::train) || flags.mode->all_of_val) watch_signals();

  Inputs inputs = open_inputs(flags, settings, ranks);

  std::unique_ptr<Comm> several = links ? std::make_unique<Comm>(ranks, *links) : nullptr;
  Comm& comm = several ? *several : Comm::alone();
  Beginning beginning = agree_on_beginning(comm, flags, settings, inputs);
  if (several && !on_cpu) inputs.device = device_info();  // NCCL has taken some memory
  if (flags.is(Mode::train) && finished(comm, settings.config, beginning, inputs.evaluations)) {
    std::printf("%s is finished: all %ld steps are done\n", beginning.place.run.c_str(), settings.config.train.steps);
    return;
  }
  if (beginning.from && !flags.remeasure) take_products(*beginning.from, inputs.device);

  Plan plan = plan_memory_of(settings, flags, inputs, beginning, comm);

  bool training = flags.mode->makes_steps;
  std::unique_ptr<Model> model = make_model(settings.config, plan.eval_rows, plan.eval_length, training, comm);
  int64_t step = initial_state(*model, beginning.from, training);
  if (beginning.from) beginning.from->lock.reset();
  if (flags.is(Mode::generate_file)) return generate_file(*model, *inputs.tokenizer, inputs.prompts, answers);
  if (flags.is(Mode::generate)) return generate_text(*model);
  agree_on_products(*model, inputs.evaluations, training);
  if (flags.is(Mode::predict)) return predict(*model, inputs.data->val, flags.value);
  if (flags.is(Mode::token_losses)) return write_token_losses(*model, inputs.data->val, flags.value);
  if (training) make_steps(*model, flags, settings, inputs, beginning, step);
  else ask(*model, flags, inputs, beginning, step);
}

// Ends this process's part of the run: prints the error (of several ranks, rank 0 does) and returns the exit code.
static int ended(Links* links, int code, const char* text) {
  if ((std::fflush(stdout) != 0 || std::ferror(stdout)) && code == 0 && !stop_requested())
    code = 1, text = "standard output: not everything could be written (is its disk full?)";
  if (links) return links->end(code, text);
  if (code != 0) std::fprintf(stderr, "%s\n", text);
  return code;
}

// Only rank 0 prints. But NCCL and cuBLASLt log to stdout if their variables say so: then stdout becomes stderr, and
// this rank's lines appear too. (/dev/stderr as NCCL_DEBUG_FILE would not do: NCCL would empty a log file there.)
static void turn_off_stdout() {
  auto set = [](const char* name) { return std::getenv(name) != nullptr; };
  bool wanted = (set("NCCL_DEBUG") && !set("NCCL_DEBUG_FILE")) ||
                ((set("CUBLASLT_LOG_LEVEL") || set("CUBLASLT_LOG_MASK")) && !set("CUBLASLT_LOG_FILE"));
  if (!wanted && !std::freopen("/dev/null", "w", stdout)) failure("cannot open /dev/null");
  if (!wanted) return;
  dup2(STDERR_FILENO, STDOUT_FILENO);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // lines printed before a crash must be seen
}

// SIGUSR1 asks to save; until there is something to save it is ignored. From the start, not from main() on: before that the
// constructors of libraries run, of which OpenBLAS's takes milliseconds.
[[gnu::section(".preinit_array"), gnu::used]] static void (*const before_constructors)() = [] {
  std::signal(SIGUSR1, SIG_IGN);
};

int main(int argc, char** argv) {
  bool no_output = fcntl(STDOUT_FILENO, F_GETFD) < 0;
  // If standard input or output is closed, no file of the run may take its number.
  for (int file; (file = open("/dev/null", O_RDWR)) >= 0;)
    if (file > 2) {
      close(file);
      break;
    }
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the user's limit of file size fails, and does not end the process
  std::unique_ptr<Links> links;
  auto connect = [&](const Ranks& ranks) {
    if (ranks.size == 1 || links) return;
    prctl(PR_SET_NAME, format("train rank %d", ranks.rank).c_str());
    if (ranks.rank > 0) turn_off_stdout();
    links = std::make_unique<Links>(ranks);
  };
  try {
    for (std::string flag : {"--help", "-h", "--version"})  // answered by each rank alone: it prints and exits
      if (std::find(argv, argv + argc, flag) != argv + argc) parse_flags(argc, argv, PLUSGPT_VERSION);
    Ranks ranks = ranks_of_environment();
    connect(ranks);  // before anything can go wrong at all ranks, so that only one prints it
    Flags flags = parse_flags(argc, argv, PLUSGPT_VERSION);
    if (no_output && flags.mode->to_stdout) failure("standard output is closed");
    if (flags.is(Mode::encode)) {
      encode_documents(Gpt2Tokenizer(flags.value), stdin, stdout);
      return ended(links.get(), 0, "");
    }
    ranks = spawn_ranks(flags.gpus, ranks);
    connect(ranks);
    run(flags, ranks, links.get());
    int code = ended(links.get(), 0, ""), signal = stop_signal();
    if (code != 0 || signal == 0) return code;
    if (ranks.spawned) return 128 + signal;
    links.reset();
    die_of(signal);
  } catch (const UserError& error) {
    return ended(links.get(), 2, error.what());
  } catch (const std::bad_alloc&) {
    return ended(links.get(), 1, "out of host memory");
  } catch (const std::exception& error) {
    return ended(links.get(), 1, error.what());
  }
}
