// Writes a model's results for all windows of data.val to a file: NumPy's .npy of float32. Called by all ranks, which
// share the windows; rank 0 writes. The file appears when it is complete; a signal that asks any rank to stop ends this
// without one.
#pragma once
#include <string>
#include <vector>

#include "data/shards.h"
#include "train_gpt2.h"

// The outputs of a model with a regression head, for windows of model.context tokens: [windows, context, K]. The model
// must have been made for eval_rows(config, {context}) rows.
void predict(Model& model, const std::vector<Shard>& shards, const std::string& file);

// The losses of evaluate(), whose windows and targets these are, but of all windows: [eval.lengths, tokens of all
// shards]. Number i belongs to what is predicted after token i, and is NaN where nothing is: at the end of a shard,
// before the targets of mode suffix, where there is no label. The model must have been made for
// eval_rows(config, eval.lengths) rows.
void write_token_losses(Model& model, const std::vector<Shard>& shards, const std::string& file);
