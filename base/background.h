// Runs one job at a time on a thread of its own. An exception thrown by the job is rethrown by check() or wait(), in
// the thread that calls them.
#pragma once
#include <chrono>
#include <future>
#include <utility>

class Background {
 public:
  template <class F> void start(F job) {  // the previous job must be over: wait() first
    running_ = std::async(std::launch::async, std::move(job));
  }
  void wait() {  // until the job is over
    if (running_.valid()) running_.get();
  }
  void check() {  // rethrows if the job has ended; does not wait
    if (running_.valid() && running_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) running_.get();
  }

 private:
  std::future<void> running_;  // its destructor waits too
};
