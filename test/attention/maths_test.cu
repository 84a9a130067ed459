// The functions of maths.cuh and formula.cuh against float64: each errs by at most what is said there.
#include <gtest/gtest.h>

#include "attention/formula.cuh"
#include "attention/kinds/lssar.cuh"
#include "test/support/device.h"

namespace {

template <class F> __global__ void apply_kernel(float* y, const float* x, int count) {
  for (int n = threadIdx.x; n < count; n += blockDim.x) y[n] = F::of(x[n]);
}

// F's relative error at x and, if it has negative numbers, at -x, for x from `least` to `most` in ratios of 1.003.
template <class F> void expect_error_below(const char* name, double bound, double least, double most, bool negative) {
  std::vector<float> x;
  for (double at = least; at <= most; at *= 1.003) {
    x.push_back(float(at));
    if (negative) x.push_back(float(-at));
  }
  DeviceArray<float> y(x.size());
  LAUNCH(apply_kernel<F>, 1, 256, 0, nullptr, y, DeviceArray<float>(x), int(x.size()));
  std::vector<float> found = y.download();
  for (size_t n = 0; n < x.size(); n++) {
    double exact = F::exact(x[n]);
    if (std::fabs(exact) < 0x1p-126) continue;  // a GPU's fast functions make 0 of it
    ASSERT_LE(std::fabs(found[n] - exact), bound * std::fabs(exact))
        << name << " of " << x[n] << " is " << found[n] << ", not " << exact;
  }
}

// A kernel's template argument must have a name that is not local.
#define FUNCTION(NAME, CODE, EXACT)                      \
  struct NAME {                                          \
    __device__ static float of(float x) { return CODE; } \
    static double exact(double x) { return EXACT; }      \
  };
double softplus(double x) { return std::fmax(x, 0) + std::log1p(std::exp(-std::fabs(x))); }
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
FUNCTION(LogNormal, log_normal(x), std::log(x))
FUNCTION(Log1pOfUnit, log1p_of_unit(x), std::log1p(x))
FUNCTION(Power31, integer_power(x, 31), std::pow(x, 31))
FUNCTION(FullSoftplus, FullMaths::softplus(x), softplus(x))
FUNCTION(FullSoftplus2, FullMaths::softplus2(x), softplus(x* M_LN2))
FUNCTION(FullSigmoid, FullMaths::sigmoid(x), sigmoid(x))
FUNCTION(FullPower, FullMaths::power(x, 2.5f), std::pow(x, 2.5))
FUNCTION(FullTanh, DeviceFunctions<FullMaths>::tanh(x), std::tanh(x))
FUNCTION(FastExp, FastMaths::exp(x, 1), std::exp(x - 1))
FUNCTION(FastSoftplus2, FastMaths::softplus2(x), softplus(x* M_LN2) / M_LN2)
FUNCTION(FastSigmoid, FastMaths::sigmoid(x), sigmoid(x))
FUNCTION(FastPower, FastMaths::power(x, 2.5f), std::pow(x, 2.5))
FUNCTION(FastSoftplus, DeviceFunctions<FastMaths>::softplus(x), softplus(x))
FUNCTION(FastSqrt, DeviceFunctions<FastMaths>::sqrt(x), std::sqrt(x))

FUNCTION(FixedPowerOfLssar, FixedPower<15>::one_less(x, 0), std::pow(x, 14))
FUNCTION(WholePowerOfLssar, WholePower::one_less(x, 14), std::pow(x, 14))
FUNCTION(AnyPowerOfLssar, AnyPower<FullMaths>::one_less(x, 6.5f), std::pow(x, 6.5))

TEST(Maths, FullMathsIsAccurateToFloat32) {
  constexpr double u = 0x1p-24, EXP = 2 * u;  // of expf and exp2f: a unit in the last place
  expect_error_below<LogNormal>("log_normal", 2e-7, 0x1p-126, 0x1p120, false);
  expect_error_below<Log1pOfUnit>("log1p_of_unit", 1.5e-7, 1e-30, 1, false);
  expect_error_below<Power31>("integer_power of 31", 31 * u, 0.1, 10, false);
  expect_error_below<FullSoftplus>("softplus", 1.5e-7 + EXP + u, 1e-6, 87, true);
  expect_error_below<FullSoftplus2>("softplus2", 1.5e-7 + EXP + u, 1e-6, 125, true);
  expect_error_below<FullSigmoid>("sigmoid", EXP + 2 * u, 1e-6, 87, true);
  expect_error_below<FullPower>("power of 2.5", 2e-7 * (1 + 2.5 * 30), 1e-13, 1, false);
  expect_error_below<FullTanh>("tanh", 1.6 * u, 1e-30, 1e30, true);
}

// Rows of lssar hide a wrong power: their naive formula's error is 15 times a score's.
TEST(Maths, PowersOfLssar) {
  expect_error_below<FixedPowerOfLssar>("x^14, a constant", 14 * 0x1p-24, 0.01, 1, false);
  expect_error_below<WholePowerOfLssar>("x^14, an integer", 14 * 0x1p-24, 0.01, 1, false);
  expect_error_below<AnyPowerOfLssar>("x^6.5", 2e-7 * (1 + 6.5 * std::log(100.0)), 0.01, 1, false);
}

TEST(Maths, FastMathsIsAccurateTo13Digits) {
  expect_error_below<FastExp>("exp", 0x1p-13, 1e-6, 85, true);
  expect_error_below<FastSoftplus2>("softplus2", 0x1p-13, 1e-6, 125, true);
  expect_error_below<FastSigmoid>("sigmoid", 0x1p-13, 1e-6, 85, true);
  expect_error_below<FastPower>("power of 2.5", 0x1p-13, 1e-13, 0.999, false);
  expect_error_below<FastSoftplus>("softplus", 0x1p-13, 1e-6, 80, true);
  expect_error_below<FastSqrt>("sqrt", 0x1p-13, 1e-30, 1e30, false);
}

}  // namespace
