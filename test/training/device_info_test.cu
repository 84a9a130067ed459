// What a run says about the device and its errors: peaks by name, no GPU or an old driver, errors that come late.
#include <gtest/gtest.h>

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
                                                  {"Tesla T4", 0}};
  for (auto& [name, tflops] : peaks) EXPECT_EQ(peak_bf16_flops(name), tflops * 1e12) << name;
}

TEST(DeviceInfo, NothingToRunOn) {
  auto said = [](cudaError_t answer, int count) { return error_of([&] { check_devices(answer, count); }); };
  EXPECT_EQ(said(cudaSuccess, 1), "");
  expect_has(said(cudaErrorInsufficientDriver, 0), {"user: the GPU's driver is too old"});
  for (cudaError_t answer : {cudaSuccess, cudaErrorNoDevice}) expect_has(said(answer, 0), {"user: no GPU was found"});
  expect_has(said(cudaErrorMemoryAllocation, 0), {"failure: answer failed at "});
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
