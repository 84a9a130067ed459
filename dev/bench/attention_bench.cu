// Attention alone: time of the evaluation forward, the training forward and the backward of each kind, as TFLOP/s of
// the FlashAttention count (causal: 2 T^2 D per head forward, 2.5 times that backward, whatever a kind really needs),
// and the share of the time that the work which the kind does need would take at the machine's ceilings.
//   build/BACKEND/bench_attention [--threads N] [--kernels FAMILY] [--type fp32|bf16] [--bias none|alibi|fox|cable]
//                                 [--prune] [--sums] [--json FILE] [KIND,...|all] [D,...] [T,...]
// On a GPU all kinds at D 64 and 128, T 1K..16K, 16K tokens and 1536 channels in all; on the CPU one sequence of two
// heads. --prune: the bias is that of random logits, and tiles that it makes negligible are left out; else it is random
// numbers, and none are. --sums: the backward sums the columns of dqkv too. Medians of repeated runs on random data. On
// Hopper also the backward while another kernel holds as many multiprocessors as collectives do, with the whole grid
// and with that many left free.
#include "dev/bench/bench.h"
#include "ranks/comm.h"

static Json rows = Json::array();

// The enumerator of that name; any other name is a user_error that lists the allowed ones. `what`: what the user set.
template <class Enum>
static Enum from_name(const char* what, std::span<const char* const> names, const std::string& name) {
  std::string allowed;
  for (size_t i = 0; i < names.size(); i++) {
    if (name == names[i]) return Enum(i);
    append_item(allowed, names[i]);
  }
  user_error("bench_attention: %s = \"%s\" is unknown; choose one of %s", what, name.c_str(), allowed.c_str());
}

template <class T>
static void measure(const Ceilings& ceilings, Kind kind, Bias bias, bool prune, bool sums, const AttentionShape& shape,
                    const std::string& family) {
  AttentionCase<T> attention({.kind = kind, .bias = bias, .prune = prune}, shape,
                             family.empty() ? nullptr : family.c_str());
  if (sums) attention.call.dqkv_sums = attention.arrays.template normal<float>(3 * shape.H * shape.D);
  constexpr bool is_bf16 = std::is_same_v<T, bf16>;
  auto [B, length, H, D] = shape;
  std::string name = kind_names[int(kind)];
  if (bias != Bias::none) append_item(name, bias_names[int(bias)], ", ");
  if (prune) append_item(name, "pruned", ", ");
  if (sums) append_item(name, "sums", ", ");
  printf("| %s | %d | %d |", name.c_str(), D, length);
  Json row = {{"kind", name}, {"type", is_bf16 ? "bf16" : "fp32"}, {"B", B}, {"T", length}, {"H", H}, {"D", D}};
  auto part = [&](const char* what, double count, double bytes, double flops, const std::function<void()>& run) {
    Seconds time = seconds(run);
    double rate = count / time.median, floor = ceilings.floor(bytes, flops, is_bf16);
    printf(" %.3g (%.3g to %.3g) | %.3g | %.0f%% |", time.median * 1e3, time.least * 1e3, time.most * 1e3,
           rate / (on_cpu ? 1e9 : 1e12), 100 * floor / time.median);
    row[what] = {{"s", time.median}, {"least", time.least}, {"most", time.most}, {"flops_per_s", rate},
                 {"bytes", bytes},   {"flops", flops},      {"floor_s", floor}};
  };
  double forward = attention_flops(shape, false), backward = attention_flops(shape, true);
  // In this order the backward finds what a training forward left.
  part("evaluation", forward, attention.forward_bytes(false), attention.forward_flops(false),
       [&] { attention.forward(false); });
  part("forward", forward, attention.forward_bytes(true), attention.forward_flops(true),
       [&] { attention.forward(true); });
  part("backward", backward, attention.backward_bytes(), attention.backward_flops(), [&] { attention.backward(); });
  printf("\n");
  fflush(stdout);
  rows.push_back(row);
}

// Each block holds a multiprocessor until the host writes to *stop: its 1024 threads leave too few registers for a
// block of attention, as NCCL's do. One of them looks: all together kept an H200's bus so busy that launches waited.
__global__ void hold_kernel(const volatile int* stop) {
  while (threadIdx.x == 0 && *stop == 0) {
  }
  __syncthreads();
}

// The backward beside such blocks.
class Held {
 public:
  explicit Held(int blocks) {
    CUDA_CHECK(cudaMallocHost(&stop_, sizeof(int)));
    *stop_ = 0;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    LAUNCH(hold_kernel, dim3(blocks), dim3(1024), 0, stream_, stop_);
  }
  ~Held() {
    *static_cast<volatile int*>(stop_) = 1;
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_), cudaFreeHost(stop_);
  }

 private:
  int* stop_;
  cudaStream_t stream_;
};

static Json measure_beside(Kind kind) {
  constexpr int HELD = Comm::MULTIPROCESSORS;
  AttentionShape shape{16, 1024, 12, 64};
  AttentionCase<bf16> alone({.kind = kind}, shape, "hopper"), spared({.kind = kind}, shape, "hopper");
  spared.call.spare_multiprocessors = HELD;
  alone.forward(true), spared.forward(true);
  auto ms = [](AttentionCase<bf16>& attention) { return 1e3 * seconds([&] { attention.backward(); }).median; };
  double free = ms(alone), whole, room;
  {
    Held held(HELD);
    whole = ms(alone), room = ms(spared);
  }
  printf(
      "\nbackward of %s, D 64, T 1024: %.3g ms; while %d multiprocessors are held %.3g ms with the whole grid, "
      "%.3g ms with room left\n",
      kind_names[int(kind)], free, HELD, whole, room);
  return {{"held", HELD}, {"free_ms", free}, {"whole_grid_ms", whole}, {"room_left_ms", room}};
}

static void bench(int argc, char** argv) {
  std::string type = on_cpu ? "fp32" : "bf16", json, family;
  Bias bias = Bias::none;
  bool prune = false, sums = false;
  std::vector<std::string> lists = {"all", on_cpu ? "32,64" : "64,128",
                                    on_cpu ? "128,1024" : "1024,2048,4096,8192,16384"};
  for (int i = 1, list = 0; i < argc; i++) {
    std::string a = argv[i];
    auto value = [&] { return option_value(argc, argv, i); };
    if (a == "--threads") set_cpu_threads(atoi(value().c_str()));
    else if (a == "--type") type = value();
    else if (a == "--bias") bias = from_name<Bias>("--bias", bias_names, value());
    else if (a == "--prune") prune = true;
    else if (a == "--sums") sums = true;
    else if (a == "--kernels") family = value();
    else if (a == "--json") json = value();
    else if (list < 3 && a[0] != '-') lists[list++] = a;
    else user_error("bench_attention: unknown argument \"%s\"; its first lines say how to use it", a.c_str());
  }
  std::vector<std::string> kinds;
  for (size_t kind = 0; kind < std::size(kind_names); kind++)
    if (attention_is_built(Kind(kind))) kinds.push_back(kind_names[kind]);
  if (lists[0] != "all") kinds = split(lists[0], ',');
  Ceilings ceilings = measure_ceilings();
  const char* unit = on_cpu ? "GFLOP/s" : "TFLOP/s";
  printf(
      "| kind | D | T | evaluation, ms (least to most) | %s | floor | training forward, ms | %s | floor "
      "| backward, ms | %s | floor |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|\n",
      unit, unit, unit);
  for (const std::string& kind : kinds)
    for (const std::string& d : split(lists[1], ','))
      for (const std::string& t : split(lists[2], ',')) {
        int D = atoi(d.c_str()), length = atoi(t.c_str());
        if (D < 1 || length < 1)
          user_error("bench_attention: \"%s\" and \"%s\" must be numbers above 0.", d.c_str(), t.c_str());
        Kind which = from_name<Kind>("KIND", kind_names, kind);
        AttentionShape shape = {on_cpu ? 1 : std::max(1, 16384 / length), length, on_cpu ? 2 : std::max(1, 1536 / D),
                                D};
        if (type == "fp32") measure<float>(ceilings, which, bias, prune, sums, shape, family);
        else measure<bf16>(ceilings, which, bias, prune, sums, shape, family);
      }
  Json report = report_head(argc, argv, ceilings);
  report["attention"] = rows;
  if (device_properties().major == 9 && attention_is_built(Kind::softmax))
    report["beside_collectives"] = measure_beside(Kind::softmax);
  else
    printf("\nnot measured: the backward beside held multiprocessors, because %s\n",
           on_cpu ? "on the CPU layer a block holds none" : "only Hopper's kernels for softmax take whole ones");
  write_report(json, report);
}

int main(int argc, char** argv) { return run_bench(bench, argc, argv); }
