// Boxes of tensors to and from shared memory, and the driver's function that describes them (CUDA driver API,
// cuTensorMapEncodeTiled, with the limits that its documentation names).
#include "dev/ptx/tensor_map.h"
#include <cuda.h>
#include <cstring>

namespace ptx {
namespace {

// Calls f(element of the tensor, or null outside it; its address in shared memory) for every element of the box.
template <class F> void for_box(const TensorMap& map, const TileCoordinates& corner, uint32_t base, F&& f) {
  uint32_t place = base, d[TENSOR_RANK];
  for (d[3] = 0; d[3] < map.box[3]; d[3]++) {
    for (d[2] = 0; d[2] < map.box[2]; d[2]++) {
      for (d[1] = 0; d[1] < map.box[1]; d[1]++) {
        for (d[0] = 0; d[0] < map.box[0]; d[0]++, place += 2) {
          bool inside = true;
          uint64_t address = map.address;
          for (int i = 0; i < TENSOR_RANK; i++) {
            const int64_t x = int64_t(corner.at[i]) + d[i];
            inside &= x >= 0 && uint64_t(x) < map.extent[i];
            address += uint64_t(x) * (i ? map.stride[i - 1] : 2);
          }
          f(inside ? reinterpret_cast<uint8_t*>(address) : nullptr, swizzled(place));
        }
      }
    }
  }
}

}  // namespace

uint64_t TensorMap::bytes() const {
  uint64_t last = 2 * (extent[0] - 1);
  for (int i = 1; i < TENSOR_RANK; i++) last += (extent[i] - 1) * stride[i - 1];
  return last + 2;
}

void load_box(const TensorMap& map, const TileCoordinates& at, uint8_t* shared, uint32_t base) {
  for_box(map, at, base, [&](const uint8_t* element, uint32_t place) {
    if (element) {
      memcpy(shared + place, element, 2);
    } else {
      memset(shared + place, 0, 2);
    }
  });
}

void store_box(const TensorMap& map, const TileCoordinates& at, const uint8_t* shared, uint32_t base) {
  for_box(map, at, base, [&](uint8_t* element, uint32_t place) {
    if (element) memcpy(element, shared + place, 2);
  });
}

}  // namespace ptx

using namespace ptx;

extern "C" CUresult cuTensorMapEncodeTiled(CUtensorMap* out, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                           const cuuint64_t* extent, const cuuint64_t* stride, const cuuint32_t* box,
                                           const cuuint32_t* element_stride, CUtensorMapInterleave interleave,
                                           CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                                           CUtensorMapFloatOOBfill fill) {
  const bool modelled = type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 && rank == TENSOR_RANK &&
                        interleave == CU_TENSOR_MAP_INTERLEAVE_NONE && swizzle == CU_TENSOR_MAP_SWIZZLE_128B &&
                        fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
  if (!modelled) return CUDA_ERROR_NOT_SUPPORTED;
  if (reinterpret_cast<uint64_t>(out) % 64 || reinterpret_cast<uint64_t>(address) % 16) return CUDA_ERROR_INVALID_VALUE;
  TensorMap map = {};
  map.magic = TensorMap::MAGIC;
  map.address = reinterpret_cast<uint64_t>(address);
  for (int i = 0; i < TENSOR_RANK; i++) {
    if (!extent[i] || extent[i] > 1ull << 32 || !box[i] || box[i] > 256 || element_stride[i] != 1) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    map.extent[i] = extent[i];
    map.box[i] = box[i];
  }
  for (int i = 0; i < TENSOR_RANK - 1; i++) {
    if (stride[i] % 16 || stride[i] >= 1ull << 40) return CUDA_ERROR_INVALID_VALUE;
    map.stride[i] = stride[i];
  }
  if (2 * box[0] % 16 || 2 * box[0] > 128) return CUDA_ERROR_INVALID_VALUE;
  static_assert(sizeof map <= sizeof *out);
  memset(out, 0xee, sizeof *out);
  memcpy(out, &map, sizeof map);
  return CUDA_SUCCESS;
}
