// The tables of tile sizes in attention/README.md are those of attention/tile_sizes.h, with the shared memory that the
// kernels ask for. A failure shows the line that the document should have.
#include <gtest/gtest.h>

#include "attention/hopper_tiles.cuh"
#include "attention/policies.cuh"
#include "attention/tensor_tiles.cuh"
#include "attention/tiles.cuh"
#include "base/file.h"

using SomeSoftmax = Softmax<FullMaths>;
using SomeLssar = Lssar<FullMaths, WholePower>;
using FastLssar = Lssar<FastMaths, FixedPower<15>>;

static int kilobytes(size_t bytes) { return int((bytes + 512) / 1024); }

static void expect_line(const std::string& line) {
  static const std::string readme = read_text_file("attention/README.md", "the document with the tables", 1 << 20);
  EXPECT_NE(readme.find("\n" + line + "\n"), std::string::npos) << "attention/README.md should have\n" << line;
}

template <class Tile> static std::string general_cell(int floats) {
  return format("%d x %d, %d, %d", Tile::HELD, Tile::STREAM, Tile::THREADS, kilobytes(floats * sizeof(float)));
}
template <int WIDTH> static void expect_general_line() {
  using Forward = GeneralTile<WIDTH, general_forward_size(WIDTH, SomeSoftmax::SWEEPS, false)>;
  using Lssar = GeneralTile<WIDTH, general_forward_size(WIDTH, SomeLssar::SWEEPS, false)>;
  using Backward = GeneralTile<WIDTH, general_backward_size(WIDTH, false)>;
  expect_line(format("| %d | ", WIDTH) + general_cell<Forward>(Forward::template FORWARD_FLOATS<SomeSoftmax>) + " | " +
              general_cell<Lssar>(Lssar::template FORWARD_FLOATS<SomeLssar>) + " | " +
              general_cell<Backward>(Backward::BACKWARD_FLOATS) + " |");
}
TEST(TileSizes, General) {
  expect_general_line<32>();
  expect_general_line<64>();
  expect_general_line<128>();
}

template <class Tile> static std::string tensor_cell(int held_tensors) {
  return format("%d x %d, %d", Tile::HELD, Tile::STREAM, kilobytes(Tile::shared_elements(held_tensors) * sizeof(bf16)));
}
template <int WIDTH> static void expect_tensor_line() {
  expect_line(format("| %d | ", WIDTH) +
              tensor_cell<TensorTile<WIDTH, tensor_forward_size(WIDTH, SomeSoftmax::SWEEPS)>>(1) + " | " +
              tensor_cell<TensorTile<WIDTH, tensor_forward_size(WIDTH, SomeLssar::SWEEPS)>>(1) + " | " +
              tensor_cell<TensorTile<WIDTH, tensor_backward_size(WIDTH, 0)>>(2) + " |");
}
TEST(TileSizes, Tensor) {
  expect_tensor_line<32>();
  expect_tensor_line<64>();
  expect_tensor_line<96>();
  expect_tensor_line<128>();
}

template <class Tile> static std::string hopper_cell() {
  return format("%d, %d, %d", Tile::STREAM, Tile::SLOTS, kilobytes(Tile::SHARED_BYTES));
}
template <int WIDTH> static void expect_hopper_line() {
  expect_line(
      format("| %d | ", WIDTH) + hopper_cell<HopperTile<WIDTH, hopper_forward_size(WIDTH, SomeSoftmax::SWEEPS), 1>>() +
      " | " + hopper_cell<HopperTile<WIDTH, hopper_forward_size(WIDTH, SomeLssar::SWEEPS), 1>>() + " | " +
      hopper_cell<HopperTile<WIDTH, hopper_keys_size(WIDTH, SomeSoftmax::HEAVY), 2, SomeSoftmax::ROW_VALUES>>() +
      " | " + hopper_cell<HopperTile<WIDTH, hopper_keys_size(WIDTH, FastLssar::HEAVY), 2, FastLssar::ROW_VALUES>>() +
      " | " + hopper_cell<HopperTile<WIDTH, hopper_queries_size(WIDTH), 2>>() + " |");
}
TEST(TileSizes, Hopper) {
  expect_hopper_line<64>();
  expect_hopper_line<128>();
}
