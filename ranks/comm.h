// Collectives of the ranks of a run, through NCCL (on the CPU: its replacement, emulation/nccl.h). With one rank,
// no call changes anything. With several, all of them must make the same calls in the same order. Calls on device
// arrays are queued on a stream of their own, so that they run beside the backward pass:
//   comm.after(stream);  comm.all_reduce(x, n);  ...  comm.before(stream);   // the stream continues when x is reduced
// The other calls work on values of the host and wait for the result. The order of a sum depends only on its size and
// on the number of ranks, so equal runs have equal bits. An error of NCCL is a failure.
#pragma once
#include <string>
#include <vector>

#include "kernels/gpu.cuh"
#include "ranks/links.h"

struct ncclComm;

class Comm {
 public:
  Comm() = default;       // one rank
  static Comm& alone() {  // the single-rank default
    static Comm comm;
    return comm;
  }
  Comm(const Ranks&, Links&);  // waits for all ranks; call it after the device has been chosen
  ~Comm();
  Comm(const Comm&) = delete;
  static bool built();  // whether this program was built with NCCL

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool first() const { return rank_ == 0; }  // prints and writes
  // The most multiprocessors that collectives occupy while they run; 0 with one rank. Kernels that run beside them
  // should leave that many free.
  int multiprocessors() const { return multiprocessors_; }
  // Few: the backward pass loses them, and has time to spare to reduce the gradients (4
  // bytes per parameter). But at least eight: a machine with eight GPUs usually has that many network cards, and each
  // needs a block.
  static constexpr int MULTIPROCESSORS = 8;

  // On arrays of the device:
  void after(cudaStream_t stream);              // later calls begin when the work queued on `stream` so far is done
  void before(cudaStream_t stream);             // later work on `stream` begins when the calls so far are done
  void all_reduce(float* x, size_t count);      // x = sum over the ranks
  void reduce_scatter(float* x, size_t share);  // x [size, share]: row `rank` = its sum over the ranks
  void all_gather(float* x, size_t share);      // x [size, share]: row r = that of rank r
  void all_gather(bf16* x, size_t share);

  // On values of the host; each returns when the result is there:
  void all_reduce_sum(double* values, size_t count);  // values = sum over the ranks
  // A gather: of values that are 0 on all ranks but one, so their sum is exact.
  void combine(double* values, size_t count) { all_reduce_sum(values, count); }
  double all_reduce_min(double value);       // the smallest over the ranks
  void barrier() { all_reduce_min(0); }      // returns when all ranks have called it
  template <class T> T broadcast(T value) {  // rank 0's value, at every rank
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
  char *staging_ = nullptr, *pinned_ = nullptr;  // on the device, on the host: where values of the host pass through
};
