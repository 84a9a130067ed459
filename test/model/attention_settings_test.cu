// Attention's settings in the whole model: each reaches its field and is what the float64 reference makes of it, in
// both precisions.
#include <gtest/gtest.h>

#include "test/model/gradient_pools.h"
#include "training/flops.h"

namespace {

// The reference model takes them from the same place and would not notice.
TEST(Settings, EveryKeyOfAttentionReachesItsField) {
  AttentionSettings s = small_config("fp32", {"attention.kind=lssar", "attention.qk_norm=rms", "attention.scale=0.25",
                                              "attention.power=3", "attention.offset=0.5",
                                              "attention.offset_free_rows=7", "attention.gate.activation=silu",
                                              "attention.gate.position=key", "attention.gate.granularity=headwise",
                                              "attention.gate.op=add", "attention.gate.weight_init=zero"})
                            .attention;
  EXPECT_EQ(s.kind, Kind::lssar);
  EXPECT_EQ(s.qk_norm, QkNorm::rms);
  EXPECT_EQ(s.scale, Scale::number);
  EXPECT_EQ(s.scale_number, 0.25);
  EXPECT_EQ(s.parameter("power"), 3);
  EXPECT_EQ(s.parameter("offset"), 0.5);
  EXPECT_EQ(s.parameter("offset_free_rows"), 7);
  EXPECT_EQ(s.gate.activation, GateActivation::silu);
  EXPECT_EQ(s.gate.position, GatePosition::key);
  EXPECT_EQ(s.gate.granularity, GateGranularity::headwise);
  EXPECT_EQ(s.gate.op, GateOp::add);
  EXPECT_EQ(s.gate.weight_init, GateWeights::zero);
  EXPECT_EQ(small_config("fp32", {"attention.sink=learned"}).attention.sink, Sink::learned);
}

// Every variant of the configuration trains: all parameters get gradients, and a step lowers the batch's loss.
TEST(Settings, EveryVariantLearns) {
  for (const Variant& variant : variants()) {
    for (std::string precision : {"fp32", "bf16"}) {
      Config config = small_config(precision, {"attention.variant=" + std::string(variant.name)});
      if (!has_kernels(config)) continue;
      TestBatch batch(config);
      auto model = small_model(config);
      float first = gradients(*model, batch).loss;
      for (const Tensor& tensor : model->parameters().tensors()) {
        double size = 0;
        for (float g : read(*model, tensor, Part::gradients)) size += std::fabs(g);
        EXPECT_GT(size, 0) << variant.name << " " << tensor.name;
        EXPECT_TRUE(std::isfinite(size)) << variant.name << " " << tensor.name;
      }
      train_steps(*model, batch, 1, 5, ADAMW, 1);
      EXPECT_LT(gradients(*model, batch).loss, 0.97f * first) << variant.name << " " << precision;
    }
  }
}

TEST(Settings, GatesMatchTheReference) {
  for (std::string position : {"sdpa", "value", "key", "query", "output"}) {
    GradientPools pools;
    for (std::string granularity : {"elementwise", "headwise", "shared"}) {
      if (position == "output" && granularity != "elementwise") continue;
      std::vector<std::string> gate = {"attention.gate.activation=softplus", "attention.gate.position=" + position,
                                       "attention.gate.granularity=" + granularity};
      std::string what = position + " " + granularity;
      auto add = [&](const std::string& name, std::vector<std::string> more) {
        more.insert(more.begin(), gate.begin(), gate.end());
        pools.add(more, what + name);
      };
      for (std::string op : {"multiply", "add"})
        for (std::string bias : {"true", "false"})
          add(" " + op + " bias " + bias, {"attention.gate.op=" + op, "attention.gate.bias=" + bias});
      add(" without input", {"attention.gate.input=none", "attention.gate.bias_init=0.3"});
    }
    if (position != "output")
      pools.add({"attention.gate.activation=softplus", "attention.gate.position=" + position,
                 "attention.gate.granularity=headwise", "attention.gate.bias=false", "model.heads=1"},
                position + " of one head");
  }
}

// Heads that share keys and values: groups of 2 and 3, and all, with each thing that has keys or values of its own.
TEST(Settings, SharedKeysAndValuesMatchTheReference) {
  GradientPools pools(12);
  for (auto [heads, kv_heads] : {std::pair("4", "2"), std::pair("6", "2"), std::pair("3", "1")})
    for (std::vector<std::string> sets : std::vector<std::vector<std::string>>{
             {},
             {"attention.qk_norm=rms", "attention.scale=logn"},
             {"attention.output=exclusive", "attention.gate.activation=silu"},
             {"attention.gate.activation=sigmoid", "attention.gate.position=key",
              "attention.gate.granularity=headwise"},
             {"attention.gate.activation=sigmoid", "attention.gate.position=value"},
             {"attention.gate.activation=sigmoid", "attention.gate.position=query", "attention.gate.bias=false"},
             {"attention.variant=lssar", R"(attention.layers=[{}, "softmax"])"}}) {
      std::string what = std::string(heads) + " heads, keys of " + kv_heads;
      for (const std::string& set : sets) what += " " + set;
      sets.insert(sets.end(), {std::string("model.heads=") + heads, std::string("model.kv_heads=") + kv_heads});
      pools.add(sets, what);
    }
}

// The operations on attention's output and its norms, alone and before each gate, in layers that differ.
TEST(Settings, OutputsMatchTheReference) {
  GradientPools pools(12);
  for (std::string operation : {"none", "silu", "exclusive"})
    for (std::string norm : {"none", "l2", "rms"}) {
      std::vector<std::string> sets = {"attention.output=" + operation, "attention.output_norm=" + norm};
      pools.add(sets, operation + " " + norm);
      for (std::string position : {"sdpa", "value", "output"}) {
        std::vector<std::string> gated = sets;
        gated.insert(gated.end(), {"attention.gate.activation=silu", "attention.gate.position=" + position,
                                   R"(attention.layers=[{}, {"gated": false, "kind": "relu"}])"});
        pools.add(gated, operation + " " + norm + " gate at " + position);
      }
    }
}

// The kinds and scales without learned parameters, and the norms, in the whole model. The largest of their errors is
// the bound, so all must be there.
TEST(Settings, VariantsMatchTheReference) {
  for (size_t kind = 0; kind < std::size(kind_names); kind++)
    if (!attention_is_built(Kind(kind))) GTEST_SKIP() << "built without " << kind_names[kind];
  GradientPool<float> fp32("fp32", 12);
  for (size_t kind = 0; kind < std::size(kind_names); kind++)
    if (!is_sharpened(Kind(kind))) fp32.add({std::string("attention.kind=") + kind_names[kind]}, kind_names[kind]);
  for (std::string variant : {"softmax_qknorm", "sigmoid_gated", "softplus_gated", "threshold"})
    fp32.add({"attention.variant=" + variant}, variant);
}

// Windows, biases and layers that differ, alone and together.
TEST(Settings, MasksAndLayersMatchTheReference) {
  const std::vector<std::string> cases[] = {
      {"attention.window=3"},
      {"attention.window=3", "attention.sink_tokens=2", "attention.scale=logn"},
      {"attention.window=4", R"(attention.layers=[{}, {"window": 0, "rotated": false}])"},
      MIXED_LAYERS,
      {R"(attention.layers=[{"window": 4, "bias": "alibi"}, {"bias": "fox", "gated": false}])",
       "attention.gate.activation=silu"},
      {R"(attention.layers=[{"window": 3, "bias": "cable"}, {"bias": "none"}])", "attention.bias=fox",
       "model.position=none"},
      {R"(attention.layers=[{"window": 2}, {"kind": "lssar", "window": 5}])", "attention.sink_tokens=1",
       "attention.power=3"},
      {"attention.variant=threshold", R"(attention.layers=["lssa", {"gated": true}])", "attention.gate.activation=silu",
       "attention.gate.position=output"},
      {R"(attention.layers=[{"kind": "relu", "gated": false}, "sigmoid"])", "attention.gate.activation=tanh",
       "attention.gate.position=key", "attention.gate.granularity=headwise", "attention.bias=cable"},
      {"model.rope_fraction=0.7"},
      {"attention.variant=alibi"},
      {"attention.variant=fox"},
      {"attention.variant=cable", "attention.window=5"},
      {"attention.variant=softplus_gated", "attention.bias=fox"},
      {"attention.variant=sigmoid_gated", "attention.bias=cable", "attention.gate.granularity=headwise"}};
  // LSSAR's errors are by far the largest here and vary most: of three batches, clang's kernels had 2.4 times the naive
  // formula's, of 12 1.3 times, of 40 0.6 times.
  GradientPools pools(12);
  for (const auto& sets : cases) {
    std::string what;
    for (const std::string& set : sets) what += set + " ";
    if (has_kernels(small_config("fp32", sets))) pools.fp32.add(sets, what);
    if (is_built(small_config("bf16", sets))) pools.half.add(sets, what);
  }
}

// Hopper's kernels finish the gradients of such heads, and sum the bias of q, k and v where no gate changes them later.
TEST(Settings, HeadsOf64MatchTheReference) {
  GradientPool<bf16> half("bf16", 5);
  for (std::string bias : {"none", "fox"})
    for (std::string position : {"sdpa", "value"})
      half.add({"model.heads=2", "model.head_dim=64", "attention.bias=" + bias, "attention.gate.activation=softplus",
                "attention.gate.position=" + position},
               "heads of 64, gate at " + position + ", bias " + bias);
}

// The model of a window of documents is that of each document alone.
TEST(Settings, SeparateDocumentsMatchTheReference) {
  const std::vector<std::string> cases[] = {
      {"model.position=learned"},
      {"model.position=rope", "attention.window=3", "attention.sink_tokens=1", "attention.scale=logn"},
      {"attention.variant=fox", "train.recompute=block"},
      {"attention.variant=alibi", "attention.gate.activation=silu"},
      {"attention.variant=lssa", R"(attention.layers=[{"bias": "cable"}, {"kind": "relu", "window": 4}])",
       "model.position=none"},
      {"attention.variant=threshold"}};
  GradientPools pools(12);
  for (std::vector<std::string> sets : cases) {
    std::string what = "separate " + sets[0];
    sets.insert(sets.end(), {"attention.documents=separate", "data.separator=7"});
    if (has_kernels(small_config("fp32", sets))) pools.fp32.add(sets, what);
    if (is_built(small_config("bf16", sets))) pools.half.add(sets, what);
  }
}

// What attention.layers says of every layer is what the other keys say, and only layers with softmax have a sink.
TEST(Settings, EqualLayersAreTheModelOfThatSort) {
  const std::vector<std::string> gated = {"attention.gate.activation=sigmoid", "attention.window=3"};
  auto gradients_of = [](std::vector<std::string> sets, const std::vector<std::string>& more) {
    sets.insert(sets.end(), more.begin(), more.end());
    Config config = small_config(on_cpu ? "fp32" : "bf16", sets);
    auto model = small_model(config);
    gradients(*model, TestBatch(config));
    return read_all(*model, Part::gradients);
  };
  const std::map<std::string, std::vector<std::string>> cases = {
      {R"({"kind": "lssar", "window": 0})", {"attention.kind=lssar", "attention.window=0"}},
      {R"({"gated": false, "rotated": false})", {"attention.gate.activation=none", "model.position=none"}},
      {R"({"gated": true, "rotated": true})", {}},
      {R"({"window": 5, "bias": "fox"})", {"attention.window=5", "attention.bias=fox"}}};
  for (auto& [layers, same] : cases)
    expect_same_bits(layers, gradients_of(gated, {"attention.layers=" + layers}), gradients_of(gated, same));

  const std::vector<std::string> separate = {"attention.documents=separate", "data.separator=7"};
  expect_same_bits("joined", gradients_of(separate, {R"(attention.layers=[{"documents": "joined"}])"}),
                   gradients_of(separate, {"attention.documents=joined"}));

  auto flops = [](const std::string& set) { return flops_per_token(small_config("fp32", {set})); };
  EXPECT_DOUBLE_EQ(2 * flops(R"(attention.layers=[{"window": 3}, {"window": 0}])"),
                   flops("attention.window=3") + flops("model.layers=2"));
  EXPECT_LT(flops("attention.window=3"), flops("model.layers=2"));

  auto model = small_model(small_config(
      "fp32", {"attention.sink=learned", R"(attention.layers=["lssar", {"kind": "softmax", "bias": "none"}])",
               "attention.bias=fox"}));
  auto has = [&](const std::string& name) {
    return std::ranges::count(model->parameters().tensors(), name, &Tensor::name) == 1;
  };
  EXPECT_FALSE(has("h.0.attn.sink"));
  EXPECT_TRUE(has("h.1.attn.sink"));
  EXPECT_TRUE(has("h.0.attn.c_decay.weight"));
  EXPECT_FALSE(has("h.1.attn.c_decay.weight"));
}

}  // namespace
