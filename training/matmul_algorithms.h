// The algorithms of the run's matrix products: where they come from, and how all ranks get the same ones. On a GPU each
// is the fastest of several that round differently, so a run repeats its bits only with the same choices. On the CPU
// there is nothing to choose between and these functions do nothing.
#pragma once
#include <vector>

#include "checkpoint/checkpoint.h"
#include "train_gpt2.h"
#include "training/device.h"
#include "training/evaluations.h"

// Takes the choices of earlier runs from a file in the user's cache folder, and keeps those of this run there. Called
// on rank 0, which prints how many it took and how old they are. remeasure: takes none.
void use_product_cache(const DeviceInfo& device, bool remeasure);

// Takes the choices that the checkpoint's run has made; rank 0 prints how many and how old they are. If another
// library, or other kernels of it, computed the run's products, that is printed too.
void take_products(const Checkpoint& from, const DeviceInfo& device);

// Makes rank 0's choices those of all ranks, before the first step or evaluation that counts. For that every rank
// computes each matrix product of the run once: those of a micro step, if training, and of the evaluations. The state
// stays as it is, except for the gradients. A rank whose GPU is of another kind than rank 0's keeps its own choices.
void agree_on_products(Model& model, const std::vector<Evaluation>& evaluations, bool training);
