// The device that the program runs on.
#pragma once
#include <string>

#include "kernels/matmul.cuh"
#include "ranks/ranks.h"

struct DeviceInfo {
  std::string name;  // "NVIDIA H200", or the processor's name
  bool is_gpu;
  int processors;          // multiprocessors, or cores
  size_t free_memory;      // bytes
  double peak_bf16_flops;  // per second; dense tensor-core peak from the data sheet; 0 if unknown
  std::string products = matmul_library();
};

// Dense bf16 operations per second of a device by its name; 0 if the name is unknown, or that of a part of a GPU (MIG).
double peak_bf16_flops(const std::string& name);

// Checks the answer of cudaGetDeviceCount: a user_error that names the cause if there is nothing to run on. driver: the
// newest CUDA that it supports, 12040 for 12.4; 0 if there is none.
void check_devices(cudaError_t answer, int count, int driver);

// Checks what loading a kernel on the device said: a user_error if the program was compiled for other devices.
void check_kernels(cudaError_t answer, const cudaDeviceProp& device);

// The current device. A user_error if there is no GPU in the CUDA build.
DeviceInfo device_info();

// The GPU of a rank that sees `count` of them: that of its number on its machine, or the only one. A user_error if
// there are more ranks on this machine than GPUs.
int device_of(const Ranks& ranks, int count);

void choose_device(const Ranks& ranks);
