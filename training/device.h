// The device that the program runs on.
#pragma once
#include <string>

#include "kernels/gpu.cuh"
#include "ranks/ranks.h"

struct DeviceInfo {
  std::string name;  // "NVIDIA H200", or the processor's name
  bool is_gpu;
  int processors;          // multiprocessors, or cores
  size_t free_memory;      // bytes
  double peak_bf16_flops;  // per second; dense tensor-core peak from the data sheet; 0 if unknown
};

// Dense bf16 operations per second of a device by its name; 0 if the name is unknown.
inline double peak_bf16_flops(const std::string& name) {
  // TFLOPS by the data sheets, without sparsity, sums in float32. The first name that is part of the device's wins.
  static const struct {
    const char* name;
    double tflops;
  } peaks[] = {{"GB200", 2500},    {"B200", 2250},   {"H200 NVL", 836},     {"H200", 989}, {"H100 NVL", 836},
               {"H100 PCIe", 756}, {"H100", 989},    {"A100", 312},         {"A800", 312}, {"L40S", 362},
               {"L40", 181},       {"L4", 121},      {"A10G", 70},          {"A10", 125},  {"RTX 5090", 209.5},
               {"RTX 4090", 165},  {"RTX 3090", 71}, {"RTX 6000 Ada", 364}, {"A6000", 155}};
  for (auto& peak : peaks)
    if (name.find(peak.name) != std::string::npos) return peak.tflops * 1e12;
  return 0;
}

// Checks the answer of cudaGetDeviceCount: a user_error if there is no device or its driver is too old.
inline void check_devices(cudaError_t answer, int count) {
  if (answer == cudaErrorInsufficientDriver)
    user_error(
        "the GPU's driver is too old for this program: nvidia-smi shows the newest CUDA that it supports; update the "
        "driver, or build with that CUDA");
  if (answer == cudaErrorNoDevice || (answer == cudaSuccess && count == 0))
    user_error(
        "no GPU was found, but this is the CUDA build; check nvidia-smi, or build for the CPU (make BACKEND=cpu)");
  CUDA_CHECK(answer);
}

// The current device. A user_error if there is no GPU in the CUDA build.
inline DeviceInfo device_info() {
  int count = 0;
  cudaError_t answer = cudaGetDeviceCount(&count);
  check_devices(answer, count);
  const cudaDeviceProp& properties = device_properties();
  DeviceInfo info{properties.name, !on_cpu, properties.multiProcessorCount, 0, 0};
  size_t total = 0;
  CUDA_CHECK(cudaMemGetInfo(&info.free_memory, &total));
  if (!on_cpu) info.peak_bf16_flops = peak_bf16_flops(info.name);
  return info;
}

// On a machine with several GPUs each rank takes its own. A rank that sees only one GPU, as srun can arrange, takes it.
// A user_error if there are more ranks on this machine than GPUs.
inline void choose_device(const Ranks& ranks) {
  int count = 0;
  if (on_cpu || cudaGetDeviceCount(&count) != cudaSuccess || count <= 1) return;
  if (ranks.local >= count)
    user_error(
        "environment: rank %d is number %d on its machine, which has %d GPUs; start at most that many there (%s)",
        ranks.rank, ranks.local + 1, count, ranks.variables.c_str());
  CUDA_CHECK(cudaSetDevice(ranks.local));
}
