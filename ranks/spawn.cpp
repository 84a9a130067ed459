#include "ranks/spawn.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/signals.h"
#include "ranks/comm.h"
#include "ranks/links.h"

namespace {

class Parent {
 public:
  explicit Parent(std::vector<pid_t> children) : children_(std::move(children)), running_(children_.size()) {}

  [[noreturn]] void watch(const sigset_t& signals) {
    for (;;) {
      // Signals do not move the deadline. Why the run ends has been printed by a rank.
      int64_t left = code_ == 0 ? 0 : deadline_ - milliseconds_now();
      if (left < 0) end(code_, "");
      timespec timeout = {left / 1000, left % 1000 * 1000000};
      int signal = code_ == 0 ? sigwaitinfo(&signals, nullptr) : sigtimedwait(&signals, nullptr, &timeout);
      if (signal == SIGCHLD) reap();
      else if (signal == SIGUSR1) pass_on(signal);
      else if (signal == SIGTSTP) pause();
      else if (signal > 0 && forwarded_ == 0) pass_on(forwarded_ = signal), forwarded_at_ = milliseconds_now();
      else if (signal > 0 && milliseconds_now() - forwarded_at_ >= SAME_REQUEST_MS) end_by(signal);
    }
  }

 private:
  void reap() {
    int status;
    for (pid_t child; (child = waitpid(-1, &status, WNOHANG)) > 0;) {
      size_t rank = 0;
      while (rank < children_.size() && children_[rank] != child) rank++;
      if (rank == children_.size()) continue;
      children_[rank] = 0;
      running_--;
      if (WIFSIGNALED(status)) {
        int signal = WTERMSIG(status);
        if (rank == 0 && signal == forwarded_) end_by(signal);  // it was not training yet, so the signal ended it
        end(1, format("rank %zu (process %d) was ended by signal %d (%s), which ends the whole run; --resume "
                      "continues training",
                      rank, int(child), signal, strsignal(signal)));
      }
      int code = WEXITSTATUS(status);
      if (code > 128) stopped_by_ = code - 128;
      else if (code != 0 && rank == 0) end(code, "");  // it has printed its error
      else if (code != 0 && code_ == 0) code_ = code, deadline_ = milliseconds_now() + 1000 * waits::PARENT;
    }
    if (running_ == 0 && code_ == 0 && stopped_by_ != 0) end_by(stopped_by_);
    if (running_ == 0) end(code_, "");
  }

  void pass_on(int signal) {
    if (children_[0] > 0) kill(children_[0], signal);
  }

  void to_all(int signal) {
    for (pid_t child : children_)
      if (child > 0) kill(child, signal);
  }

  void pause() {  // Ctrl-Z, until fg or bg
    to_all(SIGSTOP);
    raise(SIGSTOP);
    to_all(SIGCONT);
  }

  void end_children() {
    to_all(SIGKILL);
    while (wait(nullptr) > 0 || errno == EINTR) {
    }  // so that nothing of the run is in use after this process
  }

  [[noreturn]] void end(int code, const std::string& text) {
    end_children();
    if (!text.empty()) std::fprintf(stderr, "%s\n", text.c_str());
    std::fflush(stderr);
    _exit(code);
  }

  [[noreturn]] void end_by(int signal) {
    end_children();
    die_of(signal);
  }

  std::vector<pid_t> children_;  // by rank; 0: it has ended
  size_t running_;
  int forwarded_ = 0;  // the signal that asked rank 0 to stop; 0: none yet
  int64_t forwarded_at_ = 0;
  int stopped_by_ = 0;    // the signal that stopped the run, which has saved; 0: none
  int code_ = 0;          // of the first rank that failed, other than rank 0
  int64_t deadline_ = 0;  // when all are ended with that code
};

}  // namespace

static Ranks fork_ranks(int count, int timeout) {
  Ranks ranks;
  ranks.timeout = timeout;
  ranks.size = count;
  ranks.address = "127.0.0.1";
  ranks.listener = listen_at(ranks.address, 0, &ranks.port);
  ranks.job = std::to_string(getpid());
  // The parent waits for signals instead of handling them; the ranks get the former mask back.
  sigset_t signals, before;
  sigemptyset(&signals);
  for (int number : {SIGCHLD, SIGTERM, SIGINT, SIGUSR1, SIGTSTP}) sigaddset(&signals, number);
  if (!ignored(SIGHUP)) sigaddset(&signals, SIGHUP);
  sigprocmask(SIG_BLOCK, &signals, &before);
  for (int number : {SIGCHLD, SIGTERM, SIGINT, SIGUSR1}) signal(number, SIG_DFL);  // an ignored one never arrives
  std::vector<pid_t> children;
  pid_t parent = getpid();
  for (int rank = 0; rank < count; rank++) {
    pid_t child = fork();
    if (child < 0) failure("cannot start rank %d: %s", rank, std::strerror(errno));  // ranks before it end too
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);  // the parent ended before PR_SET_PDEATHSIG was set
    // In a process group of its own: Ctrl-C reaches the parent alone, which passes it on once. Without SIGTTOU a group
    // in the background may still write to the terminal.
    setpgid(0, 0);
    signal(SIGTTOU, SIG_IGN);
    signal(SIGUSR1, SIG_IGN);  // until training begins, as in main()
    sigprocmask(SIG_SETMASK, &before, nullptr);
    if (rank > 0) close(ranks.listener), ranks.listener = -1;
    ranks.rank = ranks.local = rank;
    ranks.spawned = true;
    return ranks;
  }
  close(ranks.listener);
  Parent(std::move(children)).watch(signals);
}

// The number of GPUs of this machine; on the CPU, the most ranks that can be started. A child asks CUDA and exits: a
// process that has used CUDA must not fork ranks.
static int gpus_here() {
  if (on_cpu) return 64;
  std::fflush(nullptr);
  pid_t child = fork();
  if (child == 0) {
    int found = 0;
    _exit(cudaGetDeviceCount(&found) == cudaSuccess ? std::min(found, 255) : 0);
  }
  int status = 0;
  while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return child > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

int number_of_ranks(const std::string& flag) {
  bool number = flag.find_first_not_of("0123456789") == std::string::npos && flag.size() <= 4;
  return number ? std::atoi(flag.c_str()) : 0;
}

Ranks spawn_ranks(const std::string& flag, const Ranks& started) {
  const char* gpus = flag.c_str();
  bool all = flag == "all";
  int count = number_of_ranks(flag);
  if (!all && count < 1) user_error("command line: --gpus %s is not a number of GPUs; give 1 or more, or all", gpus);
  if (count == 1 || (all && on_cpu)) return started;
  int most = gpus_here();
  if (all) count = std::max(most, 1);
  if (count == 1) return started;
  if (started.size > 1)
    user_error("command line: --gpus %s, but %s say that there are %d ranks already; omit the flag", gpus,
               started.variables.c_str(), started.size);
  if (most == 0) return started;  // device_info() will say why
  if (count > most)
    user_error("command line: --gpus %s is more than the %d %s; give at most that many, or all", gpus, most,
               on_cpu ? "ranks that the CPU build can start" : "of this machine");
  if (!Comm::built())
    user_error(
        "command line: --gpus %s needs NCCL, and this program was built without it; install NCCL and run make again",
        gpus);
  return fork_ranks(count, started.timeout);
}
