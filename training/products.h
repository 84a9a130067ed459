// Which algorithms make the run's matrix products: where they come from. On a GPU each
// is the fastest of several that round differently, so a run repeats its bits only with the same choices. On the CPU there
// is nothing to choose between and these functions do nothing.
#pragma once
#include "checkpoint/checkpoint.h"
#include "training/device.h"

// Takes the choices of earlier runs from a file in the user's cache folder, and keeps those of this run there. Of rank
// 0, which prints how many it took and how old they are. remeasure: takes none.
void use_product_cache(const DeviceInfo& device, bool remeasure);

// Takes the choices that the checkpoint's run has made; rank 0 prints how many and how old they are.
void take_products(const Checkpoint& from, const DeviceInfo& device);
