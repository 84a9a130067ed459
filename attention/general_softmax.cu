#include "attention/general_kernels.cuh"

INSTANTIATE_GENERAL(Softmax)
