#include "ranks/requests.h"

#include <csignal>

#include "base/signals.h"

Requests requests_of_ranks(Comm& comm, bool save) {
  constexpr int signals[] = {SIGINT, SIGTERM, SIGHUP};
  double ranks[] = {0, 0, 0, double(save_requested() || save)};
  for (int i = 0; i < 3; i++) ranks[i] = stop_signal() == signals[i];
  comm.all_reduce_sum(ranks, 4);
  bool stop = false;
  for (int i = 0; i < 3 && !stop; i++)
    if ((stop = ranks[i] > 0)) stop_by(signals[i]);
  return {stop, ranks[3] > 0};
}
