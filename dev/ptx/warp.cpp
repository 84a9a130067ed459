// Operations of all lanes of a warp: barriers, votes, shuffles, ldmatrix, stmatrix and mma (PTX ISA "shfl.sync",
// "vote.sync", "bar", "ldmatrix", "stmatrix", "Matrix Fragments for mma.m16n8k16").
#include <cstring>
#include "dev/ptx/decode.h"
#include "dev/ptx/floats.h"
#include "dev/ptx/machine.h"
#include "dev/ptx/tensor_core.h"

namespace ptx {
namespace {

void synchronize_warp(Context& context, const Instruction&, Mask) {
  context.block.history.warp_synchronized(context.warp.id);
}

// `variant`: the first letter of the mode.
void shuffle(Context& context, const Instruction& instruction, Mask mask) {
  const uint32_t* from = values<uint32_t>(context, instruction.operand(1));
  const uint32_t* by = values<uint32_t>(context, instruction.operand(2));
  const uint32_t* limit = values<uint32_t>(context, instruction.operand(3));
  uint32_t results[LANES], in_range[LANES];
  for (int lane = 0; lane < LANES; lane++) {
    const int clamp = limit[lane] & 31, segment = limit[lane] >> 8 & 31, b = by[lane] & 31;
    const int last = (lane & segment) | (clamp & ~segment), first = lane & segment;
    int source = lane;
    bool inside = true;
    switch (instruction.variant) {
      case 'i': source = first | (b & ~segment), inside = source <= last; break;
      case 'u': source = lane - b, inside = source >= last; break;
      case 'd': source = lane + b, inside = source <= last; break;
      case 'b': source = lane ^ b, inside = source <= last; break;
    }
    if (!inside) source = lane;
    const bool missing = (mask >> lane & 1) && !(mask >> source & 1);
    if (missing) notice("shuffle from a lane that does not take part", context, instruction);
    results[lane] = from[source];
    in_range[lane] = inside;
  }
  put(context, instruction.operand(0, 0), results, mask);
  if (instruction.count(0) == 2) put(context, instruction.operand(0, 1), in_range, mask);
}

// `variant`: the second letter of ballot, any, all.
void vote(Context& context, const Instruction& instruction, Mask mask) {
  const Mask ballot = true_lanes(context, instruction.operand(1)) & mask;
  const uint32_t result = instruction.variant == 'a'   ? ballot
                          : instruction.variant == 'n' ? ballot != 0
                                                       : ballot == mask;
  for_lanes(mask, [&](int lane) { put_lane(context, instruction.operand(0), lane, result); });
}

// Loads `amount` matrices of 8 by 8 16-bit elements; `variant`: transposed. Lane 8 i + r has the address of row r of
// matrix i.
void load_matrices(Context& context, const Instruction& instruction, Mask mask) {
  if (mask != ALL_LANES) notice("ldmatrix without all lanes", context, instruction);
  uint16_t matrix[4][8][8];
  for (int lane = 0; lane < 8 * instruction.amount; lane++) {
    const uint64_t from = address(context, instruction.operand(1), lane);
    uint16_t* row = matrix[lane / 8][lane % 8];
    if (from % 16) notice("misaligned address", context, instruction);
    if (context.block.history.access(context, instruction, from, 16, false, lane)) {
      memcpy(row, &context.block.shared[from], 16);
    } else {
      memset(row, 0xff, 16);
    }
  }
  for (int i = 0; i < instruction.amount; i++) {
    uint32_t results[LANES];
    for (int lane = 0; lane < LANES; lane++) {
      const int row = lane / 4, column = 2 * (lane % 4);
      const uint16_t low = instruction.variant ? matrix[i][column][row] : matrix[i][row][column];
      const uint16_t high = instruction.variant ? matrix[i][column + 1][row] : matrix[i][row][column + 1];
      results[lane] = uint32_t(high) << 16 | low;
    }
    put(context, instruction.operand(0, i), results, mask);
  }
}

// The other way, never transposed.
void store_matrices(Context& context, const Instruction& instruction, Mask mask) {
  if (mask != ALL_LANES) notice("stmatrix without all lanes", context, instruction);
  for (int lane = 0; lane < 8 * instruction.amount; lane++) {
    const uint64_t to = address(context, instruction.operand(0), lane);
    if (to % 16) notice("misaligned address", context, instruction);
    if (!context.block.history.access(context, instruction, to, 16, true, lane)) continue;
    const uint32_t* row = values<uint32_t>(context, instruction.operand(1, lane / 8)) + lane % 8 * 4;
    memcpy(&context.block.shared[to], row, 16);
  }
}

// D [16, 8] = A [16, 16] B [16, 8] + C
void multiply(Context& context, const Instruction& instruction, Mask mask) {
  if (mask != ALL_LANES) notice("mma without all lanes", context, instruction);
  float a[16][16], b[16][8], results[4][LANES];
  read_fragments(context, instruction, 1, a);
  for (int lane = 0; lane < LANES; lane++) {
    const int group = lane / 4, pair = 2 * (lane % 4);
    for (int i = 0; i < 2; i++) {
      const uint32_t bits = values<uint32_t>(context, instruction.operand(2, i))[lane];
      b[pair + 8 * i][group] = float_of_bf16(uint16_t(bits)),
                   b[pair + 8 * i + 1][group] = float_of_bf16(uint16_t(bits >> 16));
    }
  }
  const RightOperand right(8, [&](int k, int column) { return b[k][column]; });
  for (int row = 0; row < 16; row++) {
    float sums[8];
    for (int column = 0; column < 8; column++) {
      const Operand& c = instruction.operand(3, row / 8 * 2 + column % 2);
      sums[column] = values<float>(context, c)[row % 8 * 4 + column / 2];
    }
    right.multiply_add(a[row], sums);
    for (int column = 0; column < 8; column++) {
      results[row / 8 * 2 + column % 2][row % 8 * 4 + column / 2] = sums[column];
    }
  }
  for (int i = 0; i < 4; i++) put(context, instruction.operand(0, i), results[i], mask);
}

}  // namespace

void read_fragments(Context& context, const Instruction& instruction, int group, float (*to)[16]) {
  for (int r = 0; r < 4; r++) {
    const uint32_t* bits = values<uint32_t>(context, instruction.operand(group, r));
    for (int lane = 0; lane < LANES; lane++) {
      float* pair = &to[lane / 4 + 8 * (r & 1)][lane % 4 * 2 + 8 * (r >> 1)];
      pair[0] = float_of_bf16(uint16_t(bits[lane])), pair[1] = float_of_bf16(uint16_t(bits[lane] >> 16));
    }
  }
}

bool decode_warp(Opcode opcode, Instruction& instruction) {
  const std::string &base = opcode.base(), &text = opcode.text();
  instruction.flow = Flow::straight;
  auto together = [&](Handler handler, int member_mask) {
    instruction.flow = Flow::together;
    instruction.execute = handler;
    instruction.member_mask = member_mask;
    return true;
  };
  if (base == "shfl") {
    for (const char* mode : {"idx", "up", "down", "bfly"}) {
      if (opcode.take(mode)) instruction.variant = mode[0];
    }
    return opcode.take("sync") && opcode.take("b32") && opcode.done() && instruction.variant && together(shuffle, 4);
  }
  if (text == "vote.sync.ballot.b32" || text == "vote.sync.any.pred" || text == "vote.sync.all.pred") {
    instruction.variant = text[strlen("vote.sync.") + 1];
    instruction.negatable = 1;
    return together(vote, 2);
  }
  if (text == "bar.warp.sync") {
    instruction.destinations = 0;
    return together(synchronize_warp, 0);
  }
  if (text == "bar.sync" || text == "barrier.sync" || text == "barrier.sync.aligned") {
    instruction.destinations = 0;
    instruction.flow = Flow::barrier;
    instruction.execute = no_operation;
    return true;
  }
  if (base == "ldmatrix" || base == "stmatrix") {
    const bool stores = base == "stmatrix";
    if (!opcode.take("sync") || !opcode.take("aligned") || !opcode.take("m8n8")) return false;
    instruction.amount = opcode.take("x4") ? 4 : opcode.take("x2") ? 2 : opcode.take("x1") ? 1 : 0;
    instruction.variant = !stores && opcode.take("trans");
    instruction.destinations = stores ? 0 : 1;
    if (!opcode.take("shared") && !opcode.take("shared::cta")) return false;
    return instruction.amount && opcode.take("b16") && opcode.done() &&
           together(stores ? store_matrices : load_matrices, -1);
  }
  if (text == "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32") return together(multiply, -1);
  return false;
}

}  // namespace ptx
