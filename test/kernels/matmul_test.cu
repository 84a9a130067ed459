// matmul() against its float64 reference: all transpositions, epilogues and types, odd shapes and row strides.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "kernels/gelu.cuh"
#include "kernels/matmul.cuh"
#include "test/kernels/reference.h"
#include "test/kernels/tensor_core.h"
#include "test/support/compare.h"
#include "test/support/device.h"
#include "test/support/error_of.h"

struct Case {
  int m, n, k;
  int pad = 0;  // elements between the rows of every matrix
  float beta = 0;
  Epilogue epilogue = Epilogue::none;
  bool aux = true;    // bias_gelu keeps the values before GELU
  size_t shift = 0;   // every array begins this many elements off 256 bytes
  bool adds = false;  // another matrix to the product
};

template <class T> static std::vector<T> shifted(std::vector<T> values, size_t shift) {
  values.insert(values.begin(), shift, from_float<T>(NAN));
  return values;
}

// The gaps between rows hold NaN: in inputs it must not be read, in D it must stay.
template <class T> static std::vector<T> random_matrix(int rows, int columns, int pad, unsigned seed) {
  return with_gaps(random_normal<T>(size_t(rows) * columns, seed), columns, pad, from_float<T>(NAN));
}

template <class TIn, class TOut> static void test_matmul(const Case& c, bool trans_a, bool trans_b) {
  std::string name = format("matmul %dx%dx%d %c%c pad %d beta %g epilogue %d adds %d", c.m, c.n, c.k,
                            trans_a ? 'T' : 'N', trans_b ? 'T' : 'N', c.pad, c.beta, int(c.epilogue), c.adds);
  Pool products(name, unit_roundoff<TOut>), kept(name + " aux", unit_roundoff<TIn>);
  for (unsigned seed : Pool::seeds(size_t(c.m) * c.n)) {
    int columns_a = trans_a ? c.m : c.k, columns_b = trans_b ? c.k : c.n, ldd = c.n + c.pad;
    auto a = random_matrix<TIn>(trans_a ? c.k : c.m, columns_a, c.pad, seed),
         b = random_matrix<TIn>(trans_b ? c.n : c.k, columns_b, c.pad, seed + 1);
    auto d0 = random_matrix<TOut>(c.m, c.n, c.pad, seed + 2);
    auto bias = random_normal<TIn>(c.n, seed + 3), aux0 = random_matrix<TIn>(c.m, c.n, c.pad, seed + 4);
    DeviceArray<TOut> d(shifted(d0, c.shift)), added(shifted(d0, c.shift));
    DeviceArray<TIn> device_a(shifted(a, c.shift)), device_b(shifted(b, c.shift)), device_bias(shifted(bias, c.shift)),
        aux(shifted(aux0, c.shift));
    if (c.beta == 0) d.poison();
    if (c.epilogue == Epilogue::bias_gelu) aux.poison();
    bool use_aux = c.epilogue == Epilogue::dgelu || (c.epilogue == Epilogue::bias_gelu && c.aux);
    bool use_bias = c.epilogue == Epilogue::bias || c.epilogue == Epilogue::bias_gelu;
    matmul<TIn, TOut>({.d = d + c.shift,
                       .a = device_a + c.shift,
                       .b = device_b + c.shift,
                       .m = c.m,
                       .n = c.n,
                       .k = c.k,
                       .trans_a = trans_a,
                       .trans_b = trans_b,
                       .ldd = c.pad ? ldd : 0,
                       .lda = c.pad ? columns_a + c.pad : 0,
                       .ldb = c.pad ? columns_b + c.pad : 0,
                       .beta = c.beta,
                       .epilogue = c.epilogue,
                       .bias = use_bias ? device_bias + c.shift : nullptr,
                       .aux = use_aux ? aux + c.shift : nullptr,
                       .c = c.adds ? added + c.shift : nullptr},
                      nullptr);
    // The product of bf16 matrices into float is stored, and rounded, in float.
    using Plain = std::conditional_t<std::is_same_v<TIn, TOut>, Naive<TOut>, OnTensorCores>;
    auto reference = [&]<class P>(P) {
      return ref_matmul<P>(widen<P>(d0), widen<P>(a), widen<P>(b), c.m, c.n, c.k, trans_a, trans_b, ldd,
                           columns_a + c.pad, columns_b + c.pad, c.adds ? 1 : c.beta, int(c.epilogue), widen<P>(bias),
                           widen<P>(aux0));
    };
    auto exact = reference(Exact());
    auto naive = reference(Plain());
    auto result = without_first(d.download(), c.shift);
    products.add(without_gaps(result, c.n, c.pad), without_gaps(exact.d, c.n, c.pad),
                 without_gaps(naive.d, c.n, c.pad));
    if (c.epilogue == Epilogue::bias_gelu && c.aux)
      kept.add(without_gaps(without_first(aux.download(), c.shift), c.n, c.pad), without_gaps(exact.aux, c.n, c.pad),
               without_gaps(naive.aux, c.n, c.pad));
    expect_gaps(name, result, c.n, c.pad, NAN);
  }
}

template <class TIn, class TOut> static void test_all(const std::vector<Case>& cases) {
  for (const Case& c : cases)
    for (bool trans_a : {false, true})
      for (bool trans_b : {false, true}) test_matmul<TIn, TOut>(c, trans_a, trans_b);
}

// One element; all sizes odd; more than one tile in each direction; k longer than a slice of bf16; row strides that are
// multiples of 16 bytes and that are not.
static const std::vector<Case> plain = {
    {1, 1, 1},         {1, 257, 64},   {113, 1, 31},
    {3, 5, 7, 3},      {113, 40, 257}, {64, 72, 1100},
    {128, 384, 96, 8}, {300, 530, 33}, {40, 24, 16, 0, 0, Epilogue::none, true, 1},
};
static const std::vector<Case> adding = {
    {1, 1, 1, 0, 1}, {113, 40, 257, 1, 1}, {64, 72, 1100, 0, 1}, {300, 72, 16, 8, 1}};
static const std::vector<Case> fused = {
    {1, 8, 3, 0, 0, Epilogue::bias},
    {113, 41, 40, 1, 0, Epilogue::bias},
    {64, 520, 128, 0, 0, Epilogue::bias},
    {1, 8, 3, 0, 0, Epilogue::bias_gelu},
    {113, 41, 40, 1, 0, Epilogue::bias_gelu},
    {64, 520, 128, 8, 0, Epilogue::bias_gelu},
    {64, 128, 40, 0, 0, Epilogue::bias_gelu, false},
    {1, 8, 3, 0, 0, Epilogue::dgelu},
    {113, 41, 40, 1, 0, Epilogue::dgelu},
    {64, 520, 128, 8, 0, Epilogue::dgelu},
    {40, 24, 16, 0, 0, Epilogue::bias_gelu, true, 1},
    {1, 8, 3, 0, 0, Epilogue::bias, true, 0, true},
    {113, 41, 40, 1, 0, Epilogue::bias, true, 0, true},
    {64, 520, 600, 8, 0, Epilogue::bias, true, 0, true},
    {40, 24, 16, 0, 0, Epilogue::bias, true, 1, true},
    {300, 72, 33, 0, 0, Epilogue::none, true, 0, true},
};

TEST(Matmul, Float) {
  test_all<float, float>(plain);
  test_all<float, float>(adding);
  test_all<float, float>(fused);
}

TEST(Matmul, Bf16) {
  test_all<bf16, bf16>(plain);
  test_all<bf16, bf16>(adding);
  test_all<bf16, bf16>(fused);
}

TEST(Matmul, Bf16IntoFloat) {
  test_all<bf16, float>(plain);
  test_all<bf16, float>(adding);
}

template <class TIn, class TOut> static void test_reproducible() {
  int m = 300, n = 130, k = 700;
  auto a = random_normal<TIn>(size_t(m) * k, 1), b = random_normal<TIn>(size_t(k) * n, 2),
       bias = random_normal<TIn>(n, 3);
  expect_reproducible("matmul", [&] {
    DeviceArray<TOut> d(size_t(m) * n), fused_d(size_t(m) * n);
    DeviceArray<TIn> device_a(a), device_b(b), device_bias(bias), aux(size_t(m) * n);
    matmul<TIn, TOut>({.d = d, .a = device_a, .b = device_b, .m = m, .n = n, .k = k}, nullptr);
    if constexpr (std::is_same_v<TIn, TOut>)
      matmul<TIn, TOut>({.d = fused_d,
                         .a = device_a,
                         .b = device_b,
                         .m = m,
                         .n = n,
                         .k = k,
                         .epilogue = Epilogue::bias_gelu,
                         .bias = device_bias,
                         .aux = aux},
                        nullptr);
    return bits_of(d, fused_d, aux);
  });
}

TEST(Matmul, Reproducible) {
  test_reproducible<float, float>();
  test_reproducible<bf16, bf16>();
  test_reproducible<bf16, float>();
}

// A product of two matrices of 64 x 64.
struct SmallProduct {
  static constexpr int n = 64;
  DeviceArray<bf16> a{random_normal<bf16>(n * n, 1)}, b{random_normal<bf16>(n * n, 2)};
  DeviceArray<bf16> operator()(cudaStream_t stream = nullptr) const {
    DeviceArray<bf16> d(n * n);
    matmul<bf16, bf16>({.d = d, .a = a, .b = b, .m = n, .n = n, .k = n}, stream);
    return d;
  }
};

// A checkpoint hands its choices back. (On the CPU there is nothing to choose.)
TEST(Matmul, ChoicesSurviveARoundTrip) {
  MatmulChoices* choices = matmul_choices();
  ASSERT_EQ(choices == nullptr, on_cpu);
  if (on_cpu) GTEST_SKIP();
  SmallProduct product;
  DeviceArray<bf16> before = product();
  std::string text = choices->text();
  EXPECT_NE(text, "");
  choices->take(text);
  EXPECT_EQ(choices->text(), text);
  DeviceArray<bf16> after = product();
  EXPECT_EQ(choices->text(), text);  // nothing was chosen again
  expect_same_bits("matmul with the choices read back", after.download(), before.download());
}

TEST(Matmul, AnotherWorkspaceForgetsTheChoices) {
  SmallProduct product;
  std::vector<bf16> x = product().download();
  matmul_workspace(0);
  auto chosen = [] { return matmul_choices() ? matmul_choices()->text() : ""; };
  EXPECT_EQ(chosen(), "");
  std::vector<bf16> y = product().download();
  EXPECT_EQ(chosen().empty(), on_cpu);
  matmul_workspace(MATMUL_WORKSPACE);
  // Whatever is chosen adds 64 products of float in some order, then rounds to bf16: one unit of it at most.
  for (size_t i = 0; i < x.size(); i++)
    EXPECT_NEAR(as_double(x[i]), as_double(y[i]), std::fabs(as_double(x[i])) * 0x1p-7 + 64 * 64 * 0x1p-24) << i;
}

// With PTX_WRONG_PRODUCTS (dev/ptx/options.h) all tests here must pass, and this one sees algorithms dropped. The
// second round is by choices read back, which nothing compares again: a wrong one among them would show.
TEST(Matmul, WrongAlgorithmsAreDroppedNamedAndForgotten) {
  const char* wrong = std::getenv("PTX_WRONG_PRODUCTS");
  if (on_cpu || !wrong || !*wrong) GTEST_SKIP() << "no algorithm is wrong";
  auto all = [] {
    for (int n : {136, 144, 152, 160}) {
      for (Epilogue epilogue : {Epilogue::bias, Epilogue::bias_gelu, Epilogue::dgelu})
        test_matmul<bf16, bf16>({64, n, 128, 0, 0, epilogue}, false, false);
      test_matmul<bf16, float>({24, n, 1100, 0, 1}, true, false);
    }
  };
  matmul_choices()->forget();
  testing::internal::CaptureStderr();
  all();
  expect_has(testing::internal::GetCapturedStderr(),
             {"warning: matrix products: cuBLASLt's algorithm 0 with an epilogue is not used", "at in14 out14 m64 n1",
              "algorithm 0 with k in 2 parts is not used", "at in14 out0 m24 n1"});
  std::string text = matmul_choices()->text();
  matmul_choices()->take(text);
  testing::internal::CaptureStderr();
  all();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(matmul_choices()->text(), text);
}

// The workspace of a stream goes with it. (A product on the CPU needs none.)
TEST(Matmul, ReleasesWhatItAllocatedForAStream) {
  if (on_cpu) GTEST_SKIP();
  constexpr int STREAMS = 4;
  int n = 64;
  DeviceArray<bf16> a(random_normal<bf16>(n * n, 1)), b(random_normal<bf16>(n * n, 2)), d(n * n);
  auto multiply = [&](cudaStream_t stream) {
    matmul<bf16, bf16>({.d = d, .a = a, .b = b, .m = n, .n = n, .k = n}, stream);
    CUDA_CHECK(cudaStreamSynchronize(stream));
  };
  auto free_memory = [] {
    size_t free, total;
    CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return free;
  };
  multiply(nullptr);  // what the library allocates once
  size_t before = free_memory();
  cudaStream_t streams[STREAMS];
  for (cudaStream_t& stream : streams) CUDA_CHECK(cudaStreamCreate(&stream));
  for (cudaStream_t stream : streams) multiply(stream);
  size_t during = free_memory();
  EXPECT_LT(during, before);
  for (cudaStream_t stream : streams) {
    matmul_release(stream);
    matmul_release(stream);  // which has nothing any more
    CUDA_CHECK(cudaStreamDestroy(stream));
  }
  EXPECT_LT(before - free_memory(), (before - during) / STREAMS);
}

TEST(Matmul, RefusesImpossibleArguments) {
  DeviceArray<float> x(64);
  using Product = Matmul<float, float>;
  auto refuse = [&](auto change) {
    Product p{.d = x, .a = x, .b = x, .m = 4, .n = 4, .k = 4};
    change(p);
    EXPECT_THROW((matmul<float, float>(p, nullptr)), Failure);
  };
  refuse([](Product& p) { p.k = 0; });
  refuse([](Product& p) { p.epilogue = Epilogue::bias_gelu; });
  refuse([](Product& p) { p.epilogue = Epilogue::dgelu; });
  refuse([&](Product& p) { p.beta = 1, p.epilogue = Epilogue::bias, p.bias = x; });
  refuse([&](Product& p) { p.beta = 1, p.c = x; });
  refuse([&](Product& p) { p.epilogue = Epilogue::dgelu, p.aux = x, p.c = x; });
  matmul<float, float>({.d = x, .a = x, .b = x, .m = 0, .n = 4, .k = 4}, nullptr);  // nothing to do
}
