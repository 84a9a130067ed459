// Benchmarks of several choices: which of the completions of a context is the likeliest, and is it the right one?
// A completion's log-likelihood is the sum of log p over its tokens, in nats, behind the context. The model sees the
// last task.max_length tokens of both, without the final one. The choice is the largest of
//   acc              the log-likelihoods
//   acc_norm         these over the completion's characters, without the space before it
//   acc_bytes        over its bytes of UTF-8
//   acc_norm_tokens  over its tokens
// and of equal ones the first. This is what lm-eval computes (acc, acc_norm, acc_bytes) and llm.c (acc_norm_tokens).
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/metrics.h"
#include "data/task_file.h"
#include "train_gpt2.h"

// Reads the tasks of task.names. A user_error if one cannot be read or a completion is longer than task.max_length.
std::vector<Task> open_tasks(const Config& config);

// The lengths for the memory plan: a model made for eval_rows(config, these) rows, the longest of them at once, can be
// asked all questions.
std::vector<int> task_lengths(const Config& config, const std::vector<Task>& tasks);

// The log-likelihoods of all completions of all examples, in the file's order. The ranks share them, and all get all,
// with the same bits for any number of ranks. stop: as for evaluate().
std::optional<std::vector<double>> task_likelihoods(Model& model, const Task& task,
                                                    const std::function<bool()>& stop = {});

// From the log-likelihoods; the caller fills in the weights. Accuracies by what the file does not say are NaN.
TaskReport task_report(const Task& task, const std::vector<double>& likelihoods, int max_length);

// Asks the tasks with these numbers, prints a table, and writes a line for each. samples: if not empty, the
// log-likelihoods are written to this file, as JSON lines; a user_error if it exists. Returns whether all are finite.
// stop: as for evaluate(); it ends this too, after the tasks that are complete.
bool evaluate_tasks(Model& model, const std::vector<Task>& tasks, const std::vector<int>& numbers,
                    const Weights& weights, MetricsLog& metrics, const std::string& samples = "",
                    const std::function<bool()>& stop = {});

// Makes every matrix product of task_likelihoods() for these tasks at least once, on each rank.
void make_products_of_tasks(Model& model, const std::vector<Task>& tasks);
