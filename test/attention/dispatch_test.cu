// The parts of attention besides its kernels: the memory it asks for, the choice of a family, names, errors.
#include <gtest/gtest.h>

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

// A family that does nothing but count its calls, added as CONTRIBUTING.md says: it runs where it suits the device and
// supports the call, or where it is asked for by name, and the others run everywhere else.
TEST(AttentionDispatch, TakesTheFirstFamilyThatSupportsTheCall) {
  Kind kind{};
  while (!attention_is_built(kind)) kind = Kind(int(kind) + 1);
  static int calls;
  static bool suits;
  Family<float> stub = {.name = "stub", .order = 0};
  stub.suits = [](const AttentionCall<float>&) { return suits; };
  stub.supports = [](const AttentionCall<float>& call, Addresses) {
    return call.shape.D == 16 && !call.hides_or_adds();
  };
  stub.forward = stub.evaluate = [](const ForwardCall<float>&) { calls++; };
  stub.backward = [](const BackwardCall<float>&) { calls++; };
  const std::vector<Family<float>> others = families_of<float>(kind);
  add_family(kind, stub);

  AttentionSettings settings{.kind = kind};
  auto called = [&](AttentionShape shape, const char* family = nullptr) {
    DeviceArray<float> x(std::vector<float>(shape.qkv_size(), 0.5f)), out(shape.out_size());
    calls = 0;
    attention_forward<float>(out, nullptr, x, {.settings = settings, .shape = shape, .family = family}, false);
    return calls;
  };
  suits = true;
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
  suits = false;
  EXPECT_EQ(called({1, 8, 1, 16}), 0);
  EXPECT_EQ(called({1, 8, 1, 16}, "stub"), 1);
  settings.sink = Sink::learned;
  EXPECT_THROW(called({1, 8, 1, 16}, "stub"), Failure);  // without an array of sinks
  families_of<float>(kind) = others;
}

TEST(AttentionDispatch, NamesAndErrors) {
  for (const char* name : kind_names) EXPECT_STREQ(kind_names[int(from_name<Kind>("KIND", kind_names, name))], name);
  expect_user_error([] { from_name<Kind>("KIND", kind_names, "lsar"); },
                    {"KIND = \"lsar\" is unknown; choose one of softmax, lssa"});
  expect_user_error([] { attention_check({}, 513, true); }, {"model.head_dim = 513"});
  expect_user_error([] { attention_check({.kind = Kind(std::size(kind_names))}, 64, true); },
                    {"has no kernels in this build"});
}
