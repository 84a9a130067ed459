// The keys of kinds (attention/kind.h): parameters, and the version of each file outside the tree that the weights
// belong to.
#include <deque>

#include "base/checksum.h"
#include "base/error.h"
#include "base/text.h"
#include "settings/table.h"

namespace {

bool some_layer_is(const Config& c, const KindRow& kind) {
  return c.some_layer([&](const Config::Layer& l) { return &kind_row(l.attention.kind) == &kind; });
}

// A parameter's key and when it has an effect. Rows of every Config point to it.
struct ParameterRow {
  std::string key, what;
  EffectiveWhen effective_when;
};

std::deque<ParameterRow> make_rows() {
  std::deque<ParameterRow> all;
  for (const KindRow& kind : kind_rows())
    for (const ScoreKey& parameter : kind.parameters) {
      ParameterRow& row = all.emplace_back();
      row.key = format("attention.%s", parameter.name);
      row.what = format("layers with attention.kind = \"%s\"", kind.name);
      size_t with = parameter.with ? kind.parameter(parameter.with) : 0;
      if (parameter.with) row.what += format(" and an attention.%s other than 0", parameter.with);
      row.effective_when = {row.what.c_str(),
                            [&kind, &parameter, with](const Config& c) {
                              return some_layer_is(c, kind) && (!parameter.with || c.attention.parameters[with] != 0);
                            },
                            false, kind.text != nullptr};
    }
  return all;
}

// FILE:LINE of the first line with this text.
std::string place_of(const KindRow& file, const std::string& text) {
  std::string_view all = file.text;
  size_t at = std::min(all.find(text), all.size());
  return format("%s:%ld", file.path, long(1 + std::ranges::count(all.substr(0, at), '\n')));
}

std::string name_and_hash(const KindRow& file) { return std::string(file.name) + " " + checksum_text(file.text); }

}  // namespace

void check_parameter(const KindRow& kind, const ScoreKey& parameter, const std::vector<ConfigRow>& others) {
  std::string key = format("attention.%s", parameter.name);
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
  for (const KindRow& kind : kind_rows())
    for (const ScoreKey& parameter : kind.parameters) {
      check_parameter(kind, parameter, others);
      double& value = c.attention.parameters[rows.size()];
      const ParameterRow& own = all[rows.size()];
      rows.push_back({own.key.c_str(), &value, parameter.allowed, nullptr, parameter.help, AtResume::refused, false,
                      &own.effective_when});
      if (parameter.whole) rows.back().value = WholeNumber{&value};
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
    std::string own = name_and_hash(file), begin = std::string(file.name) + " ";
    for (const std::string& given : split(c.kind_file, ','))
      if (given.starts_with(begin) && given != own)
        refuse(source_of(c, {"attention.kind_file"}),
               "attention.kind_file = \"%s\": this build was made from a different version of that file, %s (\"%s\"); "
               "build with the run's version, which its checkpoints hold: make KINDS=CHECKPOINT/%s.cuh",
               given.c_str(), file.path, own.c_str(), file.name);
    append_item(now, own, ",");
  }
  if (c.kind_file != now) c.origins["attention.kind_file"] = "make KINDS";
  c.kind_file = now;
}
