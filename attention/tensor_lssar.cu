#include "attention/tensor_kernels.cuh"

[[maybe_unused]] static const bool entered = enter_tensor_kernels<Lssar<true, true>>(Kind::lssar),
                                   entered_any_power = enter_tensor_kernels<Lssar<true, false>>(Kind::lssar, true);
