// PTX text to kernels.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>
#include "dev/ptx/program.h"

namespace ptx {

// Adds the kernels of a module; throws Error if the text, or an instruction in it, is not understood.
void parse_module(const std::string& text, std::map<std::string, std::unique_ptr<Kernel>>& kernels);

// "a", "b", "" of "a.b."
std::vector<std::string> split(const std::string& text, char separator);

}  // namespace ptx
