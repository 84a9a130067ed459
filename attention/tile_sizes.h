// How large the tiles of attention are, for each family, pass and width (channels of a tile: the least width that holds
// the head), with the reason for each. A block holds some rows and lets the others stream past. Plain numbers, of which
// tiles.cuh, tensor_tiles.cuh and hopper_tiles.cuh make types.
#pragma once

// ---- general kernels: widths 32, 64 and 128, on a CPU 128; larger heads take several chunks of 128 channels

struct GeneralSize {
  int held, stream, threads;
};
// A CPU wants few threads with many sums each: the sums fill its vector registers, and a barrier costs it a change of
// stacks for every thread.
constexpr GeneralSize GENERAL_ON_CPU = {64, 64, 16};
// A narrow head leaves some of these threads idle, which takes next to no time, and halves the time to compile a kind.
constexpr int general_width(int width, bool cpu) { return cpu ? 128 : width; }
// Kinds of two sweeps have two outputs in training. Evaluation takes the same tiles, and so gives the same bits.
constexpr GeneralSize general_forward_size(int width, int sweeps, bool cpu) {
  if (cpu) return GENERAL_ON_CPU;
  if (width == 32 && sweeps > 1) return {64, 32, 128};  // half the scores and half the outputs for each thread
  if (width == 64 && sweeps > 1) return {32, 64, 128};  // the same
  if (width == 32) return {64, 64, 64};                 // with half the channels, twice the held rows of width 64
  if (width == 64) return {32, 64, 64};                 // 45 KB
  return {32, 64, 128};                                 // with twice the channels, twice the threads
}
constexpr GeneralSize general_backward_size(int width, bool cpu) {
  if (cpu) return GENERAL_ON_CPU;
  if (width == 32) return {64, 32, 64};  // two tensors are held and two stream: half the streamed rows of the forward
  if (width == 64) return {32, 64, 64};  // as the forward: 74 KB
  return {16, 64, 64};                   // with twice the channels, half the held rows: 98 KB
}

// ---- tensor-core kernels: widths 32, 64, 96 and 128

struct TensorSize {
  int groups, stream;  // groups: of 16 held rows, for each of a block's 4 warps
};
constexpr TensorSize tensor_forward_size(int width, int sweeps) {
  bool two_outputs = sweeps > 1;                    // in training
  if (two_outputs && width == 128) return {1, 32};  // two outputs of 128 channels leave registers for 32 keys
  if (two_outputs || width > 64) return {1, 64};    // outputs of this size leave registers for one group
  return {2, 64};                                   // what is read from shared memory serves two products
}
constexpr TensorSize tensor_backward_size(int width, int heavy) {
  if (width == 32) return {1, 64};                 // small sums leave registers for 64 rows
  if (width == 128 && heavy == 2) return {1, 16};  // 32 rows would spill
  return {1, 32};                                  // 64 rows would take twice the memory and up to 237 registers
}

// ---- Hopper's kernels: widths 64 and 128; a block holds 128 rows

struct HopperSize {
  int stream, slots;  // rows of a streamed tile, tiles in the ring
};
// As for the general kernels, evaluation takes the tiles of training.
constexpr HopperSize hopper_forward_size(int width, int sweeps) {
  if (width == 64) return {128, 8};  // a ring of 128 KB, beside 32 KB of queries
  if (sweeps == 1) return {128, 4};  // the same ring, beside 64 KB of queries
  return {64, 8};                    // two outputs of 128 channels leave registers for 64 keys
}
// The widest heads: with a window or a bias dK and dV of two tensors of 128 channels spill where slopes are needed.
constexpr int hopper_widest(int heavy, bool shaped) { return heavy && shaped ? 64 : 128; }
constexpr HopperSize hopper_keys_size(int width, int heavy) {
  if (width == 128) return {64, 4};  // 128 KB are held: a ring of 64 KB fits beside them
  if (heavy) return {64, 8};         // slopes of scores leave registers for 64 queries: 128 would spill
  return {128, 4};                   // z, dP, dk and dv take 192 registers of 240; half the waits of 64 queries
}
constexpr HopperSize hopper_queries_size(int width) {
  if (width == 64) return {128, 4};  // one sum, dq: registers for 128 keys; the same ring
  return {64, 4};                    // 128 KB are held, as above
}
