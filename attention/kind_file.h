// What a build and its tests know of a kind's file (score.h): its formula on the host, and what a file must have.
#pragma once
#include <algorithm>
#include <string_view>

#include "attention/score.h"

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

template <class File, class R> void evaluate(R z, const ScorePosition& place, R& value, R* slopes) {
  FormulaOf<File, HostFunctions<R>> f = {R(place.head), R(place.heads)};
  for (int n = 0; n < f.FIXED + f.LEARNED; n++) f.numbers[n] = R(place.numbers[n]);
  auto both = f.with_slope(z, place.i, place.j, place.n);
  value = both.value, slopes[0] = both.slope;
  for (int l = 0; l < f.LEARNED; l++) slopes[1 + l] = f.slope_by_learned(l, z, place.i, place.j, place.n);
}

template <class File> KindFile kind_file_of(const char* name, const char* path, const char* text) {
  return {name,          path,          text, File::weights,          File::parameters,
          File::learned, File::pytorch, 0,    evaluate<File, double>, evaluate<File, float>};
}

// ---- what a file must have; make states these at the line of its SCORE(name)

template <class File> constexpr bool has_weights = requires { RowWeights(File::weights); };
template <class File, class Z = Score<HostFunctions<double>, true>, class At = PlaceOfScore<typename Z::Constant, Z>>
constexpr bool has_formula = requires(Z z, At at) {
  File::f(z, at);
};
template <class File, class Z = Score<HostFunctions<double>, true>, class At = PlaceOfScore<typename Z::Constant, Z>>
constexpr bool returns_score() {
  using C = typename Z::Constant;
  if constexpr (has_formula<File>) {
    using Result = decltype(File::f(Z(), At()));
    return std::is_same_v<Result, Z> || std::is_same_v<Result, C>;
  }
  return true;
}
template <class File> constexpr bool names_are_keys() {
  std::string_view names[2 * MOST_PARAMETERS] = {}, words[] = {"z", "i", "j", "n", "head", "heads", "torch"};
  size_t count = 0;
  auto takes = [&](std::string_view name) {
    bool free = std::ranges::find(words, name) == std::end(words) && std::ranges::find(names, name) == std::end(names);
    names[count++ % std::size(names)] = name;
    return free && name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == name.npos;
  };
  return std::ranges::all_of(File::parameters, takes, &ScoreKey::name) &&
         std::ranges::all_of(File::learned, takes, &LearnedNumber::name);
}
template <class File> constexpr bool ranges_are_written() {
  return std::ranges::all_of(File::parameters, [](const ScoreKey& parameter) {
    std::string_view range = parameter.allowed;
    return range.size() > 4 && (range[0] == '[' || range[0] == '(') && range.find(',') != range.npos &&
           (range.back() == ']' || range.back() == ')');
  });
}
#define CHECK_KIND_FILE(FILE)                                                                              \
  static_assert(has_weights<FILE>,                                                                         \
                "say what becomes of f: static constexpr RowWeights weights = RowWeights::softmax;"        \
                " or sum, or none");                                                                       \
  static_assert(has_formula<FILE>, "there is no formula: add FORMULA f(Z z, At at) { return z; }");        \
  static_assert(returns_score<FILE>(), "f must return a formula of z, not a plain number");                \
  static_assert(std::size(FILE::parameters) + std::size(FILE::learned) <= MOST_PARAMETERS,                 \
                "at most four numbers, fixed and learned");                                                \
  static_assert(names_are_keys<FILE>(),                                                                    \
                "a number's name is small letters, digits and _, unlike others, z, i, j, n, head, heads"); \
  static_assert(ranges_are_written<FILE>(),                                                                \
                "a parameter's range is an interval: write [0, 1], or (0, 1] without the "                 \
                "0")
