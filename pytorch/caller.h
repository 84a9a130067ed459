// A call on the CPU runs in the thread of Python that makes it, and gives back what it changes of that thread: oneDNN
// wants one thread of OpenMP (emulation/onednn.cpp). The pool restores what happens to subnormal numbers. A handler of
// a signal may run on the stack of a kernel's thread, 128 KB.
#pragma once
#include <pthread.h>
#include <signal.h>

#include <mutex>

#include "kernels/gpu.cuh"

#if HAVE_ONEDNN
extern "C" int omp_get_max_threads();
extern "C" void omp_set_num_threads(int);
#else
inline int omp_get_max_threads() { return 1; }
inline void omp_set_num_threads(int) {}
#endif

class CallOfThread {
 public:
  CallOfThread() : one_at_a_time_(calls()), openmp_threads_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~CallOfThread() { omp_set_num_threads(openmp_threads_); }
  CallOfThread(const CallOfThread&) = delete;

 private:
  // A call uses all threads of the pool. fork() waits for the end of a call, and its child starts a pool of its own.
  static std::mutex& calls() {
    static std::mutex* mutex = [] {
      pthread_atfork([] { calls().lock(); }, [] { calls().unlock(); }, [] { calls().unlock(); });
      return new std::mutex;
    }();
    return *mutex;
  }

  std::lock_guard<std::mutex> one_at_a_time_;
  int openmp_threads_;
};

// On the CPU. Threads that start inherit blocked signals: Python's handlers run in Python's threads.
inline void set_threads_without_signals(int threads) {
  if constexpr (!on_cpu) return;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  set_cpu_threads(threads);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}
