#include "training/questions.h"

#include <memory>
#include <numeric>

#include "eval/diagnostics.h"
#include "eval/evaluate.h"
#include "eval/passkey.h"
#include "eval/benchmarks.h"

using Stop = std::function<bool()>;
using Items = std::vector<int>;

static Question losses_by_length(const Flags& flags, const Config& config, const Data& data) {
  const char* type = flags.is(Mode::eval) ? "eval" : "val";
  return {.asked = flags.is(Mode::eval),
          .every = config.eval.every,
          .items = config.eval.lengths,
          .lengths = config.eval.lengths,
          .not_finite = "a loss is not finite (bad weights, or overflow on these data)",
          .make_products =
              [&data](Model& model) {
                const Config::Eval& eval = model.config().eval;
                for (int length : eval.lengths) make_products_of_evaluate(model, data.val, length, eval.tokens);
              },
          .answered = [eval = config.eval](const std::string& metrics,
                                           int64_t step) { return evaluated_lengths(metrics, step, eval); },
          .ask =
              [&data, type](Model& model, const Items& lengths, const Weights& weights, MetricsLog& metrics,
                            const Stop& stop) {
                return evaluate_lengths(model, data.val, data.val_files, lengths, type, weights, metrics, stop);
              }};
}

static Question passkey(const Config& config, int rank) {
  std::shared_ptr<Tokenizer> tokenizer = open_tokenizer(config.generate.tokenizer, config.generate.tokenizer_dir);
  std::vector<PasskeyPrompt> prompts = passkey_prompts(*tokenizer, config, config.eval.lengths);
  if (rank == 0) write_passkey_prompts(*tokenizer, config, prompts);
  return {.asked = true,
          .every = 0,
          .items = config.eval.lengths,
          .lengths = config.eval.lengths,
          .not_finite = "a logit is not finite (bad weights, or overflow on these prompts)",
          .make_products =
              [](Model& model) {
                for (int length : model.config().eval.lengths) make_products_of_passkey(model, length);
              },
          .answered = {},
          .ask = [tokenizer, prompts](
                     Model& model, const Items&, const Weights& weights, MetricsLog& metrics,
                     const Stop&) { return evaluate_passkey(model, *tokenizer, prompts, weights, metrics); }};
}

static Question benchmarks(const Flags& flags, const Config& config, const Data& data) {
  Items numbers(data.benchmarks.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  std::string samples = flags.is(Mode::tasks) ? config.task.samples : "";
  return {.asked = flags.is(Mode::tasks),
          .every = config.task.every,
          .items = numbers,
          .lengths = benchmark_lengths(config, data.benchmarks),
          .not_finite = "a log-likelihood is not finite (bad weights, or overflow on these examples)",
          .make_products = [&data](Model& model) { make_products_of_benchmarks(model, data.benchmarks); },
          .answered =
              [&data](const std::string& metrics, int64_t step) {
                std::set<std::string> names = evaluated_benchmarks(metrics, step);
                std::set<int> found;
                for (size_t i = 0; i < data.benchmarks.size(); i++)
                  if (names.count(data.benchmarks[i].name)) found.insert(int(i));
                return found;
              },
          .ask =
              [&data, samples](Model& model, const Items& items, const Weights& weights, MetricsLog& metrics,
                               const Stop& stop) {
                return evaluate_benchmarks(model, data.benchmarks, items, weights, metrics, samples, stop);
              }};
}

static Question diagnostics(const Flags& flags, const Config& config, const Data& data) {
  return {
      .asked = flags.is(Mode::diagnostics),
      .every = config.diagnostics.every,
      .items = config.eval.lengths,
      .lengths = config.eval.lengths,
      .not_finite = "the residual stream is not finite (bad weights, or overflow on these data)",
      .make_products =
          [](Model& model) {
            for (int length : model.config().eval.lengths) make_products_of_diagnostics(model, length);
          },
      .answered = diagnosed_lengths,
      .ask = [&data](Model& model, const Items& lengths, const Weights& weights, MetricsLog& metrics,
                     const Stop& stop) { return diagnose_lengths(model, data.val, lengths, weights, metrics, stop); }};
}

std::vector<Question> open_questions(const Flags& flags, const Config& config, const Data& data, bool evaluates,
                                     int rank) {
  std::vector<Question> questions;
  if (evaluates) questions.push_back(losses_by_length(flags, config, data));
  if (flags.is(Mode::passkey)) questions.push_back(passkey(config, rank));
  if (!data.benchmarks.empty()) questions.push_back(benchmarks(flags, config, data));
  if (config.diagnoses) questions.push_back(diagnostics(flags, config, data));
  return questions;
}

std::vector<int> due_items(const Question& question, const Config& config, int64_t step) {
  return due(question.every, step, config.train.steps) ? question.items : Items{};
}

std::vector<int> missing_items(const Question& question, const Config& config, const std::string& run, int64_t step) {
  Items items = due_items(question, config, step);
  if (items.empty()) return items;
  std::set<int> answered = question.answered(run + "/metrics.jsonl", step);
  std::erase_if(items, [&](int item) { return answered.count(item) > 0; });
  return items;
}
