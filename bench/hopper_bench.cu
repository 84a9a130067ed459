// Hopper's attention kernels with one thing changed, beside the same kernels as they are: which is faster, and are the
// results the same bits? A row of bench.h's trials for each change, head size and length. bf16, 16K tokens and 1536
// channels in all; on the CPU a small shape, of which only the bits are compared.
//   build/BACKEND/bench_hopper [T,...]
#include "bench/bench.h"

#include "attention/hopper/kernels.cuh"

static std::vector<int> lengths = on_cpu ? std::vector{300} : std::vector{1024, 4096, 16384};

static std::vector<char> on_host(const void* from, size_t bytes) {
  std::vector<char> to(bytes);
  CUDA_CHECK(cudaMemcpy(to.data(), from, bytes, cudaMemcpyDeviceToHost));
  return to;
}

// products: how many T x T x D ones the kernel does for each head
template <class Call>
static void compare(const std::string& question, Kind kind, int D, int products, void (*now)(const Call&),
                    void (*changed)(const Call&)) {
  if (!attention_is_built(kind)) return;
  constexpr bool is_forward = std::is_same_v<Call, ForwardCall<bf16>>;
  for (int T : lengths) {
    AttentionCase<bf16> attention({.kind = kind}, {on_cpu ? 1 : std::max(1, 16384 / T), T, on_cpu ? 2 : 1536 / D, D});
    attention.call.family = "hopper";
    Family<bf16>& family = family_of<bf16>(kind, "hopper");
    const Family<bf16> whole = family;
    attention.forward(true);
    attention.backward();
    void* output = is_forward ? attention.out : attention.dqkv;
    size_t output_bytes = (is_forward ? 1 : 3) * attention.elements * sizeof(bf16);
    size_t stats_bytes = is_forward ? attention.statistics * sizeof(float) : 0;
    auto run = [&](void (*launcher)(const Call&)) {
      if constexpr (is_forward) family.forward = launcher, attention.forward(true);
      else family.backward = launcher, attention.backward();
    };
    auto results = [&](void (*launcher)(const Call&)) {
      CUDA_CHECK(cudaMemset(output, 0xff, output_bytes));
      if (is_forward) CUDA_CHECK(cudaMemset(attention.stats, 0xff, stats_bytes));
      run(launcher);
      return std::pair(on_host(output, output_bytes), on_host(attention.stats, stats_bytes));
    };
    const char* same_bits = results(now) == results(changed) ? "yes" : "NO";
    print_trial(
        question, format("%s, D %d, T %d", kind_names[int(kind)], D, T),
        products / 2.0 * attention_flops(attention.shape, false), [&] { return seconds([&] { run(now); }).median; },
        [&] { return seconds([&] { run(changed); }).median; }, same_bits);
    family = whole;
  }
}

template <class Policy> static void in_turn(Kind kind, int forward_products) {
  compare("forward, consumers in turn", kind, 64, forward_products, hopper_forward_by<Policy, ForwardTile<Policy, 64>>,
          hopper_forward_by<Policy, ForwardTile<Policy, 64, IN_TURN>>);
  compare("dK dV, consumers in turn", kind, 64, 4, hopper_keys_by<Policy, KeysTile<Policy, 64>>,
          hopper_keys_by<Policy, KeysTile<Policy, 64, IN_TURN>>);
  compare("dQ, consumers in turn", kind, 64, 3, hopper_queries_by<Policy, QueriesTile<64>>,
          hopper_queries_by<Policy, QueriesTile<64, IN_TURN>>);
}

// lssar's forward with scores beside its first sweep; with tiles of 64 keys also weights beside outputs, against the
// same tiles without (other tiles give other bits: the times of the first row show what these cost).
template <class Policy, int DIM, HopperSize SIZE> static void overlapping(Kind kind, const std::string& tiles) {
  auto now = hopper_forward_by<Policy, HopperTile<DIM, SIZE, 1>>;
  compare("forward, " + tiles + " beside products", kind, DIM, 4, now,
          hopper_forward_by<Policy, HopperTile<DIM, SIZE, 1, 0, OVERLAP_ALL>>);
  compare("the same, consumers in turn", kind, DIM, 4, now,
          hopper_forward_by<Policy, HopperTile<DIM, SIZE, 1, 0, OVERLAP_ALL | IN_TURN>>);
}

static void bench(int argc, char** argv) {
  for (int i = 1; i < argc; i++) {
    std::string a = argv[i];
    if (a[0] == '-') user_error("bench_hopper: unknown argument \"%s\"; its first lines say how to use it", a.c_str());
    lengths.clear();
    for (const std::string& length : split(a, ',')) lengths.push_back(number_above_0(argv[0], length));
  }
  if (!on_cpu && device_properties().major != 9)
    user_error("bench_hopper: %s lacks what these kernels need, compute capability 9.0; use bench_attention",
               device_info().name.c_str());
  using Usual = Softmax<FastMaths>;
  print_trial_head();
  compare("forward without compute_before_wait", Kind::softmax, 64, 2, hopper_forward_by<Usual, ForwardTile<Usual, 64>>,
          hopper_forward_by<Usual, ForwardTile<Usual, 64, WITHOUT_FENCE>>);
  compare("forward without compute_before_wait", Kind::softmax, 128, 2,
          hopper_forward_by<Usual, ForwardTile<Usual, 128>>,
          hopper_forward_by<Usual, ForwardTile<Usual, 128, WITHOUT_FENCE>>);
  compare("dK dV, 64 streamed queries for 128", Kind::softmax, 64, 4, hopper_keys_by<Usual, KeysTile<Usual, 64>>,
          hopper_keys_by<Usual, HopperTile<64, HopperSize{64, 8}, 2, Usual::ROW_VALUES>>);
  in_turn<Usual>(Kind::softmax, 2);
  using TwoSweeps = Lssar<FastMaths, FixedPower<15>>;
  in_turn<TwoSweeps>(Kind::lssar, 4);
  overlapping<TwoSweeps, 64, hopper_forward_size(64, 2)>(Kind::lssar, "first sweep");
  overlapping<TwoSweeps, 64, HopperSize{64, 16}>(Kind::lssar, "64 streamed keys, both sweeps");
  overlapping<TwoSweeps, 128, hopper_forward_size(128, 2)>(Kind::lssar, "first sweep");
}

int main(int argc, char** argv) { return run_bench(bench, argc, argv); }
