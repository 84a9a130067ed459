#include "attention/general_kernels.cuh"

[[maybe_unused]] static const bool entered = enter_general_kernels<Lssar<true, true>>(Kind::lssar),
                                   entered_any_power = enter_general_kernels<Lssar<true, false>>(Kind::lssar, true);
