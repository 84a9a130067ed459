// Squared error of K outputs for each row, forward and backward at once, for the regression head.
#pragma once
#include "kernels/gpu.cuh"

// y [n, Kp] += bias [K] in its first K columns. If targets [n, K] is given: losses [n] = weight x the mean of (y -
// target)^2 over the targets of the row that are not NaN, 0 if all are; and when dloss != 0, dy [n, Kp] = dloss x its
// derivative, 0 in padding and where the target is NaN. weights [n], or nullptr for 1. A thread per row; sums in
// float32. Floor: n (2 Kp + K) floats read or written, and n Kp of T.
template <class T>
void squared_error(float* losses, float* y, T* dy, const T* bias, const float* targets, const float* weights,
                   float dloss, int n, int K, int Kp, cudaStream_t stream);
