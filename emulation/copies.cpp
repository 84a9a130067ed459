// cp.async on the CPU: each thread's copies stay in its queue, in order, until its cp_async_wait. A copy that the
// thread never waits for is never made.
#include <vector>
#include "emulation/warp.h"

namespace cpu {

struct Copy {
  void* to;
  const void* from;
  unsigned group;
  bool valid;
};
struct CopyQueue {
  std::vector<Copy> copies;
  unsigned committed = 0;  // groups
};

void copy_later(void* to, const void* from, bool valid) {
  if (!self->copies) self->copies = new CopyQueue;
#ifdef CPU_ASAN  // report a bad address here and not at the wait
  (void)*static_cast<volatile char*>(to), (void)static_cast<volatile char*>(to)[15];
  if (valid) (void)*static_cast<const volatile char*>(from), (void)static_cast<const volatile char*>(from)[15];
#endif
  self->copies->copies.push_back({to, from, self->copies->committed, valid});
}

void commit_copies() {
  if (!self->copies) self->copies = new CopyQueue;
  ++self->copies->committed;
}

void deliver_copies(int groups_left) {
  if (!self->copies) return;
  CopyQueue& queue = *self->copies;
  auto copy = queue.copies.begin();
  for (; copy != queue.copies.end() && copy->group + static_cast<unsigned>(groups_left) < queue.committed; ++copy)
    *static_cast<Bytes16*>(copy->to) = copy->valid ? *static_cast<const Bytes16*>(copy->from) : Bytes16{};
  queue.copies.erase(queue.copies.begin(), copy);
}

void drop_copies(CopyQueue* queue) {
  queue->copies.clear();
  queue->committed = 0;
}

void free_copies(CopyQueue* queue) { delete queue; }

}  // namespace cpu
