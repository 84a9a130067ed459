// A kind of attention is one file, attention/kinds/NAME.cuh, or one outside the tree (make KINDS=PATH/NAME.cuh):
//
//     #include "attention/kind.h"
//     KIND(NAME) { ... };                 // what the program knows of it, plain C++: below
//     #if POLICIES
//     template <class Maths> struct Name : PolicyDefaults { ... };  // what its kernels compute: policy.cuh
//     template <class Maths> struct PolicyOf<kind_NAME, Maths> : OnePolicy<Name<Maths>> {};
//     #endif
//
// A weight that is e^f, f / sum f or f of a formula f needs no policy: SCORE(NAME) of score.h takes the place of both.
// KIND holds these, of which all but `weights` may be left out:
//
//   weights     whether the weights of a row sum to 1 (softmax, sum) or not (none), and what `pytorch` is
//   unit        kernels take scores as multiples of it, and prepare.cu divides by it: LN_2 where 2^x replaces e^x
//   has_sink    attention.sink has an effect
//   parameters  keys attention.NAME, with default, range and a line of help; Numbers and numbers() say what its kernels
//               read of them, and of the learned numbers' initial values, which follow them: up to MOST_PARAMETERS
//               floats or ints (KernelSettings::numbers_of). Two kinds that take one array have the same keys
//   learned     numbers that each head of each layer learns, with keys attention.NAME_init for other initial values;
//               kernels read them by learned_number(), and a policy says how many in LEARNED and sums their gradients
//               (policy.cuh)
//   variant     what its variant sets besides attention.kind
//   pytorch     in Python, a number f for each score z: of z, i, j, n, head, heads, context and the numbers by name,
//               all tensors that broadcast. `weights` says what becomes of it. An f of whole rows, such as a mixture of
//               normalisers, has softmax(x) and normalised(x), x / sum x, over the keys j that row i sees, and `seen`,
//               whether it sees them; its `weights` are sum or none
//   dense_rows  the parameter that says how many first rows have weights above 0 alone, for diagnostics
#pragma once
#include <algorithm>

#include "attention/settings.h"

#define KIND(NAME) struct kind_##NAME : KindDefaults

// 2^x is cheaper than e^x: softplus(z) / ln 2 = log2(1 + 2^(z / ln 2)), and weights softplus(z) / S do not depend on
// the unit of softplus.
constexpr double LN_2 = 0.69314718055994531;

struct KindDefaults {
  static constexpr bool is_formula = false, has_sink = false;
  static constexpr double unit = 1;
  static constexpr std::span<const ScoreKey> parameters = {};
  static constexpr std::span<const LearnedNumber> learned = {};
  static constexpr std::span<const Setting> variant = {};
  static constexpr const char *pytorch = nullptr, *dense_rows = nullptr;
  struct Numbers {};
  static Numbers numbers(const double*) { return {}; }
};
