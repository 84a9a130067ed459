// Attention alone: time of the training forward and of the backward for each kind, as TFLOP/s of the FlashAttention
// count (causal: 2 T^2 D per head forward, 2.5 times that backward, whatever a kind really needs). Medians of repeated
// runs on random data.
//   build/BACKEND/bench_attention [--threads N] [--kernels general|tensor] [--type fp32|bf16] [KIND,...|all] [D,...]
//   [T,...]
// On a GPU all kinds at D 64 and 128, T 1K..16K, 16K tokens and 1536 channels in all; on the CPU one sequence of two
// heads.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "kernels/convert.cuh"
#include "kernels/random.cuh"

template <class T>
static T* array(size_t n, uint64_t seed, float scale) {
  T* p;
  float* numbers;
  CUDA_CHECK(cudaMalloc(&p, n * sizeof(T)));
  CUDA_CHECK(cudaMalloc(&numbers, n * sizeof(float)));
  normal_fill(numbers, 1, n, n, scale, seed, nullptr);
  convert<T, float>(p, numbers, n, nullptr);
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaFree(numbers));
  return p;
}

// Seconds, the median of runs that take half a second together (3 at least).
static double seconds(const std::function<void()>& run) {
  cudaEvent_t begin, end;
  CUDA_CHECK(cudaEventCreate(&begin));
  CUDA_CHECK(cudaEventCreate(&end));
  std::vector<double> times;
  double total = 0;
  for (int n = 0; n < 3 || (total < 0.5 && n < 100); n++) {
    CUDA_CHECK(cudaEventRecord(begin, nullptr));
    run();
    CUDA_CHECK(cudaEventRecord(end, nullptr));
    CUDA_CHECK(cudaEventSynchronize(end));
    float ms;
    CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
    total += ms / 1e3;
    if (n) times.push_back(ms / 1e3);  // the first warms up
  }
  cudaEventDestroy(begin), cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

template <class T>
static void measure(const AttentionSettings& settings, int B, int length, int H, int D) {
  size_t rows = size_t(B) * length * H, n = rows * D;
  T *qkv = array<T>(3 * n, 1, 0.5f), *out = array<T>(n, 2, 1), *dout = array<T>(n, 3, 1), *dqkv = array<T>(3 * n, 4, 1);
  float* stats = array<float>(rows * attention_statistics(settings, D) + 1, 5, 1);
  void* workspace = array<float>(attention_backward_workspace(B, length, H, D) / 4, 6, 1);
  double forward = seconds([&] { attention_forward(out, stats, qkv, settings, B, length, H, D, true, nullptr); });
  double backward = seconds([&] {
    attention_backward(dqkv, dout, out, stats, qkv, workspace, settings, B, length, H, D, nullptr);
  });
  double flops = 2.0 * length * length * D * H * B, unit = on_cpu ? 1e9 : 1e12;
  printf("| %s | %d | %d | %.3g | %.3g | %.3g | %.3g |\n", kind_names[int(settings.kind)], D, length, forward * 1e3,
         flops / forward / unit, backward * 1e3, 2.5 * flops / backward / unit);
  fflush(stdout);
  for (void* p : {(void*)qkv, (void*)out, (void*)dout, (void*)dqkv, (void*)stats, workspace}) cudaFree(p);
}

static std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream in(list);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

int main(int argc, char** argv) try {
  std::string type = on_cpu ? "fp32" : "bf16";
  std::vector<std::string> lists = {"all", on_cpu ? "32,64" : "64,128",
                                    on_cpu ? "128,1024" : "1024,2048,4096,8192,16384"};
  AttentionSettings settings;
  for (int i = 1, list = 0; i < argc; i++) {
    std::string a = argv[i];
    auto value = [&] { return std::string(++i < argc ? argv[i] : ""); };
    if (a == "--threads") set_cpu_threads(atoi(value().c_str()));
    else if (a == "--type") type = value();
    else if (a == "--kernels") settings.kernels = value() == "tensor" ? Kernels::tensor : Kernels::general;
    else if (list < 3 && a[0] != '-') lists[list++] = a;
    else user_error("bench_attention: unknown argument \"%s\"; its first lines say how to use it.", a.c_str());
  }
  printf("| kind | D | T | forward ms | %s | backward ms | %s |\n|---|---|---|---|---|---|---|\n",
         on_cpu ? "GFLOP/s" : "TFLOP/s", on_cpu ? "GFLOP/s" : "TFLOP/s");
  std::vector<std::string> kinds = split(lists[0]);
  if (kinds[0] == "all") kinds.assign(std::begin(kind_names), std::end(kind_names));
  for (const std::string& kind : kinds)
    for (const std::string& d : split(lists[1]))
      for (const std::string& t : split(lists[2])) {
        int D = atoi(d.c_str()), length = atoi(t.c_str());
        if (D < 1 || length < 1)
          user_error("bench_attention: \"%s\" and \"%s\" must be numbers above 0.", d.c_str(), t.c_str());
        settings.kind = kind_from_name(kind);
        settings.context = length;
        int B = on_cpu ? 1 : std::max(1, 16384 / length), H = on_cpu ? 2 : std::max(1, 1536 / D);
        if (type == "fp32") measure<float>(settings, B, length, H, D);
        else measure<bf16>(settings, B, length, H, D);
      }
} catch (const std::exception& error) {
  fprintf(stderr, "%s\n", error.what());
  return 1;
}
