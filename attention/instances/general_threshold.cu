#include "attention/general_kernels.cuh"

[[maybe_unused]] static const bool entered = enter_general_kernels<Threshold<FullMaths>>(Kind::threshold);
