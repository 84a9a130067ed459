#include "attention/general_kernels.cuh"

INSTANTIATE_GENERAL(Relu2)
