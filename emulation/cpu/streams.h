// What is put on a stream. Usually it runs at once, in the caller. For tests it can be kept back, by keep_back() or
// PLUSGPT_STREAMS=late|random|random7 in the environment: it runs when somebody waits for it, and only what that needs
// runs then (late); or at random moments before, other ones with another number (random). The order within a stream,
// events and the default stream are respected as CUDA does, and nothing more: a wait that the program lacks, between two
// streams or before the host reads or writes what a copy reads or writes, shows as other numbers.
#pragma once
#include <functional>
#include <memory>
#include <utility>
#include "emulation/cpu/scheduler.h"

struct cpu_stream;

namespace cpu {

enum class StreamOrder { at_once, late, random };
void keep_back(StreamOrder);  // from here on; waits for everything first
bool streams_at_once();
void put_later(cpu_stream*, std::function<void()> work);
template <class F> void put_on(cpu_stream* stream, F work) {
  if (streams_at_once()) work();
  else put_later(stream, std::move(work));
}
// A kernel whose arguments stand in `arguments`, which l.arguments points to.
void put_kernel_on(cpu_stream*, const Launch& l, std::shared_ptr<const void> arguments);

// Device and pinned memory. Other memory of the host is copied when a copy is asked for, as CUDA does with what may be
// paged out.
void note_memory(const void* p, size_t bytes);
void forget_memory(const void* p);  // waits for everything

}  // namespace cpu
