// Diagnostics: what attention looks at, and what its gate and the residual stream do, on windows of validation text.
// With i = 1..T a row of weights P_ij over the keys that it sees, p = P / sum of P (weights of some kinds are not
// normalised; rows whose weights are all 0 count as degenerate and are left out of means of p), means over the rows
// that see several keys (with separate documents i and j count from the document's beginning):
//   first       mean of p_i1; first_raw: of P_i1          entropy      mean of H = -sum p ln p, in nats
//   sink_mass   1 - mean of sum P                         entropy_norm mean of H / ln(keys): 1 for uniform weights
//   zeros       share of pairs with P = 0, beyond a kind's dense_rows (kind.h), as lssar's rows without offset
//   tiles       share of the tiles of scores that attention.prune leaves
//   score       mean and largest |z_ij|, over the keys that each row sees
//   reach       mean of p by distance i - j, in bins of 0, 1, 2 to 3, 4 to 7, ...; d50, d90: the distances within which
//               half and nine tenths of it lie (linear within a bin); distance: its mean
//   sink rate   percentage of (window, layer, head) in which the mean of p_i1 over the first 64 rows is above 0.3
//   M-Act       mean over the layers of the largest |x|, x the residual stream that leaves a layer
// Windows of L tokens do not overlap. With diagnostics.start = any they follow one another, as those of an evaluation;
// with document each begins at the separator, and may hold more documents. Memory is linear in L. Ranks take
// batches of windows in turn, and all get the result.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "data/shards.h"
#include "eval/evaluate.h"

// The windows of this length. A user_error if the shards or diagnostics.tokens hold none.
EvalWindows diagnostics_windows(const Config& config, int separator, const std::vector<Shard>& shards, int length);

// The identity of what is looked at there (evaluation_id()).
std::string diagnostics_id(const Config& config, int separator, const std::vector<Shard>& shards,
                           const std::vector<DataFile>& files, int length);

// Looks at each of the lengths, prints tables and writes lines. The model must have been made with config.diagnoses and
// for eval_rows(config, lengths) rows. Returns whether the residual streams are finite.
bool diagnose_lengths(const EvalContext& context, const std::vector<Shard>& shards, const std::vector<DataFile>& files,
                      const std::vector<int>& lengths);

// What the heads learned: {"attn.sink": [L] of [H], ...} of every parameter that is a number for each head; null for a
// layer without it, and for a model without any. The float32 masters. All ranks; as gather() in parameters.h says, it
// may overwrite the gradients.
nlohmann::ordered_json learned_by_head(Model& model);
