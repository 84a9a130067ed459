#include "emulation/fiber.h"
#include <sys/mman.h>
#include <unistd.h>
#include <new>

namespace cpu {
namespace {

#if defined(CPU_ASAN) || defined(CPU_TSAN)
constexpr size_t stack_bytes = 512 << 10;  // instrumented frames are larger, and reports are written on the stack
#else
constexpr size_t stack_bytes = 128 << 10;
#endif
const size_t guard_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));

}  // namespace

Stack new_stack(int number) {
  void* memory = mmap(nullptr, guard_bytes + stack_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mprotect(memory, guard_bytes, PROT_NONE);  // best effort: the system limits the number of mappings
  char* bottom = static_cast<char*>(memory) + guard_bytes;
  // The guard pages spread the stacks over the sets of the L2 cache; this spreads them over those of L1.
  return {bottom, bottom + stack_bytes - number % 32 * 128};
}

void free_stack(const Stack& stack) {
#ifdef CPU_ASAN  // frames that never returned left marks, which the next mapping at this address must not find
  __asan_unpoison_memory_region(stack.bottom, stack_bytes);
#endif
  munmap(stack.bottom - guard_bytes, guard_bytes + stack_bytes);
}

bool overflowed(const Stack& stack, const void* address) {
  return address >= stack.bottom - guard_bytes && address < stack.bottom;
}

CPU_NO_TSAN void prepare(Context& context, const Stack& stack, void (*entry)()) {
  context.sp = first_frame(stack.top, entry);
#if defined(CPU_ASAN) || defined(CPU_TSAN)
  context.stack = stack;
#endif
}

}  // namespace cpu
