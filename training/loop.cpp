#include "training/loop.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <utility>

#include "base/background.h"
#include "base/progress.h"
#include "base/text.h"
#include "checkpoint/resume.h"
#include "checkpoint/state.h"
#include "eval/generate.h"
#include "kernels/matmul.cuh"
#include "ranks/requests.h"
#include "settings/schedule.h"
#include "training/console.h"
#include "training/groups.h"
#include "training/spikes.h"

static AdamW adamw_settings(const Config& config, int64_t step) {
  const Config::Optimizer& o = config.optimizer;
  return {.lr = float(learning_rate(config, step)),
          .beta1 = float(o.beta1),
          .beta2 = float(o.beta2),
          .eps = float(o.eps),
          .weight_decay = float(o.weight_decay),
          .step = int(step + 1)};
}

static double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Reports a non-finite loss or gradient: the step, the first bad tensor, and a checkpoint to restart from.
[[noreturn]] static void report_divergence(Model& model, const std::string& run, int64_t step, StepResult result) {
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
  if (step == 1)
    failure(
        "step 1: loss %g, gradient norm %g, before any update; %s. The learning rate is not the cause: check the "
        "settings of "
        "model and attention, and precision%s",
        result.loss, result.grad_norm, where.c_str(),
        model.config().init.empty() ? "" : (", the weights of init = " + model.config().init).c_str());
  // The weights after step - 1 gave this loss; those of earlier steps gave finite ones.
  std::string from = checkpoint_before(run, step - 1);
  failure(
      "step %ld: loss %g, gradient norm %g: training has diverged, and the update was not made; %s. Begin another "
      "run with a lower learning rate or a longer warmup: --set name=... --set optimizer.lr=... --set "
      "optimizer.warmup_steps=...%s",
      step, result.loss, result.grad_norm, where.c_str(),
      from.empty() ? "" : (", from weights with a finite loss: --set init=" + from).c_str());
}

// "h.*.ln_1.weight" from "h.3.ln_1.weight"
static std::string in_all_layers(const std::string& name) {
  return name.starts_with("h.") ? "h.*" + name.substr(name.find('.', 2)) : name;
}

void warn_of_zero_gradients(Model& model) {
  model.parameters().gather(Part::gradients);
  if (!model.comm().first()) return;
  auto is_zero = [&](Tensor tensor, size_t size) {
    tensor.size = size;  // its first rows
    std::vector<float> values(size);
    model.parameters().read(tensor, Part::gradients, values.data());
    return std::all_of(values.begin(), values.end(), [](float x) { return x == 0; });
  };
  // A gate that multiplies by 0 and has a gradient opens with the first update. What lies behind it learns from then.
  bool multiplies = model.config().attention.gate.op == GateOp::multiply;
  std::set<std::string> opening;  // "h.3."
  std::vector<std::string> zero;
  for (const Tensor& tensor : model.parameters().tensors()) {
    bool none = is_zero(tensor, tensor.columns()) && is_zero(tensor, tensor.size);
    if (none) zero.push_back(tensor.name);
    else if (multiplies && tensor.name.find(".attn.c_gate.") != std::string::npos)
      opening.insert(tensor.name.substr(0, tensor.name.find('.', 2) + 1));
  }
  std::map<std::string, int> counts;
  std::vector<std::string> names;  // in the model's order
  for (const std::string& name : zero)
    if (!opening.count(name.substr(0, name.find('.', 2) + 1)) && counts[in_all_layers(name)]++ == 0)
      names.push_back(in_all_layers(name));
  std::string list;
  for (const std::string& name : names)
    append_item(list, name + (counts[name] > 1 ? format(" (%d tensors)", counts[name]) : ""));
  if (!list.empty())
    warn(
        "%s: gradient exactly 0 in step 1: the loss does not depend on them yet, and they may never train; check the "
        "settings of attention (a gate that is always 0, weights that are all 0)",
        list.c_str());
}

std::optional<StepResult> next_gradients(Model& model, Loader& loader) {
  bool labelled = true;  // the same for all batches of a step, at all ranks
  model.begin_step();
  int64_t count = micro_steps(model.config(), model.comm().size());
  ProgressBar progress("micro batches of a step", count, stderr, 5);
  for (int64_t m = 0; m < count; m++) {
    if (model.comm().first()) progress.update(m);
    const Batch& batch = loader.next();
    if (!(labelled = batch.labelled)) continue;
    model.forward_backward(batch.inputs.data(),
                           {batch.targets.data(), batch.weights.empty() ? nullptr : batch.weights.data(),
                            batch.values.empty() ? nullptr : batch.values.data()});
  }
  if (!labelled) return std::nullopt;
  StepResult result = model.reduce_and_clip(float(model.config().optimizer.grad_clip));
  for (auto* x : {&result.loss, &result.grad_norm})
    if (std::isnan(*x)) *x = NAN;  // without a sign, which would be printed
  return result;
}

void train(Model& model, const DeviceInfo& device, Loader& loader, const std::vector<Question>& questions, RunDir* run,
           RunState state, MetricsLog& metrics) {
  const Config& config = model.config();
  Comm& comm = model.comm();
  const std::string path = "runs/" + config.name;
  int64_t first = state.step, steps = config.train.steps;
  int64_t saved = comm.broadcast(newest_step(path));  // 0: none yet, as when another run is continued
  std::vector<std::vector<int>> missing;
  for (const Question& question : questions)
    missing.push_back(comm.broadcast(missing_items(question, config, path, first)));
  double peak = config.precision == "bf16" ? device.peak_bf16_flops * comm.size() : 0, flops = flops_per_token(config);
  Eta eta;
  SpikeGuard spikes(config.optimizer.skip_spikes, state.spikes);
  bool warned = false;  // of steps without labels
  Background background;
  double saved_at = seconds_now();
  auto save_unless_saved = [&] {
    saved_at = seconds_now();
    if (state.step == std::exchange(saved, state.step)) return;
    state.tokens = state.step * config.batch.tokens;
    state.next_window = state.tokens / config.model.context;
    state.spikes = spikes.history();
    if (const MatmulChoices* choices = matmul_choices()) state.matmul_choices = choices->text();
    save(model, run, state, background);
  };
  metrics.failed = [&](int64_t step, const std::string& error) {
    background.wait();  // a checkpoint that failed too is reported first
    failure("step %ld: %s. Training stops; %s", step, error.c_str(), how_to_continue(path, step + 1).c_str());
  };
  // Saves if a signal or the clock asks for it and returns whether to stop, also within an evaluation. A signal to one
  // rank counts for all ranks, and so does the clock of the first that finds it time.
  auto stopping = [&] {
    const Config::Checkpoint& c = config.checkpoint;
    Requests requests =
        requests_of_ranks(comm, c.every > 0 && c.minutes > 0 && seconds_now() - saved_at >= 60 * c.minutes);
    if (requests.stop || requests.save) save_unless_saved();
    return requests.stop;
  };
  if (first > 0) {  // saved under this run's name before the first step, so that --resume finds it if a step fails
    save_unless_saved();
    background.wait();
  }
  for (;; state.step++) {
    int64_t step = state.step;
    bool last = step == steps;
    background.check();
    if (due(config.checkpoint.every, step) || (last && config.checkpoint.at_end)) save_unless_saved();
    Weights weights{path, step, step * config.batch.tokens};
    bool stop = false;
    for (size_t i = 0; i < questions.size() && !stop; i++) {
      std::vector<int> items = step == first ? missing[i] : due_items(questions[i], config, step);
      if (items.empty()) continue;
      questions[i].ask(model, items, weights, metrics, stopping);
      stop = stopping();
    }
    stop = stop || stopping();
    if (!stop && step > first && due(config.generate.every, step, steps)) {
      generate_text(model);
      stop = stopping();
    }
    if (stop) std::printf("asked to stop after %ld of %ld steps\n", step, steps);
    if (stop || last) break;

    double start = seconds_now();
    std::optional<StepResult> computed;
    try {
      computed = comm.broadcast(next_gradients(model, loader));  // the same on all ranks, so that they decide alike
    } catch (const UserError& error) {                           // a bad token, or a shard that changed
      background.wait();
      user_error("%s. Training stops in step %ld; %s", error.what(), step + 1, how_to_continue(path, step + 1).c_str());
    }
    StepResult result = computed.value_or(StepResult{NAN, NAN});
    bool finite = std::isfinite(result.loss) && std::isfinite(result.grad_norm);
    std::string skipped = finite ? spikes.judge(result.loss, result.grad_norm) : "";
    if (!computed) spikes.skip(), skipped = "no window has a label";
    if (finite && step == 0) warn_of_zero_gradients(model);
    bool updated = finite && skipped.empty(), spike = computed && !skipped.empty();
    if (updated) model.update(adamw_settings(config, step));
    double elapsed = seconds_now() - start, tokens_per_s = double(config.batch.tokens) / elapsed;
    TrainReport report{.step = step + 1,
                       .steps = steps,
                       .loss = result.loss,
                       .grad_norm = result.grad_norm,
                       .lr = learning_rate(config, step),
                       .tokens = (step + 1) * config.batch.tokens,
                       .tokens_per_s = tokens_per_s,
                       .mfu = peak > 0 ? flops * tokens_per_s / peak : NAN,
                       .ms = elapsed * 1e3};
    metrics.train(report);
    if (updated && due(config.log.groups_every, step + 1))
      write_group_norms(model, adamw_settings(config, step), metrics);
    eta.add(report.ms);
    if (computed && !finite) {
      background.wait();
      report_divergence(model, path, step + 1, result);
    }
    if (!skipped.empty()) metrics.skip(step + 1, skipped, spikes.history().skipped);
    if (report.step % config.log.every == 0 || report.step == steps || spike) {
      std::printf("%s\n", console_line(report, eta.seconds(steps - report.step)).c_str());
      if (spike)
        std::printf("step %ld: update skipped, number %ld of this run: %s\n", report.step, spikes.history().skipped,
                    skipped.c_str());
      std::fflush(stdout);
    }
    if (!computed && comm.first() && !std::exchange(warned, true))
      warn(
          "data.labels: step %ld has no label, so there is nothing to learn from it; such steps are "
          "skipped from now on without a warning; a larger batch.tokens makes them rare",
          report.step);
  }
  background.wait();
}
