// Mbarriers and fences (PTX ISA "mbarrier", "fence.proxy"). A phase ends when no arrivals and no bytes are missing. An
// arrival releases the warp's earlier operations; a wait that succeeds acquires them.
#include "dev/ptx/decode.h"
#include "dev/ptx/machine.h"

namespace ptx {
namespace {

constexpr uint32_t MOST_BYTES = (1 << 20) - 1;

void initialize(Context& context, const Instruction& instruction, Mask mask) {
  for_lanes(mask, [&](int lane) {
    const uint64_t at = address(context, instruction.operand(0), lane);
    const uint32_t arrivals = uint32_t(value(context, instruction.operand(1), lane));
    if (at % 8 || at < SHARED_BASE || at + 8 > context.block.shared.size() || !arrivals) {
      notice("mbarrier.init with such operands", context, instruction);
      return;
    }
    context.block.history.access(context, instruction, at, 8, true, lane);  // must happen before every use
    if (!context.block.mbarriers.try_emplace(uint32_t(at), Mbarrier{arrivals, arrivals, 0, 0}).second) {
      notice("mbarrier.init of an mbarrier", context, instruction);
    }
    context.block.history.add_mbarrier(uint32_t(at));
  });
}

// `variant` is 1 with expect_tx.
void arrive(Context& context, const Instruction& instruction, Mask mask) {
  for_lanes(mask, [&](int lane) {
    const uint32_t at = uint32_t(address(context, instruction.operand(1), lane));
    Mbarrier* mbarrier = find_mbarrier(context, instruction, at);
    if (!mbarrier) return;
    if (instruction.variant) {
      const uint32_t bytes = uint32_t(value(context, instruction.operand(2), lane));
      if (bytes > MOST_BYTES) notice("more bytes than an mbarrier can count", context, instruction);
      mbarrier->bytes += bytes;
    }
    context.block.history.release(context.warp.id, context.block.mbarrier_clocks[at]);
    if (mbarrier->pending == 0) {
      notice("more arrivals than the mbarrier expects", context, instruction);
    } else {
      mbarrier->pending--;
    }
    check_phase(context.block, *mbarrier);
  });
}

// True if the phase of that parity has ended: the phase before the open one has the other parity.
void try_wait(Context& context, const Instruction& instruction, Mask mask) {
  for_lanes(mask, [&](int lane) {
    const uint32_t at = uint32_t(address(context, instruction.operand(1), lane));
    const uint32_t parity = uint32_t(value(context, instruction.operand(2), lane));
    const Mbarrier* mbarrier = find_mbarrier(context, instruction, at);
    if (parity > 1) notice("a parity above 1", context, instruction);
    const bool ended = !mbarrier || (mbarrier->phase & 1) != parity;
    if (ended) {
      context.block.history.acquire(context.warp.id, context.block.mbarrier_clocks[at]);
    } else {
      context.tried_in_vain = true;
    }
    put_lane(context, instruction.operand(0), lane, ended);
  });
}

void fence_proxy(Context& context, const Instruction&, Mask mask) {
  for_lanes(mask, [&](int lane) { context.block.history.fence_proxy(context.thread(lane)); });
}

}  // namespace

Mbarrier* find_mbarrier(Context& context, const Instruction& instruction, uint32_t at) {
  auto found = context.block.mbarriers.find(at);
  if (found == context.block.mbarriers.end()) {
    notice("no mbarrier was initialized there", context, instruction);
    return nullptr;
  }
  context.block.history.use_mbarrier(context, instruction, at);
  return &found->second;
}

void check_phase(Block& block, Mbarrier& mbarrier) {
  if (mbarrier.pending || mbarrier.bytes) return;
  mbarrier.phase++;
  mbarrier.pending = mbarrier.expected;
  block.progress++;
}

bool decode_mbarrier(Opcode opcode, Instruction& instruction) {
  const std::string& text = opcode.text();
  auto without_result = [&](Handler handler) {
    instruction.destinations = 0;
    instruction.execute = handler;
    return true;
  };
  if (text == "mbarrier.init.shared::cta.b64") return without_result(initialize);
  if (text == "mbarrier.arrive.release.cta.shared::cta.b64" ||
      text == "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64") {
    instruction.variant = opcode.take("expect_tx");
    instruction.execute = arrive;
    return instruction.groups.size() == (instruction.variant ? 3 : 2);  // a third one may be a count of arrivals
  }
  if (text == "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64") {
    instruction.flow = Flow::try_wait;
    instruction.execute = try_wait;
    return true;
  }
  if (text == "fence.proxy.async.shared::cta" || text == "fence.proxy.async") return without_result(fence_proxy);
  // These need no work: the schedule executes one instruction after another and reorders nothing.
  for (const char* known : {"fence.mbarrier_init.release.cluster", "fence.acq_rel.cta", "membar.cta", "membar.gl"}) {
    if (text == known) return without_result(no_operation);
  }
  return false;
}

}  // namespace ptx
