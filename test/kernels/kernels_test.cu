// Every kernel of kernels/ against its float64 reference, in float32 and bf16, on odd shapes. Outputs of += start from
// nonzero values, others from NaN. Every kernel repeats its bits for other numbers of CPU threads and orders of blocks
// and lanes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kernels/adamw.cuh"
#include "kernels/bias.cuh"
#include "kernels/convert.cuh"
#include "kernels/cross_entropy.cuh"
#include "kernels/elementwise.cuh"
#include "kernels/embedding.cuh"
#include "kernels/gelu.cuh"
#include "kernels/grad_norm.cuh"
#include "kernels/layernorm.cuh"
#include "kernels/reduce.cuh"
#include "kernels/squared_error.cuh"
#include "test/kernels/reference.h"
#include "test/support/compare.h"
#include "test/support/device.h"

static const bool poisoned = (set_cpu_poison(true), true);  // reading unwritten memory gives NaN

template <class T> class KernelTest : public testing::Test {};
using StorageTypes = testing::Types<float, bf16>;
TYPED_TEST_SUITE(KernelTest, StorageTypes);

template <class T> constexpr double u = unit_roundoff<T>;
constexpr double u32 = unit_roundoff<float>;

// More rows than there are warps, 4 per block, with that many blocks per multiprocessor: some warps take several rows.
static int rows_that_loop(int blocks) { return device_properties().multiProcessorCount * blocks * 4 + 3; }

static std::string shape(const char* kernel, std::initializer_list<long> sizes) {
  std::string text = kernel;
  for (long size : sizes) text += format(" %ld", size);
  return text;
}

// ---- embedding

// Tokens that make long runs: half of them are equal, the rest are random.
static std::vector<int> skewed_tokens(int N, int V, unsigned seed) {
  std::vector<int> tokens = random_ints(N, seed, V), coin = random_ints(N, seed + 1, 2);
  for (int i = 0; i < N; i++)
    if (coin[i]) tokens[i] = V / 3;
  return tokens;
}

static std::vector<int> sorted_by_token(const std::vector<int>& tokens, int V) {
  std::vector<int> sorted(2 * tokens.size());
  sort_by_token(sorted.data(), tokens.data(), int(tokens.size()), V);
  return sorted;
}

TEST(Kernels, SortByToken) {
  EXPECT_EQ(sorted_by_token({5, 0, 5, 3, 0, 5}, 6), std::vector<int>({0, 0, 3, 5, 5, 5, 1, 4, 3, 0, 2, 5}));
}

TYPED_TEST(KernelTest, EmbeddingForward) {
  using T = TypeParam;
  struct {
    int B, T_, C, V;
  } shapes[] = {{1, 1, 8, 1}, {3, 4, 40, 128}, {1, 113, 128, 256}, {2, 257, 360, 3000}};
  for (auto [B, T_, C, V] : shapes)
    for (bool positions : {true, false}) {
      int N = B * T_;
      auto tokens = random_ints(N, 1, V);
      auto wte = random_normal<T>(size_t(V) * C, 2), wpe = random_normal<T>(positions ? size_t(T_) * C : 0, 3);
      DeviceArray<T> out(size_t(N) * C), table(wte), position_table(wpe);
      embedding_forward<T>(out, DeviceArray<int>(tokens), table, positions ? position_table.get() : nullptr, B, T_, C,
                           nullptr);
      expect_close(shape("embedding_forward", {B, T_, C, V, positions}), out.download(),
                   ref_embedding<Exact>(tokens, widen<Exact>(wte), widen<Exact>(wpe), T_, C),
                   ref_embedding<Naive<T>>(tokens, widen<Naive<T>>(wte), widen<Naive<T>>(wpe), T_, C), u<T>);
    }
}

TYPED_TEST(KernelTest, EmbeddingBackward) {
  using T = TypeParam;
  // With runs longer than eight chunks of 32 rows.
  struct {
    int B, T_, C, V;
  } shapes[] = {{1, 1, 8, 1},      {1, 2, 8, 128},   {3, 4, 40, 128},     {1, 31, 8, 200},
                {1, 33, 128, 256}, {3, 257, 360, 1}, {2, 1800, 24, 5000}, {1, 4100, 8, 70000}};
  for (auto [B, T_, C, V] : shapes)
    for (bool positions : {true, false}) {
      int N = B * T_;
      Pool pool(shape("embedding_backward dwte", {B, T_, C, V}), u32),
          position_pool(shape("embedding_backward dwpe", {B, T_, C}), u32);
      for (unsigned seed : Pool::seeds(C)) {
        auto tokens = skewed_tokens(N, V, seed);
        auto dout = random_normal<T>(size_t(N) * C, seed + 2);
        auto dwte0 = random_normal<float>(size_t(V) * C, seed + 3),
             dwpe0 = random_normal<float>(positions ? size_t(T_) * C : 0, seed + 4);
        DeviceArray<float> dwte(dwte0), dwpe(dwpe0);
        DeviceArray<char> workspace(embedding_backward_workspace(N, C));
        embedding_backward<T>(dwte, positions ? dwpe.get() : nullptr, DeviceArray<T>(dout),
                              DeviceArray<int>(sorted_by_token(tokens, V)), workspace, B, T_, C, nullptr);
        auto exact = widen<Exact>(dwte0), exact_positions = widen<Exact>(dwpe0);
        auto naive = widen<Naive<T>>(dwte0), naive_positions = widen<Naive<T>>(dwpe0);
        ref_embedding_backward<Exact>(exact, exact_positions, widen<Exact>(dout), tokens, T_, C);
        ref_embedding_backward<Naive<T>>(naive, naive_positions, widen<Naive<T>>(dout), tokens, T_, C);
        pool.add(dwte.download(), exact, naive);
        position_pool.add(dwpe.download(), exact_positions, naive_positions);
        if (V >= 5000) break;  // enough outputs without repeating
      }
    }
}

TYPED_TEST(KernelTest, EmbeddingReproducible) {
  using T = TypeParam;
  int B = 3, T_ = 900, C = 24, V = 300, N = B * T_;
  auto tokens = skewed_tokens(N, V, 1);
  auto wte = random_normal<T>(size_t(V) * C, 2), wpe = random_normal<T>(size_t(T_) * C, 3);
  auto dwte0 = random_normal<float>(size_t(V) * C, 4), dwpe0 = random_normal<float>(size_t(T_) * C, 5);
  expect_reproducible("embedding", [&] {
    DeviceArray<T> out(size_t(N) * C);
    DeviceArray<float> dwte(dwte0), dwpe(dwpe0);
    DeviceArray<char> workspace(embedding_backward_workspace(N, C));
    embedding_forward<T>(out, DeviceArray<int>(tokens), DeviceArray<T>(wte), DeviceArray<T>(wpe), B, T_, C, nullptr);
    embedding_backward<T>(dwte, dwpe, out, DeviceArray<int>(sorted_by_token(tokens, V)), workspace, B, T_, C, nullptr);
    return bits_of(out, dwte, dwpe);
  });
}

// ---- layernorm

// One channel count for every instance: 1 to 8 packs a lane, and rows that do not fit into registers.
struct RowShape {
  int N, C;
};
static std::vector<RowShape> layernorm_shapes() {
  std::vector<RowShape> shapes = {{1, 8},     {3, 8},     {5, 128},   {130, 136}, {113, 264}, {31, 360},
                                  {257, 512}, {4, 720},   {300, 768}, {7, 896},   {9, 1024},  {130, 1032},
                                  {3, 1280},  {66, 1600}, {2, 2048},  {70, 2056}};
  shapes.push_back({rows_that_loop(64), 264});
  if (on_cpu) shapes.push_back({rows_that_loop(64), 2056});  // 70 million elements on a large GPU: too many to check
  return shapes;
}

template <class T> struct LayernormInputs {
  std::vector<T> x, gamma, beta;
  LayernormInputs(int N, int C, float offset, unsigned seed)
      : x(random_normal<T>(size_t(N) * C, seed, 2, offset)),
        gamma(random_normal<T>(C, seed + 2, 0.3f, 1)),
        beta(random_normal<T>(C, seed + 3)) {}
  template <class P> RefLayernorm<P> reference(int N, int C) const {
    return ref_layernorm<P>(widen<P>(x), widen<P>(gamma), widen<P>(beta), N, C);
  }
};

TYPED_TEST(KernelTest, LayernormForward) {
  using T = TypeParam;
  for (auto [N, C] : layernorm_shapes())
    for (float offset : {0.5f, 30.0f}) {
      Pool outs(shape("layernorm_forward out", {N, C}), u<T>), means(shape("layernorm_forward mean", {N, C}), u32);
      Pool rstds(shape("layernorm_forward rstd", {N, C}), u32);
      for (unsigned seed : Pool::seeds(N * 8)) {
        LayernormInputs<T> in(N, C, offset, seed);
        DeviceArray<T> out(size_t(N) * C), again(size_t(N) * C), x(in.x), gamma(in.gamma), beta(in.beta);
        DeviceArray<float> mean(N), rstd(N);
        layernorm_forward<T>(out, mean, rstd, x, gamma, beta, N, C, nullptr);
        auto exact = in.template reference<Exact>(N, C);
        auto naive = in.template reference<Naive<T>>(N, C);
        outs.add(out.download(), exact.out, naive.out);
        means.add(mean.download(), exact.mean, naive.mean);
        rstds.add(rstd.download(), exact.rstd, naive.rstd);
        layernorm_forward<T>(again, nullptr, nullptr, x, gamma, beta, N, C,
                             nullptr);  // evaluation stores no statistics
        expect_same_bits("layernorm_forward without statistics", out.download(), again.download());
      }
    }
}

template <class P> struct LayernormGradients { Reals<P> dx, dgamma, dbeta, dbias; };

TYPED_TEST(KernelTest, LayernormBackward) {
  using T = TypeParam;
  for (auto [N, C] : layernorm_shapes()) {
    Pool dxs(shape("layernorm_backward dx", {N, C}), u<T>), dgammas(shape("layernorm_backward dgamma", {N, C}), u32);
    Pool dbetas(shape("layernorm_backward dbeta", {N, C}), u32);
    Pool dbiases(shape("layernorm_backward dbias", {N, C}), u32);
    for (unsigned seed : Pool::seeds(C)) {
      LayernormInputs<T> in(N, C, 0.5f, seed);
      auto statistics = in.template reference<Naive<float>>(N, C);
      auto dx0 = random_normal<T>(size_t(N) * C, seed + 5), dout = random_normal<T>(size_t(N) * C, seed + 6);
      auto dgamma0 = random_normal<float>(C, seed + 7), dbeta0 = random_normal<float>(C, seed + 8);
      auto dbias0 = random_normal<float>(C, seed + 9);
      auto reference = [&, N = N, C = C]<class P>(P) {
        LayernormGradients<P> g{widen<P>(dx0), widen<P>(dgamma0), widen<P>(dbeta0), widen<P>(dbias0)};
        ref_layernorm_backward<P>(g.dx, g.dgamma, g.dbeta, widen<P>(dout), widen<P>(in.x), widen<P>(statistics.mean),
                                  widen<P>(statistics.rstd), widen<P>(in.gamma), N, C);
        ref_bias_backward<P>(g.dbias, g.dx, N, C, C);
        return g;
      };
      auto exact = reference(Exact());
      auto naive = reference(Naive<T>());
      DeviceArray<T> dx(dx0), again(dx0), device_dout(dout), x(in.x), gamma(in.gamma);
      DeviceArray<float> dgamma(dgamma0), dbeta(dbeta0), dbias(dbias0), mean(statistics.mean), rstd(statistics.rstd);
      DeviceArray<char> workspace(layernorm_backward_workspace(N, C));
      layernorm_backward<T>(dx, dgamma, dbeta, dbias, device_dout, x, mean, rstd, gamma, workspace, N, C, nullptr);
      dxs.add(dx.download(), exact.dx, naive.dx);
      dgammas.add(dgamma.download(), exact.dgamma, naive.dgamma);
      dbetas.add(dbeta.download(), exact.dbeta, naive.dbeta);
      dbiases.add(dbias.download(), exact.dbias, naive.dbias);
      layernorm_backward<T>(again, dgamma, dbeta, nullptr, device_dout, x, mean, rstd, gamma, workspace, N, C, nullptr);
      expect_same_bits("layernorm_backward without dbias", again.download(), dx.download());
    }
  }
}

TYPED_TEST(KernelTest, LayernormReproducible) {
  using T = TypeParam;
  for (auto [N, C] : {RowShape{700, 128}, RowShape{150, 720}, RowShape{150, 2056}}) {
    LayernormInputs<T> in(N, C, 1, 1);
    expect_reproducible(shape("layernorm", {N, C}), [&, N = N, C = C] {
      DeviceArray<T> out(size_t(N) * C), x(in.x), dx(random_normal<T>(size_t(N) * C, 2)), gamma(in.gamma);
      DeviceArray<float> mean(N), rstd(N), dgamma(random_normal<float>(C, 7)), dbeta(random_normal<float>(C, 8)),
          dbias(random_normal<float>(C, 9));
      DeviceArray<char> workspace(layernorm_backward_workspace(N, C));
      layernorm_forward<T>(out, mean, rstd, x, gamma, DeviceArray<T>(in.beta), N, C, nullptr);
      layernorm_backward<T>(dx, dgamma, dbeta, dbias, out, x, mean, rstd, gamma, workspace, N, C, nullptr);
      return bits_of(out, mean, rstd, dx, dgamma, dbeta, dbias);
    });
  }
}

// ---- elementwise: GELU, conversions. A view that begins one element into an array is not
// 16-byte aligned.

// gelu_grad, which the epilogues of products call, as a kernel.
struct GeluBackward {
  __device__ float operator()(float dout, float x) const { return dout * gelu_grad(x); }
};
template <class T> static void gelu_backward(T* dx, const T* dout, const T* x, size_t n) {
  elementwise(GeluBackward(), dx, n, nullptr, dout, x);
}

static const size_t lengths[] = {5, 8, 9, 1000, 4099};

TYPED_TEST(KernelTest, Gelu) {
  using T = TypeParam;
  // around zero; the left tail by itself, where the values are tiny; far out
  for (auto [mean, scale] :
       {std::pair(0.0f, 1.5f), std::pair(-5.0f, 0.05f), std::pair(0.0f, 1e-3f), std::pair(0.0f, 1e4f)})
    for (size_t n : lengths)
      for (size_t shift : {0, 1}) {
        Pool forward(shape("gelu_forward", {long(n), long(shift), long(mean)}), u<T>);
        Pool backward(shape("gelu_backward", {long(n), long(shift), long(mean)}), u<T>);
        for (unsigned seed : Pool::seeds((n + 3) / 4)) {
          auto x = random_normal<T>(n + shift, seed, scale, mean), dout = random_normal<T>(n, seed + 1);
          auto reference = [&]<class P>(P, bool backward) {
            Reals<P> y = without_first(widen<P>(x), shift), d = widen<P>(dout);
            for (size_t i = 0; i < n; i++)
              y[i] = backward ? P::round(d[i] * ref_gelu_grad<P>(y[i])) : ref_gelu<P>(y[i]);
            return y;
          };
          DeviceArray<T> input(x), out(n), dx(n), in_place(dout);
          gelu_forward<T>(out, input + shift, n, nullptr);
          gelu_backward<T>(dx, DeviceArray<T>(dout), input + shift, n);
          gelu_backward<T>(in_place, in_place, input + shift, n);
          forward.add(out.download(), reference(Exact(), false), reference(Naive<T>(), false));
          backward.add(dx.download(), reference(Exact(), true), reference(Naive<T>(), true));
          expect_same_bits("gelu_backward in place", in_place.download(), dx.download());
        }
      }
}

TYPED_TEST(KernelTest, GeluFarOut) {
  using T = TypeParam;
  std::vector<T> x, ones(8, from_float<T>(1));
  for (float v : {0.0f, 1e6f, -1e6f, 1e20f, -1e20f, 3e38f, -3e38f, NAN}) x.push_back(from_float<T>(v));
  DeviceArray<T> input(x), out(8), dx(8);
  gelu_forward<T>(out, input, 8, nullptr);
  gelu_backward<T>(dx, DeviceArray<T>(ones), input, 8);
  for (int i = 0; i < 7; i++) {
    double v = as_double(x[i]);
    EXPECT_EQ(as_double(out.download()[i]), std::max(v, 0.0)) << v;
    EXPECT_NEAR(as_double(dx.download()[i]), v == 0 ? 0.5 : v > 0, 1e-30) << v;
  }
  EXPECT_TRUE(std::isnan(as_double(out.download()[7])));
  EXPECT_TRUE(std::isnan(as_double(dx.download()[7])));
}

template <class TOut, class TIn> static void test_convert() {
  for (size_t n : lengths)
    for (size_t shift : {0, 1}) {
      auto in = random_normal<TIn>(n + shift, 1);
      float special[] = {0.0f,    -0.0f,     1.00390625f, 1.01171875f,
                         3.4e38f, -INFINITY, 1e-40f};  // two ties, one that overflows
      for (size_t i = 0; i < 7 && i < n; i++) in[i + shift] = from_float<TIn>(special[i]);
      DeviceArray<TIn> device(in);
      DeviceArray<TOut> out(n);
      convert<TOut, TIn>(out, device + shift, n, nullptr);
      std::vector<TOut> expected(n);
      for (size_t i = 0; i < n; i++) expected[i] = from_float<TOut>(to_float(in[i + shift]));
      expect_same_bits("convert", out.download(), expected);
    }
}

TEST(Kernels, Convert) {
  test_convert<bf16, float>();
  test_convert<float, float>();
  EXPECT_EQ(to_float(from_float<bf16>(1.00390625f)), 1.0f);  // ties go to even
  EXPECT_EQ(to_float(from_float<bf16>(1.01171875f)), 1.015625f);
}

TYPED_TEST(KernelTest, ElementwiseReproducible) {
  using T = TypeParam;
  auto x = random_normal<T>(5003, 1), y = random_normal<T>(5003, 2);
  expect_reproducible("gelu", [&] {
    DeviceArray<T> out(5003), dx(5003), a(x), b(y);
    gelu_forward<T>(out, a, 5003, nullptr);
    gelu_backward<T>(dx, b, a, 5003);
    return bits_of(out, dx);
  });
}

// ---- bias gradient and other sums

TYPED_TEST(KernelTest, BiasBackward) {
  using T = TypeParam;
  struct {
    int N, n, ld;
  } shapes[] = {{1, 1, 0},     {3, 7, 0},      {2, 40, 64},   {113, 33, 40},
                {257, 384, 0}, {1000, 64, 65}, {9000, 24, 0}, {70001, 8, 0}};
  for (auto [N, n, ld] : shapes)
    for (size_t shift : {0, 1}) {
      int stride = ld ? ld : n;
      Pool pool(shape("bias_backward", {N, n, ld, long(shift)}), u32);
      for (unsigned seed : Pool::seeds(N > 2000 ? 500 : n)) {
        auto dout = random_normal<T>(size_t(N) * stride + shift, seed);
        auto dbias0 = random_normal<float>(n, seed + 1);
        auto view = without_first(dout, shift);
        auto exact = widen<Exact>(dbias0);
        auto naive = widen<Naive<T>>(dbias0);
        ref_bias_backward<Exact>(exact, widen<Exact>(view), N, n, stride);
        ref_bias_backward<Naive<T>>(naive, widen<Naive<T>>(view), N, n, stride);
        DeviceArray<T> device(dout);
        DeviceArray<float> dbias(dbias0);
        DeviceArray<char> workspace(bias_backward_workspace(N, n));
        bias_backward<T>(dbias, device + shift, workspace, N, n, ld, nullptr);
        pool.add(dbias.download(), exact, naive);
      }
    }
}

TYPED_TEST(KernelTest, BiasReproducible) {
  using T = TypeParam;
  int N = 9000, n = 72;
  auto dout = random_normal<T>(size_t(N) * n, 1);
  expect_reproducible("bias_backward", [&] {
    DeviceArray<float> dbias(random_normal<float>(n, 2));
    DeviceArray<char> workspace(bias_backward_workspace(N, n));
    bias_backward<T>(dbias, DeviceArray<T>(dout), workspace, N, n, 0, nullptr);
    return bits_of(dbias);
  });
}

TEST(Kernels, SumTo) {
  for (size_t n : {1, 3, 4, 255, 1024, 4097, 70001})
    for (size_t shift : {0, 1}) {
      Pool pool(shape("sum_to", {long(n), long(shift)}), u32);
      for (unsigned seed : Pool::seeds(std::max<size_t>(1, n / 100))) {
        auto x = random_normal<float>(n + shift, seed, 1, 0.5f);
        double exact = 2.5;
        float naive = 2.5f;
        for (size_t i = 0; i < n; i++) exact += x[i + shift], naive += x[i + shift];
        DeviceArray<float> out(std::vector<float>{2.5f}), device(x);
        sum_to(out, device + shift, n, nullptr);
        pool.add(out.download(), {exact}, std::vector<float>{naive});
      }
    }
}

// ---- cross-entropy

TYPED_TEST(KernelTest, CrossEntropy) {
  using T = TypeParam;
  struct {
    int n, V, Vp;
  } shapes[] = {{1, 1, 8},       {3, 2, 8},         {31, 65, 128},
                {113, 256, 256}, {5, 250, 256},     {3, 1000, 1024},
                {2, 4097, 4224}, {3, 50257, 50304}, {rows_that_loop(16), 30, 32}};
  for (auto [n, V, Vp] : shapes)
    for (auto [scale, mean] : {std::pair(2.0f, 0.0f), std::pair(30.0f, -500.0f), std::pair(0.0f, 1.0f)})
      for (float dloss : {0.0f, 1.0f / n}) {
        // With one class the loss is log 1 = 0 exactly; its terms are of size 1.
        Pool all_losses(shape("cross_entropy losses", {n, V, Vp, long(scale)}), u32, 1);
        Pool gradients(shape("cross_entropy dlogits", {n, V, Vp, long(scale)}), u<T>);
        for (unsigned seed : Pool::seeds(V > 10000 ? 60 * n : 10 * n)) {
          auto logits = random_normal<T>(size_t(n) * Vp, seed, scale, mean);
          auto targets = random_ints(n, seed + 1, V);
          for (int row = 0; row < n; row++)
            for (int v = V; v < Vp; v++) logits[size_t(row) * Vp + v] = from_float<T>(NAN);  // padding is never used
          targets[0] = V - 1;
          DeviceArray<T> device(logits);
          DeviceArray<float> losses(n);
          cross_entropy<T>(losses, device, DeviceArray<int>(targets), dloss, n, V, Vp, nullptr);
          auto exact = ref_cross_entropy<Exact>(widen<Exact>(logits), targets, dloss, V, Vp);
          auto naive = ref_cross_entropy<Naive<T>>(widen<Naive<T>>(logits), targets, dloss, V, Vp);
          all_losses.add(losses.download(), exact.losses, naive.losses);
          if (dloss == 0) expect_same_bits("cross_entropy leaves the logits alone", device.download(), logits);
          else gradients.add(device.download(), exact.dlogits, naive.dlogits);
        }
      }
}

// Rows without a target are not read, and get zeros; the others are multiplied by their weights, and a weight of 1 changes
// no bit.
TYPED_TEST(KernelTest, CrossEntropyOfSomeRows) {
  using T = TypeParam;
  struct {
    int n, V, Vp;
  } shapes[] = {{31, 65, 128}, {9, 4097, 4224}, {rows_that_loop(16), 30, 32}};
  for (auto [n, V, Vp] : shapes)
    for (float dloss : {0.0f, 1.0f / n}) {
      Pool all_losses(shape("cross_entropy weighted losses", {n, V, Vp}), u32, 1);
      Pool gradients(shape("cross_entropy weighted dlogits", {n, V, Vp}), u<T>);
      for (unsigned seed : Pool::seeds(10 * n)) {
        auto logits = random_normal<T>(size_t(n) * Vp, seed, 2.0f);
        auto targets = random_ints(n, seed + 1, V);
        std::vector<float> weights(n), ones(n, 1.0f);
        for (int row = 0; row < n; row++) {
          weights[row] = 0.25f * float(1 + row % 7);
          for (int v = 0; v < Vp; v++)
            if (row % 3 == 1) targets[row] = -1, logits[size_t(row) * Vp + v] = from_float<T>(NAN);
        }
        auto run = [&, n = n, V = V, Vp = Vp](const std::vector<int>& targets, const float* weights) {
          DeviceArray<T> device(logits);
          DeviceArray<float> losses(n);
          cross_entropy<T>(losses, device, DeviceArray<int>(targets), dloss, n, V, Vp, nullptr, weights);
          return std::pair(losses.download(), device.download());
        };
        auto [losses, dlogits] = run(targets, DeviceArray<float>(weights));
        for (T& x : logits)
          if (std::isnan(to_float(x))) x = from_float<T>(0);
        auto exact = ref_cross_entropy<Exact>(widen<Exact>(logits), targets, dloss, V, Vp, weights);
        auto naive = ref_cross_entropy<Naive<T>>(widen<Naive<T>>(logits), targets, dloss, V, Vp, weights);
        all_losses.add(losses, exact.losses, naive.losses);
        if (dloss != 0) gradients.add(dlogits, exact.dlogits, naive.dlogits);
        for (int& target : targets) target = std::max(target, 0);
        auto [plain, plain_dlogits] = run(targets, nullptr);
        auto [with_ones, dlogits_with_ones] = run(targets, DeviceArray<float>(ones));
        expect_same_bits("cross_entropy with weights of 1", with_ones, plain);
        expect_same_bits("cross_entropy with weights of 1, dlogits", dlogits_with_ones, plain_dlogits);
      }
    }
}

TYPED_TEST(KernelTest, CrossEntropyReproducible) {
  using T = TypeParam;
  for (int V : {250, 5000}) {
    int n = 40, Vp = (V + 127) / 128 * 128;
    auto logits = random_normal<T>(size_t(n) * Vp, 1);
    auto targets = random_ints(n, 2, V);
    expect_reproducible(shape("cross_entropy", {V}), [&] {
      DeviceArray<T> device(logits);
      DeviceArray<float> losses(n);
      cross_entropy<T>(losses, device, DeviceArray<int>(targets), 0.1f, n, V, Vp, nullptr);
      return bits_of(device, losses);
    });
  }
}

// ---- squared error

TYPED_TEST(KernelTest, SquaredError) {
  using T = TypeParam;
  for (auto [n, K] : std::vector<std::pair<int, int>>{{1, 1}, {37, 2}, {300, 7}, {130, 8}, {20, 33}})
    for (float dloss : {0.0f, 1.0f / n}) {
      int Kp = (K + 7) / 8 * 8;
      Pool all_losses(shape("squared_error losses", {n, K}), u32), outputs(shape("squared_error y", {n, K}), u32, 1);
      Pool gradients(shape("squared_error dy", {n, K}), u<T>, dloss);
      for (unsigned seed : Pool::seeds(n)) {
        auto y = random_normal<float>(size_t(n) * Kp, seed);
        auto bias = random_normal<T>(K, seed + 1);
        auto targets = random_normal<float>(size_t(n) * K, seed + 2);
        std::vector<float> weights(n);
        for (int row = 0; row < n; row++) {
          weights[row] = 0.25f * float(1 + row % 7);
          for (int k = 0; k < K; k++)  // some rows have none, some all but one
            if (row % 5 == 3 || (row % 5 == 1 && k == row % K)) targets[size_t(row) * K + k] = NAN;
        }
        DeviceArray<float> device(y), losses(n);
        DeviceArray<T> dy(y.size());
        squared_error<T>(losses, device, dy, DeviceArray<T>(bias), DeviceArray<float>(targets),
                         DeviceArray<float>(weights), dloss, n, K, Kp, nullptr);
        auto exact = ref_squared_error<Exact>(widen<Exact>(y), widen<Exact>(bias), targets, weights, dloss, K, Kp);
        auto naive =
            ref_squared_error<Naive<T>>(widen<Naive<T>>(y), widen<Naive<T>>(bias), targets, weights, dloss, K, Kp);
        all_losses.add(losses.download(), exact.losses, naive.losses);
        outputs.add(device.download(), exact.y, naive.y);
        if (dloss == 0) continue;
        gradients.add(dy.download(), exact.dy, naive.dy);
        DeviceArray<float> again(y);  // without targets only the outputs
        squared_error<T>(nullptr, again, nullptr, DeviceArray<T>(bias), nullptr, nullptr, 0, n, K, Kp, nullptr);
        expect_same_bits("squared_error without targets", again.download(), device.download());
      }
    }
}

// ---- gradient norm, clipping, AdamW

TEST(Kernels, SquareSums) {
  for (size_t n : {1, 5, 4099, 65536, 65537, 200003})
    for (size_t shift : {0, 1}) {
      Pool pool(shape("square_sums", {long(n), long(shift)}), u32);
      for (unsigned seed : Pool::seeds(std::max<size_t>(1, n / 100))) {
        auto x = random_normal<float>(n + shift, seed, 0.3f);
        auto view = without_first(x, shift);
        DeviceArray<float> device(x), partial(square_sums_count(n)), aligned(square_sums_count(n));
        square_sums(partial, device + shift, n, nullptr);
        pool.add(partial.download(), ref_square_sums<Exact>(widen<Exact>(view), NORM_BLOCK),
                 ref_square_sums<Naive<float>>(view, NORM_BLOCK));
        square_sums(aligned, DeviceArray<float>(view), n, nullptr);  // the same bits at any alignment
        expect_same_bits("square_sums of an unaligned array", partial.download(), aligned.download());
      }
    }
}

TEST(Kernels, ClipScale) {
  for (int count : {1, 3, 257, 2000}) {
    Pool norms(shape("clip_scale norm", {count}), u32), scales(shape("clip_scale scale", {count}), u32);
    for (unsigned seed : Pool::seeds(20)) {
      auto partial = random_normal<float>(count, seed);
      double sum = 0;
      float naive_sum = 0;
      for (float& p : partial) p = std::fabs(p), sum += p, naive_sum += p;
      double norm = std::sqrt(sum);
      for (double clip : {0.0, norm * 2, norm / 2, norm / 1000}) {  // off, above, below
        DeviceArray<float> device_norm(1), device_scale(1);
        clip_scale(device_norm, device_scale, DeviceArray<float>(partial), count, float(clip), nullptr);
        norms.add(device_norm.download(), {norm}, std::vector<float>{std::sqrt(naive_sum)});
        if (clip == 0 || clip > norm) {
          EXPECT_EQ(device_scale.download()[0], 1.0f) << clip;
        } else {
          scales.add(device_scale.download(), {float(clip) / norm},
                     std::vector<float>{float(clip) / std::sqrt(naive_sum)});
        }
      }
    }
  }
  DeviceArray<float> norm(1), scale(1);
  clip_scale(norm, scale, DeviceArray<float>(std::vector<float>(7, 0.0f)), 7, 1.0f, nullptr);  // no gradient at all
  EXPECT_EQ(norm.download()[0], 0.0f);
  EXPECT_EQ(scale.download()[0], 1.0f);
}

TYPED_TEST(KernelTest, AdamW) {
  using T = TypeParam;
  constexpr bool same = std::is_same_v<T, float>;  // float32 parameters are their own masters
  for (size_t n : lengths)
    for (size_t shift : {0, 1}) {  // with 1 the arrays lie one element off 16 bytes
      Pool masters(shape("adamw master", {long(n), long(shift)}), u32),
          params(shape("adamw param", {long(n), long(shift)}), u<T>);
      Pool ms(shape("adamw m", {long(n), long(shift)}), u32), vs(shape("adamw v", {long(n), long(shift)}), u32);
      for (unsigned seed : Pool::seeds(n)) {
        auto start = random_normal<float>(n, seed, 0.02f);
        std::vector<float> zeros(n, 0.0f);
        RefAdamW<Exact> exact{Reals<Exact>(n), widen<Exact>(start), widen<Exact>(zeros), widen<Exact>(zeros)};
        RefAdamW<Naive<T>> naive{Reals<Naive<T>>(n), start, zeros, zeros};
        auto shifted = [&](std::vector<float> v) { return v.insert(v.begin(), shift, 7.0f), v; };
        DeviceArray<float> master(shifted(start)), m(shifted(zeros)), v(shifted(zeros)),
            scale(std::vector<float>{0.25f});
        DeviceArray<T> stored(n + shift);
        T* param;
        if constexpr (same) param = master + shift;
        else param = stored + shift;
        AdamW a{.lr = 3e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .step = 0};
        for (a.step = 1; a.step <= 20; a.step++) {
          auto grad = random_normal<float>(n, seed + 10 + a.step, a.step % 7 == 0 ? 0.0f : 0.1f);
          DeviceArray<float> device_grad(shifted(grad));
          adamw_update<T>(param, master + shift, m + shift, v + shift, device_grad + shift, scale, n, a, nullptr);
          exact.step(widen<Exact>(grad), 0.25, a.lr, a.beta1, a.beta2, a.eps, a.weight_decay, a.step);
          naive.step(grad, 0.25, a.lr, a.beta1, a.beta2, a.eps, a.weight_decay, a.step);
        }
        auto unshifted = [&](const auto& array) { return without_first(array.download(), shift); };
        masters.add(unshifted(master), exact.master, naive.master);
        ms.add(unshifted(m), exact.m, naive.m);
        vs.add(unshifted(v), exact.v, naive.v);
        if (!same) {
          params.add(unshifted(stored), exact.param, naive.param);
          std::vector<T> rounded;
          for (float w : unshifted(master)) rounded.push_back(from_float<T>(w));
          expect_same_bits("adamw param", unshifted(stored), rounded);
        }
        if (shift) {
          EXPECT_EQ(master.download()[0], 7.0f) << "adamw wrote before its array";
        }
      }
    }
}

TYPED_TEST(KernelTest, UpdateReproducible) {
  using T = TypeParam;
  size_t n = 140001;
  auto start = random_normal<float>(n, 1, 0.02f), grad = random_normal<float>(n, 2);
  expect_reproducible("square_sums, clip_scale, sum_to, adamw", [&] {
    DeviceArray<float> master(start), m(std::vector<float>(n, 0.0f)), v(std::vector<float>(n, 0.0f)), device_grad(grad);
    DeviceArray<float> partial(square_sums_count(n)), norm(1), scale(1), total(std::vector<float>{1.0f});
    DeviceArray<T> stored(n);
    T* param;
    if constexpr (std::is_same_v<T, float>) param = master;
    else param = stored;
    square_sums(partial, device_grad, n, nullptr);
    clip_scale(norm, scale, partial, int(partial.size()), 1.0f, nullptr);
    sum_to(total, device_grad, n, nullptr);
    adamw_update<T>(param, master, m, v, device_grad, scale, n, {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 3}, nullptr);
    return bits_of(master, m, v, norm, scale, total, stored);
  });
}
