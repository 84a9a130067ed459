// The keys of kinds (attention/kind.h): parameters, and the version of each file outside the tree that the weights
// belong to.
#include <cctype>
#include <deque>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "base/text.h"
#include "settings/table.h"

namespace {

// `kind`, or one with the same keys
bool some_layer_is(const Config& c, const KindRow& kind) {
  return c.some_layer([&](const Config::Layer& l) { return kind_row(l.attention.kind).shares_keys(kind); });
}

// The key of a parameter, or of a learned number's initial value, and when it has an effect. Rows of every Config point
// to it.
struct ParameterRow {
  const KindRow& kind;
  ScoreKey parameter;
  const char* suffix;
  std::string key, what, help;
  EffectiveWhen effective_when;
};

// In the order of AttentionSettings::parameters.
std::deque<ParameterRow> make_rows() {
  std::deque<ParameterRow> all;
  auto add = [&](const KindRow& kind, const ScoreKey& parameter, const char* suffix, const std::string& help) {
    std::string key = format("attention.%s%s", parameter.name, suffix);
    std::string what;
    for (const KindRow& user : kind_rows())
      if (user.shares_keys(kind)) append_item(what, format("\"%s\"", user.name), " or ");
    what = "layers with attention.kind = " + what;
    size_t with = parameter.with ? kind.parameter(parameter.with) : 0;
    if (parameter.with) what += format(" and an attention.%s other than 0", parameter.with);
    ParameterRow& row = all.emplace_back(ParameterRow{kind, parameter, suffix, key, what, help, {}});
    row.effective_when = {row.what.c_str(),
                          [&row, with](const Config& c) {
                            return some_layer_is(c, row.kind) &&
                                   (!row.parameter.with || c.attention.parameters[with] != 0);
                          },
                          false, kind.text != nullptr};
  };
  for (const KindRow& kind : kind_rows()) {
    if (size_t(kind.first_parameter) < all.size()) continue;  // it shares the keys of a kind before it
    for (const ScoreKey& parameter : kind.parameters) add(kind, parameter, "", parameter.help);
    for (const LearnedNumber& number : kind.learned)
      add(kind, {number.name, number.initial, "[-1e6, 1e6]", ""}, "_init",
          format("initial value of %s's %s, which each head learns", kind.name, number.name));
  }
  return all;
}

// FILE:LINE of the first line with this text.
std::string place_of(const KindRow& file, const std::string& text) {
  std::string_view all = file.text;
  size_t at = std::min(all.find(text), all.size());
  return format("%s:%ld", file.path, long(1 + std::ranges::count(all.substr(0, at), '\n')));
}

std::string name_and_hash(const KindRow& file, const std::string& text) {
  return std::string(file.name) + " " + checksum_text(text);
}

}  // namespace

std::string code_of(std::string_view text) {
  constexpr std::string_view PAIRS = "++ -- && || << >> <= >= == != += -= *= /= %= &= |= ^= -> :: // /* ## ";
  std::string code;
  bool directive = false, space = false;  // space: before what comes next
  auto is_word = [](char c) { return std::isalnum(uint8_t(c)) || c == '_' || c == '"' || c == '\''; };
  for (size_t at = 0, end; at < text.size(); at = std::min(end, text.size())) {
    auto end_of = [&](const std::string& what) { return std::min(text.find(what, at + 2), text.size()) + what.size(); };
    std::string_view rest = text.substr(at);
    char c = rest[0], before = code.empty() ? '\n' : code.back();
    end = at + 1;
    bool line = rest.starts_with("//"), block = rest.starts_with("/*"), joined = rest.starts_with("\\\n");
    if (line || block || joined || std::isspace(uint8_t(c))) {
      if (c == '\n' && std::exchange(directive, false)) code += '\n';
      if (line) end = text.find('\n', at);
      if (block) end = end_of("*/");
      if (joined) end++;
      space = true;
      continue;
    }
    if (c == '#' && !directive) {
      directive = true;
      if (before != '\n') code += '\n';
    } else if (space && ((is_word(before) && is_word(c)) || PAIRS.find(std::string{before, c, ' '}) != PAIRS.npos)) {
      code += ' ';
    }
    if (rest.starts_with("R\"")) {
      end = end_of(")" + std::string(rest.substr(2, rest.find('(') - 2)) + '"');
    } else if (c == '"' || (c == '\'' && !std::isalnum(uint8_t(before)))) {
      while (end < text.size() && text[end] != c) end += text[end] == '\\' ? 2 : 1;
      end++;
    }
    code += text.substr(at, end - at);
    space = false;
  }
  if (directive) code += '\n';
  return code;
}

void check_kind_name(const KindRow& kind, const std::vector<Variant>& others) {
  for (const Variant& other : others)
    if (other.name == std::string_view(kind.name))
      user_error("%s: \"%s\" is a variant already (--help lists them); rename the file and its kind",
                 kind.path ? kind.path : kind.name, kind.name);
}

void check_parameter(const KindRow& kind, const ScoreKey& parameter, const std::vector<ConfigRow>& others,
                     const char* suffix) {
  std::string key = format("attention.%s%s", parameter.name, suffix);
  std::string place = kind.text ? place_of(kind, format("\"%s\"", parameter.name)) : kind.name;
  for (const ConfigRow& row : others)
    if ((row.key + std::string(".")).starts_with(key + "."))
      user_error("%s: the parameter \"%s\" would be the key %s, which already exists; give it another name",
                 place.c_str(), parameter.name, key.c_str());
  if (!interval(parameter.allowed).contains(parameter.initial))
    user_error("%s: the default %g of \"%s\" is not in its range %s; change one", place.c_str(), parameter.initial,
               parameter.name, parameter.allowed);
}

std::vector<ConfigRow> rows_of_kinds(Config& c, std::vector<ConfigRow> others) {
  static const std::deque<ParameterRow> all = make_rows();
  static const EffectiveWhen files = {
      "layers of a kind that is a file",
      [](const Config& c) { return c.some_layer([](const auto& l) { return kind_row(l.attention.kind).text; }); },
      false, true};
  std::vector<ConfigRow> rows;
  for (const ParameterRow& own : all) {
    check_parameter(own.kind, own.parameter, others, own.suffix);
    double& value = c.attention.parameters[rows.size()];
    rows.push_back({own.key.c_str(), &value, own.parameter.allowed, nullptr, own.help.c_str(), AtResume::refused, false,
                    &own.effective_when});
    if (own.parameter.whole) rows.back().value = WholeNumber{&value};
    others.push_back(rows.back());
  }
  if (std::ranges::any_of(kind_rows(), &KindRow::text))
    rows.push_back({"attention.kind_file", &c.kind_file, "", "name and hash of each kind's file",
                    "filled in; a version of such a file that differs from this build's is refused", AtResume::refused,
                    false, &files});
  return rows;
}

void check_kind_files(Config& c) {
  std::string now;
  for (const KindRow& file : kind_rows()) {
    if (!file.text || !some_layer_is(c, file)) continue;
    std::string own = name_and_hash(file, code_of(file.text)), begin = std::string(file.name) + " ";
    std::string whole = name_and_hash(file, file.text);  // as older versions wrote it
    for (const std::string& given : split(c.kind_file, ','))
      if (given.starts_with(begin) && given != own && given != whole)
        refuse(source_of(c, {"attention.kind_file"}),
               "attention.kind_file = \"%s\": this build was made from a different version of that file, %s (\"%s\"); "
               "build with the run's version, which its checkpoints hold: make KINDS=CHECKPOINT/%s.cuh",
               given.c_str(), file.path, own.c_str(), file.name);
    append_item(now, own, ",");
  }
  if (c.kind_file != now) c.origins["attention.kind_file"] = "make KINDS";
  c.kind_file = now;
}
