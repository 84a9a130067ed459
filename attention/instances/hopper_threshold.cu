#include "attention/hopper_kernels.cuh"

[[maybe_unused]] static const bool entered = enter_hopper_kernels<Threshold<FastMaths>>(Kind::threshold);
