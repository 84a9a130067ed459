// Replaces libcudart, the CUDA runtime (nvcc's host code calls the functions with two underscores, crt/host_runtime.h).
// Work on a stream runs immediately, so waiting for it does nothing; memory is the host's.
#include <cuda.h>
#include <cuda_runtime.h>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>
#include "dev/ptx/machine.h"
#include "dev/ptx/memory.h"
#include "dev/ptx/module.h"

using namespace ptx;

namespace {

constexpr size_t SHARED_WITHOUT_ASKING = 48 * 1024, MOST_SHARED = 227 * 1024;  // of a block
constexpr size_t GLOBAL_BYTES = size_t(8) << 30;
constexpr unsigned MOST_THREADS = 1024, MOST_BLOCKS_YZ = 65535;

struct Configuration {
  dim3 grid, threads;
  size_t shared;
  cudaStream_t stream;
};
std::vector<Configuration>& configurations() {
  static std::vector<Configuration> stack;
  return stack;
}
std::map<const void*, std::string>& kernel_names() {  // by address of the host's stub
  static std::map<const void*, std::string> names;
  return names;
}
std::map<const void*, size_t>& shared_limits() {
  static std::map<const void*, size_t> limits;
  return limits;
}

cudaError_t last_error = cudaSuccess;
cudaError_t answer(cudaError_t error) {
  if (error) last_error = error;
  return error;
}

cudaError_t allocate(void** pointer, size_t bytes) {
  *pointer = reinterpret_cast<void*>(new_global(bytes));
  return cudaSuccess;
}
cudaError_t release(void* pointer) {
  return answer(!pointer || free_global(reinterpret_cast<uint64_t>(pointer)) ? cudaSuccess : cudaErrorInvalidValue);
}

// Handles of streams and events, with no object behind them.
template <class Handle> cudaError_t create(Handle* handle) {
  *handle = reinterpret_cast<Handle>(new char);
  return cudaSuccess;
}
template <class Handle> cudaError_t destroy(Handle handle) {
  delete reinterpret_cast<char*>(handle);
  return cudaSuccess;
}

}  // namespace

extern "C" {

// ---- kernels

void** __cudaRegisterFatBinary(void* wrapper) {
  add_fat_binary(wrapper);
  static void* handle;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterFunction(void**, const char* stub, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  kernel_names()[stub] = name;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 threads, size_t shared, void* stream) {
  configurations().push_back({grid, threads, shared, static_cast<cudaStream_t>(stream)});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* threads, size_t* shared, void* stream) {
  const Configuration top = configurations().back();
  configurations().pop_back();
  *grid = top.grid, *threads = top.threads, *shared = top.shared;
  memcpy(stream, &top.stream, sizeof top.stream);
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void* stub, dim3 grid, dim3 threads, void** arguments, size_t shared, cudaStream_t) {
  const bool possible = grid.x && grid.y && grid.z && threads.x && threads.y && threads.z && grid.y <= MOST_BLOCKS_YZ &&
                        grid.z <= MOST_BLOCKS_YZ && threads.x * threads.y * threads.z <= MOST_THREADS;
  if (!possible) return answer(cudaErrorInvalidConfiguration);
  if (shared > SHARED_WITHOUT_ASKING && shared_limits()[stub] < shared) return answer(cudaErrorInvalidValue);
  try {
    const Kernel& kernel = kernel_named(kernel_names()[stub]);
    run_kernel(kernel, {grid.x, grid.y, grid.z}, {threads.x, threads.y, threads.z}, arguments, shared);
  } catch (const Error& error) {
    fprintf(stderr, "ptx: %s\n", error.what());
    return answer(cudaErrorLaunchFailure);
  }
  return answer(take_notices() ? cudaErrorLaunchFailure : cudaSuccess);
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* stub) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(stub));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 threads, void** arguments, size_t shared,
                               cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, threads, arguments, shared, stream);
}

cudaError_t cudaFuncSetAttribute(const void* stub, cudaFuncAttribute attribute, int value) {
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (value < 0 || size_t(value) > MOST_SHARED) return answer(cudaErrorInvalidValue);
    shared_limits()[stub] = value;
  }
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t, unsigned) {
  *blocks = 1;
  return cudaSuccess;
}

// ---- memory

cudaError_t cudaMalloc(void** pointer, size_t bytes) { return allocate(pointer, bytes); }
cudaError_t cudaFree(void* pointer) { return release(pointer); }
cudaError_t cudaMallocHost(void** pointer, size_t bytes) { return allocate(pointer, bytes); }
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) { return allocate(pointer, bytes); }
cudaError_t cudaFreeHost(void* pointer) { return release(pointer); }

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  memmove(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
  return cudaMemcpy(to, from, bytes, kind);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind, cudaStream_t) {
  for (size_t row = 0; row < height; row++) {
    memmove(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
  }
  return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int byte, size_t bytes) {
  memset(to, byte, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t) { return cudaMemset(to, byte, bytes); }
cudaError_t cudaMemset2DAsync(void* to, size_t pitch, int byte, size_t width, size_t height, cudaStream_t) {
  for (size_t row = 0; row < height; row++) memset(static_cast<char*>(to) + row * pitch, byte, width);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* all_bytes) {
  *all_bytes = GLOBAL_BYTES;
  *free_bytes = GLOBAL_BYTES - global_in_use();
  return cudaSuccess;
}

// ---- the device

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  snprintf(properties->name, sizeof properties->name, "PTX interpreter");
  properties->major = target_architecture() / 10;
  properties->minor = target_architecture() % 10;
  properties->multiProcessorCount = options().multiprocessors;
  properties->warpSize = LANES;
  properties->maxThreadsPerBlock = MOST_THREADS;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->sharedMemPerBlock = SHARED_WITHOUT_ASKING;
  properties->sharedMemPerBlockOptin = MOST_SHARED;
  properties->sharedMemPerMultiprocessor = MOST_SHARED + 1024;
  properties->regsPerBlock = 65536;
  properties->l2CacheSize = 50 << 20;
  properties->totalGlobalMem = GLOBAL_BYTES;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorLaunchFailure: return "the interpreter found a bug in the kernel; see stderr";
    default: return "an error of the CUDA runtime";
  }
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  const bool known = !strcmp(name, "cuTensorMapEncodeTiled");
  *function = known ? reinterpret_cast<void*>(cuTensorMapEncodeTiled) : nullptr;
  if (result) *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return known ? cudaSuccess : answer(cudaErrorSymbolNotFound);
}

// ---- streams and events

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return create(stream); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return create(stream); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return destroy(stream); }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t* event) { return create(event); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return create(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return destroy(event); }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  static unsigned calls;  // times in no order, so that each of several candidates is the fastest at some time
  *milliseconds = 1 + float(++calls * 0x9E3779B9u) * 0x1p-32f;
  return cudaSuccess;
}

}  // extern "C"
