// Every launch of a training step at its shapes, and the kernels that only other settings use: time, its floor (bytes
// that must move over the measured copy rate, FLOPs over the measured product rate, whichever is longer), and the ratio
// of the two. GPT-2 124M in bf16 on a GPU, the quick-start model in float32 on the CPU; the options choose otherwise.
// Medians of repeated runs on random data with caches flushed; attention is softmax's and lssar's.
//   build/BACKEND/bench_kernels [--gpu-shapes|--cpu-shapes] [--type fp32|bf16] [--threads N] [--json FILE] [FILTER]...
// FILTER: only lines whose names hold one of them.
#include "dev/bench/bench.h"

#include "attention/gate.cuh"
#include "attention/prepare.cuh"
#include "kernels/adamw.cuh"
#include "kernels/cross_entropy.cuh"
#include "kernels/embedding.cuh"
#include "kernels/gelu.cuh"
#include "kernels/grad_norm.cuh"
#include "kernels/layernorm.cuh"
#include "kernels/linear_bias.cuh"
#include "kernels/mlp.cuh"
#include "kernels/reduce.cuh"

struct Model {
  const char* name;
  int B, T, C, H, F, V;
};
constexpr Model gpt2_124m = {"GPT-2 124M", 32, 1024, 768, 12, 3072, 50257},
                quick_start = {"quick start", 16, 128, 128, 4, 512, 256};

static cudaStream_t stream = nullptr;  // the one that seconds() watches
static std::vector<std::string> filters;
static Ceilings ceilings;
static Json rows = Json::array();

// The names by which bench_step's profile knows what `run` starts: so that a kernel of a step which is missing here is
// noticed.
static std::vector<std::string> launches_of(const std::function<void()>& run) {
  profile_start();
  run();
  std::vector<std::string> names;
  for (const ProfileLine& line : profile_collect()) names.push_back(line.name);
  return names;
}

static void line(const std::string& name, bool is_bf16, double bytes, double flops, const std::function<void()>& run) {
  auto in_name = [&](const std::string& filter) { return name.find(filter) != std::string::npos; };
  if (!filters.empty() && std::none_of(filters.begin(), filters.end(), in_name)) return;
  std::vector<std::string> launches = launches_of(run);
  Seconds time = seconds(run);
  double floor = ceilings.floor(bytes, flops, is_bf16);
  printf("| %s | %.1f (%.1f to %.1f) | %.1f | %.2f | %.1f | %.1f | %.1f%% |\n", name.c_str(), time.median * 1e6,
         time.least * 1e6, time.most * 1e6, bytes * 1e-6, flops * 1e-9, bytes / time.median * 1e-9,
         flops / time.median * 1e-9, 100 * floor / time.median);
  fflush(stdout);
  rows.push_back({{"name", name},
                  {"type", is_bf16 ? "bf16" : "fp32"},
                  {"s", time.median},
                  {"least", time.least},
                  {"most", time.most},
                  {"bytes", bytes},
                  {"flops", flops},
                  {"floor_s", floor},
                  {"launches", launches}});
}

// The kernels between the q,k,v product and the output projection. All work in place, again and again: scales of 1 and
// rows of length 1 keep the numbers unchanged.
template <class T, class Line> static void attention_of(const Model& m, const Line& line) {
  const int N = m.B * m.T, A = m.C, D = m.C / m.H, Q = 4 * A;  // Q: q, k, v and a gate's logits
  const double s = sizeof(T), NA = double(N) * A;
  Arrays arrays;
  size_t count = size_t(N) * A;
  T *qkv = arrays.normal<T>(4 * count), *dqkv = arrays.normal<T>(4 * count);
  T *x = arrays.normal<T>(count), *y = arrays.normal<T>(count), *z = arrays.normal<T>(count);
  float* norms = arrays.normal<float>(size_t(2) * N * m.H);
  float2* rope = arrays.uploaded(rope_table(m.T, D, 10000));
  AttentionSettings settings{.scale = Scale::number};
  AttentionCall<T> call{.settings = settings,
                        .shape = {m.B, m.T, m.H, D},
                        .context = m.T,
                        .qkv_stride = Q,
                        .stream = stream,
                        .rope = rope,
                        .norms = norms};
  for (QkNorm norm : {QkNorm::none, QkNorm::l2}) {
    std::string with = norm == QkNorm::l2 ? " + l2 norm" : "";
    settings.qk_norm = norm;
    line("prepare_forward, rope" + with, 4 * NA * s, 0, [&] { prepare_forward(qkv, call); });
    line("prepare_backward, rope" + with, (norm == QkNorm::l2 ? 6 : 4) * NA * s, 0,
         [&] { prepare_backward(dqkv, static_cast<const T*>(qkv), call); });
  }
  GateSettings gate{.activation = GateActivation::softplus};
  line("gate_forward", 3 * NA * s, 0, [&] {
    gate_forward<T>({y, A}, {x, A}, {qkv + 3 * A, Q}, gate, N, m.H, D, stream);
  });
  line("gate_backward", 5 * NA * s, 0, [&] {
    gate_backward<T>({y, A}, {dqkv + 3 * A, Q}, A, {x, A}, {z, A}, {qkv + 3 * A, Q}, gate, N, m.H, D, stream);
  });
  for (Kind kind : {Kind::softmax, Kind::lssar}) {
    if (!attention_is_built(kind)) continue;
    AttentionCase<T> attention({.kind = kind}, {m.B, m.T, m.H, D});
    std::string kind_name = kind_names[int(kind)];
    line(kind_name + " attention, training", attention.forward_bytes(true), attention.forward_flops(true),
         [&] { attention.forward(true); });
    line(kind_name + " attention, backward", attention.backward_bytes(), attention.backward_flops(),
         [&] { attention.backward(); });
  }
}

template <class T> static void measure(const Model& m) {
  Arrays arrays;
  const int B = m.B, T_ = m.T, N = B * T_, C = m.C, F = m.F, V = m.V, Vp = (V + 127) / 128 * 128;
  const int rows = std::min(N, 16384);  // of logits at a time: GPT-2's on a GPU with 32 or 64 sequences of 1024
  const double s = sizeof(T), NC = double(N) * C;
  auto normal = [&](size_t n, float scale = 1) { return arrays.normal<T>(n, scale); };
  auto floats = [&](size_t n, float scale = 1) { return arrays.normal<float>(n, scale); };
  const size_t NC_ = size_t(N) * C, NF = size_t(N) * F;
  T *x = normal(NC_), *y = normal(NC_), *z = normal(NC_), *gamma = normal(C), *beta = normal(C);
  T *wide = normal(NF), *wide2 = normal(NF);
  T *bias = normal(F), *weight = normal(size_t(C) * F, 0.02f);
  T *wte = normal(size_t(Vp) * C, 0.02f), *wpe = normal(size_t(T_) * C, 0.02f), *logits = normal(size_t(rows) * Vp);
  float *mean = floats(N), *rstd = floats(N), *dweight = floats(size_t(C) * F), *dwte = floats(size_t(Vp) * C);
  float *dwpe = floats(size_t(T_) * C), *dgamma = floats(F), *dbeta = floats(C), *dbias = floats(C),
        *losses = floats(N), *one = floats(1);
  std::vector<int> tokens = random_tokens(N, V), by_token(2 * size_t(N));
  sort_by_token(by_token.data(), tokens.data(), N, Vp);
  int *inputs = arrays.uploaded(tokens), *above = arrays.uploaded(tokens), *sorted = arrays.uploaded(by_token);
  void* workspace = arrays.bytes(std::max(
      {embedding_backward_workspace(N, C), layernorm_backward_workspace(N, C), linear_bias_backward_workspace(N, F)}));
  auto line = [](const std::string& name, double bytes, double flops, const std::function<void()>& run) {
    ::line(name, std::is_same_v<T, bf16>, bytes, flops, run);
  };

  line("embedding_forward", 2 * NC * s, 0,
       [&] { embedding_forward<T>(x, inputs, wte, wpe, nullptr, B, T_, C, stream); });
  line("embedding_backward", NC * s + 8.0 * std::min(N, V) * C, NC,
       [&] { embedding_backward<T>(dwte, nullptr, x, sorted, workspace, B, T_, C, stream); });
  line("embedding_backward + positions", 2 * NC * s + 8.0 * std::min(N, V) * C, 2 * NC,
       [&] { embedding_backward<T>(dwte, dwpe, x, sorted, workspace, B, T_, C, stream); });
  line("layernorm_forward", 2 * NC * s, 0, [&] { layernorm_forward<T>(y, mean, rstd, x, gamma, beta, N, C, stream); });
  line("layernorm_backward", 4 * NC * s, 0,
       [&] { layernorm_backward<T>(z, dgamma, dbeta, dbias, y, x, mean, rstd, gamma, workspace, N, C, stream); });
  line("gelu_forward", 2.0 * N * F * s, 0, [&] { gelu_forward<T>(wide2, wide, NF, stream); });
  line("swiglu_forward, F / 2", 1.5 * N * F * s, 0, [&] { swiglu_forward<T>(wide2, wide, N, F / 2, stream); });
  line("swiglu_backward, F / 2", 2.5 * N * F * s, 0, [&] { swiglu_backward<T>(wide2, wide, wide, N, F / 2, stream); });
  line("bias_backward [N, F]", double(N) * F * s, 0,
       [&] { linear_bias_backward<T>(dgamma, wide, workspace, N, F, 0, stream); });
  line("bias_backward [N, 3 C]", 3 * NC * s, 0,
       [&] { linear_bias_backward<T>(dgamma, wide, workspace, N, 3 * C, 0, stream); });
  line("cross_entropy, loss only", double(rows) * Vp * s, 0,
       [&] { token_losses<T>(losses, above, logits, inputs, rows, V, Vp, stream); });
  line("cross_entropy, both", 2.0 * rows * Vp * s, 0,
       [&] { cross_entropy<T>(losses, logits, inputs, 1.0f / rows, rows, V, Vp, stream); });

  // forward, input gradient, weight gradient of [N, in] x [in, out]
  auto products = [&](const char* what, int in, int out) {
    double flops = 2.0 * N * in * out, activations = double(N) * (in + out), weights = double(in) * out;
    line(std::string(what) + " forward + bias", (activations + weights) * s, flops, [&] {
      matmul<T, T>(
          {.d = wide2, .a = wide, .b = weight, .m = N, .n = out, .k = in, .epilogue = Epilogue::bias, .bias = bias},
          stream);
    });
    line(std::string(what) + " dinput", (activations + weights) * s, flops, [&] {
      matmul<T, T>({.d = wide2, .a = wide, .b = weight, .m = N, .n = in, .k = out, .trans_b = true}, stream);
    });
    Matmul<T, float> weight_gradient{.d = dweight, .a = wide, .b = wide2, .m = in, .n = out, .k = N, .trans_a = true};
    weight_gradient.beta = 1;
    line(std::string(what) + " dweight", activations * s + 8 * weights, flops,
         [&] { matmul(weight_gradient, stream); });
  };
  products("qkv", C, 3 * C);
  products("attention projection", C, C);
  products("mlp", C, F);
  products("mlp projection", F, C);
  line("mlp projection forward + bias, residual", (2 * NC + double(N) * F + double(F) * C) * s, 2 * NC * F, [&] {
    matmul<T, T>(
        {.d = y, .a = wide, .b = weight, .m = N, .n = C, .k = F, .epilogue = Epilogue::bias, .bias = bias, .c = x},
        stream);
  });
  Matmul<T, T> with_gelu{.d = wide2, .a = x, .b = weight, .m = N, .n = F, .k = C};
  with_gelu.epilogue = Epilogue::bias_gelu, with_gelu.bias = bias, with_gelu.aux = wide;
  line("mlp forward + bias, gelu", (NC + 2.0 * N * F) * s, 2 * NC * F, [&] { matmul(with_gelu, stream); });
  with_gelu.trans_b = true, with_gelu.epilogue = Epilogue::dgelu, with_gelu.bias = nullptr;
  line("mlp projection dinput, dgelu", (NC + 2.0 * N * F) * s, 2 * NC * F, [&] { matmul(with_gelu, stream); });
  double logit_flops = 2.0 * rows * Vp * C, logit_bytes = (double(rows) * Vp + double(Vp) * C + double(rows) * C) * s;
  line("logits", logit_bytes, logit_flops,
       [&] { matmul<T, T>({.d = logits, .a = x, .b = wte, .m = rows, .n = Vp, .k = C, .trans_b = true}, stream); });
  line("logits dinput", logit_bytes, logit_flops,
       [&] { matmul<T, T>({.d = x, .a = logits, .b = wte, .m = rows, .n = C, .k = Vp}, stream); });
  line("logits dweight", logit_bytes + 4.0 * Vp * C, logit_flops, [&] {
    matmul<T, float>({.d = dwte, .a = logits, .b = x, .m = Vp, .n = C, .k = rows, .trans_a = true, .beta = 1}, stream);
  });

  attention_of<T>(m, line);

  size_t n = size_t(Vp) * C + size_t(12) * 12 * C * C;  // about the model's parameters
  float *master = floats(n, 0.02f), *mom = floats(n), *vel = floats(n), *grad = floats(n),
        *partial = floats(square_sums_count(n));
  convert<float, float>(vel, one, 1, stream);
  CUDA_CHECK(cudaMemsetAsync(vel, 0, n * sizeof(float), stream));
  T* param = std::is_same_v<T, float> ? reinterpret_cast<T*>(master) : normal(n);
  int step = 0;
  line("square_sums, clip_scale", 4.0 * n, 0, [&] {
    square_sums(partial, grad, n, stream);
    clip_scale(one, one, partial, int(square_sums_count(n)), 1, stream);
  });
  line("adamw", (std::is_same_v<T, float> ? 28.0 : 30.0) * n, 0, [&] {
    adamw_update<T>(param, master, mom, vel, grad, one, n, {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, ++step}, stream);
  });
  line("sum_to", 4.0 * N, 0, [&] { sum_to(one, losses, N, stream); });
  auto zero = [&](void* p, size_t bytes) {
    ProfileScope scope("memset", stream);
    CUDA_CHECK(cudaMemsetAsync(p, 0, bytes, stream));
  };
  line("gradients = 0", 4.0 * n, 0, [&] { zero(grad, n * sizeof(float)); });
  line("dx = 0", NC * s, 0, [&] { zero(z, NC_ * sizeof(T)); });
}

static void bench(int argc, char** argv) {
  Model model = on_cpu ? quick_start : gpt2_124m;
  std::string type = on_cpu ? "fp32" : "bf16", json;
  for (int i = 1; i < argc; i++) {
    std::string a = argv[i];
    if (a == "--gpu-shapes") model = gpt2_124m;
    else if (a == "--cpu-shapes") model = quick_start;
    else if (a == "--threads") set_cpu_threads(atoi(option_value(argc, argv, i).c_str()));
    else if (a == "--type") type = option_value(argc, argv, i);
    else if (a == "--json") json = option_value(argc, argv, i);
    else if (a[0] != '-') filters.push_back(a);
    else user_error("bench_kernels: unknown argument \"%s\"; its first lines say how to use it", a.c_str());
  }
  ceilings = measure_ceilings();
  printf("%s, %s\n\n", model.name, type.c_str());
  printf(
      "| kernel | us (least to most) | MB | GFLOP | GB/s | GFLOP/s | floor |\n"
      "|---|---|---|---|---|---|---|\n");
  if (type == "fp32") measure<float>(model);
  else measure<bf16>(model);
  Json report = report_head(argc, argv, ceilings);
  report["model"] = model.name;
  report["kernels"] = rows;
  write_report(json, report);
}

int main(int argc, char** argv) { return run_bench(bench, argc, argv); }
