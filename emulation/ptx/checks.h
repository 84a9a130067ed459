// What is noticed: races, poison in use, registers of a product under way, proxies without a fence.
#pragma once
#include <cstdint>
#include <string>
#include <vector>
#include "emulation/ptx/program.h"

namespace ptx {

// Says once what is wrong where, on stderr, and lets the launch fail.
void notice(const std::string& what, const std::string& where);
void notice(const std::string& what, const Context& context, const Instruction& instruction);
// How many there were since the last call.
int take_notices();
// The kernel that the messages name.
void set_noticed_kernel(const std::string& name);

// For every actor of a block - its warps, then the products of each - how much of it has happened before.
using Clock = std::vector<uint32_t>;

// Shared memory: who wrote and read each word, and whether that happened before. Happens-before at the granularity of
// warps; the lanes of one are ordered by the operations that it does together.
class SharedHistory {
 public:
  SharedHistory(int warps, bool products, size_t bytes);

  // An access of a lane, through the generic proxy; reports bytes outside too, and then returns false.
  bool access(const Context& context, const Instruction& instruction, uint64_t address, uint32_t bytes, bool write,
              int lane);
  // A read by the asynchronous proxy: what threads wrote must have been fenced (fence.proxy.async) after it was
  // written.
  bool async_read(const Context& context, const Instruction& instruction, uint64_t address, uint32_t bytes);
  // The same by a warp's product, the sequence-th; nobody knows that it has read until somebody has waited for it.
  bool product_read(const Context& context, const Instruction& instruction, uint64_t address, uint32_t bytes,
                    uint32_t sequence);
  void products_waited_for(int warp, uint32_t sequence);
  // From begin to end the bytes belong to a copy.
  bool copy_begins(const Context& context, const Instruction& instruction, uint64_t address, uint32_t bytes);
  void copy_ends(uint64_t address, uint32_t bytes);

  void add_mbarrier(uint32_t address) { mbarrier_[address / 8] = true; }
  // Whoever uses an mbarrier must know that it was initialized.
  void use_mbarrier(const Context& context, const Instruction& instruction, uint32_t address);
  void fence_proxy(int thread) { fences_[thread]++; }
  void warp_synchronized(int warp) { synchronized_[warp]++; }
  void block_synchronized(const std::vector<int>& warps);
  void release(int warp, Clock& into);
  void acquire(int warp, const Clock& from);

 private:
  struct Word {
    int32_t warp = -1;      // that wrote it last
    int32_t lane = -1;      // -1: no lane of its own
    uint32_t epoch = 0;     // of that warp
    uint32_t synchronized = 0;
    int32_t thread = -1;    // that wrote it last through the generic proxy; -1: a copy did
    uint32_t fences = 0;    // of that thread until then
  };
  Clock& clock(int warp) { return clocks_[warp]; }
  int products_of(int warp) const { return warps_ + warp; }  // their actor
  bool read_by(const Context& context, const Instruction& instruction, uint64_t address, uint32_t bytes, int actor,
               uint32_t epoch);
  bool inside(const Context& context, const Instruction& instruction, uint64_t address, uint32_t bytes,
              const char* what);
  void check_writer(const Context& context, const Instruction& instruction, const Word& word, const char* what,
                    int lane);
  void check_readers(const Context& context, const Instruction& instruction, size_t word, const char* what);

  int warps_, actors_;
  std::vector<Word> words_;
  std::vector<uint32_t> reads_;      // [word][actor]: epoch of its last read
  std::vector<uint8_t> pending_;     // [16 bytes]: copies that will write there
  std::vector<bool> mbarrier_;       // [8 bytes]
  std::vector<uint32_t> fences_;     // [thread]
  std::vector<uint32_t> synchronized_;
  std::vector<Clock> clocks_;        // [warp]
};

// Plain accesses to global memory: two blocks of a launch, one of them writing, never meet in a word.
void begin_global_history();
void global_access(const Context& context, const Instruction& instruction, uint64_t address, uint32_t bytes,
                   bool write);

// Registers of a warp: written before they are read, left alone while products are under way, fenced before.
struct RegisterChecks {
  std::vector<Mask> written;
  std::vector<uint8_t> accumulating, multiplied;  // by how many products under way
  std::vector<uint32_t> fence;                    // the number of wgmma.fence when it was last written
  uint32_t fences = 1;
  int products = 0;                               // under way

  void check(const Context& context, const Instruction& instruction, Mask mask);
};

}  // namespace ptx
