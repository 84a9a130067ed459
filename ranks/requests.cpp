#include "ranks/requests.h"

#include <iterator>

#include "base/signals.h"

Requests requests_of_ranks(Comm& comm, bool save) {
  constexpr int count = std::size(STOP_SIGNALS);
  double ranks[count + 1] = {};
  for (int i = 0; i < count; i++) ranks[i] = stop_signal() == STOP_SIGNALS[i];
  ranks[count] = save_requested() || save;
  comm.all_reduce_sum(ranks, count + 1);
  bool stop = false;
  for (int i = 0; i < count && !stop; i++)
    if ((stop = ranks[i] > 0)) stop_by(STOP_SIGNALS[i]);
  return {stop, ranks[count] > 0};
}
