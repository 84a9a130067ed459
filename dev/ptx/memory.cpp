// Global memory, and the instructions that load and store (PTX ISA "ld", "st", "red", "State Spaces").
#include "dev/ptx/memory.h"
#include <cstdlib>
#include <cstring>
#include <map>
#include "dev/ptx/decode.h"
#include "dev/ptx/floats.h"
#include "dev/ptx/machine.h"

namespace ptx {
namespace {

constexpr size_t ALIGN = 256;

std::map<uint64_t, uint64_t>& allocations() {  // address, bytes
  static std::map<uint64_t, uint64_t> all;
  return all;
}
// The allocation found by the last search.
struct {
  uint64_t begin = 1, end = 0;
} recent;

Space space_of(const Instruction& instruction, uint64_t& address) {
  if (instruction.space != Space::generic) return instruction.space;
  if (address >> 48 == SHARED_WINDOW >> 48) {
    address -= SHARED_WINDOW;
    return Space::shared;
  }
  if (address >> 48 == LOCAL_WINDOW >> 48) {
    address -= LOCAL_WINDOW;
    return Space::local;
  }
  return Space::global;
}

// The host address of a lane's bytes; null, and noticed, if the address is wrong.
uint8_t* bytes_at(Context& context, const Instruction& instruction, int lane, uint64_t address, uint32_t bytes,
                  bool write) {
  if (address % bytes) notice("misaligned address", context, instruction);
  const Kernel& kernel = context.block.kernel;
  switch (space_of(instruction, address)) {
    case Space::shared:
      if (!context.block.history.access(context, instruction, address, bytes, write, lane)) return nullptr;
      return &context.block.shared[address];
    case Space::local:
      if (address + bytes > kernel.local_bytes) break;
      return &context.warp.local[size_t(lane) * kernel.local_bytes + address];
    case Space::param:
      if (!write && address + bytes <= kernel.parameter_bytes) return context.block.parameters + address;
      break;
    default:
      if (!check_global(context, instruction, address, bytes)) return nullptr;
      global_access(context, instruction, address, bytes, write);
      return reinterpret_cast<uint8_t*>(address);
  }
  notice("address outside its space", context, instruction);
  return nullptr;
}

void load(Context& context, const Instruction& instruction, Mask mask) {
  const uint32_t size = size_of(instruction.type), count = instruction.count(0);
  for_lanes(mask, [&](int lane) {
    const uint8_t* from =
        bytes_at(context, instruction, lane, address(context, instruction.operand(1), lane), size * count, false);
    for (uint32_t n = 0; from && n < count; n++) {
      uint64_t value = 0;
      memcpy(&value, from + size * n, size);
      put_lane(context, instruction.operand(0, n), lane, truncated(value, instruction.type));
    }
  });
}

void store(Context& context, const Instruction& instruction, Mask mask) {
  const uint32_t size = size_of(instruction.type), count = instruction.count(1);
  for_lanes(mask, [&](int lane) {
    uint8_t* to =
        bytes_at(context, instruction, lane, address(context, instruction.operand(0), lane), size * count, true);
    for (uint32_t n = 0; to && n < count; n++) {
      const uint64_t stored = value(context, instruction.operand(1, n), lane);
      memcpy(to + size * n, &stored, size);
    }
  });
}

// red.add: noticed as a store, if another block uses the words. Subnormal numbers count as 0 ("red", for .f32 in global
// memory).
void add(Context& context, const Instruction& instruction, Mask mask) {
  const uint32_t count = instruction.count(1);
  for_lanes(mask, [&](int lane) {
    uint8_t* to = bytes_at(context, instruction, lane, address(context, instruction.operand(0), lane), 4 * count, true);
    for (uint32_t n = 0; to && n < count; n++, to += 4) {
      float sum;
      memcpy(&sum, to, 4);
      sum = flushed(flushed(sum) + flushed(float_of(uint32_t(value(context, instruction.operand(1, n), lane)))));
      memcpy(to, &sum, 4);
    }
  });
}

}  // namespace

uint64_t new_global(size_t bytes) {
  const size_t rounded = (bytes + ALIGN) / ALIGN * ALIGN;
  void* memory = aligned_alloc(ALIGN, rounded);
  if (!memory) throw Error("no memory for " + std::to_string(bytes) + " bytes");
  memset(memory, BYTE_POISON, rounded);
  allocations()[reinterpret_cast<uint64_t>(memory)] = bytes;
  return reinterpret_cast<uint64_t>(memory);
}

uint64_t global_in_use() {
  uint64_t sum = 0;
  for (auto& [address, bytes] : allocations()) sum += bytes;
  return sum;
}

bool free_global(uint64_t address) {
  if (!allocations().erase(address)) return false;
  recent = {};
  free(reinterpret_cast<void*>(address));
  return true;
}

bool is_global(uint64_t address, uint64_t bytes) {
  if (address >= recent.begin && address + bytes <= recent.end) return true;
  auto after = allocations().upper_bound(address);
  if (after == allocations().begin()) return false;
  const auto& [begin, size] = *--after;
  if (address + bytes > begin + size) return false;
  recent = {begin, begin + size};
  return true;
}

bool check_global(const Context& context, const Instruction& instruction, uint64_t address, uint64_t bytes) {
  if (is_global(address, bytes)) return true;
  notice("outside every allocation of global memory", context, instruction);
  return false;
}

bool decode_memory(Opcode opcode, Instruction& instruction) {
  if (opcode.text() == "red.global.add.v4.f32") {
    instruction.space = Space::global;
    instruction.destinations = 0;
    instruction.execute = add;
    return true;
  }
  if (opcode.base() != "ld" && opcode.base() != "st") return false;
  const bool stores = opcode.base() == "st";
  if (opcode.take("global")) {
    instruction.space = Space::global;
    if (!stores && !opcode.take("nc")) opcode.take("cg");  // caches are not modelled
  } else if (opcode.take("shared") || opcode.take("shared::cta")) {
    instruction.space = Space::shared;
  } else if (opcode.take("local")) {
    instruction.space = Space::local;
  } else if (opcode.take("param")) {
    instruction.space = Space::param;
  }
  if (!opcode.take("v2")) opcode.take("v4");
  instruction.destinations = stores ? 0 : 1;
  instruction.execute = stores ? store : load;
  return opcode.take_type(instruction.type) && opcode.done();
}

}  // namespace ptx
