// The kinds of this build: those of attention/kinds/, then those of other files (make KINDS=...).
#include <string_view>
#include <vector>

#include "attention/kind_row.h"

// Made by make (kind_files.sh): includes the files, then names[] and list_of_kinds().
#include "kinds.inc"

constinit const std::span<const char* const> kind_names = names;

static std::vector<KindRow> numbered(std::vector<KindRow> rows) {
  int first = 0;
  for (KindRow& row : rows) {
    const KindRow& owner = *std::ranges::find_if(rows, [&](const KindRow& other) { return other.shares_keys(row); });
    row.first_parameter = &owner == &row ? first : owner.first_parameter;
    if (&owner == &row) first = int(row.initial_of(row.learned.size()));
  }
  return rows;
}

std::span<const KindRow> kind_rows() {
  static const std::vector<KindRow> rows = numbered(list_of_kinds());
  return rows;
}

const KindRow& kind_row(Kind kind) { return kind_rows()[size_t(kind)]; }

std::vector<double> default_parameters() {
  std::vector<double> values;
  for (const KindRow& row : kind_rows()) {
    if (size_t(row.first_parameter) < values.size()) continue;  // it shares the keys of a kind before it
    for (const ScoreKey& parameter : row.parameters) values.push_back(parameter.initial);
    for (const LearnedNumber& number : row.learned) values.push_back(number.initial);
  }
  return values;
}

size_t KindRow::parameter(const char* wanted) const {
  for (size_t n = 0; n < parameters.size(); n++)
    if (std::string_view(parameters[n].name) == wanted) return size_t(first_parameter) + n;
  failure("the kind %s has no parameter %s", name, wanted);
}

double AttentionSettings::parameter(const char* name) const { return parameters[kind_row(kind).parameter(name)]; }
