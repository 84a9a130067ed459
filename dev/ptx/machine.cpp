// The schedule: turns of warps, divergence, barriers, deadlocks (machine.h).
#include "dev/ptx/machine.h"
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <span>
#include <string_view>

namespace ptx {
namespace {

Async async = Async::late;

constexpr size_t MOST_SHARED = 228 * 1024;

enum class Turn { over, waits, barrier, finished };

class Schedule {
 public:
  explicit Schedule(Block& block) : block_(block) {}
  void run();

 private:
  Turn run_warp(Warp& warp, int instructions);
  Turn step(Context& context, bool& moved);
  Mask complete_group(Context& context, const Instruction& instruction, Mask mask);
  bool choose_path(Warp& warp);
  void arrive(Context& context, const Instruction& instruction);
  void open(Barrier& barrier);
  void open_if_all_arrived();
  void finish(Context& context);
  bool random_completion();
  void check_end();
  [[noreturn]] void stuck(const std::string& what, std::span<const Warp> warps);

  Block& block_;
};

void Schedule::run() {
  static constexpr int TURNS[] = {1, 7, 60, 400, 3000};  // instructions: neighbours in lockstep, and far apart
  for (;;) {
    std::vector<int> ready;
    bool any = false;
    for (const Warp& warp : block_.warps) {
      if (warp.finished) continue;
      any = true;
      if (!warp.at_barrier && warp.tried_at != block_.progress) ready.push_back(warp.id);
    }
    if (!any) break;
    if (async == Async::random && draw(2) && random_completion()) continue;
    if (!ready.empty()) {
      run_warp(block_.warps[ready[draw(int(ready.size()))]], TURNS[draw(std::size(TURNS))]);
    } else if (!block_.loads.empty()) {
      complete_load(block_, draw(int(block_.loads.size())));
    } else {
      stuck("deadlock", block_.warps);
    }
  }
  check_end();
}

bool Schedule::random_completion() {
  if (!block_.loads.empty()) {
    complete_load(block_, draw(int(block_.loads.size())));
    return true;
  }
  for (BulkStore& store : block_.stores) {
    if (store.done || draw(2)) continue;
    complete_store(block_, store);
    return true;
  }
  return false;
}

void Schedule::stuck(const std::string& what, std::span<const Warp> warps) {
  std::string message = what + " in kernel " + block_.kernel.name;
  for (const Warp& warp : warps) {
    for (const Path& path : warp.paths) {
      char lanes[16];
      snprintf(lanes, sizeof lanes, "%08x", path.lanes);
      message += "\n  warp " + std::to_string(warp.id) + " lanes " + lanes + (warp.at_barrier ? " before " : " at ") +
                 block_.kernel.where(block_.kernel.code[path.at]);
    }
  }
  throw Error(message);
}

// Merges paths that meet and chooses the path furthest behind, so that they do meet. False if none can move.
bool Schedule::choose_path(Warp& warp) {
  std::vector<Path>& paths = warp.paths;
  for (size_t i = 0; i < paths.size(); i++) {
    for (size_t j = i + 1; j < paths.size();) {
      if (paths[j].at != paths[i].at) {
        j++;
        continue;
      }
      paths[i] = {paths[i].at, paths[i].lanes | paths[j].lanes};
      paths.erase(paths.begin() + j);
    }
  }
  int best = -1;
  for (size_t i = 0; i < paths.size(); i++) {
    if (paths[i].waiting || paths[i].tried) continue;
    if (best < 0 || (options().random_divergence ? draw(2) : paths[i].at < paths[best].at)) best = int(i);
  }
  warp.current = best;
  return best >= 0;
}

Turn Schedule::run_warp(Warp& warp, int instructions) {
  Context context{block_, warp};
  for (Path& path : warp.paths) path.tried = false;
  if (!choose_path(warp)) stuck("lanes that wait for each other", {&warp, 1});
  while (instructions-- > 0) {
    bool moved = true;
    if (const Turn turn = step(context, moved); turn != Turn::over) return turn;
    if ((moved && warp.paths.size() == 1) || choose_path(warp)) continue;
    const bool tried = std::any_of(warp.paths.begin(), warp.paths.end(), [](const Path& path) { return path.tried; });
    if (!tried) stuck("lanes that wait for each other", {&warp, 1});
    warp.tried_at = block_.progress;
    return Turn::waits;
  }
  return Turn::over;
}

// Of the lanes in `mask`, those that do the instruction together now: their member masks name the same lanes, which are
// all there. 0: every group still waits for lanes.
Mask Schedule::complete_group(Context& context, const Instruction& instruction, Mask mask) {
  const Warp& warp = context.warp;
  if (instruction.member_mask < 0) return mask == warp.alive() ? mask : 0;
  const Operand& members = instruction.operand(instruction.member_mask);
  for (Mask left = mask; left;) {
    const auto named = Mask(value(context, members, lowest(left)));
    Mask group = 0;
    for_lanes(left, [&](int lane) { group |= Mask(Mask(value(context, members, lane)) == named) << lane; });
    left &= ~group;
    if (group & ~named) notice("member mask without the lane itself", context, instruction);
    if (named & warp.exited) notice("member mask with lanes that have left", context, instruction);
    if ((group & named) == (named & warp.alive())) return group;
  }
  return 0;
}

// One instruction of the current path. `moved`: the path is still the current one.
Turn Schedule::step(Context& context, bool& moved) {
  Warp& warp = context.warp;
  Path& path = warp.paths[warp.current];
  const Instruction& instruction = block_.kernel.code[path.at];
  Mask mask = path.lanes;
  if (const Operand& predicate = instruction.predicate; predicate.reg >= 0) {
    if ((warp.checks.written[predicate.reg] & mask) != mask) {
      notice("a predicate that was never written", context, instruction);
    }
    mask &= true_lanes(context, predicate);
  }
  if (!mask) {
    path.at++;
    return Turn::over;
  }
  auto execute = [&] {
    warp.checks.check(context, instruction, mask);
    instruction.execute(context, instruction, mask);
    path.at++;
  };
  switch (instruction.flow) {
    case Flow::straight: execute(); break;
    case Flow::branch:
      if (mask == path.lanes) {
        path.at = instruction.target;
      } else {
        path.lanes &= ~mask;
        path.at++;
        warp.paths.push_back({instruction.target, mask});  // `path` is gone
        moved = false;
      }
      break;
    case Flow::exit:
      warp.exited |= mask;
      path.lanes &= ~mask;
      path.at++;
      moved = false;
      for (Path& other : warp.paths) other.waiting = false;  // they may wait for lanes that have exited
      if (path.lanes) break;
      warp.paths.erase(warp.paths.begin() + warp.current);
      if (!warp.paths.empty()) break;
      finish(context);
      return Turn::finished;
    case Flow::together: {
      const Mask group = complete_group(context, instruction, mask);
      if (!group) {
        path.waiting = true;
        moved = false;
        break;
      }
      const Path others = {path.at, mask & ~group};
      path.lanes &= ~others.lanes;
      mask = group;
      execute();
      if (others.lanes) {
        warp.paths.push_back(others);  // `path` is gone
        moved = false;
      }
      break;
    }
    case Flow::barrier:
      if (mask != warp.alive()) {
        path.waiting = true;
        moved = false;
        break;
      }
      execute();
      arrive(context, instruction);
      if (warp.at_barrier) return Turn::barrier;
      break;
    case Flow::try_wait:
      context.tried_in_vain = false;
      execute();
      path.tried = context.tried_in_vain;
      moved = !path.tried;
      break;
  }
  return Turn::over;
}

// ---- barriers (PTX ISA "bar, barrier")

void Schedule::arrive(Context& context, const Instruction& instruction) {
  Warp& warp = context.warp;
  const int lane = lowest(warp.alive());
  const int number = int(value(context, instruction.operand(0), lane));
  const int needed = instruction.groups.size() > 1 ? int(value(context, instruction.operand(1), lane)) : -1;
  if (number < 0 || number > 15 || needed == 0 || (needed > 0 && needed % LANES)) {
    throw Error("operands of a barrier: " + block_.kernel.where(instruction) + ", in kernel " + block_.kernel.name);
  }
  Barrier& barrier = block_.barriers[number];
  if (barrier.arrived && barrier.needed != needed) notice("barrier with two counts", context, instruction);
  barrier.needed = needed;
  barrier.arrived += LANES;
  barrier.warps.push_back(warp.id);
  warp.at_barrier = true;
  if (needed < 0) {
    open_if_all_arrived();
  } else if (barrier.arrived >= needed) {
    open(barrier);
  }
}

void Schedule::open(Barrier& barrier) {
  block_.history.block_synchronized(barrier.warps);
  for (int warp : barrier.warps) block_.warps[warp].at_barrier = false;
  barrier = {};
  block_.progress++;
}

// Barriers without a count wait for all warps that have not exited.
void Schedule::open_if_all_arrived() {
  size_t alive = 0;
  for (const Warp& warp : block_.warps) alive += !warp.finished;
  for (Barrier& barrier : block_.barriers) {
    if (barrier.needed < 0 && !barrier.warps.empty() && barrier.warps.size() >= alive) open(barrier);
  }
}

// ---- ends

void Schedule::finish(Context& context) {
  Warp& warp = context.warp;
  warp.finished = true;
  block_.progress++;
  if (warp.checks.products) notice("products under way when a warp ended", "warp " + std::to_string(warp.id));
  for (int lane = 0; lane < LANES; lane++) complete_copies(context, lane, -1);
  for (const BulkStore& store : block_.stores) {
    if (store.thread / LANES != warp.id) continue;
    notice("a store from shared memory was not waited for before its thread ended", context, *store.instruction);
  }
  open_if_all_arrived();
}

void Schedule::check_end() {
  const Kernel& kernel = block_.kernel;
  if (!block_.loads.empty()) {
    notice("a load under way when the block ended", kernel.where(*block_.loads[0].instruction));
    while (!block_.loads.empty()) complete_load(block_, 0);
  }
  for (BulkStore& store : block_.stores) complete_store(block_, store);
  for (const auto& [address, mbarrier] : block_.mbarriers) {
    if (mbarrier.bytes) notice("an mbarrier was told of bytes that did not come", "at " + std::to_string(address));
  }
  for (size_t i = 0; i < block_.warps.size(); i++) {
    if (block_.warps[i].products.history != block_.warps[i / 4 * 4].products.history) {
      notice("the warps of a warpgroup did not do the same wgmma or setmaxnreg", "warp " + std::to_string(i));
    }
  }
}

// ---- beginnings

uint32_t special(const std::string& name, const Block& block, int warp, int lane) {
  const uint32_t thread = warp * LANES + lane;
  const Shape index = {thread % block.threads.x, thread / block.threads.x % block.threads.y,
                       thread / block.threads.x / block.threads.y};
  const std::pair<std::string_view, Shape> shapes[] = {
      {"%tid.", index}, {"%ntid.", block.threads}, {"%ctaid.", block.index}, {"%nctaid.", block.grid}};
  for (const auto& [base, shape] : shapes) {
    if (!name.starts_with(base) || name.size() != base.size() + 1) continue;
    return name.back() == 'x' ? shape.x : name.back() == 'y' ? shape.y : shape.z;
  }
  if (name == "%laneid") return lane;
  throw Error("special register " + name + " is not known, in kernel " + block.kernel.name);
}

void begin_warp(Block& block, int id) {
  const Kernel& kernel = block.kernel;
  Warp& warp = block.warps[id];
  warp.id = id;
  const uint32_t threads = block.threads.x * block.threads.y * block.threads.z;
  const uint32_t lanes = std::min<uint32_t>(LANES, threads - id * LANES);
  warp.all = lanes == LANES ? ALL_LANES : (1u << lanes) - 1;
  warp.storage.resize(kernel.register_words / 16);
  warp.registers = warp.storage.empty() ? nullptr : warp.storage[0].words;
  std::fill_n(warp.registers, kernel.register_words, REGISTER_POISON);
  warp.local.assign(size_t(kernel.local_bytes) * LANES, BYTE_POISON);
  warp.paths = {{0, warp.all}};
  const size_t registers = kernel.registers.size();
  warp.checks.written.assign(registers, 0);
  warp.checks.accumulating.assign(registers, 0);
  warp.checks.multiplied.assign(registers, 0);
  warp.checks.fence.assign(registers, 0);
  if (kernel.has_products) warp.products.sums.assign(kernel.register_words, 0);
  for (const auto& [name, reg] : kernel.specials) {
    warp.checks.written[reg] = ALL_LANES;
    for (int lane = 0; lane < LANES; lane++) {
      warp.registers[kernel.registers[reg].offset + lane] = special(name, block, id, lane);
    }
  }
}

int warps_of(Shape threads) { return int(threads.x * threads.y * threads.z + LANES - 1) / LANES; }

}  // namespace

Async async_now() { return async; }

Block::Block(const Kernel& kernel, uint8_t* parameters, Shape grid, Shape threads, uint32_t linear, size_t shared_bytes)
    : kernel(kernel),
      parameters(parameters),
      grid(grid),
      threads(threads),
      index{linear % grid.x, linear / grid.x % grid.y, linear / grid.x / grid.y},
      linear(linear),
      shared(shared_bytes, BYTE_POISON),
      history(warps_of(threads), kernel.has_products, shared_bytes),
      warps(warps_of(threads)),
      store_groups(warps_of(threads) * LANES) {
  for (size_t i = 0; i < warps.size(); i++) begin_warp(*this, int(i));
}

void run_kernel(const Kernel& kernel, Shape grid, Shape threads, void** arguments, size_t dynamic_shared) {
  set_noticed_kernel(kernel.name);
  async = options().async;
  if (async == Async::drawn) async = draw(4) == 0 ? Async::early : draw(2) ? Async::late : Async::random;
  if (kernel.most_threads && threads.x * threads.y * threads.z > kernel.most_threads) {
    throw Error("more threads than .maxntid of kernel " + kernel.name);
  }
  struct alignas(128) Line {
    uint8_t bytes[128];
  };  // tensor maps among the parameters are aligned
  std::vector<Line> lines(kernel.parameter_bytes / sizeof(Line) + 1);
  uint8_t* parameters = lines[0].bytes;
  for (size_t i = 0; i < kernel.parameters.size(); i++) {
    memcpy(parameters + kernel.parameters[i].offset, arguments[i], kernel.parameters[i].size);
  }
  const size_t shared_bytes = (kernel.shared_bytes + (kernel.dynamic_shared ? dynamic_shared : 0) + 15) / 16 * 16;
  if (shared_bytes > MOST_SHARED) throw Error("more shared memory than there is for kernel " + kernel.name);

  begin_global_history();
  std::vector<uint32_t> order(size_t(grid.x) * grid.y * grid.z);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random_bits());
  for (uint32_t linear : order) {
    Block block(kernel, parameters, grid, threads, linear, shared_bytes);
    Schedule(block).run();
  }
}

}  // namespace ptx
