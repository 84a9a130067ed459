// PTX text to kernels: declarations, scopes, labels and operands as in PTX ISA "Syntax", "State Spaces, Types, and
// Variables" and "Instruction Operands". Understands what nvcc writes: kernels without calls.
#include "dev/ptx/parse.h"
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <regex>
#include <string_view>
#include "dev/ptx/decode.h"
#include "dev/ptx/memory.h"

namespace ptx {
namespace {

using std::string;
using std::vector;

// The characters of names, opcodes, directives and numbers, besides "::" and a leading minus.
constexpr std::string_view WORD = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_$%.";

bool is_number(const string& text) { return isdigit(uint8_t(text[0])) || (text[0] == '-' && text.size() > 1); }
uint32_t round_up(uint32_t n, uint32_t multiple) { return (n + multiple - 1) / multiple * multiple; }

Type type_of(const string& name) {
  Type type;
  if (!type_named(name, type)) throw Error("PTX type " + name + " is not known");
  return type;
}

struct Variable {
  enum { shared, local, global } space = global;
  uint32_t align = 1, size = 1, bytes = 0;  // size: of an element; bytes 0: dynamic shared memory
  vector<uint8_t> initial;
  int64_t address = -1;  // given when it is first used
};

struct Scope {
  std::map<string, int> registers, labels;
  std::map<string, Variable> variables;
  vector<std::pair<int, string>> branches;  // instruction, label
};

// Dynamic shared memory begins where the static part ends, which is known at the end of a kernel.
constexpr uint32_t DYNAMIC_ALIGN = 1024;

class Parser {
 public:
  Parser(const string& text, std::map<string, std::unique_ptr<Kernel>>& kernels) : text_(text), kernels_(kernels) {}
  void module();

 private:
  [[noreturn]] void fail(const string& message) {
    throw Error("PTX: " + message + (kernel_ ? " in kernel " + kernel_->name : "") + ", near \"" +
                text_.substr(begin_, 80) + "\"");
  }
  void next();
  string take();
  bool accept(const char* token);
  void expect(const char* token);
  uint32_t count();
  void skip_line();
  void skip_function();
  void files();
  Variable declaration(string& name);
  void variable(std::map<string, Variable>& into);
  void entry();
  void entry_parameters();
  void body();
  void close_scope();
  void location();
  void statement();
  void declare_registers();
  int new_register(const string& name, Type type);
  int find_register(const string& name);
  void operand_group(Instruction& instruction);
  Operand operand();
  Operand register_operand(int reg);
  Operand symbol(const string& name);
  string sum();
  uint64_t number(const string& text);
  const Constant* constant(uint64_t value, const string& key);

  const string& text_;
  std::map<string, std::unique_ptr<Kernel>>& kernels_;
  // The next token, where it begins and ends, and where the one before it ended.
  string token_;
  size_t begin_ = 0, end_ = 0, last_end_ = 0;
  vector<string> files_;
  std::map<string, Variable> module_variables_;
  // of the kernel that is read now
  std::unique_ptr<Kernel> kernel_;
  vector<Scope> scopes_;
  std::map<string, uint32_t> parameters_;
  std::map<string, Constant*> constants_;
  vector<Constant*> dynamic_addresses_;
  int location_ = -1;
};

// Reads a token: a word, a quoted text with its quotes, or one other character. At the end of the text it is empty.
void Parser::next() {
  last_end_ = end_;
  for (;; end_ = text_.find('\n', begin_)) {  // past a comment
    begin_ = std::min(text_.find_first_not_of(" \t\n\v\f\r", end_), text_.size());
    if (text_.compare(begin_, 2, "//") != 0) break;
  }
  end_ = begin_ + 1;
  if (text_[begin_] == '"') {
    end_ = std::min(text_.find('"', end_), text_.size() - 1) + 1;
  } else if (text_[begin_] == '-' || WORD.find(text_[begin_]) != WORD.npos) {
    auto word_end = [&](size_t from) { return std::min(text_.find_first_not_of(WORD, from), text_.size()); };
    for (end_ = word_end(end_); text_.compare(end_, 2, "::") == 0;) end_ = word_end(end_ + 2);
  }
  token_ = text_.substr(begin_, end_ - begin_);
}

string Parser::take() {
  if (token_.empty()) fail("the text ends");
  const string token = token_;
  next();
  return token;
}

bool Parser::accept(const char* token) {
  if (token_ != token) return false;
  next();
  return true;
}

void Parser::expect(const char* token) {
  if (!accept(token)) fail(string("no ") + token);
}

uint32_t Parser::count() {
  if (!isdigit(uint8_t(token_[0]))) fail("no number");
  return uint32_t(strtoul(take().c_str(), nullptr, 10));
}

// The rest of the line of what was taken last.
void Parser::skip_line() {
  end_ = std::min(text_.find('\n', last_end_), text_.size());
  next();
}

// ---- a module

// The table of files is at the end of a module.
void Parser::files() {
  for (size_t found = text_.find("\n.file"); found != string::npos; found = text_.find("\n.file", found + 1)) {
    end_ = found + strlen("\n.file");
    next();
    const size_t number = count(), end = token_.size() - 1, begin = token_.find_last_of("/\"", end - 1) + 1;
    if (files_.size() <= number) files_.resize(number + 1);
    files_[number] = token_.substr(begin, end - begin);
  }
  end_ = 0;
}

void Parser::module() {
  files();
  for (next(); !token_.empty();) {
    if (accept(".visible") || accept(".weak") || accept(".extern")) continue;
    if (accept(".version") || accept(".target") || accept(".address_size") || accept(".file")) {
      skip_line();
    } else if (accept(".section")) {
      while (!accept("}")) take();
    } else if (accept(".entry")) {
      entry();
    } else if (accept(".func")) {
      skip_function();
    } else {
      variable(module_variables_);
    }
  }
}

// Skips a function: a module may contain one, but kernels cannot call it, because decode() does not know call.
void Parser::skip_function() {
  for (int depth = 0;;) {
    const string token = take();
    depth += (token == "{") - (token == "}");
    if (depth == 0 && (token == ";" || token == "}")) return;
  }
}

// .shared .align 16 .b8 name[100]
Variable Parser::declaration(string& name) {
  Variable variable;
  while (token_[0] == '.') {
    const string word = take();
    if (word == ".shared") {
      variable.space = Variable::shared;
    } else if (word == ".local") {
      variable.space = Variable::local;
    } else if (word == ".align") {
      variable.align = count();
    } else if (word != ".global" && word != ".const" && word != ".param" && word != ".ptr") {
      variable.size = size_of(type_of(word.substr(1)));
    }
  }
  name = take();
  variable.align = std::max(variable.align, variable.size);
  variable.bytes = variable.size;
  if (accept("[")) {
    variable.bytes *= token_ == "]" ? 0 : count();
    expect("]");
  }
  return variable;
}

// A declaration, and = 1 or = {1, 2}
void Parser::variable(std::map<string, Variable>& into) {
  string name;
  Variable variable = declaration(name);
  if (accept("=")) {
    const bool is_list = accept("{");
    variable.initial.assign(variable.bytes, 0);
    size_t at = 0;
    do {
      const uint64_t bits = number(take());
      if (at + variable.size > variable.initial.size()) fail("too many initial values");
      memcpy(&variable.initial[at], &bits, variable.size);
      at += variable.size;
    } while (accept(","));
    if (is_list) expect("}");
  }
  expect(";");
  into[name] = variable;
}

// ---- a kernel

void Parser::entry() {
  kernel_ = std::make_unique<Kernel>();
  kernel_->name = take();
  kernel_->shared_bytes = SHARED_BASE;
  parameters_.clear();
  constants_.clear();
  dynamic_addresses_.clear();
  location_ = -1;

  if (accept("(")) entry_parameters();
  while (!accept("{")) {
    if (accept(".maxntid")) {
      kernel_->most_threads = 1;
      do kernel_->most_threads *= count();
      while (accept(","));
    } else {
      if (take()[0] != '.') fail("no directive");
      skip_line();
    }
  }
  scopes_.assign(1, {});
  body();

  kernel_->dynamic_shared = !dynamic_addresses_.empty();
  const uint32_t dynamic_begin = round_up(kernel_->shared_bytes, DYNAMIC_ALIGN);
  if (kernel_->dynamic_shared) kernel_->shared_bytes = dynamic_begin;
  for (Constant* address : dynamic_addresses_) {
    for (int lane = 0; lane < LANES; lane++) {
      address->narrow[lane] += dynamic_begin;
      address->wide[lane] += dynamic_begin;
    }
  }
  const string name = kernel_->name;
  if (!kernels_.emplace(name, std::move(kernel_)).second) fail("a second kernel " + name);
  kernel_.reset();
}

void Parser::entry_parameters() {
  uint32_t end = 0;
  while (!accept(")")) {
    string name;
    const Variable parameter = declaration(name);
    end = round_up(end, parameter.align);
    parameters_[name] = end;
    kernel_->parameters.push_back({end, parameter.bytes});
    end += parameter.bytes;
    if (token_ != ")") expect(",");
  }
  kernel_->parameter_bytes = end;
}

void Parser::body() {
  while (!scopes_.empty()) {
    if (accept(".loc")) {
      location();
    } else if (accept("{")) {
      scopes_.emplace_back();
    } else if (accept("}")) {
      close_scope();
    } else if (accept(".reg")) {
      declare_registers();
    } else if (accept(".pragma")) {
      take();
    } else if (token_[0] == '.') {
      variable(scopes_.back().variables);
    } else if (!accept(";")) {
      statement();
    }
  }
}

// Branches to labels that are not in this scope belong to the enclosing scope.
void Parser::close_scope() {
  const Scope scope = std::move(scopes_.back());
  scopes_.pop_back();
  for (const auto& [instruction, label] : scope.branches) {
    if (auto found = scope.labels.find(label); found != scope.labels.end()) {
      kernel_->code[instruction].target = found->second;
    } else if (!scopes_.empty()) {
      scopes_.back().branches.push_back({instruction, label});
    } else {
      fail("no label " + label);
    }
  }
}

// .loc FILE LINE COLUMN
void Parser::location() {
  const size_t file = count();
  const string place = (file < files_.size() ? files_[file] : "?") + ":" + std::to_string(count());
  skip_line();
  vector<string>& locations = kernel_->locations;
  if (locations.empty() || locations.back() != place) locations.push_back(place);
  location_ = int(locations.size()) - 1;
}

// .reg .b32 %r<100>;  or  .reg .pred done, add;
void Parser::declare_registers() {
  const Type type = type_of(take().substr(1));
  auto add = [&](const string& name) { scopes_.back().registers[name] = new_register(name, type); };
  do {
    const string name = take();
    if (accept("<")) {
      const uint32_t registers = count();
      for (uint32_t i = 0; i < registers; i++) add(name + std::to_string(i));
      expect(">");
    } else {
      add(name);
    }
  } while (accept(","));
  expect(";");
}

int Parser::new_register(const string& name, Type type) {
  const bool wide = size_of(type) == 8;
  uint32_t& words = kernel_->register_words;
  if (wide) words = round_up(words, 2 * LANES);
  kernel_->registers.push_back({name, words, wide, type == Type::pred});
  words += wide ? 2 * LANES : LANES;
  return int(kernel_->registers.size()) - 1;
}

int Parser::find_register(const string& name) {
  for (size_t i = scopes_.size(); i-- > 0;) {
    if (auto found = scopes_[i].registers.find(name); found != scopes_[i].registers.end()) return found->second;
  }
  return -1;
}

// A label, or an instruction.
void Parser::statement() {
  const size_t begin = begin_;
  Instruction instruction;
  instruction.location = location_;
  if (accept("@")) instruction.predicate = operand();
  const string opcode = take();
  if (accept(":")) {
    scopes_.back().labels[opcode] = int(kernel_->code.size());
    return;
  }
  const bool branches = opcode == "bra" || opcode == "bra.uni";
  if (branches) {
    instruction.flow = Flow::branch;
    scopes_.back().branches.push_back({int(kernel_->code.size()), take()});
  } else if (token_ != ";") {
    do operand_group(instruction);
    while (accept(","));
  }
  string text = text_.substr(begin, last_end_ - begin);
  expect(";");
  for (char& c : text) c = isspace(uint8_t(c)) ? ' ' : c;
  instruction.text = text.size() > 150 ? text.substr(0, 100) + " ... " + text.substr(text.size() - 40) : text;
  if (opcode == "ret" || opcode == "exit") {
    instruction.flow = Flow::exit;
  } else if (!branches) {
    decode(opcode, instruction, *kernel_);
  }
  for (size_t group = 0; group < instruction.groups.size(); group++) {
    for (int n = 0; n < instruction.count(int(group)); n++) {
      const int reg = instruction.operand(int(group), n).reg;
      if (reg < 0) continue;
      (int(group) < instruction.destinations ? instruction.writes : instruction.reads).push_back(reg);
    }
  }
  kernel_->code.push_back(std::move(instruction));
}

// ---- operands

// a   {a, b}   [a+16]   [map, {x, y}]   a|b
void Parser::operand_group(Instruction& instruction) {
  const int first = int(instruction.operands.size());
  auto add = [&](const char* separator) {
    do instruction.operands.push_back(operand());
    while (accept(separator));
  };
  if (accept("{")) {
    add(",");
    expect("}");
  } else if (accept("[")) {
    instruction.operands.push_back(operand());
    if (accept("+")) instruction.operands.back().displacement = int64_t(number(sum()));
    if (accept(",")) {
      expect("{");
      add(",");
      expect("}");
    }
    expect("]");
  } else {
    add("|");
  }
  instruction.groups.push_back({first, int(instruction.operands.size()) - first});
}

// "16", or "1+2", which number() refuses.
string Parser::sum() {
  string text = take();
  while (accept("+")) text += "+" + take();
  return text;
}

// A constant as nvcc writes it: an integer, in decimal or after 0x, or the bits of a float32 after 0f and of a float64
// after 0d. PTX has others (1.5, 0b101, 017, 1+2), which are refused.
uint64_t Parser::number(const string& text) {
  static const std::regex form("-?(0|[1-9]\\d*|0x[\\da-fA-F]+)|0f[\\da-fA-F]{8}|0d[\\da-fA-F]{16}");
  if (!std::regex_match(text, form)) fail("the constant " + text + " is not known");
  const bool bits = text.size() > 1 && strchr("fd", text[1]);
  errno = 0;
  const uint64_t size = strtoull(text.c_str() + (bits ? 2 : text[0] == '-'), nullptr, bits ? 16 : 0);
  if (errno) fail("the constant " + text + " has more than 64 bits");
  return text[0] == '-' ? 0 - size : size;
}

Operand Parser::operand() {
  Operand operand;
  if (accept("_")) {
    operand.sink = true;
    return operand;
  }
  if (accept("!")) {
    const string negated = token_;
    operand = this->operand();
    if (!operand.predicate || operand.negated) fail("only a predicate can be negated, not " + negated);
    operand.negated = true;
    return operand;
  }
  if (is_number(token_)) {
    const string text = sum();
    operand.wide = true;
    operand.constant = constant(number(text), text);
    return operand;
  }
  const string text = take();
  if (const int reg = find_register(text); reg >= 0) return register_operand(reg);
  if (text[0] == '%') {  // a special register: one of the kernel, filled before it begins
    const int reg = new_register(text, Type::u32);
    scopes_[0].registers[text] = reg;
    kernel_->specials.push_back({text, reg});
    return register_operand(reg);
  }
  return symbol(text);
}

Operand Parser::register_operand(int reg) {
  Operand operand;
  operand.reg = reg;
  operand.wide = kernel_->registers[reg].wide;
  operand.predicate = kernel_->registers[reg].predicate;
  operand.offset = kernel_->registers[reg].offset;
  return operand;
}

// The address of a variable or parameter, with +offset.
Operand Parser::symbol(const string& name) {
  Operand operand;
  operand.wide = true;
  const string added = accept("+") ? sum() : "0", text = name + "+" + added;
  const int64_t offset = int64_t(number(added));
  if (auto found = parameters_.find(name); found != parameters_.end()) {
    operand.constant = constant(found->second + offset, text);
    return operand;
  }
  Variable* variable = nullptr;
  for (size_t i = scopes_.size(); i-- > 0 && !variable;) {
    if (auto found = scopes_[i].variables.find(name); found != scopes_[i].variables.end()) variable = &found->second;
  }
  if (auto found = module_variables_.find(name); !variable && found != module_variables_.end()) {
    variable = &found->second;
  }
  if (!variable) fail("no symbol " + name);

  if (variable->space == Variable::shared && variable->bytes == 0) {
    const bool fresh = !constants_.count(text);
    operand.constant = constant(offset, text);
    if (fresh) dynamic_addresses_.push_back(constants_[text]);
    return operand;
  }
  // A shared variable of the module has an address in every kernel that uses it, a local one in its scope.
  if (variable->space == Variable::global) {
    if (variable->address < 0) {
      variable->address = int64_t(new_global(variable->bytes));
      if (!variable->initial.empty()) {
        memcpy(reinterpret_cast<void*>(variable->address), variable->initial.data(), variable->bytes);
      }
    }
    operand.constant = constant(variable->address + offset, text);
    return operand;
  }
  uint32_t& end = variable->space == Variable::shared ? kernel_->shared_bytes : kernel_->local_bytes;
  const string start = "base of " + name;
  if (!constants_.count(start)) {
    end = round_up(end, variable->align);
    constant(end, start);
    end += variable->bytes;
  }
  operand.constant = constant(constants_[start]->wide[0] + offset, text);
  return operand;
}

// One for each text in a kernel.
const Constant* Parser::constant(uint64_t value, const string& key) {
  Constant*& known = constants_[key];
  if (!known) {
    known = &kernel_->constants.emplace_back();
    std::fill(std::begin(known->narrow), std::end(known->narrow), uint32_t(value));
    std::fill(std::begin(known->wide), std::end(known->wide), value);
  }
  return known;
}

}  // namespace

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end == std::string::npos ? end : end - begin));
  }
  return parts;
}

void parse_module(const std::string& text, std::map<std::string, std::unique_ptr<Kernel>>& kernels) {
  Parser(text, kernels).module();
}

}  // namespace ptx
