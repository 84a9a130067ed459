// Finds the handler that executes an opcode. Each family of instructions recognizes its own; an opcode that no family
// recognizes with all its modifiers is an Error that names instruction and kernel.
#pragma once
#include <string>
#include <vector>
#include "dev/ptx/program.h"

namespace ptx {

// The parts of "ld.global.nc.v4.f32", taken one by one. A family that claims the instruction must have taken all of
// them.
class Opcode {
 public:
  explicit Opcode(const std::string& text);
  const std::string& text() const { return text_; }
  const std::string& base() const { return parts_[0]; }
  bool take(const std::string& modifier);  // at any place
  bool take_type(Type& type);              // only as the last part
  bool take_last(std::string& modifier);
  bool done() const { return parts_.size() == 1; }

 private:
  std::string text_;
  std::vector<std::string> parts_;
};

// Each fills in the instruction and returns true if the opcode is of its family and all its parts are understood.
bool decode_arithmetic(Opcode opcode, Instruction& instruction);
bool decode_convert(Opcode opcode, Instruction& instruction);
bool decode_memory(Opcode opcode, Instruction& instruction);
bool decode_warp(Opcode opcode, Instruction& instruction);
bool decode_mbarrier(Opcode opcode, Instruction& instruction);
bool decode_copies(Opcode opcode, Instruction& instruction);
bool decode_wgmma(Opcode opcode, Instruction& instruction);

void decode(const std::string& opcode, Instruction& instruction, Kernel& kernel);

// The value of an operand that must be an immediate.
int immediate(const Instruction& instruction, int group);
// For an instruction whose effect is modelled elsewhere, or that only orders what is ordered here anyway.
void no_operation(Context&, const Instruction&, Mask);

}  // namespace ptx
