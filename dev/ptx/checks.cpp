// The checks (checks.h). PTX ISA "Memory Consistency Model", "Proxies", and for registers "wgmma.fence".
#include "dev/ptx/checks.h"
#include <algorithm>
#include <cstdio>
#include <memory>
#include <set>
#include <unordered_map>
#include "dev/ptx/machine.h"

namespace ptx {
namespace {

int notices = 0;
std::string noticed_kernel;

// Each different message is printed once, up to this number: the first ones show where to look.
constexpr size_t MOST_MESSAGES = 20;

}  // namespace

void notice(const std::string& what, const std::string& where) {
  static std::set<std::string> said;
  notices++;
  const std::string message = what + ": " + where + ", in kernel " + noticed_kernel;
  if (said.size() < MOST_MESSAGES && said.insert(message).second) fprintf(stderr, "ptx: %s\n", message.c_str());
}

void notice(const std::string& what, const Context& context, const Instruction& instruction) {
  notice(what, context.block.kernel.where(instruction));
}

int take_notices() { return std::exchange(notices, 0); }
void set_noticed_kernel(const std::string& name) { noticed_kernel = name; }

// ---- shared memory

SharedHistory::SharedHistory(int warps, bool products, size_t bytes)
    : warps_(warps),
      actors_(products ? 2 * warps : warps),
      words_(bytes / 4 + 1),
      reads_((bytes / 4 + 1) * actors_),
      pending_(bytes / 16 + 1),
      mbarrier_(bytes / 8 + 1),
      fences_(warps * LANES),
      synchronized_(warps, 1),
      clocks_(warps, Clock(actors_)) {
  for (int warp = 0; warp < warps; warp++) clocks_[warp][warp] = 1;
}

bool SharedHistory::inside(const Context& context, const Instruction& instruction, uint64_t address, uint32_t bytes,
                           const char* what) {
  if (address >= SHARED_BASE && address + bytes <= context.block.shared.size()) return true;
  notice(std::string(what) + " outside shared memory", context, instruction);
  return false;
}

void SharedHistory::check_writer(const Context& context, const Instruction& instruction, const Word& word,
                                 const char* what, int lane) {
  const int warp = context.warp.id;
  if (word.warp < 0) return;
  if (word.warp != warp) {
    if (word.epoch > clock(warp)[word.warp]) {
      notice(std::string("race in shared memory: ") + what + " of what another warp wrote", context, instruction);
    }
  } else if (lane >= 0 && word.lane >= 0 && word.lane != lane && word.synchronized == synchronized_[warp]) {
    notice(std::string("race in shared memory: ") + what + " of what another lane wrote", context, instruction);
  }
}

void SharedHistory::check_readers(const Context& context, const Instruction& instruction, size_t word,
                                  const char* what) {
  const int warp = context.warp.id;
  for (int other = 0; other < actors_; other++) {
    if (other == warp || reads_[word * actors_ + other] <= clock(warp)[other]) continue;
    const char* who = other < warps_ ? " of what another warp reads" : " of what products read";
    notice(std::string("race in shared memory: ") + what + who, context, instruction);
    return;
  }
}

bool SharedHistory::access(const Context& context, const Instruction& instruction, uint64_t address, uint32_t bytes,
                           bool write, int lane) {
  const char* what = write ? "write" : "read";
  if (!inside(context, instruction, address, bytes, what)) return false;
  if (mbarrier_[address / 8]) notice(std::string(what) + " of an mbarrier", context, instruction);
  if (pending_[address / 16]) {
    notice(std::string(what) + " where a copy under way will write", context, instruction);
  }
  const int warp = context.warp.id;
  for (size_t w = address / 4; w <= (address + bytes - 1) / 4; w++) {
    Word& word = words_[w];
    const bool half_of_a_word = write && bytes < 4;  // the other half may belong to another lane
    if (!half_of_a_word) check_writer(context, instruction, word, what, lane);
    if (write) {
      check_readers(context, instruction, w, what);
      word = {warp, lane, clock(warp)[warp], synchronized_[warp], context.thread(lane), fences_[context.thread(lane)]};
    } else {
      reads_[w * actors_ + warp] = clock(warp)[warp];
    }
  }
  return true;
}

bool SharedHistory::async_read(const Context& context, const Instruction& instruction, uint64_t address,
                               uint32_t bytes) {
  const int warp = context.warp.id;
  return read_by(context, instruction, address, bytes, warp, clock(warp)[warp]);
}

bool SharedHistory::product_read(const Context& context, const Instruction& instruction, uint64_t address,
                                 uint32_t bytes, uint32_t sequence) {
  return read_by(context, instruction, address, bytes, products_of(context.warp.id), sequence);
}

void SharedHistory::products_waited_for(int warp, uint32_t sequence) {
  uint32_t& known = clock(warp)[products_of(warp)];
  known = std::max(known, sequence);
}

bool SharedHistory::read_by(const Context& context, const Instruction& instruction, uint64_t address, uint32_t bytes,
                            int actor, uint32_t epoch) {
  if (!inside(context, instruction, address, bytes, "asynchronous read")) return false;
  for (size_t part = address / 16; part <= (address + bytes - 1) / 16; part++) {
    if (!pending_[part]) continue;
    notice("asynchronous read where a copy under way will write", context, instruction);
    return false;
  }
  for (size_t w = address / 4; w <= (address + bytes - 1) / 4; w++) {
    const Word& word = words_[w];
    check_writer(context, instruction, word, "asynchronous read", -1);
    reads_[w * actors_ + actor] = epoch;
    if (word.thread >= 0 && fences_[word.thread] <= word.fences) {
      notice("asynchronous read of what was written without fence.proxy.async", context, instruction);
      return false;
    }
  }
  return true;
}

bool SharedHistory::copy_begins(const Context& context, const Instruction& instruction, uint64_t address,
                                uint32_t bytes) {
  if (!inside(context, instruction, address, bytes, "copy")) return false;
  for (size_t w = address / 4; w < (address + bytes) / 4; w++) {
    check_writer(context, instruction, words_[w], "copy over", -1);
    check_readers(context, instruction, w, "copy over");
    if (mbarrier_[w / 2]) notice("copy over an mbarrier", context, instruction);
    words_[w] = {};
    std::fill_n(&reads_[w * actors_], actors_, 0);
  }
  for (size_t part = address / 16; part <= (address + bytes - 1) / 16; part++) pending_[part]++;
  return true;
}

void SharedHistory::copy_ends(uint64_t address, uint32_t bytes) {
  for (size_t part = address / 16; part <= (address + bytes - 1) / 16; part++) pending_[part]--;
}

void SharedHistory::use_mbarrier(const Context& context, const Instruction& instruction, uint32_t address) {
  check_writer(context, instruction, words_[address / 4], "use as an mbarrier", -1);
}

void SharedHistory::block_synchronized(const std::vector<int>& warps) {
  Clock latest(actors_);
  for (int warp : warps) release(warp, latest);
  for (int warp : warps) {
    acquire(warp, latest);
    warp_synchronized(warp);
  }
}

void SharedHistory::release(int warp, Clock& into) {
  into.resize(actors_);
  for (int other = 0; other < actors_; other++) into[other] = std::max(into[other], clock(warp)[other]);
  clock(warp)[warp]++;
}

void SharedHistory::acquire(int warp, const Clock& from) {
  for (size_t other = 0; other < from.size(); other++) {
    clock(warp)[other] = std::max(clock(warp)[other], from[other]);
  }
}

// ---- global memory

namespace {

struct Page {
  static constexpr size_t WORDS = 1024;
  uint32_t launch = 0;
  uint32_t writer[WORDS], reader[WORDS];  // block + 1; for several readers: MANY
};
constexpr uint32_t MANY = ~0u;
uint32_t launch = 0;

Page& page_of(uint64_t word) {
  static std::unordered_map<uint64_t, std::unique_ptr<Page>> pages;
  static uint64_t last = ~0ull;
  static Page* page = nullptr;
  if (const uint64_t number = word / Page::WORDS; number != last) {
    std::unique_ptr<Page>& known = pages[number];
    if (!known) known = std::make_unique<Page>();
    page = known.get();
    last = number;
  }
  if (page->launch != launch) {
    *page = {};
    page->launch = launch;
  }
  return *page;
}

}  // namespace

void begin_global_history() { launch++; }

void global_access(const Context& context, const Instruction& instruction, uint64_t address, uint32_t bytes,
                   bool write) {
  const uint32_t block = context.block.linear + 1;
  for (uint64_t word = address / 4; word <= (address + bytes - 1) / 4; word++) {
    Page& page = page_of(word);
    uint32_t& writer = page.writer[word % Page::WORDS];
    uint32_t& reader = page.reader[word % Page::WORDS];
    if (bytes >= 4) {  // halves of a word may belong to two blocks
      if (writer && writer != block) notice("race in global memory: another block wrote this", context, instruction);
      if (write && reader && reader != block) {
        notice("race in global memory: another block read this", context, instruction);
      }
    }
    if (write) {
      writer = block;
    } else {
      reader = reader && reader != block ? MANY : block;
    }
  }
}

// ---- registers

void RegisterChecks::check(const Context& context, const Instruction& instruction, Mask mask) {
  const Kernel& kernel = context.block.kernel;
  auto say = [&](const char* what, int reg) {
    notice(what + (" " + kernel.registers[reg].name), context, instruction);
  };
  auto read = [&](int reg, Mask lanes) {
    if ((written[reg] & lanes) != lanes) {
      say("read of a register that was never written,", reg);
      written[reg] |= lanes;
    }
    if (products && accumulating[reg] && !instruction.product) say("read of a sum that products are adding to,", reg);
  };
  if (instruction.selects) {
    const Mask first = true_lanes(context, instruction.operand(3));
    const Mask lanes[2] = {mask & first, mask & ~first};
    for (int i = 0; i < 2; i++) {
      if (const int reg = instruction.operand(1 + i).reg; reg >= 0) read(reg, lanes[i]);
    }
    if (const int reg = instruction.operand(3).reg; reg >= 0) read(reg, mask);
  } else {
    for (int reg : instruction.reads) read(reg, mask);
  }
  for (int reg : instruction.writes) {
    written[reg] |= mask;
    if (instruction.product) continue;
    if (products && (accumulating[reg] || multiplied[reg])) say("write to a register of a product under way,", reg);
    fence[reg] = fences;
  }
}

}  // namespace ptx
