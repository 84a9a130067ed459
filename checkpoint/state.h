// The model's state in files: what it begins from, what a checkpoint of it holds.
#pragma once
#include <optional>
#include <string>

#include "base/background.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/run_dir.h"
#include "train_gpt2.h"

// The checkpoint's state, else the weights of init, else random ones. Returns how many updates they have had, as far as
// that is known. training: moments are wanted too.
int64_t initial_state(Model& model, const std::optional<Checkpoint>& from, bool training);

// The unclipped gradients, by the names of model.safetensors. Of all ranks; the first writes.
void save_gradients(Model& model, const std::string& path);

// Begins a checkpoint of this moment. Its files are written in the background, from a snapshot, while training goes on.
// run: where rank 0 writes it, nullptr at the others.
void save(Model& model, RunDir* run, const RunState& state, Background& background);

int64_t newest_step(const std::string& run);  // of its checkpoints; 0: it has none
std::string checkpoint_before(const std::string& run, int64_t step);  // the newest of fewer steps, "" where there is none
std::string how_to_continue(const std::string& run, int64_t failed);  // the end of an error text
