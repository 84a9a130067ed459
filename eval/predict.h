// The outputs of a model with a regression head, written to a file.
#pragma once
#include <string>
#include <vector>

#include "data/shards.h"
#include "train_gpt2.h"

// Writes the outputs for all windows of model.context tokens of the shards, in order, as NumPy's .npy: float32 [windows,
// context, K]. Called by all ranks, which share the windows; rank 0 writes. The file appears when it is complete; a
// signal that asks any rank to stop ends this without one. The model must have been made for eval_rows(config, {context}) rows.
void predict(Model& model, const std::vector<Shard>& shards, const std::string& file);
