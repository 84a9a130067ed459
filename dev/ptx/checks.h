// Checks for bugs in kernels: races, use of poison, use of a product's registers while it is under way, missing proxy
// fences.
#pragma once
#include <cstdint>
#include <string>
#include <vector>
#include "dev/ptx/program.h"

namespace ptx {

// Prints the bug and its place on stderr, once, and makes the launch fail.
void notice(const std::string& what, const std::string& where);
void notice(const std::string& what, const Context& context, const Instruction& instruction);
// The number of notices since the last call.
int take_notices();
// The kernel that the messages name.
void set_noticed_kernel(const std::string& name);

// A vector clock: an epoch for every actor of a block, which are its warps, then the products of each warp.
using Clock = std::vector<uint32_t>;

// Shared memory: the last writer and readers of each word, and whether a new access happens after them. Happens-before
// is tracked for warps; the lanes of one warp are ordered by the operations that they do together.
class SharedHistory {
 public:
  SharedHistory(int warps, bool products, size_t bytes);

  // A lane's access through the generic proxy. False, and noticed, if bytes are outside shared memory.
  bool access(const Context& context, const Instruction& instruction, uint64_t address, uint32_t bytes, bool write,
              int lane);
  // A read by the asynchronous proxy: a thread that wrote the bytes must have executed fence.proxy.async since.
  bool async_read(const Context& context, const Instruction& instruction, uint64_t address, uint32_t bytes);
  // The same by the sequence-th product of a warp; the read is ordered before other accesses only by a wait for it.
  bool product_read(const Context& context, const Instruction& instruction, uint64_t address, uint32_t bytes,
                    uint32_t sequence);
  void products_waited_for(int warp, uint32_t sequence);
  // Between the two calls the bytes belong to a copy.
  bool copy_begins(const Context& context, const Instruction& instruction, uint64_t address, uint32_t bytes);
  void copy_ends(uint64_t address, uint32_t bytes);

  void add_mbarrier(uint32_t address) { mbarrier_[address / 8] = true; }
  // The initialization of an mbarrier must happen before its use.
  void use_mbarrier(const Context& context, const Instruction& instruction, uint32_t address);
  void fence_proxy(int thread) { fences_[thread]++; }
  void warp_synchronized(int warp) { synchronized_[warp]++; }
  void block_synchronized(const std::vector<int>& warps);
  void release(int warp, Clock& into);
  void acquire(int warp, const Clock& from);

 private:
  struct Word {
    int32_t warp = -1;   // the last writer
    int32_t lane = -1;   // of it; -1: not a single lane
    uint32_t epoch = 0;  // of that warp
    uint32_t synchronized = 0;
    int32_t thread = -1;  // the last writer through the generic proxy; -1: a copy
    uint32_t fences = 0;  // that this thread had executed before
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
  std::vector<uint32_t> reads_;   // [word][actor]: epoch of its last read
  std::vector<uint8_t> pending_;  // [16 bytes]: copies that will write there
  std::vector<bool> mbarrier_;    // [8 bytes]
  std::vector<uint32_t> fences_;  // [thread]
  std::vector<uint32_t> synchronized_;
  std::vector<Clock> clocks_;  // [warp]
};

// Checks plain accesses to global memory: no two blocks of a launch may access the same word if one of them writes it.
void begin_global_history();
void global_access(const Context& context, const Instruction& instruction, uint64_t address, uint32_t bytes,
                   bool write);

// Checks the registers of a warp: they must be written before they are read, fenced before a product uses them, and not
// used while it is under way.
struct RegisterChecks {
  std::vector<Mask> written;
  std::vector<uint8_t> accumulating, multiplied;  // by how many products under way
  std::vector<uint32_t> fence;                    // the number of wgmma.fence when it was last written
  uint32_t fences = 1;
  int products = 0;  // under way

  void check(const Context& context, const Instruction& instruction, Mask mask);
};

}  // namespace ptx
