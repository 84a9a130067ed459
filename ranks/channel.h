// What holds the ranks of a run together: a TCP connection of every rank to rank 0. Before training it carries one
// text (NCCL's id); afterwards it says who is still there. A thread of every rank watches it:
//   a rank that has died, or whose machine has, ends the run: rank 0 names it, tells the others, and all exit with 1;
//   a rank that fails tells rank 0 why; rank 0 says it, and all exit with that rank's code;
//   of rank 0's death the others say so, once on every machine;
//   a rank that is silent counts as dead: one that was stopped, and one whose program has ended before the others'.
// No rank waits longer than half a minute for a dead one, nor longer than Ranks::patience for a silent one, whatever its
// main thread is doing: the watching thread, which also gives the signs of life, ends the process.
// Strangers at the port are dropped; nothing that is received sizes anything unchecked.
#pragma once
#include <atomic>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ranks/ranks.h"

class Channel {
 public:
  explicit Channel(const Ranks& ranks);  // returns when all ranks have come; a failure when the patience ends
  ~Channel();
  Channel(const Channel&) = delete;

  std::string share(const std::string& text);  // rank 0's, at every rank; once
  // Asked every second: "" while all is well. Anything else ends the run.
  void watch(std::function<std::string()> health);

  // The end of this rank's program: code 0, or why not. Rank 0 prints the text. Returns the exit code, if it returns.
  // Ranks that end with 0 do so within the patience.
  int end(int code, const std::string& text);

 private:
  struct Peer {
    int rank, socket;
    bool ended = false;   // it has said that it is done
    double silence = 0;   // seconds since it has said anything
    std::string received = {};
  };
  void gather(const Ranks& ranks);
  void connect(const Ranks& ranks);
  void run();
  void read_from(Peer& peer);
  void handle(Peer& peer, char kind, const std::string& text);
  void count_silence(double seconds);
  [[noreturn]] void died(const Peer& peer, const std::string& reason, int seconds);
  void send(const Peer& peer, char kind, const std::string& text);
  [[noreturn]] void stop_run(int code, const std::string& text, int seconds);

  int rank_, local_, patience_;
  std::vector<Peer> peers_;       // of rank 0: all others; of another rank: rank 0
  int wake_[2];                   // a pipe that ends the thread
  std::mutex sending_, health_lock_;
  std::function<std::string()> health_;
  std::promise<std::string> shared_;
  std::atomic<bool> ending_{false};  // somebody of this process is saying why it ends
  std::atomic<bool> done_{false};    // this rank's program has ended well
  std::thread thread_;
};

// A socket that listens at this address (port 0: any, *chosen says which): at all of this machine's unless it is local.
int listen_at(const std::string& address, int port, int* chosen);
