// A kernel as instructions: parse.cpp makes it from PTX text, machine.cpp executes it. Terms are those of NVIDIA's
// "Parallel Thread Execution ISA" (PTX ISA, version 9.0), https://docs.nvidia.com/cuda/parallel-thread-execution/.
#pragma once
#include <cstdint>
#include <deque>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace ptx {

constexpr int LANES = 32;
using Mask = uint32_t;  // a bit for every lane of a warp
constexpr Mask ALL_LANES = ~0u;
constexpr int lowest(Mask mask) { return __builtin_ctz(mask); }

// Ends the run of a test program: PTX that is not understood, or a deadlock.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Context;
struct Instruction;
using Handler = void (*)(Context&, const Instruction&, Mask);

enum class Type : uint8_t { b8, u8, s8, b16, u16, s16, bf16, b32, u32, s32, f32, b64, u64, s64, f64, pred };  // by size
constexpr int size_of(Type type) {  // in bytes
  if (type <= Type::s8) return 1;
  if (type <= Type::bf16) return 2;
  return type >= Type::b64 && type <= Type::f64 ? 8 : 4;
}
constexpr bool is_signed(Type type) {
  return type == Type::s8 || type == Type::s16 || type == Type::s32 || type == Type::s64;
}
// As many of the bits as the type has, with copies of the sign or zeros above them.
constexpr uint64_t truncated(uint64_t bits, Type type) {
  const int width = 8 * size_of(type);
  if (width == 64) return bits;
  bits &= (uint64_t(1) << width) - 1;
  if (is_signed(type) && bits >> (width - 1)) bits |= ~uint64_t(0) << width;
  return bits;
}
bool type_named(const std::string& name, Type& type);

enum class Space : uint8_t { generic, shared, local, global, param };

struct Constant {  // an immediate or an address, stored once for each lane, so that it can be read like a register
  alignas(64) uint32_t narrow[LANES];
  uint64_t wide[LANES];
};

// A register of a warp is LANES words of 32 bits, or LANES of 64; predicates and 16-bit values fill words of 32.
struct Operand {
  const Constant* constant = nullptr;  // null for a register
  int reg = -1;                        // number of the register
  bool wide = false;                   // 64 bits per lane
  bool predicate = false;              // of a lane
  uint32_t offset = 0;                 // of its words among those of the warp
  int64_t displacement = 0;            // [address + displacement]
  bool negated = false;                // !p
  bool sink = false;                   // _
};

// How an instruction is scheduled.
enum class Flow : uint8_t {
  straight,
  branch,
  exit,
  together,  // waits for all lanes of its member mask, or for all that have not exited
  barrier,   // the same, then waits for other warps
  try_wait   // if it returns false in any lane, another warp runs
};

struct Instruction {
  Handler execute = nullptr;
  Flow flow = Flow::straight;
  Operand predicate;  // reg -1: none
  std::vector<Operand> operands;
  std::vector<std::pair<int, int>> groups;  // first operand, count: {a, b} and [map, {x, y}] are one group each
  int destinations = 1;                     // leading groups that are written
  int member_mask = -1;                     // the group that names the lanes; -1: all
  int negatable = -1;                       // the group that may be !p; -1: none
  int target = -1;                          // of a branch
  std::vector<int> reads, writes;           // registers
  // the modifiers, if one handler serves several of them
  Type type = Type::b32, from = Type::b32;
  Space space = Space::generic;
  int variant = 0;
  int amount = 0;        // bytes, groups, columns or registers
  bool product = false;  // wgmma: its registers are checked by wgmma.cpp
  bool selects = false;  // selp: reads only what it picks
  std::string text;
  int location = -1;

  const Operand& operand(int group) const { return operands[groups[group].first]; }
  const Operand& operand(int group, int n) const { return operands[groups[group].first + n]; }
  int count(int group) const { return groups[group].second; }
};

struct Kernel {
  struct Parameter {
    uint32_t offset, size;
  };
  struct Register {
    std::string name;
    uint32_t offset;
    bool wide, predicate;
  };

  std::string name;
  std::vector<Instruction> code;
  std::vector<Parameter> parameters;
  uint32_t parameter_bytes = 0;
  std::vector<Register> registers;
  uint32_t register_words = 0;                        // of a warp
  std::vector<std::pair<std::string, int>> specials;  // special registers: name, register
  uint32_t shared_bytes = 0;                          // includes the bytes below SHARED_BASE, but not dynamic memory
  bool dynamic_shared = false;
  uint32_t local_bytes = 0;   // of a lane
  uint32_t most_threads = 0;  // .maxntid; 0: not given
  bool has_products = false;  // wgmma
  std::deque<Constant> constants;
  std::vector<std::string> locations;  // "file:line"

  std::string where(const Instruction& instruction) const {
    std::string at = instruction.location >= 0 ? locations[instruction.location] : "?";
    return instruction.text + "  [" + at + "]";
  }
};

// Shared memory begins above address 0, so that a null pointer is out of bounds.
constexpr uint32_t SHARED_BASE = 1024;
// Generic addresses of shared and local memory; every other generic address is a global one.
constexpr uint64_t SHARED_WINDOW = 0x00ff000000000000ull, LOCAL_WINDOW = 0x00fe000000000000ull;

}  // namespace ptx
