// The program: ./train CONFIG.json. Command line, configuration, memory plan, then the training loop, an evaluation or a text.
// Exit codes: 0, 2 for what the user can fix, 1 for what failed.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "data/loader.h"
#include "eval/evaluate.h"
#include "eval/generate.h"
#include "kernels/matmul.cuh"
#include "runtime/device.h"
#include "runtime/log.h"
#include "runtime/model_file.h"
#include "runtime/run_dir.h"
#include "runtime/schedule.h"
#include "train_gpt2.h"
#include "version.h"

struct Flags {
  std::string config;
  std::vector<std::string> sets;
  std::string resume, lengths, generate, gpus = "1", dump_gradients;
  bool resuming = false, eval = false, generating = false, overwrite = false, dry_run = false, print_config = false;
  std::string command;  // as typed
};

// What the command line asks for; exits for --help and --version, a user_error for what is wrong with it.
static Flags parse_flags(int argc, char** argv) {
  Flags flags;
  CLI::App app("plusgpt: pretrains GPT-2 with the attention that the configuration names.", "train");
  app.add_option("CONFIG", flags.config, "configuration, a JSON file");
  app.add_option("--set", flags.sets, "override one key: --set optimizer.lr=1e-3; may be repeated")->type_name("KEY=VALUE")->allow_extra_args(false);
  auto* resume = app.add_option("--resume", flags.resume, "continue from the latest checkpoint, or from DIR (a run or a step folder)")->expected(0, 1)->type_name("[latest|DIR]");
  app.add_flag("--eval", flags.eval, "evaluate and exit; weights from --resume, else init, else fresh");
  auto* lengths = app.add_option("--lengths", flags.lengths, "with --eval: lengths to evaluate at [eval.lengths]")->type_name("1024,2048,...");
  auto* generate = app.add_option("--generate", flags.generate, "continue TEXT and exit")->type_name("TEXT");
  app.add_option("--gpus", flags.gpus, "number of GPUs on this machine, or all [1]")->type_name("N|all");
  app.add_flag("--overwrite", flags.overwrite, "train into a run that has checkpoints, deleting them");
  app.add_flag("--dry-run", flags.dry_run, "check everything, print the memory table, run one step, write nothing");
  app.add_flag("--print-config", flags.print_config, "print every setting with its origin and exit");
  app.add_option("--dump-gradients", flags.dump_gradients, "write the gradients of the first step as safetensors and exit")->type_name("FILE");
  app.set_version_flag("--version", "plusgpt " PLUSGPT_VERSION);
  app.footer([] { return "Configuration keys:\n\n" + config_help(); });
  app.allow_extras();
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& information) {  // --help, --version
    std::exit(app.exit(information));
  } catch (const CLI::ParseError& error) {
    user_error("command line: %s; see ./train --help", error.what());
  }
  if (std::vector<std::string> rest = app.remaining(); !rest.empty()) {
    if (rest[0].rfind("-", 0) == 0) user_error("command line: %s is unknown%s", rest[0].c_str(), did_you_mean(rest[0], names).c_str());
    user_error("command line: \"%s\" after \"%s\": one configuration at a time", rest[0].c_str(), flags.config.c_str());
  }
  if (flags.config.empty()) user_error("command line: no configuration given; try ./train configs/quickstart.json, or ./train --help");
  flags.resuming = resume->count() > 0;
  flags.generating = generate->count() > 0;
  if (flags.resuming && flags.resume.empty()) flags.resume = "latest";
  if (lengths->count() && !flags.eval) user_error("command line: --lengths belongs to --eval; for training set eval.lengths");
  int modes = flags.eval + flags.generating + flags.dry_run + flags.print_config + !flags.dump_gradients.empty();
  if (modes > 1) user_error("command line: --eval, --generate, --dry-run, --print-config and --dump-gradients exclude each other");
  for (int i = 0; i < argc; i++) flags.command += (i ? " " : "") + std::string(argv[i]);
  return flags;
}

static int ranks_wanted(const Flags& flags) {
  if (flags.gpus == "all" && on_cpu) return 1;
  int count = 0;
  if (flags.gpus == "all") CUDA_CHECK(cudaGetDeviceCount(&count));
  else if (flags.gpus.find_first_not_of("0123456789") == std::string::npos && flags.gpus.size() < 5) count = std::atoi(flags.gpus.c_str());
  if (count < 1) user_error("command line: --gpus %s is not a number of GPUs; give 1 or more, or all", flags.gpus.c_str());
  if (count > 1) user_error("command line: --gpus %s: several GPUs are not built yet; leave the flag out", flags.gpus.c_str());
  return count;
}

// ---------------------------------------------------------------------------------------------------------------------------
// Weights

static std::vector<NamedArray> arrays_of(const Model& model) {
  std::vector<NamedArray> arrays;
  for (const Tensor& tensor : model.tensors()) arrays.push_back({tensor.name, {tensor.shape.begin(), tensor.shape.end()}});
  return arrays;
}

static void save_model(const Model& model, Part part, const std::string& path) {
  save_arrays(path, arrays_of(model), [&](size_t i, float* out) { model.read(model.tensors()[i], part, out); });
}

static void load_model(Model& model, const std::string& dir) {
  load_arrays(dir, arrays_of(model), [&](size_t i, const float* values) { model.write(model.tensors()[i], values); });
}

// A folder with a model, and how many updates its name says it has had: 0 unless it is a run's step_N.
static StepFolder model_folder(std::filesystem::path dir) {
  if (!dir.has_filename()) dir = dir.parent_path();  // a trailing slash
  for (const StepFolder& folder : step_folders(dir.has_parent_path() ? dir.parent_path().string() : "."))
    if (std::filesystem::path(folder.path).filename() == dir.filename()) return {folder.step, dir.string()};
  return {0, dir.string()};
}

// What --resume names: a step folder, or a run, of which it is the newest.
static StepFolder resume_folder(const std::string& resume, const Config& config) {
  std::string dir = resume == "latest" ? "runs/" + config.name : resume;
  if (StepFolder own = model_folder(dir); own.step > 0) return own;
  std::vector<StepFolder> steps = step_folders(dir);
  if (steps.empty()) user_error("command line: --resume: %s is neither a step_* folder nor a run that holds one", dir.c_str());
  return steps.front();
}

// Weights from --resume, else init, else random. Returns how many updates they have had, as far as that is known.
static int64_t initial_weights(Model& model, const Flags& flags) {
  const std::string& init = model.config().init;
  StepFolder from = flags.resuming ? resume_folder(flags.resume, model.config()) : init.empty() ? StepFolder{} : model_folder(init);
  if (from.path.empty()) {
    model.init_random();
  } else {
    load_model(model, from.path);
    std::printf("weights from %s\n", from.path.c_str());
  }
  return from.step;
}

// ---------------------------------------------------------------------------------------------------------------------------
// Memory

struct Plan {
  size_t eval_rows;
  int eval_length;
  bool training;
};

static int64_t largest_micro(const Config& config, const Plan& plan, size_t budget) {
  auto fits = [&](int64_t micro) {
    Config with = config;
    with.batch.micro = int(micro);  // longer evaluations take their batch from it
    return plan_memory(with, int(micro), std::max(plan.eval_rows, eval_rows(with, {plan.eval_length})), plan.eval_length, plan.training)
               .total() <= budget;
  };
  int64_t low = 0, high = 4096;  // fits(low) holds, fits(high) is not asked for
  while (low + 1 < high) {
    int64_t middle = (low + high) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

// Chooses or checks the micro batch and prints the memory table; a user_error if it does not fit.
static Plan plan_run(Config& config, const DeviceInfo& device, std::vector<int> lengths, bool training) {
  lengths.push_back(config.model.context);
  int longest = *std::max_element(lengths.begin(), lengths.end());
  size_t budget = size_t(double(device.free_memory) * 0.92);  // the rest: matrix library, driver, host side
  Plan plan{size_t(longest), longest, training};
  int64_t fits = largest_micro(config, plan, budget);
  if (training) resolve_batch(config, 1, std::max<int64_t>(1, fits));
  else config.batch.micro = int(std::max<int64_t>(1, std::min<int64_t>(fits, config.batch.micro > 0 ? config.batch.micro : 64)));
  plan.eval_rows = eval_rows(config, lengths);
  MemoryPlan memory = plan_memory(config, config.batch.micro, plan.eval_rows, longest, training);
  std::string table;
  for (auto& [category, bytes] : memory.categories())
    table += format("  %-22s %10s\n", category.c_str(), bytes_text(double(bytes)).c_str());
  table += format("  %-22s %10s of %s free; micro batch %d, the largest that fits is %lld\n", "in all", bytes_text(double(memory.total())).c_str(),
                  bytes_text(double(device.free_memory)).c_str(), config.batch.micro, (long long)fits);
  if (memory.total() > budget)
    user_error("memory: this run does not fit on %s:\n%sset %s, a smaller model, or train.recompute=block  [%s]", device.name.c_str(), table.c_str(),
               fits >= 1 ? format("batch.micro to at most %lld", (long long)fits).c_str() : "a shorter model.context or eval.lengths",
               config.file.c_str());
  std::printf("memory\n%s", table.c_str());
  return plan;
}

// ---------------------------------------------------------------------------------------------------------------------------
// What the program can do

static void evaluate_lengths(Model& model, const std::vector<Shard>& shards, const std::vector<int>& lengths, int64_t step, const char* type,
                             MetricsLog* metrics) {
  for (int length : lengths) {
    LengthLoss result = evaluate(model, shards, length, model.config().eval.tokens);
    std::printf("%s  step %lld  length %5d | loss %.4f | last %d: %.4f | %s tokens\n", type, (long long)step, length, result.loss,
                std::min(1024, length), result.last_loss, count_text(double(result.tokens)).c_str());
    std::fflush(stdout);
    if (!metrics) continue;
    if (std::string(type) == "eval") metrics->eval(step, length, result.loss, result.tokens, result.last_loss, result.by_position);
    else metrics->val(step, length, result.loss, result.tokens);
  }
}

static void generate_text(Model& model, const Config::Generate& settings) {
  auto tokenizer = open_tokenizer(settings.tokenizer, settings.tokenizer_dir);
  generate(model, *tokenizer, settings, model.config().seed, [](const std::string& text) {
    std::fputs(valid_utf8(text).c_str(), stdout);
    std::fflush(stdout);
  });
  std::printf("\n");
}

static AdamW adamw_settings(const Config& config, int64_t step) {
  const Config::Optimizer& o = config.optimizer;
  return {.lr = float(learning_rate(config, step)), .beta1 = float(o.beta1), .beta2 = float(o.beta2), .eps = float(o.eps),
          .weight_decay = float(o.weight_decay), .step = int(step + 1)};
}

static double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// model.safetensors and config.json of this step, complete or not at all; then the oldest folders beyond checkpoint.keep go.
static void save_step(const Model& model, RunDir& run, int64_t step) {
  std::string folder = run.begin_step(step);
  save_model(model, Part::parameters, folder + "/model.safetensors");
  write_text_file(folder + "/config.json", model_config_json(model.config()));
  std::printf("saved %s\n", run.publish_step(step).c_str());
  run.keep_newest(model.config().checkpoint.keep);
}

static void train(Model& model, const Flags& flags, const DeviceInfo& device, Loader& loader, const std::vector<Shard>& val, RunDir& run) {
  const Config& config = model.config();
  int64_t steps = config.train.steps, micro = micro_steps(config, 1);
  MetricsLog metrics(run.metrics_path());
  metrics.start(PLUSGPT_VERSION, flags.command, config_json(config), device.name, {{"backend", on_cpu ? "cpu" : "cuda"}});
  double peak = config.precision == "bf16" ? device.peak_bf16_flops : 0, flops = flops_per_token(config);
  Eta eta;
  for (int64_t step = 0;; step++) {
    bool last = step == steps;
    if (config.eval.every > 0 && (step % config.eval.every == 0 || last)) evaluate_lengths(model, val, config.eval.lengths, step, "val", &metrics);
    if (config.generate.every > 0 && step > 0 && (step % config.generate.every == 0 || last)) generate_text(model, config.generate);
    if (step > 0 && ((last && config.checkpoint.at_end) || (!last && config.checkpoint.every > 0 && step % config.checkpoint.every == 0)))
      save_step(model, run, step);
    if (last) break;
    double start = seconds_now();
    model.begin_step();
    for (int64_t m = 0; m < micro; m++) {
      const Batch& batch = loader.next();
      model.forward_backward(batch.inputs.data(), batch.targets.data());
    }
    AdamW settings = adamw_settings(config, step);
    StepResult result = model.end_step(settings, float(config.optimizer.grad_clip));
    double elapsed = seconds_now() - start, tokens_per_s = double(config.batch.tokens) / elapsed;
    TrainReport report{.step = step + 1, .steps = steps, .loss = result.loss, .grad_norm = result.grad_norm, .lr = learning_rate(config, step),
                       .tokens = (step + 1) * config.batch.tokens, .tokens_per_s = tokens_per_s,
                       .mfu = peak > 0 ? flops * tokens_per_s / peak : NAN, .ms = elapsed * 1e3};
    metrics.train(report);
    eta.add(report.ms);
    if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm))
      failure("step %lld: loss %g, gradient norm %g: training has diverged; lower optimizer.lr or lengthen optimizer.warmup_steps. The last "
              "saved weights are in %s", (long long)step + 1, result.loss, result.grad_norm, run.path().c_str());
    if (report.step % config.log.every == 0 || report.step == steps) {
      std::printf("%s\n", console_line(report, eta.seconds(steps - report.step)).c_str());
      std::fflush(stdout);
    }
  }
}

// Everything a user can get wrong is said before the first step, and before anything of an older run is touched.
static void check_folder_of(const std::string& file) {
  std::filesystem::path folder = std::filesystem::path(file).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder))
    user_error("command line: --dump-gradients %s: there is no folder %s; create it first", file.c_str(), folder.c_str());
}

// Measured matrix algorithms are kept between runs in the user's cache folder; without one they are measured again.
static void use_matmul_cache() {
  const char *xdg = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  if (!xdg && !home) return;
  std::filesystem::path folder = (xdg ? std::filesystem::path(xdg) : std::filesystem::path(home) / ".cache") / "plusgpt";
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error) matmul_cache_file((folder / "matmul.txt").string());
}

static StepResult one_step(Model& model, Loader& loader) {
  model.begin_step();
  for (int64_t m = 0, count = micro_steps(model.config(), 1); m < count; m++) {
    const Batch& batch = loader.next();
    model.forward_backward(batch.inputs.data(), batch.targets.data());
  }
  return model.finish(float(model.config().optimizer.grad_clip));
}

static void run(const Flags& flags) {
  Config config = load_config(flags.config, flags.sets);
  if (flags.generating) config.generate.prompt = flags.generate;
  if (flags.print_config) {
    std::fputs(print_config(config).c_str(), stdout);
    return;
  }
  ranks_wanted(flags);
  for (const std::string& warning : config.warnings) std::fprintf(stderr, "warning: %s\n", warning.c_str());
  attention_check(attention_settings(config), config.model.head_dim);
  if (config.optimizer.skip_spikes > 0)
    user_error("config: optimizer.skip_spikes is not built yet; leave it at 0  [%s]", config.file.c_str());
  bool training = !flags.eval && !flags.generating, dumping = !flags.dump_gradients.empty();
  bool real_run = training && !flags.dry_run && !dumping;
  if (flags.resuming && training) user_error("command line: --resume: continuing a training is not built yet; --resume works with --eval and --generate");

  DeviceInfo device = device_info();
  if (config.precision.empty()) config.precision = device.is_gpu ? "bf16" : "fp32";
  if (device.is_gpu) use_matmul_cache();
  set_cpu_threads(config.threads > 0 ? config.threads : int(std::max(1u, std::thread::hardware_concurrency())));
  std::vector<int> lengths = flags.lengths.empty() ? config.eval.lengths : parse_lengths(flags.lengths, "--lengths");
  check_lengths(config, lengths, flags.lengths.empty() ? "eval.lengths" : "--lengths");
  bool evaluates = flags.eval || (real_run && config.eval.every > 0);
  std::vector<Shard> train_shards, val_shards;
  if (training) train_shards = open_shards(config.data.train, config.model.vocab, "data.train");
  if (evaluates || (flags.dry_run && config.eval.every > 0)) val_shards = open_shards(config.data.val, config.model.vocab, "data.val");
  for (int length : val_shards.empty() ? std::vector<int>{} : lengths) check_windows(config, val_shards, length, config.eval.tokens);
  if (dumping) check_folder_of(flags.dump_gradients);
  std::printf("%s, %s, %s attention, %s parameters\n", device.name.c_str(), config.precision.c_str(), config.attention.variant.c_str(),
              count_text(double(parameter_count(config))).c_str());
  std::unique_ptr<WindowReader> windows;
  if (training) windows = std::make_unique<WindowReader>(train_shards, config.model.context, config.model.vocab, "data.train");
  Plan plan = plan_run(config, device, flags.generating || dumping ? std::vector<int>{} : lengths, training);

  std::unique_ptr<Model> model = make_model(config, plan.eval_rows, plan.eval_length, training);
  int64_t step = initial_weights(*model, flags);
  std::unique_ptr<RunDir> run_dir;
  if (real_run) {
    run_dir = std::make_unique<RunDir>(config.name);
    run_dir->start_fresh(flags.overwrite);
    write_text_file(run_dir->config_path(), config_json(config));
  }

  if (flags.generating) return generate_text(*model, config.generate);
  if (flags.eval) {
    RunDir eval_dir(config.name);
    MetricsLog metrics(eval_dir.metrics_path());
    return evaluate_lengths(*model, val_shards, lengths, step, "eval", &metrics);
  }
  Loader loader(*windows, {.T = config.model.context, .micro = config.batch.micro, .micro_steps = int(micro_steps(config, 1)),
                           .shuffle = config.data.shuffle, .seed = config.seed});
  if (dumping) {
    StepResult result = one_step(*model, loader);
    save_model(*model, Part::gradients, flags.dump_gradients);
    std::printf("loss %.9g | norm %.9g | gradients in %s\n", result.loss, result.grad_norm, flags.dump_gradients.c_str());
    return;
  }
  if (flags.dry_run) {
    StepResult result = one_step(*model, loader);
    std::printf("one step: loss %.4f | norm %.4f; nothing was written\n", result.loss, result.grad_norm);
    return;
  }
  train(*model, flags, device, loader, val_shards, *run_dir);
}

int main(int argc, char** argv) {
  try {
    run(parse_flags(argc, argv));
    return 0;
  } catch (const UserError& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "out of host memory\n");
    return 1;
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
