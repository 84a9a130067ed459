// The memory plan: what it counts, the micro batch that it chooses on common cards, and what it offers if a run does
// not fit. The cards are those of dev/plan_tables.py. And the work of a step, in FLOP.
#include <gtest/gtest.h>

#include "base/text.h"
#include "test/support/error_of.h"
#include "train_gpt2.h"
#include "training/flops.h"
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
  std::string error = error_of(
      [&] { config.batch.micro = plan_run(config, device, config.eval.lengths, true, 0, Comm::alone()).micro; });
  return testing::internal::GetCapturedStdout() + error;
}

TEST(Plan, RowsAreTheModelsArraysAndWhatLibrariesTake) {
  Config config = gpt2("24GiB", {"batch.micro=4"});
  auto beside_model = [&](int ranks) {
    MemoryPlan model = plan_memory(config, 4, 1024, 1024, true, ranks);
    MemoryRows rows = memory_rows(config, {1024, 1024, true, ranks});
    auto first = rows.begin() + long(model.categories().size());
    EXPECT_EQ(total_bytes({rows.begin(), first}), model.total());
    return MemoryRows(first, rows.end());
  };
  MemoryRows gpu = {{"matmul workspace", 32 << 20}, {"kernels", 10 << 20}, {"CUDA context", 515396075}};
  EXPECT_EQ(beside_model(1), gpu);
  config.plan.memory = "80GiB", gpu[2].second = 560 << 20;
  gpu.emplace_back("NCCL's buffers", 8 * 2 * (4194304 + 4915200 + 524288));
  EXPECT_EQ(beside_model(8), gpu);
  config.plan.memory = "";  // this machine
  MemoryRows here = {{"checkpoint snapshot", snapshot_bytes(config)}};
  if (!on_cpu) here = {gpu[0], gpu[1]};
  EXPECT_EQ(beside_model(8), here);
}

// 124M and 350M.
TEST(Plan, TakesTheLargestMicroBatchThatFitsBesideTheReserve) {
  for (const char* shape :
       {"model.layers=12 model.heads=12 model.channels=768", "model.layers=24 model.heads=16 model.channels=1024"})
    for (double gib : {7.6, 11.7, 23.6, 44.4})
      for (const char* precision : {" precision=bf16", " precision=fp32"})
        for (const char* recompute : {" train.recompute=none", " train.recompute=block"}) {
          std::string settings = std::string(shape) + precision + recompute;
          Config config = gpt2(format("%.1fGiB", gib), split(settings, ' ')), chosen = config;
          auto fits = [&](int micro) {
            config.batch.micro = micro;
            return double(total_bytes(memory_rows(config, {size_t(micro) * 1024, 1024, true, 1}))) <=
                   0.97 * gib * (1 << 30);
          };
          int largest = 64;
          while (largest > 0 && !fits(largest)) largest /= 2;
          std::string said = answer(chosen), reserve = bytes_text(0.03 * gib * (1 << 30));
          EXPECT_EQ(said.starts_with("memory\n") ? chosen.batch.micro : 0, largest) << gib << settings;
          expect_has(said, {format(" GiB of %.1f GiB free, %s in reserve; micro batch ", gib, reserve.c_str())});
        }
}

// 21 sequences would fit, their logits in two chunks, but 16, with all logits in one, do not.
TEST(Plan, TriesEachMicroBatch) {
  Config config = gpt2("6.75GiB", {"train.recompute=block"});
  answer(config);
  EXPECT_EQ(config.batch.micro, 8);
}

// What is offered fits, and twice of it does not.
TEST(Plan, OffersWhatFits) {
  auto said = [](const std::string& memory, const std::string& settings) {
    Config config = gpt2(memory, split(settings, ' '));
    return answer(config);
  };
  expect_has(said("7.6GiB", "batch.micro=64"),
             {"user: memory: this run does not fit on a GPU:\n  parameters ",
              "\nit fits with batch.micro=4, or train.recompute=block, batch.micro=16  [x.json]"});
  for (const char* settings : {"batch.micro=4", "train.recompute=block batch.micro=16"})
    EXPECT_TRUE(said("7.6GiB", settings).starts_with("memory\n")) << settings;
  for (const char* settings : {"batch.micro=8", "train.recompute=block batch.micro=32"})
    EXPECT_TRUE(said("7.6GiB", settings).starts_with("user: ")) << settings;
  expect_has(said("3.8GiB", "model.context=32768 eval.batch=2"),
             {"it fits with eval.batch=0, train.recompute=block, "
              "model.context and eval.lengths of at most 4096, batch.micro=1  ["});
  EXPECT_TRUE(said("3.8GiB", "train.recompute=block model.context=4096").starts_with("memory\n"));
  EXPECT_TRUE(said("3.8GiB", "train.recompute=block model.context=8192").starts_with("user: "));
  expect_has(said("1.75GiB", "batch.micro=1"), {"no length fits: use a smaller model, or more memory  [x.json]"});
}

TEST(Plan, WorkOfARunInFlopsAndHours) {
  // 6 (124,439,808 + 12 x 1024 x 768) FLOP a token, 2^19 tokens a step, 600 steps left: 2.527e17. 4 ranks that make
  // 2e12 a second take 31,586 seconds.
  std::vector<std::string> sets = {"train.steps=1000", "batch.tokens=524288", "model.position=learned"};
  EXPECT_EQ(work_text(gpt2("24GiB", sets), 400, 4), "2.53e+17 FLOP in 600 steps");
  sets.push_back("plan.tflops=2");
  EXPECT_EQ(work_text(gpt2("24GiB", sets), 400, 4), "2.53e+17 FLOP in 600 steps, 8.77 hours at 2 TFLOP/s a rank");
}

// 6 T A FLOP a token and layer, of which a layer that prunes has the share of its own tiles; a window of 256 of 1024
// keys leaves (256 x 257 / 2 + 768 x 256) / (1024 x 1025 / 2) of them.
TEST(Flops, CountTheKeysAndTilesThatAreComputed) {
  Config config = gpt2("24GiB", {"model.layers=3", R"(attention.layers=[{}, {"bias": "fox"}, {"window": 256}])"});
  double layer = 6.0 * 1024 * 768, window = (256 * 257 / 2 + 768 * 256) / (1024 * 1025 / 2.0);
  std::vector<TileCount> tiles(3 * 12);
  EXPECT_NEAR(attention_flops_per_token(config, {}, tiles), (2 + window) * layer, 1);
  for (int h = 0; h < 12; h++) tiles[12 + h] = {h + 1.0, 13};
  EXPECT_NEAR(attention_flops_per_token(config, {}, tiles), (1 + 0.5 + window) * layer, 1);
  EXPECT_NEAR(attention_flops_per_token(config), (2 + window) * layer, 1);
  EXPECT_NEAR(needed_share(tiles), 0.5, 1e-12);
}

}  // namespace
