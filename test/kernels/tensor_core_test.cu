// Sums and rounding of mma_m16n8k16 (kernels/gpu.cuh), to the bit as in tensor_core.h. hopper_test.cu has the same for
// wgmma.
#include "test/kernels/tensor_core.h"

#include <gtest/gtest.h>

#include <random>

#include "test/support/device.h"

namespace {

// d [16, 8] += a [16, 16 steps] b [16 steps, 8]
__global__ void multiply_chain(float* d, const bf16* a, const bf16* b, int steps) {
  int g = threadIdx.x / 4, q = threadIdx.x % 4;
  float sums[1][1][4];
  for (int r = 0; r < 4; r++) sums[0][0][r] = d[(g + r / 2 * 8) * 8 + 2 * q + r % 2];
  for (int step = 0; step < steps; step++) {
    unsigned left[1][4], right[1][2];
    for (int r = 0; r < 4; r++) {
      const bf16* pair = a + (g + r % 2 * 8) * 16 * steps + step * 16 + 2 * q + r / 2 * 8;
      left[0][r] = pack_pair(to_float(pair[0]), to_float(pair[1]));
    }
    for (int r = 0; r < 2; r++) {
      const bf16* upper = b + (step * 16 + 2 * q + 8 * r) * 8 + g;
      right[0][r] = pack_pair(to_float(upper[0]), to_float(upper[8]));
    }
    mma_m16n8k16(sums, left, right);
  }
  for (int r = 0; r < 4; r++) d[(g + r / 2 * 8) * 8 + 2 * q + r % 2] = sums[0][0][r];
}

std::vector<float> chain(const std::vector<float>& c, const std::vector<float>& a, const std::vector<float>& b) {
  auto narrow = [](const std::vector<float>& x) {
    std::vector<bf16> y;
    for (float value : x) y.push_back(from_float<bf16>(value));
    return DeviceArray<bf16>(y);
  };
  DeviceArray<float> d(c);
  LAUNCH(multiply_chain, 1, WARP, 0, nullptr, d, narrow(a), narrow(b), int(a.size() / 256));
  return d.download();
}

TEST(TensorCore, AddsAsKnown) {
  for (const KnownProduct& known : KNOWN_PRODUCTS) {
    KnownInputs in(known, unsigned(&known - KNOWN_PRODUCTS) + 1);
    unsigned expected = TensorCore::of_mma().digits == 24 ? known.ampere : known.hopper;
    EXPECT_EQ(hash_of(chain(in.c, in.a, in.b)), expected) << "inputs from exponent " << known.exponent;
  }
}

// Where terms are tiny or 0: a product of a zero has no exponent, whatever its other factor's is. (Of factors below
// 2^-126 it is not known what a GPU takes for their exponent.)
TEST(TensorCore, AddsTinyTerms) {
  std::mt19937 random(1);
  auto draw = [&](int low, int high, bool zeros) {
    float size = std::ldexp(1 + float(random() % 128) / 128, low + int(random() % unsigned(high - low)));
    return zeros && random() % 3 ? 0 : random() % 2 ? size : -size;
  };
  for (int round = 0; round < 200; round++) {
    bool zeros = round % 2;
    std::vector<float> a(16 * 16), b(16 * 8), c(16 * 8);
    int lowest = on_cpu && round % 8 == 4 ? -133 : -100;
    for (float& x : a) x = to_float(from_float<bf16>(draw(lowest, -60, zeros))) * (round % 4 > 1 ? 0 : 1);
    for (float& x : b) x = draw(-40, 30, false);
    for (float& x : c) x = draw(-126, -90, zeros) * (1 + float(random() % 4096) / 0x1p23f);
    std::vector<float> d = chain(c, a, b);
    for (int i = 0; i < 16 * 8; i++) {
      float expected = TensorCore::of_mma().add(
          c[i], 16, [&](int k) { return a[i / 8 * 16 + k]; }, [&](int k) { return b[k * 8 + i % 8]; });
      ASSERT_EQ(d[i], expected) << "round " << round;
    }
  }
}

// The mean error of a long sum of one sign is what its roundings cost: towards zero by nearly twice as much on Ampere.
// What comes from the factors, 8 bits each, is in the exact sum too.
TEST(TensorCore, LongSumsDrift) {
  constexpr int K = 16384;
  std::mt19937 random(1);
  auto positive = [&](size_t n) {
    std::vector<float> x(n);
    for (float& value : x) value = float(128 + random() % 128) / 128;
    return x;
  };
  std::vector<float> a = positive(16 * K), b = positive(K * 8), d = chain(std::vector<float>(16 * 8), a, b);
  double drift = 0, expected = 0;
  TensorCore core = TensorCore::of_mma();
  for (int i = 0; i < 16 * 8; i++) {
    auto left = [&](int k) { return a[i / 8 * K + k]; };
    auto right = [&](int k) { return b[k * 8 + i % 8]; };
    double exact = 0;
    for (int k = 0; k < K; k++) exact += double(left(k)) * right(k);
    drift += (d[i] / exact - 1) / (16 * 8);
    expected += (core.add(0, K, left, right) / exact - 1) / (16 * 8);
  }
  printf("mean error of sums of %d products: %.2e\n", K, drift);
  EXPECT_LT(expected, -5e-5);
  EXPECT_NEAR(drift, expected, 1e-6 * std::fabs(expected));
}

}  // namespace
