// The PTX that nvcc embedded in the program.
#pragma once
#include <string>
#include "dev/ptx/program.h"

namespace ptx {

void add_fat_binary(const void* wrapper);             // as given to __cudaRegisterFatBinary
const Kernel& kernel_named(const std::string& name);  // throws Error if there is none
int target_architecture();                            // of the PTX: 90 for sm_90a

}  // namespace ptx
