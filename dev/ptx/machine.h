// A multiprocessor that executes PTX: blocks one after another in random order, warps of a block in random turns of
// random length, the lanes of a warp together until they diverge. Asynchronous copies and products stay under way until
// a wait requires them (late), or end at some moment before that (random); until then their results are poison.
//
// Sources: PTX ISA "Memory Consistency Model", "Asynchronous Operations", "Parallel Synchronization and Communication
// Instructions", "Asynchronous warpgroup level matrix instructions"; CUTLASS
// include/cute/arch/{copy_sm90_desc,mma_sm90_desc}.hpp for descriptors and swizzles.
//
// Not modelled, so that errors in these are not found here:
//   - ptxas and machine code: register allocation, spills; the register counts of setmaxnreg
//   - the real cuBLASLt: cublaslt.cpp computes what its documentation says
//   - streams: every launch has ended when it returns
//   - a memory order weaker than happens-before between warps (between lanes: from one bar.warp.sync or bar.sync to the
//     next); races in global memory are noticed between blocks, but not those of tensor-map copies
//   - clusters, and everything else that decode() rejects
//   - time
#pragma once
#include <deque>
#include <map>
#include <tuple>
#include <utility>
#include <vector>
#include "dev/ptx/checks.h"
#include "dev/ptx/options.h"
#include "dev/ptx/program.h"
#include "dev/ptx/tensor_map.h"

namespace ptx {

constexpr uint32_t REGISTER_POISON = 0x7fffdead;
constexpr int BYTE_POISON = 0xff;  // of memory: NaN in every format

// ---- work under way

struct Mbarrier {
  uint32_t expected, pending;  // arrivals
  int64_t bytes;               // announced minus arrived
  uint32_t phase;              // the open one: the number of completed ones
};

struct LaneCopy {  // cp.async
  int lane;
  uint32_t to;
  uint64_t from;
  uint32_t bytes, filled;  // from global memory, and zeros after them
  int group;               // -1: not committed
  const Instruction* instruction;
};

struct BulkLoad {  // cp.async.bulk into shared memory
  bool tensor;
  TensorMap map;
  TileCoordinates at;
  uint64_t from;
  uint32_t to, bytes, mbarrier;
  const Instruction* instruction;
};

struct BulkStore {  // cp.async.bulk out of shared memory
  TensorMap map;
  TileCoordinates at;
  uint32_t from, bytes;
  int thread, group;
  bool done;
  const Instruction* instruction;
};

struct Product {  // one warp's part of a wgmma
  const Instruction* instruction;
  uint64_t left, right;  // descriptors
  bool add;
  bool done;
  int group;
  uint32_t sequence;  // among those of the warp, from 1
};

struct Products {  // of a warp
  std::deque<Product> under_way;
  std::vector<uint32_t> sums;  // the accumulators' true values: their registers are poison while products are under way
  int committed = 0;
  uint32_t issued = 0;
  uint64_t history = 0;  // hash of the operations that all warps of a warpgroup must do alike
};

// ---- warps and blocks

struct Path {  // lanes of a warp that are at the same instruction
  int at;
  Mask lanes;
  bool waiting = false;  // for the other lanes
  bool tried = false;    // its mbarrier.try_wait returned false
};

struct Warp {
  struct alignas(64) Line {
    uint32_t words[16];
  };
  int id = 0;
  std::vector<Line> storage;
  uint32_t* registers = nullptr;
  std::vector<uint8_t> local;  // local memory, lane after lane
  Mask all = 0, exited = 0;
  std::vector<Path> paths;
  int current = 0;
  bool at_barrier = false, finished = false;
  uint64_t tried_at = ~0ull;  // the block's progress when this warp could only try again
  RegisterChecks checks;
  Products products;
  std::vector<LaneCopy> copies;
  int copy_groups[LANES] = {};

  Mask alive() const { return all & ~exited; }
};

struct Barrier {
  int arrived = 0;
  int needed = 0;  // threads; -1: all warps that have not exited
  std::vector<int> warps;
};

struct Shape {
  uint32_t x, y, z;
};

struct Block {
  Block(const Kernel& kernel, uint8_t* parameters, Shape grid, Shape threads, uint32_t linear, size_t shared_bytes);
  const Kernel& kernel;
  uint8_t* parameters;
  Shape grid, threads, index;
  uint32_t linear;
  std::vector<uint8_t> shared;
  SharedHistory history;
  std::vector<Warp> warps;
  Barrier barriers[16];
  std::map<uint32_t, Mbarrier> mbarriers;
  std::map<uint32_t, Clock> mbarrier_clocks;
  std::vector<BulkLoad> loads;
  std::deque<BulkStore> stores;
  std::vector<int> store_groups;  // for each thread: the groups that it has committed
  uint64_t progress = 0;          // counts events that may let a waiting warp continue
};

struct Context {
  Block& block;
  Warp& warp;
  bool tried_in_vain = false;
  int thread(int lane) const { return warp.id * LANES + lane; }
};

// How asynchronous work of the current launch is done: never Async::drawn.
Async async_now();

// Runs one launch to its end. Throws Error if it cannot end.
void run_kernel(const Kernel& kernel, Shape grid, Shape threads, void** arguments, size_t dynamic_shared);

// ---- functions of the instructions' files that the schedule calls
void run_product(Context& context, Product& product);  // wgmma.cpp
// warp.cpp: a left operand [16, 16] in registers, a group of operands with the layout of mma.m16n8k16
void read_fragments(Context& context, const Instruction& instruction, int group, float (*to)[16]);
void complete_load(Block& block, size_t n);  // copies.cpp
void complete_store(Block& block, BulkStore& store);
void complete_copies(Context& context, int lane, int keep_groups);                       // cp.async; -1: all
Mbarrier* find_mbarrier(Context& context, const Instruction& instruction, uint32_t at);  // mbarrier.cpp; null: noticed
void check_phase(Block& block, Mbarrier& mbarrier);

// ---- operands: a value for every lane

template <class T> const T* values(const Context& context, const Operand& operand) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  if (operand.constant) {
    if constexpr (sizeof(T) == 8) return reinterpret_cast<const T*>(operand.constant->wide);
    return reinterpret_cast<const T*>(operand.constant->narrow);
  }
  return reinterpret_cast<const T*>(context.warp.registers + operand.offset);
}

template <class T> void put(Context& context, const Operand& operand, const T* values, Mask mask) {
  if (operand.sink) return;
  T* to = reinterpret_cast<T*>(context.warp.registers + operand.offset);
  for (int lane = 0; lane < LANES; lane++) {
    if (mask >> lane & 1) to[lane] = values[lane];
  }
}

// A lane's value of either width, as an unsigned number.
inline uint64_t value(const Context& context, const Operand& operand, int lane) {
  return operand.wide ? values<uint64_t>(context, operand)[lane] : values<uint32_t>(context, operand)[lane];
}
inline void put_lane(Context& context, const Operand& operand, int lane, uint64_t value) {
  if (operand.sink) return;
  uint32_t* to = context.warp.registers + operand.offset;
  if (operand.wide) {
    reinterpret_cast<uint64_t*>(to)[lane] = value;
  } else {
    to[lane] = uint32_t(value);
  }
}
inline uint64_t address(const Context& context, const Operand& operand, int lane) {
  return value(context, operand, lane) + operand.displacement;
}

template <class F> void for_lanes(Mask mask, F&& f) {
  for (; mask; mask &= mask - 1) f(lowest(mask));
}

// The lanes in which a predicate is true.
inline Mask true_lanes(const Context& context, const Operand& predicate) {
  const uint32_t* bits = values<uint32_t>(context, predicate);
  Mask mask = 0;
  for (int lane = 0; lane < LANES; lane++) mask |= (bits[lane] & 1) << lane;
  return predicate.negated ? ~mask : mask;
}

// An operation on every lane: Op's type gives the types of operands and result.
template <auto Op> void each(Context& context, const Instruction& instruction, Mask mask) {
  [&]<class Result, class... Operands>(Result (*)(Operands...)) {
    [&]<size_t... N>(std::index_sequence<N...>) {
      const std::tuple<const Operands*...> from(values<Operands>(context, instruction.operand(N + 1))...);
      Result results[LANES];
      for (int lane = 0; lane < LANES; lane++) results[lane] = Op(std::get<N>(from)[lane]...);
      put(context, instruction.operand(0), results, mask);
    }
    (std::index_sequence_for<Operands...>());
  }(+Op);
}

}  // namespace ptx
