// The arithmetic of tensor cores, for mma (warp.h) and for products of a warpgroup (hopper.cpp).
#pragma once

namespace cpu {

// d [rows][columns] += a [rows][depth] b [depth][columns] with bf16 values in a and b: rows of d, a and b are d_stride,
// a_stride and b_stride floats apart. rows: a multiple of 4, columns of 8, depth of 16, at most 64, 256 and 128.
struct CoreProduct {
  float* d;
  int d_stride;
  const float* a;
  int a_stride;
  const float* b;
  int b_stride;
  int rows, columns, depth;
};
enum class CoreOp { mma, wgmma };
void multiply_on_core(const CoreProduct& p, CoreOp op);

}  // namespace cpu
