#include "training/loop.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/background.h"
#include "base/progress.h"
#include "base/text.h"
#include "checkpoint/load_save.h"
#include "eval/generate.h"
#include "kernels/matmul.cuh"
#include "ranks/requests.h"
#include "settings/schedule.h"
#include "training/dead_gradients.h"
#include "training/divergence.h"
#include "training/flops.h"
#include "training/groups.h"
#include "training/spikes.h"

// step: from 0, for the learning rate. update: from 1, of those that the moments have had.
static AdamW adamw_settings(const Config& config, int64_t step, int64_t update) {
  const Config::Optimizer& o = config.optimizer;
  return {.lr = float(learning_rate(config, step)),
          .beta1 = float(o.beta1),
          .beta2 = float(o.beta2),
          .eps = float(o.eps),
          .weight_decay = float(o.weight_decay),
          .step = int(update)};
}

static Muon muon_settings(const Config& config, int64_t step) {
  const Config::Optimizer::Muon& m = config.optimizer.muon;
  return {.lr = float(muon_rate(config, step)),
          .momentum = float(m.momentum),
          .weight_decay = float(m.weight_decay),
          .rms = m.scale == MuonScale::rms};
}

static double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::optional<StepResult> next_gradients(Model& model, Loader& loader) {
  bool labelled = true;  // the same for all batches of a step, at all ranks
  model.begin_step();
  int64_t count = micro_steps(model.config(), model.comm().size());
  ProgressBar progress("micro batches of a step", count, model.comm().first() ? stderr : nullptr, 5);
  for (int64_t m = 0; m < count; m++) {
    progress.update(m);
    const Batch& batch = loader.next();
    if (!(labelled = batch.labelled)) continue;
    model.forward_backward(batch.inputs.data(),
                           {batch.targets.data(), batch.row_weights.empty() ? nullptr : batch.row_weights.data(),
                            batch.values.empty() ? nullptr : batch.values.data()});
  }
  if (!labelled) return std::nullopt;
  StepResult result = model.reduce_and_clip(float(model.config().optimizer.grad_clip));
  for (auto* x : {&result.loss, &result.grad_norm})
    if (std::isnan(*x)) *x = NAN;  // without a sign, which would be printed
  return result;
}

// The effect of a step on the weights.
enum class Outcome { updated, skipped, diverged };

struct Step {
  Outcome outcome = Outcome::updated;
  bool labelled = true;
  std::string skipped;  // why
  StepResult result{NAN, NAN};
  double ms = 0;
  AdamW update = {};
  Muon matrices = {};
  std::vector<double> gradient_squares = {};  // by group, with Muon if their norms are due
};

// A run while it trains. Its members are the state that several parts of the loop change; those without a value are
// train()'s.
struct Training {
  void run();
  bool evaluate();
  void save_unless_saved();
  bool stopping();
  Step make_step();
  void report(const Step& step);

  Model& model_;
  const DeviceInfo& device_;
  Loader& loader_;
  const std::vector<Evaluation>& evaluations_;
  RunDir* run_;
  RunState state_;  // state_.step: the steps that are done
  MetricsLog& metrics_;
  const Config& config_ = model_.config();
  Comm& comm_ = model_.comm();
  const std::string path_ = "runs/" + config_.name;
  SpikeGuard spikes_{config_.optimizer.skip_spikes, state_.spikes};
  int64_t first_ = state_.step;                          // the step it begins from
  int64_t saved_ = comm_.broadcast(newest_step(path_));  // the step of the newest checkpoint, 0: none yet
  double products_flops_ = flops_per_token(config_, model_.facts().documents) -
                           attention_flops_per_token(config_, model_.facts().documents);  // per token
  double peak_flops_ = config_.precision == Precision::bf16 ? device_.peak_bf16_flops * comm_.size() : 0;
  double saved_at_ = seconds_now();
  bool warned_ = false;  // of steps without labels
  Eta eta_ = {};
  Background background_ = {};
};

void Training::save_unless_saved() {
  saved_at_ = seconds_now();
  if (state_.step == std::exchange(saved_, state_.step)) return;
  state_.tokens = state_.step * config_.batch.tokens;
  state_.next_window = state_.tokens / config_.model.context;
  state_.spikes = spikes_.history();
  if (const MatmulChoices* choices = matmul_choices()) state_.matmul_choices = choices->text();
  state_.products = device_.products;
  save(model_, run_, state_, background_);
}

// Saves if a signal or the clock asks for it and returns whether to stop, also within an evaluation. A signal to one
// rank counts for all ranks, and so does the clock of the first that finds it time.
bool Training::stopping() {
  const Config::Checkpoint& c = config_.checkpoint;
  Requests requests =
      requests_of_ranks(comm_, c.every > 0 && c.minutes > 0 && seconds_now() - saved_at_ >= 60 * c.minutes);
  if (requests.stop || requests.save) save_unless_saved();
  return requests.stop;
}

// Runs all that is due after state_.step steps. Returns false if it was asked to stop.
bool Training::evaluate() {
  int64_t step = state_.step;
  EvalContext context{
      model_, {config_.name, path_, step, step * config_.batch.tokens}, metrics_, [this] { return stopping(); }};
  for (const Evaluation& evaluation : evaluations_) {
    std::vector<int> items = due_items(evaluation, config_, step);
    if (step == first_) items = comm_.broadcast(missing_items(evaluation, config_, path_, step));
    if (items.empty()) continue;
    evaluation.run(context, items);
    if (stopping()) return false;
  }
  if (stopping()) return false;
  if (step == first_ || !due(config_.generate.every, step, config_.train.steps)) return true;
  generate_text(model_);
  return !stopping();
}

Step Training::make_step() {
  Step step;
  double start = seconds_now();
  int64_t number = state_.step + 1;
  std::optional<StepResult> computed;
  try {
    computed = comm_.broadcast(next_gradients(model_, loader_));  // the same on all ranks, so that they decide alike
  } catch (const UserError& error) {                              // a bad token, or a shard that changed
    background_.wait();
    user_error("%s. Training stops in step %ld; %s", error.what(), number, how_to_continue(path_, number).c_str());
  }
  step.labelled = computed.has_value();
  if (computed) step.result = *computed;
  bool finite = std::isfinite(step.result.loss) && std::isfinite(step.result.grad_norm);
  if (finite) step.skipped = spikes_.judge(step.result.loss, step.result.grad_norm);
  if (!computed) spikes_.skip(), step.skipped = "no window has a label";
  if (finite && state_.updates == 0) warn_of_zero_gradients(model_, number);
  step.outcome = !step.skipped.empty() ? Outcome::skipped : finite ? Outcome::updated : Outcome::diverged;
  if (step.outcome == Outcome::updated) {
    step.update = adamw_settings(config_, state_.step, state_.updates.value_or(state_.step) + 1);
    step.matrices = muon_settings(config_, state_.step);
    if (config_.optimizer.matrices == Matrices::muon && due(config_.log.groups_every, number))
      step.gradient_squares = gradient_squares(model_);
    model_.update(step.update, step.matrices);
    if (state_.updates) ++*state_.updates;
  }
  step.ms = (seconds_now() - start) * 1e3;
  return step;
}

std::string console_line(const nlohmann::ordered_json& fields, int64_t steps, double eta_seconds) {
  auto number = [&](const char* key) { return fields[key].get<double>(); };
  double ms = number("ms"), mfu = number("mfu");
  std::string line =
      format("step %4ld/%ld | loss %s | norm %s | lr %.2e | ", fields["step"].get<int64_t>(), steps,
             cell_text("%.4f", number("loss")).c_str(), cell_text("%.2f", number("grad_norm")).c_str(), number("lr"));
  if (fields.contains("lr_muon")) line += format("muon %.2e | ", number("lr_muon"));
  line += format(ms < 9.95 ? "%.1f ms | " : "%.0f ms | ", ms) + count_text(number("tokens_per_s")) + " tok/s";
  if (fields.contains("tiles")) line += format(" | tiles %.0f%%", 100 * number("tiles"));
  if (std::isfinite(mfu)) line += format(" | mfu %.1f%%", 100 * mfu);
  return line + " | eta " + duration_text(eta_seconds);
}

// After state_.step has counted the step.
void Training::report(const Step& step) {
  int64_t number = state_.step, steps = config_.train.steps;
  double tokens_per_s = double(config_.batch.tokens) / (step.ms / 1e3);
  std::vector<TileCount> tiles = model_.tiles();
  static_assert(sizeof(TileCount) == 2 * sizeof(double));
  if (!tiles.empty()) comm_.all_reduce_sum(&tiles[0].needed, 2 * tiles.size());
  double flops = products_flops_ + attention_flops_per_token(config_, model_.facts().documents, tiles);
  nlohmann::ordered_json fields = {{"step", number},
                                   {"loss", step.result.loss},
                                   {"grad_norm", step.result.grad_norm},
                                   {"lr", learning_rate(config_, number - 1)},
                                   {"tokens", number * config_.batch.tokens},
                                   {"tokens_per_s", tokens_per_s},
                                   {"mfu", peak_flops_ > 0 ? flops * tokens_per_s / peak_flops_ : NAN},
                                   {"ms", step.ms}};
  if (config_.optimizer.matrices == Matrices::muon) fields["lr_muon"] = muon_rate(config_, number - 1);
  if (!tiles.empty()) fields["tiles"] = needed_share(tiles);
  metrics_.write("train", fields);
  eta_.add(step.ms);
  if (step.outcome == Outcome::updated && due(config_.log.groups_every, number))
    write_group_norms(model_, step.gradient_squares, step.update, step.matrices, number, metrics_);
  if (step.outcome == Outcome::diverged) {
    background_.wait();
    report_divergence(model_, path_, number, state_.updates == 0, step.result);
  }
  int64_t skipped = spikes_.history().skipped;
  if (step.outcome == Outcome::skipped)
    metrics_.write("skip", {{"step", number}, {"reason", step.skipped}, {"skipped", skipped}});
  bool spike = step.outcome == Outcome::skipped && step.labelled;
  if (number % config_.log.every == 0 || number == steps || spike) {
    std::printf("%s\n", console_line(fields, steps, eta_.seconds(steps - number)).c_str());
    if (spike)
      std::printf("step %ld: update skipped, number %ld of this run: %s\n", number, skipped, step.skipped.c_str());
    std::fflush(stdout);
  }
  if (!step.labelled && comm_.first() && !std::exchange(warned_, true))
    warn(
        "data.labels: step %ld has no label, so there is nothing to learn from it; such steps are "
        "skipped from now on without a warning; a larger batch.tokens makes them rare",
        number);
}

void Training::run() {
  try {
    if (first_ > 0) {  // saved under this run's name before the first step, so that --resume finds it if a step fails
      save_unless_saved();
      background_.wait();
    }
    for (;;) {
      bool last = state_.step == config_.train.steps;
      background_.check();
      if (due(config_.checkpoint.every, state_.step) || (last && config_.checkpoint.at_end)) save_unless_saved();
      bool stop = !evaluate();
      if (stop) std::printf("asked to stop after %ld of %ld steps\n", state_.step, config_.train.steps);
      if (stop || last) break;
      Step step = make_step();
      state_.step++;
      report(step);
    }
    background_.wait();
  } catch (const LostLine& error) {
    background_.wait();  // a checkpoint that failed too is reported first
    failure("step %ld: %s. Training stops; %s", error.step, error.what(),
            how_to_continue(path_, error.step + 1).c_str());
  }
}

void train(Model& model, const DeviceInfo& device, Loader& loader, const std::vector<Evaluation>& evaluations,
           RunDir* run, RunState state, MetricsLog& metrics) {
  Training{model, device, loader, evaluations, run, std::move(state), metrics}.run();
}
