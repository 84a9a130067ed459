// Queries, keys and values for the tests of attention.
#pragma once
#include <cmath>
#include <vector>

#include "attention/attention.h"
#include "test/support/device.h"

// Unit normal q, k, v with q times 1/sqrt(D) (times `spread`), as the preparation leaves them.
template <class T> std::vector<T> random_qkv(const AttentionShape& shape, unsigned seed, float spread = 1) {
  auto x = random_normal<float>(shape.qkv_size(), seed);
  std::vector<T> qkv(x.size());
  for (size_t i = 0; i < x.size(); i++) {
    bool is_q = i / (size_t(shape.H) * shape.D) % 3 == 0;
    qkv[i] = from_float<T>(is_q ? x[i] * spread / std::sqrt(float(shape.D)) : x[i]);
  }
  return qkv;
}

// Lets every query score 3 more at key 0, so that no row is nearly degenerate for lssar or softmaxr: there rounding of
// z counts 1 / m times, and the largest error of a tensor is that of its worst row.
template <class T> void look_at_first_key(const AttentionShape& shape, std::vector<T>& qkv) {
  for (int b = 0; b < shape.B; b++)
    for (int h = 0; h < shape.H; h++) {
      float squares = 0;
      for (int d = 0; d < shape.D; d++) squares += std::pow(to_float(qkv[shape.qkv(b, 0, 1, h, d)]), 2.0f);
      for (int t = 0; t < shape.T; t++)
        for (int d = 0; d < shape.D; d++) {
          T& q = qkv[shape.qkv(b, t, 0, h, d)];
          q = from_float<T>(to_float(q) + 3 * to_float(qkv[shape.qkv(b, 0, 1, h, d)]) / squares);
        }
    }
}
