#include "emulation/pool.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>
#include "base/error.h"
#include "emulation/blocks.h"
#include "emulation/fiber.h"
#include "emulation/machine.h"
#include "emulation/processor.h"

namespace cpu {
namespace {

thread_local int inside_task = 0;

struct Pool {
  // The job under way. `gate` counts the helpers inside it; its top bit closes it to newcomers: a helper that wakes
  // up too late finds the gate closed, or the next job's gate open, and no job waits for it.
  Task task = nullptr;
  void* context = nullptr;
  int64_t chunk = 1;
  std::atomic<int64_t> next{0};   // first index not yet dealt
  std::atomic<int64_t> limit{0};  // indices from here on need not start: the end, or the lowest index that threw
  std::exception_ptr error;
  std::mutex error_mutex;
  static constexpr uint32_t closed = 1u << 31;
  std::atomic<uint32_t> gate{closed}, generation{0};
  std::atomic<int> inside{0};  // helpers that take part, in TSan builds

  int threads = 0;  // workers, the caller included; 0: not started
  pid_t owner = 0;
  std::atomic<int> started{0};
  std::atomic<bool> stop{false};
  std::vector<pthread_t> helpers;
  std::mutex host_mutex;  // one job at a time

  ~Pool() { join(); }
  void start(int n);
  void join();
  void work(int worker, int workers);
  void help();
  void run(int64_t n, Task, void* context);
};

Pool pool;

constexpr int patience = 2000;  // pauses before a thread sleeps: about 20 us, more than between two launches

void Pool::work([[maybe_unused]] int worker, [[maybe_unused]] int workers) {
  inside_task = 1;
  // A processor's arithmetic with subnormal numbers, below 2^-126, is 100 times slower, and a model that learns badly
  // is full of them.
  FloatModes here(float_modes() | subnormals_are_zero);
  auto guarded = [&](int64_t i) {
    try {
      task(context, i);
    } catch (...) {
      std::lock_guard lock(error_mutex);
      if (i < limit) limit = i, error = std::current_exception();
    }
  };
#ifdef CPU_TSAN  // neighbours always go to different workers, so that races between blocks show with any timing
  for (int64_t i = worker; i < limit; i += workers) guarded(i);
#else
  for (int64_t begin; (begin = next.fetch_add(chunk, std::memory_order_relaxed)) < limit;)
    for (int64_t i = begin; i < begin + chunk && i < limit.load(std::memory_order_relaxed); ++i) guarded(i);
#endif
  inside_task = 0;
}

void Pool::help() {
#ifdef CPU_TSAN  // a helper that leaves must not be ordered before one that joins later: that would hide races
  constexpr auto enter_order = std::memory_order_relaxed;
#else
  constexpr auto enter_order = std::memory_order_acq_rel;
#endif
  int worker = ++started;
  for (uint32_t seen = 0;;) {
    for (int spins = 0; generation.load(std::memory_order_acquire) == seen; ++spins) {
      if (spins < patience) relax();
      else generation.wait(seen, std::memory_order_acquire);
    }
    seen = generation.load(std::memory_order_acquire);
    if (stop) return;
    if (!(gate.fetch_add(1, enter_order) & closed)) {
      inside.fetch_add(1, std::memory_order_release);
      work(worker, threads);
    }
    gate.fetch_sub(1, std::memory_order_acq_rel);
    gate.notify_all();
  }
}

void Pool::run(int64_t n, Task new_task, void* new_context) {
  task = new_task, context = new_context;
  chunk = std::max<int64_t>(1, n / (threads * 32));
  next = 0, limit = n, inside = 0;
  bool alone = n < 2 || threads == 1;
  if (!alone) {
    gate.fetch_and(~closed, std::memory_order_acq_rel);
    generation.fetch_add(1, std::memory_order_acq_rel);
    generation.notify_all();
#ifdef CPU_TSAN  // every worker has a share
    while (inside.load(std::memory_order_acquire) != threads - 1) sched_yield();
#endif
  }
  work(0, alone ? 1 : threads);
  if (!alone) {
    gate.fetch_or(closed, std::memory_order_acq_rel);
    uint32_t state;
    for (int spins = 0; (state = gate.load(std::memory_order_acquire)) != closed; ++spins) {
      if (spins < patience) relax();
      else gate.wait(state, std::memory_order_acquire);
    }
  }
  if (error) std::rethrow_exception(std::exchange(error, nullptr));
}

void Pool::start(int n) {
  threads = n;
  owner = getpid();
  stop = false;
  started = 0;
  generation = 0;
  gate = closed;  // in a forked child a helper that it has not may have been passing
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 64 << 20);  // it also holds the static __shared__ variables of all kernels
  int status = 0;
  while (static_cast<int>(helpers.size()) < n - 1 && status == 0) {
    pthread_t helper;
    status = pthread_create(
        &helper, &attributes,
        [](void* self) -> void* {
          static_cast<Pool*>(self)->help();
          return nullptr;
        },
        this);
    if (status == 0) helpers.push_back(helper);
  }
  pthread_attr_destroy(&attributes);
  if (status == 0) return;
  join();
  failure("cpu: %d threads could not be started: %s; set a lower number of threads", n, strerror(status));
}

void Pool::join() {
  stop = true;
  generation.fetch_add(1);
  generation.notify_all();
  if (getpid() == owner)  // a forked child has no helpers
    for (pthread_t helper : helpers) pthread_join(helper, nullptr);
  helpers.clear();
  threads = 0;
}

int effective(int n) {
#ifdef CPU_ASAN
  return (void)n, 1;
#else
  if (n < 1) n = available_cores();
#ifdef CPU_TSAN
  n = std::min(n, 4);  // TSan can follow about 8000 threads, and a worker may need 1024
#endif
  return n;
#endif
}

}  // namespace

int pool_threads() {
  if (inside_task) return pool.threads;
  std::lock_guard lock(pool.host_mutex);
  return pool.threads ? pool.threads : effective(0);
}

void set_pool_threads(int n) {
  if (inside_task) failure("cpu: set_cpu_threads was called from inside a kernel or a pool task");
  std::lock_guard lock(pool.host_mutex);
  if (pool.threads == effective(n) && pool.owner == getpid()) return;
  pool.join();
  pool.start(effective(n));
}

int64_t most_blocks = INT64_MAX;

void pool_run(int64_t n, Task task, void* context) {
  if (inside_task) {
    for (int64_t i = 0; i < n; ++i) task(context, i);
    return;
  }
  std::lock_guard lock(pool.host_mutex);
  if (pool.threads == 0) pool.start(effective(0));
  pool.run(std::min(n, most_blocks), task, context);
}

}  // namespace cpu
