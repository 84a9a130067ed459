// Finds the parameters that the loss does not depend on.
#pragma once
#include "train_gpt2.h"

// Warns of the parameters whose gradient, as next_gradients() left it, is exactly 0. step: its number. Called
// by all ranks; rank 0 prints.
void warn_of_zero_gradients(Model& model, int64_t step);
