#include "emulation/checks.h"
#include <link.h>
#include <signal.h>
#include <unistd.h>
#include <cstdio>
#include <cstring>
#include <span>

namespace cpu {

// clang's runtimes keep their own thread-locals there; in a library the executable, its signals too, is another's
#if defined(CPU_ASAN) || defined(CPU_TSAN) || defined(PLUSGPT_LIBRARY)
void poison_static(std::vector<char>&) {}
void restore_static(std::vector<char>&) {}
OverflowWatch::OverflowWatch(const std::vector<Stack>*, const char* const*) {}
OverflowWatch::~OverflowWatch() {}
#else

namespace {

// .tbss of the executable for the calling OS thread.
std::span<char> static_shared() {
  std::span<char> range;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* result) {
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& segment = info->dlpi_phdr[i];
          if (segment.p_type != PT_TLS || !info->dlpi_tls_data) continue;
          *static_cast<std::span<char>*>(result) = {static_cast<char*>(info->dlpi_tls_data) + segment.p_filesz,
                                                    segment.p_memsz - segment.p_filesz};
        }
        return 1;  // the executable comes first, and only it matters
      },
      &range);
  return range;
}

// In .tdata (see `self`).
__thread struct {
  const std::vector<Stack>* stacks;
  const char* const* kernel;
  int nonzero;
} watched = {nullptr, nullptr, 1};

void on_fault(int, siginfo_t* info, void*) {
  if (watched.stacks)
    for (const Stack& stack : *watched.stacks)
      if (overflowed(stack, info->si_addr)) {
        char text[512];
        int length = snprintf(text, sizeof text,
                              "kernel %s: a thread needs more stack than the CPU layer gives it (%zu bytes): make its "
                              "local arrays smaller\n",
                              *watched.kernel, static_cast<size_t>(stack.top - stack.bottom));
        (void)!write(STDERR_FILENO, text, static_cast<size_t>(length));
        _exit(1);
      }
  signal(SIGSEGV, SIG_DFL);  // another fault: it will repeat at once and end the process
}

}  // namespace

void poison_static(std::vector<char>& saved) {
  std::span<char> range = static_shared();
  saved.assign(range.begin(), range.end());
  memset(range.data(), 0xff, range.size());
}

void restore_static(std::vector<char>& saved) {
  memcpy(static_shared().data(), saved.data(), saved.size());
  saved.clear();
}

OverflowWatch::OverflowWatch(const std::vector<Stack>* stacks, const char* const* kernel) : signal_stack_(64 << 10) {
  watched.stacks = stacks;
  watched.kernel = kernel;
  stack_t stack{};
  stack.ss_sp = signal_stack_.data();
  stack.ss_size = signal_stack_.size();
  sigaltstack(&stack, nullptr);
  struct sigaction current;
  if (sigaction(SIGSEGV, nullptr, &current) != 0 || current.sa_handler != SIG_DFL) return;
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, nullptr);
}

OverflowWatch::~OverflowWatch() {
  watched.stacks = nullptr;
  stack_t off{};
  off.ss_flags = SS_DISABLE;
  sigaltstack(&off, nullptr);
}
#endif

}  // namespace cpu
