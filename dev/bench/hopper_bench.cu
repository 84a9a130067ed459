// Hopper's attention kernels with one thing changed, beside the same kernels without: which is faster, and are the
// results the same bits? A row of bench.h's trials for each change, head size and length. bf16, 16K tokens and 1536
// channels in all; on the CPU a small shape, of which only the bits are compared.
//   build/BACKEND/bench_hopper [T,...]
#include "dev/bench/bench.h"

#include "attention/hopper/kernels.cuh"
#include "attention/position_bias.cuh"

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

template <class Policy, int DIM> static void in_turn(Kind kind) {
  constexpr bool forward = ForwardTile<Policy, DIM>::IN_TURN, keys = KeysTile<Policy, DIM>::IN_TURN,
                 queries = QueriesTile<Policy, DIM>::IN_TURN;  // as they are: otherwise for one of the two
  compare({"forward, consumers in turn", "0.88 to 0.95"}, kind, DIM, 2 * Policy::SWEEPS,
          hopper_forward_by<Policy, ForwardTile<Policy, DIM, forward>>,
          hopper_forward_by<Policy, ForwardTile<Policy, DIM, !forward>>);
  compare({"dK dV, consumers in turn", "0.90 to 0.97"}, kind, DIM, 4,
          hopper_keys_by<Policy, KeysTile<Policy, DIM, keys>>, hopper_keys_by<Policy, KeysTile<Policy, DIM, !keys>>);
  compare({"dQ, consumers in turn", "0.90 to 0.97"}, kind, DIM, 3,
          hopper_queries_by<Policy, QueriesTile<Policy, DIM, queries>>,
          hopper_queries_by<Policy, QueriesTile<Policy, DIM, !queries>>);
}
template <class Policy> static void in_turn(Kind kind) { in_turn<Policy, 64>(kind), in_turn<Policy, 128>(kind); }

// FoX beside softmax: other scores, so other bits.
static void beside_fox(int D) {
  if (!attention_is_built(Kind::softmax)) return;
  for (int T : lengths) {
    AttentionShape shape = shape_at(T, D);
    AttentionCase<bf16> plain({.kind = Kind::softmax}, shape);
    AttentionCase<bf16> fox({.kind = Kind::softmax, .bias = Bias::fox}, shape);
    float* c = fox.arrays.normal<float>(bias_floats(shape));
    position_bias_forward<bf16>(c, {fox.arrays.normal<bf16>(shape.rows()), shape.H}, fox.call);
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
  print_trial_head();
  using Usual = Softmax<FastMaths>;
  in_turn<Usual>(Kind::softmax);
  in_turn<Sigmoid<FastMaths>>(Kind::sigmoid);
  in_turn<Lssar<FastMaths, FixedPower<15>>>(Kind::lssar);
  beside_fox(64), beside_fox(128);
}

int main(int argc, char** argv) { return run_bench(bench, argc, argv); }
