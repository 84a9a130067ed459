// NCCL's names for ranks without GPUs: -Iemulation finds this file, not the library's. Ranks are processes of this
// machine (or threads: the tests), and what they exchange goes through shared memory. Only what the trainer uses.
// Every call has finished when it returns. Sums run in the order of the ranks, so they have the same bits at every
// rank, however an array is cut into calls. In place means what it means in NCCL: recvbuff = sendbuff, for
// reduce-scatter recvbuff = sendbuff + rank * recvcount, for all-gather sendbuff = recvbuff + rank * sendcount.
// Ranks that do not all ask for the same get ncclInvalidUsage, where NCCL would hang; ncclGetLastError says what
// differs.
// Two of NCCL's variables count here too. With NCCL_DEBUG a rank prints a line to stdout once it is connected. With
// NCCL_COMM_BLOCKING=0 calls answer ncclInProgress, and ncclCommGetAsyncError says so for 2 ms after every call.
#pragma once
#include <cuda_runtime.h>
#include <limits.h>

enum { NCCL_UNIQUE_ID_BYTES = 128 };
struct ncclUniqueId {
  char internal[NCCL_UNIQUE_ID_BYTES];
};
struct ncclComm;
using ncclComm_t = ncclComm*;

enum ncclResult_t {
  ncclSuccess = 0,
  ncclSystemError = 2,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclInProgress = 7
};
struct ncclConfig_t {
  int maxCTAs;
};  // of which there are none here: only the debug line says it
#define NCCL_CONFIG_INITIALIZER \
  { INT_MIN }
enum ncclDataType_t { ncclUint8 = 1, ncclFloat32 = 7, ncclFloat64 = 8, ncclBfloat16 = 9 };
enum ncclRedOp_t { ncclSum = 0, ncclMax = 2, ncclMin = 3 };  // of ncclFloat32 and ncclFloat64

// The id names the shared memory. It has no place in a file system: it goes with the processes, however they end, and
// no limit of /dev/shm applies.
ncclResult_t ncclGetUniqueId(ncclUniqueId*);
// Waits for all ranks; at most 64. config: may be nullptr.
ncclResult_t ncclCommInitRankConfig(ncclComm_t*, int ranks, ncclUniqueId, int rank, ncclConfig_t* config);
ncclResult_t ncclCommDestroy(ncclComm_t);
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error);
const char* ncclGetErrorString(ncclResult_t);
const char* ncclGetLastError(ncclComm_t);  // of this thread

ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                           cudaStream_t);
ncclResult_t ncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount, ncclDataType_t, ncclRedOp_t,
                               ncclComm_t, cudaStream_t);
ncclResult_t ncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t, ncclComm_t,
                           cudaStream_t);
ncclResult_t ncclBroadcast(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t, int root, ncclComm_t,
                           cudaStream_t);
