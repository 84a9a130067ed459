// The row of a kind's file (kind.h): what it holds, its formula on the host, and what a file must have.
#pragma once
#include <algorithm>
#include <cstring>
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

template <class File, class R>
void evaluate(R z, const ScorePosition<int>& at, const double* numbers, R& value, R* slopes) {
  FormulaOf<File, HostFunctions<R>> f = {R(at.head), R(at.heads)};
  for (int n = 0; n < f.FIXED + f.LEARNED; n++) f.numbers[n] = R(numbers[n]);
  auto both = f.with_slope(z, at.i, at.j, at.n);
  value = both.value, slopes[0] = both.slope;
  for (int l = 0; l < f.LEARNED; l++) slopes[1 + l] = f.slope_by_learned(l, z, at.i, at.j, at.n);
}

template <class File> void write_numbers(const double* parameters, float* to) {
  if constexpr (File::is_formula) {
    for (size_t n = 0; n < std::size(File::parameters) + std::size(File::learned); n++) to[n] = float(parameters[n]);
  } else {
    auto numbers = File::numbers(parameters);
    static_assert(sizeof(numbers) <= MOST_PARAMETERS * sizeof(float) &&
                  std::is_trivially_copyable_v<decltype(numbers)>);
    std::memcpy(to, &numbers, sizeof(numbers));
  }
}

template <class File> KindRow kind_row_of(const char* name, const char* path, const char* text) {
  KindRow row = {name,
                 path,
                 text,
                 File::weights,
                 File::unit,
                 File::has_sink,
                 File::parameters,
                 File::learned,
                 File::variant,
                 File::pytorch,
                 File::dense_rows,
                 /*first_parameter=*/0,
                 write_numbers<File>,
                 nullptr,
                 nullptr};
  if constexpr (File::is_formula) row.exact = evaluate<File, double>, row.naive = evaluate<File, float>;
  return row;
}

// ---- what a file must have; make states these at the line of its SCORE(name)

template <class File> constexpr bool has_weights = requires { RowWeights(File::weights); };
template <class File> constexpr bool returns_score() {
  using Z = Score<HostFunctions<double>, true>;
  using Result = decltype(File::f(Z(), ScoreArguments<File, typename Z::Constant, Z>()));
  return std::is_same_v<Result, Z> || std::is_same_v<Result, typename Z::Constant>;
}
// Whether f can be computed while it compiles, where functions are constants: it reads no numbers beyond its own.
struct ConstantFunctions {
  using Real = double;
  static constexpr Real of(Real) { return 1; }
  static constexpr auto exp = of, log = of, sqrt = of, tanh = of, sigmoid = of, softplus = of;
  static constexpr Real divide(Real, Real) { return 1; }
};
template <class File> constexpr FormulaOf<File, ConstantFunctions> constant_formula = {1, 1};
template <class File> constexpr bool reads_its_numbers = requires {
  requires(constant_formula<File>.value(1, 1, 1, 1) < HUGE_VAL);
};
template <class File> constexpr bool names_are_keys() {
  std::string_view names[2 * MOST_PARAMETERS] = {},
                             words[] = {"z",       "i",     "j",    "n",    "head",    "heads",
                                        "context", "torch", "math", "seen", "softmax", "normalised"};
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
    return range.find_first_not_of("0123456789.e+-inf, ([])") == range.npos && range.size() > 4 &&
           (range[0] == '[' || range[0] == '(') && range.find(',') != range.npos &&
           (range.back() == ']' || range.back() == ')');
  });
}
#define CHECK_KIND(FILE)                                                                                   \
  static_assert(has_weights<FILE>,                                                                         \
                "say what becomes of f: static constexpr RowWeights weights = RowWeights::softmax;"        \
                " or sum, or none");                                                                       \
  static_assert(std::size(FILE::parameters) + std::size(FILE::learned) <= MOST_PARAMETERS,                 \
                "at most four numbers, fixed and learned");                                                \
  static_assert(names_are_keys<FILE>(),                                                                    \
                "a number's name is small letters, digits and _, unlike others, z, i, j, n, head, heads"); \
  static_assert(ranges_are_written<FILE>(),                                                                \
                "a parameter's range is an interval: write [0, 1], or (0, 1] without the "                 \
                "0")
#define CHECK_SCORE(FILE)                                                                                  \
  CHECK_KIND(FILE);                                                                                        \
  static_assert(returns_score<FILE>(), "f must return a formula of z, not a plain number");                \
  static_assert(reads_its_numbers<FILE>,                                                                   \
                "f reads at.parameter[k] or at.learned[k] of a k that the file does not declare, or calls" \
                " what the head of attention/score.h does not list")
