// The model's state in files: the weights from which it starts, and its checkpoints.
#pragma once
#include <optional>
#include <string>

#include "base/background.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/run_dir.h"
#include "train_gpt2.h"

// Loads the checkpoint's state, else the weights of init, else random ones. Returns the number of steps that they
// have had, 0 if that is unknown. training: also loads the moments of a checkpoint. A user_error if the file does not
// fit.
int64_t initial_state(Model& model, const std::optional<Checkpoint>& from, bool training);

// Why init cannot start the model of `now` from weights of `before`; "" if it can.
std::string init_problem(const Config& before, const Config& now);

// Writes the unclipped gradients to a safetensors file, under the names of model.safetensors. Called by all ranks; rank
// 0 writes.
void save_gradients(Model& model, const std::string& path);

// Begins a checkpoint of the current state: takes a snapshot, whose files are written in the background while training
// continues. Called by all ranks. run: the folder where rank 0 writes it; nullptr on the others.
void save(Model& model, RunDir* run, const RunState& state, Background& background);

int64_t newest_step(const std::string& run);  // the step of the newest checkpoint, 0 if there is none
std::string how_to_continue(const std::string& run, int64_t failed);  // ends an error text about step `failed`
