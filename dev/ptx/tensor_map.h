// The layout of a tensor map's 128 bytes, and the copies that it describes. Only the driver and the copy engine know
// the real encoding (PTX ISA "Tensor-map"); here both are replaced, so this layout is our own.
#pragma once
#include <cstdint>

namespace ptx {

constexpr int TENSOR_RANK = 4;

struct TensorMap {  // bf16, innermost dimension first, 128-byte swizzle, zeros outside
  static constexpr uint64_t MAGIC = 0x70616d726f736e74;
  uint64_t magic;
  uint64_t address;
  uint64_t extent[TENSOR_RANK];
  uint64_t stride[TENSOR_RANK - 1];  // bytes, from dimension 1 on
  uint32_t box[TENSOR_RANK];
  uint32_t box_bytes() const { return 2 * box[0] * box[1] * box[2] * box[3]; }
  uint64_t bytes() const;  // from the first element to the end of the last
};
struct TileCoordinates {
  int32_t at[TENSOR_RANK];
};

// The address at which the 128-byte swizzle puts a byte of shared memory: bits 4 to 6 are XORed with bits 7 to 9
// (CUTLASS: Swizzle<3, 4, 3>).
inline uint32_t swizzled(uint32_t address) { return address ^ ((address >> 7 & 7) << 4); }

// Copies a box between the tensor and shared memory, where it is dense at `base` except for the swizzle.
void load_box(const TensorMap& map, const TileCoordinates& at, uint8_t* shared, uint32_t base);
void store_box(const TensorMap& map, const TileCoordinates& at, const uint8_t* shared, uint32_t base);

}  // namespace ptx
