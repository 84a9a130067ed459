// Replaces NCCL between processes. Every rank has a slot in shared memory. A call is cut into pieces that fit into the
// slots; for each piece every rank fills its slot, all meet, every rank takes its part from all slots, and all meet
// again before the next piece overwrites them.
#include <fcntl.h>
#include <nccl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include "base/error.h"
#include "emulation/streams.h"

namespace {

constexpr int MAX_RANKS = 64;
constexpr size_t SLOT = 1 << 20;  // bytes

struct Request {
  char name[16];
  size_t count;
  ncclDataType_t type;
  int op, root;
  bool operator==(const Request&) const = default;
  std::string text() const {
    return format("%s of %zu elements (type %d, operation %d, root %d)", name, count, type, op, root);
  }
};

struct Shared {
  std::atomic<int> ready;  // the barrier and the number of ranks are there
  int ranks;
  pthread_barrier_t barrier;
  Request requests[MAX_RANKS];
  alignas(4096) char slots[MAX_RANKS][SLOT];  // pages that no process touches take no memory
};

thread_local std::string last_error;

ncclResult_t failed(ncclResult_t result, const std::string& text) {
  last_error = text;
  return result;
}

int64_t microseconds_now() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::microseconds(1);
}

size_t size_of(ncclDataType_t type) {
  return type == ncclFloat64 ? 8 : type == ncclFloat32 ? 4 : type == ncclBfloat16 ? 2 : 1;
}

}  // namespace

struct ncclComm {
  Shared* shared;
  int rank, ranks;
  std::atomic<int64_t> busy_until = 0;  // microseconds
  char* slot(int r) const { return shared->slots[r]; }
  char* own() const { return slot(rank); }
  void meet() const { pthread_barrier_wait(&shared->barrier); }
  bool busy() const { return microseconds_now() < busy_until; }
  ncclResult_t called() {  // what a call answers that went well
    const char* blocking = getenv("NCCL_COMM_BLOCKING");
    if (!blocking || strcmp(blocking, "0") != 0) return ncclSuccess;
    busy_until = microseconds_now() + 2000;
    return ncclInProgress;
  }

  ncclResult_t agreed(const Request& mine) const {  // between the two meetings of a piece
    for (int r = 0; r < ranks; r++)
      if (const Request& other = shared->requests[r]; !(other == mine))
        return failed(ncclInvalidUsage, format("rank %d asks for %s, rank %d for %s", rank, mine.text().c_str(), r,
                                               other.text().c_str()));
    return ncclSuccess;
  }
};

namespace {

// Cuts both buffers into pieces of at most `most` bytes, and calls fill(from, bytes) and take(to, bytes) for each, with
// all ranks meeting between them. They run when the stream does, so they hold what they need by value.
template <class Fill, class Take>
ncclResult_t exchange(ncclComm_t comm, cudaStream_t stream, const Request& request, const void* sendbuff,
                      void* recvbuff, size_t most, Fill fill, Take take) {
  if (comm->busy()) return failed(ncclInvalidArgument, "the call before is still in progress");
  auto work = [=] {
    comm->shared->requests[comm->rank] = request;
    size_t begin = 0, all = request.count * size_of(request.type);
    do {
      size_t bytes = std::min(most, all - begin);
      fill(static_cast<const char*>(sendbuff) + begin, bytes);
      comm->meet();
      if (begin == 0) {
        ncclResult_t result = comm->agreed(request);
        if (result != ncclSuccess) return comm->meet(), result;  // all of them: each compares itself with all others
      }
      take(static_cast<char*>(recvbuff) + begin, bytes);
      comm->meet();
      begin += bytes;
    } while (begin < all);
    return ncclSuccess;
  };
  if (cpu::streams_at_once()) {
    ncclResult_t result = work();
    return result == ncclSuccess ? comm->called() : result;
  }
  cpu::put_on(stream, [=] {
    if (work() != ncclSuccess) failure("NCCL: %s", last_error.c_str());
  });
  return comm->called();
}

template <class T> void reduce(char* to, const ncclComm& comm, size_t offset, size_t bytes, ncclRedOp_t op) {
  for (size_t i = 0; i < bytes / sizeof(T); i++) {
    T value = reinterpret_cast<const T*>(comm.slot(0) + offset)[i];
    for (int r = 1; r < comm.ranks; r++) {
      T x = reinterpret_cast<const T*>(comm.slot(r) + offset)[i];
      value = op == ncclSum ? value + x : op == ncclMax ? std::max(value, x) : std::min(value, x);
    }
    reinterpret_cast<T*>(to)[i] = value;
  }
}

// offset: where the piece begins in every slot, in bytes
void reduce(char* to, const ncclComm& comm, size_t offset, size_t bytes, ncclDataType_t type, ncclRedOp_t op) {
  if (type == ncclFloat32) reduce<float>(to, comm, offset, bytes, op);
  else reduce<double>(to, comm, offset, bytes, op);
}

}  // namespace

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {};
  int file = memfd_create("plusgpt ranks", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, sizeof(Shared)) != 0)
    return failed(ncclSystemError, std::string("cannot create shared memory: ") + strerror(errno));
  snprintf(id->internal, sizeof id->internal, "/proc/%d/fd/%d", static_cast<int>(getpid()), file);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  *comm = nullptr;
  if (ranks < 1 || ranks > MAX_RANKS || rank < 0 || rank >= ranks)
    return failed(ncclInvalidArgument, format("rank %d of %d: the CPU build takes at most %d", rank, ranks, MAX_RANKS));
  id.internal[NCCL_UNIQUE_ID_BYTES - 1] = 0;
  int file = open(id.internal, O_RDWR | O_CLOEXEC);
  struct stat about;
  if (file < 0 || fstat(file, &about) != 0 || about.st_size != sizeof(Shared)) {
    std::string reason = file < 0 ? strerror(errno) : "it is something else";
    if (file >= 0) close(file);
    return failed(ncclSystemError, std::string("cannot open the shared memory ") + id.internal + ": " + reason +
                                       "; all ranks of the CPU build must run on one machine, for one user");
  }
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return failed(ncclSystemError, std::string("cannot map shared memory: ") + strerror(errno));
  Shared* shared = static_cast<Shared*>(memory);
  if (rank == 0) {
    shared->ranks = ranks;
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier, &attributes, static_cast<unsigned>(ranks));
    pthread_barrierattr_destroy(&attributes);
    shared->ready = 1;
  } else {
    while (!shared->ready) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (shared->ranks != ranks) {
      munmap(shared, sizeof(Shared));
      return failed(ncclInvalidArgument, "the ranks do not agree on how many they are");
    }
  }
  *comm = new ncclComm{shared, rank, ranks};
  (*comm)->meet();
  // All have it mapped: rank 0, which made the id, can close the file that it names.
  int process, descriptor;
  if (rank == 0 && sscanf(id.internal, "/proc/%d/fd/%d", &process, &descriptor) == 2 && process == getpid())
    close(descriptor);
  if (getenv("NCCL_DEBUG"))
    printf("NCCL INFO rank %d of %d, maxCTAs %d\n", rank, ranks, config ? config->maxCTAs : INT_MIN);
  return (*comm)->called();
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  munmap(comm->shared, sizeof(Shared));
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  *error = comm->busy() ? ncclInProgress : ncclSuccess;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclSystemError: return "system error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclInProgress: return "operation in progress";
  }
  return "unknown result";
}

const char* ncclGetLastError(ncclComm_t) { return last_error.c_str(); }

ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return exchange(
      comm, stream, {"all-reduce", count, type, op, 0}, sendbuff, recvbuff, SLOT,
      [=](const char* from, size_t bytes) { memcpy(comm->own(), from, bytes); },
      [=](char* to, size_t bytes) { reduce(to, *comm, 0, bytes, type, op); });
}

ncclResult_t ncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  // A slot holds a piece for every rank.
  size_t ranks = size_t(comm->ranks), piece = SLOT / ranks / size_of(type) * size_of(type);
  return exchange(
      comm, stream, {"reduce-scatter", recvcount, type, op, 0}, sendbuff, recvbuff, piece,
      [=](const char* from, size_t bytes) {
        for (size_t r = 0; r < ranks; r++) memcpy(comm->own() + r * piece, from + r * recvcount * size_of(type), bytes);
      },
      [=](char* to, size_t bytes) { reduce(to, *comm, size_t(comm->rank) * piece, bytes, type, op); });
}

ncclResult_t ncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return exchange(
      comm, stream, {"all-gather", sendcount, type, 0, 0}, sendbuff, recvbuff, SLOT,
      [=](const char* from, size_t bytes) { memcpy(comm->own(), from, bytes); },
      [=](char* to, size_t bytes) {
        for (int r = 0; r < comm->ranks; r++) memcpy(to + size_t(r) * sendcount * size_of(type), comm->slot(r), bytes);
      });
}

ncclResult_t ncclBroadcast(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return exchange(
      comm, stream, {"broadcast", count, type, 0, root}, sendbuff, recvbuff, SLOT,
      [=](const char* from, size_t bytes) {
        if (comm->rank == root) memcpy(comm->slot(root), from, bytes);
      },
      [=](char* to, size_t bytes) { memcpy(to, comm->slot(root), bytes); });
}
