// Hopper's attention kernels with one thing changed, beside the same kernels as they are: which is faster, and are the
// results the same bits? A row of bench.h's trials for each change, head size and length. bf16, 16K tokens and 1536
// channels in all; on the CPU a small shape, of which only the bits are compared.
//   build/BACKEND/bench_hopper [T,...]
#include "bench/bench.h"

#include "attention/hopper_kernels.cuh"

template <class Tile> struct WithoutFence : Tile { static constexpr bool COMPUTE_BEFORE_WAIT = false; };
template <class Tile> struct Staggered : Tile { static constexpr bool STAGGER = true; };

template <class Policy, class Tile> static void forward(const ForwardCall<bf16>& c) {
  Shape shape = shape_of<bf16>(c.shape, c.qkv_stride, {c.out, c.qkv});
  int B = c.shape.B;
  LAUNCH((attention_forward_hopper_kernel<Policy, Tile>), hopper_grid<Tile>(shape, B, 0), dim3(Tile::THREADS),
         Tile::SHARED_BYTES, c.stream, qkv_map(c.qkv, shape, B), out_map(c.out, shape, B), c.stats, c.sink, c.settings,
         shape, B);
}

// One of the backward pass's two kernels; the row values of an earlier, whole pass are in the workspace.
template <auto kernel, class Tile> static void backward(const BackwardCall<bf16>& c) {
  Shape shape = shape_of<bf16>(c.shape, c.qkv_stride, {c.dqkv, c.dout, c.out, c.qkv});
  int B = c.shape.B;
  shape.row_pitch = workspace_rows(c.shape.T);
  LAUNCH(kernel, hopper_grid<Tile>(shape, B, 0), dim3(Tile::THREADS), Tile::SHARED_BYTES, c.stream,
         qkv_map(c.dqkv, shape, B), out_map(c.dout, shape, B), qkv_map(c.qkv, shape, B), c.workspace, c.settings, shape,
         B, c.preparation);
}
template <class Policy, class Tile> static void keys(const BackwardCall<bf16>& c) {
  backward<attention_backward_keys_hopper_kernel<Policy, Tile>, Tile>(c);
}
template <class Policy, class Tile> static void queries(const BackwardCall<bf16>& c) {
  backward<attention_backward_queries_hopper_kernel<Policy, Tile>, Tile>(c);
}

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
    AttentionCase<bf16> attention({{.kind = kind}, T, 0, 1, Kernels::hopper}, on_cpu ? 1 : std::max(1, 16384 / T), T,
                                  on_cpu ? 2 : 1536 / D, D);
    Launchers<bf16>& entered = kernels_of(kind).hopper_bf16;
    const Launchers<bf16> whole = entered;
    attention.forward(true);
    attention.backward();
    void* output = is_forward ? attention.out : attention.dqkv;
    size_t output_bytes = (is_forward ? 1 : 3) * attention.elements * sizeof(bf16);
    size_t stats_bytes = is_forward ? attention.statistics * sizeof(float) : 0;
    auto run = [&](void (*launcher)(const Call&)) {
      if constexpr (is_forward) entered.forward = launcher, attention.forward(true);
      else entered.backward = launcher, attention.backward();
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
        products / 2.0 * attention_flops(attention.B, T, attention.H, D, false),
        [&] { return seconds([&] { run(now); }).median; }, [&] { return seconds([&] { run(changed); }).median; },
        same_bits);
    entered = whole;
  }
}

template <class Policy> static void stagger_all(Kind kind, int forward_products) {
  using Forward = ForwardTile<Policy, 64>;
  using Keys = KeysTile<Policy, 64>;
  using Queries = QueriesTile<64>;
  compare("forward, consumers half a step apart", kind, 64, forward_products, forward<Policy, Forward>,
          forward<Policy, Staggered<Forward>>);
  compare("dK dV, consumers half a step apart", kind, 64, 4, keys<Policy, Keys>, keys<Policy, Staggered<Keys>>);
  compare("dQ, consumers half a step apart", kind, 64, 3, queries<Policy, Queries>,
          queries<Policy, Staggered<Queries>>);
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
  compare("forward without compute_before_wait", Kind::softmax, 64, 2, forward<Usual, ForwardTile<Usual, 64>>,
          forward<Usual, WithoutFence<ForwardTile<Usual, 64>>>);
  compare("forward without compute_before_wait", Kind::softmax, 128, 2, forward<Usual, ForwardTile<Usual, 128>>,
          forward<Usual, WithoutFence<ForwardTile<Usual, 128>>>);
  compare("dK dV, 64 streamed queries for 128", Kind::softmax, 64, 4, keys<Usual, KeysTile<Usual, 64>>,
          keys<Usual, HopperTile<64, HopperSize{64, 8}, 2, Usual::ROW_VALUES>>);
  stagger_all<Usual>(Kind::softmax, 2);
  stagger_all<Lssar<FastMaths, FixedPower<15>>>(Kind::lssar, 4);
}

int main(int argc, char** argv) { return run_bench(bench, argc, argv); }
