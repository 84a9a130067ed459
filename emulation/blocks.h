// A test's knob: of each kernel that is launched, and of attention's forward pass with oneDNN, only the first blocks
// run. The others' results stay unwritten.
#pragma once
#include <stdint.h>

namespace cpu {
extern uint64_t most_blocks;
}
