// The turns in which consumers of Hopper's attention kernels start their products (PingPong,
// attention/hopper/roles.cuh): no result of a kernel depends on them.
#include <gtest/gtest.h>

#include "attention/hopper/roles.cuh"
#include "test/support/device.h"

namespace {

struct HopperTurns : HopperTest {};

// log = which consumer had each turn; nothing else keeps the consumers from writing at once.
template <class Tile> __global__ void take_turns(int* log, int rounds) {
  DYNAMIC_SHARED(bf16, shared);
  __shared__ int taken;
  if (threadIdx.x == 0) taken = 0;
  Stages<Tile> stages(shared);
  int consumer = int(threadIdx.x) / WARPGROUP - 1;
  if (consumer < 0) return;
  PingPong<Tile> turns{stages.turns, consumer};
  for (int n = 0; n < rounds; n++) {
    if (n % 3 == 1) turns.skip();
    turns.begin();
    if (threadIdx.x % WARPGROUP == 0) log[taken++] = consumer;
    turns.end();
  }
}
TEST_F(HopperTurns, Alternate) {
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
