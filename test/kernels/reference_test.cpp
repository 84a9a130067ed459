// The float64 reference backwards of test/kernels/reference.h against finite differences of the reference forwards.
#include "test/kernels/reference.h"

#include <gtest/gtest.h>

#include <functional>

#include "test/support/device.h"

// f's derivative along each element of x, by the five-point formula, against `gradient`. Its own error is about 1e-11.
static void expect_gradient(const char* name, Reals<Exact> x, const std::function<double(const Reals<Exact>&)>& f,
                            const Reals<Exact>& gradient) {
  double largest = 0;
  for (double g : gradient) largest = std::max(largest, std::fabs(g));
  ASSERT_GT(largest, 0) << name;
  ASSERT_EQ(x.size(), gradient.size()) << name;
  for (size_t i = 0; i < x.size(); i++) {
    double at = x[i], h = 1e-3, values[5];
    for (int j = 0; j < 5; j++) x[i] = at + (j - 2) * h, values[j] = f(x);
    x[i] = at;
    double slope = (values[0] - 8 * values[1] + 8 * values[3] - values[4]) / (12 * h);
    EXPECT_NEAR(gradient[i], slope, 1e-8 * largest) << name << " at " << i;
  }
}

static Reals<Exact> random_reals(size_t n, unsigned seed) { return widen<Exact>(random_normal<float>(n, seed)); }

static double dot(const Reals<Exact>& a, const Reals<Exact>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); i++) sum += a[i] * b[i];
  return sum;
}

TEST(Reference, LayernormBackward) {
  int N = 3, C = 16;
  auto x = random_reals(N * C, 1), gamma = random_reals(C, 2), beta = random_reals(C, 3), dout = random_reals(N * C, 4);
  for (bool rms : {false, true}) {
    auto forward = ref_layernorm<Exact>(x, gamma, beta, N, C, rms);
    Reals<Exact> dx(N * C, 0.0), dgamma(C, 0.0), dbeta(C, 0.0);
    ref_layernorm_backward<Exact>(dx, dgamma, dbeta, dout, x, forward.mean, forward.rstd, gamma, N, C, rms);
    auto loss = [&](const Reals<Exact>& x, const Reals<Exact>& gamma, const Reals<Exact>& beta) {
      return dot(dout, ref_layernorm<Exact>(x, gamma, beta, N, C, rms).out);
    };
    expect_gradient(
        "dx", x, [&](auto& v) { return loss(v, gamma, beta); }, dx);
    expect_gradient(
        "dgamma", gamma, [&](auto& v) { return loss(x, v, beta); }, dgamma);
    expect_gradient(
        "dbeta", beta, [&](auto& v) { return loss(x, gamma, v); }, dbeta);
  }
}

TEST(Reference, FunctionsOfTheMlp) {
  int N = 2, F = 5;
  auto x = random_reals(N * 2 * F, 1), dout = random_reals(N * F, 2);
  expect_gradient(
      "swiglu", x, [&](auto& v) { return dot(dout, ref_swiglu<Exact>(v, N, F)); },
      ref_swiglu_backward<Exact>(dout, x, N, F));
  Reals<Exact> values = {-3, -0.1, 0.3, 1, 2.5}, gradient;
  for (double v : values) gradient.push_back(ref_relu2_grad<Exact>(v));
  expect_gradient(
      "relu2", values,
      [](auto& x) {
        double sum = 0;
        for (double v : x) sum += ref_relu2<Exact>(v);
        return sum;
      },
      gradient);
}

TEST(Reference, CappedCrossEntropy) {
  int n = 2, V = 7;
  auto logits = random_reals(n * V, 1);
  std::vector<int> targets = {3, 0};
  auto loss = [&](auto& v) {
    auto losses = ref_cross_entropy<Exact>(v, targets, 1, V, V, {}, 1.5).losses;
    return losses[0] + losses[1];
  };
  expect_gradient("capped", logits, loss, ref_cross_entropy<Exact>(logits, targets, 1, V, V, {}, 1.5).dlogits);
}

TEST(Reference, GeluGrad) {
  Reals<Exact> x = {-8, -3, -1, -0.1, 0, 0.3, 1, 2.5, 7}, gradient;
  for (double v : x) gradient.push_back(ref_gelu_grad<Exact>(v));
  expect_gradient(
      "gelu", x,
      [](auto& x) {
        double sum = 0;
        for (double v : x) sum += ref_gelu<Exact>(v);
        return sum;
      },
      gradient);
}

TEST(Reference, CrossEntropyBackward) {
  int V = 10, Vp = 16;
  std::vector<int> targets = {3, 9, 0};
  auto logits = random_reals(targets.size() * Vp, 1);
  auto loss = [&](const Reals<Exact>& v) {
    double sum = 0;
    for (double l : ref_cross_entropy<Exact>(v, targets, 0.5, V, Vp).losses) sum += 0.5 * l;
    return sum;
  };
  expect_gradient("logits", logits, loss, ref_cross_entropy<Exact>(logits, targets, 0.5, V, Vp).dlogits);
}

TEST(Reference, EmbeddingBackward) {
  int T = 4, C = 3, V = 5;
  auto tokens = random_ints(2 * T, 1, V);
  auto wte = random_reals(V * C, 2), wpe = random_reals(T * C, 3), dout = random_reals(tokens.size() * C, 4);
  Reals<Exact> dwte(V * C, 0.0), dwpe(T * C, 0.0);
  ref_embedding_backward<Exact>(dwte, dwpe, dout, tokens, T, C);
  expect_gradient(
      "dwte", wte, [&](auto& v) { return dot(dout, ref_embedding<Exact>(tokens, v, wpe, T, C)); }, dwte);
  expect_gradient(
      "dwpe", wpe, [&](auto& v) { return dot(dout, ref_embedding<Exact>(tokens, wte, v, T, C)); }, dwpe);
}

// out = gelu(A B + bias): dbias through ref_bias_backward, dA through the epilogue of a product with B transposed.
TEST(Reference, MatmulBackward) {
  int m = 3, n = 5, k = 4;
  auto a = random_reals(m * k, 1), b = random_reals(k * n, 2), bias = random_reals(n, 3), dout = random_reals(m * n, 4);
  auto product = [&](const Reals<Exact>& a, const Reals<Exact>& b, const Reals<Exact>& bias) {
    return ref_matmul<Exact>(Reals<Exact>(m * n), a, b, m, n, k, false, false, n, k, n, 0, 2, bias,
                             Reals<Exact>(m * n));
  };
  auto before = product(a, b, bias).aux;
  // As in the trainer, but with an identity product with the dgelu epilogue instead of the next layer's input gradient.
  Reals<Exact> identity(n * n, 0.0);
  for (int i = 0; i < n; i++) identity[i * n + i] = 1;
  auto dproduct =
      ref_matmul<Exact>(Reals<Exact>(m * n), dout, identity, m, n, n, false, false, n, n, n, 0, 3, {}, before).d;
  Reals<Exact> dbias(n, 0.0);
  ref_bias_backward<Exact>(dbias, dproduct, m, n, n);
  auto da = ref_matmul<Exact>(Reals<Exact>(m * k), dproduct, b, m, k, n, false, true, k, n, n).d;
  auto db = ref_matmul<Exact>(Reals<Exact>(k * n, 0.0), a, dproduct, k, n, m, true, false, n, k, n, 1).d;
  expect_gradient(
      "dbias", bias, [&](auto& v) { return dot(dout, product(a, b, v).d); }, dbias);
  expect_gradient(
      "dA", a, [&](auto& v) { return dot(dout, product(v, b, bias).d); }, da);
  expect_gradient(
      "dB", b, [&](auto& v) { return dot(dout, product(a, v, bias).d); }, db);
}
