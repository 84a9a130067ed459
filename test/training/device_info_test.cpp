// A run's output about the device and its errors: peaks by name, no GPU or an old driver, errors that come late.
#include <gtest/gtest.h>

#include <algorithm>

#include "test/support/error_of.h"
#include "training/device.h"

namespace {

TEST(DeviceInfo, PeaksByName) {
  const std::pair<const char*, double> peaks[] = {{"NVIDIA GB200", 2500},
                                                  {"NVIDIA B200", 2250},
                                                  {"NVIDIA H200", 989},
                                                  {"NVIDIA H200 NVL", 836},
                                                  {"NVIDIA GH200 480GB", 989},
                                                  {"NVIDIA H100 80GB HBM3", 989},
                                                  {"NVIDIA H100 PCIe", 756},
                                                  {"NVIDIA H100 NVL", 836},
                                                  {"NVIDIA A100-SXM4-80GB", 312},
                                                  {"NVIDIA A100-PCIE-40GB", 312},
                                                  {"NVIDIA A800 80GB PCIe", 312},
                                                  {"NVIDIA A10", 125},
                                                  {"NVIDIA A10G", 70},
                                                  {"NVIDIA L4", 121},
                                                  {"NVIDIA L40", 181},
                                                  {"NVIDIA L40S", 362},
                                                  {"NVIDIA RTX A6000", 155},
                                                  {"NVIDIA RTX 6000 Ada Generation", 364},
                                                  {"NVIDIA GeForce RTX 3090", 71},
                                                  {"NVIDIA GeForce RTX 4090", 165},
                                                  {"NVIDIA GeForce RTX 5090", 209.5},
                                                  {"NVIDIA H100 80GB HBM3 MIG 1g.10gb", 0},
                                                  {"Tesla T4", 0}};
  for (auto& [name, tflops] : peaks) EXPECT_EQ(peak_bf16_flops(name), tflops * 1e12) << name;
}

TEST(DeviceInfo, NothingToRunOn) {
  auto said = [](cudaError_t answer, int count = 0, int driver = 12040) {
    return error_of([&] { check_devices(answer, count, driver); });
  };
  unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(said(cudaSuccess, 1), "");
  expect_has(said(cudaErrorInsufficientDriver), {"user: the GPU's driver is too old", "supports CUDA 12.4 at most"});
  expect_has(said(cudaErrorInsufficientDriver, 0, 0), {"user: there is no NVIDIA driver here", "--gpus all"});
  expect_has(said(cudaErrorSystemNotReady), {"user: ", "systemctl start nvidia-fabricmanager"});
  expect_has(said(cudaErrorMemoryAllocation), {"failure: answer failed at "});
  for (cudaError_t answer : {cudaSuccess, cudaErrorNoDevice}) expect_has(said(answer), {"user: no GPU was found"});
  setenv("CUDA_VISIBLE_DEVICES", "-1", 1);
  for (cudaError_t answer : {cudaSuccess, cudaErrorNoDevice})
    expect_has(said(answer), {"user: environment: CUDA_VISIBLE_DEVICES = \"-1\" shows no GPU"});
  unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST(DeviceInfo, BuiltForOthers) {
  auto said = [](cudaError_t answer, int major, int minor) {
    cudaDeviceProp device = {};
    std::snprintf(device.name, sizeof device.name, "a GPU");
    device.major = major, device.minor = minor;
    return error_of([&] { check_kernels(answer, device); });
  };
  EXPECT_EQ(said(cudaSuccess, 12, 0), "");
  expect_has(said(cudaErrorNoKernelImageForDevice, 12, 0), {"user: ", "a GPU (compute capability 12.0)", "ARCH=120"});
  expect_has(said(cudaErrorNoKernelImageForDevice, 7, 5), {"user: a GPU has", "7.5", "BACKEND=cpu"});
}

TEST(DeviceInfo, OfARank) {
  auto device = [](int local, int count) {
    Ranks ranks;
    ranks.rank = 8 + local, ranks.local = local;
    return device_of(ranks, count);
  };
  EXPECT_EQ(device(0, 8), 0);
  EXPECT_EQ(device(7, 8), 7);
  expect_has(error_of([&] { device(4, 4); }), {"user: ", "rank 12 is number 5 on its machine, where it sees 4 GPUs"});
  testing::internal::CaptureStderr();
  for (int local = 0; local < 8; local++) EXPECT_EQ(device(local, 1), 0);
  std::string warnings = testing::internal::GetCapturedStderr();
  expect_has(warnings, {"rank 9 sees one GPU", "--gpu-bind=none"});
  EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 1);  // of a machine
}

TEST(CudaErrors, OfKernelsNameThemAll) {
  const char* by = " (CUDA_LAUNCH_BLOCKING=1 tells which)";
  for (cudaError_t error : {cudaErrorIllegalAddress, cudaErrorLaunchTimeout, cudaErrorAssert,
                            cudaErrorHardwareStackError, cudaErrorLaunchFailure}) {
    std::string text = error_of([&] { CUDA_CHECK(error); });
    EXPECT_TRUE(text.ends_with(cudaGetErrorString(error) + std::string(", in a kernel before it") + by)) << text;
    EXPECT_EQ(cuda_error_text(error, "this one"), cudaGetErrorString(error) + std::string(", in this one") + by);
  }
  std::string text = error_of([&] { CUDA_CHECK(cudaErrorInvalidValue); });
  EXPECT_TRUE(text.ends_with(std::string(": ") + cudaGetErrorString(cudaErrorInvalidValue))) << text;
}

}  // namespace
