#include "attention/hopper_kernels.cuh"

// Powers that are no integers up to 32 are left to the other kernels: here they would spill registers.
[[maybe_unused]] static const bool entered = enter_hopper_kernels<Lssar<true, true>>(Kind::lssar);
