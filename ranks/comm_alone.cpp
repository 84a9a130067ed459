// ranks/comm.cpp for a build without NCCL (NCCL=0, or nccl.h was not found): with one rank there is nothing to do.
#include "ranks/comm.h"

bool Comm::built() { return false; }

Comm::Comm(const Ranks& ranks, Links&) {
  user_error("ranks: %d ranks need NCCL, and this program was built without it; install NCCL and run make again (%s)",
             ranks.size, ranks.variables.c_str());
}

Comm::~Comm() = default;
void Comm::after(cudaStream_t) {}
void Comm::before(cudaStream_t) {}
void Comm::all_reduce(float*, size_t) {}
void Comm::reduce_scatter(float*, size_t) {}
void Comm::all_gather(float*, size_t) {}
void Comm::all_gather(bf16*, size_t) {}
void Comm::all_reduce_sum(double*, size_t) {}
double Comm::all_reduce_min(double value) { return value; }
void Comm::broadcast_bytes(void*, size_t) {}
