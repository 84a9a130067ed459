// The TCP connections that hold the ranks of a run together: one from every other rank to rank 0. NCCL moves the
// tensors; the links carry one text before training (NCCL's id), and then tell every rank when the run ends and why.
//
// Connecting. Rank 0 listens at Ranks::address and port until all ranks are connected. Another rank retries until it is
// accepted: it sends its number, the number of ranks and the job's name, and rank 0 answers with its timeout,
// which from then on counts for that rank too. Rank 0 closes connections of other programs and other jobs.
//
// Messages: one byte of kind, four bytes of length, at most 64 KiB of text.
//   'i'  rank 0 -> all      the text of share()
//   'a'  both ways          a heartbeat, nine times within the timeout
//   'd'  both ways          this rank's program has ended with code 0
//   'f'  a rank -> rank 0   this rank has failed: its exit code and error text
//   's'  rank 0 -> all      exit at once with this code
//
// Ends. A thread of every rank reads the messages and sends the heartbeats. It ends the process itself, whatever the
// main thread is waiting for:
//   - A rank fails: it tells rank 0, which prints the error, tells all, and exits with that rank's code.
//   - A connection breaks, or nothing comes over it for as long as the timeout: that rank has died. Rank 0 prints
//     which one it was, tells all, and exits with 1. If rank 0 has died, the others exit with 1, and at most one on
//     each machine prints it.
//   - A rank has ended with code 0, but the rank at the other end of the link has not by the end of the timeout: they
//     were started differently, and the run ends with 1.
// The connections to a machine that disappears break within LOST_MACHINE. A process that is stopped does not count the
// others' silence while it is stopped, so a whole job can be stopped and continued.
#pragma once
#include <atomic>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ranks/ranks.h"

// Several processes notice that a run is broken, and the one that knows most should say why. Each of the others waits
// this many seconds, in which that one ends it, before it prints what it knows and ends the run itself.
namespace waits {
constexpr int SILENT_RANK = 0;    // a rank without heartbeats: no process knows more
constexpr int LOST_RANK = 1;      // a broken connection: the parent of --gpus has seen how that rank ended
constexpr int FAILED_RANK = 2;    // another rank's error: rank 0 meets most errors itself, and prints them once
constexpr int NCCL_ERROR = 5;     // most follow from the end of a rank, which the links report
constexpr int PARENT = 5;         // a rank's exit code: rank 0 prints that rank's error
constexpr int UNANSWERED = 10;    // this rank's error: rank 0 prints it, and ends this rank
constexpr int LOST_MACHINE = 30;  // TCP waits that long for an answer; NCCL's error is printed before that
static_assert(SILENT_RANK < LOST_RANK && LOST_RANK < FAILED_RANK && FAILED_RANK < NCCL_ERROR && FAILED_RANK < PARENT &&
              NCCL_ERROR < UNANSWERED && PARENT < UNANSWERED && NCCL_ERROR < LOST_MACHINE);
}  // namespace waits

class Links {
 public:
  explicit Links(const Ranks& ranks);  // returns once this rank is connected, at rank 0 once all are; else a failure
  ~Links();
  Links(const Links&) = delete;

  std::string share(const std::string& text);  // rank 0's text, at every rank; to be called once
  // Calls health() about once a second; an empty function stops that. A text other than "" is an error: the run ends.
  void watch(std::function<std::string()> health);

  // The end of this rank's program: code 0, or the code and text of an error. Rank 0 prints the text (another rank does
  // only if rank 0 does not answer). Returns `code` if the process has not ended by then. Ranks that
  // end with 0 must do so within the timeout of each other.
  int end(int code, const std::string& text);

 private:
  struct Peer {
    int rank, socket;
    bool ended = false;  // its program has ended with code 0
    double silence = 0;  // seconds since its last message
    std::string received = {};
  };
  void accept_ranks(const Ranks& ranks);
  void connect_to_rank_0(const Ranks& ranks);
  void run();
  void read_from(Peer& peer);
  void handle(Peer& peer, char kind, const std::string& text);
  void count_silence(double seconds);
  [[noreturn]] void died(const Peer& peer, const std::string& reason, int seconds);
  void send(const Peer& peer, char kind, const std::string& text);
  [[noreturn]] void stop_run(int code, const std::string& text, int seconds);

  int rank_, local_, timeout_;
  std::vector<Peer> peers_;  // at rank 0: all others; at another rank: rank 0
  int wake_[2];              // a pipe that ends the thread
  std::mutex sending_, health_lock_;
  std::function<std::string()> health_;
  std::promise<std::string> shared_;
  std::atomic<bool> ending_{false};  // one of the two threads is already ending this process
  std::atomic<bool> done_{false};    // this rank's program has ended with code 0
  std::thread thread_;
};

// A socket that listens at `port` (0: any free port; *chosen, unless nullptr, is set to its number): on this machine's
// own interface if the address is 127.0.0.1, ::1 or localhost, else on all of them. A failure if that is not possible.
int listen_at(const std::string& address, int port, int* chosen);
