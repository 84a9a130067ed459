// `--gpus N`: starts the ranks of a run on this machine, as children of this process, their parent.
// The parent holds nothing of the run itself. However it ends, even by kill -9, its ranks end with it. It passes
// signals (base/signals.h) on to rank 0, which tells the others; a second request to stop ends all at once. If a rank
// dies, the parent names it and ends the others. Its exit code is that of the run; it dies of a signal that stopped the
// run.
#pragma once
#include <string>

#include "ranks/ranks.h"

// gpus: the value of the flag, "N" or "all" (1 on the CPU). started: the ranks that the environment describes, which
// cannot start others. If there is one rank to start, or no GPU, returns `started`. Otherwise it returns in each child,
// with the child's place, and never in the parent, which exits when the run has ended. Must be called before there is
// any thread and before CUDA is used. A user_error if `gpus` is not "all" or a number from 1 to the number of GPUs, or
// if several ranks are asked for where ranks were started already or NCCL is missing.
Ranks spawn_ranks(const std::string& gpus, const Ranks& started);
int number_of_ranks(const std::string& gpus);  // the N of --gpus N, 0 for "all" and for what is not a number
