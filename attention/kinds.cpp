// The kinds of this build by name: those of settings.h, then those of files (make KINDS=...).
#include <algorithm>
#include <utility>
#include <vector>

#include "attention/score.h"

namespace {

template <class Real_> struct HostFunctions {
  using Real = Real_;
  static Real exp(Real x) { return std::exp(x); }
  static Real divide(Real x, Real y) { return x / y; }
  static Real log(Real x) { return std::log(x); }
  static Real sqrt(Real x) { return std::sqrt(x); }
  static Real tanh(Real x) { return std::tanh(x); }
  static Real sigmoid(Real x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }
  static Real softplus(Real x) { return std::max(x, Real(0)) + std::log1p(std::exp(-std::fabs(x))); }
};

template <class File, class R> void evaluate(R z, const ScorePosition& place, R& value, R& slope) {
  using Z = Score<HostFunctions<R>, true>;
  At<Z> at = {R(place.i), R(place.j), R(place.n), R(place.head), R(place.heads), {}};
  for (size_t n = 0; n < std::size(File::parameters); n++) at.parameter[n] = R(place.parameters[n]);
  Z f = File::f(Z(z, 1), at);
  value = f.value, slope = f.slope;
}

template <class File> KindFile kind_file_of(const char* name, const char* path, const char* text) {
  static_assert(std::size(File::parameters) <= MOST_PARAMETERS, "a kind's file has at most four parameters");
  return {name, path, text, File::weights, File::parameters, 0, evaluate<File, double>, evaluate<File, float>};
}

std::vector<KindFile> numbered(std::vector<KindFile> files) {
  int first = 0;
  for (KindFile& file : files) file.first_parameter = std::exchange(first, first + int(file.parameters.size()));
  return files;
}

}  // namespace

// Made by make (scripts/kind_files.sh): includes the files, then names[], of all kinds, and list_of_files().
#include "kinds.inc"

constinit const std::span<const char* const> kind_names = names;

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
