// Grouped queries: H heads of queries, K heads of keys and values (model.kv_heads), each used by the H / K heads of its
// group. The product makes a row of A + 2 K D columns, and attention reads rows of 3 A (train_gpt2.cu): between them a
// head of keys or values is repeated, and its gradient is the sum over its group.
#pragma once
#include "kernels/gpu.cuh"

// The rows of one side: of the product `narrow`, of attention `wide`; further columns, logits, follow q, k, v in both.
struct GroupedRows {
  int N, H, K, D;
  int more;          // further columns
  int narrow, wide;  // elements from row to row
};

// wide [N, 3 H D + more] = from narrow [N, (H + 2 K) D + more]; the columns behind them = 0. Floor: 3 N A elements
// written, fewer read.
template <class T> void repeat_heads(T* wide, const T* narrow, const GroupedRows& rows, cudaStream_t stream);

// The gradients: narrow = from wide, with the heads of a group added in their order, in float. Floor: 3 N A elements
// read, fewer written.
template <class T> void add_repeated_heads(T* narrow, const T* wide, const GroupedRows& rows, cudaStream_t stream);
