#include "cpu/pool.h"
#include <pthread.h>
#include <atomic>
#include <exception>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>
#include "cpu/fiber.h"
#include "cpu/machine.h"
#include "runtime/error.h"

namespace cpu {
namespace {

thread_local bool inside_task = false;

struct Pool {
  // The job. `gate` counts the helpers inside it; the top bit says that it is closed to newcomers.
  static constexpr uint32_t closed = 1u << 31;
#ifdef CPU_TSAN  // a helper that leaves must not be ordered before one that comes later: that would hide races
  static constexpr auto enter_order = std::memory_order_relaxed;
#else
  static constexpr auto enter_order = std::memory_order_acq_rel;
#endif
  Task task = nullptr;
  void* context = nullptr;
  int64_t count = 0, chunk = 1;
  std::atomic<int64_t> next{0}, limit{0};  // limit: nothing from here on is worth starting (count, or the lowest error)
  std::exception_ptr error;
  std::mutex error_mutex;
  std::atomic<uint32_t> gate{closed}, generation{0};
  std::atomic<int> joined{0};
  std::atomic<bool> stop{false};
  std::vector<pthread_t> helpers;
  std::mutex host_mutex;  // one job at a time
  int threads = 0;

  ~Pool() { join(); }
  void start(int n);
  void join();
  void work(int worker, int stride);
  void help(int worker);
  void run(int64_t n, Task, void* context);
};

Pool pool;

void relax() { __builtin_ia32_pause(); }

void Pool::work(int worker, int stride) {
  inside_task = true;
  auto guarded = [&](int64_t i) {
    try {
      task(context, i);
    } catch (...) {
      std::lock_guard lock(error_mutex);
      if (i < limit) limit = i, error = std::current_exception();
    }
  };
#ifdef CPU_TSAN
  // Neighbours always go to different workers, so that races between blocks show whatever the timing.
  for (int64_t i = worker; i < limit; i += stride) guarded(i);
#else
  (void)worker, (void)stride;
  for (int64_t begin; (begin = next.fetch_add(chunk, std::memory_order_relaxed)) < limit;)
    for (int64_t i = begin; i < begin + chunk && i < limit.load(std::memory_order_relaxed); ++i) guarded(i);
#endif
  inside_task = false;
}

void Pool::help(int worker) {
  for (uint32_t seen = 0;;) {
    for (int spins = 0; generation.load(std::memory_order_acquire) == seen; ++spins) {
      if (spins < 2000) relax();
      else generation.wait(seen, std::memory_order_acquire);
    }
    seen = generation.load(std::memory_order_acquire);
    if (stop) return;
    if (!(gate.fetch_add(1, enter_order) & closed)) {
      joined.fetch_add(1, std::memory_order_release);
      work(worker, threads);
    }
    gate.fetch_sub(1, std::memory_order_acq_rel);
    gate.notify_all();
  }
}

void Pool::run(int64_t n, Task task_, void* context_) {
  task = task_, context = context_, count = n, error = nullptr;
  next = 0, limit = n, joined = 0;
  chunk = std::max<int64_t>(1, n / (threads * 32));
  bool shared = n > 1 && threads > 1;
  if (shared) {
    gate.fetch_and(~closed, std::memory_order_acq_rel);
    generation.fetch_add(1, std::memory_order_acq_rel);
    generation.notify_all();
#ifdef CPU_TSAN
    while (joined.load(std::memory_order_acquire) != threads - 1) relax();
#endif
  }
  work(0, shared ? threads : 1);
  if (shared) {
    uint32_t inside = gate.fetch_or(closed, std::memory_order_acq_rel);
    for (int spins = 0; (inside = gate.load(std::memory_order_acquire)) != closed; ++spins) {
      if (spins < 2000) relax();
      else gate.wait(inside, std::memory_order_acquire);
    }
  }
  if (error) std::rethrow_exception(std::exchange(error, nullptr));
}

void Pool::start(int n) {
  threads = n;
  stop = false;
  struct Start { Pool* pool; int worker; };
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 64 << 20);  // static __shared__ variables of all kernels live there too
  for (int worker = 1; worker < n; ++worker) {
    pthread_t helper;
    int status = pthread_create(&helper, &attributes, [](void* start) -> void* {
      Start s = *static_cast<Start*>(start);
      delete static_cast<Start*>(start);
      s.pool->help(s.worker);
      return nullptr;
    }, new Start{this, worker});
    if (status != 0) {
      pthread_attr_destroy(&attributes);
      threads = worker;
      failure("cpu: could not start worker %d of %d: %s. Lower the number of threads.", worker + 1, n, strerror(status));
    }
    helpers.push_back(helper);
  }
  pthread_attr_destroy(&attributes);
}

void Pool::join() {
  stop = true;
  generation.fetch_add(1);
  generation.notify_all();
  for (pthread_t helper : helpers) pthread_join(helper, nullptr);
  helpers.clear();
  generation = 0;
  threads = 0;
}

int effective(int n) {
#ifdef CPU_ASAN
  return (void)n, 1;
#else
  return n < 1 ? available_cores() : n;
#endif
}

}  // namespace

int pool_threads() {
  std::lock_guard lock(pool.host_mutex);
  return pool.threads ? pool.threads : effective(0);
}

void set_pool_threads(int n) {
  if (inside_task) failure("cpu: set_cpu_threads was called from inside a kernel or a pool task.");
  std::lock_guard lock(pool.host_mutex);
  if (pool.threads == effective(n)) return;
  pool.join();
  pool.start(effective(n));
}

void pool_run(int64_t n, Task task, void* context) {
  if (inside_task) {
    for (int64_t i = 0; i < n; ++i) task(context, i);
    return;
  }
  std::lock_guard lock(pool.host_mutex);
  if (pool.threads == 0) pool.start(effective(0));
  pool.run(n, task, context);
}

}  // namespace cpu
