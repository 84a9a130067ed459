// Products of a warpgroup, for tests: where their sums are, and what they should be.
#pragma once
#include <vector>

#include "kernels/hopper.cuh"
#include "test/kernels/reference.h"

// Where part i of tile n of a thread's sums is, in a matrix of `columns` columns.
__device__ inline int sum_place(int n, int i, int columns) {
  int t = threadIdx.x % WARPGROUP, lane = t % WARP;
  return (t / WARP * 16 + lane / 4 + i / 2 * 8) * columns + n * 8 + lane % 4 * 2 + i % 2;
}

template <class X> std::vector<X> transposed(const std::vector<X>& x, size_t columns) {
  std::vector<X> y(x.size());
  for (size_t i = 0; i < x.size(); i++) y[i % columns * (x.size() / columns) + i / columns] = x[i];
  return y;
}

// d[i][j] = start[i][j] + sum over k of a[i][k] b[k][j]
template <class P>
std::vector<typename P::real> product_reference(const std::vector<typename P::real>& a,
                                                const std::vector<typename P::real>& b,
                                                const std::vector<typename P::real>& start, size_t n, size_t depth) {
  std::vector<typename P::real> d = start;
  for (size_t i = 0; i < d.size() / n; i++)
    for (size_t j = 0; j < n; j++) {
      auto left = [&](int k) { return a[i * depth + size_t(k)]; };
      auto right = [&](int k) { return b[size_t(k) * n + j]; };
      d[i * n + j] = add_all<P>(d[i * n + j], int(depth), left, right);
    }
  return d;
}
