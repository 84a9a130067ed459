// Benchmarks of several choices: which of the completions of a context is the likeliest, and is it the right one?
// A completion's log-likelihood is the sum of log p over its tokens, in nats, after the context. The model sees the
// last task.max_length tokens of both, without the final one. The choice is the largest of
//   acc              the log-likelihoods
//   acc_norm         these over the completion's characters, without the space before it
//   acc_bytes        over its bytes of UTF-8
//   acc_norm_tokens  over its tokens
// and of equal ones the first. This is what lm-eval computes (acc, acc_norm, acc_bytes) and llm.c (acc_norm_tokens).
// Of a benchmark of texts, with a single completion each, also as lm-eval does (lambada_openai, wikitext):
//   acc              the share whose tokens are each the likeliest, if each text is one word
//   word_perplexity  e^(-log-likelihood of all texts / their words)
//   bits_per_byte    -log2-likelihood of all texts / their bytes
// A text beyond task.max_length is predicted in windows of that many tokens; each sees one token before the first that
// it predicts, and the last as many as fit.
#pragma once
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "data/benchmark_file.h"
#include "eval/eval_context.h"

// The results of one benchmark: the measures above, NaN where it has none.
struct BenchmarkReport {
  int64_t cut = 0;  // completions whose context was shortened to fit max_length
  double acc = 0, acc_norm = 0, acc_bytes = 0, acc_norm_tokens = 0;  // shares
  double standard_error = 0;                                         // of acc; NaN for a single example
  double margin = 0;  // mean of the right completion's log-likelihood per character minus that of the best wrong one
  double chance = 0;  // mean of 1 / completions
  double word_perplexity = NAN, bits_per_byte = NAN;
};

// Reads the benchmarks of task.names. A user_error if one cannot be read or has a completion to choose beyond
// task.max_length.
std::vector<Benchmark> open_benchmarks(const Config& config);

// How many sequences of each length answer its questions.
std::map<int, int64_t> benchmark_sequences(const Config& config, const Benchmark& benchmark);

// The lengths for the memory plan: a model made for eval_rows(config, these) rows, the longest of them at once, can
// answer all questions.
std::vector<int> benchmark_lengths(const Config& config, const std::vector<Benchmark>& benchmarks);

struct BenchmarkAnswers {
  std::vector<double> likelihoods;  // of all completions of all examples, in the file's order
  std::vector<double> greedy;       // of texts that are single words: 1 if its tokens are each the likeliest, else 0
};

// The ranks divide the completions, and each gets all answers, with the same bits for any number of ranks.
std::optional<BenchmarkAnswers> benchmark_answers(Model& model, const Benchmark& benchmark, const Stop& stop = {});

BenchmarkReport benchmark_report(const Benchmark& benchmark, const BenchmarkAnswers& answers, int max_length);

// The identity of the questions (evaluation_id()).
std::string benchmark_id(const Config& config, const Benchmark& benchmark);

// Asks the benchmarks with these numbers, prints a table, and writes a line for each. samples: if not empty, the
// log-likelihoods are written to this file, as JSON lines; a user_error if it exists. Returns whether all are finite.
// If it is stopped, the benchmarks that are complete are written.
bool evaluate_benchmarks(const EvalContext& context, const std::vector<Benchmark>& benchmarks,
                         const std::vector<int>& numbers, const std::string& samples = "");
