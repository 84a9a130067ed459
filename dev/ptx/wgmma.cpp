// Products of warpgroups (PTX ISA "Asynchronous warpgroup level matrix instructions: wgmma"; CUTLASS
// include/cute/arch/mma_sm90_desc.hpp for the fields of a descriptor). bf16 from tiles with the 128-byte swizzle, or
// the left operand from registers, into float32 sums.
//
// Each warp multiplies its own sixteen of the 64 rows, between the instruction and the warp's wgmma.wait_group. Kernels
// must not assume that a wait covers the whole warpgroup: here it covers only the warp, and another warp's products may
// still read their tiles when it returns.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include "dev/ptx/decode.h"
#include "dev/ptx/floats.h"
#include "dev/ptx/machine.h"
#include "dev/ptx/tensor_core.h"

namespace ptx {
namespace {

constexpr int ROWS = 16;  // of a warp
constexpr int DEPTH = CORE_DEPTH;
constexpr int MOST_COLUMNS = 256;
constexpr uint32_t SWIZZLE_128 = 1;
constexpr int CHUNK = 8;  // elements that the swizzle keeps together

// Groups of a wgmma.mma_async: D, A, B, scale-d, then immediates.
enum Group { SUMS, LEFT, RIGHT, ADD, SCALE_LEFT, SCALE_RIGHT, TRANSPOSE };

bool left_in_registers(const Instruction& instruction) { return instruction.count(LEFT) == 4; }

struct Descriptor {
  uint32_t start, leading, stride, base_offset, swizzle;  // the first three in bytes
  explicit Descriptor(uint64_t bits) {
    auto field = [&](int at, int width) { return uint32_t(bits >> at & ((uint64_t(1) << width) - 1)); };
    start = field(0, 14) << 4;
    leading = field(16, 14) << 4;
    stride = field(32, 14) << 4;
    base_offset = field(49, 3);
    swizzle = field(62, 2);
  }
};

// Reads the elements [rows][DEPTH] of a descriptor: rows are the rows of D for the left operand, its columns for the
// right one. `along`: rows are contiguous in memory (the transpose bit), in parts of 64; otherwise the depth is
// contiguous, in groups of 8 rows.
bool read_tile(Context& context, const Product& product, uint64_t bits, bool along, int first_row, int rows,
               float (*to)[DEPTH]) {
  const Instruction& instruction = *product.instruction;
  const Descriptor tile(bits);
  // The swizzle's pattern follows from the address: a tile begins a pattern, or moves along its first row.
  const bool start_known = tile.start % 1024 < (along ? 1u : 128u);
  if (tile.base_offset || tile.swizzle != SWIZZLE_128 || !start_known) {
    notice("a wgmma descriptor that is not modelled", context, instruction);
    return false;
  }
  auto chunk = [&](uint32_t offset, auto&& element) {
    const uint32_t at = swizzled(tile.start + offset);
    if (!context.block.history.product_read(context, instruction, at, 2 * CHUNK, product.sequence)) return false;
    uint16_t elements[CHUNK];
    memcpy(elements, &context.block.shared[at], sizeof elements);
    for (int i = 0; i < CHUNK; i++) element(i) = float_of_bf16(elements[i]);
    return true;
  };
  if (!along) {
    for (int row = 0; row < rows; row++) {
      const int r = first_row + row;
      for (int k = 0; k < DEPTH; k += CHUNK) {
        auto element = [&](int i) -> float& { return to[row][k + i]; };
        if (!chunk(r % 8 * 128 + r / 8 * tile.stride + 2 * k, element)) return false;
      }
    }
    return true;
  }
  for (int k = 0; k < DEPTH; k++) {
    for (int row = 0; row < rows; row += CHUNK) {
      const int r = first_row + row;
      auto element = [&](int i) -> float& { return to[row + i][k]; };
      if (!chunk(r % 64 * 2 + r / 64 * tile.leading + k % 8 * 128 + k / 8 * tile.stride, element)) return false;
    }
  }
  return true;
}

template <class T> T uniform(Context& context, const Instruction& instruction, const Operand& operand) {
  const T* all = values<T>(context, operand);
  if (!std::all_of(all, all + LANES, [&](T one) { return one == all[0]; })) {
    notice("an operand of wgmma differs between lanes", context, instruction);
  }
  return all[0];
}

void remember(Warp& warp, uint64_t what) {
  uint64_t& history = warp.products.history;
  history = history * 0x9e3779b97f4a7c15 + what + 1;
}

// Checks the registers of a product: they must not have been written since the warp's last wgmma.fence, unless an
// earlier product uses them in the same way.
void check_fence(Context& context, const Instruction& instruction, int reg) {
  const RegisterChecks& checks = context.warp.checks;
  if (checks.fence[reg] == checks.fences) {
    notice("wgmma uses a register that was written since wgmma.fence, " + context.block.kernel.registers[reg].name,
           context, instruction);
  }
}

void begin_product(Context& context, const Instruction& instruction, Mask mask) {
  Warp& warp = context.warp;
  RegisterChecks& checks = warp.checks;
  if (mask != ALL_LANES) notice("wgmma without all lanes", context, instruction);
  if (checks.fences == 1) notice("wgmma before any wgmma.fence", context, instruction);
  Product product = {};
  product.instruction = &instruction;
  product.group = -1;
  product.sequence = ++warp.products.issued;
  product.right = uniform<uint64_t>(context, instruction, instruction.operand(RIGHT));
  product.add = uniform<uint32_t>(context, instruction, instruction.operand(ADD)) & 1;
  if (!left_in_registers(instruction)) {
    product.left = uniform<uint64_t>(context, instruction, instruction.operand(LEFT));
  }
  for (uint64_t part : {uint64_t(&instruction - context.block.kernel.code.data()), product.left, product.right,
                        uint64_t(product.add)}) {
    remember(warp, part);
  }
  for (int i = 0; i < instruction.count(SUMS); i++) {
    const Operand& sum = instruction.operand(SUMS, i);
    if (!checks.accumulating[sum.reg]) {
      check_fence(context, instruction, sum.reg);
      memcpy(&warp.products.sums[sum.offset], warp.registers + sum.offset, LANES * sizeof(float));
      std::fill_n(warp.registers + sum.offset, LANES, REGISTER_POISON);
    }
    checks.accumulating[sum.reg]++;
  }
  for (int i = 0; left_in_registers(instruction) && i < instruction.count(LEFT); i++) {
    const int reg = instruction.operand(LEFT, i).reg;
    check_fence(context, instruction, reg);
    if (checks.accumulating[reg]) notice("wgmma multiplies sums that are under way", context, instruction);
    checks.multiplied[reg]++;
  }
  checks.products++;
  warp.products.under_way.push_back(product);
  context.block.progress++;  // for warps that wait for the others of their warpgroup
  if (async_now() == Async::early || (async_now() == Async::random && draw(3) == 0)) {
    for (Product& earlier : warp.products.under_way) run_product(context, earlier);
  }
}

// Gives the results and the registers of a finished product back to the warp.
void end_product(Context& context, const Product& product) {
  Warp& warp = context.warp;
  const Instruction& instruction = *product.instruction;
  for (int i = 0; i < instruction.count(SUMS); i++) {
    const Operand& sum = instruction.operand(SUMS, i);
    if (--warp.checks.accumulating[sum.reg]) continue;
    memcpy(warp.registers + sum.offset, &warp.products.sums[sum.offset], LANES * sizeof(float));
  }
  for (int i = 0; left_in_registers(instruction) && i < instruction.count(LEFT); i++) {
    warp.checks.multiplied[instruction.operand(LEFT, i).reg]--;
  }
  warp.checks.products--;
}

bool waited_for(const Warp& warp, const Product& product, const Instruction& wait) {
  return product.group >= 0 && product.group < warp.products.committed - wait.amount;
}

void wait(Context& context, const Instruction& instruction, Mask) {
  std::deque<Product>& under_way = context.warp.products.under_way;
  remember(context.warp, instruction.amount);
  while (!under_way.empty() && waited_for(context.warp, under_way.front(), instruction)) {
    Product& product = under_way.front();
    run_product(context, product);
    context.block.history.products_waited_for(context.warp.id, product.sequence);
    end_product(context, product);
    under_way.pop_front();
  }
}

void fence(Context& context, const Instruction&, Mask) { context.warp.checks.fences++; }

void commit(Context& context, const Instruction&, Mask) {
  Products& products = context.warp.products;
  for (Product& product : products.under_way) {
    if (product.group < 0) product.group = products.committed;
  }
  products.committed++;
  remember(context.warp, 0);
}

void set_registers(Context& context, const Instruction& instruction, Mask) {
  if (instruction.amount % 8 || instruction.amount < 24 || instruction.amount > 256) {
    notice("setmaxnreg takes multiples of 8 from 24 to 256", context, instruction);
  }
  remember(context.warp, instruction.amount);
}

}  // namespace

void run_product(Context& context, Product& product) {
  if (product.done) return;
  product.done = true;
  const Instruction& instruction = *product.instruction;
  const bool registers = left_in_registers(instruction);
  const int columns = instruction.amount;
  const int scale = immediate(instruction, SCALE_LEFT) * immediate(instruction, SCALE_RIGHT);
  if (std::abs(scale) != 1) notice("wgmma scales by 1 or -1", context, instruction);
  static float left[ROWS][DEPTH], right[MOST_COLUMNS][DEPTH];
  bool known = true;
  if (registers) {
    read_fragments(context, instruction, LEFT, left);
  } else {
    known = read_tile(context, product, product.left, immediate(instruction, TRANSPOSE), context.warp.id % 4 * ROWS,
                      ROWS, left);
  }
  const bool transpose_right = immediate(instruction, registers ? TRANSPOSE : TRANSPOSE + 1);
  known = known && read_tile(context, product, product.right, transpose_right, 0, columns, right);
  const RightOperand factors(columns, [&](int k, int column) { return right[column][k]; });
  float* sums = reinterpret_cast<float*>(context.warp.products.sums.data());
  for (int row = 0; row < ROWS; row++) {
    auto place = [&](int column) -> float& {
      const int lane = row % 8 * 4 + column % 8 / 2, reg = column / 8 * 4 + row / 8 * 2 + column % 2;
      return sums[instruction.operand(SUMS, reg).offset + lane];
    };
    float sums_of_row[MOST_COLUMNS];
    for (int k = 0; k < DEPTH; k++) left[row][k] *= float(scale);
    for (int column = 0; column < columns; column++) sums_of_row[column] = product.add ? place(column) : 0;
    factors.multiply_add(left[row], sums_of_row);
    for (int column = 0; column < columns; column++) place(column) = known ? sums_of_row[column] : canonical_nan();
  }
}

bool decode_wgmma(Opcode opcode, Instruction& instruction) {
  const std::string& text = opcode.text();
  auto with = [&](Handler handler, Flow flow = Flow::together) {
    instruction.flow = flow;
    instruction.member_mask = -1;
    instruction.execute = handler;
    return true;
  };
  instruction.destinations = 0;
  if (text == "wgmma.fence.sync.aligned") return with(fence);
  if (text == "wgmma.commit_group.sync.aligned") return with(commit);
  if (text == "wgmma.wait_group.sync.aligned") {
    instruction.amount = immediate(instruction, 0);
    return with(wait);
  }
  if (text == "setmaxnreg.inc.sync.aligned.u32" || text == "setmaxnreg.dec.sync.aligned.u32") {
    instruction.amount = immediate(instruction, 0);
    return with(set_registers);
  }
  instruction.destinations = 1;
  for (int columns = 8; columns <= MOST_COLUMNS; columns += 8) {
    if (text != "wgmma.mma_async.sync.aligned.m64n" + std::to_string(columns) + "k16.f32.bf16.bf16") continue;
    instruction.amount = columns;
    instruction.product = true;
    return with(begin_product);
  }
  return false;
}

}  // namespace ptx
