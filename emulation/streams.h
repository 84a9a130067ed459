// Work on streams. Usually it runs at once, in the caller. For tests it can be held back, by keep_back() or
// PLUSGPT_STREAMS=late|random|random7 in the environment. late: it runs when the program waits for it, and only the
// work that this wait needs. random: it runs at random moments before that; the number is the seed. Only CUDA's own
// order is kept, within a stream, by events and with the default stream. So a missing wait, between two streams or
// before the host uses the memory of a copy, changes the results.
#pragma once
#include <functional>
#include <memory>
#include <utility>
#include "emulation/scheduler.h"

struct cpu_stream;

namespace cpu {

enum class StreamOrder { at_once, late, random };
void keep_back(StreamOrder);  // for work put on streams from now on; first waits for all earlier work
bool streams_at_once();
void put_later(cpu_stream*, std::function<void()> work);
template <class F> void put_on(cpu_stream* stream, F work) {
  if (streams_at_once()) work();
  else put_later(stream, std::move(work));
}
// A kernel whose arguments are in `arguments`, to which l.arguments points.
void put_kernel_on(cpu_stream*, const Launch& l, std::shared_ptr<const void> arguments);

// Register device and pinned memory. Copies from or to other host memory are made during the call, as CUDA does with
// pageable memory.
void note_memory(const void* p, size_t bytes);
void forget_memory(const void* p);  // waits for all work first

}  // namespace cpu
