// Device memory, planned once: a plan is a list of arrays that become one allocation, so a step allocates nothing.
//   MemoryPlan plan;
//   plan.add(&pointer, count, "activations");  ...
//   DeviceBlock block(plan);   // now every pointer points
// Without the allocation a plan only counts bytes, which is how the largest micro batch is found. Arrays are 256-byte
// aligned. Two sets of arrays that are never alive together can share memory: mark() before the first, rewind(mark)
// before the second.
#pragma once
#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "kernels/gpu.cuh"

class MemoryPlan {
 public:
  // count elements for *pointer; count 0 leaves nullptr. category: a line of the memory table.
  template <class T> void add(T** pointer, size_t count, const char* category) {
    *pointer = nullptr;
    if (count == 0) return;
    if (count > SIZE_MAX / 4 / sizeof(T))
      user_error("memory: an array of %zu elements (%s) is too large; use a smaller model or batch", count, category);
    size_t bytes = (count * sizeof(T) + 255) / 256 * 256, offset = position_;
    assign_.push_back([pointer, offset](char* base) { *pointer = reinterpret_cast<T*>(base + offset); });
    position_ += bytes;
    if (position_ > total_) {  // memory that a rewound part reuses is counted once, where it first grew
      category_bytes(category) += position_ - std::max(total_, offset);
      total_ = position_;
    }
  }
  // *pointer = *source, which was added before: two names for one array.
  template <class T> void alias(T** pointer, T** source) {
    assign_.push_back([pointer, source](char*) { *pointer = *source; });
  }
  size_t mark() const { return position_; }
  void rewind(size_t mark) { position_ = mark; }
  void end_sharing() { position_ = total_; }
  size_t total() const { return total_; }
  const std::vector<std::pair<std::string, size_t>>& categories() const { return categories_; }
  void point_into(char* base) const {
    for (auto& assign : assign_) assign(base);
  }

 private:
  size_t& category_bytes(const char* category) {
    for (auto& [name, bytes] : categories_)
      if (name == category) return bytes;
    return categories_.emplace_back(category, 0).second;
  }
  size_t position_ = 0, total_ = 0;
  std::vector<std::function<void(char*)>> assign_;
  std::vector<std::pair<std::string, size_t>> categories_;
};

// Owns a plan's memory, which is zero at the start.
class DeviceBlock {
 public:
  DeviceBlock() = default;
  explicit DeviceBlock(const MemoryPlan& plan) {
    CUDA_CHECK(cudaMalloc(&base_, plan.total()));
    CUDA_CHECK(cudaMemset(base_, 0, plan.total()));
    plan.point_into(base_);
  }
  DeviceBlock(const DeviceBlock&) = delete;
  DeviceBlock& operator=(DeviceBlock&& other) noexcept {
    std::swap(base_, other.base_);
    return *this;
  }
  ~DeviceBlock() {
    if (base_) cudaFree(base_);
  }

 private:
  char* base_ = nullptr;
};

// array [count] = 0
template <class T> void zero(T* array, size_t count, cudaStream_t stream) {
  ProfileScope scope("memset", stream);
  CUDA_CHECK(cudaMemsetAsync(array, 0, count * sizeof(T), stream));
}
