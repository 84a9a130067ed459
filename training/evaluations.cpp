#include "training/evaluations.h"

#include <memory>
#include <numeric>
#include <set>

#include "eval/benchmarks.h"
#include "eval/diagnostics.h"
#include "eval/evaluate.h"
#include "eval/passkey.h"

using Items = std::vector<int>;

static Evaluation losses_by_length(const Flags& flags, const Config& config, const Data& data, int separator) {
  for (int length : config.eval.lengths) eval_windows(config, separator, data.val, length, config.eval.tokens);
  const char* type = flags.is(Mode::eval) ? "eval" : "val";
  return {.asked = flags.is(Mode::eval),
          .every = config.eval.every,
          .items = config.eval.lengths,
          .not_finite = "a loss is not finite (bad weights, or overflow on these data)",
          .lengths = config.eval.lengths,
          .batch = [&data, separator](const Config& c, int length) { return batch_of(c, separator, data.val, length); },
          .id_of = [&config, &data, separator](
                       int length) { return loss_question(config, separator, data.val, data.val_files, length).id; },
          .run =
              [&data, type](const EvalContext& context, const Items& lengths) {
                return evaluate_lengths(context, data.val, data.val_files, lengths, type);
              }};
}

static Evaluation passkey(const Config& config, std::shared_ptr<Tokenizer> tokenizer, int rank) {
  std::vector<PasskeyPrompt> prompts = passkey_prompts(*tokenizer, config, config.eval.lengths);
  if (rank == 0) write_passkey_prompts(*tokenizer, config, prompts);
  return {.asked = true,
          .every = 0,
          .items = config.eval.lengths,
          .not_finite = "a logit is not finite (bad weights, or overflow on these prompts)",
          .lengths = config.eval.lengths,
          .batch = prompt_batch,
          .by_row = true,
          .id_of = {},
          .run = [tokenizer, prompts](const EvalContext& context, const Items&) {
            return evaluate_passkey(context, *tokenizer, prompts);
          }};
}

static Evaluation benchmarks(const Flags& flags, const Config& config, const Data& data) {
  Items numbers(data.benchmarks.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  std::string samples = flags.is(Mode::tasks) ? config.task.samples : "";
  return {.asked = flags.is(Mode::tasks),
          .every = config.task.every,
          .items = numbers,
          .not_finite = "a log-likelihood is not finite (bad weights, or overflow on these examples)",
          .lengths = benchmark_lengths(config, data.benchmarks),
          .batch = prompt_batch,
          .id_of = [&config, &data](int number) { return benchmark_id(config, data.benchmarks[size_t(number)]); },
          .run = [&data, samples](
                     const EvalContext& context,
                     const Items& items) { return evaluate_benchmarks(context, data.benchmarks, items, samples); }};
}

static Evaluation diagnostics(const Flags& flags, const Config& config, const Data& data, int separator) {
  for (int length : config.eval.lengths) diagnostics_windows(config, separator, data.val, length);
  return {
      .asked = flags.is(Mode::diagnostics),
      .every = config.diagnostics.every,
      .items = config.eval.lengths,
      .not_finite = "the residual stream is not finite (bad weights, or overflow on these data)",
      .lengths = config.eval.lengths,
      .batch = diagnostics_batch,
      .id_of = [&config, &data,
                separator](int length) { return diagnostics_id(config, separator, data.val, data.val_files, length); },
      .run = [&data](const EvalContext& context,
                     const Items& lengths) { return diagnose_lengths(context, data.val, data.val_files, lengths); }};
}

std::vector<Evaluation> open_evaluations(const Flags& flags, const Config& config, const Data& data, int separator,
                                         bool evaluates, int rank) {
  std::vector<Evaluation> evaluations;
  if (evaluates) evaluations.push_back(losses_by_length(flags, config, data, separator));
  if (flags.is(Mode::passkey)) evaluations.push_back(passkey(config, data.tokenizer, rank));
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
