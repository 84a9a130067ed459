// The parts of attention besides its kernels: the memory it asks for, the choice of a family, names, errors.
#include <gtest/gtest.h>

#include "attention/families.h"
#include "attention/family.h"
#include "test/support/device.h"
#include "test/support/error_of.h"

TEST(AttentionMemory, IsLinearInTheLength) {
  AttentionSettings s;
  if (attention_is_built(s.kind)) {
    EXPECT_EQ(attention_statistics(s, 64), 1);
  }
  auto workspace = [&](AttentionShape shape) {
    return attention_backward_workspace<float>({.settings = s, .shape = shape, .family = "general"});
  };
  EXPECT_EQ(workspace({1, 1, 1, 1}), 32u * 128 + 12);  // rows are counted in 128s
  EXPECT_EQ(workspace({3, 16384, 12, 64}), (32u * 16384 + 12 * 64 * 16384 / 64) * 3 * 12);
}

// A family that does nothing but count its calls, added as CONTRIBUTING.md says.
struct AttentionDispatch : testing::Test {
  inline static int calls;
  inline static bool suits, pays;
  static Kind first_built() {
    Kind kind{};
    while (!attention_is_built(kind)) kind = Kind(int(kind) + 1);
    return kind;
  }
  const std::vector<FamilyRow> usual = family_rows();
  const Kind kind = first_built();
  const std::vector<Family<float>> others = families_of<float>(kind);
  FamilyRow& row = *family_rows().insert(
      family_rows().begin(),
      {"stub", "fast devices", [](const FamilyQuery&) { return suits; }, [](const FamilyQuery&) { return pays; },
       [](const FamilyQuery& q) -> std::string { return q.D == 16 && !q.hides_or_adds ? "" : "heads of other sizes"; },
       "a device"});
  AttentionSettings settings{.kind = kind};

  AttentionDispatch() {
    Family<float> stub = {.name = "stub"};
    stub.forward = stub.evaluate = [](const ForwardCall<float>&) { calls++; };
    stub.backward = [](const BackwardCall<float>&) { calls++; };
    add_family(kind, stub);
    suits = pays = true;
  }
  ~AttentionDispatch() override { families_of<float>(kind) = others, family_rows() = usual; }

  int called(AttentionShape shape, const char* family = nullptr) {
    DeviceArray<float> x(std::vector<float>(shape.qkv_size(), 0.5f)), out(shape.out_size());
    calls = 0;
    attention_forward<float>(out, nullptr, x, {.settings = settings, .shape = shape, .family = family}, false);
    return calls;
  }
};

// It runs where it suits the device and has the call's kernels, and the others run everywhere else. By name it runs
// where it has them; on a GPU, only on devices that it suits.
TEST_F(AttentionDispatch, TakesTheFirstFamilyThatSupportsTheCall) {
  EXPECT_EQ(called({1, 8, 1, 16}), 1);
  EXPECT_EQ(called({1, 8, 1, 24}), 0);
  EXPECT_EQ(called({1, 8, 1, 16}, "general"), 0);
  EXPECT_EQ(called({1, 8, 1, 16}, "stub"), 1);
  EXPECT_THROW(called({1, 8, 1, 24}, "stub"), Failure);
  if (on_cpu) {           // a GPU has no kernels for windows in fp32
    settings.window = 8;  // which hides nothing
    EXPECT_EQ(called({1, 8, 1, 16}), 1);
    settings.window = 7;
    EXPECT_EQ(called({1, 8, 1, 16}), 0);
    settings.window = 0;
  }
  for (bool* no : {&suits, &pays}) {
    *no = false;
    EXPECT_EQ(called({1, 8, 1, 16}), 0);
    if (on_cpu || suits) {
      EXPECT_EQ(called({1, 8, 1, 16}, "stub"), 1);
    }
    *no = true;
  }
  settings.sink = Sink::learned;
  EXPECT_THROW(called({1, 8, 1, 16}, "stub"), Failure);  // without an array of sinks
}

// A family that no device has run is passed over, and the log says so, unless it is asked for by name.
TEST_F(AttentionDispatch, TakesWhatWasMeasured) {
  auto text = [&](int D) { return attention_family<float>({.settings = settings, .shape = {1, 8, 1, D}}); };
  EXPECT_EQ(text(16), "stub");
  row.measured_on = nullptr;
  EXPECT_EQ(called({1, 8, 1, 16}), 0);
  EXPECT_EQ(text(16), "general (stub has not been measured: attention.family=stub runs it)");
  EXPECT_EQ(text(24), "general");
  EXPECT_EQ(called({1, 8, 1, 16}, "stub"), 1);
  settings.family = "stub";
  EXPECT_EQ(called({1, 8, 1, 16}), 1);
  EXPECT_EQ(text(16), "stub");
  EXPECT_EQ(called({1, 8, 1, 16}, "general"), 0);  // diagnostics
}

// attention.family is refused before a run starts, with what the family lacks and those that would do.
TEST_F(AttentionDispatch, RefusesAFamilyThatCannotRunTheSettings) {
  auto refusal = [&](const char* family, int D, bool gpu = !on_cpu) {
    settings.family = family;
    return error_of([&] { attention_check(settings, D, true, false, gpu); });
  };
  EXPECT_EQ(refusal("stub", 16), "");
  EXPECT_EQ(refusal("stub", 24),
            "user: config: attention.family = \"stub\" lacks kernels for heads of other sizes; leave "
            "it out (--set attention.family=null) or use general");
  expect_has(refusal("stubb", 16), {"attention.family = \"stubb\" is unknown; ", " or use stub, general"});
  if (!families_of<bf16>(kind).empty() && families_of<bf16>(kind)[0].name != std::string("general"))
    expect_has(refusal(families_of<bf16>(kind)[0].name, 16), {"precision = \"fp32\""});
  family_rows().push_back(family_rows()[1]);  // of no folder
  family_rows().back().name = "other";
  expect_has(refusal("other", 16), {"\"other\" is not in this build: it is for GPUs of compute capability 9.0"});
  settings.window = 4;
  expect_has(refusal("stub", 16), {"lacks kernels for heads of other sizes"});
  if (on_cpu) {  // a plan for a GPU, whose kernels this build may lack
    auto plan = [&](const char* family, int D) {
      settings.family = family;
      return error_of([&] { attention_check(settings, D, false, false, true); });
    };
    EXPECT_EQ(plan("hopper", 64) + plan("hopper_heads", 64), "");
    expect_has(plan("hopper_heads", 72), {"lacks kernels for heads of more than 64 channels"});
    expect_has(plan("general", 64), {"lacks kernels for a window, a bias or separate documents on a GPU"});
    expect_has(refusal("hopper", 64, true), {"\"hopper\" lacks kernels for precision = \"fp32\""});
    expect_has(plan("onednn", 64), {"\"onednn\" is for CPUs with instructions for bf16"});
  }
}

// Whole heads pay where they are many and short; elsewhere blocks wait for others, or the sums of dQ leave the L2.
TEST(AttentionFamilies, WhatEachRowTakes) {
  auto row = [](const char* name) {
    return *std::ranges::find_if(family_rows(), [&](const FamilyRow& row) { return !strcmp(row.name, name); });
  };
  auto pays = [&](int B, int T) {
    return row("hopper_heads").pays({.heads = B * 12, .T = T, .multiprocessors = 132, .l2_bytes = 50 << 20});
  };
  EXPECT_TRUE(pays(32, 1024));
  EXPECT_TRUE(pays(11, 512));   // a head for each block
  EXPECT_FALSE(pays(12, 512));  // 144: a second round of 12
  EXPECT_FALSE(pays(4, 512) || pays(32, 2048) || pays(1, 16384));
  EXPECT_EQ(row("hopper_heads").measured_on, nullptr);  // until its row says where
  FamilyQuery q{.D = 64, .row_stride = 192, .aligned = true, .widest = 64, .widest_masked = 64, .major = 9};
  for (const char* name : {"hopper_heads", "hopper", "tensor", "general"}) {
    EXPECT_TRUE(row(name).suits(q)) << name;
    EXPECT_EQ(row(name).lacks(q), "") << name;
  }
  EXPECT_FALSE(row("onednn").suits(q));
  q.major = 8;
  EXPECT_FALSE(row("hopper_heads").suits(q) || row("hopper").suits(q));
  q.row_stride = 200;
  EXPECT_NE(row("hopper").lacks(q), "");
  q.row_stride = 192, q.aligned = false;
  EXPECT_NE(row("hopper").lacks(q), "");
  q.aligned = true, q.D = q.row_stride = 36;
  EXPECT_EQ(row("hopper").lacks(q), "heads that are not a multiple of 8 channels");
  q.D = q.row_stride = 128, q.widest = 128, q.has_bias = q.hides_or_adds = true;
  EXPECT_NE(row("hopper_heads").lacks(q), "");
  EXPECT_EQ(row("tensor").lacks(q), "heads of more than 64 channels, with a bias or separate documents");
  EXPECT_NE(row("general").lacks(q), "");
  q.on_cpu = true;
  EXPECT_EQ(row("general").lacks(q), "");
  EXPECT_FALSE(row("tensor").suits(q) || row("onednn").suits(q));
  q.has_instructions = true;
  EXPECT_TRUE(row("onednn").suits(q));
}

TEST(AttentionCheck, Errors) {
  expect_user_error([] { attention_check({}, 513, true); }, {"model.head_dim = 513"});
  expect_user_error([] { attention_check({.kind = Kind(std::size(kind_names))}, 64, true); },
                    {"has no kernels in this build"});
}
