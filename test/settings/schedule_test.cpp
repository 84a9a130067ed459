// The learning rate at every step.
#include "settings/schedule.h"

#include <gtest/gtest.h>

static Config schedule(Schedule form, int64_t steps, int64_t warmup, double final_fraction = 0, double decay = 0.2) {
  Config c;
  c.optimizer.lr = 2;
  c.optimizer.schedule = form;
  c.optimizer.warmup_steps = warmup;
  c.optimizer.final_lr_fraction = final_fraction;
  c.optimizer.decay_fraction = decay;
  c.train.steps = steps;
  return c;
}

TEST(Schedule, WarmupRisesToLr) {
  for (Schedule form : {Schedule::cosine, Schedule::linear, Schedule::wsd, Schedule::constant}) {
    Config c = schedule(form, 100, 4);
    EXPECT_EQ(learning_rate(c, 0), 0.5) << int(form);
    EXPECT_EQ(learning_rate(c, 1), 1.0) << int(form);
    EXPECT_EQ(learning_rate(c, 3), 2.0) << int(form);
    EXPECT_EQ(learning_rate(c, 4), 2.0) << int(form);  // x = 0
    EXPECT_EQ(learning_rate(schedule(form, 100, 0), 0), 2.0) << int(form);
  }
}

TEST(Schedule, Cosine) {
  Config c = schedule(Schedule::cosine, 110, 10, 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(c, 60), 2 * (0.1 + 0.9 / 2));                           // x = 1/2
  EXPECT_NEAR(learning_rate(c, 35), 2 * (0.1 + 0.9 * (1 + std::sqrt(0.5)) / 2), 1e-15);  // x = 1/4
  EXPECT_DOUBLE_EQ(learning_rate(c, 110), 0.2);
}

TEST(Schedule, Linear) {
  Config c = schedule(Schedule::linear, 110, 10, 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(c, 60), 2 * 0.55);
  EXPECT_DOUBLE_EQ(learning_rate(c, 109), 2 * (1 - 0.9 * 0.99));
}

TEST(Schedule, WarmupStableDecay) {
  Config c = schedule(Schedule::wsd, 100, 10, 0.5, 0.2);
  EXPECT_EQ(learning_rate(c, 80), 2);  // the last 20 steps decay
  EXPECT_DOUBLE_EQ(learning_rate(c, 81), 2 * (1 - 0.5 / 20));
  EXPECT_DOUBLE_EQ(learning_rate(c, 90), 2 * 0.75);
  EXPECT_DOUBLE_EQ(learning_rate(c, 99), 2 * (1 - 0.5 * 19 / 20));
  EXPECT_EQ(learning_rate(schedule(Schedule::wsd, 100, 10, 0, 0), 99), 2);  // no decay at all
}

TEST(Schedule, Constant) { EXPECT_EQ(learning_rate(schedule(Schedule::constant, 100, 10, 0.1), 99), 2); }

TEST(Schedule, BeginsWhereItIsToldTo) {
  for (Schedule form : {Schedule::cosine, Schedule::linear, Schedule::wsd, Schedule::constant}) {
    Config c = schedule(form, 150, 10, 0.1), later = c;
    c.train.steps = 110;
    later.optimizer.schedule_start = 40;
    for (int64_t step = 0; step < 110; step++)
      EXPECT_EQ(learning_rate(later, step + 40), learning_rate(c, step)) << int(form);
  }
}

TEST(Schedule, WarmupLongerThanTheRun) {
  for (Schedule form : {Schedule::cosine, Schedule::linear, Schedule::wsd, Schedule::constant}) {
    EXPECT_DOUBLE_EQ(learning_rate(schedule(form, 5, 10), 4), 1.0) << int(form);
    EXPECT_EQ(learning_rate(schedule(form, 5, 5), 4), 2.0) << int(form);
  }
}
