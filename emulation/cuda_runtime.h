// The CUDA runtime's names for a machine without a GPU: -Iemulation finds this file, not the toolkit's. Only the
// part that the trainer and its tests use. Device memory is host memory; every call has finished when it returns, in
// launch order, whatever its stream, unless a test keeps streams back (emulation/streams.h). Kernels run thread by
// thread on the scheduler (emulation/scheduler.h); start them with LAUNCH() of kernels/gpu.cuh.
#pragma once
#define PLUSGPT_CPU 1
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <algorithm>
#include "emulation/libm.h"
#include "emulation/scheduler.h"

#define __host__
#define __device__
#define __global__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

// Shared memory belongs to a block, and a worker runs one block at a time. ASan does not guard thread_local
// variables, so there it is a plain static and the pool has one worker.
#ifdef CPU_ASAN
#define __shared__ static
#else
#define __shared__ static thread_local
#endif

// Per-thread coordinates: one load through a thread-local pointer, one plain thread-local load for the others.
#define threadIdx (cpu::self->index)
#define blockIdx (cpu::here.block_index)
#define blockDim (cpu::here.block_dim)
#define gridDim (cpu::here.grid_dim)
constexpr int warpSize = 32;

// A barrier of the whole block; reports name the line that calls it.
inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  cpu::barrier(file, line);
}

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

using std::max;
using std::min;
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
inline float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
// Integers only: floating-point atomics would make results depend on the order of the threads.
inline int atomicAdd(int* p, int v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
inline unsigned atomicAdd(unsigned* p, unsigned v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
inline unsigned long long atomicAdd(unsigned long long* p, unsigned long long v) {
  return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchTimeout = 702,
  cudaErrorAssert = 710,
  cudaErrorHardwareStackError = 714,
  cudaErrorLaunchFailure = 719,
  cudaErrorSystemNotReady = 802,
};
const char* cudaGetErrorString(cudaError_t);
inline cudaError_t cudaGetLastError() { return cudaSuccess; }

// Memory: 256-byte aligned, with ASan's redzones; uninitialised as on a GPU.
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
cudaError_t cudaMalloc(void** p, size_t bytes);
cudaError_t cudaFree(void* p);
cudaError_t cudaMallocHost(void** p, size_t bytes);
cudaError_t cudaFreeHost(void* p);
template <class T> cudaError_t cudaMalloc(T** p, size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(p), bytes);
}
template <class T> cudaError_t cudaMallocHost(T** p, size_t bytes) {
  return cudaMallocHost(reinterpret_cast<void**>(p), bytes);
}

struct cpu_stream;
struct cpu_event;
using cudaStream_t = cpu_stream*;
using cudaEvent_t = cpu_event*;
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind);
cudaError_t cudaMemset(void* p, int value, size_t bytes);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t = nullptr);
cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t = nullptr);
cudaError_t cudaMemset2DAsync(void* p, size_t pitch, int value, size_t width, size_t rows, cudaStream_t = nullptr);
// Rows of `width` bytes, `to_pitch` and `from_pitch` bytes apart.
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t rows,
                              cudaMemcpyKind, cudaStream_t = nullptr);
// Free and total bytes of the machine, or of the container (cgroup) of this process if those are less.
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);

// Streams and events.
enum { cudaStreamDefault = 0, cudaStreamNonBlocking = 1 };
enum { cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2 };
cudaError_t cudaStreamCreateWithFlags(cudaStream_t*, unsigned flags);
inline cudaError_t cudaStreamCreate(cudaStream_t* s) { return cudaStreamCreateWithFlags(s, cudaStreamDefault); }
cudaError_t cudaStreamDestroy(cudaStream_t);
cudaError_t cudaStreamSynchronize(cudaStream_t);
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned = 0);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t*, unsigned flags);
inline cudaError_t cudaEventCreate(cudaEvent_t* e) { return cudaEventCreateWithFlags(e, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t);
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t = nullptr);
cudaError_t cudaEventSynchronize(cudaEvent_t);
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end);

// One device: this machine.
struct cudaDeviceProp {
  char name[256];
  size_t sharedMemPerBlock, sharedMemPerBlockOptin;
  int major, minor, multiProcessorCount, l2CacheSize, warpSize;
};
cudaError_t cudaGetDeviceProperties(cudaDeviceProp*, int device);
cudaError_t cudaGetDeviceCount(int* count);
inline cudaError_t cudaDriverGetVersion(int* version) { return *version = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceSynchronize();
inline cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 0, cudaSuccess; }  // there is no CUDA
