#include "training/divergence.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "checkpoint/resume.h"

void report_divergence(Model& model, const std::string& run, int64_t step, bool before_any_update, StepResult result) {
  auto largest = [&](const Tensor& tensor, Part part) {  // |x|; infinite if any x is not finite
    std::vector<float> values(tensor.size);
    model.parameters().read(tensor, part, values.data());
    float most = 0;
    for (float x : values) most = std::isfinite(x) ? std::max(most, std::fabs(x)) : INFINITY;
    return most;
  };
  // The first bad parameter, else the first bad gradient in the order of the backward pass. Gathering parameters may
  // overwrite the gradients, so the gradients are examined first.
  std::string where;
  const Tensor* steepest = nullptr;
  float slope = -1;
  model.parameters().gather(Part::gradients);
  for (auto tensor = model.parameters().tensors().rbegin(); tensor != model.parameters().tensors().rend(); ++tensor)
    if (float most = largest(*tensor, Part::gradients); most > slope) slope = most, steepest = &*tensor;
  model.parameters().gather(Part::parameters);
  for (const Tensor& tensor : model.parameters().tensors())
    if (where.empty() && std::isinf(largest(tensor, Part::parameters)))
      where = "the first parameter that is not finite is " + tensor.name;
  if (where.empty() && std::isinf(slope)) where = "the first gradient that is not finite is that of " + steepest->name;
  else if (where.empty()) where = format("the largest gradient, %g, is that of %s", slope, steepest->name.c_str());
  if (before_any_update)
    failure(
        "step %ld: loss %g, gradient norm %g, before any update; %s. The learning rate is not the cause: check the "
        "settings of model and attention, and precision%s%s",
        step, result.loss, result.grad_norm, where.c_str(),
        model.config().kind_file.empty() ? "" : ", and the formula of the kind's file, by make check-kind",
        model.config().init.empty() ? "" : (", the weights of init = " + model.config().init).c_str());
  // The weights after step - 1 gave this loss; those of earlier steps gave finite ones.
  std::string from = checkpoint_before(run, step - 1);
  failure(
      "step %ld: loss %g, gradient norm %g: training has diverged, and the update was not made; %s. Begin another "
      "run with a lower learning rate or a longer warmup: --set name=... --set optimizer.lr=... %s--set "
      "optimizer.warmup_steps=...%s",
      step, result.loss, result.grad_norm, where.c_str(),
      model.config().optimizer.matrices == Matrices::muon ? "--set optimizer.muon.lr=... " : "",
      from.empty() ? "" : (", from weights with a finite loss: --set init=" + from).c_str());
}
