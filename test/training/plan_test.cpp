// The memory plan: the micro batch that it chooses.
#include <gtest/gtest.h>

#include "base/text.h"
#include "test/support/error_of.h"
#include "training/plan.h"

namespace {

// GPT-2 124M on a GPU with this much memory, in fp32.
Config gpt2(const std::string& memory, std::vector<std::string> sets = {}) {
  sets.insert(sets.begin(), {"precision=fp32", "optimizer.warmup_steps=0", "plan.memory=" + memory});
  return parse_config("{}", "x.json", sets);
}

// What it prints, or its error. Sets config.batch.micro.
std::string answer(Config& config) {
  DeviceInfo device{"a GPU", true, 0, size_t(size_in_bytes(config.plan.memory)), 0};
  testing::internal::CaptureStdout();
  std::string error = error_of([&] { plan_run(config, device, config.eval.lengths, true, 0, Comm::alone()); });
  return testing::internal::GetCapturedStdout() + error;
}

// 21 sequences would fit, their logits in two chunks, but 16, with all logits in one, do not.
TEST(Plan, TriesEachMicroBatch) {
  Config config = gpt2("7GiB", {"train.recompute=block"});
  answer(config);
  EXPECT_EQ(config.batch.micro, 8);
}

}  // namespace
