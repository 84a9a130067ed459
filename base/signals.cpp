#include "base/signals.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <vector>

#include "base/error.h"

// The handler interrupts a thread that may be inside any function of a library: it only sets these.
static std::atomic<bool> saving{false};
static std::atomic<int64_t> stopping_since{0};  // 0: not asked yet
static std::atomic<int> stopping_by{0};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);

int64_t milliseconds_now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);  // a handler may call this
  return int64_t(now.tv_sec) * 1000 + now.tv_nsec / 1000000;
}

static void handle(int signal) {
  int64_t now = milliseconds_now(), since = 0;
  if (signal == SIGUSR1) {
    saving = true;
  } else if (stopping_since.compare_exchange_strong(since, now)) {
    stopping_by = signal;
    ::signal(SIGPIPE, SIG_IGN);  // the reader of the output may have ended too; the run must still save
  } else if (now - since >= SAME_REQUEST_MS) {
    ::signal(signal, SIG_DFL);
    ::raise(signal);  // takes effect when this handler returns
  }
}

bool ignored(int signal) {
  struct sigaction action = {};
  sigaction(signal, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

// Without AddressSanitizer, which is not ready for a variable on the stack before constructors have run.
__attribute__((no_sanitize("address"))) static void set_mask(int how) {
  sigset_t watched;
  sigemptyset(&watched);
  for (int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) sigaddset(&watched, signal);
  pthread_sigmask(how, &watched, nullptr);
}
void block_signals() { set_mask(SIG_BLOCK); }
void admit_signals() { set_mask(SIG_UNBLOCK); }

void watch_signals() {
  struct sigaction action = {};
  action.sa_handler = handle;
  action.sa_flags = SA_RESTART;  // interrupted system calls continue
  sigemptyset(&action.sa_mask);
  sigaction(SIGUSR1, &action, nullptr);
  for (int signal : STOP_SIGNALS)
    if (!ignored(signal) || signal == SIGINT || signal == SIGTERM) sigaction(signal, &action, nullptr);
  block_signals();
  pthread_t thread;
  int error = pthread_create(
      &thread, nullptr,
      [](void*) -> void* {
        for (admit_signals();;) pause();
      },
      nullptr);
  if (error != 0) failure("the thread that waits for signals could not be started: %s", std::strerror(error));
  pthread_detach(thread);
}

int stop_signal() { return stopping_by; }
void stop_by(int signal) {
  if (!stop_requested()) handle(signal);
}
bool save_requested() { return saving.exchange(false); }

void die_of(int signal_number) {
  ::signal(signal_number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::raise(signal_number);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  _exit(128 + signal_number);
}
