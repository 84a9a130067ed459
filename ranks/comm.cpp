#include "ranks/comm.h"

#include <nccl.h>

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <thread>

static constexpr size_t STAGING = 64 << 10;  // bytes

// With NCCL_COMM_BLOCKING=0, every call first returns ncclInProgress, and the next call must wait until it is done.
static ncclResult_t settled(ncclResult_t result, ncclComm_t comm) {
  while (result == ncclInProgress) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    if (ncclResult_t asked = ncclCommGetAsyncError(comm, &result); asked != ncclSuccess) return asked;
  }
  return result;
}

// If a rank has died, NCCL reports an error too. The links find out at once which it was and end the process.
static void check(ncclResult_t result, ncclComm_t comm, const char* what) {
  result = settled(result, comm);
  if (result == ncclSuccess) return;
  std::this_thread::sleep_for(std::chrono::seconds(on_cpu ? 0 : waits::NCCL_ERROR));
  failure("NCCL: %s failed: %s (%s); NCCL_DEBUG=INFO says more", what, ncclGetErrorString(result),
          ncclGetLastError(comm));
}

bool Comm::built() { return true; }

Comm::Comm(const Ranks& ranks, Links& links) : rank_(ranks.rank), size_(ranks.size), links_(&links) {
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
  CUDA_CHECK(cudaMalloc(&staging_, STAGING));
  CUDA_CHECK(cudaMallocHost(&pinned_, STAGING));
  // Sums in the network's switches (NVLS) have no fixed order, those around a ring do. The user's own values of these
  // variables stay.
  setenv("NCCL_NVLS_ENABLE", "0", 0);
  setenv("NCCL_ALGO", "Ring", 0);
  ncclUniqueId id = {};
  if (first()) check(ncclGetUniqueId(&id), nullptr, "making an id");
  std::string shared = links.share(std::string(id.internal, sizeof id.internal));
  std::memcpy(id.internal, shared.data(), std::min(shared.size(), sizeof id.internal));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.maxCTAs = MULTIPROCESSORS;
  ncclResult_t connected = ncclCommInitRankConfig(&comm_, size_, id, rank_, &config);
  check(settled(connected, comm_), nullptr, "connecting the ranks");
  // This variable overrides maxCTAs; by now NCCL has also set it if one of its own configuration files does.
  const char* most = getenv("NCCL_MAX_CTAS");
  if (size_ > 1) multiprocessors_ = most && atoi(most) > 0 ? atoi(most) : MULTIPROCESSORS;
  links.watch([this]() -> std::string {
    ncclResult_t error = ncclSuccess;
    ncclResult_t asked = ncclCommGetAsyncError(comm_, &error);
    if (asked == ncclSuccess && (error == ncclSuccess || error == ncclInProgress)) return "";
    return format("NCCL: %s (%s); continue the run with --resume", ncclGetErrorString(error), ncclGetLastError(comm_));
  });
}

Comm::~Comm() {
  if (!comm_) return;
  links_->watch({});
  if (std::uncaught_exceptions() == 0) {  // else the others may never get here
    try {
      barrier();  // no rank may end while another still saves or prints: it would be counted as silent
    } catch (const Failure&) {
    }
    ncclCommDestroy(comm_);
  }
  cudaFreeHost(pinned_), cudaFree(staging_);
  cudaEventDestroy(event_), cudaStreamDestroy(stream_);
}

// One event is enough: a stream that already waits for it is not affected when it is recorded again.
void Comm::after(cudaStream_t stream) {
  if (size_ == 1) return;
  CUDA_CHECK(cudaEventRecord(event_, stream));
  CUDA_CHECK(cudaStreamWaitEvent(stream_, event_));
}

void Comm::before(cudaStream_t stream) {
  if (size_ == 1) return;
  CUDA_CHECK(cudaEventRecord(event_, stream_));
  CUDA_CHECK(cudaStreamWaitEvent(stream, event_));
}

void Comm::all_reduce(float* x, size_t count) {
  if (size_ > 1) check(ncclAllReduce(x, x, count, ncclFloat32, ncclSum, comm_, stream_), comm_, "all-reduce");
}

// Both in place, as NCCL defines it: a rank's row is already in its place in x.
void Comm::reduce_scatter(float* x, size_t share) {
  if (size_ == 1) return;
  check(ncclReduceScatter(x, x + rank_ * share, share, ncclFloat32, ncclSum, comm_, stream_), comm_, "reduce-scatter");
}

void Comm::all_gather(float* x, size_t share) {
  if (size_ > 1) check(ncclAllGather(x + rank_ * share, x, share, ncclFloat32, comm_, stream_), comm_, "all-gather");
}

void Comm::all_gather(bf16* x, size_t share) {
  if (size_ > 1) check(ncclAllGather(x + rank_ * share, x, share, ncclBfloat16, comm_, stream_), comm_, "all-gather");
}

// Values of the host pass through the staging arrays, as many at a time as fit.
template <class Call>
static void staged(void* host, size_t bytes, char* pinned, char* device, cudaStream_t stream, Call call) {
  for (size_t at = 0; at < bytes; at += STAGING) {
    size_t n = std::min(STAGING, bytes - at);
    char* part = static_cast<char*>(host) + at;
    std::memcpy(pinned, part, n);
    CUDA_CHECK(cudaMemcpyAsync(device, pinned, n, cudaMemcpyHostToDevice, stream));
    call(n);
    CUDA_CHECK(cudaMemcpyAsync(pinned, device, n, cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    std::memcpy(part, pinned, n);
  }
}

void Comm::all_reduce_sum(double* values, size_t count) {
  if (size_ == 1) return;
  staged(values, count * sizeof(double), pinned_, staging_, stream_, [&](size_t n) {
    size_t doubles = n / sizeof(double);
    check(ncclAllReduce(staging_, staging_, doubles, ncclFloat64, ncclSum, comm_, stream_), comm_, "all-reduce");
  });
}

double Comm::all_reduce_min(double value) {
  if (size_ == 1) return value;
  staged(&value, sizeof value, pinned_, staging_, stream_, [&](size_t) {
    check(ncclAllReduce(staging_, staging_, 1, ncclFloat64, ncclMin, comm_, stream_), comm_, "all-reduce");
  });
  return value;
}

void Comm::broadcast_bytes(void* host, size_t bytes) {
  if (size_ == 1) return;
  staged(host, bytes, pinned_, staging_, stream_, [&](size_t n) {
    check(ncclBroadcast(staging_, staging_, n, ncclUint8, 0, comm_, stream_), comm_, "broadcast");
  });
}
