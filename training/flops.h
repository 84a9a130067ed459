// The work of training, for plans and MFU.
#pragma once
#include <span>
#include <vector>

#include "train_gpt2.h"

int64_t parameter_count(const Config& config);
// 6 x parameters + 6 L T A, as llm.c counts causal training, with the keys that rows see for T. documents: lengths of
// separate ones; none: as joined.
double flops_per_token(const Config& config, const std::vector<int>& documents = {});
// Of these 6 L T A. tiles [layers, H]: of layers that prune this share of the keys; none: all.
double attention_flops_per_token(const Config& config, const std::vector<int>& documents = {},
                                 std::span<const TileCount> tiles = {});
// Of a forward pass over windows of this length, a third of training's. logits: of all rows, else of none.
double forward_flops_per_token(Config config, int length, bool logits, const std::vector<int>& documents = {});
double update_flops(const Config& config);              // of Muon's products in a step, by all ranks; 0 with AdamW
double needed_share(std::span<const TileCount> tiles);  // of their sums; 1 if none are seen
