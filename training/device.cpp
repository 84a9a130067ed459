#include "training/device.h"

#include <cstdlib>

#include "kernels/matmul.cuh"

double peak_bf16_flops(const std::string& name) {
  if (name.find(" MIG ") != std::string::npos) return 0;
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

void check_devices(cudaError_t answer, int count, int driver) {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  bool none = answer == cudaErrorNoDevice || (answer == cudaSuccess && count == 0);
  if (answer == cudaErrorInsufficientDriver && driver == 0)
    user_error(
        "there is no NVIDIA driver here (libcuda.so.1), but this is the CUDA build; on a cluster start it in a job "
        "that has a GPU, in Docker with --gpus all; else install the driver, or build for the CPU (make BACKEND=cpu)");
  if (answer == cudaErrorInsufficientDriver)
    user_error(
        "the GPU's driver is too old for this program: it supports CUDA %d.%d at most; update the driver, or build "
        "with that CUDA",
        driver / 1000, driver % 1000 / 10);
  if (answer == cudaErrorSystemNotReady)
    user_error(
        "the GPUs are not ready: where NVSwitch joins them, they wait for the fabric manager; start it (systemctl "
        "start nvidia-fabricmanager), of the same version as the driver");
  if (none && visible)
    user_error(
        "environment: CUDA_VISIBLE_DEVICES = \"%.80s\" shows no GPU to this program; unset it or name GPUs that "
        "nvidia-smi -L lists; in a job of Slurm ask for GPUs (--gpus-per-node)",
        visible);
  if (none)
    user_error(
        "no GPU was found, but this is the CUDA build; check nvidia-smi, or build for the CPU (make BACKEND=cpu)");
  CUDA_CHECK(answer);
}

void check_kernels(cudaError_t answer, const cudaDeviceProp& device) {
  if (answer == cudaErrorNoKernelImageForDevice && device.major < 8)
    user_error(
        "%s has compute capability %d.%d, but the kernels need 8.0 (Ampere) or newer; build for the CPU (make "
        "BACKEND=cpu)",
        device.name, device.major, device.minor);
  if (answer == cudaErrorNoKernelImageForDevice)
    user_error("this program was not built for %s (compute capability %d.%d); build it with make ARCH=%d%d",
               device.name, device.major, device.minor, device.major, device.minor);
  CUDA_CHECK(answer);
}

DeviceInfo device_info() {
  int count = 0, driver = 0;
  cudaError_t answer = cudaGetDeviceCount(&count);
  cudaDriverGetVersion(&driver);
  check_devices(answer, count, driver);
  const cudaDeviceProp& properties = device_properties();
  check_kernels(load_a_kernel(), properties);
  DeviceInfo info{properties.name, !on_cpu, properties.multiProcessorCount, 0, 0};
  size_t total = 0;
  CUDA_CHECK(cudaMemGetInfo(&info.free_memory, &total));
  if (!on_cpu) info.peak_bf16_flops = peak_bf16_flops(info.name);
  return info;
}

int device_of(const Ranks& ranks, int count) {
  if (count <= 1 && ranks.local == 1)  // once per machine
    warn(
        "rank %d sees one GPU, as with srun --gpus-per-task 1; NCCL copies directly only between GPUs "
        "that a rank sees: show every rank all of its machine's (srun --gpu-bind=none), it takes its own",
        ranks.rank);
  if (count <= 1) return 0;
  if (ranks.local >= count)
    user_error(
        "environment: rank %d is number %d on its machine, where it sees %d GPUs; start at most that many there, or "
        "show it all of them (srun --gpus-per-node=... --gpu-bind=none; CUDA_VISIBLE_DEVICES) (%s)",
        ranks.rank, ranks.local + 1, count, ranks.variables.c_str());
  return ranks.local;
}

void choose_device(const Ranks& ranks) {
  int count = 0;
  if (on_cpu || cudaGetDeviceCount(&count) != cudaSuccess) return;
  if (int device = device_of(ranks, count); device > 0) CUDA_CHECK(cudaSetDevice(device));
}
