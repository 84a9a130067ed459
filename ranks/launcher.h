// `--gpus N`: starts the ranks of a run on this machine, as children of this process.
// The launcher keeps nothing of the run itself. Whatever ends it ends its ranks at once, kill -9 included. SIGTERM,
// SIGINT and SIGUSR1 go on to rank 0, which tells the others; a second SIGTERM or SIGINT ends all. When a rank dies the
// others are ended and the message names it; the launcher's exit code is that of the run.
#pragma once
#include <string>

#include "ranks/ranks.h"

// gpus: what the flag says, "N" or "all" (on the CPU 1). started: the ranks that the environment tells of; they cannot
// start others. Where there are several to start, this returns in each of them with its place, and the launcher stays
// behind. Call it before there is any thread, and before CUDA is used.
Ranks find_ranks(const std::string& gpus, const Ranks& started);
