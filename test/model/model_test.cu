// The whole model: its gradients against finite differences and against the float64 reference, in both precisions; that
// it can learn; that gradients do not depend on micro batches or recomputation (more of that, without a GPU:
// test/program/test_invariance.py); snapshots and memory.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "test/model/model_reference.h"
#include "test/model/small_model.h"
#include "training/flops.h"

namespace {

const AdamW ADAMW = {.lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .step = 1};

// A gate, a window and lssar in the second layer, none of these in the first.
const std::vector<std::string> MIXED_LAYERS = {
    "attention.variant=lssar_softplus_gated", "attention.power=3", "attention.window=4",
    R"(attention.layers=[{"kind": "softmax", "window": 0, "gated": false}, {}])"};

const std::vector<std::string> LLAMA = {"model.norm=rmsnorm", "model.mlp=swiglu", "model.mlp_ratio=3",
                                        "model.bias=false", "model.tied=false"};

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

// Compares losses and gradients of small models with the float64 reference. A single error, also of the naive formula,
// is a matter of chance (see Pool in compare.h), and there are batches in which all sums of a small tensor cancel, or a
// row's only key barely passes a threshold. So an error is the geometric mean over some batches, which such a batch
// does not decide, and a large mistake in one batch still shows; the largest are taken over tensors and added models.
template <class T> class GradientPool {
 public:
  explicit GradientPool(std::string precision, unsigned batches = 5)
      : precision_(std::move(precision)), batches_(batches) {}
  GradientPool(const GradientPool&) = delete;
  ~GradientPool() { EXPECT_LE(worst_kernel_, 2 * worst_naive_ + 2 * unit_roundoff<T>) << precision_ << " " << where_; }

  void add(const std::vector<std::string>& sets, const std::string& what = "") {
    Config config = small_config(precision_, sets);
    auto model = small_model(config);
    std::vector<double> losses, exact_losses, naive_losses;
    std::map<std::string, Errors> kernel_errors, naive_errors;  // by tensor
    for (unsigned seed = 3; seed < 3 + batches_; seed++) {
      TestBatch batch(config, seed);
      ReferenceModel<Exact> exact(config);
      ReferenceModel<Naive<T>> naive(config);
      naive.take_parameters(*model);
      naive.weights = exact.weights = batch.weights;
      naive.values = exact.values = batch.values;
      for (auto& [name, values] : naive.parameters)
        exact.parameters[name].assign(values.begin(), values.end());  // as the kernels read them
      auto of = [&](auto& reference) {
        return config.attention.documents == Documents::joined
                   ? reference.loss_and_gradients(batch.inputs, batch.targets, 4, 11)
                   : reference.loss_and_gradients_of_documents(batch.inputs, batch.targets, 4, 11);
      };
      exact_losses.push_back(of(exact)), naive_losses.push_back(of(naive));
      losses.push_back(gradients(*model, batch).loss);
      for (const Tensor& tensor : model->parameters().tensors()) {
        const std::vector<double>& expected = exact.gradients[tensor.name];
        naive_errors[tensor.name].add(deviation(naive.gradients[tensor.name], expected).error);
        kernel_errors[tensor.name].add(deviation(read(*model, tensor, Part::gradients), expected).error);
      }
    }
    for (const auto& [name, errors] : naive_errors) worst_naive_ = std::max(worst_naive_, errors.mean());
    for (const auto& [name, errors] : kernel_errors)
      if (!(errors.mean() <= worst_kernel_)) worst_kernel_ = errors.mean(), where_ = what + " " + name;
    expect_close(precision_ + " losses " + what, losses, exact_losses, naive_losses, unit_roundoff<T>);
  }

 private:
  struct Errors {
    double logs = 0;
    int count = 0;
    void add(double error) { logs += std::log(std::max(error, unit_roundoff<T>)), count++; }
    double mean() const { return std::exp(logs / count); }
  };
  std::string precision_, where_;
  unsigned batches_;
  double worst_naive_ = 0, worst_kernel_ = 0;
};

// One of each precision.
struct GradientPools {
  GradientPool<float> fp32;
  GradientPool<bf16> half;
  explicit GradientPools(unsigned batches = 5) : fp32("fp32", batches), half("bf16", batches) {}
  void add(const std::vector<std::string>& sets, const std::string& what) {
    fp32.add(sets, what);
    half.add(sets, what);
  }
};

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

// ---- settings

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

// Heads that share keys and values: groups of 1, 2, 3 and all heads, with each thing that has keys or values of its own.
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
