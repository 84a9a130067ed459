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
#include "training/loop.h"
#include "training/plan.h"
#include "training/products.h"
#include "training/questions.h"
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

// Checks now that the file of a flag can be written when it is complete. path: "" for none.
static void check_output(const char* flag, const std::string& path, const Data& data) {
  if (path.empty()) return;
  const std::string where = format("command line: %s %s", flag, path.c_str());
  check_output_file(where, path);
  for (auto* shards : {&data.train, &data.val})
    for (const Shard& shard : *shards)
      for (const Shard* read : {&shard, shard.labels.get()})
        if (std::error_code ignored; read && std::filesystem::equivalent(path, read->path, ignored))
          user_error("%s: this is a file of %s, which would be lost; name another", where.c_str(), read->key.c_str());
}

static void run(Flags flags, const Ranks& ranks, Links* links) {
  std::FILE* answers = !flags.generate_file.empty() && ranks.rank == 0 ? taken_stdout() : nullptr;
  take_run_folder(flags);
  bool predicting = !flags.predict.empty(), writing_losses = !flags.token_losses.empty();
  bool training = !flags.eval && !flags.passkey && flags.tasks.empty() && !flags.diagnostics && !flags.generating &&
                  !predicting && !writing_losses,
       dumping = !flags.dump_gradients.empty();
  bool real_run = training && !flags.dry_run && !dumping;
  Config config = load_config(flags, training && !dumping);
  for (const std::string& warning : config.warnings)
    if (ranks.rank == 0) warn("%s", warning.c_str());
  if (flags.generating) config.generate.prompt = flags.generate;
  if (!flags.tasks.empty()) config.task.names = split(flags.tasks, ',');
  if (flags.print_config) {
    std::fputs(print_config(config).c_str(), stdout);
    return;
  }
  if (predicting != (config.model.head.outputs > 0) &&
      (predicting || flags.passkey || flags.generating || !flags.tasks.empty()))
    user_error("config: model.head.outputs = %d: %s  [%s]", config.model.head.outputs,
               predicting ? "--predict needs a model with outputs"
                          : "--passkey, --tasks and --generate need a model of tokens",
               config.file.c_str());
  if (predicting) config.eval.lengths = {config.model.context};
  if (predicting || writing_losses) config.eval.tokens = std::numeric_limits<int64_t>::max();  // all there are
  bool evaluates = flags.eval || predicting || writing_losses || (training && !dumping && config.eval.every > 0);
  config.diagnoses = flags.diagnostics || (training && !dumping && config.diagnostics.every > 0);
  bool generates = flags.generating || (training && !dumping && config.generate.every > 0);
  bool elsewhere = config.plan.elsewhere();
  if (elsewhere && !flags.dry_run)
    user_error("config: plan.memory = \"%s\" only plans: add --dry-run, or leave it out%s", config.plan.memory.c_str(),
               source_tag(source_of(config, {"plan.memory"})).c_str());
  if (elsewhere && config.precision.empty()) config.precision = "bf16";
  for (int length : {config.model.context, std::numeric_limits<int>::max()})
    for (int l = 0; l < config.model.layers; l++)
      attention_check(config.layer(l, length).attention, config.model.head_dim, config.precision == "fp32",
                      config.diagnoses, !planned_for_cpu(config));
  if (elsewhere) return plan_elsewhere(config, evaluates, ranks.size);
  if (generates)  // not at the first sample, hours later
    prompt_tokens(*open_tokenizer(config.generate.tokenizer, config.generate.tokenizer_dir), config,
                  config.generate.prompt);
  std::map<std::string, std::string> tokenizer;  // read now: its folder may be gone at the first checkpoint
  if (real_run && ranks.rank == 0) tokenizer = tokenizer_files(config);
  if (real_run || predicting || writing_losses) watch_signals();

  DeviceInfo device = prepare_device(config, ranks, flags.remeasure);
  Data data = open_data(flags, config, training, evaluates);
  for (const std::string& warning : read_text_bytes(data.val))
    if (ranks.rank == 0) warn("%s", warning.c_str());
  if (!flags.tasks.empty() || (training && !dumping && config.task.every > 0))
    data.benchmarks = open_benchmarks(config);
  std::vector<Question> questions = open_questions(flags, config, data, evaluates, ranks.rank);
  std::unique_ptr<Tokenizer> prompt_tokenizer;
  std::vector<FilePrompt> file_prompts;
  if (!flags.generate_file.empty()) {
    prompt_tokenizer = open_tokenizer(config.generate.tokenizer, config.generate.tokenizer_dir);
    file_prompts = read_prompts(flags.generate_file, *prompt_tokenizer, config);
  }
  check_output("--dump-gradients", flags.dump_gradients, data);
  check_output("--predict", flags.predict, data);
  check_output("--per-token-losses", flags.token_losses, data);
  std::printf("%s, %s, %s, %s parameters\n", device.name.c_str(), config.precision.c_str(),
              attention_text(config).c_str(), count_text(double(parameter_count(config))).c_str());
  std::unique_ptr<WindowReader> windows = training ? training_windows(config, data.train) : nullptr;

  std::unique_ptr<Comm> several = links ? std::make_unique<Comm>(ranks, *links) : nullptr;
  Comm& comm = several ? *several : Comm::alone();
  if (several)
    check_agreement(comm, facts_of(PLUSGPT_VERSION, flags, config, data.train_files, data.val_files, data.benchmarks));
  if (several && !on_cpu) device = device_info();  // NCCL has taken some memory
  auto [place, from, run_dir] = find_beginning(flags, config, comm, training, real_run);
  if (several && !from) check_agreement(comm, init_facts(config));
  if (!from && training && config.optimizer.schedule_start > 0)
    user_error("config: optimizer.schedule_start = %ld needs --resume from that step; use 0%s",
               config.optimizer.schedule_start, source_tag(source_of(config, {"optimizer.schedule_start"})).c_str());
  if (comm.first() && evaluates) report_validation(config, data, from ? from->state.train : data.train_files);
  if (from) {
    if (training) check_same_run(*from, config, data.train_files, data.val_files);
    else check_same_model(*from, config, place.run);
    int64_t steps = config.train.steps;
    auto answered = [&, &folder = place.run](const Question& question) {
      return comm.broadcast(missing_items(question, config, folder, steps)).empty();
    };
    if (real_run && from->state.step == steps && std::all_of(questions.begin(), questions.end(), answered)) {
      std::printf("%s is finished: all %ld steps are done\n", place.run.c_str(), steps);
      return;
    }
    if (!flags.remeasure) take_products(*from, device);
  }
  int micro_before = from ? from->state.config.batch.micro : 0;
  std::vector<int> lengths;
  for (const Question& question : questions)
    lengths.insert(lengths.end(), question.lengths.begin(), question.lengths.end());
  if (!file_prompts.empty()) lengths.push_back(longest_text(file_prompts, config));
  Plan plan = plan_run(config, device, lengths, training, micro_before, comm);
  if (from) std::printf("continuing from %s, after %ld steps\n", from->path.c_str(), from->state.step);

  std::unique_ptr<Model> model = make_model(config, plan.eval_rows, plan.eval_length, training, comm);
  int64_t step = initial_state(*model, from, training);
  if (from) from->lock.reset();
  if (!flags.generate_file.empty()) return generate_file(*model, *prompt_tokenizer, file_prompts, answers);
  if (flags.generating) return generate_text(*model);
  agree_on_products(*model, questions, training);
  if (predicting) return predict(*model, data.val, flags.predict);
  if (writing_losses) return write_token_losses(*model, data.val, flags.token_losses);
  if (!training) {
    if (comm.first()) run_dir = std::make_unique<RunDir>(config.name);
    MetricsLog metrics = begun_metrics(run_dir.get(), flags, *model, device);
    Weights weights{"random", step};
    if (from) weights = {from->path, step, from->state.tokens};
    else if (!config.init.empty()) weights.path = named_folder(config.init).path;
    for (const Question& question : questions)
      if (question.asked && !question.ask(*model, question.items, weights, metrics, {}))
        failure("%s", question.not_finite);
    return;
  }
  Loader loader(*windows, {.T = config.model.context,
                           .micro = config.batch.micro,
                           .micro_steps = int(micro_steps(config, comm.size())),
                           .rank = comm.rank(),
                           .ranks = comm.size(),
                           .shuffle = config.data.shuffle,
                           .seed = config.seed,
                           .outputs = config.model.head.outputs,
                           .by_sequence = config.train.label_mean == "sequence"});
  if (from) loader.seek(step);
  if (dumping) return dump_gradients(*model, loader, flags.dump_gradients);
  if (flags.dry_run) return dry_run(*model, loader, data, !from);

  comm.barrier();  // all ranks have read their starting point: rank 0 may remove it now
  if (comm.first()) {
    model->parameters().allocate_snapshot();
    if (!run_dir) run_dir = std::make_unique<RunDir>(config.name);
    begin_run(*run_dir, flags.overwrite, from, place, config);
  }
  RunState state;
  if (from) state = from->state;
  state.windows = windows->windows();
  state.train = data.train_files;
  state.val = data.val_files;
  state.config = config;
  state.tokenizer = tokenizer;
  MetricsLog metrics = begun_metrics(run_dir.get(), flags, *model, device);
  train(*model, device, loader, questions, run_dir.get(), state, metrics);
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
    if (no_output && (!flags.encode.empty() || flags.print_config || flags.generating))
      failure("standard output is closed");
    if (!flags.encode.empty()) {
      encode_documents(Gpt2Tokenizer(flags.encode), stdin, stdout);
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
