// A test's knob: of everything that the pool runs, such as the blocks of a kernel, only the first. The results of the
// others stay unwritten.
#pragma once
#include <stdint.h>

namespace cpu {
extern int64_t most_blocks;
}
