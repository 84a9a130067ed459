// PTX text to kernels: declarations, scopes, labels and operands as in PTX ISA "Syntax", "State Spaces, Types, and
// Variables" and "Instruction Operands". Understands what nvcc writes: kernels without calls.
#include "emulation/ptx/parse.h"
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <regex>
#include "emulation/ptx/decode.h"
#include "emulation/ptx/memory.h"

namespace ptx {
namespace {

using std::string;
using std::vector;

constexpr const char* SPACE = " \t\n\v\f\r";

string trim(const string& text) {
  const size_t begin = text.find_first_not_of(SPACE);
  return begin == string::npos ? "" : text.substr(begin, text.find_last_not_of(SPACE) + 1 - begin);
}

vector<string> words(const string& text) {
  vector<string> found;
  for (size_t at = 0, end; (at = text.find_first_not_of(SPACE, at)) != string::npos; at = end) {
    end = std::min(text.find_first_of(SPACE, at), text.size());
    found.push_back(text.substr(at, end - at));
  }
  return found;
}

// Splits at the commas outside brackets.
vector<string> split(const string& text) {
  vector<string> parts;
  string part;
  int depth = 0;
  for (char c : text) {
    depth += c == '{' || c == '[';
    depth -= c == '}' || c == ']';
    if (c == ',' && depth == 0) {
      parts.push_back(trim(part));
      part.clear();
    } else {
      part += c;
    }
  }
  if (part = trim(part); !part.empty()) parts.push_back(part);
  return parts;
}

bool starts(const string& text, const char* with) { return text.compare(0, strlen(with), with) == 0; }
bool is_name(char c) { return isalnum(uint8_t(c)) || c == '_' || c == '$' || c == '%'; }
bool is_number(const string& text) { return isdigit(uint8_t(text[0])) || (text[0] == '-' && text.size() > 1); }
uint32_t round_up(uint32_t n, uint32_t multiple) { return (n + multiple - 1) / multiple * multiple; }

Type type_of(const string& name) {
  Type type;
  if (!type_named(name, type)) throw Error("PTX type " + name + " is not known");
  return type;
}

// "name[12]": the name, and 12; 1 without brackets.
uint32_t take_extent(string& name) {
  const size_t bracket = name.find('[');
  if (bracket == string::npos) return 1;
  const uint32_t extent = uint32_t(strtoul(name.c_str() + bracket + 1, nullptr, 10));
  name.resize(bracket);
  return extent;
}

struct Variable {
  enum { shared, local, global } space = global;
  bool is_extern = false;
  uint32_t align = 1, bytes = 0;
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
                text_.substr(at_, 80) + "\"");
  }
  void skip_space();
  string to_end_of_line();
  string up_to(char end);
  bool at_word(const char* word) {
    return text_.compare(at_, strlen(word), word) == 0 && !is_name(text_[at_ + strlen(word)]);
  }
  void skip_function();
  void files();
  void variable(const string& declaration, std::map<string, Variable>& into);
  void entry();
  void entry_parameters(const string& list);
  void body();
  void close_scope();
  void location(const string& directive);
  void statement(const string& text);
  void declare_registers(const string& declaration);
  int new_register(const string& name, Type type);
  int find_register(const string& name);
  void operand_group(Instruction& instruction, const string& text);
  Operand operand(const string& text);
  Operand register_operand(int reg);
  Operand symbol(const string& text);
  uint64_t number(const string& text);
  const Constant* constant(uint64_t value, const string& key);

  const string& text_;
  std::map<string, std::unique_ptr<Kernel>>& kernels_;
  size_t at_ = 0;
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

void Parser::skip_space() {
  for (;;) {
    while (at_ < text_.size() && isspace(uint8_t(text_[at_]))) at_++;
    if (text_.compare(at_, 2, "//") != 0) return;
    to_end_of_line();
  }
}

string Parser::to_end_of_line() {
  const size_t begin = at_;
  at_ = std::min(text_.find('\n', at_), text_.size());
  return text_.substr(begin, at_ - begin);
}

string Parser::up_to(char end) {
  const size_t found = text_.find(end, at_), begin = at_;
  if (found == string::npos) fail(string("no ") + end);
  at_ = found + 1;
  return text_.substr(begin, found - begin);
}

// ---- a module

// The table of files is at the end of a module.
void Parser::files() {
  for (size_t found = text_.find("\n.file"); found != string::npos; found = text_.find("\n.file", found + 1)) {
    at_ = found + 1;
    const string line = to_end_of_line();
    const size_t quote = line.find('"');
    if (quote == string::npos) continue;
    const size_t number = strtoul(line.c_str() + strlen(".file"), nullptr, 10);
    if (files_.size() <= number) files_.resize(number + 1);
    const string path = line.substr(quote + 1, line.rfind('"') - quote - 1);
    files_[number] = path.substr(path.rfind('/') + 1);
  }
  at_ = 0;
}

void Parser::module() {
  files();
  while (skip_space(), at_ < text_.size()) {
    if (at_word(".version") || at_word(".target") || at_word(".address_size") || at_word(".file")) {
      to_end_of_line();
    } else if (at_word(".section")) {
      up_to('}');
    } else {
      const string head = text_.substr(at_, text_.find_first_of(";({", at_) - at_);
      if (head.find(".entry") != string::npos) {
        entry();
      } else if (head.find(".func") != string::npos) {
        skip_function();
      } else {
        variable(up_to(';'), module_variables_);
      }
    }
  }
}

// Skips a function: a module may contain one, but kernels cannot call it, because decode() does not know call.
void Parser::skip_function() {
  const size_t brace = text_.find('{', at_), semicolon = text_.find(';', at_);
  if (semicolon < brace) {
    at_ = semicolon + 1;
    return;
  }
  int depth = 0;
  for (at_ = brace; at_ < text_.size(); at_++) {
    depth += text_[at_] == '{';
    depth -= text_[at_] == '}';
    if (depth == 0) break;
  }
  at_++;
}

// .shared .align 16 .b8 name[100] = {1, 2}
void Parser::variable(const string& declaration, std::map<string, Variable>& into) {
  const size_t equals = declaration.find('=');
  Variable variable;
  Type type = Type::b8;
  string name;
  const vector<string> parts = words(declaration.substr(0, equals));
  for (size_t i = 0; i < parts.size(); i++) {
    const string& part = parts[i];
    if (part == ".shared") {
      variable.space = Variable::shared;
    } else if (part == ".local") {
      variable.space = Variable::local;
    } else if (part == ".extern") {
      variable.is_extern = true;
    } else if (part == ".align") {
      variable.align = uint32_t(strtoul(parts.at(++i).c_str(), nullptr, 10));
    } else if (part == ".global" || part == ".const" || part == ".visible" || part == ".weak") {
      continue;
    } else if (part[0] == '.') {
      type = type_of(part.substr(1));
    } else {
      name += part;
    }
  }
  const uint32_t size = size_of(type);
  variable.bytes = size * take_extent(name);
  variable.align = std::max(variable.align, size);
  if (equals != string::npos) {
    string values = declaration.substr(equals + 1);
    for (char& c : values) {
      if (c == '{' || c == '}' || c == ',') c = ' ';
    }
    variable.initial.assign(variable.bytes, 0);
    size_t at = 0;
    for (const string& value : words(values)) {
      const uint64_t bits = number(value);
      if (at + size > variable.initial.size()) fail("too many initial values");
      memcpy(&variable.initial[at], &bits, size);
      at += size;
    }
  }
  into[name] = variable;
}

// ---- a kernel

void Parser::entry() {
  at_ = text_.find(".entry", at_) + strlen(".entry");
  skip_space();
  const size_t begin = at_;
  while (is_name(text_[at_])) at_++;
  kernel_ = std::make_unique<Kernel>();
  kernel_->name = text_.substr(begin, at_ - begin);
  kernel_->shared_bytes = SHARED_BASE;
  parameters_.clear();
  constants_.clear();
  dynamic_addresses_.clear();
  location_ = -1;

  skip_space();
  if (text_[at_] == '(') {
    at_++;
    entry_parameters(up_to(')'));
  }
  for (skip_space(); text_[at_] != '{'; skip_space()) {
    if (text_[at_] != '.') fail("no directive");
    const string directive = to_end_of_line();
    if (!starts(directive, ".maxntid")) continue;
    kernel_->most_threads = 1;
    for (const string& extent : split(directive.substr(strlen(".maxntid")))) {
      kernel_->most_threads *= uint32_t(strtoul(extent.c_str(), nullptr, 10));
    }
  }
  at_++;
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

void Parser::entry_parameters(const string& list) {
  uint32_t end = 0;
  for (const string& declaration : split(list)) {
    uint32_t align = 1, size = 1;
    string name;
    const vector<string> parts = words(declaration);
    for (size_t i = 0; i < parts.size(); i++) {
      if (parts[i] == ".align") {
        align = uint32_t(strtoul(parts.at(++i).c_str(), nullptr, 10));
      } else if (parts[i][0] != '.') {
        name = parts[i];
      } else if (parts[i] != ".param" && parts[i] != ".ptr" && parts[i] != ".global") {
        size = size_of(type_of(parts[i].substr(1)));
      }
    }
    align = std::max(align, size);
    size *= take_extent(name);
    end = round_up(end, align);
    parameters_[name] = end;
    kernel_->parameters.push_back({end, size});
    end += size;
  }
  kernel_->parameter_bytes = end;
}

void Parser::body() {
  while (!scopes_.empty()) {
    skip_space();
    if (at_ >= text_.size()) fail("the text ends");
    if (at_word(".loc")) {
      location(to_end_of_line());
    } else if (text_[at_] == '{') {
      at_++;
      scopes_.emplace_back();
    } else if (text_[at_] == '}') {
      at_++;
      close_scope();
    } else if (text_[at_] == ';') {
      at_++;
    } else {
      size_t end = at_;
      while (is_name(text_[end])) end++;
      if (end > at_ && text_[end] == ':') {
        scopes_.back().labels[text_.substr(at_, end - at_)] = int(kernel_->code.size());
        at_ = end + 1;
      } else {
        string one = up_to(';');
        for (char& c : one) {
          if (isspace(uint8_t(c))) c = ' ';
        }
        statement(trim(one));
      }
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
void Parser::location(const string& directive) {
  const vector<string> parts = words(directive);
  const size_t file = strtoul(parts.at(1).c_str(), nullptr, 10);
  const string place = (file < files_.size() ? files_[file] : "?") + ":" + parts.at(2);
  vector<string>& locations = kernel_->locations;
  if (locations.empty() || locations.back() != place) locations.push_back(place);
  location_ = int(locations.size()) - 1;
}

// .reg .b32 %r<100>  or  .reg .pred done, add
void Parser::declare_registers(const string& declaration) {
  const vector<string> parts = words(declaration);
  const Type type = type_of(parts.at(1).substr(1));
  string names;
  for (size_t i = 2; i < parts.size(); i++) names += parts[i];
  for (const string& name : split(names)) {
    const size_t angle = name.find('<');
    if (angle == string::npos) {
      scopes_.back().registers[name] = new_register(name, type);
      continue;
    }
    const unsigned long count = strtoul(name.c_str() + angle + 1, nullptr, 10);
    for (unsigned long i = 0; i < count; i++) {
      const string one = name.substr(0, angle) + std::to_string(i);
      scopes_.back().registers[one] = new_register(one, type);
    }
  }
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

void Parser::statement(const string& text) {
  if (starts(text, ".reg ")) return declare_registers(text);
  if (starts(text, ".pragma")) return;
  if (text[0] == '.') return variable(text, scopes_.back().variables);
  Instruction instruction;
  instruction.text = text.size() > 150 ? text.substr(0, 100) + " ... " + text.substr(text.size() - 40) : text;
  instruction.location = location_;

  string rest = text;
  if (rest[0] == '@') {
    const size_t end = rest.find(' ');
    instruction.predicate = operand(rest.substr(1, end - 1));
    rest = trim(rest.substr(end));
  }
  const size_t end = rest.find(' ');
  const string opcode = rest.substr(0, end);
  rest = end == string::npos ? "" : trim(rest.substr(end));
  if (opcode == "bra" || opcode == "bra.uni") {
    instruction.flow = Flow::branch;
    scopes_.back().branches.push_back({int(kernel_->code.size()), rest});
  } else if (opcode == "ret" || opcode == "exit") {
    instruction.flow = Flow::exit;
  } else {
    for (const string& part : split(rest)) operand_group(instruction, part);
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
void Parser::operand_group(Instruction& instruction, const string& text) {
  const int first = int(instruction.operands.size());
  auto add = [&](const string& list) {
    for (const string& one : split(list)) instruction.operands.push_back(operand(one));
  };
  auto inside = [](const string& bracketed) { return bracketed.substr(1, bracketed.size() - 2); };
  if (text[0] == '{') {
    add(inside(text));
  } else if (text[0] == '[') {
    const vector<string> parts = split(inside(text));
    string address = parts.at(0);
    int64_t displacement = 0;
    if (const size_t plus = address.find('+'); plus != string::npos && find_register(address.substr(0, plus)) >= 0) {
      displacement = int64_t(number(address.substr(plus + 1)));
      address.resize(plus);
    }
    instruction.operands.push_back(operand(address));
    instruction.operands.back().displacement = displacement;
    if (parts.size() > 1) add(inside(parts[1]));
  } else if (const size_t bar = text.find('|'); bar != string::npos) {
    instruction.operands.push_back(operand(text.substr(0, bar)));
    instruction.operands.push_back(operand(text.substr(bar + 1)));
  } else {
    add(text);
  }
  instruction.groups.push_back({first, int(instruction.operands.size()) - first});
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

Operand Parser::operand(const string& text) {
  Operand operand;
  if (text == "_") {
    operand.sink = true;
    return operand;
  }
  if (text[0] == '!') {
    operand = this->operand(text.substr(1));
    if (!operand.predicate || operand.negated) fail("only a predicate can be negated, not " + text.substr(1));
    operand.negated = true;
    return operand;
  }
  if (is_number(text)) {
    operand.wide = true;
    operand.constant = constant(number(text), text);
    return operand;
  }
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
Operand Parser::symbol(const string& text) {
  Operand operand;
  operand.wide = true;
  const size_t plus = text.find('+');
  const string name = text.substr(0, plus);
  const int64_t offset = plus == string::npos ? 0 : int64_t(number(text.substr(plus + 1)));
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
  if (!variable) fail("no symbol " + text);

  if (variable->space == Variable::shared && variable->is_extern) {
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
