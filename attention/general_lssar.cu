#include "attention/general_kernels.cuh"

INSTANTIATE_GENERAL(Lssar<true>)
INSTANTIATE_FORWARD(float, Lssar<false>)
INSTANTIATE_FORWARD(bf16, Lssar<false>)
