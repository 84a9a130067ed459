// `--gpus N`: starts the ranks of a run on this machine, as children of this process.
// The launcher keeps nothing of the run itself. Whatever ends it ends its ranks at once, kill -9 included. SIGTERM,
// SIGINT and SIGUSR1 go on to rank 0, which tells the others; a second SIGTERM or SIGINT ends all. When a rank dies the
// others are ended and the message names it; the launcher's exit code is that of the run.
#pragma once
#include <functional>

#include "runtime/ranks.h"

// Returns in the children, each with its place. Call it before there is any thread, and before CUDA is used.
Ranks launch_ranks(int count);

int in_a_child(const std::function<int()>& count);  // count(), at most 255, in a process that is gone afterwards
