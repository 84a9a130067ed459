// From an opcode to the handler that executes it. Each family of instructions knows its own and says so here; whatever
// nobody knows, in any of its modifiers, is an Error that names instruction and kernel.
#pragma once
#include <string>
#include <vector>
#include "emulation/ptx/program.h"

namespace ptx {

// The parts of "ld.global.nc.v4.f32", taken one by one. What has not been taken when a family claims the instruction
// was not understood.
class Opcode {
 public:
  explicit Opcode(const std::string& text);
  const std::string& text() const { return text_; }
  const std::string& base() const { return parts_[0]; }
  bool take(const std::string& modifier);  // wherever it stands
  bool take_type(Type& type);              // the last part
  bool take_last(std::string& modifier);
  bool done() const { return parts_.size() == 1; }

 private:
  std::string text_;
  std::vector<std::string> parts_;
};

// Fill in what the instruction needs and return true where the opcode is theirs and wholly understood.
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
// An instruction whose effect is noticed elsewhere, or that orders more than is modelled.
void no_operation(Context&, const Instruction&, Mask);

}  // namespace ptx
