// The gate: y = x act(g), or x + act(g), on a matrix x of N rows, with logits g that are further columns of the q,k,v
// product. Elementwise there is a logit for every channel, headwise one for all D channels of a head, shared one for
// every channel of a head, which all heads use. The model decides what x is (attention's output, queries, keys, values,
// or the output projection): here it is H heads of D channels. Memory between the rows of a matrix is not touched. Any
// sizes and alignment; 16-byte accesses where strides, widths and addresses allow them.
#pragma once
#include "attention/settings.h"
#include "kernels/gpu.cuh"

// A pointer to the first of rows that are ld elements apart.
template <class T> struct Matrix {
  T* data;
  int ld;
  __device__ T* at(int row, int column) const { return data + size_t(row) * ld + column; }
};

// y [N, H, D] = gated x, or residual + gated x; y may be x. logits [N, G], G = H D, or H if headwise, D
// if shared. Floor: 3 N H D elements moved (headwise, shared 2; one more with a residual), one or two special functions
// each.
template <class T>
void gate_forward(Matrix<T> y, Matrix<const T> x, Matrix<const T> logits, const GateSettings& settings, int N, int H,
                  int D, cudaStream_t stream, Matrix<const T> residual = {nullptr, 0});

// dx = and dlogits = from dy, with x and logits as the forward read them; dx may be dy. dlogits has `columns` >= G
// columns; those beyond G, padding of the product, become 0. Floor: 5 N H D elements moved (headwise, shared 3).
template <class T>
void gate_backward(Matrix<T> dx, Matrix<T> dlogits, int columns, Matrix<const T> dy, Matrix<const T> x,
                   Matrix<const T> logits, const GateSettings& settings, int N, int H, int D, cudaStream_t stream);

// The sums of gate_statistics(), over all elements of a head of y and of its inputs.
struct GateStatistic {
  static constexpr int BINS = 20;
  enum {
    BEFORE,                 // of |x|
    AFTER,                  // of |y|
    BELOW_001,              // elements with |y| < 0.01
    BELOW_0001,             // elements with |y| < 0.001
    GATE,                   // of g = act(logit)
    CLOSED,                 // elements with g < 0.01
    NARROW,                 // elements with g < 0.1
    NEGATIVE,               // elements with g < 0
    SHARES,                 // elements with g in each of 20 equal bins of [0, 1]
    ABOVE = SHARES + BINS,  // elements with g > 1
    COUNT
  };
};
inline constexpr int GATE_STATISTICS_BLOCKS = 64;
inline constexpr size_t GATE_STATISTICS = GATE_STATISTICS_BLOCKS * GateStatistic::COUNT;  // of a head

// statistics [H, GATE_STATISTICS_BLOCKS, COUNT] =, to be added up. Without an activation y = x and g = 1, and logits
// are not read.
template <class T>
void gate_statistics(float* statistics, Matrix<const T> x, Matrix<const T> logits, const GateSettings& settings, int N,
                     int H, int D, cudaStream_t stream);
