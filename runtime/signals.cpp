#include "runtime/signals.h"

#include <signal.h>

#include <atomic>
#include <initializer_list>

// A handler may run in any thread, between any two instructions: it sets these and does nothing else.
static std::atomic<bool> stopping{false}, saving{false};
static_assert(std::atomic<bool>::is_always_lock_free);

static void handle(int signal) {
  if (signal == SIGUSR1) {
    saving = true;
  } else if (stopping.exchange(true)) {
    ::signal(signal, SIG_DFL);
    ::raise(signal);  // takes effect when this handler returns
  }
}

void watch_signals() {
  struct sigaction action = {};
  action.sa_handler = handle;
  action.sa_flags = SA_RESTART;  // system calls under way go on
  sigemptyset(&action.sa_mask);
  for (int signal : {SIGTERM, SIGINT, SIGUSR1}) sigaction(signal, &action, nullptr);
}

bool stop_requested() { return stopping; }
bool save_requested() { return saving.exchange(false); }
