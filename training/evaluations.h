// The evaluations of a run: by --eval, --passkey, --tasks or --diagnostics, and while it trains. An entry for each
// holds all that the rest of the program needs to plan its memory, agree on its matrix products, run it, and run it
// again after an interruption.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "eval/eval_context.h"
#include "settings/command_line.h"
#include "training/data.h"

struct Evaluation {
  bool asked;              // by a flag: the program does this and ends
  int64_t every;           // steps between two while training; 0: never
  std::vector<int> items;  // what is evaluated: lengths, or numbers of task.names
  const char* not_finite;  // the error if a result is not finite
  // Its batches: `batch` sequences of one of these lengths, computed by losses(), or by row_logits() if by_row.
  std::vector<int> lengths;
  std::function<int(const Config&, int length)> batch;
  bool by_row = false;
  std::function<std::map<int, int64_t>(int item)> sequences;  // of an item, by length, before the last batch is filled
  std::function<std::string(int item)> id_of = {};            // evaluation_id() of an item; not needed if `every` is 0
  // Prints the results of these items and writes a line for each; returns whether they are finite.
  std::function<bool(const EvalContext&, const std::vector<int>& items)> run = {};
};

// The evaluations of a run, in their order; evaluates: the losses by length are one. Reads and checks what they need; a
// user_error if that does not fit the model. Rank 0 writes passkey.examples. `config` and `data` must stay where they
// are.
std::vector<Evaluation> open_evaluations(const Flags& flags, const Config& config, const Data& data, int separator,
                                         bool evaluates, int rank);

// The same without data.val, of which eval.tokens and diagnostics.tokens are taken to be there, and without task.names
// unless a flag asks for them: what a plan needs. They have no id_of() and no run().
std::vector<Evaluation> planned_evaluations(const Flags& flags, const Config& config,
                                            const std::vector<Benchmark>& benchmarks, bool evaluates);

std::vector<int> lengths_of(const std::vector<Evaluation>& evaluations);  // of their batches

// The forward passes of evaluations. A round of all ranks counts for each of them, also for those without a batch.
struct EvaluationWork {
  double flops = 0, tokens = 0;
};
// Of those that a flag asks for, or if none does, of all that a run does in its steps after `step`. config.batch.micro
// must be chosen. documents: as for flops_per_token().
EvaluationWork evaluation_work(const Config& config, const std::vector<Evaluation>& evaluations, int64_t step,
                               int ranks, const std::vector<int>& documents);

// Whether something is due after this step: it is done after each `every` steps (0: never), and after step `last` if
// given.
inline bool due(int64_t every, int64_t step, int64_t last = 0) {
  return every > 0 && (step % every == 0 || step == last);
}

// The items that are due at this step of a run; of them, those that have no line in the run's metrics.
std::vector<int> due_items(const Evaluation& evaluation, const Config& config, int64_t step);
std::vector<int> missing_items(const Evaluation& evaluation, const Config& config, const std::string& run,
                               int64_t step);
