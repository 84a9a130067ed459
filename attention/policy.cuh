// The kinds of attention. Each is a struct, its policy: it turns scores z_ij = q_i . k_j into weights P_ij, and
// gradients of weights into gradients of scores. Kernels know nothing else of a kind. Policies see finished scores:
// norms of q and k (l2, rms) and the scale, by length too, come from prepare.cu. Row i = 1..T sees n keys
// j <= i, all i of them or, with a window, fewer; a masked score arrives as -inf and must give weight 0 and gradient 0.
// README.md has the equations. Scores are multiples of the kind's unit.
//
// The forward pass of a row, in every family of kernels:
//   for each sweep over the keys:                         // one, or two if weights need a number of the whole row
//     start_sweep(sweep, n, sums =, first)                // first: of the threads of a row, one adds the sink
//     for each key:
//       first of two sweeps: first_sweep(z, sums +=)      // on tensor cores first_sweep_tile(), if it has that
//       last sweep: outputs *= rescale(sums, top)         // once for each tile of keys; top: its largest score
//                   weigh(z, constants, sums +=, weights =), outputs += weights x value
//     merge(sweep, sums +=, other)                        // each of those threads has sums over its own keys
//     first of two sweeps: row_constants(n, sums, constants =)
//     last sweep: finish(n, constants, sums, factors =, saved =), outputs *= factors
//
// The backward pass of a row:
//   row_for_backward(n, saved, dots, row =)               // dots: dO . output, for each of OUTPUTS
//   for each key: grad(z, dp, row, p =, dz =)             // dp: dO . v; p: the weight; dz: the score's gradient
//                 or, with FROM_WEIGHT, p = weight(z, row) before dp is known, then dz = grad(p, dp, row)
//                 with LEARNED, for dQ: add_learned(sums +=, z, dp, row, i, j)   // sums: [LEARNED], over the keys
//
// With POSITIONS first_sweep(), weigh() and grad() take the position of the score as their last arguments, i of the
// query and j of the key, floats from 1. Then n is fminf(i, most), where the constructor keeps most =
// settings.most_keys().
//
// The constructor, Policy(settings, sink, head), runs in every thread, for its head, from 0; `sink` is a logit in the
// forward pass and 0 in the others. Constants of a policy:
//
//   SWEEPS      over the keys in the forward pass: 1 or 2
//   OUTPUTS     weighted sums of the values: 1, or 2 (the second, in float32, is for the backward pass alone)
//   RESCALES    weights are relative to the largest score so far; rescale() returns the factor for older sums
//   HAS_SINK    the constructor's second argument, a sink's logit, has an effect; sink_grad() exists (see Softmax)
//   GRADIENT_REGISTERS   that grad() needs: 0 few, 1 with slopes, 2 with any power
//   FROM_WEIGHT grad() takes the weight in place of the score; not with POSITIONS or LEARNED, which need the score
//   POSITIONS   as above; first_sweep_tile() is not called
//   IS_FORMULA  the weights are of score(z, i, j) in place of z, and grad() takes i and j too, from 1 (formula.cuh)
//   LEARNED     how many numbers each head learns: the kind's `learned`. The constructor reads them by learned_number()
//   Evaluation  a type: the policy of a forward pass that no backward pass follows
//   SUMS, CONSTANTS, SAVED, ROW_VALUES   lengths of the arrays sums, constants, saved (kept by the forward pass) and
//               row (read by the backward kernels); kernels give each array one element more, so that none is empty
#pragma once
#define POLICIES 1  // the files of kinds have theirs from here on
#include "attention/masks.cuh"
#include "attention/maths.cuh"

// The policy of a kind, for the families: choose(settings, f) calls f.operator()<Policy>(). A kind may have several, as
// lssar has by its power: all keep as much as Usual, one of them, and have GRADIENT_REGISTERS if it does.
template <class File, class Maths> struct PolicyOf;
template <class Policy> struct OnePolicy {
  using Usual = Policy;
  template <class F> static void choose(const KernelSettings&, F f) { f.template operator()<Policy>(); }
};
// f.operator()<Policy, Mask>(), with what a call's settings need.
template <class Policies, class Call, class F> void with_policy_and_mask(const Call& c, F f) {
  Policies::choose(c.settings, [&]<class Policy>() {
    if (c.settings.documents && c.settings.bias) f.template operator()<Policy, OwnDocument<Biased>>();
    else if (c.settings.documents) f.template operator()<Policy, OwnDocument<Window>>();
    else if (c.settings.bias) f.template operator()<Policy, Biased>();
    else if (c.call.hides_or_adds()) f.template operator()<Policy, Window>();
    else f.template operator()<Policy, Causal>();
  });
}

// Defaults, which most policies keep in part: one sweep, one output, nothing summed, nothing kept. check_policies()
// refuses a policy that needs one of these functions itself.
struct PolicyDefaults {
  static constexpr int SWEEPS = 1, OUTPUTS = 1;
  static constexpr bool RESCALES = false, HAS_SINK = false, FROM_WEIGHT = false, POSITIONS = false, IS_FORMULA = false;
  static constexpr int GRADIENT_REGISTERS = 0, LEARNED = 0;
  static constexpr int SUMS = 0, CONSTANTS = 0, SAVED = 0, ROW_VALUES = 0;
  __device__ void start_sweep(int, int, float*, bool) const {}
  __device__ void first_sweep(float, float*, float = 0, float = 0) const {}
  __device__ void row_constants(int, const float*, float*) const {}
  __device__ float rescale(float*, float) const { return 1; }
  __device__ void merge(int, float*, const float*) const {}
  __device__ void row_for_backward(int, const float*, const float*, float*) const {}
};

// The class that declares a member function: declared_by(&Policy::weigh).
template <class C, class F> std::type_identity<C> declared_by(F C::*);
// Whether first_sweep_tile() belongs to first_sweep(): not if that is of a class derived from the other's.
template <class Policy> constexpr bool HAS_TILE = requires {
  requires std::is_base_of_v<typename decltype(declared_by(&Policy::first_sweep))::type,
                             typename decltype(declared_by(&Policy::template first_sweep_tile<1>))::type>;
};
// Whether Evaluation is that of another policy, from which this one has its functions.
template <class Policy, class Other> constexpr bool INHERITS_EVALUATION = requires {
  requires !std::is_same_v<Policy, Other>;
  requires std::is_same_v<typename Policy::Evaluation, typename Other::Evaluation>;
};
// own_merge<Policy> etc.: whether it has that function itself, or from a base other than PolicyDefaults.
#define OWN(FUNCTION)                                                                                      \
  template <class Policy> constexpr bool own_##FUNCTION = !requires {                                      \
    requires std::is_same_v<decltype(declared_by(&Policy::FUNCTION)), std::type_identity<PolicyDefaults>>; \
  }
OWN(start_sweep);
OWN(first_sweep);
OWN(row_constants);
OWN(rescale);
OWN(merge);
OWN(row_for_backward);
#undef OWN

// What is wrong with a policy in every family, or in some, without any other word.
template <class File, class P> void check_policy() {
  static_assert(P::OUTPUTS == 1 || P::OUTPUTS == 2, "OUTPUTS must be 1 or 2");
  static_assert(P::SWEEPS == 1 + own_first_sweep<P>, "a policy with first_sweep(), and no other, has SWEEPS = 2");
  static_assert(P::CONSTANTS == 0 || (P::SWEEPS == 2 && own_row_constants<P>),
                "CONSTANTS come from a row_constants(), which only a policy with SWEEPS = 2 has");
  static_assert(P::SUMS == 0 || own_start_sweep<P>, "SUMS need a start_sweep(), which sets them");
  static_assert(P::SUMS == 0 || own_merge<P>,
                "SUMS need a merge(), which adds those of a row's other threads; an empty one if they stay the same");
  static_assert(P::RESCALES == own_rescale<P>, "a policy with rescale(), and no other, has RESCALES = true");
  static_assert(P::ROW_VALUES == 0 || own_row_for_backward<P>, "ROW_VALUES need a row_for_backward(), which sets them");
  static_assert(P::LEARNED == std::size(File::learned), "LEARNED must be the number of rows of `learned` in KIND");
  static_assert(P::HAS_SINK || !File::has_sink, "has_sink of KIND needs a policy with HAS_SINK = true");
  static_assert(
      !requires { requires INHERITS_EVALUATION<P, typename decltype(declared_by(&P::weigh))::type>; } &&
          !requires { requires INHERITS_EVALUATION<P, typename decltype(declared_by(&P::finish))::type>; } &&
          (std::is_same_v<P, typename P::Evaluation> || !std::is_base_of_v<typename P::Evaluation, P>),
      "evaluations would run the base's policy: add using Evaluation = the policy's own name");
}
template <class File, class Policies> void check_choices() {
  Policies::choose({}, [&]<class P>() {
    using Usual = typename Policies::Usual;
    static_assert(int(P::SAVED) == int(Usual::SAVED) && P::OUTPUTS == Usual::OUTPUTS, "all must keep as much as Usual");
    check_policy<File, P>();
    check_policy<File, typename P::Evaluation>();
  });
}
// Compiled for each kind, never called.
template <class File> void check_policies() {
  check_choices<File, PolicyOf<File, FullMaths>>(), check_choices<File, PolicyOf<File, FastMaths>>();
}

// Learned number l of head h; `initial` where a call has none.
__device__ inline float learned_number(const KernelSettings& s, int l, int h, float initial) {
  const void* all = s.learned[l];
  if (!all) return initial;
  return s.learned_in_bf16 ? to_float(static_cast<const bf16*>(all)[h]) : static_cast<const float*>(all)[h];
}

// Whether any function of a policy takes i and j, which need registers.
template <class Policy> constexpr bool BY_POSITION = Policy::POSITIONS || Policy::IS_FORMULA;

// first_sweep() and weigh() of the score of query i and key j, from 1, in either form.
template <class Policy>
__device__ __forceinline__ void look_at_score(const Policy& policy, float z, float* sums, float i, float j) {
  if constexpr (Policy::POSITIONS) policy.first_sweep(z, sums, i, j);
  else policy.first_sweep(z, sums);
}
template <class Policy>
__device__ __forceinline__ void weigh_score(const Policy& policy, float z, const float* constants, float* sums,
                                            float* weights, float i, float j) {
  if constexpr (Policy::POSITIONS) policy.weigh(z, constants, sums, weights, i, j);
  else policy.weigh(z, constants, sums, weights);
}

// p and dz of the score of query i and key j, from 1, with any form of grad(). With FROM_WEIGHT, finish_gradient()
// takes weight(z, row) as z.
template <class Policy>
__device__ __forceinline__ void finish_gradient(const Policy& policy, float z, float dp, const float* row, float& p,
                                                float& dz, float i, float j) {
  static_assert(!Policy::FROM_WEIGHT || !(BY_POSITION<Policy> || Policy::LEARNED),
                "these need the score, not the weight");
  if constexpr (Policy::FROM_WEIGHT) p = z, dz = policy.grad(p, dp, row);
  else if constexpr (BY_POSITION<Policy>) policy.grad(z, dp, row, p, dz, i, j);
  else policy.grad(z, dp, row, p, dz);
}
template <class Policy>
__device__ __forceinline__ void score_gradient(const Policy& policy, float z, float dp, const float* row, float& p,
                                               float& dz, float i, float j) {
  if constexpr (Policy::FROM_WEIGHT) z = policy.weight(z, row);
  finish_gradient(policy, z, dp, row, p, dz, i, j);
}

// On tensor cores four neighbouring lanes share a row: this merges their sums, and all four get the same bits.
template <class Policy>
__device__ __forceinline__ void merge_quad(const Policy& policy, int sweep, float (&sums)[Policy::SUMS + 1]) {
#pragma unroll
  for (int mask = 1; mask <= 2; mask *= 2) {
    float other[Policy::SUMS + 1];
    for (int n = 0; n < Policy::SUMS; n++) other[n] = shuffle_xor(sums[n], mask);
    policy.merge(sweep, sums, other);
  }
}
