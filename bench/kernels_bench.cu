// Every kernel of kernels/ at the shapes of a training step: time, its floor (bytes that must move over the measured
// copy rate, FLOPs over the measured product rate, whichever is longer), and the ratio of the two. GPT-2 124M on a GPU,
// the quick-start model on the CPU; --cpu-shapes and --gpu-shapes choose otherwise. Medians and least of repeated runs
// on random data with caches flushed; the ceilings are the best of their runs.
//   build/BACKEND/bench_kernels [--gpu-shapes|--cpu-shapes] [--threads N] [FILTER]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "kernels/adamw.cuh"
#include "kernels/bias.cuh"
#include "kernels/convert.cuh"
#include "kernels/cross_entropy.cuh"
#include "kernels/embedding.cuh"
#include "kernels/gelu.cuh"
#include "kernels/grad_norm.cuh"
#include "kernels/layernorm.cuh"
#include "kernels/matmul.cuh"
#include "kernels/random.cuh"
#include "kernels/reduce.cuh"

struct Model {
  const char* name;
  int B, T, C, F, V;
};
constexpr Model gpt2_124m = {"GPT-2 124M", 32, 1024, 768, 3072, 50257},
                quick_start = {"quick start", 16, 128, 128, 512, 256};

static cudaStream_t stream;
static std::string filter;
static double copy_rate, product_rate;  // bytes and FLOPs a second

// Device arrays that live until the program ends, filled with random numbers.
template <class T>
static T* array(size_t n, float scale = 1) {
  T* p;
  CUDA_CHECK(cudaMalloc(&p, n * sizeof(T) + 16));
  float* numbers = nullptr;
  CUDA_CHECK(cudaMalloc(&numbers, n * sizeof(float)));
  normal_fill(numbers, 1, n, n, scale, n, stream);
  convert<T, float>(p, numbers, n, stream);
  CUDA_CHECK(cudaStreamSynchronize(stream));
  CUDA_CHECK(cudaFree(numbers));
  return p;
}

static int* tokens(size_t n, int V) {
  std::vector<int> values(n);
  unsigned state = 1;
  for (int& token : values) {
    state = state * 1664525 + 1013904223;
    double x = (state >> 8) * 0x1p-24;
    token = int(x * x * x * V);  // low numbers are frequent, as in text
  }
  int* p;
  CUDA_CHECK(cudaMalloc(&p, n * sizeof(int)));
  CUDA_CHECK(cudaMemcpy(p, values.data(), n * sizeof(int), cudaMemcpyHostToDevice));
  return p;
}

struct Seconds {
  double median, least;
};

// Of one run, after a warm-up, with something else in the caches before each.
static Seconds seconds(const std::function<void()>& run) {
  static size_t flush_bytes = on_cpu ? size_t(64) << 20 : size_t(256) << 20;
  static char* flush = [] {
    char* p;
    CUDA_CHECK(cudaMalloc(&p, flush_bytes));
    return p;
  }();
  cudaEvent_t start, stop;
  CUDA_CHECK(cudaEventCreate(&start));
  CUDA_CHECK(cudaEventCreate(&stop));
  std::vector<float> times;
  double total = 0;
  for (int i = 0; i < 3; i++) run();
  while (times.size() < 7 || (times.size() < 101 && total < 200)) {
    CUDA_CHECK(cudaMemsetAsync(flush, int(times.size()), flush_bytes, stream));
    float ms = 0;
    CUDA_CHECK(cudaEventRecord(start, stream));
    run();
    CUDA_CHECK(cudaEventRecord(stop, stream));
    CUDA_CHECK(cudaEventSynchronize(stop));
    CUDA_CHECK(cudaEventElapsedTime(&ms, start, stop));
    times.push_back(ms);
    total += ms;
  }
  CUDA_CHECK(cudaEventDestroy(start));
  CUDA_CHECK(cudaEventDestroy(stop));
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2] * 1e-3, times[0] * 1e-3};
}

static void line(const std::string& name, double bytes, double flops, const std::function<void()>& run) {
  if (name.find(filter) == std::string::npos) return;
  Seconds time = seconds(run);
  double floor = std::max(bytes / copy_rate, flops / product_rate);
  std::printf("%-36s %10.1f us (least %10.1f) %8.1f MB %8.2f GFLOP %8.1f GB/s %9.1f GFLOP/s   floor is %5.1f%%\n",
              name.c_str(), time.median * 1e6, time.least * 1e6, bytes * 1e-6, flops * 1e-9, bytes / time.median * 1e-9,
              flops / time.median * 1e-9, 100 * floor / time.median);
}

template <class T>
static void bench(const Model& m, const std::string& type) {
  const int B = m.B, T_ = m.T, N = B * T_, C = m.C, F = m.F, V = m.V, Vp = (V + 127) / 128 * 128;
  const int rows = std::min(N, 8192);  // of logits at a time
  const double s = sizeof(T), NC = double(N) * C;
  T *x = array<T>(size_t(N) * C), *y = array<T>(size_t(N) * C), *z = array<T>(size_t(N) * C), *gamma = array<T>(C),
    *beta = array<T>(C);
  T *wide = array<T>(size_t(N) * F), *wide2 = array<T>(size_t(N) * F), *bias = array<T>(F),
    *weight = array<T>(size_t(C) * F, 0.02f);
  T *wte = array<T>(size_t(Vp) * C, 0.02f), *wpe = array<T>(size_t(T_) * C, 0.02f),
    *logits = array<T>(size_t(rows) * Vp);
  float *mean = array<float>(N), *rstd = array<float>(N), *dweight = array<float>(size_t(C) * F),
        *dwte = array<float>(size_t(Vp) * C);
  float *dwpe = array<float>(size_t(T_) * C), *dgamma = array<float>(F), *dbeta = array<float>(C),
        *losses = array<float>(N), *one = array<float>(1);
  int* inputs = tokens(N, V);
  void* workspace;
  CUDA_CHECK(cudaMalloc(&workspace, std::max({embedding_backward_workspace(N, C, Vp),
                                              layernorm_backward_workspace(N, C), bias_backward_workspace(N, F)})));
  auto name = [&](const char* kernel) { return type + " " + kernel; };

  line(name("embedding_forward"), 2 * NC * s, 0, [&] { embedding_forward<T>(x, inputs, wte, wpe, B, T_, C, stream); });
  line(name("embedding_backward"), NC * s + 8.0 * std::min(N, V) * C, NC,
       [&] { embedding_backward<T>(dwte, nullptr, x, inputs, workspace, B, T_, C, Vp, stream); });
  line(name("embedding_backward + positions"), 2 * NC * s + 8.0 * std::min(N, V) * C, 2 * NC,
       [&] { embedding_backward<T>(dwte, dwpe, x, inputs, workspace, B, T_, C, Vp, stream); });
  line(name("layernorm_forward"), 2 * NC * s, 0,
       [&] { layernorm_forward<T>(y, mean, rstd, x, gamma, beta, N, C, stream); });
  line(name("residual_layernorm_forward"), 4 * NC * s, 0,
       [&] { residual_layernorm_forward<T>(z, y, mean, rstd, x, y, gamma, beta, N, C, stream); });
  line(name("layernorm_backward"), 4 * NC * s, 0,
       [&] { layernorm_backward<T>(z, dgamma, dbeta, y, x, mean, rstd, gamma, workspace, N, C, stream); });
  line(name("residual_add"), 3 * NC * s, 0, [&] { residual_add<T>(z, x, y, size_t(N) * C, stream); });
  line(name("gelu_forward"), 2.0 * N * F * s, 0, [&] { gelu_forward<T>(wide2, wide, size_t(N) * F, stream); });
  line(name("gelu_backward"), 3.0 * N * F * s, 0, [&] { gelu_backward<T>(wide2, wide2, wide, size_t(N) * F, stream); });
  line(name("bias_backward [N, F]"), double(N) * F * s, 0,
       [&] { bias_backward<T>(dgamma, wide, workspace, N, F, 0, stream); });
  line(name("bias_backward [N, C]"), NC * s, 0, [&] { bias_backward<T>(dgamma, x, workspace, N, C, 0, stream); });
  line(name("cross_entropy, loss only"), double(rows) * Vp * s, 0,
       [&] { cross_entropy<T>(losses, logits, inputs, 0, rows, V, Vp, stream); });
  line(name("cross_entropy, both"), 2.0 * rows * Vp * s, 0,
       [&] { cross_entropy<T>(losses, logits, inputs, 1.0f / rows, rows, V, Vp, stream); });

  auto products = [&](const char* what, int in,
                      int out) {  // forward, input gradient, weight gradient of [N, in] x [in, out]
    double flops = 2.0 * N * in * out, activations = double(N) * (in + out), weights = double(in) * out;
    line(name(what) + " forward + bias", (activations + weights) * s, flops, [&] {
      matmul<T, T>(
          {.d = wide2, .a = wide, .b = weight, .m = N, .n = out, .k = in, .epilogue = Epilogue::bias, .bias = bias},
          stream);
    });
    line(name(what) + " dinput", (activations + weights) * s, flops, [&] {
      matmul<T, T>({.d = wide2, .a = wide, .b = weight, .m = N, .n = in, .k = out, .trans_b = true}, stream);
    });
    line(name(what) + " dweight", activations * s + 8 * weights, flops, [&] {
      matmul<T, float>({.d = dweight, .a = wide, .b = wide2, .m = in, .n = out, .k = N, .trans_a = true, .beta = 1},
                       stream);
    });
  };
  products("qkv", C, 3 * C);
  products("attention projection", C, C);
  products("mlp", C, F);
  products("mlp projection", F, C);
  line(name("mlp forward + bias, gelu"), (NC + 2.0 * N * F) * s, 2 * NC * F, [&] {
    matmul<T, T>({.d = wide2,
                  .a = x,
                  .b = weight,
                  .m = N,
                  .n = F,
                  .k = C,
                  .epilogue = Epilogue::bias_gelu,
                  .bias = bias,
                  .aux = wide},
                 stream);
  });
  line(name("mlp projection dinput, dgelu"), (NC + 2.0 * N * F) * s, 2 * NC * F, [&] {
    matmul<T, T>({.d = wide2,
                  .a = x,
                  .b = weight,
                  .m = N,
                  .n = F,
                  .k = C,
                  .trans_b = true,
                  .epilogue = Epilogue::dgelu,
                  .aux = wide},
                 stream);
  });
  double logit_flops = 2.0 * rows * Vp * C, logit_bytes = (double(rows) * Vp + double(Vp) * C + double(rows) * C) * s;
  line(name("logits"), logit_bytes, logit_flops,
       [&] { matmul<T, T>({.d = logits, .a = x, .b = wte, .m = rows, .n = Vp, .k = C, .trans_b = true}, stream); });
  line(name("logits dinput"), logit_bytes, logit_flops,
       [&] { matmul<T, T>({.d = x, .a = logits, .b = wte, .m = rows, .n = C, .k = Vp}, stream); });
  line(name("logits dweight"), logit_bytes + 4.0 * Vp * C, logit_flops, [&] {
    matmul<T, float>({.d = dwte, .a = logits, .b = x, .m = Vp, .n = C, .k = rows, .trans_a = true, .beta = 1}, stream);
  });

  size_t n = size_t(Vp) * C + size_t(12) * 12 * C * C;  // about the model's parameters
  float *master = array<float>(n, 0.02f), *mom = array<float>(n), *vel = array<float>(n), *grad = array<float>(n),
        *partial = array<float>(square_sums_count(n));
  convert<float, float>(vel, one, 1, stream);
  CUDA_CHECK(cudaMemsetAsync(vel, 0, n * sizeof(float), stream));
  T* param = std::is_same_v<T, float> ? reinterpret_cast<T*>(master) : array<T>(n);
  int step = 0;
  line(name("square_sums, clip_scale"), 4.0 * n, 0, [&] {
    square_sums(partial, grad, n, stream);
    clip_scale(one, one, partial, int(square_sums_count(n)), 1, stream);
  });
  line(name("adamw"), (std::is_same_v<T, float> ? 28.0 : 30.0) * n, 0, [&] {
    adamw_update<T>(param, master, mom, vel, grad, one, n, {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, ++step}, stream);
  });
  line(name("sum_to"), 4.0 * N, 0, [&] { sum_to(one, losses, N, stream); });
}

template <class T>
static double measure_product_rate(int n) {
  T *a = array<T>(size_t(n) * n), *b = array<T>(size_t(n) * n), *d = array<T>(size_t(n) * n);
  double time = seconds([&] { matmul<T, T>({.d = d, .a = a, .b = b, .m = n, .n = n, .k = n}, stream); }).least;
  for (T* p : {a, b, d}) CUDA_CHECK(cudaFree(p));
  return 2.0 * n * n * n / time;
}

int main(int argc, char** argv) {
  Model model = on_cpu ? quick_start : gpt2_124m;
  for (int i = 1; i < argc; i++) {
    if (!std::strcmp(argv[i], "--gpu-shapes"))
      model = gpt2_124m;
    else if (!std::strcmp(argv[i], "--cpu-shapes"))
      model = quick_start;
    else if (!std::strcmp(argv[i], "--threads") && i + 1 < argc)
      set_cpu_threads(std::atoi(argv[++i]));
    else
      filter = argv[i];
  }
  CUDA_CHECK(cudaStreamCreate(&stream));
  cudaDeviceProp properties;
  CUDA_CHECK(cudaGetDeviceProperties(&properties, 0));
  size_t n = on_cpu ? size_t(32) << 20 : size_t(128) << 20;
  float *from = array<float>(n), *to = array<float>(n);
  copy_rate = 8.0 * n / seconds([&] { convert<float, float>(to, from, n, stream); }).least;
  double float_rate = measure_product_rate<float>(on_cpu ? 1024 : 8192),
         bf16_rate = measure_product_rate<bf16>(on_cpu ? 1024 : 8192);
  std::printf("%s, %s: copy %.0f GB/s, matrix product %.0f GFLOP/s float32, %.0f GFLOP/s bf16\n", properties.name,
              model.name, copy_rate * 1e-9, float_rate * 1e-9, bf16_rate * 1e-9);
  product_rate = float_rate;
  if (on_cpu) bench<float>(model, "fp32");
  product_rate = bf16_rate;
  bench<bf16>(model, "bf16");
}
