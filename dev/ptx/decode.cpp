// Opcodes (decode.h).
#include "dev/ptx/decode.h"
#include <algorithm>
#include <map>
#include "dev/ptx/parse.h"

namespace ptx {
bool type_named(const std::string& name, Type& type) {
  static const std::map<std::string, Type> types = {
      {"b8", Type::b8},   {"u8", Type::u8},   {"s8", Type::s8},   {"b16", Type::b16},
      {"u16", Type::u16}, {"s16", Type::s16}, {"b32", Type::b32}, {"bf16", Type::bf16},
      {"u32", Type::u32}, {"s32", Type::s32}, {"f32", Type::f32}, {"b64", Type::b64},
      {"u64", Type::u64}, {"s64", Type::s64}, {"f64", Type::f64}, {"pred", Type::pred}};
  auto found = types.find(name);
  if (found == types.end()) return false;
  type = found->second;
  return true;
}

Opcode::Opcode(const std::string& text) : text_(text), parts_(split(text, '.')) {}

bool Opcode::take(const std::string& modifier) {
  auto found = std::find(parts_.begin() + 1, parts_.end(), modifier);
  if (found == parts_.end()) return false;
  parts_.erase(found);
  return true;
}

bool Opcode::take_type(Type& type) {
  if (done() || !type_named(parts_.back(), type)) return false;
  parts_.pop_back();
  return true;
}

bool Opcode::take_last(std::string& modifier) {
  if (done()) return false;
  modifier = parts_.back();
  parts_.pop_back();
  return true;
}

int immediate(const Instruction& instruction, int group) {
  const Operand& operand = instruction.operand(group);
  if (!operand.constant) throw Error("an immediate was expected: " + instruction.text);
  return int(operand.constant->narrow[0]);
}

void no_operation(Context&, const Instruction&, Mask) {}

void decode(const std::string& text, Instruction& instruction, Kernel& kernel) {
  const Opcode opcode(text);
  for (auto family :
       {decode_arithmetic, decode_convert, decode_memory, decode_warp, decode_mbarrier, decode_copies, decode_wgmma}) {
    if (family(opcode, instruction)) {
      const Operand* negatable = instruction.negatable >= 0 ? &instruction.operand(instruction.negatable) : nullptr;
      for (const Operand& operand : instruction.operands) {
        if (!operand.negated || &operand == negatable) continue;
        throw Error("an operand that cannot be negated (\"" + instruction.text + "\") in kernel " + kernel.name);
      }
      kernel.has_products |= instruction.product;
      return;
    }
  }
  throw Error("instruction " + text + " is not known (\"" + instruction.text + "\") in kernel " + kernel.name);
}

}  // namespace ptx
