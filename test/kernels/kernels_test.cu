// Every kernel of kernels/ against its float64 reference, in float32 and bf16, on odd shapes. Outputs of += start from
// nonzero values, others from NaN. In every shape a kernel repeats its bits for other numbers of CPU threads and orders
// of blocks and lanes.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/adamw.cuh"
#include "kernels/convert.cuh"
#include "kernels/cross_entropy.cuh"
#include "kernels/elementwise.cuh"
#include "kernels/embedding.cuh"
#include "kernels/grad_norm.cuh"
#include "kernels/layernorm.cuh"
#include "kernels/linear_bias.cuh"
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
  enum { NONE, POSITIONS, IN_DOCUMENTS };
  for (auto shape : shapes)
    for (int positions : {NONE, POSITIONS, IN_DOCUMENTS}) {
      int B = shape.B, T_ = shape.T_, C = shape.C, V = shape.V, N = B * T_;
      // A document of one row in each sequence, then a longer one, if it is not all one.
      int first = positions == IN_DOCUMENTS && T_ > 1 ? 1 : T_;
      std::vector<int2> documents;
      for (int row = 0; row < N; row++)
        documents.push_back(row % T_ < first ? make_int2(0, first) : make_int2(first, T_));
      auto tokens = random_ints(N, 1, V);
      auto wte = random_normal<T>(size_t(V) * C, 2), wpe = random_normal<T>(positions ? size_t(T_) * C : 0, 3);
      Kernel<T> kernel("embedding_forward", {B, T_, C, V, positions}, {{"out", u<T>}});
      kernel.check(
          [&] {
            DeviceArray<T> out(size_t(N) * C), table(wte), position_table(wpe);
            DeviceArray<int2> spans(documents);
            embedding_forward<T>(out, DeviceArray<int>(tokens), table, positions ? position_table.get() : nullptr,
                                 positions == IN_DOCUMENTS ? spans.get() : nullptr, B, T_, C, nullptr);
            return outputs(out);
          },
          [&]<class P>(P) {
            Reals<P> all;
            for (int row = 0; row < N; row += documents[row].y - documents[row].x) {
              int length = documents[row].y - documents[row].x;
              std::vector<int> own(tokens.begin() + row, tokens.begin() + row + length);
              auto x = ref_embedding<P>(own, widen<P>(wte), widen<P>(wpe), length, C);
              all.insert(all.end(), x.begin(), x.end());
            }
            return std::vector<Reals<P>>{all};
          });
    }
}

TYPED_TEST(KernelTest, EmbeddingBackward) {
  using T = TypeParam;
  // With runs longer than eight chunks of 32 rows.
  struct {
    int B, T_, C, V;
  } shapes[] = {{1, 1, 8, 1},      {1, 2, 8, 128},   {3, 4, 40, 128},     {1, 31, 8, 200},
                {1, 33, 128, 256}, {3, 257, 360, 1}, {2, 1800, 24, 5000}, {1, 4100, 8, 70000}};
  for (auto shape : shapes)
    for (bool positions : {true, false}) {
      int B = shape.B, T_ = shape.T_, C = shape.C, V = shape.V, N = B * T_;
      Kernel<T> kernel("embedding_backward", {B, T_, C, V}, {{"dwte", u32}, {"dwpe", u32}});
      for (unsigned seed : Pool::seeds(C)) {
        auto tokens = skewed_tokens(N, V, seed);
        auto dout = random_normal<T>(size_t(N) * C, seed + 2);
        auto dwte0 = random_normal<float>(size_t(V) * C, seed + 3),
             dwpe0 = random_normal<float>(positions ? size_t(T_) * C : 0, seed + 4);
        kernel.check(
            [&] {
              DeviceArray<float> dwte(dwte0), dwpe(dwpe0);
              DeviceArray<char> workspace(embedding_backward_workspace(N, C));
              embedding_backward<T>(dwte, positions ? dwpe.get() : nullptr, DeviceArray<T>(dout),
                                    DeviceArray<int>(sorted_by_token(tokens, V)), workspace, B, T_, C, nullptr);
              return outputs(dwte, dwpe);
            },
            [&]<class P>(P) {
              auto dwte = widen<P>(dwte0), dwpe = widen<P>(dwpe0);
              ref_embedding_backward<P>(dwte, dwpe, widen<P>(dout), tokens, T_, C);
              return std::vector<Reals<P>>{dwte, dwpe};
            });
        if (V >= 5000) break;  // enough outputs without repeating
      }
    }
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
  shapes.push_back({rows_that_loop(64), 776});
  if (on_cpu) shapes.push_back({rows_that_loop(64), 2056});  // 70 million elements on a large GPU: too many to check
  return shapes;
}

template <class T> struct LayernormInputs {
  std::vector<T> x, gamma, beta;
  LayernormInputs(int N, int C, float offset, unsigned seed)
      : x(random_normal<T>(size_t(N) * C, seed, 2, offset)),
        gamma(random_normal<T>(C, seed + 2, 0.3f, 1)),
        beta(random_normal<T>(C, seed + 3)) {}
  template <class P> RefLayernorm<P> reference(int N, int C, bool rms = false) const {
    return ref_layernorm<P>(widen<P>(x), widen<P>(gamma), rms ? Reals<P>() : widen<P>(beta), N, C, rms);
  }
};

TYPED_TEST(KernelTest, LayernormForward) {
  using T = TypeParam;
  for (RowShape shape : layernorm_shapes())
    for (float offset : {0.5f, 30.0f}) {
      int N = shape.N, C = shape.C;
      Kernel<T> kernel("layernorm_forward", {N, C}, {{"out", u<T>}, {"mean", u32}, {"rstd", u32}});
      for (unsigned seed : Pool::seeds(N * 8)) {
        LayernormInputs<T> in(N, C, offset, seed);
        kernel.check(
            [&] {
              DeviceArray<T> out(size_t(N) * C), again(size_t(N) * C), x(in.x), gamma(in.gamma), beta(in.beta);
              DeviceArray<float> mean(N), rstd(N);
              layernorm_forward<T>(out, mean, rstd, x, gamma, beta, N, C, nullptr);
              layernorm_forward<T>(again, nullptr, nullptr, x, gamma, beta, N, C, nullptr);
              expect_same_bits("layernorm_forward without statistics", out.download(), again.download());
              return outputs(out, mean, rstd);
            },
            [&]<class P>(P) {
              auto result = in.template reference<P>(N, C);
              return std::vector<Reals<P>>{result.out, result.mean, result.rstd};
            });
      }
    }
}

TYPED_TEST(KernelTest, LayernormBackward) {
  using T = TypeParam;
  for (RowShape shape : layernorm_shapes()) {
    int N = shape.N, C = shape.C;
    Kernel<T> kernel("layernorm_backward", {N, C}, {{"dx", u<T>}, {"dgamma", u32}, {"dbeta", u32}, {"dbias", u32}});
    for (unsigned seed : Pool::seeds(C)) {
      LayernormInputs<T> in(N, C, 0.5f, seed);
      auto statistics = in.template reference<Naive<float>>(N, C);
      auto dx0 = random_normal<T>(size_t(N) * C, seed + 5), dout0 = random_normal<T>(size_t(N) * C, seed + 6);
      auto dgamma0 = random_normal<float>(C, seed + 7), dbeta0 = random_normal<float>(C, seed + 8);
      auto dbias0 = random_normal<float>(C, seed + 9);
      kernel.check(
          [&] {
            DeviceArray<T> dx(dx0), again(dx0), dout(dout0), x(in.x), gamma(in.gamma);
            DeviceArray<float> dgamma(dgamma0), dbeta(dbeta0), dbias(dbias0), mean(statistics.mean),
                rstd(statistics.rstd);
            DeviceArray<char> workspace(layernorm_backward_workspace(N, C));
            layernorm_backward<T>(dx, dgamma, dbeta, dbias, dout, x, mean, rstd, gamma, workspace, N, C, nullptr);
            Outputs result = outputs(dx, dgamma, dbeta, dbias);
            layernorm_backward<T>(again, dgamma, dbeta, nullptr, dout, x, mean, rstd, gamma, workspace, N, C, nullptr);
            expect_same_bits("layernorm_backward without dbias", again.download(), dx.download());
            return result;
          },
          [&]<class P>(P) {
            auto dx = widen<P>(dx0), dgamma = widen<P>(dgamma0), dbeta = widen<P>(dbeta0), dbias = widen<P>(dbias0);
            ref_layernorm_backward<P>(dx, dgamma, dbeta, widen<P>(dout0), widen<P>(in.x), widen<P>(statistics.mean),
                                      widen<P>(statistics.rstd), widen<P>(in.gamma), N, C);
            ref_bias_backward<P>(dbias, dx, N, C, C);
            return std::vector<Reals<P>>{dx, dgamma, dbeta, dbias};
          });
    }
  }
}

TYPED_TEST(KernelTest, LayernormWithoutBeta) {
  using T = TypeParam;
  for (RowShape shape : {RowShape{3, 8}, RowShape{130, 136}, RowShape{300, 768}, RowShape{70, 2056}}) {
    int N = shape.N, C = shape.C;
    LayernormInputs<T> in(N, C, 0.5f, 1);
    DeviceArray<T> with(size_t(N) * C), without(size_t(N) * C), x(in.x), gamma(in.gamma);
    DeviceArray<T> zeros(std::vector<T>(C, from_float<T>(0)));
    layernorm_forward<T>(with, nullptr, nullptr, x, gamma, zeros, N, C, nullptr);
    layernorm_forward<T>(without, nullptr, nullptr, x, gamma, nullptr, N, C, nullptr);
    expect_same_bits("layernorm_forward without beta", without.download(), with.download());
  }
}

TYPED_TEST(KernelTest, RmsNorm) {
  using T = TypeParam;
  for (RowShape shape : layernorm_shapes()) {
    int N = shape.N, C = shape.C;
    Kernel<T> kernel("rmsnorm", {N, C}, {{"out", u<T>}, {"rstd", u32}, {"dx", u<T>}, {"dgamma", u32}, {"dbias", u32}});
    for (unsigned seed : Pool::seeds(C)) {
      LayernormInputs<T> in(N, C, 0.5f, seed);
      auto statistics = in.template reference<Naive<float>>(N, C, true);
      auto dx0 = random_normal<T>(size_t(N) * C, seed + 5), dout0 = random_normal<T>(size_t(N) * C, seed + 6);
      auto dgamma0 = random_normal<float>(C, seed + 7), dbias0 = random_normal<float>(C, seed + 9);
      kernel.check(
          [&] {
            DeviceArray<T> out(size_t(N) * C), again(size_t(N) * C), dx(dx0), dout(dout0), x(in.x), gamma(in.gamma);
            DeviceArray<float> rstd(N), dgamma(dgamma0), dbias(dbias0), given(statistics.rstd);
            DeviceArray<char> workspace(layernorm_backward_workspace(N, C));
            layernorm_forward<T>(out, nullptr, rstd, x, gamma, nullptr, N, C, nullptr, true);
            layernorm_forward<T>(again, nullptr, nullptr, x, gamma, nullptr, N, C, nullptr, true);
            expect_same_bits("rmsnorm without statistics", out.download(), again.download());
            layernorm_backward<T>(dx, dgamma, nullptr, dbias, dout, x, nullptr, given, gamma, workspace, N, C, nullptr,
                                  true);
            return outputs(out, rstd, dx, dgamma, dbias);
          },
          [&]<class P>(P) {
            auto forward = in.template reference<P>(N, C, true);
            auto dx = widen<P>(dx0), dgamma = widen<P>(dgamma0), dbias = widen<P>(dbias0);
            Reals<P> no_beta(C, 0);
            ref_layernorm_backward<P>(dx, dgamma, no_beta, widen<P>(dout0), widen<P>(in.x), widen<P>(statistics.mean),
                                      widen<P>(statistics.rstd), widen<P>(in.gamma), N, C, true);
            ref_bias_backward<P>(dbias, dx, N, C, C);
            return std::vector<Reals<P>>{forward.out, forward.rstd, dx, dgamma, dbias};
          });
    }
  }
}

// ---- conversions. A view that begins one element into an array is not 16-byte aligned.

static const size_t lengths[] = {5, 8, 9, 1000, 4099};

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

// ---- bias gradient and other sums

TYPED_TEST(KernelTest, BiasBackward) {
  using T = TypeParam;
  struct {
    int N, n, ld;
  } shapes[] = {{1, 1, 0},     {3, 7, 0},      {2, 40, 64},   {113, 33, 40},
                {257, 384, 0}, {1000, 64, 65}, {9000, 24, 0}, {70001, 8, 0}};
  for (auto shape : shapes)
    for (size_t shift : {0, 1}) {
      int N = shape.N, n = shape.n, ld = shape.ld, stride = ld ? ld : n;
      Kernel<T> kernel("linear_bias_backward", {N, n, ld, long(shift)}, {{"dbias", u32}});
      for (unsigned seed : Pool::seeds(N > 2000 ? 500 : n)) {
        auto dout = random_normal<T>(size_t(N) * stride + shift, seed);
        auto dbias0 = random_normal<float>(n, seed + 1);
        kernel.check(
            [&] {
              DeviceArray<float> dbias(dbias0);
              DeviceArray<char> workspace(linear_bias_backward_workspace(N, n));
              linear_bias_backward<T>(dbias, DeviceArray<T>(dout) + shift, workspace, N, n, ld, nullptr);
              return outputs(dbias);
            },
            [&]<class P>(P) {
              auto dbias = widen<P>(dbias0);
              ref_bias_backward<P>(dbias, without_first(widen<P>(dout), shift), N, n, stride);
              return std::vector<Reals<P>>{dbias};
            });
      }
    }
}

TEST(Kernels, SumTo) {
  for (size_t n : {1, 3, 4, 255, 1024, 4097, 70001})
    for (size_t shift : {0, 1}) {
      Kernel<float> kernel("sum_to", {long(n), long(shift)}, {{"", u32}});
      for (unsigned seed : Pool::seeds(std::max<size_t>(1, n / 100))) {
        auto x = random_normal<float>(n + shift, seed, 1, 0.5f);
        kernel.check(
            [&] {
              DeviceArray<float> out(std::vector<float>{2.5f});
              sum_to(out, DeviceArray<float>(x) + shift, n, nullptr);
              return outputs(out);
            },
            [&]<class P>(P) {
              Real<P> sum = 2.5f;
              for (size_t i = 0; i < n; i++) sum += x[i + shift];
              return std::vector<Reals<P>>{{sum}};
            });
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
  for (auto shape : shapes)
    for (auto logit : {std::tuple(2.0f, 0.0f, 0.0f), std::tuple(30.0f, -500.0f, 0.0f), std::tuple(0.0f, 1.0f, 0.0f),
                       std::tuple(4.0f, 0.5f, 5.0f)}) {  // scale, mean and cap
      int n = shape.n, V = shape.V, Vp = shape.Vp;
      auto [scale, mean, cap] = logit;
      float dloss = 1.0f / float(n);
      // With one class the loss is log 1 = 0 exactly; its terms are of size 1.
      Kernel<T> kernel("cross_entropy", {n, V, Vp, long(scale), long(cap)}, {{"losses", u32, 1}, {"dlogits", u<T>}});
      for (unsigned seed : Pool::seeds(V > 10000 ? 60 * n : 10 * n)) {
        auto logits0 = random_normal<T>(size_t(n) * Vp, seed, scale, mean);
        auto targets = random_ints(n, seed + 1, V);
        for (int row = 0; row < n; row++)
          for (int v = V; v < Vp; v++) logits0[size_t(row) * Vp + v] = from_float<T>(NAN);  // padding is never used
        targets[0] = V - 1;
        kernel.check(
            [&] {
              DeviceArray<T> logits(logits0);
              DeviceArray<float> losses(n), again(n);
              DeviceArray<int> above(n);
              token_losses<T>(again, above, logits, DeviceArray<int>(targets), n, V, Vp, nullptr, cap);
              expect_same_bits("token_losses leaves the logits alone", logits.download(), logits0);
              cross_entropy<T>(losses, logits, DeviceArray<int>(targets), dloss, n, V, Vp, nullptr, nullptr, cap);
              expect_same_bits("losses of token_losses", again.download(), losses.download());
              return outputs(losses, logits);
            },
            [&]<class P>(P) {
              auto result = ref_cross_entropy<P>(widen<P>(logits0), targets, dloss, V, Vp, {}, cap);
              return std::vector<Reals<P>>{result.losses, result.dlogits};
            });
      }
    }
}

// Logits of few values, so that most rows have the target's several times, before and after it; NaN and infinities; the
// likeliest token at any column.
TYPED_TEST(KernelTest, LogitsAboveTheTargets) {
  using T = TypeParam;
  struct {
    int n, V, Vp;
  } shapes[] = {{7, 1, 8},        {31, 65, 128},   {40, 250, 256},
                {33, 4096, 4096}, {9, 4097, 4224}, {rows_that_loop(16), 30, 32}};
  for (auto [n, V, Vp] : shapes)
    for (unsigned seed : Pool::seeds(10 * n)) {
      auto numbers = random_ints(n * Vp, seed, 7), targets = random_ints(n, seed + 1, V);
      std::vector<T> logits(numbers.size());
      std::vector<int> expected(n, 0);
      for (int row = 0; row < n; row++) {
        T* x = &logits[size_t(row) * Vp];
        for (int v = 0; v < Vp; v++) x[v] = from_float<T>(v < V ? float(numbers[size_t(row) * Vp + v] - 3) : NAN);
        if (row % 7 == 1) x[targets[row]] = from_float<T>(4);
        if (row % 7 == 2 && V > 1) x[(targets[row] + 1) % V] = from_float<T>(NAN);
        if (row % 7 == 3) x[targets[row]] = from_float<T>(NAN);
        if (row % 7 == 4) x[targets[row]] = from_float<T>(-INFINITY), x[V / 2] = from_float<T>(-INFINITY);
        if (row % 7 == 5) targets[row] = -1;
        for (int v = 0; v < V && targets[row] >= 0; v++) {
          float logit = to_float(x[v]), own = to_float(x[targets[row]]);
          expected[row] += std::isnan(logit) || logit > own || (logit == own && v < targets[row]);
        }
      }
      DeviceArray<float> losses(n);
      DeviceArray<int> above(n);
      token_losses<T>(losses, above, DeviceArray<T>(logits), DeviceArray<int>(targets), n, V, Vp, nullptr);
      std::vector<int> found = above.download();
      for (int row = 3; row < n; row += 7) {
        EXPECT_GT(found[row], 0);
        found[row] = expected[row];
      }
      EXPECT_EQ(found, expected) << V;
      for (int row = 5; row < n; row += 7) EXPECT_EQ(losses.download()[row], 0);
    }
}

// Rows without a target are not read, and get zeros; the others are multiplied by their weights, and a weight of 1
// changes no bit.
TYPED_TEST(KernelTest, CrossEntropyOfSomeRows) {
  using T = TypeParam;
  struct {
    int n, V, Vp;
  } shapes[] = {{31, 65, 128}, {9, 4097, 4224}, {rows_that_loop(16), 30, 32}};
  for (auto shape : shapes) {
    int n = shape.n, V = shape.V, Vp = shape.Vp;
    float dloss = 1.0f / float(n);
    Kernel<T> kernel("cross_entropy weighted", {n, V, Vp}, {{"losses", u32, 1}, {"dlogits", u<T>}});
    for (unsigned seed : Pool::seeds(10 * n)) {
      auto logits = random_normal<T>(size_t(n) * Vp, seed, 2.0f), read_logits = logits;
      auto targets = random_ints(n, seed + 1, V);
      std::vector<float> weights(n), ones(n, 1.0f);
      for (int row = 0; row < n; row++) {
        weights[row] = 0.25f * float(1 + row % 7);
        for (int v = 0; v < Vp && row % 3 == 1; v++) {
          targets[row] = -1;
          logits[size_t(row) * Vp + v] = from_float<T>(NAN);
          read_logits[size_t(row) * Vp + v] = from_float<T>(0);
        }
      }
      auto run = [&](const std::vector<T>& logits, const std::vector<int>& targets, const float* weights) {
        DeviceArray<T> device(logits);
        DeviceArray<float> losses(n);
        cross_entropy<T>(losses, device, DeviceArray<int>(targets), dloss, n, V, Vp, nullptr, weights);
        return outputs(losses, device);
      };
      kernel.check([&] { return run(logits, targets, DeviceArray<float>(weights)); },
                   [&]<class P>(P) {
                     auto result = ref_cross_entropy<P>(widen<P>(read_logits), targets, dloss, V, Vp, weights);
                     return std::vector<Reals<P>>{result.losses, result.dlogits};
                   });
      for (int& target : targets) target = std::max(target, 0);
      Outputs plain = run(read_logits, targets, nullptr),
              with_ones = run(read_logits, targets, DeviceArray<float>(ones));
      for (size_t i = 0; i < plain.size(); i++)
        expect_same_bits("cross_entropy with weights of 1", with_ones[i], plain[i]);
    }
  }
}

// ---- squared error

TYPED_TEST(KernelTest, SquaredError) {
  using T = TypeParam;
  for (auto shape : std::vector<std::pair<int, int>>{{1, 1}, {37, 2}, {300, 7}, {130, 8}, {20, 33}})
    for (float dloss : {0.0f, 1.0f / shape.first}) {
      int n = shape.first, K = shape.second, Kp = (K + 7) / 8 * 8;
      Kernel<T> kernel("squared_error", {n, K}, {{"losses", u32}, {"y", u32, 1}, {"dy", u<T>, dloss}});
      for (unsigned seed : Pool::seeds(n)) {
        auto y0 = random_normal<float>(size_t(n) * Kp, seed);
        auto bias = random_normal<T>(K, seed + 1);
        auto targets = random_normal<float>(size_t(n) * K, seed + 2);
        std::vector<float> weights(n);
        for (int row = 0; row < n; row++) {
          weights[row] = 0.25f * float(1 + row % 7);
          for (int k = 0; k < K; k++)  // some rows have none, some all but one
            if (row % 5 == 3 || (row % 5 == 1 && k == row % K)) targets[size_t(row) * K + k] = NAN;
        }
        kernel.check(
            [&] {
              DeviceArray<float> y(y0), again(y0), losses(n);
              DeviceArray<T> dy(y.size()), device_bias(bias);
              squared_error<T>(losses, y, dy, device_bias, DeviceArray<float>(targets), DeviceArray<float>(weights),
                               dloss, n, K, Kp, nullptr);
              if (dloss == 0) return outputs(losses, y);
              squared_error<T>(nullptr, again, nullptr, device_bias, nullptr, nullptr, 0, n, K, Kp, nullptr);
              expect_same_bits("squared_error without targets", again.download(), y.download());
              return outputs(losses, y, dy);
            },
            [&]<class P>(P) {
              auto result = ref_squared_error<P>(widen<P>(y0), widen<P>(bias), targets, weights, dloss, K, Kp);
              return std::vector<Reals<P>>{result.losses, result.y, result.dy};
            });
      }
    }
}

// ---- gradient norm, clipping, AdamW

TEST(Kernels, SquareSums) {
  for (size_t n : {1, 5, 4099, 65536, 65537, 200003})
    for (size_t shift : {0, 1}) {
      Kernel<float> kernel("square_sums", {long(n), long(shift)}, {{"", u32}});
      for (unsigned seed : Pool::seeds(std::max<size_t>(1, n / 100))) {
        auto x = random_normal<float>(n + shift, seed, 0.3f), view = without_first(x, shift);
        kernel.check(
            [&] {
              DeviceArray<float> partial(square_sums_count(n)), aligned(square_sums_count(n));
              square_sums(partial, DeviceArray<float>(x) + shift, n, nullptr);
              square_sums(aligned, DeviceArray<float>(view), n, nullptr);  // the same bits at any alignment
              expect_same_bits("square_sums of an unaligned array", partial.download(), aligned.download());
              return outputs(partial);
            },
            [&]<class P>(P) { return std::vector<Reals<P>>{ref_square_sums<P>(widen<P>(view), NORM_BLOCK)}; });
      }
    }
}

TEST(Kernels, ClipScale) {
  for (int count : {1, 3, 257, 2000}) {
    Kernel<float> kernel("clip_scale", {count}, {{"norm", u32}, {"scale", u32}});
    for (unsigned seed : Pool::seeds(20)) {
      auto partial = random_normal<float>(count, seed);
      double sum = 0;
      for (float& p : partial) p = std::fabs(p), sum += p;
      double norm = std::sqrt(sum);
      for (double clip : {0.0, norm * 2, norm / 2, norm / 1000})  // off, above, below
        kernel.check(
            [&] {
              DeviceArray<float> norm_and_scale(2);
              float *norm_out = norm_and_scale, *scale_out = norm_and_scale + 1;
              clip_scale(norm_out, scale_out, DeviceArray<float>(partial), count, float(clip), nullptr);
              std::vector<float> got = norm_and_scale.download();
              if (clip > 0 && clip < norm) return outputs(std::vector{got[0]}, std::vector{got[1]});
              EXPECT_EQ(got[1], 1.0f) << clip;
              return outputs(std::vector{got[0]});
            },
            [&]<class P>(P) {
              Real<P> sum = 0;
              for (float p : partial) sum += p;
              return std::vector<Reals<P>>{{std::sqrt(sum)}, {Real<P>(float(clip)) / std::sqrt(sum)}};
            });
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
  for (size_t n : {size_t(5), size_t(8), size_t(9), size_t(1000), size_t(4099), size_t(140001)})
    for (size_t shift : {0, 1}) {  // with 1 the arrays lie one element off 16 bytes
      int steps = n > 100000 ? 2 : 20;
      Kernel<T> kernel("adamw", {long(n), long(shift)}, {{"master", u32}, {"m", u32}, {"v", u32}, {"param", u<T>}});
      for (unsigned seed : Pool::seeds(n)) {
        auto start = random_normal<float>(n, seed, 0.02f);
        std::vector<float> zeros(n, 0.0f);
        std::vector<std::vector<float>> grads;
        for (int step = 1; step <= steps; step++)
          grads.push_back(random_normal<float>(n, seed + 10 + step, step % 7 == 0 ? 0.0f : 0.1f));
        AdamW a{.lr = 3e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .step = 0};
        kernel.check(
            [&] {
              auto shifted = [&](std::vector<float> v) { return v.insert(v.begin(), shift, 7.0f), v; };
              auto unshifted = [&](const auto& array) { return without_first(array.download(), shift); };
              DeviceArray<float> master(shifted(start)), m(shifted(zeros)), v(shifted(zeros)),
                  scale(std::vector<float>{0.25f});
              DeviceArray<T> stored(n + shift);
              T* param;
              if constexpr (same) param = master + shift;
              else param = stored + shift;
              for (a.step = 1; a.step <= steps; a.step++) {
                DeviceArray<float> grad(shifted(grads[a.step - 1]));
                adamw_update<T>(param, master + shift, m + shift, v + shift, grad + shift, scale, n, a, nullptr);
              }
              std::vector<float> masters = unshifted(master);
              if (shift) {
                EXPECT_EQ(master.download()[0], 7.0f) << "adamw wrote before its array";
              }
              if (same) return outputs(masters, unshifted(m), unshifted(v));
              std::vector<T> rounded;
              for (float w : masters) rounded.push_back(from_float<T>(w));
              expect_same_bits("adamw param", unshifted(stored), rounded);
              return outputs(masters, unshifted(m), unshifted(v), unshifted(stored));
            },
            [&]<class P>(P) {
              RefAdamW<P> adamw{Reals<P>(n), widen<P>(start), widen<P>(zeros), widen<P>(zeros)};
              for (int step = 1; step <= steps; step++)
                adamw.step(widen<P>(grads[step - 1]), 0.25, a.lr, a.beta1, a.beta2, a.eps, a.weight_decay, step);
              return std::vector<Reals<P>>{adamw.master, adamw.m, adamw.v, adamw.param};
            });
      }
    }
}
