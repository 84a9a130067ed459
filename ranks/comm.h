// What the ranks of a run compute together, through NCCL (on the CPU: through what stands in for it, emulation/cpu/nccl.h).
// With one rank every call leaves things as they are. With several all of them must make the same calls in the same
// order. Calls on device arrays are queued on a stream of their own, so that they run beside the backward pass:
//   comm.after(stream);  comm.all_reduce(x, n);  ...  comm.before(stream);   // the stream goes on when x is there
// The others work on values of the host and wait for the result. Sums are made in an order that depends on nothing but
// their size and the ranks, so that equal runs have equal bits.
#pragma once
#include <string>
#include <vector>

#include "kernels/gpu.cuh"
#include "ranks/links.h"

struct ncclComm;

class Comm {
 public:
  Comm() = default;                    // one rank
  static Comm& alone();                // for whoever has no other
  Comm(const Ranks&, Links&);        // waits for all; the device has been chosen
  ~Comm();
  Comm(const Comm&) = delete;
  static bool built();                 // is there NCCL in this program?

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool first() const { return rank_ == 0; }  // prints and writes
  // The most multiprocessors that collectives hold while they run; 0 with one rank. Kernels beside them may leave that
  // many free.
  int multiprocessors() const { return multiprocessors_; }
  // Few, because the backward pass lacks them, and gives the gradients (4 bytes a parameter) plenty of time. But not
  // fewer than the eight network cards that a machine with eight GPUs usually has: each needs a block.
  static constexpr int MULTIPROCESSORS = 8;

  void after(cudaStream_t stream);     // what is called from here on begins when `stream` has done what it was given
  void before(cudaStream_t stream);    // and `stream` goes on when that is done
  void all_reduce(float* x, size_t count);        // x = sum over the ranks
  void reduce_scatter(float* x, size_t share);    // x [size, share]: row `rank` = the sum of that row over the ranks
  void all_gather(float* x, size_t share);        // x [size, share] = row r of rank r
  void all_gather(bf16* x, size_t share);

  // On the host; each returns when the result is there.
  void all_reduce_sum(double* values, size_t count);  // values = sum over the ranks
  double all_reduce_min(double value);                // the least over the ranks
  void barrier() { all_reduce_min(0); }               // returns when all ranks have called it
  template <class T> T broadcast(T value) {           // rank 0's value, at every rank
    broadcast_bytes(&value, sizeof value);
    return value;
  }
  std::string broadcast(std::string text) { return broadcast_list(std::move(text)); }
  template <class T> std::vector<T> broadcast(std::vector<T> list) { return broadcast_list(std::move(list)); }

 private:
  template <class List> List broadcast_list(List list) {
    list.resize(broadcast(list.size()));
    broadcast_bytes(list.data(), list.size() * sizeof list[0]);
    return list;
  }
  void broadcast_bytes(void* host, size_t bytes);  // = rank 0's

  int rank_ = 0, size_ = 1, multiprocessors_ = 0;
  Links* links_ = nullptr;
  ncclComm* comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t event_ = nullptr;
  char *staging_ = nullptr, *pinned_ = nullptr;   // of the device, of the host: values on their way
};
