// Device arrays for tests, on both machines: freed by the destructor, filled with NaN until written, and guarded: 256
// bytes before and after the elements must be unchanged at the end (not under ASan, which sees more than guards).
// expect_reproducible() repeats a computation, on the CPU layer with other numbers of threads and in other orders.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/gpu.cuh"

#if defined(__SANITIZE_ADDRESS__)
inline constexpr size_t GUARD = 0;
#else
inline constexpr size_t GUARD = 256;  // bytes; keeps cudaMalloc's alignment
#endif

template <class T> class DeviceArray {
 public:
  explicit DeviceArray(size_t n) : n_(n) {
    CUDA_CHECK(cudaMalloc(&base_, bytes() + 2 * GUARD + 1));  // + 1: an empty array still has an address
    CUDA_CHECK(cudaMemset(base_, 0xA5, bytes() + 2 * GUARD + 1));
    poison();
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { upload(values); }
  DeviceArray(DeviceArray&& other) noexcept : base_(std::exchange(other.base_, nullptr)), n_(other.n_) {}
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(n_, other.n_);
    return *this;
  }
  ~DeviceArray() {
    if (!base_) return;
    EXPECT_TRUE(guards_intact()) << "a kernel wrote outside an array of " << n_ << " elements";
    cudaFree(base_);
  }

  T* get() const { return reinterpret_cast<T*>(base_ + GUARD); }
  operator T*() const { return get(); }
  size_t size() const { return n_; }
  size_t bytes() const { return n_ * sizeof(T); }

  void upload(const std::vector<T>& values) {
    ASSERT_EQ(values.size(), n_);
    if (n_) CUDA_CHECK(cudaMemcpy(get(), values.data(), bytes(), cudaMemcpyHostToDevice));
  }
  std::vector<T> download() const {
    std::vector<T> values(n_);
    CUDA_CHECK(cudaDeviceSynchronize());
    if (n_) CUDA_CHECK(cudaMemcpy(values.data(), get(), bytes(), cudaMemcpyDeviceToHost));
    return values;
  }
  // All bits one: NaN in every floating-point type, -1 in int.
  void poison() {
    if (n_) CUDA_CHECK(cudaMemset(get(), 0xFF, bytes()));
  }
  bool guards_intact() const {
    unsigned char guard[2 * GUARD + 1];
    cudaDeviceSynchronize();
    if (GUARD) cudaMemcpy(guard, base_, GUARD, cudaMemcpyDeviceToHost);
    cudaMemcpy(guard + GUARD, base_ + GUARD + bytes(), GUARD + 1, cudaMemcpyDeviceToHost);
    for (unsigned char byte : guard)
      if (byte != 0xA5) return false;
    return true;
  }

 private:
  char* base_ = nullptr;
  size_t n_ = 0;
};

// The bits of any number of arrays, here or on the device, one after the other.
template <class... Array> std::vector<unsigned char> bits_of(const Array&... arrays) {
  std::vector<unsigned char> bits;
  auto append = [&](const auto& values) {
    auto bytes = reinterpret_cast<const unsigned char*>(values.data());
    bits.insert(bits.end(), bytes, bytes + values.size() * sizeof(values[0]));
  };
  auto append_array = [&](const auto& array) {
    if constexpr (requires { array.download(); }) append(array.download());
    else append(array);
  };
  (append_array(arrays), ...);
  return bits;
}

// Leaves threads, order and memory of the CPU layer as they were.
struct CpuLayerTest : testing::Test {
  ~CpuLayerTest() override {
    set_cpu_threads(0);
    set_cpu_order(CpuOrder::forward);
    set_cpu_poison(false);
  }
};

inline bool lacks_hopper() { return !on_cpu && device_properties().major != 9; }
struct HopperTest : CpuLayerTest {
  void SetUp() override {
    if (lacks_hopper()) GTEST_SKIP() << "needs a GPU of compute capability 9.0";
    set_cpu_poison(true);
  }
};

// run() starts from fresh inputs and returns bits_of() its outputs.
inline void expect_reproducible(const std::string& name, const std::function<std::vector<unsigned char>()>& run) {
  struct Restore {
    ~Restore() { set_cpu_threads(0), set_cpu_order(CpuOrder::forward); }
  } restore;
  set_cpu_threads(1);
  std::vector<unsigned char> first = run();
  for (int threads : {2, 3}) {
    set_cpu_threads(threads);
    EXPECT_TRUE(run() == first) << name << ": other bits with " << threads << " CPU threads";
  }
  set_cpu_order(CpuOrder::reverse);
  EXPECT_TRUE(run() == first) << name << ": other bits in reverse order of blocks and lanes";
  for (unsigned seed : {1, 2}) {
    set_cpu_order(CpuOrder::random, seed);
    EXPECT_TRUE(run() == first) << name << ": other bits in random order, seed " << seed;
  }
}

// Normal random numbers, the same for one seed on every machine with the same standard library.
template <class T> std::vector<T> random_normal(size_t n, unsigned seed, float scale = 1, float mean = 0) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<T> values(n);
  for (T& x : values) x = from_float<T>(mean + scale * normal(generator));
  return values;
}

inline std::vector<int> random_ints(size_t n, unsigned seed, int limit) {
  std::mt19937 generator(seed);
  std::vector<int> values(n);
  for (int& x : values) x = int(generator() % unsigned(limit));
  return values;
}
