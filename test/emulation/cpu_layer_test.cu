// Features that only the CPU layer has: errors instead of hangs, orders of execution, poison, the pool, limits of the
// machine. Empty in a build for GPUs.
#include <gtest/gtest.h>
#include "kernels/gpu.cuh"
#ifdef PLUSGPT_CPU
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>
#include "base/text.h"
#include "emulation/machine.h"
#include "emulation/onednn.h"
#include "emulation/pool.h"
#include "emulation/streams.h"
#include "test/support/device.h"
#include "test/support/temp_dir.h"

namespace {

#if defined(CPU_ASAN) || defined(CPU_TSAN)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif
#if defined(CPU_ASAN)
constexpr int most_workers = 1;
#elif defined(CPU_TSAN)
constexpr int most_workers = 4;
#else
constexpr int most_workers = 1000;
#endif

struct CpuLayer : CpuLayerTest {};

std::string at_line(int line) { return "cpu_layer_test.cu:" + std::to_string(line); }

// ---- errors instead of hangs --------------------------------------------------------------------------------------

constexpr int first_line = __LINE__;
__global__ void go_wrong(int how, int* alive) {
  int t = threadIdx.x;
  struct Count {  // abandoned fibers must be unwound
    int* n;
    explicit Count(int* n_) : n(n_) { __atomic_fetch_add(n, 1, __ATOMIC_RELAXED); }
    ~Count() { __atomic_fetch_sub(n, 1, __ATOMIC_RELAXED); }
  } count(alive);
  if (how == 0 && t < 7) __syncthreads();   // first_line + 8
  if (how == 0 && t >= 7) __syncthreads();  // first_line + 9
  if (how == 1 && t == 3) return;
  if (how == 2 && t == 40) return;
  if (how == 2) warp_sync();             // first_line + 12
  if (how == 3 && t == 5) warp_sync();   // first_line + 13
  else if (how == 3) warp_ballot(true);  // first_line + 14
  if (how == 4 && t == 5) warp_sync();   // first_line + 15
  if (how == 5 && t == 9) throw std::runtime_error("thrown by a kernel");
  if (how == 6 && t == 63) throw std::runtime_error("thrown late");
  float v = shuffle_xor(1.0f, 1);  // first_line + 18
  __syncthreads();                 // first_line + 19
  if (how == 7 && v > 0) failure("thrown after barriers by %d", t);
}

TEST_F(CpuLayer, MistakesEndInErrorsThatNameKernelFileAndLine) {
  struct {
    int how;
    std::vector<std::string> parts;
  } mistakes[] = {
      {0, {"kernel go_wrong", "divergent barrier", at_line(first_line + 8), at_line(first_line + 9)}},
      {1,
       {"kernel go_wrong", "returned", "31 threads wait at shuffle_xor", at_line(first_line + 18),
        "32 threads wait at __syncthreads", at_line(first_line + 19)}},
      {2, {"kernel go_wrong", "returned", "31 threads wait at warp_sync", at_line(first_line + 12)}},
      {3, {"kernel go_wrong", "divergent warp", at_line(first_line + 13), at_line(first_line + 14)}},
      {4, {"kernel go_wrong", "divergent warp", at_line(first_line + 15), at_line(first_line + 18)}},
      {5, {"thrown by a kernel"}},
      {6, {"thrown late"}},
      {7, {"thrown after barriers by"}},
  };
  for (int threads : {1, 2})
    for (CpuOrder order : {CpuOrder::forward, CpuOrder::reverse, CpuOrder::random})
      for (auto& mistake : mistakes)
        for (int blocks : {1, 5}) {
          set_cpu_threads(threads);
          set_cpu_order(order, 3);
          int alive = 0;
          SCOPED_TRACE(format("mistake %d, order %d", mistake.how, int(order)));
          try {
            LAUNCH(go_wrong, blocks, 64, 0, nullptr, mistake.how, &alive);
            ADD_FAILURE() << "nothing was thrown";
          } catch (const std::runtime_error& e) {
            expect_has(e.what(), mistake.parts);
          }
          EXPECT_EQ(alive, 0);
          LAUNCH(go_wrong, blocks, 64, 0, nullptr, 99, &alive);  // nothing is left behind
        }
}

__global__ void wait_crosswise(float* x) {
  if (threadIdx.x < 16) __syncthreads();
  else x[threadIdx.x] = shuffle(1.0f, 0);
}
TEST_F(CpuLayer, DeadlockInsideAWarp) {
  float x[32];
  expect_has(error_of([&] { LAUNCH(wait_crosswise, dim3(1, 2), 32, 0, nullptr, x); }),
             {"wait_crosswise", "block (0, 0, 0)", "deadlock", "16 threads wait at __syncthreads",
              "16 threads wait at shuffle", "the first is (16, 0, 0)", "0 returned"});
}

__global__ void small_warp(unsigned* x) { x[threadIdx.x] = warp_ballot(true); }
TEST_F(CpuLayer, WarpOperationsNeedWholeWarps) {
  unsigned x[96];
  EXPECT_NO_THROW(LAUNCH(small_warp, 1, 64, 0, nullptr, x));
  expect_has(error_of([&] { LAUNCH(small_warp, 1, 80, 0, nullptr, x); }),
             {"has 16 threads: make the block a multiple of 32"});
}

__global__ void launch_inside() { LAUNCH(small_warp, 1, 32, 0, nullptr, nullptr); }
TEST_F(CpuLayer, NoLaunchFromAKernel) { EXPECT_THROW(LAUNCH(launch_inside, 1, 1, 0, nullptr), Failure); }

__global__ void recurse(int* out, int depth) {
  volatile char frame[1024];
  frame[0] = static_cast<char>(depth);
  if (depth > 0) recurse(out, depth - 1);
  *out += frame[0];
}
TEST_F(CpuLayer, StackOverflowNamesTheKernel) {
  if (sanitized) GTEST_SKIP() << "the sanitizers have reports of their own";
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        int out = 0;
        LAUNCH(recurse, 1, 1, 0, nullptr, &out, 1 << 20);
      },
      testing::ExitedWithCode(1), "kernel recurse: .*stack");
}

// ---- order and determinism ----------------------------------------------------------------------------------------

__global__ void take_numbers(int* numbers, int* next) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  numbers[i] = atomicAdd(next, 1);
}
std::vector<int> order_of(CpuOrder order, unsigned seed) {
  set_cpu_threads(1);
  set_cpu_order(order, seed);
  std::vector<int> numbers(7 * 96), threads(7 * 96);
  int next = 0;
  LAUNCH(take_numbers, 7, 96, 0, nullptr, numbers.data(), &next);
  EXPECT_EQ(next, 7 * 96);
  for (size_t i = 0; i < numbers.size(); ++i) threads[static_cast<size_t>(numbers[i])] = static_cast<int>(i);
  return threads;
}
TEST_F(CpuLayer, OrdersFollowTheirNames) {
  std::vector<int> forward = order_of(CpuOrder::forward, 1), reverse = order_of(CpuOrder::reverse, 1);
  EXPECT_TRUE(std::is_sorted(forward.begin(), forward.end()));
  EXPECT_TRUE(std::is_sorted(reverse.rbegin(), reverse.rend()));
  std::vector<int> one = order_of(CpuOrder::random, 1), two = order_of(CpuOrder::random, 2);
  EXPECT_NE(one, two);
  EXPECT_EQ(one, order_of(CpuOrder::random, 1));
  EXPECT_EQ(std::set<int>(one.begin(), one.end()).size(), one.size());
  std::set<int> blocks_first;
  for (unsigned seed = 1; seed < 20; ++seed) blocks_first.insert(order_of(CpuOrder::random, seed)[0] / 96);
  EXPECT_GT(blocks_first.size(), 3u) << "blocks come in another order too";
}

__global__ void mix(float* x, int rounds) {
  DYNAMIC_SHARED(float, all);
  int t = threadIdx.x, n = blockDim.x;
  float v = x[blockIdx.x * n + t];
  for (int i = 0; i < rounds; ++i) {
    v += 0.25f * shuffle_up(v, i % 7) + 0.001f * warp_sum(v);
    all[t] = v;
    __syncthreads();
    v = 0.5f * (v + all[(t * 5 + i) % n]);
    __syncthreads();
  }
  x[blockIdx.x * n + t] = v;
}
TEST_F(CpuLayer, SameBitsInAnyOrderOnAnyNumberOfThreads) {
  expect_reproducible("mix", [] {
    std::vector<float> values(9 * 160);
    for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
    DeviceArray<float> x(values);
    LAUNCH(mix, 9, 160, 160 * sizeof(float), nullptr, x, 12);
    return bits_of(x);
  });
}

__global__ void forget_to_wait(float4* out, const float4* in) {
  DYNAMIC_SHARED(float4, tile);
  cp_async16(&tile[threadIdx.x], in + threadIdx.x);
  cp_async_commit();
  out[blockIdx.x * blockDim.x + threadIdx.x] = tile[threadIdx.x];
}
__global__ void wait_for_nothing(float4* out) {
  DYNAMIC_SHARED(float4, tile);
  cp_async_commit();
  cp_async_wait<0>();
  out[blockIdx.x * blockDim.x + threadIdx.x] = tile[threadIdx.x];
}
TEST_F(CpuLayer, CopiesWithoutAWaitNeverArrive) {
  set_cpu_poison(true);
  std::vector<float4> values(32, make_float4(1, 2, 3, 4));
  DeviceArray<float4> in(values), out(96);
  LAUNCH(forget_to_wait, 3, 32, 32 * sizeof(float4), nullptr, out, in);
  for (const float4& v : out.download()) EXPECT_TRUE(std::isnan(v.x)) << v.x;
  LAUNCH(wait_for_nothing, 3, 32, 32 * sizeof(float4), nullptr, out);  // nor does it reach the next block
  for (const float4& v : out.download()) EXPECT_TRUE(std::isnan(v.x)) << v.x;
}

// ---- poison -------------------------------------------------------------------------------------------------------

thread_local int zero_in_this_thread = 0;
__global__ void read_nothing(float* out) {
  DYNAMIC_SHARED(float, all);
  __shared__ float some[32];
  int t = threadIdx.x;
  out[2 * t] = all[t];
  out[2 * t + 1] = some[t];
  __syncthreads();
  all[t] = some[t] = 5;  // the next block must not find this
}
TEST_F(CpuLayer, PoisonShowsReadsOfUnwrittenMemory) {
  set_cpu_threads(1);
  set_cpu_poison(true);
  float out[64] = {};
  LAUNCH(read_nothing, 3, 32, 32 * sizeof(float), nullptr, out);
  for (int i = 0; i < 64; i += sanitized ? 2 : 1) EXPECT_TRUE(std::isnan(out[i])) << i;
  EXPECT_EQ(zero_in_this_thread, 0);
  float* fresh = nullptr;
  CUDA_CHECK(cudaMalloc(&fresh, 400));
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(std::isnan(fresh[i]));
  CUDA_CHECK(cudaFree(fresh));
}

// ---- the pool -----------------------------------------------------------------------------------------------------

__global__ void halve(float* x) { x[blockIdx.x] *= 0.5f; }
TEST_F(CpuLayer, SubnormalsAreZeroInKernelsAlone) {
  DeviceArray<float> x({0x1p-126f, -0x1p-130f, 0x1p-125f});
  LAUNCH(halve, 3, 1, 0, nullptr, x);
  EXPECT_EQ(x.download(), (std::vector<float>{0, 0, 0x1p-126f}));
  volatile float host = 0x1p-126f;
  EXPECT_GT(host * 0.5f, 0.0f);
}

TEST_F(CpuLayer, ParallelForRunsEveryIndexOnce) {
  for (int threads : {1, 2, 3, 8, 1, 5}) {
    set_cpu_threads(threads);
    EXPECT_EQ(cpu::pool_threads(), std::min(threads, most_workers));
    for (int n : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(n));
      for (int repeat = 0; repeat < 20; ++repeat) parallel_for(n, [&](int i) { ++runs[static_cast<size_t>(i)]; });
      for (auto& r : runs) ASSERT_EQ(r, 20);
    }
  }
}

TEST_F(CpuLayer, ParallelForUsesAllThreads) {
  if (most_workers < 3) GTEST_SKIP();
  set_cpu_threads(3);
  std::atomic<int> here{0};
  parallel_for(3, [&](int) {  // ends only if three threads are inside
    ++here;
    while (here < 3) std::this_thread::yield();
  });
}

TEST_F(CpuLayer, NestedParallelForRunsInPlace) {
  set_cpu_threads(4);
  std::atomic<int> runs{0};
  parallel_for(8, [&](int) { parallel_for(8, [&](int) { ++runs; }); });
  EXPECT_EQ(runs, 64);
}

TEST_F(CpuLayer, TheErrorOfTheLowestIndexArrives) {
  for (int threads : {1, 2, 4}) {
    set_cpu_threads(threads);
    std::atomic<bool> later_one{false};  // has thrown; the lowest waits for it a while, so that it throws second
    std::string what;
    try {
      parallel_for(200, [&](int i) {
        if (i % 20 != 13) return;
        for (int ms = 0; i == 13 && threads > 1 && !later_one && ms < 200; ++ms)
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        later_one = true;
        throw std::runtime_error("index " + std::to_string(i));
      });
    } catch (const std::runtime_error& e) {
      what = e.what();
    }
    EXPECT_EQ(what, "index 13");
    EXPECT_THROW(parallel_for(1, [](int) { set_cpu_threads(2); }), Failure);
  }
}

__global__ void add_one(int* x) { x[blockIdx.x * blockDim.x + threadIdx.x] += 1; }
TEST_F(CpuLayer, SeveralHostThreadsMayLaunch) {
  std::vector<std::vector<int>> data(4, std::vector<int>(640));
  std::vector<std::thread> hosts;
  for (auto& mine : data)
    hosts.emplace_back([&] {
      for (int i = 0; i < 20; ++i) LAUNCH(add_one, 10, 64, 0, nullptr, mine.data());
    });
  for (auto& host : hosts) host.join();
  for (auto& mine : data)
    for (int v : mine) ASSERT_EQ(v, 20);
}

// ---- the machine --------------------------------------------------------------------------------------------------

struct FakeMachine {
  TempDir dir;
  std::filesystem::path root = dir.path;
  FakeMachine() { write("proc/meminfo", "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    800 kB\n"); }
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root / path).parent_path());
    write_file(root / path, text);
  }
  void expect(size_t free, size_t total) {
    cpu::Memory memory = cpu::available_memory(root);
    EXPECT_EQ(memory.free, free);
    EXPECT_EQ(memory.total, total);
  }
};

TEST_F(CpuLayer, MemoryOfTheMachineOrItsContainer) {
  FakeMachine().expect(800 << 10, 1000 << 10);
  FakeMachine v2;
  v2.write("proc/self/cgroup", "0::/user/job\n");
  v2.write("sys/fs/cgroup/user/job/memory.max", "max\n");
  v2.expect(800 << 10, 1000 << 10);
  v2.write("sys/fs/cgroup/user/memory.max", "500000\n");
  v2.write("sys/fs/cgroup/user/memory.current", "300000\n");
  v2.expect(200000, 500000);
  v2.write("sys/fs/cgroup/user/memory.stat", "anon 7\ninactive_file 100000\n");
  v2.expect(300000, 500000);
  v2.write("sys/fs/cgroup/memory.max", "900000\n");  // a parent group with a higher limit, but less free memory
  v2.write("sys/fs/cgroup/memory.current", "850000\n");
  v2.expect(50000, 500000);
}

// The groups of cgroup v1 or v2, as each kind of machine shows them: the lines of its cgroup file, and where the limits
// of the process's own group and of the one above it are found.
struct Groups {
  const char *cgroup, *mountinfo, *own, *above;
};
const Groups groups_v1[] = {
    {"9:cpu,cpuacct:/user/job\n4:memory:/user/job\n", "", "user/job", "user"},
    {"2:memory:/user/job\n1:cpu:/user/job\n0::/init.scope\n", "", "user/job", "user"},  // hybrid
    {"2:memory:/docker/ID\n1:cpu:/docker/ID\n", "", "", ""},  // in a container that sees its own group as the root
    {"2:memory:/docker/ID/job\n1:cpu:/docker/ID/job\n",
     "35 31 0:32 /docker/ID /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
     "36 31 0:33 /docker/ID /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n",
     "job", ""},
};

TEST_F(CpuLayer, LimitsOfTheFirstCgroups) {
  for (const Groups& groups : groups_v1)
    for (const char* limited : {groups.own, groups.above}) {
      FakeMachine v1;
      int cores = cpu::available_cores(v1.root);
      v1.write("proc/self/cgroup", groups.cgroup);
      v1.write("proc/self/mountinfo", groups.mountinfo);
      std::string memory = "sys/fs/cgroup/memory/" + std::string(limited) + "/memory.", cpu = "sys/fs/cgroup/cpu/";
      cpu += std::string(limited) + "/cpu.cfs_";
      v1.write(memory + "limit_in_bytes", "9223372036854771712\n");
      v1.write(memory + "usage_in_bytes", "300000\n");
      v1.expect(800 << 10, 1000 << 10);
      v1.write(memory + "limit_in_bytes", "500000\n");
      v1.expect(200000, 500000);
      v1.write(memory + "stat", "inactive_file 7\ntotal_inactive_file 100000\n");
      v1.expect(300000, 500000);
      v1.write(cpu + "quota_us", "-1\n");
      v1.write(cpu + "period_us", "100000\n");
      EXPECT_EQ(cpu::available_cores(v1.root), cores);
      v1.write(cpu + "quota_us", "50000\n");
      EXPECT_EQ(cpu::available_cores(v1.root), 1);
    }
}

TEST_F(CpuLayer, CoresOfTheMachineOrItsContainer) {
  FakeMachine machine;
  int cores = cpu::available_cores(machine.root);
  EXPECT_GE(cores, 1);
  machine.write("proc/self/cgroup", "0::/job\n");
  machine.write("sys/fs/cgroup/job/cpu.max", "max 100000\n");
  EXPECT_EQ(cpu::available_cores(machine.root), cores);
  machine.write("sys/fs/cgroup/job/cpu.max", "50000 100000\n");
  EXPECT_EQ(cpu::available_cores(machine.root), 1);
  machine.write("sys/fs/cgroup/job/cpu.max", "max 100000\n");
  machine.write("sys/fs/cgroup/cpu.max", "100000 0\n");
  EXPECT_EQ(cpu::available_cores(machine.root), cores);
}

// ---- streams whose work is held back --------------------------------------------------------------------------------

__global__ void set_value(int* x, int value) { *x = value; }
__global__ void times_ten_plus(int* x, int digit) { *x = *x * 10 + digit; }
__global__ void copy_value(int* to, const int* from) { *to = *from; }

struct Kept : CpuLayer {
  cudaStream_t a, b, with_default;  // the first two are not ordered with the default stream
  cudaEvent_t event;
  int *x, *y, *pinned;
  Kept() {
    cpu::keep_back(cpu::StreamOrder::late);
    for (cudaStream_t* stream : {&a, &b}) cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking);
    cudaStreamCreate(&with_default);
    cudaEventCreate(&event);
    cudaMalloc(&x, sizeof *x), cudaMalloc(&y, sizeof *y), cudaMallocHost(&pinned, sizeof *pinned);
    *x = *y = *pinned = 0;
  }
  ~Kept() override {
    for (cudaStream_t stream : {a, b, with_default}) cudaStreamDestroy(stream);
    cudaEventDestroy(event);
    cudaFree(x), cudaFree(y), cudaFreeHost(pinned);
    cpu::keep_back(cpu::StreamOrder::at_once);
  }
};

TEST_F(Kept, NothingRunsBeforeAWait) {
  LAUNCH(set_value, 1, 1, 0, a, x, 5);
  cudaMemcpyAsync(pinned, x, sizeof *x, cudaMemcpyDeviceToHost, a);
  LAUNCH(set_value, 1, 1, 0, b, y, 6);
  EXPECT_EQ(*pinned, 0);  // too early
  cudaStreamSynchronize(a);
  EXPECT_EQ(*pinned, 5);
  EXPECT_EQ(*y, 0);  // the other stream has not been waited for
  cudaDeviceSynchronize();
  EXPECT_EQ(*y, 6);
}

TEST_F(Kept, EventsOrderStreamsByTheRecordAtTheWait) {
  for (bool wait : {true, false}) {
    LAUNCH(set_value, 1, 1, 0, a, x, wait ? 1 : 2);
    cudaEventRecord(event, a);
    if (wait) cudaStreamWaitEvent(b, event);
    LAUNCH(set_value, 1, 1, 0, a, x, 3);
    cudaEventRecord(event, a);  // does not change earlier waits
    LAUNCH(copy_value, 1, 1, 0, b, y, x);
    cudaStreamSynchronize(b);
    EXPECT_EQ(*y, 1) << (wait ? "after the event" : "without it the old value is read");
    cudaEventSynchronize(event);
    EXPECT_EQ(*x, 3);
    *x = 1;
  }
}

TEST_F(Kept, TheDefaultStreamIsOrderedWithBlockingStreams) {
  LAUNCH(set_value, 1, 1, 0, with_default, x, 1);
  LAUNCH(times_ten_plus, 1, 1, 0, nullptr, x, 2);
  LAUNCH(times_ten_plus, 1, 1, 0, with_default, x, 3);
  LAUNCH(set_value, 1, 1, 0, a, y, 4);
  cudaStreamSynchronize(with_default);
  EXPECT_EQ(*x, 123);
  cudaMemset(y, 0, sizeof *y);
  int value = -1;
  cudaMemcpy(&value, y, sizeof *y, cudaMemcpyDeviceToHost);
  EXPECT_EQ(value, 0);
  cudaStreamSynchronize(a);
  EXPECT_EQ(*y, 4);
}

TEST_F(Kept, CopiesReadPinnedMemoryWhenTheyRunAndOtherMemoryAtOnce) {
  int pageable = 1;
  *pinned = 1;
  cudaMemcpyAsync(x, pinned, sizeof *x, cudaMemcpyHostToDevice, a);
  cudaMemcpyAsync(y, &pageable, sizeof *y, cudaMemcpyHostToDevice, a);
  *pinned = pageable = 2;  // without waiting
  cudaStreamSynchronize(a);
  EXPECT_EQ(*x, 2);
  EXPECT_EQ(*y, 1);
  LAUNCH(set_value, 1, 1, 0, a, x, 7);
  cudaMemcpyAsync(&pageable, x, sizeof *x, cudaMemcpyDeviceToHost, a);
  EXPECT_EQ(pageable, 7);
}

TEST_F(Kept, WorkOnDestroyedStreamsIsStillDone) {
  cudaEvent_t twice;
  cudaStream_t short_lived;
  float ms;
  cudaEventCreate(&twice);
  cudaStreamCreateWithFlags(&short_lived, cudaStreamNonBlocking);
  LAUNCH(set_value, 1, 1, 0, short_lived, x, 8);
  cudaEventRecord(event, short_lived);
  cudaEventRecord(twice, short_lived);
  cudaEventRecord(twice, b);
  cudaEventSynchronize(twice);
  EXPECT_EQ(*x, 0);  // its newest record is on the other stream
  EXPECT_EQ(cudaEventElapsedTime(&ms, event, twice), cudaErrorNotReady);
  cudaEventDestroy(twice);
  cudaStreamDestroy(short_lived);
  EXPECT_EQ(*x, 0);
  cudaDeviceSynchronize();
  EXPECT_EQ(*x, 8);
}

TEST_F(Kept, RandomMomentsKeepEveryRequestedOrder) {
  cpu::keep_back(cpu::StreamOrder::random);
  std::set<int> early;  // the values that the host sees without a wait
  for (int round = 0; round < 50; round++) {
    *pinned = 0;
    LAUNCH(set_value, 1, 1, 0, a, x, 1);
    cudaEventRecord(event, a);
    cudaStreamWaitEvent(b, event);
    for (int digit = 2; digit < 5; digit++) LAUNCH(times_ten_plus, 1, 1, 0, b, x, digit);
    cudaMemcpyAsync(pinned, x, sizeof *x, cudaMemcpyDeviceToHost, b);
    early.insert(*pinned);
    cudaStreamSynchronize(b);
    EXPECT_EQ(*pinned, 1234);
  }
  EXPECT_EQ(early, (std::set<int>{0, 1234}));
}

TEST_F(Kept, ErrorsComeAtTheLaunchOrAtTheWait) {
  EXPECT_THROW(LAUNCH(set_value, 0, 1, 0, a, x, 1), Failure);
  LAUNCH(go_wrong, 1, 64, 0, a, 3, y);
  EXPECT_THROW(cudaStreamSynchronize(a), Failure);
  LAUNCH(set_value, 1, 1, 0, a, x, 9);
  cudaStreamSynchronize(a);
  EXPECT_EQ(*x, 9);
}

// ---- the check of oneDNN's products

enum class Mistake { none, dense_d, dense_a, last_k, reads_beyond, writes_beyond, one_element, beta, stale };

// The product of float matrices by plain loops, or with a mistake that a library has made, where the shape allows it.
bool multiply_plainly(const cpu::Product& p, Mistake mistake, const float* a, const float* b, float* d) {
  int ldd = mistake == Mistake::dense_d ? p.n : p.ldd;
  int lda = mistake == Mistake::dense_a ? (p.trans_a ? p.m : p.k) : p.lda;
  int depth = p.k - (mistake == Mistake::last_k);
  for (int m = 0; m < p.m; m++)
    for (int n = 0; n < p.n; n++) {
      float& to = d[m * ldd + n];
      float sum = p.beta != 0 && mistake != Mistake::beta ? to : 0;
      for (int k = 0; k < depth; k++)
        sum += a[p.trans_a ? k * lda + m : m * lda + k] * b[p.trans_b ? n * p.ldb + k : k * p.ldb + n];
      if (mistake == Mistake::reads_beyond) sum += 0 * a[(p.trans_a ? p.k - 1 : m) * lda + (p.trans_a ? p.m : p.k)];
      if (mistake == Mistake::one_element && m == p.m - 1 && n == p.n / 2) sum += 1;
      if (mistake == Mistake::stale && p.beta == 0) sum += to;
      to = sum;
    }
  if (mistake == Mistake::writes_beyond) d[(p.m - 1) * ldd + p.n] = 0;
  switch (mistake) {
    case Mistake::none: return true;
    case Mistake::dense_d: return p.m == 1 || p.ldd == p.n;
    case Mistake::dense_a: return (p.trans_a ? p.k : p.m) == 1 || lda == p.lda;
    case Mistake::beta: return p.beta == 0;
    case Mistake::stale: return p.beta != 0;
    default: return false;
  }
}

// Calls f for products of all forms, with rows that are and are not dense, and sizes around oneDNN's.
template <class F> void for_products(bool bf16, F f) {
  for (int m : {1, 2, 33, 64})
    for (int n : {1, 16, 63})
      for (int k : {1, 5, 64})
        for (int form = 0; form < 64; form++) {
          bool trans_a = form & 1, trans_b = form & 2;
          int lda = (trans_a ? m : k) + (form & 4 ? 64 : 0), ldb = (trans_b ? k : n) + (form & 8 ? 192 : 0);
          int ldd = n + (form & 16 ? 63 : 0);
          SCOPED_TRACE(format("m %d n %d k %d form %d", m, n, k, form));
          f(cpu::Product{m, n, k, trans_a, trans_b, lda, ldb, ldd, bf16, form & 32 ? 1.0f : 0.0f});
        }
}

TEST(Products, EveryMistakeIsSeen) {
  for (auto mistake : {Mistake::none, Mistake::dense_d, Mistake::dense_a, Mistake::last_k, Mistake::reads_beyond,
                       Mistake::writes_beyond, Mistake::one_element, Mistake::beta, Mistake::stale}) {
    SCOPED_TRACE(int(mistake));
    for_products(false, [&](const cpu::Product& p) {
      bool right = false;
      auto multiply = [&](const void* a, const void* b, float* d) {
        right = multiply_plainly(p, mistake, static_cast<const float*>(a), static_cast<const float*>(b), d);
      };
      bool found = cpu::computes(p, multiply);
      EXPECT_EQ(found, right);
    });
  }
}

TEST(Products, OfOnednnAreRightOrRefused) {
  if (cpu::onednn_kernels().empty()) GTEST_SKIP() << "oneDNN has no fast kernels for this CPU";
  for (bool bf16 : {false, true})
    for_products(bf16, [](const cpu::Product& p) {
      bool multiplied = true;
      auto multiply = [&](const void* a, const void* b, float* d) { multiplied = multiply_by_onednn(p, a, b, d); };
      bool right = cpu::computes(p, multiply);
      EXPECT_TRUE(right || !multiplied);
    });
}

}  // namespace
#endif
