// The learning rate at every step.
#include "settings/schedule.h"

#include <gtest/gtest.h>

static Config schedule(const std::string& name, int64_t steps, int64_t warmup, double final_fraction = 0,
                       double decay = 0.2) {
  Config c;
  c.optimizer.lr = 2;
  c.optimizer.schedule = name;
  c.optimizer.warmup_steps = warmup;
  c.optimizer.final_lr_fraction = final_fraction;
  c.optimizer.decay_fraction = decay;
  c.train.steps = steps;
  return c;
}

TEST(Schedule, WarmupRisesToLr) {
  for (auto* name : {"cosine", "linear", "wsd", "constant"}) {
    Config c = schedule(name, 100, 4);
    EXPECT_EQ(learning_rate(c, 0), 0.5) << name;
    EXPECT_EQ(learning_rate(c, 1), 1.0) << name;
    EXPECT_EQ(learning_rate(c, 3), 2.0) << name;
    EXPECT_EQ(learning_rate(c, 4), 2.0) << name;  // x = 0
    EXPECT_EQ(learning_rate(schedule(name, 100, 0), 0), 2.0) << name;
  }
}

TEST(Schedule, Cosine) {
  Config c = schedule("cosine", 110, 10, 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(c, 60), 2 * (0.1 + 0.9 / 2));                           // x = 1/2
  EXPECT_NEAR(learning_rate(c, 35), 2 * (0.1 + 0.9 * (1 + std::sqrt(0.5)) / 2), 1e-15);  // x = 1/4
  EXPECT_DOUBLE_EQ(learning_rate(c, 110), 0.2);
}

TEST(Schedule, Linear) {
  Config c = schedule("linear", 110, 10, 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(c, 60), 2 * 0.55);
  EXPECT_DOUBLE_EQ(learning_rate(c, 109), 2 * (1 - 0.9 * 0.99));
}

TEST(Schedule, WarmupStableDecay) {
  Config c = schedule("wsd", 100, 10, 0.5, 0.2);
  EXPECT_EQ(learning_rate(c, 80), 2);  // the last 20 steps decay
  EXPECT_DOUBLE_EQ(learning_rate(c, 81), 2 * (1 - 0.5 / 20));
  EXPECT_DOUBLE_EQ(learning_rate(c, 90), 2 * 0.75);
  EXPECT_DOUBLE_EQ(learning_rate(c, 99), 2 * (1 - 0.5 * 19 / 20));
  EXPECT_EQ(learning_rate(schedule("wsd", 100, 10, 0, 0), 99), 2);  // no decay at all
}

TEST(Schedule, Constant) { EXPECT_EQ(learning_rate(schedule("constant", 100, 10, 0.1), 99), 2); }

TEST(Schedule, BeginsWhereItIsToldTo) {
  for (auto* name : {"cosine", "linear", "wsd", "constant"}) {
    Config c = schedule(name, 150, 10, 0.1), later = c;
    c.train.steps = 110;
    later.optimizer.schedule_start = 40;
    for (int64_t step = 0; step < 110; step++)
      EXPECT_EQ(learning_rate(later, step + 40), learning_rate(c, step)) << name;
  }
}

TEST(Schedule, WarmupLongerThanTheRun) {
  for (auto* name : {"cosine", "linear", "wsd", "constant"}) {
    EXPECT_DOUBLE_EQ(learning_rate(schedule(name, 5, 10), 4), 1.0) << name;
    EXPECT_EQ(learning_rate(schedule(name, 5, 5), 4), 2.0) << name;
  }
}
