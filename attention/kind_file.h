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

template <class File, class R> void evaluate(R z, const ScorePosition& place, R& value, R& slope) {
  using Z = Score<HostFunctions<R>, true>;
  At<Z> at = {R(place.i), R(place.j), R(place.n), R(place.head), R(place.heads), {}};
  for (size_t n = 0; n < std::size(File::parameters); n++) at.parameter[n] = R(place.parameters[n]);
  Z f = File::f(Z(z, 1), at);
  value = f.value, slope = f.slope;
}

template <class File> KindFile kind_file_of(const char* name, const char* path, const char* text) {
  return {name, path, text, File::weights, File::parameters, 0, evaluate<File, double>, evaluate<File, float>};
}

// ---- what a file must have; make states these at the line of its SCORE(name)

template <class File> constexpr bool has_weights = requires { RowWeights(File::weights); };
template <class File, class Z = Score<HostFunctions<double>, true>>
constexpr bool has_formula = requires(Z z, At<Z> at) {
  File::f(z, at);
};
template <class File, class Z = Score<HostFunctions<double>, true>> constexpr bool returns_score() {
  if constexpr (has_formula<File>) return std::is_same_v<decltype(File::f(Z(), At<Z>())), Z>;
  return true;
}
template <class File> constexpr bool names_are_keys() {
  return std::ranges::all_of(File::parameters, [](const ScoreKey& parameter) {
    std::string_view name = parameter.name;
    return !name.empty() && name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == name.npos;
  });
}
template <class File> constexpr bool ranges_are_written() {
  return std::ranges::all_of(File::parameters, [](const ScoreKey& parameter) {
    std::string_view range = parameter.allowed;
    return range.size() > 4 && (range[0] == '[' || range[0] == '(') && range.find(',') != range.npos &&
           (range.back() == ']' || range.back() == ')');
  });
}
#define CHECK_KIND_FILE(FILE)                                                                                          \
  static_assert(has_weights<FILE>,                                                                                     \
                "say what becomes of f: static constexpr RowWeights weights = RowWeights::softmax;"                    \
                " or sum, or none");                                                                                   \
  static_assert(has_formula<FILE>, "there is no formula: add FORMULA f(Z z, At<Z> at) { return z; }");                 \
  static_assert(returns_score<FILE>(), "f must return a Z, which has the slope too: begin it with FORMULA f");         \
  static_assert(std::size(FILE::parameters) <= MOST_PARAMETERS, "at most four parameters: remove some");               \
  static_assert(names_are_keys<FILE>(), "a parameter's name is a key: use small letters, digits and _");               \
  static_assert(ranges_are_written<FILE>(), "a parameter's range is an interval: write [0, 1], or (0, 1] without the " \
                                            "0")
