// What is asked of the weights, by --eval, --passkey, --tasks or --diagnostics or while a run trains. An entry for each
// question holds what the rest of the program needs to plan its memory, make its matrix products, ask it, and ask again
// after an interruption.
#pragma once
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/metrics.h"
#include "settings/command_line.h"
#include "train_gpt2.h"
#include "training/start.h"

struct Question {
  bool asked;                // by a flag: the program asks it of a checkpoint and ends
  int64_t every;             // steps between two askings while training; 0: never
  std::vector<int> items;    // what it is asked for: lengths, or numbers of task.names
  std::vector<int> lengths;  // of the sequences that are computed, for the memory plan
  const char* not_finite;    // the error if an answer is not finite
  // Makes each of its matrix products once, on each rank.
  std::function<void(Model&)> make_products;
  // The items with a line of this step in a run's metrics.
  std::function<std::set<int>(const std::string& metrics, int64_t step)> answered;
  // Prints the answers for these items and writes a line for each; returns whether they are finite. stop, if not empty,
  // is called between batches, equally often on every rank, and must return the same on all: true ends it early.
  std::function<bool(Model&, const std::vector<int>& items, const Weights&, MetricsLog&,
                     const std::function<bool()>& stop)>
      ask;
};

// The questions of a run, in the order in which they are asked; evaluates: losses by length are one. Reads and checks
// what they need; a user_error if that does not fit the model. Rank 0 writes passkey.examples.
std::vector<Question> open_questions(const Flags& flags, const Config& config, const Data& data, bool evaluates,
                                     int rank);

// Whether something is due after this step: it is done after each `every` steps (0: never), and after step `last` if given.
inline bool due(int64_t every, int64_t step, int64_t last = 0) {
  return every > 0 && (step % every == 0 || step == last);
}

// The items that are due at this step of a run; of them, those that have no line in the run's metrics.
std::vector<int> due_items(const Question& question, const Config& config, int64_t step);
std::vector<int> missing_items(const Question& question, const Config& config, const std::string& run, int64_t step);
