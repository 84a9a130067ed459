#include "training/evaluations.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <set>

#include "eval/benchmarks.h"
#include "eval/diagnostics.h"
#include "eval/evaluate.h"
#include "eval/passkey.h"
#include "training/flops.h"

using Items = std::vector<int>;
using Sequences = std::map<int, int64_t>;

// ---- what a plan needs

static Evaluation planned_losses(const Flags& flags, const Config& config) {
  return {.asked = flags.is(Mode::eval),
          .every = config.eval.every,
          .items = config.eval.lengths,
          .not_finite = "a loss is not finite (bad weights, or overflow on these data)",
          .lengths = config.eval.lengths,
          .batch = window_batch,
          .sequences = [&config](int length) {
            return Sequences{{length, config.eval.tokens / config.eval.window(length)}};
          }};
}

static Evaluation planned_passkey(const Config& config) {
  int64_t prompts = int64_t(config.passkey.depths + 1) * config.passkey.trials;
  return {.asked = true,
          .every = 0,
          .items = config.eval.lengths,
          .not_finite = "a logit is not finite (bad weights, or overflow on these prompts)",
          .lengths = config.eval.lengths,
          .batch = prompt_batch,
          .by_row = true,
          .sequences = [prompts](int length) {
            return Sequences{{length, prompts}};
          }};
}

static Evaluation planned_benchmarks(const Flags& flags, const Config& config,
                                     const std::vector<Benchmark>& benchmarks) {
  Items numbers(benchmarks.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  return {.asked = flags.is(Mode::tasks),
          .every = config.task.every,
          .items = numbers,
          .not_finite = "a log-likelihood is not finite (bad weights, or overflow on these examples)",
          .lengths = benchmark_lengths(config, benchmarks),
          .batch = prompt_batch,
          .sequences = [&](int number) { return benchmark_sequences(config, benchmarks[size_t(number)]); }};
}

static Evaluation planned_diagnostics(const Flags& flags, const Config& config) {
  return {.asked = flags.is(Mode::diagnostics),
          .every = config.diagnostics.every,
          .items = config.eval.lengths,
          .not_finite = "the residual stream is not finite (bad weights, or overflow on these data)",
          .lengths = config.eval.lengths,
          .batch = window_batch,
          .sequences = [&config](int length) {
            return Sequences{{length, config.diagnostics.tokens / length}};
          }};
}

std::vector<Evaluation> planned_evaluations(const Flags& flags, const Config& config,
                                            const std::vector<Benchmark>& benchmarks, bool evaluates) {
  std::vector<Evaluation> evaluations;
  if (evaluates) evaluations.push_back(planned_losses(flags, config));
  if (flags.is(Mode::passkey)) evaluations.push_back(planned_passkey(config));
  if (!benchmarks.empty()) evaluations.push_back(planned_benchmarks(flags, config, benchmarks));
  if (config.diagnoses) evaluations.push_back(planned_diagnostics(flags, config));
  return evaluations;
}

std::vector<int> lengths_of(const std::vector<Evaluation>& evaluations) {
  std::vector<int> lengths;
  for (const Evaluation& evaluation : evaluations)
    lengths.insert(lengths.end(), evaluation.lengths.begin(), evaluation.lengths.end());
  return lengths;
}

// How often a run does it: after step 0 too, but not again after the step at which it resumes.
static int64_t times_due(const Evaluation& evaluation, int64_t step, int64_t last) {
  int64_t every = evaluation.every;
  if (every == 0) return 0;
  return last / every - step / every + (step == 0) + (last > step && last % every != 0);
}

EvaluationWork evaluation_work(const Config& config, const std::vector<Evaluation>& evaluations, int64_t step,
                               int ranks, const std::vector<int>& documents) {
  bool asked = std::ranges::any_of(evaluations, &Evaluation::asked);
  EvaluationWork work;
  for (const Evaluation& evaluation : evaluations) {
    int64_t times = asked ? evaluation.asked : times_due(evaluation, step, config.train.steps);
    for (int item : evaluation.items)
      for (auto [length, sequences] : evaluation.sequences(item)) {
        int64_t at_once = int64_t(evaluation.batch(config, length)) * ranks;
        double tokens = double((sequences + at_once - 1) / at_once * at_once * times) * length;
        work.tokens += tokens;
        work.flops += tokens * forward_flops_per_token(config, length, !evaluation.by_row, documents);
      }
  }
  return work;
}

// ---- what running them needs

static Evaluation losses_by_length(const Flags& flags, const Config& config, const Data& data, int separator) {
  for (int length : config.eval.lengths) eval_windows(config, separator, data.val, length, config.eval.tokens);
  const char* type = flags.is(Mode::eval) ? "eval" : "val";
  Evaluation losses = planned_losses(flags, config);
  losses.batch = [&data, separator](const Config& c, int length) { return batch_of(c, separator, data.val, length); };
  losses.sequences = [&config, &data, separator](int length) {
    return Sequences{{length, eval_windows(config, separator, data.val, length, config.eval.tokens).count}};
  };
  losses.id_of = [&config, &data, separator](int length) {
    return loss_question(config, separator, data.val, data.val_files, length).id;
  };
  losses.run = [&data, type](const EvalContext& context, const Items& lengths) {
    return evaluate_lengths(context, data.val, data.val_files, lengths, type);
  };
  return losses;
}

static Evaluation passkey(const Flags& flags, const Config& config, std::shared_ptr<Tokenizer> tokenizer, int rank) {
  std::vector<PasskeyPrompt> prompts = passkey_prompts(*tokenizer, config, config.eval.lengths);
  if (rank == 0 && !flags.dry) write_passkey_prompts(*tokenizer, config, prompts);
  Evaluation passkey = planned_passkey(config);
  passkey.run = [tokenizer, prompts](const EvalContext& context, const Items&) {
    return evaluate_passkey(context, *tokenizer, prompts);
  };
  return passkey;
}

static Evaluation benchmarks(const Flags& flags, const Config& config, const Data& data) {
  std::string samples = flags.is(Mode::tasks) ? config.task.samples : "";
  Evaluation benchmarks = planned_benchmarks(flags, config, data.benchmarks);
  benchmarks.id_of = [&config, &data](int number) { return benchmark_id(config, data.benchmarks[size_t(number)]); };
  benchmarks.run = [&data, samples](const EvalContext& context, const Items& items) {
    return evaluate_benchmarks(context, data.benchmarks, items, samples);
  };
  return benchmarks;
}

static Evaluation diagnostics(const Flags& flags, const Config& config, const Data& data, int separator) {
  for (int length : config.eval.lengths) diagnostics_windows(config, separator, data.val, length);
  Evaluation diagnostics = planned_diagnostics(flags, config);
  diagnostics.sequences = [&config, &data, separator](int length) {
    return Sequences{{length, diagnostics_windows(config, separator, data.val, length).count}};
  };
  diagnostics.id_of = [&config, &data, separator](int length) {
    return diagnostics_id(config, separator, data.val, data.val_files, length);
  };
  diagnostics.run = [&data](const EvalContext& context, const Items& lengths) {
    return diagnose_lengths(context, data.val, data.val_files, lengths);
  };
  return diagnostics;
}

std::vector<Evaluation> open_evaluations(const Flags& flags, const Config& config, const Data& data, int separator,
                                         bool evaluates, int rank) {
  std::vector<Evaluation> evaluations;
  if (evaluates) evaluations.push_back(losses_by_length(flags, config, data, separator));
  if (flags.is(Mode::passkey)) evaluations.push_back(passkey(flags, config, data.tokenizer, rank));
  if (!data.benchmarks.empty()) evaluations.push_back(benchmarks(flags, config, data));
  if (config.diagnoses) evaluations.push_back(diagnostics(flags, config, data, separator));
  return evaluations;
}

std::vector<int> due_items(const Evaluation& evaluation, const Config& config, int64_t step) {
  return due(evaluation.every, step, config.train.steps) ? evaluation.items : Items{};
}

std::vector<int> missing_items(const Evaluation& evaluation, const Config& config, const std::string& run,
                               int64_t step) {
  Items items = due_items(evaluation, config, step);
  if (items.empty()) return items;
  std::set<std::string> done = evaluated_ids(run + "/metrics.jsonl", step);
  std::erase_if(items, [&](int item) { return done.contains(evaluation.id_of(item)); });
  return items;
}
