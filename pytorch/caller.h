// The thread that makes all calls of the library on the CPU. A call changes what belongs to its thread: kernels run on
// stacks of their own, keep static shared memory in thread-local variables, flush subnormal numbers to zero, and set
// OpenMP's number of threads. So no thread of Python makes one. This thread has all signals blocked, as have the pool's
// threads, which it starts: Python's handlers run in Python's threads.
#pragma once
#include <pthread.h>
#include <signal.h>

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

class Caller {
 public:
  // Runs f and throws what it throws. One call at a time: a call uses all threads.
  static void run(const std::function<void()>& f) { of_process()->run_one(f); }

 private:
  // Never destroyed, as its thread never ends. fork() waits for a call under way; a forked child has no such thread and
  // gets another Caller.
  static Caller*& of_process() {
    static Caller* caller = [] {
      pthread_atfork([] { of_process()->calls_.lock(); }, [] { of_process()->calls_.unlock(); },
                     [] { of_process() = new Caller; });
      return new Caller;
    }();
    return caller;
  }

  void run_one(const std::function<void()>& f) {
    std::lock_guard one_at_a_time(calls_);
    if (!started_) start();
    std::unique_lock lock(mutex_);
    work_ = &f;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !work_; });
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

  void start() {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([this] { serve(); }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    started_ = true;
  }

  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return work_; });
      try {
        (*work_)();
      } catch (...) {
        error_ = std::current_exception();
      }
      work_ = nullptr;
      changed_.notify_all();
    }
  }

  std::mutex calls_, mutex_;
  std::condition_variable changed_;
  const std::function<void()>* work_ = nullptr;
  std::exception_ptr error_;
  bool started_ = false;
};
