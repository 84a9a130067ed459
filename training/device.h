// The device that the program runs on.
#pragma once
#include <string>

#include "kernels/gpu.cuh"
#include "ranks/ranks.h"

struct DeviceInfo {
  std::string name;         // "NVIDIA H200", or the processor's name
  bool is_gpu;
  int processors;           // multiprocessors, or cores
  size_t free_memory;       // bytes
  double peak_bf16_flops;   // per second; dense tensor-core peak from the data sheet; 0 if unknown
};

// The current device. A user_error if there is no GPU in the CUDA build.
inline DeviceInfo device_info() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0)
    user_error(
        "no GPU was found, but this is the CUDA build; check nvidia-smi, or build for the CPU (make BACKEND=cpu)");
  int device = 0;
  cudaDeviceProp properties;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  DeviceInfo info{properties.name, !on_cpu, properties.multiProcessorCount, 0, 0};
  size_t total = 0;
  CUDA_CHECK(cudaMemGetInfo(&info.free_memory, &total));
  // Data-sheet peaks without sparsity; the first name that the device's name contains counts.
  static const struct {
    const char* name;
    double tflops;
  } peaks[] = {{"H200", 989},    {"H100 PCIe", 756},    {"H100", 989}, {"GH200", 989}, {"A100", 312},
               {"A800", 312},    {"L40S", 362},         {"L4", 121},   {"A10", 125},   {"RTX 4090", 165},
               {"RTX 3090", 71}, {"RTX 6000 Ada", 364}, {"A6000", 155}};
  for (auto& peak : peaks) {
    if (on_cpu || info.name.find(peak.name) == std::string::npos) continue;
    info.peak_bf16_flops = peak.tflops * 1e12;
    break;
  }
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
