#pragma once
#include "ranks/comm.h"

// What signals (base/signals.h) have asked of any rank: to stop, or to save since the last call, for which `save` asks
// too. All ranks must call it, and get the same; one that is told to stop then counts as having got the signal.
struct Requests {
  bool stop, save;
};
Requests requests_of_ranks(Comm& comm, bool save = false);
