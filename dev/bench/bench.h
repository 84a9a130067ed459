// Shared by the benchmark programs: random device arrays, timing, the machine's ceilings, the work that attention must
// do, and the JSON that dev/bench_table.py reads.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "attention/position_bias.cuh"
#include "attention/prune.cuh"
#include "base/text.h"
#include "kernels/convert.cuh"
#include "kernels/matmul.cuh"
#include "kernels/random.cuh"
#include "training/device.h"
#include "version.h"

// Tokens as in text: low numbers are frequent.
inline std::vector<int> random_tokens(size_t n, int V) {
  std::vector<int> tokens(n);
  unsigned state = 1;
  for (int& token : tokens) {
    state = state * 1664525 + 1013904223;
    double x = (state >> 8) * 0x1p-24;
    token = int(x * x * x * V);
  }
  return tokens;
}

// Device memory that lives as long as the object. Numbers are random: zeros make a chip faster than it is.
class Arrays {
 public:
  Arrays() = default;
  Arrays(const Arrays&) = delete;
  ~Arrays() {
    for (void* p : all_) cudaFree(p);
  }
  void* bytes(size_t n) {
    void* p;
    CUDA_CHECK(cudaMalloc(&p, n + 16));
    all_.push_back(p);
    return p;
  }
  template <class T> T* normal(size_t n, float scale = 1) {
    T* p = static_cast<T*>(bytes(n * sizeof(T)));
    float* numbers;
    CUDA_CHECK(cudaMalloc(&numbers, n * sizeof(float)));
    normal_fill(numbers, 1, n, n, scale, all_.size(), nullptr);
    convert<T, float>(p, numbers, n, nullptr);
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaFree(numbers));
    return p;
  }
  template <class T> T* uploaded(const std::vector<T>& values) {
    T* p = static_cast<T*>(bytes(values.size() * sizeof(T)));
    CUDA_CHECK(cudaMemcpy(p, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
  }

 private:
  std::vector<void*> all_;
};

struct Seconds {
  double median, least, most;
};

// Of one run, on the default stream: after two to warm up, with something else in the caches before each.
inline Seconds seconds(const std::function<void()>& run) {
  static size_t flush_bytes = on_cpu ? size_t(64) << 20 : size_t(1) << 30;
  static void* flush = (new Arrays)->bytes(flush_bytes);  // until the program ends
  cudaEvent_t start, stop;
  CUDA_CHECK(cudaEventCreate(&start));
  CUDA_CHECK(cudaEventCreate(&stop));
  std::vector<double> times;
  double total = 0;
  for (int i = 0; i < 2; i++) run();
  while (times.size() < 5 || (times.size() < 101 && total < 0.2)) {
    CUDA_CHECK(cudaMemsetAsync(flush, int(times.size()), flush_bytes, nullptr));
    float ms = 0;
    CUDA_CHECK(cudaEventRecord(start, nullptr));
    run();
    CUDA_CHECK(cudaEventRecord(stop, nullptr));
    CUDA_CHECK(cudaEventSynchronize(stop));
    CUDA_CHECK(cudaEventElapsedTime(&ms, start, stop));
    times.push_back(ms * 1e-3);
    total += times.back();
  }
  CUDA_CHECK(cudaEventDestroy(start));
  CUDA_CHECK(cudaEventDestroy(stop));
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.front(), times.back()};
}

// ---- what the machine can do: the best of all runs, because a ceiling is what nothing else may exceed

struct Ceilings {
  double copy, fp32, bf16;  // bytes a second, read and written; FLOPs a second of large matrix products
  // The least seconds that this much work takes.
  double floor(double bytes, double flops, bool is_bf16) const {
    return std::max(bytes / copy, flops / (is_bf16 ? bf16 : fp32));
  }
};

template <class T> double measured_product_rate() {
  const int n = on_cpu ? 1024 : 8192;
  Arrays arrays;
  T *a = arrays.normal<T>(size_t(n) * n), *b = arrays.normal<T>(size_t(n) * n), *d = arrays.normal<T>(size_t(n) * n);
  return 2.0 * n * n * n /
         seconds([&] { matmul<T, T>({.d = d, .a = a, .b = b, .m = n, .n = n, .k = n}, nullptr); }).least;
}

inline Ceilings measure_ceilings() {
  std::string device = device_info().name;  // or that there is none
  Arrays arrays;
  size_t n = on_cpu ? size_t(32) << 20 : size_t(256) << 20;
  float *from = arrays.normal<float>(n), *to = arrays.normal<float>(n);
  double copy = 8.0 * n / seconds([&] { convert<float, float>(to, from, n, nullptr); }).least;
  Ceilings c{copy, measured_product_rate<float>(), measured_product_rate<bf16>()};
  printf("%s: copy %.0f GB/s; matrix products %.0f GFLOP/s in float32, %.0f GFLOP/s in bf16\n\n", device.c_str(),
         c.copy * 1e-9, c.fp32 * 1e-9, c.bf16 * 1e-9);
  return c;
}

// ---- attention

// FLOPs in which every published figure is counted: causal, two products forward and five backward, whatever a kind
// does.
inline double attention_flops(const AttentionShape& s, bool backward) {
  return (backward ? 5.0 : 2.0) * s.B * s.H * double(s.T) * s.T * s.D;
}

// One call's arrays, and the work that its kind cannot do without.
template <class T> struct AttentionCase {
  AttentionSettings settings;
  AttentionShape shape;
  AttentionCall<T> call;
  Arrays arrays;
  size_t elements = shape.out_size(), statistics = shape.rows() * attention_statistics(settings, shape.D);
  T *qkv = arrays.normal<T>(3 * elements, 0.5f), *out = arrays.normal<T>(elements), *dout = arrays.normal<T>(elements),
    *dqkv = arrays.normal<T>(3 * elements);
  float* stats = arrays.normal<float>(statistics + 1);
  void* workspace = arrays.bytes(attention_backward_workspace(call));
  float* bias = settings.bias == Bias::none ? nullptr : arrays.normal<float>(bias_floats(shape));

  AttentionCase(const AttentionSettings& settings, const AttentionShape& shape, const char* family = nullptr)
      : settings(settings),
        shape(shape),
        call{.settings = this->settings, .shape = shape, .context = shape.T, .family = family} {
    call.bias = bias;
    if (settings.prunes()) position_bias_forward<T>(bias, {arrays.normal<T>(shape.rows()), shape.H}, call);
  }
  void forward(bool training) {
    find_needed_tiles(bias, nullptr, qkv, call);
    attention_forward(out, stats, qkv, call, training);
  }
  void backward() { attention_backward(dqkv, dout, out, stats, qkv, workspace, call); }
  double forward_bytes(bool training) const { return 4.0 * elements * sizeof(T) + (training ? 4.0 * statistics : 0); }
  double backward_bytes() const { return 8.0 * elements * sizeof(T) + 4.0 * statistics; }
  // Sharpened weights need the sum of a row first, so their scores are computed twice; training sums O2 beside O.
  double forward_flops(bool training) const {
    bool sharpened = settings.kind == Kind::lssar || settings.kind == Kind::softmaxr;
    int products = sharpened ? (training ? 4 : 3) : 2;
    return products / 2.0 * attention_flops(shape, false);
  }
  double backward_flops() const { return attention_flops(shape, true); }
};

// ---- JSON

using Json = nlohmann::ordered_json;  // NaN and infinities become null

// The findings of a benchmark program, written where --json says: where it ran, then its own lists.
inline Json report_head(int argc, char** argv, const Ceilings& ceilings) {
  DeviceInfo device = device_info();
  std::string command;
  for (int i = 0; i < argc; i++) append_item(command, argv[i], " ");
  int cuda = 0;
  CUDA_CHECK(cudaRuntimeGetVersion(&cuda));
  Json head = {{"device", device.name}, {"gpu", device.is_gpu}, {"processors", device.processors}};
  if (device.is_gpu) head["cuda"] = format("%d.%d", cuda / 1000, cuda % 1000 / 10);
  head["commit"] = PLUSGPT_VERSION;
  head["command"] = command;
  head["ceilings"] = {{"copy", ceilings.copy}, {"fp32", ceilings.fp32}, {"bf16", ceilings.bf16}};
  return head;
}

inline void write_report(const std::string& path, const Json& report) {
  if (path.empty()) return;
  std::ofstream file(path);
  file << report.dump(1) << "\n";
  if (!file.flush()) failure("bench: could not write %s", path.c_str());
}

// ---- command lines

inline std::string option_value(int argc, char** argv, int& i) {
  if (i + 1 == argc) user_error("%s: %s needs a value", argv[0], argv[i]);
  return argv[++i];
}

// main() of a benchmark program: exit codes as the trainer's.
inline int run_bench(void (*bench)(int, char**), int argc, char** argv) {
  try {
    bench(argc, argv);
    return 0;
  } catch (const UserError& error) {
    fprintf(stderr, "%s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
