// Memory and the one device of the CPU layer.
#include <cuda_runtime.h>
#include <cstdio>
#include <cstdlib>
#include "emulation/machine.h"
#include "emulation/pool.h"
#include "emulation/streams.h"

const char* cudaGetErrorString(cudaError_t e) {
  switch (e) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    default: return "an error that only a GPU has";
  }
}

cudaError_t cudaMallocHost(void** p, size_t bytes) {
  *p = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (posix_memalign(p, 256, bytes) != 0) return *p = nullptr, cudaErrorMemoryAllocation;
  if (cpu::knobs.poison) memset(*p, 0xff, bytes);
  cpu::note_memory(*p, bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* p) {
  if (p) cpu::forget_memory(p);
  return free(p), cudaSuccess;
}

cudaError_t cudaMalloc(void** p, size_t bytes) {
  static const size_t total = cpu::available_memory().total;
  if (bytes > total) return *p = nullptr, cudaErrorMemoryAllocation;
  return cudaMallocHost(p, bytes);
}

cudaError_t cudaFreeHost(void* p) { return cudaFree(p); }

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  cpu::Memory memory = cpu::available_memory();
  *free = memory.free, *total = memory.total;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  if (device != 0) return cudaErrorInvalidDevice;
  *p = {};
  snprintf(p->name, sizeof p->name, "CPU");
  p->sharedMemPerBlock = 48 << 10;
  p->sharedMemPerBlockOptin = cpu::max_shared_bytes;
  p->multiProcessorCount = cpu::pool_threads();
  p->l2CacheSize = 50 << 20;  // of an H100
  p->warpSize = cpu::warp_size;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
