// A small model for tests, a batch for it, and access to its values.
#pragma once
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "settings/table.h"
#include "test/support/device.h"
#include "train_gpt2.h"

// A small model with odd sizes: no multiples beyond those that the configuration demands.
inline Config small_config(const std::string& precision, const std::vector<std::string>& sets = {}) {
  std::vector<std::string> all = {"model.layers=2",   "model.heads=3",  "model.head_dim=6",  "model.channels=24",
                                  "model.context=11", "model.vocab=61", "model.mlp_ratio=3", "batch.tokens=44",
                                  "batch.micro=4",    "data.train=x",   "data.val=x",        "precision=" + precision};
  all.insert(all.end(), sets.begin(), sets.end());
  return parse_config("{}", "test", all);
}

inline bool is_built(const Config& config) {
  return !config.some_layer([](const auto& layer) { return !attention_is_built(layer.attention.kind); });
}
// On a GPU windows and biases have kernels in bf16 alone (attention/dispatch.cu).
inline bool has_kernels(const Config& config) {
  bool masked = config.some_layer([](const auto& layer) {
    return layer.attention.window > 0 || layer.attention.bias != Bias::none ||
           layer.attention.documents == Documents::separate;
  });
  return is_built(config) && (on_cpu || config.precision == Precision::bf16 || !masked);
}

// Random tokens: one batch, [batch.tokens] inputs and targets.
// With data.labels a third of the rows has a target, and weights from 0.5 to 3; with a regression head a target is K
// values, of which some are missing. With data.separator about every fourth token is that one.
struct TestBatch {
  std::vector<int> inputs, targets;
  std::vector<float> weights, values;
  TestBatch(const Config& config, unsigned seed = 3) {
    std::vector<int> tokens = random_ints(config.batch.tokens + 1, seed, config.model.vocab),
                     coins = random_ints(tokens.size(), seed + 50, 4);
    for (size_t i = 0; i < tokens.size() && config.data.separator >= 0; i++)
      if (coins[i] == 0) tokens[i] = config.data.separator;
    inputs.assign(tokens.begin(), tokens.end() - 1);
    targets.assign(tokens.begin() + 1, tokens.end());
    for (size_t row = 0; row < inputs.size() && !config.data.labels.empty(); row++) {
      bool labelled = random_ints(1, seed + 100 + unsigned(row), 3)[0] == 0;
      targets[row] = labelled ? targets[row] : -1;
      weights.push_back(labelled ? 0.5f * float(1 + row % 6) : 0.0f);
      for (int k = 0, K = config.model.head.outputs; k < K; k++)
        values.push_back(labelled && (K == 1 || k != int(row) % K) ? float(k) - 0.1f * float(row % 17) : NAN);
    }
  }
};

// Gives all parameters values away from 0 and 1, so that every gradient is tested.
inline void randomise(Model& model, unsigned seed) {
  for (const Tensor& tensor : model.parameters().tensors()) {
    bool gain = tensor.init.constant == 1;
    model.parameters().write(tensor,
                             random_normal<float>(tensor.size, seed++, gain ? 0.1f : 0.2f, gain ? 1.0f : 0.0f).data());
  }
}

// A model for training, with such parameters; and one for evaluation, of `rows` at once, up to this length.
inline std::unique_ptr<Model> small_model(const Config& config) {
  auto model = make_model(config, config.model.context, config.model.context, true);
  randomise(*model, 100);
  return model;
}
inline std::unique_ptr<Model> evaluated_model(const Config& config, size_t rows, int length, unsigned seed = 7) {
  auto model = make_model(config, rows, length, false, Comm::alone(), {config.data.separator});
  randomise(*model, seed);
  return model;
}

// [tensor.size] values of a tensor, without padding.
inline std::vector<float> read(Model& model, const Tensor& tensor, Part part) {
  std::vector<float> values(tensor.size);
  model.parameters().read(tensor, part, values.data());
  return values;
}

// The values of all tensors, one after the other.
inline std::vector<float> read_all(Model& model, Part part) {
  std::vector<float> all;
  for (const Tensor& tensor : model.parameters().tensors()) {
    std::vector<float> values = read(model, tensor, part);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

// Forward and backward pass of the whole batch, in micro batches; no update.
inline StepResult gradients(Model& model, const TestBatch& batch, float grad_clip = 0) {
  const Config& config = model.config();
  size_t rows = size_t(config.batch.micro) * config.model.context;
  model.begin_step();
  for (size_t at = 0; at < batch.inputs.size(); at += rows)
    model.forward_backward(&batch.inputs[at], {&batch.targets[at], batch.weights.empty() ? nullptr : &batch.weights[at],
                                               batch.values.data() + at * config.model.head.outputs});
  return model.reduce_and_clip(grad_clip);
}

// These steps of AdamW, each with the whole batch. Returns the last one's loss.
inline float train_steps(Model& model, const TestBatch& batch, int first, int last, AdamW settings, float grad_clip) {
  float loss = NAN;
  for (settings.step = first; settings.step <= last; settings.step++) {
    loss = gradients(model, batch, grad_clip).loss;
    model.update(settings);
  }
  return loss;
}
