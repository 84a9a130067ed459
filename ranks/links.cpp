#include "ranks/links.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "base/signals.h"

using Clock = std::chrono::steady_clock;

namespace {

constexpr uint32_t MOST_BYTES = 64 << 10;                                    // of a message's text
constexpr char ID = 'i', ALIVE = 'a', DONE = 'd', FAILED = 'f', STOP = 's';  // kinds of messages

struct Hello {  // the first bytes that a rank sends; rank 0 accepts it by answering with its timeout (int32)
  char magic[8];
  int32_t rank, size;
  char job[64];
};
constexpr char MAGIC[8] = {'p', 'l', 'u', 's', 'g', 'p', 't', '2'};

Hello hello_of(const Ranks& ranks) {
  Hello hello = {};
  std::memcpy(hello.magic, MAGIC, sizeof MAGIC);
  hello.rank = ranks.rank, hello.size = ranks.size;
  std::snprintf(hello.job, sizeof hello.job, "%s", ranks.job.c_str());
  return hello;
}

bool send_all(int socket, const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    ssize_t sent = ::send(socket, at, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent, bytes -= size_t(sent);
  }
  return true;
}

bool receive_all(int socket, void* data, size_t bytes) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    ssize_t got = ::recv(socket, at, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got, bytes -= size_t(got);
  }
  return true;
}

void limit_waiting(int socket, int seconds) {  // 0: no limit
  timeval limit = {seconds, 0};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

// Breaks the connection to a machine that has disappeared.
void keep_alive(int socket) {
  auto set = [&](int level, int option, int value) { setsockopt(socket, level, option, &value, sizeof value); };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, (waits::LOST_MACHINE - 10) / 5);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 1000 * waits::LOST_MACHINE);
  set(IPPROTO_TCP, TCP_NODELAY, 1);
}

std::string list_of(const std::vector<int>& ranks) {
  std::string list;
  for (size_t i = 0; i < ranks.size() && i < 8; i++) list += (i ? ", " : "") + std::to_string(ranks[i]);
  return ranks.size() > 8 ? list + ", ..." : list;
}

}  // namespace

int listen_at(const std::string& address, int port, int* chosen) {
  bool local = address == "127.0.0.1" || address == "localhost", local_6 = address == "::1";
  sockaddr_in at_4 = {};
  at_4.sin_family = AF_INET;
  at_4.sin_port = htons(uint16_t(port));
  at_4.sin_addr.s_addr = htonl(local ? INADDR_LOOPBACK : INADDR_ANY);
  sockaddr_in6 at_6 = {};
  at_6.sin6_family = AF_INET6;
  at_6.sin6_port = at_4.sin_port;
  at_6.sin6_addr = local_6 ? in6addr_loopback : in6addr_any;
  // A socket of IPv6 takes the connections of IPv4 too. But a machine may be without IPv6.
  int listener = local ? -1 : ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1, no = 0;
  bool six = listener >= 0;
  if (!six) listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr* at = six ? reinterpret_cast<sockaddr*>(&at_6) : reinterpret_cast<sockaddr*>(&at_4);
  socklen_t size = six ? sizeof at_6 : sizeof at_4;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (six) setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
  if (listener < 0 || ::bind(listener, at, size) != 0 || ::listen(listener, 1024) != 0)
    failure("ranks: rank 0 cannot listen at port %d: %s; choose another port with MASTER_PORT, the same for all ranks",
            port, std::strerror(errno));
  getsockname(listener, at, &size);
  if (chosen) *chosen = ntohs(six ? at_6.sin6_port : at_4.sin_port);
  return listener;
}

Links::Links(const Ranks& ranks) : rank_(ranks.rank), local_(ranks.local), timeout_(ranks.timeout) {
  if (::pipe(wake_) != 0) failure("ranks: cannot create a pipe: %s", std::strerror(errno));
  rank_ == 0 ? accept_ranks(ranks) : connect_to_rank_0(ranks);
  for (Peer& peer : peers_) {
    limit_waiting(peer.socket, 0);
    keep_alive(peer.socket);
  }
  thread_ = std::thread(&Links::run, this);
}

Links::~Links() {
  if (::write(wake_[1], "", 1) == 1) thread_.join();
  for (Peer& peer : peers_) ::close(peer.socket);
  ::close(wake_[0]), ::close(wake_[1]);
}

void Links::accept_ranks(const Ranks& ranks) {
  int listener = ranks.listener >= 0 ? ranks.listener : listen_at(ranks.address, ranks.port, nullptr);
  Hello expected = hello_of(ranks);
  std::vector<int> missing;
  for (int rank = 1; rank < ranks.size; rank++) missing.push_back(rank);
  auto deadline = Clock::now() + std::chrono::seconds(timeout_);
  while (!missing.empty()) {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd ready = {listener, POLLIN, 0};
    if (left <= 0 || ::poll(&ready, 1, int(left)) == 0)
      failure(
          "ranks: %s %s of %d did not connect to %s:%d within %d seconds (%s); look at their output, and check "
          "that their machines can reach this one",
          missing.size() > 1 ? "ranks" : "rank", list_of(missing).c_str(), ranks.size, ranks.address.c_str(),
          ranks.port, timeout_, ranks.variables.c_str());
    int socket = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) continue;
    limit_waiting(socket, 2);
    Hello hello;
    bool ours = receive_all(socket, &hello, sizeof hello) && std::memcmp(hello.magic, MAGIC, sizeof MAGIC) == 0 &&
                std::memcmp(hello.job, expected.job, sizeof hello.job) == 0 && hello.rank > 0 &&
                hello.rank < hello.size;
    if (ours && hello.size != ranks.size)
      failure("ranks: rank %d was started as one of %d ranks, rank 0 as one of %d; start all with the same number",
              hello.rank, hello.size, ranks.size);
    auto found = std::find(missing.begin(), missing.end(), hello.rank);
    if (ours && found == missing.end())
      failure("ranks: two processes were started as rank %d of %d (%s)", hello.rank, ranks.size,
              ranks.variables.c_str());
    int32_t timeout = timeout_;
    if (!ours || !send_all(socket, &timeout, sizeof timeout)) {  // another program, or a rank that is gone again
      ::close(socket);
      continue;
    }
    missing.erase(found);
    peers_.push_back({hello.rank, socket});
  }
  ::close(listener);
}

void Links::connect_to_rank_0(const Ranks& ranks) {
  Hello hello = hello_of(ranks);
  addrinfo wanted = {}, *found = nullptr;
  wanted.ai_socktype = SOCK_STREAM;
  std::string port = std::to_string(ranks.port);
  auto deadline = Clock::now() + std::chrono::seconds(timeout_);
  int unknown = 0;
  for (; Clock::now() < deadline; std::this_thread::sleep_for(std::chrono::milliseconds(20))) {
    unknown = ::getaddrinfo(ranks.address.c_str(), port.c_str(), &wanted, &found);
    if (unknown != 0) continue;  // a machine that has just started may not be in the name server yet
    for (addrinfo* at = found; at && peers_.empty(); at = at->ai_next) {  // of IPv4 and IPv6
      int socket = ::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
      limit_waiting(socket, timeout_);
      int32_t timeout = 0;
      bool answered = ::connect(socket, at->ai_addr, at->ai_addrlen) == 0 && send_all(socket, &hello, sizeof hello) &&
                      receive_all(socket, &timeout, sizeof timeout);
      // Until rank 0 listens, TCP may connect this socket to itself: then the answer is the hello.
      if (answered && timeout > 0 && timeout <= MOST_TIMEOUT) {
        peers_.push_back({0, socket});
        timeout_ = timeout;  // rank 0's counts: it must match how often heartbeats are sent
      } else {
        ::close(socket);
      }
    }
    ::freeaddrinfo(found);
    if (!peers_.empty()) return;
  }
  if (unknown != 0)
    failure("ranks: rank %d cannot find rank 0: MASTER_ADDR = \"%.80s\": %s", ranks.rank, ranks.address.c_str(),
            ::gai_strerror(unknown));
  failure("ranks: rank %d could not connect to rank 0 at %s:%d within %d seconds (%s)", ranks.rank,
          ranks.address.c_str(), ranks.port, timeout_, ranks.variables.c_str());
}

std::string Links::share(const std::string& text) {
  if (rank_ != 0) return shared_.get_future().get();
  for (const Peer& peer : peers_) send(peer, ID, text);
  return text;
}

void Links::watch(std::function<std::string()> health) {
  std::lock_guard lock(health_lock_);
  health_ = std::move(health);
}

int Links::end(int code, const std::string& text) {
  if (code == 0) {
    done_ = true;
    for (const Peer& peer : peers_) send(peer, DONE, "");
    return 0;
  }
  if (rank_ != 0) {
    send(peers_[0], FAILED, char('0' + code) + text);
    std::this_thread::sleep_for(std::chrono::seconds(waits::UNANSWERED));
    std::fprintf(stderr, "rank %d: %s\n", rank_, text.c_str());
    return code;
  }
  if (ending_.exchange(true))  // the thread of the links is already ending this process
    for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
  std::fflush(stdout);
  std::fprintf(stderr, "%s\n", text.c_str());
  for (const Peer& peer : peers_) send(peer, STOP, std::string(1, char('0' + code)));
  _exit(code);  // destructors would wait for messages that no longer come
}

void Links::send(const Peer& peer, char kind, const std::string& text) {
  uint32_t bytes = uint32_t(std::min<size_t>(text.size(), MOST_BYTES));
  std::string message(1, kind);
  message.append(reinterpret_cast<const char*>(&bytes), sizeof bytes).append(text, 0, bytes);
  std::lock_guard lock(sending_);
  send_all(peer.socket, message.data(), message.size());  // the thread notices a broken connection
}

// ---- the thread

void Links::run() {
  block_signals();
  std::chrono::duration<double> between(timeout_ / 9.0);  // seconds between two heartbeats
  auto before = Clock::now(), sent = before;
  for (;;) {
    std::vector<pollfd> ready = {{wake_[0], POLLIN, 0}};
    for (const Peer& peer : peers_) ready.push_back({peer.ended ? -1 : peer.socket, POLLIN, 0});
    ::poll(ready.data(), ready.size(), std::min(1000, timeout_ * 1000 / 9));
    if (ready[0].revents) return;
    for (size_t i = 0; i < peers_.size(); i++)
      if (ready[i + 1].revents) read_from(peers_[i]);
    auto now = Clock::now();
    if (now - sent >= between) {
      for (const Peer& peer : peers_)
        if (!peer.ended) send(peer, ALIVE, "");
      sent = now;
    }
    // Time in which this process was stopped itself does not count: a whole job may be stopped and continued.
    count_silence(std::min<std::chrono::duration<double>>(now - before, between).count());
    before = now;
    std::lock_guard lock(health_lock_);
    if (std::string trouble = health_ ? health_() : ""; !trouble.empty()) stop_run(1, trouble, waits::NCCL_ERROR);
  }
}

void Links::count_silence(double seconds) {
  for (Peer& peer : peers_) {
    peer.silence += seconds;
    if (peer.silence < timeout_ || done_) continue;
    if (!peer.ended) died(peer, format("no heartbeat for %d seconds; was it stopped?", timeout_), waits::SILENT_RANK);
    stop_run(1,
             format("rank %d has ended its program and rank %d has not; start all ranks with the same flags and "
                    "configuration",
                    peer.rank, rank_),
             waits::SILENT_RANK);
  }
}

void Links::died(const Peer& peer, const std::string& reason, int seconds) {
  bool speaks = rank_ == 0 || rank_ == 1 || local_ == 0;  // if rank 0 is dead, rank 1 speaks for its machine
  stop_run(1,
           speaks ? format("rank %d has died (%s), which ends the whole run; --resume continues "
                           "training",
                           peer.rank, reason.c_str())
                  : "",
           seconds);
}

void Links::read_from(Peer& peer) {
  char bytes[4096];
  ssize_t got = ::recv(peer.socket, bytes, sizeof bytes, MSG_DONTWAIT);
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (got <= 0) died(peer, got < 0 ? std::strerror(errno) : "its connection was closed", waits::LOST_RANK);
  peer.silence = 0;
  peer.received.append(bytes, size_t(got));
  for (;;) {
    uint32_t size;
    if (peer.received.size() < 1 + sizeof size) return;
    std::memcpy(&size, peer.received.data() + 1, sizeof size);
    if (size > MOST_BYTES)
      stop_run(1, format("ranks: rank %d sent a message of %u bytes, more than any rank sends", peer.rank, size), 0);
    if (peer.received.size() < 1 + sizeof size + size) return;
    char kind = peer.received[0];
    std::string text = peer.received.substr(1 + sizeof size, size);
    peer.received.erase(0, 1 + sizeof size + size);
    handle(peer, kind, text);
  }
}

void Links::handle(Peer& peer, char kind, const std::string& text) {
  int code = text.empty() || text[0] < '1' || text[0] > '2' ? 1 : text[0] - '0';
  if (kind == ID && rank_ != 0) shared_.set_value(text);
  else if (kind == DONE) peer.ended = true;
  else if (kind == FAILED && rank_ == 0)
    stop_run(code, format("rank %d: %s", peer.rank, text.empty() ? "" : text.substr(1).c_str()), waits::FAILED_RANK);
  else if (kind == STOP && rank_ != 0) _exit(code);
}

// Ends the process and with it the run, after this wait.
void Links::stop_run(int code, const std::string& text, int seconds) {
  std::this_thread::sleep_for(std::chrono::seconds(seconds));
  while (ending_.exchange(true)) std::this_thread::sleep_for(std::chrono::seconds(1));  // the main thread is ending it
  std::fflush(stdout);
  if (!text.empty()) std::fprintf(stderr, "%s\n", text.c_str());
  if (rank_ == 0)
    for (const Peer& peer : peers_) send(peer, STOP, std::string(1, char('0' + code)));
  _exit(code);
}
