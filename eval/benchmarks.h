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
#include "data/benchmark_file.h"
#include "train_gpt2.h"

// Reads the benchmarks of task.names. A user_error if one cannot be read or a completion is longer than task.max_length.
std::vector<Benchmark> open_benchmarks(const Config& config);

// The lengths for the memory plan: a model made for eval_rows(config, these) rows, the longest of them at once, can be
// asked all questions.
std::vector<int> benchmark_lengths(const Config& config, const std::vector<Benchmark>& benchmarks);

// The log-likelihoods of all completions of all examples, in the file's order. The ranks share them, and all get all,
// with the same bits for any number of ranks. stop: as for evaluate().
std::optional<std::vector<double>> benchmark_likelihoods(Model& model, const Benchmark& benchmark,
                                                         const std::function<bool()>& stop = {});

// From the log-likelihoods; the caller fills in the weights. Accuracies by what the file does not say are NaN.
BenchmarkReport benchmark_report(const Benchmark& benchmark, const std::vector<double>& likelihoods, int max_length);

// Asks the benchmarks with these numbers, prints a table, and writes a line for each. samples: if not empty, the
// log-likelihoods are written to this file, as JSON lines; a user_error if it exists. Returns whether all are finite.
// stop: as for evaluate(); it ends this too, after the benchmarks that are complete.
bool evaluate_benchmarks(Model& model, const std::vector<Benchmark>& benchmarks, const std::vector<int>& numbers,
                         const Weights& weights, MetricsLog& metrics, const std::string& samples = "",
                         const std::function<bool()>& stop = {});

// Makes every matrix product of benchmark_likelihoods() for these benchmarks at least once, on each rank.
void make_products_of_benchmarks(Model& model, const std::vector<Benchmark>& benchmarks);
