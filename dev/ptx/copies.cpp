// Asynchronous copies: cp.async, cp.async.bulk and cp.async.bulk.tensor (PTX ISA "Data Movement and Conversion
// Instructions: Asynchronous copy"). From the instruction to its completion the destination is poison and must not be
// used.
#include <cstring>
#include "dev/ptx/decode.h"
#include "dev/ptx/machine.h"
#include "dev/ptx/memory.h"

namespace ptx {
namespace {

constexpr uint32_t TILE_ALIGN = 1024;  // of boxes with the 128-byte swizzle, so that its pattern begins with the box

// ---- cp.async: the issuing thread's own, through the generic proxy

void copy(Context& context, const Instruction& instruction, Mask mask) {
  const uint32_t bytes = instruction.amount;
  // A last operand is src-size, or if it is a predicate, ignore-src.
  const Operand* last = instruction.groups.size() > 3 ? &instruction.operand(3) : nullptr;
  const Mask ignored = last && last->predicate ? true_lanes(context, *last) : 0;
  for_lanes(mask, [&](int lane) {
    const uint64_t to = address(context, instruction.operand(0), lane);
    const uint64_t from = address(context, instruction.operand(1), lane);
    uint32_t read = last && !last->predicate ? uint32_t(value(context, *last, lane)) : bytes;
    if (ignored >> lane & 1) read = 0;
    const bool aligned = to % bytes == 0 && (!read || from % bytes == 0);
    if (read > bytes || !aligned) notice("cp.async with such operands", context, instruction);
    if (!context.block.history.access(context, instruction, to, bytes, true, lane)) return;
    if (read && !check_global(context, instruction, from, read)) return;
    context.block.history.copy_begins(context, instruction, to, bytes);
    memset(&context.block.shared[to], BYTE_POISON, bytes);
    context.warp.copies.push_back({lane, uint32_t(to), from, read, bytes - read, -1, &instruction});
  });
  if (async_now() != Async::early) return;
  for_lanes(mask, [&](int lane) { complete_copies(context, lane, -1); });
}

void commit_copies(Context& context, const Instruction&, Mask mask) {
  for_lanes(mask, [&](int lane) {
    for (LaneCopy& copy : context.warp.copies) {
      if (copy.lane == lane && copy.group < 0) copy.group = context.warp.copy_groups[lane];
    }
    context.warp.copy_groups[lane]++;
  });
}

void wait_copies(Context& context, const Instruction& instruction, Mask mask) {
  for_lanes(mask, [&](int lane) { complete_copies(context, lane, instruction.amount); });
}

// ---- into shared memory, with an mbarrier that counts the bytes

// Tensor maps are parameters of the kernel; their generic addresses are those of the host.
bool read_map(Context& context, const Instruction& instruction, uint64_t at, TensorMap& map) {
  const uint64_t begin = reinterpret_cast<uint64_t>(context.block.parameters);
  if (at % 64 || at < begin || at + 128 > begin + context.block.kernel.parameter_bytes) {
    notice("no tensor map among the kernel's parameters", context, instruction);
    return false;
  }
  memcpy(&map, reinterpret_cast<const void*>(at), sizeof map);
  if (map.magic != TensorMap::MAGIC) {
    notice("no tensor map", context, instruction);
    return false;
  }
  return check_global(context, instruction, map.address, map.bytes());
}

TileCoordinates coordinates(Context& context, const Instruction& instruction, int group, int lane) {
  TileCoordinates at;
  for (int i = 0; i < TENSOR_RANK; i++) {
    at.at[i] = int32_t(value(context, instruction.operand(group, 1 + i), lane));
  }
  return at;
}

void begin_load(Context& context, const BulkLoad& load) {
  find_mbarrier(context, *load.instruction, load.mbarrier);
  if (!context.block.history.copy_begins(context, *load.instruction, load.to, load.bytes)) return;
  memset(&context.block.shared[load.to], BYTE_POISON, load.bytes);
  context.block.loads.push_back(load);
  if (async_now() == Async::early) complete_load(context.block, context.block.loads.size() - 1);
}

void load_bytes(Context& context, const Instruction& instruction, Mask mask) {
  for_lanes(mask, [&](int lane) {
    BulkLoad load = {};
    load.to = uint32_t(address(context, instruction.operand(0), lane));
    load.from = address(context, instruction.operand(1), lane);
    load.bytes = uint32_t(value(context, instruction.operand(2), lane));
    load.mbarrier = uint32_t(address(context, instruction.operand(3), lane));
    load.instruction = &instruction;
    if (load.to % 16 || load.from % 16 || load.bytes % 16 || !load.bytes) {
      notice("cp.async.bulk with such operands", context, instruction);
    } else if (check_global(context, instruction, load.from, load.bytes)) {
      begin_load(context, load);
    }
  });
}

void load_tile(Context& context, const Instruction& instruction, Mask mask) {
  for_lanes(mask, [&](int lane) {
    BulkLoad load = {};
    load.tensor = true;
    load.to = uint32_t(address(context, instruction.operand(0), lane));
    load.mbarrier = uint32_t(address(context, instruction.operand(2), lane));
    load.instruction = &instruction;
    if (!read_map(context, instruction, address(context, instruction.operand(1), lane), load.map)) return;
    load.at = coordinates(context, instruction, 1, lane);
    load.bytes = load.map.box_bytes();
    if (load.to % TILE_ALIGN) notice("a tile must begin at a multiple of 1024", context, instruction);
    begin_load(context, load);
  });
}

// ---- out of shared memory, in groups of the issuing thread

void store_tile(Context& context, const Instruction& instruction, Mask mask) {
  for_lanes(mask, [&](int lane) {
    BulkStore store = {};
    if (!read_map(context, instruction, address(context, instruction.operand(0), lane), store.map)) return;
    store.at = coordinates(context, instruction, 0, lane);
    store.from = uint32_t(address(context, instruction.operand(1), lane));
    store.bytes = store.map.box_bytes();
    store.thread = context.thread(lane);
    store.group = -1;
    store.instruction = &instruction;
    if (store.from % TILE_ALIGN) notice("a tile must begin at a multiple of 1024", context, instruction);
    if (!context.block.history.async_read(context, instruction, store.from, store.bytes)) return;
    context.block.stores.push_back(store);
    if (async_now() == Async::early) complete_store(context.block, context.block.stores.back());
  });
}

void commit_stores(Context& context, const Instruction&, Mask mask) {
  for_lanes(mask, [&](int lane) {
    const int thread = context.thread(lane);
    for (BulkStore& store : context.block.stores) {
      if (store.thread == thread && store.group < 0) store.group = context.block.store_groups[thread];
    }
    context.block.store_groups[thread]++;
  });
}

void wait_stores(Context& context, const Instruction& instruction, Mask mask) {
  for_lanes(mask, [&](int lane) {
    const int thread = context.thread(lane);
    std::deque<BulkStore>& stores = context.block.stores;
    const int ended = context.block.store_groups[thread] - instruction.amount;
    std::erase_if(stores, [&](BulkStore& store) {
      if (store.thread != thread || store.group < 0 || store.group >= ended) return false;
      complete_store(context.block, store);
      context.block.history.async_read(context, instruction, store.from, store.bytes);  // until now
      return true;
    });
  });
}

}  // namespace

void complete_copies(Context& context, int lane, int keep_groups) {
  std::erase_if(context.warp.copies, [&](const LaneCopy& copy) {
    if (copy.lane != lane) return false;
    const bool ended = copy.group >= 0 && copy.group < context.warp.copy_groups[lane] - keep_groups;
    if (keep_groups >= 0 && !ended) return false;
    uint8_t* to = &context.block.shared[copy.to];
    if (copy.bytes) {
      global_access(context, *copy.instruction, copy.from, copy.bytes, false);
      memcpy(to, reinterpret_cast<const void*>(copy.from), copy.bytes);
    }
    memset(to + copy.bytes, 0, copy.filled);
    context.block.history.copy_ends(copy.to, copy.bytes + copy.filled);
    context.block.history.access(context, *copy.instruction, copy.to, copy.bytes + copy.filled, true, lane);
    return true;
  });
}

void complete_load(Block& block, size_t n) {
  const BulkLoad load = block.loads[n];
  block.loads.erase(block.loads.begin() + n);
  if (load.tensor) {
    load_box(load.map, load.at, block.shared.data(), load.to);
  } else {
    memcpy(&block.shared[load.to], reinterpret_cast<const void*>(load.from), load.bytes);
  }
  block.history.copy_ends(load.to, load.bytes);
  if (auto found = block.mbarriers.find(load.mbarrier); found != block.mbarriers.end()) {
    found->second.bytes -= load.bytes;
    check_phase(block, found->second);
  }
  block.progress++;
}

void complete_store(Block& block, BulkStore& store) {
  if (store.done) return;
  store.done = true;
  store_box(store.map, store.at, block.shared.data(), store.from);
}

bool decode_copies(Opcode opcode, Instruction& instruction) {
  const std::string& text = opcode.text();
  auto with = [&](Handler handler, int amount = 0) {
    instruction.destinations = 0;
    instruction.execute = handler;
    instruction.amount = amount;
    return true;
  };
  if (text == "cp.async.cg.shared.global" || text == "cp.async.ca.shared.global") {
    if (instruction.groups.size() > 3) instruction.negatable = 3;
    return with(copy, immediate(instruction, 2));
  }
  if (text == "cp.async.commit_group") return with(commit_copies);
  if (text == "cp.async.wait_group") return with(wait_copies, immediate(instruction, 0));
  if (text == "cp.async.wait_all") return with(wait_copies, -1);
  if (text == "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes") return with(load_bytes);
  if (text == "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes") {
    return with(load_tile);
  }
  if (text == "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group") return with(store_tile);
  if (text == "cp.async.bulk.commit_group") return with(commit_stores);
  if (text == "cp.async.bulk.wait_group.read" || text == "cp.async.bulk.wait_group") {
    return with(wait_stores, immediate(instruction, 0));
  }
  return false;
}

}  // namespace ptx
