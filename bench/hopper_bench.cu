// Hopper's attention kernels with one thing changed, beside the same kernels as they are: which is faster, and are the
// results the same bits? A row of bench.h's trials for each change, head size and length. bf16, 16K tokens and 1536
// channels in all; on the CPU a small shape, of which only the bits are compared.
//   build/BACKEND/bench_hopper [T,...]
#include "bench/bench.h"

#include "attention/bias.cuh"
#include "attention/hopper/kernels.cuh"

static std::vector<int> lengths = on_cpu ? std::vector{300} : std::vector{1024, 4096, 16384};

static AttentionShape shape_at(int T, int D) {
  return {on_cpu ? 1 : std::max(1, 16384 / T), T, on_cpu ? 2 : 1536 / D, D};
}

static std::vector<char> on_host(const void* from, size_t bytes) {
  std::vector<char> to(bytes);
  CUDA_CHECK(cudaMemcpy(to.data(), from, bytes, cudaMemcpyDeviceToHost));
  return to;
}

// products: how many T x T x D ones the kernel does for each head
template <class Call>
static void compare(const Question& question, Kind kind, int D, int products, void (*now)(const Call&),
                    void (*changed)(const Call&)) {
  if (!attention_is_built(kind)) return;
  constexpr bool is_forward = std::is_same_v<Call, ForwardCall<bf16>>;
  for (int T : lengths) {
    AttentionCase<bf16> attention({.kind = kind}, shape_at(T, D));
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
  compare({"forward, consumers in turn", "0.88 to 0.95"}, kind, 64, forward_products,
          hopper_forward_by<Policy, ForwardTile<Policy, 64>>,
          hopper_forward_by<Policy, ForwardTile<Policy, 64, IN_TURN>>);
  compare({"dK dV, consumers in turn", "0.90 to 0.97"}, kind, 64, 4, hopper_keys_by<Policy, KeysTile<Policy, 64>>,
          hopper_keys_by<Policy, KeysTile<Policy, 64, IN_TURN>>);
  compare({"dQ, consumers in turn", "0.90 to 0.97"}, kind, 64, 3, hopper_queries_by<Policy, QueriesTile<64>>,
          hopper_queries_by<Policy, QueriesTile<64, IN_TURN>>);
}

// lssar's forward with scores beside its first sweep; with tiles of 64 keys also weights beside outputs, against the
// same tiles without (other tiles give other bits: the times of the first row show what these cost).
template <class Policy, int DIM, HopperSize SIZE> static void overlapping(Kind kind, const std::string& tiles) {
  auto now = hopper_forward_by<Policy, HopperTile<DIM, SIZE, 1>>;
  compare({"forward, " + tiles + " beside products", "0.75 to 0.95"}, kind, DIM, 4, now,
          hopper_forward_by<Policy, HopperTile<DIM, SIZE, 1, 0, OVERLAP_ALL>>);
  compare({"forward, " + tiles + " beside products, consumers in turn", "0.75 to 0.95"}, kind, DIM, 4, now,
          hopper_forward_by<Policy, HopperTile<DIM, SIZE, 1, 0, OVERLAP_ALL | IN_TURN>>);
}

// The launcher, with lines of 128 bytes in place of 256.
template <class Call, void (*LAUNCHER)(const Call&)> static void with_short_lines(const Call& call) {
  l2_promotion = 128;
  LAUNCHER(call);
  l2_promotion = 256;
}
template <class Policy> static void short_lines(Kind kind) {
  constexpr auto forward = hopper_forward_by<Policy, ForwardTile<Policy, 64>>;
  constexpr auto keys = hopper_keys_by<Policy, KeysTile<Policy, 64>>;
  constexpr auto queries = hopper_queries_by<Policy, QueriesTile<64>>;
  using Forward = ForwardCall<bf16>;
  using Backward = BackwardCall<bf16>;
  compare<Forward>({"forward, L2 promotion of 128 bytes for 256", "0.97 to 1.03"}, kind, 64, 2, forward,
                   with_short_lines<Forward, forward>);
  compare<Backward>({"dK dV, L2 promotion of 128 bytes for 256", "0.97 to 1.03"}, kind, 64, 4, keys,
                    with_short_lines<Backward, keys>);
  compare<Backward>({"dQ, L2 promotion of 128 bytes for 256", "0.97 to 1.03"}, kind, 64, 3, queries,
                    with_short_lines<Backward, queries>);
}

// FoX beside softmax: other scores, so other bits.
static void beside_fox(int D) {
  if (!attention_is_built(Kind::softmax)) return;
  for (int T : lengths) {
    AttentionShape shape = shape_at(T, D);
    AttentionCase<bf16> plain({.kind = Kind::softmax}, shape);
    AttentionCase<bf16> fox({.kind = Kind::softmax, .bias = Bias::fox}, shape);
    float* c = fox.arrays.normal<float>(bias_floats(shape));
    bias_forward<bf16>(c, {fox.arrays.normal<bf16>(shape.rows()), shape.H}, fox.call);
    fox.call.bias = c;
    plain.call.family = fox.call.family = "hopper";
    auto time_of = [](AttentionCase<bf16>& attention, bool forward) {
      return [&attention, forward] {
        return seconds([&] { forward ? attention.forward(true) : attention.backward(); }).median;
      };
    };
    for (AttentionCase<bf16>* attention : {&plain, &fox}) attention->forward(true), attention->backward();
    std::string where = format("softmax, D %d, T %d", D, T);
    print_trial({"forward with FoX's bias", "1.0 to 1.35"}, where, attention_flops(shape, false), time_of(plain, true),
                time_of(fox, true), "-");
    print_trial({"backward with FoX's bias", "1.0 to 1.45"}, where, attention_flops(shape, true), time_of(plain, false),
                time_of(fox, false), "-");
  }
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
  compare({"forward without compute_before_wait", "1.10 to 1.14"}, Kind::softmax, 64, 2,
          hopper_forward_by<Usual, ForwardTile<Usual, 64>>,
          hopper_forward_by<Usual, ForwardTile<Usual, 64, WITHOUT_FENCE>>);
  compare({"forward without compute_before_wait", "1.10 to 1.14"}, Kind::softmax, 128, 2,
          hopper_forward_by<Usual, ForwardTile<Usual, 128>>,
          hopper_forward_by<Usual, ForwardTile<Usual, 128, WITHOUT_FENCE>>);
  compare({"dK dV, 64 streamed queries for 128", "1.0 to 1.2"}, Kind::softmax, 64, 4,
          hopper_keys_by<Usual, KeysTile<Usual, 64>>,
          hopper_keys_by<Usual, HopperTile<64, HopperSize{64, 8}, 2, Usual::ROW_VALUES>>);
  // lssar's row values leave no room for a third step in the kernel for dK and dV.
  compare({"dK dV, a ring of 3 steps for 2", "0.97 to 1"}, Kind::softmax, 128, 4,
          hopper_keys_by<Usual, KeysTile<Usual, 128>>,
          hopper_keys_by<Usual, HopperTile<128, HopperSize{64, 6}, 2, Usual::ROW_VALUES>>);
  compare({"dQ, a ring of 3 steps for 2", "0.97 to 1"}, Kind::softmax, 128, 3,
          hopper_queries_by<Usual, QueriesTile<128>>, hopper_queries_by<Usual, HopperTile<128, HopperSize{64, 6}, 2>>);
  short_lines<Usual>(Kind::softmax);
  beside_fox(64), beside_fox(128);
  in_turn<Usual>(Kind::softmax, 2);
  using TwoSweeps = Lssar<FastMaths, FixedPower<15>>;
  in_turn<TwoSweeps>(Kind::lssar, 4);
  overlapping<TwoSweeps, 64, hopper_forward_size(64, 2, false)>(Kind::lssar, "first sweep");
  overlapping<TwoSweeps, 64, HopperSize{64, 16}>(Kind::lssar, "64 streamed keys, both sweeps");
  overlapping<TwoSweeps, 128, hopper_forward_size(128, 2, false)>(Kind::lssar, "first sweep");
}

int main(int argc, char** argv) { return run_bench(bench, argc, argv); }
