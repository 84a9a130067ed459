// Losses and gradients of small models against the float64 reference, for the tests of models.
#pragma once
#include <cmath>
#include <map>

#include "test/model/model_reference.h"
#include "test/model/small_model.h"

inline const AdamW ADAMW = {.lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .step = 1};

// A gate, a window and lssar in the second layer, none of these in the first.
inline const std::vector<std::string> MIXED_LAYERS = {
    "attention.variant=lssar_softplus_gated", "attention.power=3", "attention.window=4",
    R"(attention.layers=[{"kind": "softmax", "window": 0, "gated": false}, {}])"};

inline const std::vector<std::string> LLAMA = {"model.norm=rmsnorm", "model.mlp=swiglu", "model.mlp_ratio=3",
                                               "model.bias=false", "model.tied=false"};

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
