#pragma once
#include "ranks/comm.h"

// Requests by a signal (base/signals.h) to any rank: to stop, or to save since the last call; `save` asks for that too.
// All ranks must call it, and get the same; one that is told to stop then counts as having got the signal.
struct Requests {
  bool stop, save;
};
Requests requests_of_ranks(Comm& comm, bool save = false);
