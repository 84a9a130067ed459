// Parts of the training loop: loss spikes, console lines.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "test/support/error_of.h"
#include "training/loop.h"
#include "training/spikes.h"

// ---- console

TEST(Console, LineIsAsDocumented) {
  nlohmann::ordered_json step = {{"step", 120},     {"loss", 6.03214},         {"grad_norm", 1.2345},
                                 {"lr", 1.0285e-4}, {"tokens_per_s", 1759000}, {"mfu", 0.412},
                                 {"ms", 298.4}};
  EXPECT_EQ(console_line(step, 18865, 94 * 60),
            "step  120/18865 | loss 6.0321 | norm 1.23 | lr 1.03e-04 | 298 ms | 1.76M tok/s | mfu 41.2% | eta 1h34m");
  step.update({{"step", 18865}, {"loss", NAN}, {"mfu", NAN}, {"ms", 9.94}});
  EXPECT_EQ(console_line(step, 18865, 0),
            "step 18865/18865 | loss - | norm 1.23 | lr 1.03e-04 | 9.9 ms | 1.76M tok/s | eta 0s");
}

// ---- spikes

TEST(Spikes, OutliersAreFound) {
  SpikeGuard guard(6, {});
  for (int i = 0; i < 40; i++) EXPECT_EQ(guard.judge(3 + 0.1 * (i % 2), 1 - 0.1 * (i % 2)), "") << i;
  EXPECT_EQ(guard.judge(3.05 + 5.9 * 0.05, 1), "");
  EXPECT_TRUE(has(guard.judge(9, 1), "loss 9 is "));
  EXPECT_TRUE(has(guard.judge(3, 40), "gradient norm 40 is "));
  expect_has(guard.judge(9, 40), {"loss 9", "; gradient norm 40"});
  EXPECT_EQ(guard.judge(0, 0), "");  // low values are not spikes
  EXPECT_EQ(guard.history().skipped, 3);
}

TEST(Spikes, NoneBeforeTheMinimumAndNoneWhenOff) {
  SpikeGuard guard(3, {}), off(0, {});
  for (size_t i = 0; i < SpikeGuard::MINIMUM; i++) EXPECT_EQ(guard.judge(std::pow(10.0, double(i)), 1), "");
  for (int i = 0; i < 100; i++) EXPECT_EQ(off.judge(std::pow(10.0, i), 1), "");
  EXPECT_TRUE(off.history().loss.empty());
}

TEST(Spikes, ANewLevelStopsBeingASpikeAndOneSpikeDoesNotHideTheNext) {
  SpikeGuard guard(4, {});
  for (int i = 0; i < 128; i++) guard.judge(3 + 0.1 * (i % 2), 1);
  EXPECT_NE(guard.judge(1e30, 1), "");
  EXPECT_NE(guard.judge(5, 1), "");
  int skipped = 0;
  while (skipped < 200 && !guard.judge(5 + 0.1 * (skipped % 2), 1).empty()) skipped++;
  EXPECT_GT(skipped, 3);
  EXPECT_LT(skipped, 100);
  EXPECT_EQ(guard.history().loss.size(), SpikeHistory::WINDOW);
}

TEST(Spikes, HistoryIsTheWholeState) {
  SpikeGuard whole(3, {});
  std::mt19937 random(1);
  std::vector<double> values;
  for (int i = 0; i < 400; i++) values.push_back(static_cast<float>(random() % 1000) / 300 + (i % 50 == 49) * 20);
  std::vector<std::string> expected;
  for (double x : values) expected.push_back(whole.judge(x, x / 3));
  SpikeHistory kept;
  for (size_t i = 0; i < values.size(); i++) {
    SpikeGuard part(3, kept);
    ASSERT_EQ(part.judge(values[i], values[i] / 3), expected[i]) << i;
    kept = part.history();
  }
  EXPECT_EQ(kept.skipped, whole.history().skipped);
  EXPECT_GT(kept.skipped, 3);
}
