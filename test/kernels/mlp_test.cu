// The functions of an MLP, kernels/gelu.* and kernels/mlp.*, as kernels_test.cu has the others.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/elementwise.cuh"
#include "kernels/gelu.cuh"
#include "kernels/mlp.cuh"
#include "test/kernels/reference.h"
#include "test/support/compare.h"
#include "test/support/device.h"

static const bool poisoned = (set_cpu_poison(true), true);  // reading unwritten memory gives NaN

template <class T> class MlpTest : public testing::Test {};
using StorageTypes = testing::Types<float, bf16>;
TYPED_TEST_SUITE(MlpTest, StorageTypes);

template <class T> constexpr double u = unit_roundoff<T>;

// gelu_grad, which the epilogues of products call, as a kernel.
struct GeluBackward {
  __device__ float operator()(float dout, float x) const { return dout * gelu_grad(x); }
};
template <class T> static void gelu_backward(T* dx, const T* dout, const T* x, size_t n) {
  elementwise(GeluBackward(), dx, n, nullptr, dout, x);
}

// A view that begins one element into an array is not 16-byte aligned.
static const size_t lengths[] = {5, 8, 9, 1000, 4099};

TYPED_TEST(MlpTest, Gelu) {
  using T = TypeParam;
  struct {
    float mean, scale;
  } inputs[] = {{0, 1.5f}, {-5, 0.05f}, {0, 1e-3f}, {0, 1e4f}};  // around 0; the left tail, tiny values; far out
  for (auto input : inputs)
    for (size_t n : lengths)
      for (size_t shift : {0, 1}) {
        Kernel<T> kernel("gelu", {long(n), long(shift), long(input.mean)}, {{"forward", u<T>}, {"backward", u<T>}});
        for (unsigned seed : Pool::seeds((n + 3) / 4)) {
          auto x0 = random_normal<T>(n + shift, seed, input.scale, input.mean), dout = random_normal<T>(n, seed + 1);
          kernel.check(
              [&] {
                DeviceArray<T> x(x0), out(n), dx(n), in_place(dout);
                gelu_forward<T>(out, x + shift, n, nullptr);
                gelu_backward<T>(dx, DeviceArray<T>(dout), x + shift, n);
                gelu_backward<T>(in_place, in_place, x + shift, n);
                expect_same_bits("gelu_backward in place", in_place.download(), dx.download());
                return outputs(out, dx);
              },
              [&]<class P>(P) {
                Reals<P> x = without_first(widen<P>(x0), shift), y(n), dx = widen<P>(dout);
                for (size_t i = 0; i < n; i++) {
                  y[i] = ref_gelu<P>(x[i]);
                  dx[i] = P::round(dx[i] * ref_gelu_grad<P>(x[i]));
                }
                return std::vector<Reals<P>>{y, dx};
              });
        }
      }
}

TYPED_TEST(MlpTest, Relu2) {
  using T = TypeParam;
  for (size_t n : lengths)
    for (size_t shift : {0, 1}) {
      Kernel<T> kernel("relu2", {long(n), long(shift)}, {{"forward", u<T>}, {"backward", u<T>}});
      for (unsigned seed : Pool::seeds((n + 3) / 4)) {
        auto x0 = random_normal<T>(n + shift, seed, 2), dout = random_normal<T>(n, seed + 1);
        kernel.check(
            [&] {
              DeviceArray<T> x(x0), out(n), dx(dout);
              relu2_forward<T>(out, x + shift, n, nullptr);
              relu2_backward<T>(dx, dx, x + shift, n, nullptr);
              return outputs(out, dx);
            },
            [&]<class P>(P) {
              Reals<P> x = without_first(widen<P>(x0), shift), y(n), dx = widen<P>(dout);
              for (size_t i = 0; i < n; i++)
                y[i] = ref_relu2<P>(x[i]), dx[i] = P::round(dx[i] * ref_relu2_grad<P>(x[i]));
              return std::vector<Reals<P>>{y, dx};
            });
      }
    }
}

TYPED_TEST(MlpTest, SwiGlu) {
  using T = TypeParam;
  for (auto [N, F] : {std::pair(1, 8), std::pair(3, 24), std::pair(113, 40), std::pair(7, 2056)})
    for (float scale : {1.5f, 1e-3f, 30.0f}) {
      Kernel<T> kernel("swiglu", {N, F, long(scale)}, {{"forward", u<T>}, {"backward", u<T>}});
      for (unsigned seed : Pool::seeds(N * F / 4)) {
        auto x0 = random_normal<T>(size_t(N) * 2 * F, seed, scale), dout0 = random_normal<T>(size_t(N) * F, seed + 1);
        kernel.check(
            [&] {
              DeviceArray<T> x(x0), dout(dout0), out(size_t(N) * F), dx(size_t(N) * 2 * F);
              swiglu_forward<T>(out, x, N, F, nullptr);
              swiglu_backward<T>(dx, dout, x, N, F, nullptr);
              return outputs(out, dx);
            },
            [&]<class P>(P) {
              return std::vector<Reals<P>>{ref_swiglu<P>(widen<P>(x0), N, F),
                                           ref_swiglu_backward<P>(widen<P>(dout0), widen<P>(x0), N, F)};
            });
      }
    }
}

// What is far out stays finite; NaN passes.
TYPED_TEST(MlpTest, FunctionsOfTheMlpFarOut) {
  using T = TypeParam;
  std::vector<T> x, ones(16, from_float<T>(1));
  for (float v : {0.0f, 100.0f, -100.0f, 1e18f, -1e18f, -3e38f, NAN, 1.0f}) x.push_back(from_float<T>(v));
  for (int i = 0; i < 8; i++) x.push_back(from_float<T>(1));  // up
  DeviceArray<T> input(x), dout(ones), out(8), dx(16), squares(8), dsquares(8);
  swiglu_forward<T>(out, input, 1, 8, nullptr);
  swiglu_backward<T>(dx, dout, input, 1, 8, nullptr);
  relu2_forward<T>(squares, input, 8, nullptr);
  relu2_backward<T>(dsquares, dout, input, 8, nullptr);
  for (int i = 0; i < 6; i++) {
    double v = as_double(x[i]);
    EXPECT_NEAR(as_double(out.download()[i]), std::max(v, 0.0), v < -1e3 ? -v * 1e-33 : 1e-30) << v;
    EXPECT_NEAR(as_double(dx.download()[i]), v == 0 ? 0.5 : v > 0, v < -1e3 ? -v * 1e-33 : 1e-30) << v;
    EXPECT_EQ(as_double(dsquares.download()[i]), std::max(2 * v, 0.0)) << v;
  }
  for (auto* array : {&out, &squares, &dsquares}) EXPECT_TRUE(std::isnan(as_double(array->download()[6])));
  EXPECT_TRUE(std::isnan(as_double(dx.download()[6])));
}

TYPED_TEST(MlpTest, GeluFarOut) {
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
