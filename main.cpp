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

#include "base/checksum.h"
#include "base/signals.h"
#include "base/text.h"
#include "checkpoint/hugging_face.h"
#include "checkpoint/load_save.h"
#include "checkpoint/resume.h"
#include "checkpoint/run_folder.h"
#include "data/encode.h"
#include "data/gpt2_bpe.h"
#include "eval/benchmarks.h"
#include "eval/generate.h"
#include "eval/passkey.h"
#include "eval/predict.h"
#include "ranks/spawn.h"
#include "training/agreement.h"
#include "training/dead_gradients.h"
#include "training/evaluations.h"
#include "training/flops.h"
#include "training/identity.h"
#include "training/loop.h"
#include "training/matmul_algorithms.h"
#include "training/plan.h"
#include "training/separator.h"
#include "version.h"

// Standard output; all that is printed from here on goes to standard error instead.
static std::FILE* taken_stdout() {
  std::fflush(stdout);
  std::FILE* out = fdopen(dup(STDOUT_FILENO), "w");
  if (!out || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) failure("cannot redirect standard output");
  return out;
}

// Checks now that the file of a flag can be written when it is complete.
static void check_output(const Flags& flags, const Config& config, const Data& data) {
  const std::filesystem::path path = flags.value, folder = path.parent_path(), name = path.filename();
  const std::string where = format("command line: %s %s", flags.mode->flag, path.c_str());
  check_output_file(where, path);
  auto keep = [&](const std::string& read, const std::string& what) {
    if (std::error_code ignored; std::filesystem::equivalent(path, read, ignored))
      user_error("%s: this is a file of %s, which would be lost; name another", where.c_str(), what.c_str());
  };
  for (auto* shards : {&data.train, &data.val})
    for (const Shard& shard : *shards)
      for (const Shard* read : {&shard, shard.labels.get()})
        if (read) keep(read->path, read->key);
  keep(flags.config, "the configuration");
  if (!config.init.empty())
    for (const std::string& weights : weight_files(named_folder(config.init).path)) keep(weights, "init");
  if (is_there(folder / "state.json") || name == "metrics.jsonl" || name == "config.json") keep(path, "a run");
}

// One start of the program. run() is the page to read; each of its stages checks all that it can, so errors come early
// and in this order.
class Program {
 public:
  Program(const Flags& flags, const Ranks& ranks, Links* links) : flags_(flags), ranks_(ranks), links_(links) {}
  void run();

 private:
  bool is(Mode mode) const { return flags_.is(mode); }
  void read_settings();
  void check_settings();
  void plan();
  void find_checkpoint();
  void open_inputs();
  bool finished();
  void make_model();
  void run_mode();
  void make_steps();
  void ask();
  std::pair<int64_t, StepResult> one_step(Loader& loader);
  void train_run(Loader& loader);
  MetricsLog begun_metrics(const RunDir* run);

  Flags flags_;
  const ModeRow& mode_ = *flags_.mode;
  const bool training_ = mode_.makes_steps;
  Ranks ranks_;
  Links* links_;  // nullptr: one rank
  std::FILE* answers_ = nullptr;
  // of read_settings() and check_settings():
  Config config_;
  bool evaluates_ = false;  // the losses by length
  // For checkpoints, of rank 0: the tokenizer, whose folder may be gone at the first one, and kinds that are files
  std::map<std::string, std::string> carried_;
  // of find_checkpoint():
  DeviceInfo device_;
  std::unique_ptr<Comm> several_;
  Comm& comm() { return several_ ? *several_ : Comm::alone(); }
  ResumePoint resume_point_;
  // of open_inputs():
  Data data_;
  RunFacts facts_;
  std::vector<Evaluation> evaluations_;
  std::vector<FilePrompt> prompts_;        // of --generate-file
  std::unique_ptr<WindowReader> windows_;  // of data.train
  // of make_model():
  std::unique_ptr<Model> model_;
  int64_t step_ = 0;                 // of its weights
  nlohmann::ordered_json identity_;  // of begun_metrics(), where the run has a folder
};

void Program::run() {
  if (is(Mode::generate_file) && ranks_.rank == 0) answers_ = taken_stdout();
  read_settings();
  if (is(Mode::print_config)) return void(std::fputs(print_config(config_).c_str(), stdout));
  check_settings();
  if (is(Mode::print_identity)) {
    data_ = open_data(flags_, config_, evaluates_, ranks_.rank);
    return void(std::puts(identity_json(config_, data_, nullptr).dump(1).c_str()));
  }
  if (config_.plan.plans_other_gpu()) return plan();
  if (is(Mode::train) || mode_.all_of_val) watch_signals();
  find_checkpoint();
  open_inputs();
  if (is(Mode::train) && finished())
    return void(
        std::printf("%s is finished: all %ld steps are done\n", resume_point_.run.c_str(), config_.train.steps));
  make_model();
  if (flags_.dry && !training_) return print_work(config_, evaluations_, 0, comm().size(), facts_.documents);
  run_mode();
}

void Program::read_settings() {
  take_run_folder(flags_);
  config_ = load_config(flags_);
  for (const std::string& warning : config_.warnings)
    if (ranks_.rank == 0) warn("%s", warning.c_str());
  if (is(Mode::generate)) config_.generate.prompt = flags_.value;
  if (is(Mode::tasks)) config_.task.names = split(flags_.value, ',');
}

void Program::check_settings() {
  if (mode_.head == (config_.model.head.outputs > 0 ? HeadNeeded::tokens : HeadNeeded::outputs))
    user_error("config: model.head.outputs = %d: %s  [%s]", config_.model.head.outputs,
               mode_.head == HeadNeeded::outputs ? "--predict needs a model with outputs"
                                                 : "--passkey, --tasks and --generate need a model of tokens",
               config_.file.c_str());
  if (is(Mode::predict)) config_.eval.lengths = {config_.model.context}, config_.eval.start = WindowStart::any;
  if (mode_.all_of_val) config_.eval.tokens = std::numeric_limits<int64_t>::max();
  evaluates_ = mode_.losses || (mode_.whole_run && config_.eval.every > 0);
  config_.diagnoses = is(Mode::diagnostics) || (mode_.whole_run && config_.diagnostics.every > 0);
  bool elsewhere = config_.plan.plans_other_gpu();
  if (elsewhere && !flags_.dry)
    user_error("config: plan.memory = \"%s\" only plans: add --dry-run, or leave it out%s", config_.plan.memory.c_str(),
               source_tag(source_of(config_, {"plan.memory"})).c_str());
  device_is_elsewhere = elsewhere;
  if (elsewhere && config_.precision == Precision::automatic) config_.precision = Precision::bf16;
  bool fp32 = config_.precision == Precision::fp32 || (on_cpu && config_.precision == Precision::automatic);
  for (int length : {config_.model.context, std::numeric_limits<int>::max()})
    for (int l = 0; l < config_.model.layers; l++)
      attention_check(config_.layer(l, length).attention, config_.model.head_dim, fp32, config_.diagnoses,
                      !planned_for_cpu(config_));
  if (flags_.generates() || (mode_.whole_run && config_.generate.every > 0))  // not at the first sample, hours later
    prompt_tokens(*open_tokenizer(config_.generate.tokenizer, config_.generate.tokenizer_dir), config_, -1,
                  config_.generate.prompt);
  if (!flags_.lengths.empty()) config_.eval.lengths = parse_lengths(flags_.lengths, "--lengths");
  Config checked = config_;
  if (!evaluates_) checked.eval.tokens = std::numeric_limits<int64_t>::max();  // other modes have their own tokens
  if (evaluates_ || is(Mode::passkey) || config_.diagnoses)
    check_lengths(checked, checked.eval.lengths, flags_.lengths.empty() ? "eval.lengths" : "--lengths");
  if (mode_.whole_run && ranks_.rank == 0) carried_ = texts_of_kinds(config_);
}

// For another GPU, after those checks of a run that need no data.
void Program::plan() {
  tokenizer_to_carry(config_, mode_.whole_run && ranks_.rank == 0);
  if (is(Mode::passkey))
    passkey_prompts(*open_tokenizer(config_.generate.tokenizer, config_.generate.tokenizer_dir), config_,
                    config_.eval.lengths);
  std::optional<RunState> from;
  ResumePoint point;
  if (flags_.resuming) point = named_resume_point(flags_.resume, config_.name), from = newest_state(point);
  if (from) {
    check_same_model({point.run, nullptr, "", *from}, config_, point.run);
    if (training_) check_steps_left(config_, from->step, point.run);
  }
  if (!from && !config_.init.empty()) {
    std::string folder = named_folder(config_.init).path;
    weight_files(folder);
    std::optional<RunState> state = read_state(folder);
    if (std::string problem = state ? init_problem(state->config, config_) : ""; !problem.empty())
      user_error("config: init = \"%s\" has the weights of another model: %s%s", config_.init.c_str(), problem.c_str(),
                 source_tag(source_of(config_, {"init"})).c_str());
  }
  if (is(Mode::tasks)) data_.benchmarks = open_benchmarks(config_);
  evaluations_ = planned_evaluations(flags_, config_, data_.benchmarks, evaluates_);
  plan_elsewhere(config_, evaluations_, training_, std::max(ranks_.size, number_of_ranks(flags_.gpus)), from);
}

// The device, and where the ranks begin, once they agree on all settings.
void Program::find_checkpoint() {
  choose_device(ranks_);
  device_ = device_info();
  if (ranks_.rank == 0) use_product_cache(device_, flags_.remeasure);
  set_cpu_threads(config_.threads > 0 ? config_.threads : std::max(1, device_.processors / ranks_.size));
  if (links_) several_ = std::make_unique<Comm>(ranks_, *links_);
  if (several_) device_ = device_info();                   // NCCL has taken some memory
  if (on_cpu) device_.free_memory /= size_t(ranks_.size);  // the ranks share it
  if (config_.precision == Precision::automatic) config_.precision = device_.is_gpu ? Precision::bf16 : Precision::fp32;
  check_agreement(comm(), settings_facts(PLUSGPT_VERSION, flags_, config_));
  resume_point_ = find_resume_point(flags_, config_, comm());
  if (!resume_point_.from && training_ && config_.optimizer.schedule_start > 0)
    user_error("config: optimizer.schedule_start = %ld needs --resume from that step; use 0%s",
               config_.optimizer.schedule_start, source_tag(source_of(config_, {"optimizer.schedule_start"})).c_str());
}

// The data, and what follows from them and the checkpoint. Whether these settings and data may continue from it.
void Program::open_inputs() {
  const std::optional<Checkpoint>& from = resume_point_.from;
  bool first = comm().first();
  data_ = open_data(flags_, config_, evaluates_, ranks_.rank);
  if (data_.tokenizer) data_.warnings.push_back(data_.tokenizer->warning());
  for (const std::string& warning : data_.warnings)
    if (first && !warning.empty()) warn("%s", warning.c_str());
  if (mode_.whole_run && first && data_.tokenizer) carried_.merge(tokenizer_files(config_, *data_.tokenizer));
  if (is(Mode::tasks) || (mode_.whole_run && config_.task.every > 0)) data_.benchmarks = open_benchmarks(config_);
  facts_ = find_separator(config_, data_, from);
  if (config_.attention.documents == Documents::separate) config_.data.separator = facts_.separator;  // of the model
  if (several_) check_agreement(comm(), input_facts(config_, data_, facts_.separator, from.has_value()));
  evaluations_ = open_evaluations(flags_, config_, data_, facts_.separator, evaluates_, ranks_.rank);
  if (is(Mode::generate_file)) prompts_ = read_prompts(flags_.value, *data_.tokenizer, config_, facts_.separator);
  if (mode_.writes_file) check_output(flags_, config_, data_);
  std::printf("%s, %s, %s, %s parameters\n", device_.name.c_str(), precision_names[int(config_.precision)],
              attention_text(config_).c_str(), count_text(double(parameter_count(config_))).c_str());
  if (training_) windows_ = training_windows(config_, data_.train, first);
  if (first && evaluates_)
    report_validation(config_, data_, facts_.separator, from ? from->state.train : data_.train_files);
  if (from && training_) check_same_run(*from, config_, data_.train_files, data_.val_files);
  if (from && !training_) check_same_model(*from, config_, resume_point_.run);
  facts_.documents = sample_documents(config_, data_, facts_, first);
}

// Whether the run has made all its steps and all their evaluations.
bool Program::finished() {
  int64_t steps = config_.train.steps;
  auto answered = [&](const Evaluation& evaluation) {
    return comm().broadcast(missing_items(evaluation, config_, resume_point_.run, steps)).empty();
  };
  return resume_point_.from && resume_point_.from->state.step == steps &&
         std::all_of(evaluations_.begin(), evaluations_.end(), answered);
}

// Plans its memory, and loads its weights.
void Program::make_model() {
  std::optional<Checkpoint>& from = resume_point_.from;
  if (from && !flags_.remeasure) take_products(*from, device_);
  std::vector<int> lengths = lengths_of(evaluations_);
  if (!prompts_.empty()) lengths.push_back(longest_text(prompts_, config_));
  ModelSize size = plan_run(config_, device_, lengths, training_, from ? from->state.config.batch.micro : 0, comm());
  config_.batch.micro = size.micro;
  if (from) std::printf("continuing from %s, after %ld steps\n", from->path.c_str(), from->state.step);
  if (int64_t skipped = from ? from->state.spikes.skipped : 0; training_ && skipped > 0 && !from->state.updates)
    std::printf(
        "AdamW's bias correction counts skipped updates too (%ld so far), as in the program that began this run\n",
        skipped);
  model_ = ::make_model(config_, size.eval_rows, size.eval_length, training_, comm(), facts_);
  step_ = initial_state(*model_, from, training_);
  if (comm().first()) {
    bool init = !from && !config_.init.empty();
    report_tokenizers(config_, data_,
                      from   ? from->state.tokenizer
                      : init ? tokenizer_of_weights(named_folder(config_.init).path)
                             : Vocabulary(),
                      from && training_);
  }
  if (from) from->lock.reset();
}

void Program::run_mode() {
  if (is(Mode::generate_file)) return generate_file(*model_, *data_.tokenizer, prompts_, answers_);
  if (is(Mode::generate)) return generate_text(*model_);
  agree_on_products(*model_, evaluations_, training_);
  if (is(Mode::predict)) return predict(*model_, data_.val, flags_.value);
  if (is(Mode::token_losses)) return write_token_losses(*model_, data_.val, flags_.value);
  training_ ? make_steps() : ask();
}

// Starts the run's metrics with a line that names this program, its settings and the device. A rank without a folder
// writes nothing.
MetricsLog Program::begun_metrics(const RunDir* run) {
  if (!run) return MetricsLog();
  MetricsLog metrics(run->metrics_path());
  identity_ = identity_json(config_, data_, resume_point_.from ? &*resume_point_.from : nullptr);
  int ranks = comm().size();
  std::string name = ranks > 1 ? format("%d x %s", ranks, device_.name.c_str()) : device_.name;
  // How many keys a trained token sees is known from the documents of data.train alone.
  bool trained = training_ || config_.attention.documents == Documents::joined;
  metrics.write("start", {{"commit", PLUSGPT_VERSION},
                          {"command", flags_.command},
                          {"config", config_json(config_)},
                          {"identity", identity_},
                          {"device", name},
                          {"versions", {{"backend", on_cpu ? "cpu" : "cuda"}, {"products", device_.products}}},
                          {"parameters", parameter_count(config_)},
                          {"flops_per_token", trained ? flops_per_token(config_, facts_.documents) : NAN}});
  return metrics;
}

void Program::ask() {
  std::unique_ptr<RunDir> run_dir;
  std::string folder = "runs/" + config_.name, file = folder + "/metrics.jsonl";
  auto closed = [](const std::string& path) {  // there, but not to be written
    return ::faccessat(AT_FDCWD, path.c_str(), F_OK, AT_EACCESS) == 0 &&
           ::faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) != 0;
  };
  if (comm().first() && (closed(folder) || closed(file)))
    warn("%s may not be written: results are printed, but not added to it", file.c_str());
  else if (comm().first()) run_dir = std::make_unique<RunDir>(config_.name);
  MetricsLog metrics = begun_metrics(run_dir.get());
  // Without a checkpoint they are those with which the run begins.
  WeightsOrigin origin{config_.name, config_.init.empty() ? "random" : named_folder(config_.init).path};
  if (const std::optional<Checkpoint>& from = resume_point_.from)
    origin = {from->state.config.name, from->path, step_, from->state.tokens, from->checksum};
  else
    origin.checksum = checksum_text((identity_.contains("init") ? identity_["init"].dump() : "") +
                                    config_json(config_, {"seed", "model", "attention"}).dump());
  for (const Evaluation& evaluation : evaluations_)
    if (evaluation.asked && !evaluation.run({*model_, origin, metrics, {}}, evaluation.items))
      failure("%s", evaluation.not_finite);
}

void Program::make_steps() {
  Loader loader(*windows_, {.T = config_.model.context,
                            .micro = config_.batch.micro,
                            .micro_steps = int(micro_steps(config_, comm().size())),
                            .rank = comm().rank(),
                            .ranks = comm().size(),
                            .shuffle = config_.data.shuffle,
                            .seed = config_.seed,
                            .outputs = config_.model.head.outputs,
                            .by_sequence = config_.train.label_mean == LabelMean::sequence});
  if (resume_point_.from) loader.seek(step_);
  if (is(Mode::train)) return train_run(loader);
  if (is(Mode::dry_run) && comm().first()) check_all_tokens(config_, data_);
  int64_t done = resume_point_.from ? step_ : 0;  // those of `init` are another run's
  if (is(Mode::dry_run)) print_work(config_, evaluations_, done, comm().size(), facts_.documents);
  auto [number, result] = one_step(loader);
  if (is(Mode::dump_gradients)) {
    save_gradients(*model_, flags_.value);
    std::printf("loss %.9g | norm %.9g | gradients in %s\n", result.loss, result.grad_norm, flags_.value.c_str());
  } else {
    if (!resume_point_.from || resume_point_.from->state.updates == 0) warn_of_zero_gradients(*model_, number);
    std::printf("one step: loss %.4f | norm %.4f; nothing was written\n", result.loss, result.grad_norm);
  }
}

// The first step that has labels, and its number.
std::pair<int64_t, StepResult> Program::one_step(Loader& loader) {
  std::optional<StepResult> computed;
  int64_t steps = config_.train.steps, number = resume_point_.from ? resume_point_.from->state.step : 0;
  for (int64_t step = 0; step < steps && !computed; step++, number++) computed = next_gradients(*model_, loader);
  if (!computed) user_error("data.labels: %ld steps (train.steps) have no label; use other labels", steps);
  if (!std::isfinite(computed->loss) || !std::isfinite(computed->grad_norm))
    failure("this step's loss is %g and its gradient norm %g: training cannot start from here", computed->loss,
            computed->grad_norm);
  return {number, *computed};
}

void Program::train_run(Loader& loader) {
  comm().barrier();  // all ranks have read their starting point: rank 0 may remove it now
  std::unique_ptr<RunDir>& run_dir = resume_point_.run_dir;
  if (comm().first()) {
    model_->parameters().allocate_snapshot();
    if (!run_dir) run_dir = std::make_unique<RunDir>(config_.name);
    begin_run(*run_dir, flags_.overwrite, resume_point_, config_);
  }
  RunState state = resume_point_.from ? resume_point_.from->state : RunState();
  state.windows = windows_->windows();
  state.train = data_.train_files;
  state.val = data_.val_files;
  if (data_.vocabulary().known()) state.tokenizer = data_.vocabulary();
  state.config = config_;
  state.others = carried_;
  MetricsLog metrics = begun_metrics(run_dir.get());
  train(*model_, device_, loader, evaluations_, run_dir.get(), state, metrics);
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

// SIGUSR1 asks to save; until there is something to save it is ignored. From the start, not from main() on: before that
// the constructors of libraries run. OpenBLAS's takes milliseconds and starts threads, which must not take signals.
[[gnu::section(".preinit_array"), gnu::used]] static void (*const before_constructors)() = [] {
  std::signal(SIGUSR1, SIG_IGN);
  block_signals();
};

int main(int argc, char** argv) {
  admit_signals();
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
      Gpt2Tokenizer tokenizer(flags.value);
      if (std::string warning = tokenizer.warning(); !warning.empty()) warn("%s", warning.c_str());
      encode_documents(tokenizer, stdin, stdout);
      return ended(links.get(), 0, "");
    }
    ranks = spawn_ranks(flags.gpus, ranks);
    connect(ranks);
    Program(flags, ranks, links.get()).run();
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
