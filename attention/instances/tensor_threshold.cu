#include "attention/tensor_kernels.cuh"

[[maybe_unused]] static const bool entered = enter_tensor_kernels<Threshold<FastMaths>>(Kind::threshold);
