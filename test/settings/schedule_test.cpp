// The learning rate at every step.
#include "settings/schedule.h"

#include <gtest/gtest.h>
#include <string>
#include <vector>

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

// Warnings of phases that do not fit, as loading a configuration gives them.
static std::string warnings_of(const char* form, int steps, int warmup, double decay, int start = 0) {
  std::vector<std::string> sets = {"optimizer.schedule=" + std::string(form), "train.steps=" + std::to_string(steps),
                                   "optimizer.warmup_steps=" + std::to_string(warmup),
                                   "optimizer.schedule_start=" + std::to_string(start)};
  if (decay >= 0) sets.push_back("optimizer.decay_fraction=" + std::to_string(decay));
  std::string all;
  for (const std::string& warning : parse_config("{}", "c.json", sets).warnings) all += warning + "\n";
  return all;
}

TEST(Schedule, PhasesThatDoNotFitAreNamed) {
  auto says = [](const std::string& warnings, const char* words) {
    return warnings.find(words) != std::string::npos && warnings.find("optimizer.warmup_steps") != std::string::npos;
  };
  for (int start : {0, 30}) {  // of 10 steps each
    for (const char* form : {"cosine", "linear", "wsd", "constant"}) {
      double decay = form == std::string("wsd") ? 0.5 : -1;
      EXPECT_TRUE(says(warnings_of(form, start + 10, 11, decay, start), "never reaches optimizer.lr")) << form;
      EXPECT_EQ(warnings_of(form, start + 10, 5, decay, start), "") << form;
      bool overlap = form == std::string("wsd");
      EXPECT_EQ(says(warnings_of(form, start + 10, 6, decay, start), "optimizer.decay_fraction"), overlap) << form;
    }
    EXPECT_TRUE(says(warnings_of("wsd", start + 10, 10, 0.2, start), "last 2 steps"));
    EXPECT_EQ(warnings_of("wsd", start + 10, 10, 0, start), "");
    EXPECT_EQ(warnings_of("wsd", start + 20, 9, 0.55, start), "");  // 0.55 x 20 is a little more than 11
    EXPECT_EQ(warnings_of("wsd", start + 10, 0, 1, start), "");
  }
}

TEST(Schedule, WarmupLongerThanTheRun) {
  for (Schedule form : {Schedule::cosine, Schedule::linear, Schedule::wsd, Schedule::constant}) {
    EXPECT_DOUBLE_EQ(learning_rate(schedule(form, 5, 10), 4), 1.0) << int(form);
    EXPECT_EQ(learning_rate(schedule(form, 5, 5), 4), 2.0) << int(form);
  }
}
