// Hopper's kernels whose consumers take turns, and those that do not, the other way round: the same bits, whatever
// comes first. And the turns by themselves. dev/bench/hopper_bench.cu measures both.
#include <gtest/gtest.h>

#include "attention/hopper/kernels.cuh"
#include "test/attention/attention_reference.h"
#include "test/support/device.h"

namespace {

struct HopperWaysTest : HopperTest {};

struct Results {
  std::vector<bf16> out, evaluated, dqkv;
  std::vector<float> stats;
};

// One block does all row tiles, so that it must keep its count of turns from each to the next.
Results run(Kind kind, const AttentionShape& shape) {
  int spare = device_properties().multiProcessorCount - 1;
  AttentionSetup s{{.kind = kind}, 1024, 0, 1, "hopper", spare};
  DeviceArray<bf16> qkv(random_qkv<bf16>(shape, 1)), dout(random_normal<bf16>(shape.out_size(), 2));
  DeviceArray<bf16> out(shape.out_size()), evaluated(shape.out_size()), dqkv(shape.qkv_size());
  DeviceArray<float> stats(attention_statistics(s, shape.D) * shape.rows());
  DeviceArray<char> workspace(attention_backward_workspace(shape));
  AttentionCall<bf16> call = s.call<bf16>(shape);
  attention_forward<bf16>(out, stats, qkv, call, true);
  attention_forward<bf16>(evaluated, nullptr, qkv, call, false);
  attention_backward<bf16>(dqkv, dout, out, stats, qkv, workspace, call);
  return {out.download(), evaluated.download(), dqkv.download(), stats.download()};
}

struct Launchers {
  decltype(Family<bf16>::forward) forward, evaluate;
  decltype(Family<bf16>::backward) backward;
};

// Both give the same bits.
void expect_same(Kind kind, int D, const Launchers& plain, const Launchers& changed) {
  if (!attention_is_built(kind)) GTEST_SKIP() << "built without " << kind_names[int(kind)];
  Family<bf16>& family = family_of<bf16>(kind, "hopper");
  const Family<bf16> usual = family;
  auto use = [&](const Launchers& launchers) {
    family.forward = launchers.forward, family.evaluate = launchers.evaluate, family.backward = launchers.backward;
  };
  for (AttentionShape shape :
       std::vector<AttentionShape>{{1, 1, 1, D}, {1, 70, 2, D}, {2, 300, 1, D}, {1, 449, 1, D}}) {
    use(plain);
    Results expected = run(kind, shape);
    use(changed);
    for (unsigned seed : {0, 1, 2}) {
      set_cpu_order(seed ? CpuOrder::random : CpuOrder::forward, seed);
      Results results = run(kind, shape);
      std::string name = format("T %d, D %d, order %u, ", shape.T, shape.D, seed);
      expect_same_bits(name + "out", results.out, expected.out);
      expect_same_bits(name + "evaluation", results.evaluated, expected.evaluated);
      expect_same_bits(name + "dqkv", results.dqkv, expected.dqkv);
      expect_same_bits(name + "stats", results.stats, expected.stats);
    }
    set_cpu_order(CpuOrder::forward);
  }
  family = usual;
}

template <class Policy, bool OTHERWISE = false>
const Launchers launchers_of = {hopper_forward<Policy, Causal, OTHERWISE>,
                                hopper_forward<typename Policy::Evaluation, Causal, OTHERWISE>,
                                hopper_backward<Policy, Causal, OTHERWISE>};
using OneSweep = Softmax<FastMaths>;
using TwoSweeps = Lssar<FastMaths, FixedPower<15>>;
TEST_F(HopperWaysTest, SoftmaxInTurnOrNot) {
  for (int D : {64, 128}) expect_same(Kind::softmax, D, launchers_of<OneSweep>, launchers_of<OneSweep, true>);
}
TEST_F(HopperWaysTest, LssarInTurnOrNot) {
  for (int D : {64, 128}) expect_same(Kind::lssar, D, launchers_of<TwoSweeps>, launchers_of<TwoSweeps, true>);
}

// log = which consumer had each turn; nothing else keeps the consumers from writing at once.
template <class Tile> __global__ void take_turns(int* log, int rounds) {
  DYNAMIC_SHARED(bf16, shared);
  __shared__ int taken;
  if (threadIdx.x == 0) taken = 0;
  Stages<Tile> stages(shared);
  int consumer = int(threadIdx.x) / WARPGROUP - 1;
  if (consumer < 0) return;
  Turns<Tile> turns{stages.turns, consumer};
  for (int n = 0; n < rounds; n++) {
    if (n % 3 == 1) turns.skip();
    turns.begin();
    if (threadIdx.x % WARPGROUP == 0) log[taken++] = consumer;
    turns.end();
  }
}
TEST_F(HopperWaysTest, TurnsAlternate) {
  using Tile = HopperTile<64, HopperSize{64, 2}, 1, 0, true>;
  constexpr int rounds = 10;
  std::vector<int> expected;
  for (int n = 0; n < 2 * rounds; n++) expected.push_back(n % 2);
  for (unsigned seed : {0, 1, 2, 3}) {
    set_cpu_order(seed ? CpuOrder::random : CpuOrder::reverse, seed);
    DeviceArray<int> log(2 * rounds);
    LAUNCH(take_turns<Tile>, dim3(1), dim3(Tile::THREADS), Tile::SHARED_BYTES, nullptr, log, rounds);
    EXPECT_EQ(log.download(), expected) << seed;
  }
}

}  // namespace
