// make bench: one optimizer step of a configuration on random tokens: tokens/s, and the share of the time by kernel.
//   build/cpu/bench_step [CONFIG.json] [--set key=value]...   (default: configs/quickstart.json on the CPU,
//   gpt2_124m_softmax on a GPU)
// Prints a table and writes bench/results/step_DEVICE.json. Steps are timed without the profiler (median of 9 and their
// spread); the shares come from 3 further steps in which every launch is timed.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>

#include "kernels/profile.h"
#include "runtime/device.h"
#include "runtime/log.h"
#include "train_gpt2.h"
#include "version.h"

static double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static void bench(int argc, char** argv) {
  DeviceInfo device = device_info();
  std::string path = device.is_gpu ? "configs/gpt2_124m_softmax.json" : "configs/quickstart.json";
  std::vector<std::string> sets;
  for (int i = 1; i < argc; i++) {
    if (std::string(argv[i]) == "--set" && i + 1 < argc) sets.push_back(argv[++i]);
    else path = argv[i];
  }
  Config config = load_config(path, sets);
  if (config.precision.empty()) config.precision = device.is_gpu ? "bf16" : "fp32";
  if (config.threads > 0) set_cpu_threads(config.threads);
  resolve_batch(config, 1, 64);
  int64_t micro_steps_ = micro_steps(config, 1);
  std::unique_ptr<Model> model = make_model(config, config.model.context, config.model.context, true);
  model->init_random();

  size_t rows = size_t(config.batch.micro) * config.model.context;
  std::vector<int> tokens(rows + 1);
  std::mt19937 random(1);
  for (int& token : tokens) token = int(random() % config.model.vocab);
  int step = 0;
  auto one_step = [&] {
    model->begin_step();
    for (int64_t m = 0; m < micro_steps_; m++) model->forward_backward(tokens.data(), tokens.data() + 1);
    model->end_step({.lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .step = ++step},
                    1.0f);
    CUDA_CHECK(cudaDeviceSynchronize());
  };

  for (int i = 0; i < 2; i++) one_step();
  std::vector<double> times;
  for (int i = 0; i < 9; i++) {
    double start = seconds();
    one_step();
    times.push_back(seconds() - start);
  }
  std::sort(times.begin(), times.end());
  double median = times[times.size() / 2], tokens_per_s = double(config.batch.tokens) / median;
  profile_start();
  for (int i = 0; i < 3; i++) one_step();
  std::vector<ProfileLine> lines = profile_collect();
  double total = 0;
  for (ProfileLine& line : lines) total += line.ms;

  std::printf("%s, %s, %s: %.1f ms a step (%.1f to %.1f), %.0f tokens/s, %.2f GFLOP/s\n\n", path.c_str(),
              device.name.c_str(), config.precision.c_str(), median * 1e3, times.front() * 1e3, times.back() * 1e3,
              tokens_per_s, tokens_per_s * flops_per_token(config) * 1e-9);
  std::printf("| kernel | calls a step | ms a step | share |\n|---|---|---|---|\n");
  for (ProfileLine& line : lines)
    std::printf("| %s | %.0f | %.2f | %.1f%% |\n", line.name.c_str(), line.calls / 3.0, line.ms / 3,
                100 * line.ms / total);

  if (device.is_gpu) {  // 64 warps fit on a multiprocessor of the generations that this runs on
    std::printf(
        "\n| kernel | threads | registers | bytes spilled | shared memory, KB | blocks at once | occupancy "
        "|\n|---|---|---|---|---|---|---|\n");
    for (ProfileLine& line : lines) {
      const KernelResources& r = line.resources;
      if (r.threads)
        std::printf("| %s | %d | %d | %d | %.1f | %d | %.0f%% |\n", line.name.c_str(), r.threads, r.registers,
                    r.spilled, r.shared / 1024.0, r.blocks, 100.0 * r.blocks * r.threads / 32 / 64);
    }
  }

  std::filesystem::create_directories("bench/results");
  std::string out = format("bench/results/step_%s.json", device.is_gpu ? "gpu" : "cpu");
  std::ofstream json(out);
  json << "{\n  \"device\": \"" << device.name << "\", \"threads\": " << device.processors << ", \"commit\": \""
       << PLUSGPT_VERSION << "\", \"command\": \"make bench\", \"config\": \"" << path << "\", \"precision\": \""
       << config.precision << "\",\n"
       << format(
              "  \"tokens\": %lld, \"ms\": %.3f, \"ms_min\": %.3f, \"ms_max\": %.3f, \"tokens_per_s\": %.1f,\n  "
              "\"kernels\": [\n",
              (long long)config.batch.tokens, median * 1e3, times.front() * 1e3, times.back() * 1e3, tokens_per_s);
  for (size_t i = 0; i < lines.size(); i++)
    json << format("    {\"name\": \"%s\", \"calls\": %.1f, \"ms\": %.4f, \"share\": %.4f}%s\n", lines[i].name.c_str(),
                   lines[i].calls / 3.0, lines[i].ms / 3, lines[i].ms / total, i + 1 < lines.size() ? "," : "");
  json << "  ]\n}\n";
  if (!json.flush()) failure("bench: could not write %s", out.c_str());
  std::printf("\nwritten to %s\n", out.c_str());
}

int main(int argc, char** argv) {
  try {
    bench(argc, argv);
    return 0;
  } catch (const UserError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
