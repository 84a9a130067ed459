// The kinds of this build by name: those of settings.h, then those of files (make KINDS=...).
#include <utility>
#include <vector>

#include "attention/kind_file.h"

// Made by make (scripts/lib/kind_files.sh): includes the files, then names[], of all kinds, and list_of_files().
#include "kinds.inc"

constinit const std::span<const char* const> kind_names = names;

static std::vector<KindFile> numbered(std::vector<KindFile> files) {
  int first = 0;
  for (KindFile& file : files) file.first_parameter = std::exchange(first, first + int(file.parameters.size()));
  return files;
}

std::span<const KindFile> kind_files() {
  static const std::vector<KindFile> files = numbered(list_of_files());
  return files;
}

const KindFile* kind_file(Kind kind) {
  size_t named = std::size(names) - kind_files().size(), number = size_t(kind);
  return number < named || number >= std::size(names) ? nullptr : &kind_files()[number - named];
}

bool sums_to_1(Kind kind) {
  if (const KindFile* file = kind_file(kind)) return file->weights != RowWeights::none;
  return kind == Kind::softmax || kind == Kind::lssa || kind == Kind::lssar;
}

std::vector<double> default_parameters() {
  std::vector<double> values;
  for (const KindFile& file : kind_files())
    for (const ScoreKey& parameter : file.parameters) values.push_back(parameter.initial);
  return values;
}
