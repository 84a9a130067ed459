// The whole model: its gradients against finite differences and against the float64 reference, in both precisions; that
// it can learn; that gradients do not depend on micro batches or recomputation (more of that, without a GPU:
// test/program/test_invariance.py); snapshots and memory.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "test/model/gradient_pools.h"
#include "training/flops.h"

namespace {

std::vector<std::string> positions() { return {"rope", "learned", "none"}; }

// Central differences along a random direction in each tensor: an error of O(h^2) and of rounding / h, both below 1e-7
// here.
TEST(Model, ReferenceGradientsAreDerivatives) {
  std::vector<std::vector<std::string>> cases = {
      {"attention.variant=fox", "attention.window=4"},
      {"attention.variant=cable", "attention.kind=lssa"},
      {"attention.window=3", R"(attention.layers=[{}, {"window": 0, "rotated": false}])"},
      MIXED_LAYERS,
      {R"(attention.layers=[{"window": 5, "bias": "cable"}, {"window": 0, "bias": "fox"}])"},
      {"data.labels=x"},
      LLAMA,
      {"model.mlp=relu2", "model.logit_cap=1.5", "model.tied=false"},
      {"model.norm=rmsnorm", "attention.variant=fox", "model.bias=false"},
      {"model.head.outputs=1", "data.labels=x"},
      {"model.head.outputs=7", "data.labels=x"}};
  for (const std::string& position : positions()) cases.push_back({"model.position=" + position});
  for (const auto& sets : cases) {
    Config config = small_config("fp32", sets);
    if (!is_built(config)) continue;
    TestBatch batch(config);
    auto model = small_model(config);
    ReferenceModel<Exact> reference(config);
    reference.weights = batch.weights, reference.values = batch.values;
    reference.take_parameters(*model);
    reference.loss_and_gradients(batch.inputs, batch.targets, 4, 11);
    for (auto& [name, gradient] : reference.gradients) {
      std::vector<float> direction = random_normal<float>(gradient.size(), unsigned(name.size()) + 17);
      std::vector<double> kept = reference.parameters[name];
      double h = 1e-5, slope = 0, size = 0;
      for (size_t i = 0; i < gradient.size(); i++)
        slope += gradient[i] * direction[i], size += std::fabs(gradient[i] * direction[i]);
      auto loss_at = [&, &name = name](double step) {
        for (size_t i = 0; i < kept.size(); i++) reference.parameters[name][i] = kept[i] + step * direction[i];
        return reference.forward(batch.inputs, batch.targets, 4, 11);
      };
      double difference = (loss_at(h) - loss_at(-h)) / (2 * h);
      reference.parameters[name] = kept;
      EXPECT_NEAR(difference, slope, 1e-6 * size + 1e-10) << sets[0] << " " << name;
      EXPECT_GT(size, 0) << name;
    }
  }
}

TEST(Model, GradientsMatchReference) {
  GradientPools pools;
  for (const std::string& position : positions()) pools.add({"model.position=" + position}, position);
}

TEST(Model, GradientsOfOtherBlocksMatchReference) {
  const std::vector<std::string> cases[] = {
      LLAMA,
      {"model.norm=rmsnorm"},
      {"model.bias=false", "model.position=learned"},
      {"model.tied=false", "batch.micro=2"},
      {"model.mlp=relu2", "model.bias=false"},
      {"model.mlp=relu2", "train.recompute=gelu"},
      {"model.mlp=swiglu", "train.recompute=block"},
      {"model.logit_cap=1.5", "data.labels=x"},
      {"model.bias=false", "attention.variant=softplus_gated"},
      {"model.bias=false", "attention.gate.activation=silu", "attention.gate.bias=false"},
      {"model.bias=false", "attention.gate.activation=silu", "attention.gate.position=value", "attention.bias=fox"},
      {"model.bias=false", "model.norm=rmsnorm", "model.head.outputs=2", "data.labels=x"}};
  GradientPools pools;
  for (const auto& sets : cases) {
    std::string what;
    for (const std::string& set : sets) what += set + " ";
    if (has_kernels(small_config("fp32", sets))) pools.fp32.add(sets, what);
    pools.half.add(sets, what);
  }
}

// Products and norms have biases, or none; the gate has its own key, and a decay's bias stays.
TEST(Model, ParametersOfOtherBlocks) {
  auto names = [](const std::vector<std::string>& sets) {
    std::string text;
    for (const Tensor& tensor : parameters_of(small_config("fp32", sets)))
      if (tensor.layer < 1 && (tensor.name.ends_with(".bias") || tensor.layer < 0)) text += tensor.name + " ";
    return text;
  };
  EXPECT_EQ(names(LLAMA), "wte.weight ln_f.weight lm_head.weight ");
  EXPECT_EQ(names({"model.norm=rmsnorm"}),
            "wte.weight h.0.attn.c_attn.bias h.0.attn.c_proj.bias h.0.mlp.c_fc.bias "
            "h.0.mlp.c_proj.bias ln_f.weight ");
  EXPECT_EQ(names({"model.bias=false", "attention.variant=fox", "attention.gate.activation=silu"}),
            "wte.weight h.0.attn.c_decay.bias h.0.attn.c_gate.bias ln_f.weight ");
  EXPECT_EQ(names({"model.bias=false", "model.tied=false", "model.head.outputs=2"}),
            "wte.weight ln_f.weight head.weight head.bias ");
  EXPECT_EQ(small_config("fp32", {"model.mlp=swiglu", "model.mlp_ratio=null"}).model.mlp_width(), 64);
  Config wide = small_config("fp32", {"model.mlp=swiglu", "model.mlp_ratio=null", "model.channels=768"});
  EXPECT_EQ(wide.model.mlp_width(), 2048);
  for (const Tensor& tensor : parameters_of(wide))
    EXPECT_TRUE(tensor.name != "h.0.mlp.c_fc.weight" || tensor.shape == (std::vector<int>{768, 4096}));
}

// What is saved of a row of logits is capped as in the losses.
TEST(Model, CappedLogitsOfARow) {
  Config config = small_config("fp32", {"model.logit_cap=1.5"}), plain = small_config("fp32");
  TestBatch batch(config);
  std::vector<float> logits(61), uncapped(61), losses(11);
  auto model = evaluated_model(config, 11, 11);
  model->row_logits(logits.data(), batch.inputs.data(), 1, 11, {10});
  model->losses(losses.data(), batch.inputs.data(), batch.targets.data(), 1, 11, nullptr);
  evaluated_model(plain, 11, 11)->row_logits(uncapped.data(), batch.inputs.data(), 1, 11, {10});
  double sum = 0;
  for (int v = 0; v < 61; v++) {
    EXPECT_NEAR(logits[v], 1.5 * std::tanh(uncapped[v] / 1.5), 1e-6);
    sum += std::exp(logits[v]);
  }
  EXPECT_NEAR(losses[10], std::log(sum) - logits[batch.targets[10]], 1e-5);
}

TEST(Model, GradientsWithLabelsMatchReference) {
  GradientPools pools;
  for (std::string micro : {"4", "2"}) pools.add({"data.labels=x", "batch.micro=" + micro}, "labels");
}

TEST(Model, GradientsOfTheRegressionHeadMatchReference) {
  GradientPools pools;
  for (std::string outputs : {"1", "2", "7"})
    pools.add({"data.labels=x", "batch.micro=2", "model.head.outputs=" + outputs}, "head " + outputs);
}

// What --predict writes is what the losses are of, at any batch; and no logits are kept.
TEST(Model, OutputsOfTheRegressionHead) {
  Config config = small_config("fp32", {"data.labels=x", "model.head.outputs=3"});
  auto model = small_model(config);
  TestBatch batch(config);
  std::vector<float> losses(44), outputs(44 * 3), single(11 * 3);
  auto large = evaluated_model(config, 44, 11, 100);
  large->losses(losses.data(), batch.inputs.data(), {nullptr, nullptr, batch.values.data()}, 4, 11);
  large->outputs(outputs.data(), batch.inputs.data(), 4, 11);
  int labelled = 0;
  for (int row = 0; row < 44; row++) {
    double sum = 0, count = 0;
    for (int k = 0; k < 3; k++)
      if (double error = outputs[row * 3 + k] - batch.values[row * 3 + k]; !std::isnan(error))
        sum += error * error, count++;
    EXPECT_NEAR(losses[row], count > 0 ? sum / count : 0, 1e-5 * sum);
    labelled += count > 0;
  }
  EXPECT_TRUE(0 < labelled && labelled < 44);
  large->outputs(single.data(), batch.inputs.data() + 33, 1, 11);
  for (size_t i = 0; i < single.size(); i++) EXPECT_NEAR(single[i], outputs[99 + i], 1e-5);
  auto plan = [](const Config& config) { return plan_memory(config, 4, 11, 11, true).categories(); };
  for (auto& [category, bytes] : plan(config)) EXPECT_NE(category, "logits");
}

// fp32 and bf16 compute the same function: their gradients differ by the rounding to bf16 of every stored tensor.
TEST(Model, PrecisionsAgree) {
  Config config = small_config("fp32"), config16 = small_config("bf16");
  TestBatch batch(config);
  auto model = small_model(config), model16 = small_model(config16);
  ReferenceModel<Exact> exact(config);
  ReferenceModel<Naive<bf16>> naive(config);
  exact.take_parameters(*model);
  naive.take_parameters(*model16);
  exact.loss_and_gradients(batch.inputs, batch.targets, 4, 11);
  naive.loss_and_gradients(batch.inputs, batch.targets, 4, 11);
  StepResult a = gradients(*model, batch), b = gradients(*model16, batch);
  double worst_naive = 0, worst = 0;
  for (const Tensor& tensor : model->parameters().tensors()) {
    worst_naive = std::max(worst_naive, deviation(naive.gradients[tensor.name], exact.gradients[tensor.name]).error);
    auto full = widen<Exact>(read(*model, tensor, Part::gradients));
    worst = std::max(worst, deviation(read(*model16, tensor, Part::gradients), full).error);
  }
  EXPECT_LE(worst, 2 * worst_naive + 2 * unit_roundoff<bf16>);
  EXPECT_GT(worst, unit_roundoff<bf16> / 16) << "bf16 that is this exact is not bf16";
  EXPECT_NEAR(a.loss, b.loss, 2 * unit_roundoff<bf16> * a.loss);
}

TEST(Model, SmallOnesOverfitOneBatch) {
  for (std::string precision : {"fp32", "bf16"}) {
    Config config = small_config(precision);
    TestBatch batch(config);
    auto model = make_model(config, config.model.context, config.model.context, true);
    model->parameters().init_random(model->config().seed);
    AdamW settings = ADAMW;
    settings.weight_decay = 0;
    EXPECT_NEAR(train_steps(*model, batch, 1, 1, settings, 1), std::log(61), 0.1) << precision;
    EXPECT_LT(train_steps(*model, batch, 2, 150, settings, 1), 0.05f) << precision;
  }
}

// One exception: in bf16 the first GELU is computed from the product in float32, the recomputed one from its stored
// bf16 value.
TEST(Model, RecomputationChangesNoBit) {
  GradientPool<bf16>("bf16").add({"train.recompute=gelu"});
  for (std::string precision : {"fp32", "bf16"})
    for (std::string mlp : {"gelu", "relu2", "swiglu"}) {
      std::vector<std::vector<float>> all;
      for (std::string recompute : {"none", "gelu", "block"}) {
        std::vector<std::string> sets = MIXED_LAYERS;
        sets.push_back("model.mlp=" + mlp);
        sets.push_back("train.recompute=" + recompute);
        Config config = small_config(precision, sets);
        if (!has_kernels(config)) continue;
        auto model = small_model(config);
        gradients(*model, TestBatch(config));
        all.push_back(read_all(*model, Part::gradients));
      }
      if (all.empty()) continue;
      if (precision == "fp32" || mlp != "gelu") expect_same_bits(precision + " gelu of " + mlp, all[1], all[0]);
      expect_same_bits(precision + " block of " + mlp, all[2], all[0]);
    }
}

// Gradient accumulation: in one, two and four micro batches, the same batch differs only by float32 rounding of sums.
TEST(Model, MicroBatchesAddUp) {
  Config config = small_config("fp32");
  TestBatch batch(config);
  auto whole = small_model(config);
  StepResult expected = gradients(*whole, batch);
  for (std::string micro : {"1", "2"}) {
    Config split = small_config("fp32", {"batch.micro=" + micro});
    auto model = small_model(split);
    StepResult result = gradients(*model, batch);
    EXPECT_NEAR(result.loss, expected.loss, 4 * unit_roundoff<float> * expected.loss * 44);
    for (const Tensor& tensor : model->parameters().tensors()) {
      auto all = widen<Exact>(read(*whole, tensor, Part::gradients));
      double error = deviation(read(*model, tensor, Part::gradients), all).error;
      EXPECT_LE(error, 2 * 44 * unit_roundoff<float>) << tensor.name;  // 44 rows are summed in another order
    }
  }
}

// One update: clipped, decayed where the table says so, the padding of the vocabulary still zero (or its logits would
// be wrong).
TEST(Model, UpdateIsAdamW) {
  for (std::string precision : {"fp32", "bf16"}) {
    Config config = small_config(precision);
    TestBatch batch(config);
    auto model = small_model(config);
    std::map<std::string, std::vector<float>> before;
    for (const Tensor& tensor : model->parameters().tensors())
      before[tensor.name] = read(*model, tensor, Part::parameters);
    model->begin_step();
    model->forward_backward(batch.inputs.data(), batch.targets.data());
    StepResult result = model->reduce_and_clip(0.25f);
    model->update(ADAMW);
    ASSERT_GT(result.grad_norm, 0.25f);
    double squares = 0;
    for (const Tensor& tensor : model->parameters().tensors()) {
      std::vector<float> gradient = read(*model, tensor, Part::gradients),
                         after = read(*model, tensor, Part::parameters);
      for (float g : gradient) squares += double(g) * g;
      bool matrix = tensor.shape.size() == 2;
      EXPECT_EQ(tensor.decays, matrix) << tensor.name;
      RefAdamW<Exact> exact{std::vector<double>(tensor.size), widen<Exact>(before[tensor.name]),
                            std::vector<double>(tensor.size), std::vector<double>(tensor.size)};
      RefAdamW<Naive<float>> naive{std::vector<float>(tensor.size), before[tensor.name],
                                   std::vector<float>(tensor.size), std::vector<float>(tensor.size)};
      double scale = 0.25 / result.grad_norm, decay = matrix ? 0.1f : 0;
      exact.step(widen<Exact>(gradient), scale, ADAMW.lr, ADAMW.beta1, ADAMW.beta2, ADAMW.eps, decay, 1);
      naive.step(gradient, scale, ADAMW.lr, ADAMW.beta1, ADAMW.beta2, ADAMW.eps, decay, 1);
      expect_close(precision + " " + tensor.name, after, exact.master, naive.master, unit_roundoff<float>);
    }
    EXPECT_NEAR(result.grad_norm, std::sqrt(squares), 1e-5 * result.grad_norm);
  }
}

TEST(Model, InitialWeightsFollowTheTable) {
  Config config = small_config("fp32", {"model.channels=128", "model.heads=4", "model.head_dim=32", "model.vocab=300",
                                        "model.layers=2", "model.init_std=0.05"});
  auto model = make_model(config, 11, 11, true);
  model->parameters().init_random(model->config().seed);
  for (const Tensor& tensor : model->parameters().tensors()) {
    std::vector<float> values = read(*model, tensor, Part::parameters);
    double sum = 0, squares = 0, n = double(values.size());
    for (float x : values) sum += x, squares += double(x) * x;
    bool weight = tensor.name.ends_with(".weight"), norm = tensor.name.find("ln_") != std::string::npos;
    double std = !weight || norm ? 0 : tensor.name.ends_with("c_proj.weight") ? 0.05 / std::sqrt(4.0) : 0.05;
    if (std == 0) {
      for (float x : values) ASSERT_EQ(x, weight ? 1.0f : 0.0f) << tensor.name;
    } else {  // five standard deviations of the estimates
      EXPECT_NEAR(sum / n, 0, 5 * std / std::sqrt(n)) << tensor.name;
      EXPECT_NEAR(std::sqrt(squares / n), std, 5 * std / std::sqrt(2 * n)) << tensor.name;
    }
  }
  Config zero = small_config("fp32", {"model.residual_init=zero"});
  auto residual = make_model(zero, 11, 11, true);
  residual->parameters().init_random(zero.seed);
  for (const Tensor& tensor : residual->parameters().tensors())
    for (float x : read(*residual, tensor, Part::parameters))
      ASSERT_TRUE(x == 0 || !tensor.name.ends_with("c_proj.weight")) << tensor.name;
  std::vector<float> a = read(*model, model->parameters().tensors()[0], Part::parameters);
  Config other = config;
  other.seed++;
  auto second = make_model(other, 11, 11, true);
  second->parameters().init_random(second->config().seed);
  EXPECT_NE(a, read(*second, second->parameters().tensors()[0], Part::parameters));
}

TEST(Model, OperationsOfATokenAreThoseOfItsProducts) {
  auto expect = [](const std::vector<std::string>& sets, double keys, double unused) {  // weights of no product
    Config config = small_config("fp32", sets);
    EXPECT_DOUBLE_EQ(flops_per_token(config), 6 * (double(parameter_count(config)) - unused + 2 * keys * 3 * 6));
  };
  expect({}, 11, 0);
  expect({"attention.window=3"}, 5, 0);  // 11 (1 + 2 + 9 x 3) / (1 + ... + 11)
  expect({"model.head.outputs=7", "data.labels=x"}, 11, 61 * 24);
  expect({"model.tied=false", "model.mlp=swiglu"}, 11, 61 * 24);
  Config config = small_config("fp32", {"attention.documents=separate", "attention.window=3"});
  auto full = flops_per_token(config);
  // Documents of two windows: 3, 24 and 30 keys where there are 2 x 30 and 132 joined.
  EXPECT_NEAR(full - flops_per_token(config, {2, 9, 11}), 6 * 2 * 18 * 11 * (60 - 57) / 132.0, 1e-6 * full);
}

// ---- snapshots

// A model made from a snapshot continues exactly as the original model does, in all tensors, also those with strides.
TEST(Snapshot, ContinuesBitForBit) {
  for (std::string precision : {"fp32", "bf16"})
    for (auto& sets : std::vector<std::vector<std::string>>{
             MIXED_LAYERS,
             {"attention.variant=lssar_softplus_gated"},
             {"attention.variant=softmax_sink"},
             {"attention.variant=ssmax"},
             {"attention.variant=fox", "model.mlp=swiglu", "model.bias=false", "model.tied=false"}}) {
      SCOPED_TRACE(precision + " " + sets.back());
      sets.push_back("model.position=learned");
      Config config = small_config(precision, sets);
      if (!has_kernels(config)) continue;
      TestBatch batch(config);
      auto model = small_model(config),
           continued = make_model(config, config.model.context, config.model.context, true);
      model->parameters().allocate_snapshot();
      model->parameters().take_snapshot();  // of the initial state; the next one replaces it
      train_steps(*model, batch, 1, 3, ADAMW, 0);
      model->parameters().take_snapshot();
      train_steps(*model, batch, 4, 6, ADAMW, 0);
      for (const Tensor& tensor : model->parameters().tensors())
        for (Part part : {Part::parameters, Part::moment1, Part::moment2}) {
          std::vector<float> values;
          for (size_t row = 0; row < tensor.rows(); row++) {
            const float* from = model->parameters().snapshot(part) + tensor.offset + row * tensor.stride;
            values.insert(values.end(), from, from + tensor.columns());
          }
          continued->parameters().write(tensor, values.data(), part);
        }
      train_steps(*continued, batch, 4, 6, ADAMW, 0);
      for (Part part : {Part::parameters, Part::moment1, Part::moment2})
        expect_same_bits(precision, read_all(*continued, part), read_all(*model, part));
    }
}

TEST(Snapshot, TakesTheMemoryThatThePlanSays) {
  Config config = small_config("bf16", {"model.channels=64", "model.heads=4"});
  double tensors = 3.0 * sizeof(float) * double(parameter_count(config));
  EXPECT_GE(double(snapshot_bytes(config)), tensors);
  EXPECT_LE(double(snapshot_bytes(config)), 1.2 * tensors);
}

// ---- memory

TEST(Memory, IsLinearInRowsAndLength) {
  Config config = small_config("fp32");
  auto total = [&](int micro, int length) { return double(plan_memory(config, micro, length, length, true).total()); };
  double one = total(64, 11), two = total(128, 11), four = total(256, 11);
  EXPECT_NEAR(four - two, 2 * (two - one), 0.01 * four);
  auto evaluation = [&](int length) { return double(plan_memory(config, 1, length, length, false).total()); };
  EXPECT_NEAR(evaluation(65536) / evaluation(16384), 4, 0.1);
  Config block = small_config("fp32", {"train.recompute=block"}), gelu = small_config("fp32", {"train.recompute=gelu"});
  EXPECT_LT(plan_memory(gelu, 64, 11, 11, true).total(), plan_memory(config, 64, 11, 11, true).total());
  EXPECT_LT(plan_memory(block, 64, 11, 11, true).total(), plan_memory(gelu, 64, 11, 11, true).total());
}

TEST(Memory, GoesWithTheModel) {
  if (on_cpu) GTEST_SKIP() << "the CPU's free memory is the whole machine's";
  Config config = small_config("fp32");
  auto free_memory_after = [&](int count) {
    std::vector<std::unique_ptr<Model>> models(count);
    for (auto& model : models) model = small_model(config), gradients(*model, TestBatch(config));
    models.clear();
    size_t free, total;
    CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return double(free);
  };
  double once = free_memory_after(1);           // less what the library keeps for the whole process
  EXPECT_LT(once - free_memory_after(3), 1e6);  // a stream's workspace is 32 MiB
}

// ---- the measurements of benchmarks

TEST(Profile, PhasesAndKernelsOfAStep) {
  Config config = small_config("fp32", {"batch.micro=2"});  // two micro steps
  auto model = small_model(config);
  TestBatch batch(config);
  auto step = [&] {
    gradients(*model, batch);
    model->update(ADAMW);
  };
  phases_start();
  step();
  std::vector<std::string> names;
  for (auto& [phase, ms] : phases_collect()) {
    names.push_back(phase);
    EXPECT_GT(ms, 0) << phase;
  }
  EXPECT_EQ(names, (std::vector<std::string>{"update", "forward", "output layer", "backward"}));

  phases_start();  // the last phase has an end too: update() alone has a time
  phase("alone", nullptr);
  model->update(ADAMW);
  auto alone = phases_collect();
  ASSERT_EQ(alone.size(), 1u);
  EXPECT_GT(alone[0].second, 0);

  profile_start();
  step();
  std::map<std::string, int> calls;
  for (const ProfileLine& line : profile_collect()) calls[line.name] = line.calls;
  EXPECT_EQ(calls["memset"], 4);  // gradients, their loss, and the residual stream's gradient twice
  EXPECT_EQ(calls["upload"], 2);
  EXPECT_EQ(calls["embedding_forward_kernel"], 2);  // "(embedding_forward_kernel<T>)" where it is launched
  // "(packed ? bias_chunk_kernel<T, SIZE> : ...)"; on a GPU products may take its place
  if (on_cpu) EXPECT_EQ(calls["bias_chunk_kernel"], 8);
  else EXPECT_LE(calls["bias_chunk_kernel"], 8);

  step();
  EXPECT_TRUE(profile_collect().empty() && phases_collect().empty()) << "both are off unless they are asked for";
}

}  // namespace
