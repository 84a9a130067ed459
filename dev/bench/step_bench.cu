// One optimizer step of a configuration on random tokens, for several variants of attention: tokens/s, share of the
// machine's peak, time by phase and by kernel, gaps between kernels, memory.
//   build/BACKEND/bench_step [CONFIG.json] [--variants A,B,...] [--set key=value]... [--json FILE]
// Default: configs/quickstart.json on the CPU, gpt2_124m_softmax on a GPU; softmax, lssar and lssar_softplus_gated.
// Steps are timed by the wall clock, with nothing inside but an event where a phase begins; the phases are those of the
// step with the median time, "host" what is left of it. The time of the kernels comes from 3 further steps in which two
// events surround every launch. Nothing waits for them, but they lengthen what they measure, by about the printed time
// each: the gaps, wall time less the sum of the kernels, are too small by up to that, times the launches.
#include <chrono>
#include <memory>

#include "dev/bench/bench.h"
#include "train_gpt2.h"
#include "training/flops.h"

static double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

using Phases = std::vector<std::pair<std::string, double>>;  // milliseconds
struct Step {
  double ms;
  Phases phases;
};

static Config load(const std::string& path, std::vector<std::string> sets, const std::string& variant,
                   const DeviceInfo& device) {
  sets.push_back("attention.variant=" + variant);
  Config config = load_config(path, sets);
  if (config.precision == Precision::automatic) config.precision = device.is_gpu ? Precision::bf16 : Precision::fp32;
  if (config.threads > 0) set_cpu_threads(config.threads);
  int fits = 64, T = config.model.context;
  double budget = 0.9 * double(device.free_memory);
  while (fits > 1 && double(plan_memory(config, fits, T, T, true).total()) > budget) fits /= 2;
  resolve_batch(config, 1, fits);
  return config;
}

static void print_resources(const std::vector<ProfileLine>& lines) {  // 64 warps fit on a multiprocessor of these GPUs
  printf(
      "\n| kernel | threads | registers | bytes spilled | shared memory, KB | blocks at once | occupancy |\n"
      "|---|---|---|---|---|---|---|\n");
  for (const ProfileLine& line : lines)
    if (const KernelResources& r = line.resources; r.threads)
      printf("| %s | %d | %d | %d | %.1f | %d | %.0f%% |\n", line.name.c_str(), r.threads, r.registers, r.spilled,
             r.shared / 1024.0, r.blocks, 100.0 * r.blocks * r.threads / 32 / 64);
}

static Json measure(const std::string& path, const std::string& variant, const Config& config, const DeviceInfo& device,
                    const Ceilings& ceilings) {
  std::unique_ptr<Model> model = make_model(config, config.model.context, config.model.context, true);
  model->parameters().init_random(model->config().seed);
  size_t rows = size_t(config.batch.micro) * config.model.context;
  std::vector<int> tokens = random_tokens(rows + 1, config.model.vocab);
  int step = 0;
  auto one_step = [&] {
    model->begin_step();
    for (int64_t m = 0, count = micro_steps(config, 1); m < count; m++)
      model->forward_backward(tokens.data(), tokens.data() + 1);
    model->reduce_and_clip(1.0f);
    model->update({.lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .step = ++step});
    CUDA_CHECK(cudaDeviceSynchronize());
  };

  for (int i = 0; i < 2; i++) one_step();
  std::vector<Step> steps;
  for (int i = 0; i < 9; i++) {
    phases_start();
    double start = now();
    one_step();
    double ms = (now() - start) * 1e3;
    steps.push_back({ms, phases_collect()});
  }
  std::sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.ms < b.ms; });
  Step median = steps[steps.size() / 2];
  double host = median.ms;
  for (auto& [phase, ms] : median.phases) host -= ms;
  median.phases.push_back({"host", host});

  constexpr int PROFILED = 3;
  profile_start();
  for (int i = 0; i < PROFILED; i++) one_step();
  std::vector<ProfileLine> lines = profile_collect();
  double kernels = 0, launches = 0;
  for (ProfileLine& line : lines) {
    line.ms /= PROFILED;
    kernels += line.ms;
    launches += double(line.calls) / PROFILED;
  }

  double tokens_per_s = double(config.batch.tokens) / median.ms * 1e3, flops = flops_per_token(config);
  bool is_bf16 = config.precision == Precision::bf16, data_sheet = is_bf16 && device.peak_bf16_flops > 0;
  double peak = data_sheet ? device.peak_bf16_flops : is_bf16 ? ceilings.bf16 : ceilings.fp32;
  double gaps = median.ms - kernels;
  static const double event = seconds([] {}).median * 1e6;  // us that two events are apart with nothing between
  MemoryPlan memory = plan_memory(config, config.batch.micro, config.model.context, config.model.context, true);

  printf("## %s, %s, %s: %.1f ms a step of %ld tokens (%.1f to %.1f), %.0f tokens/s, %.1f%% of %s %.0f GFLOP/s\n\n",
         path.c_str(), variant.c_str(), precision_names[int(config.precision)], median.ms, config.batch.tokens,
         steps.front().ms, steps.back().ms, tokens_per_s, 100 * tokens_per_s * flops / peak,
         data_sheet ? "the data sheet's" : "the measured", peak * 1e-9);
  printf("| kernel | calls a step | ms a step | share |\n|---|---|---|---|\n");
  Json phases = Json::object(), categories = Json::object(), profile = Json::array();
  for (const ProfileLine& line : lines) {
    double calls = double(line.calls) / PROFILED, share = line.ms / kernels;
    printf("| %s | %.0f | %.2f | %.1f%% |\n", line.name.c_str(), calls, line.ms, 100 * share);
    profile.push_back({{"name", line.name}, {"calls", calls}, {"ms", line.ms}, {"share", share}});
  }
  printf("\n%.2f ms of kernels in %.0f launches and %.2f ms of gaps (an event: %.1f us)\n\nms a step:", kernels,
         launches, gaps, event);
  for (auto& [phase, ms] : median.phases) {
    printf(" %s %.2f", phase.c_str(), ms);
    phases[phase] = ms;
  }
  printf("\nMiB of memory, micro batch %d:", config.batch.micro);
  for (auto& [category, bytes] : memory.categories()) {
    printf(" %s %.1f,", category.c_str(), double(bytes) / (1 << 20));
    categories[category] = bytes;
  }
  printf(" in all %.1f\n", double(memory.total()) / (1 << 20));
  if (device.is_gpu) print_resources(lines);
  printf("\n");
  fflush(stdout);
  return {{"config", path},
          {"variant", variant},
          {"precision", precision_names[int(config.precision)]},
          {"micro", config.batch.micro},
          {"context", config.model.context},
          {"tokens", config.batch.tokens},
          {"flops_per_token", flops},
          {"ms", median.ms},
          {"ms_least", steps.front().ms},
          {"ms_most", steps.back().ms},
          {"tokens_per_s", tokens_per_s},
          {"mfu", tokens_per_s * flops / peak},
          {"peak_flops", peak},
          {"peak_from", data_sheet ? "data sheet" : "measured"},
          {"phases_ms", phases},
          {"kernels_ms", kernels},
          {"launches", launches},
          {"gaps_ms", gaps},
          {"event_us", event},
          {"memory", categories},
          {"memory_bytes", memory.total()},
          {"kernels", profile}};
}

static void bench(int argc, char** argv) {
  DeviceInfo device = device_info();
  std::string path = device.is_gpu ? "configs/gpt2_124m_softmax.json" : "configs/quickstart.json", json;
  std::string variants = "softmax,lssar,lssar_softplus_gated";
  std::vector<std::string> sets;
  for (int i = 1; i < argc; i++) {
    std::string a = argv[i];
    if (a == "--set") sets.push_back(option_value(argc, argv, i));
    else if (a == "--variants") variants = option_value(argc, argv, i);
    else if (a == "--json") json = option_value(argc, argv, i);
    else if (a[0] != '-') path = a;
    else user_error("bench_step: unknown argument \"%s\"; its first lines say how to use it", a.c_str());
  }
  Ceilings ceilings = measure_ceilings();
  Json report = report_head(argc, argv, ceilings);
  for (const std::string& variant : split(variants, ','))
    report["steps"].push_back(measure(path, variant, load(path, sets, variant, device), device, ceilings));
  write_report(json, report);
}

int main(int argc, char** argv) { return run_bench(bench, argc, argv); }
