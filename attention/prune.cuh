// Tiles of scores that a bias has made negligible: masks leave them out, so that attention with a bias that keeps
// falling takes time linear in the length.
//
// Query i gives key j, of the same document of n positions, at most e^(z_ij + c_i - c_j - z_ii) of the weight that it
// gives itself, and |z_ij|, |z_ii| <= Q K, the largest lengths of the document's prepared queries and keys. c falls, so
// where c_i - c_j < -(2 Q K + ln n + 17) for a key, all keys up to it together have less than n e^-(ln n + 17) < 2^-24
// of the row's sum: less than a float32 sum can tell. With a sink that sum is larger, and the share less. The same
// holds for all queries from i on. So a block of BIAS_ROWS queries needs the keys from some block on, and a block of
// keys the queries up to some block; both are searched with one rule, and backward passes see the same pairs as forward
// passes. (Lin et al., arXiv 2504.06949, prune FoX by such a bound.)
//
// Q, K and n are of one head of one sequence or document: no bit depends on other sequences, documents or heads. But
// one long query or key makes its whole document need more, and later positions can change which tiles of earlier ones
// are left out, and so their last bits.
#pragma once
#include <climits>

#include "attention/attention.h"

// In c, of position_bias_forward(), by block (bias_blocks(T)): of a block of queries the first key that it needs, of a
// block of keys the position behind the last query that needs it.
struct NeededTiles {
  int first_key, query_stop;
};

// Writes these numbers into c if the settings prune, from qkv as prepare_forward() leaves it; call it before
// attention_forward() and attention_backward(). tiles [H] += the pairs of blocks that are left, and those that the
// masks show, of the first `counted` sequences; nullptr: they are not counted. Floor: 2 N A elements read.
template <class T>
void find_needed_tiles(float* c, float2* tiles, const T* qkv, const AttentionCall<T>& call, int counted = INT_MAX);
