// The shape of a model: widths that settings imply, in plain C++. The letters are train_gpt2.cu's.
#pragma once
#include <cstddef>

#include "settings/config.h"

inline size_t round_up(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

int padded_vocab(const Config& config);
int padded_outputs(const Config& config);  // the head's K, padded for matrix products; 0 without a head

// Columns of a layer's row of qkv: the logits of a learned bias and of the gate, 0 without; all of them, padded, as
// attention reads them; and as the product makes them, with kv_heads heads of keys and values.
struct QkvColumns {
  int Z, G, Q, P;
};
QkvColumns qkv_columns(const Config::Model& m, const AttentionSettings& attention);

// Whether memory is planned for this CPU, which is host and device in one; not with plan.memory, which is a GPU's.
bool planned_for_cpu(const Config& config);
