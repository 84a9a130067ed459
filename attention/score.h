// A kind of attention in one file. `make KINDS="path/my_score.cuh ..."` builds ./train with it, and with the data of
// the quick start or your own
//
//     ./train configs/quickstart.json --set attention.variant=my_score
//
// trains with it; `make check-kind KINDS=path/my_score.cuh` tests it in a few minutes. The file is named like the
// kind and holds
//
//     #include "attention/score.h"
//     // Softmax of soft-capped scores that fall with the distance, as steeply as each head learns.
//     SCORE(my_score) {
//       static constexpr RowWeights weights = RowWeights::softmax;
//       static constexpr ScoreKey parameters[] = {{"cap", 50, "(0, 1e6]", "bound of my_score's scores"}};
//       static constexpr LearnedNumber learned[] = {{"slope", 0.1}};
//       static constexpr const char* pytorch = "cap * torch.tanh(z / cap) - slope * torch.log(1 + i - j)";
//       FORMULA f(Z z, At at) {
//         auto cap = at.parameter[0];
//         return cap * tanh(z / cap) - at.learned[0] * log(1 + at.i - at.j);
//       }
//     };
//
//   weights     what becomes of f in row i: e^f / sum e^f (softmax), f / sum f (sum; f >= 0) or f itself (none)
//   parameters  may be left out. Each is a key attention.NAME, which no other file of the build has too, with a
//               default, a range, a line of help; in f they are at.parameter[0], [1] ... in this order. Training keeps
//               them.
//   learned     may be left out. Numbers that each head of each layer learns, without weight decay, with the value that
//               they begin with, unless the key attention.NAME_init gives another, which no other file of the build has
//               too; in f they are at.learned[0], [1] ...; at most four numbers, fixed and learned
//   pytorch     may be left out: f in Python, of z, i, j, n, head, heads, context and the numbers by their names, with
//               which a checkpoint opens in transformers. check-kind compares it with f if PYTHON=... has both
//               libraries
//   f           of z, a score that the row sees: q . k after attention.qk_norm, scale and bias. Masked scores get no
//               weight, whatever f makes of them. at: i and j of query and key, from 1; n, the keys that row i sees;
//               head of heads, from 1
//
// f computes with + - * / and exp, log, sqrt, tanh, sigmoid, softplus, relu, square, abs, max, min alone; what lies
// between is auto, not float. It must not branch on z, so its derivative cannot be wrong: numbers carry value and slope
// in the backward pass, values alone in the forward pass, and both in double in the tests' reference. What only values
// show, as f < 0 or an overflow, make does not see: run check-kind before long runs.
// Plain C++ too, for tests and for the list of kinds (kinds.cpp).
#pragma once
#include <cmath>
#include <type_traits>

#include "attention/kind.h"

#ifndef SCORE_CODE  // of a kernel: formula.cuh
#define SCORE_CODE constexpr inline __attribute__((always_inline))
#endif
// f need not use where it is.
#define SCORE(NAME) _Pragma("GCC diagnostic ignored \"-Wunused-parameter\"") struct kind_##NAME : FormulaDefaults
#define FORMULA template <class Z, class At> static SCORE_CODE auto

// A value, with SLOPES also its derivative by the score. Functions: Real, and functions of it.
template <class Functions, bool SLOPES> struct Score {
  using R = typename Functions::Real;
  using Constant = Score<Functions, false>;
  struct None {};
  using Other = std::conditional_t<SLOPES, Constant, None>;  // a constant beside a score
  R value = 0, slope = 0;
  Score() = default;
  SCORE_CODE Score(R value) requires(!SLOPES) : value(value) {}
  SCORE_CODE Score(Other constant) : value(constant.value) {}
  SCORE_CODE Score(R value, R slope) : value(value), slope(slope) {}

  template <class Number> explicit operator Number() const {
    static_assert(sizeof(Number) == 0, "a score that becomes a plain number loses its slope: keep Z and C");
    return {};
  }

  // A function of this, of value v and derivative slope_of().
  template <class F> SCORE_CODE Score mapped(R v, F slope_of) const {
    if constexpr (SLOPES) return {v, slope_of() * slope};
    else return v;
  }

  friend SCORE_CODE Score operator-(Score a) { return {-a.value, -a.slope}; }
  friend SCORE_CODE Score operator+(Score a, Score b) { return {a.value + b.value, a.slope + b.slope}; }
  friend SCORE_CODE Score operator-(Score a, Score b) { return {a.value - b.value, a.slope - b.slope}; }
  friend SCORE_CODE Score operator*(Score a, Score b) {
    return {a.value * b.value, SLOPES ? a.slope * b.value + a.value * b.slope : R(0)};
  }
  friend SCORE_CODE Score operator/(Score a, Score b) {
    R q = Functions::divide(a.value, b.value);
    return {q, SLOPES ? Functions::divide(a.slope - q * b.slope, b.value) : R(0)};
  }
  // With constants, which need no products with a slope of 0
  friend SCORE_CODE Score operator+(Score a, Other b) { return {a.value + b.value, a.slope}; }
  friend SCORE_CODE Score operator+(Other a, Score b) { return {a.value + b.value, b.slope}; }
  friend SCORE_CODE Score operator-(Score a, Other b) { return {a.value - b.value, a.slope}; }
  friend SCORE_CODE Score operator-(Other a, Score b) { return {a.value - b.value, -b.slope}; }
  friend SCORE_CODE Score operator*(Score a, Other b) { return {a.value * b.value, a.slope * b.value}; }
  friend SCORE_CODE Score operator*(Other a, Score b) { return {a.value * b.value, a.value * b.slope}; }
  friend SCORE_CODE Score operator/(Score a, Other b) {
    return {Functions::divide(a.value, b.value), Functions::divide(a.slope, b.value)};
  }
  friend SCORE_CODE Score operator/(Other a, Score b) {
    R q = Functions::divide(a.value, b.value);
    return {q, Functions::divide(-q * b.slope, b.value)};
  }
  friend SCORE_CODE Score max(Score a, Other b) { return max(a, Score(b)); }
  friend SCORE_CODE Score min(Score a, Other b) { return min(a, Score(b)); }

  friend SCORE_CODE Score exp(Score a) {
    R v = Functions::exp(a.value);
    return a.mapped(v, [&] { return v; });
  }
  friend SCORE_CODE Score log(Score a) {
    return a.mapped(Functions::log(a.value), [&] { return Functions::divide(1, a.value); });
  }
  friend SCORE_CODE Score sqrt(Score a) {
    R v = Functions::sqrt(a.value);
    return a.mapped(v, [&] { return Functions::divide(R(0.5), v); });
  }
  friend SCORE_CODE Score tanh(Score a) {
    R v = Functions::tanh(a.value);
    return a.mapped(v, [&] { return 1 - v * v; });
  }
  friend SCORE_CODE Score sigmoid(Score a) {
    R v = Functions::sigmoid(a.value);
    return a.mapped(v, [&] { return v * (1 - v); });
  }
  friend SCORE_CODE Score softplus(Score a) {
    return a.mapped(Functions::softplus(a.value), [&] { return Functions::sigmoid(a.value); });
  }
  friend SCORE_CODE Score relu(Score a) {
    return a.mapped(a.value > 0 ? a.value : R(0), [&] { return a.value > 0 ? R(1) : R(0); });
  }
  friend SCORE_CODE Score abs(Score a) {
    return a.mapped(a.value < 0 ? -a.value : a.value, [&] { return a.value < 0 ? R(-1) : R(1); });
  }
  friend SCORE_CODE Score square(Score a) {
    return a.mapped(a.value * a.value, [&] { return 2 * a.value; });
  }
  friend SCORE_CODE Score max(Score a, Score b) {
    return {a.value > b.value ? a.value : b.value, a.value > b.value ? a.slope : b.slope};
  }
  friend SCORE_CODE Score min(Score a, Score b) {
    return {a.value < b.value ? a.value : b.value, a.value < b.value ? a.slope : b.slope};
  }

#define NO_BRANCH(OPERATOR)                                                                                           \
  template <class X> friend SCORE_CODE bool operator OPERATOR(const Score& a, const X& b) {                           \
    static_assert(!SLOPES || sizeof(X) == 0, "f must not branch on a score: use max, min, relu or abs in its place"); \
    return a.value OPERATOR Score<Functions, false>(b).value;                                                         \
  }
  NO_BRANCH(<) NO_BRANCH(>) NO_BRANCH(<=) NO_BRANCH(>=) NO_BRANCH(==) NO_BRANCH(!=)
#undef NO_BRANCH
};

struct FormulaDefaults : KindDefaults {
  static constexpr bool is_formula = true;
};

// ---- what calls f

// The numbers of a file. One that it does not declare is beyond the array, so that no constant can be made of it:
// kind_row.h refuses such an f.
template <class X, int DECLARED> struct NumbersOfFile {
  X all[MOST_PARAMETERS] = {};
  SCORE_CODE X operator[](int n) const { return all[n < DECLARED ? n : MOST_PARAMETERS]; }
};

// What f takes beside z. L: of learned numbers, with a slope where the gradient is by them.
template <class File, class C, class L> struct ScoreArguments : ScorePosition<C> {
  NumbersOfFile<C, std::size(File::parameters)> parameter = {};
  NumbersOfFile<L, std::size(File::learned)> learned = {};
};

// f of a head, and its derivatives by z and by a learned number. numbers: parameters, then learned numbers.
template <class File, class Functions> struct FormulaOf {
  using R = typename Functions::Real;
  using C = Score<Functions, false>;
  using Z = Score<Functions, true>;
  static constexpr int FIXED = std::size(File::parameters), LEARNED = std::size(File::learned);
  R head = 0, heads = 0, numbers[MOST_PARAMETERS] = {};
  template <class L> SCORE_CODE ScoreArguments<File, C, L> arguments(R i, R j, R n) const {
    ScoreArguments<File, C, L> at = {{i, j, n, head, heads}};
    for (int p = 0; p < FIXED; p++) at.parameter.all[p] = numbers[p];
    for (int l = 0; l < LEARNED; l++) at.learned.all[l] = C(numbers[FIXED + l]);
    return at;
  }
  SCORE_CODE R value(R z, R i, R j, R n) const { return C(File::f(C(z), arguments<C>(i, j, n))).value; }
  SCORE_CODE Z with_slope(R z, R i, R j, R n) const { return File::f(Z(z, 1), arguments<C>(i, j, n)); }
  SCORE_CODE R slope_by_learned(int l, R z, R i, R j, R n) const {
    auto at = arguments<Z>(i, j, n);
    at.learned.all[l].slope = 1;
    return Z(File::f(C(z), at)).slope;
  }
};
