// A policy of two sweeps that has first_sweep() alone, without first_sweep_tile(): lssa, with its sum found before its
// weights. Kernels of every family give it lssa's outputs.
#include "test/attention/run_attention.h"

#include "attention/general/kernels.cuh"
#include "attention/hopper/kernels.cuh"
#include "attention/kinds/lssa.cuh"
#include "attention/tensor/kernels.cuh"

template <class Maths> struct TwoSweeps : Lssa<Maths> {
  using Evaluation = TwoSweeps;
  using Lssa<Maths>::Lssa, Lssa<Maths>::SUM;
  static constexpr int SWEEPS = 2;
  enum { INVERSE, CONSTANTS };
  __device__ void first_sweep(float z, float* sums) const { sums[SUM] += Maths::softplus2(z); }
  __device__ void row_constants(int, const float* sums, float* row) const { row[INVERSE] = inverse_or_0(sums[SUM]); }
  __device__ void weigh(float z, const float* row, float*, float* weight) const {
    weight[0] = Maths::softplus2(z) * row[INVERSE];
  }
  __device__ void finish(int, const float* row, const float*, float* factor, float* saved) const {
    factor[0] = 1, saved[0] = row[INVERSE];
  }
};
// The same, from a policy that has both: its first_sweep_tile() must not be used in place of this first_sweep().
template <class Maths> struct BothSweeps : TwoSweeps<Maths> {
  using TwoSweeps<Maths>::TwoSweeps;
  __device__ void first_sweep(float, float* sums) const { sums[0] += NAN; }
  template <int N> __device__ void first_sweep_tile(const float (&)[N], int, float* sums) const { sums[0] += NAN; }
};
template <class Maths> struct Derived : BothSweeps<Maths> {
  using BothSweeps<Maths>::BothSweeps;
  __device__ void first_sweep(float z, float* sums) const { TwoSweeps<Maths>::first_sweep(z, sums); }
};
static_assert(HAS_TILE<BothSweeps<FastMaths>> && !HAS_TILE<Derived<FastMaths>> && !HAS_TILE<TwoSweeps<FastMaths>>);

template <class T> void check(const char* name, void (*forward)(const ForwardCall<T>&)) {
  AttentionShape shape{2, 200, 2, 64};
  AttentionSetup s{{.kind = Kind::lssa}};
  s.family = name;
  Family<T> family = family_of<T>(Kind::softmax, name);
  family.evaluate = forward;
  auto usual = std::exchange(families_of<T>(Kind::lssa), {family});
  auto qkv = random_qkv<T>(shape, 1);
  DeviceArray<T> in(qkv), out(shape.out_size());
  attention_forward<T>(out, nullptr, in, s.call<T>(shape), false);
  families_of<T>(Kind::lssa) = usual;
  expect_close(name, out.download(), ref_attention<Exact>(s, shape, widen<Exact>(qkv)),
               ref_attention<Naive<T>>(s, shape, widen<Naive<T>>(qkv)), u<T>);
}

TEST(FirstSweep, NeedsNoTiles) {
  if (!attention_is_built(Kind::lssa)) GTEST_SKIP() << "built without lssa";
  if (lacks_hopper()) GTEST_SKIP() << "needs a GPU of compute capability 9.0";
  check<float>("general", general_forward<float, TwoSweeps<FullMaths>, Causal>);
  check<bf16>("tensor", tensor_forward<bf16, TwoSweeps<FastMaths>, Causal>);
  check<bf16>("hopper", hopper_forward<TwoSweeps<FastMaths>, Causal>);
  check<bf16>("hopper", hopper_forward<Derived<FastMaths>, Causal>);
}
