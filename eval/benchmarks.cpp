#include "eval/benchmarks.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <numeric>

#include "base/error.h"
#include "base/progress.h"
#include "base/text.h"
#include "eval/evaluate.h"

using nlohmann::ordered_json;

namespace {

int max_length(const Config& config) {
  return config.task.max_length > 0 ? config.task.max_length : config.model.context;
}

struct Row {  // one completion, or as many of its tokens as fit
  const BenchmarkExample* example;
  const BenchmarkChoice* choice;
  size_t index;   // among the log-likelihoods
  size_t number;  // of the row
  int from, to;   // the tokens to predict, of context and completion together
  int inputs(int most) const { return std::min(to - 1, most); }
};

// The rows by the length of their batches: that of their inputs, rounded up so that matrix products have few shapes.
std::map<int, std::vector<Row>> rows_of(const Benchmark& benchmark, int most) {
  std::map<int, std::vector<Row>> rows;
  size_t index = 0, number = 0;
  for (const BenchmarkExample& example : benchmark.examples)
    for (const BenchmarkChoice& choice : example.choices) {
      int from = int(example.context.size()), end = from + int(choice.tokens.size());
      for (; from < end; from += most) {
        Row row{&example, &choice, index, number++, from, std::min(from + most, end)};
        rows[std::min((row.inputs(most) + 63) / 64 * 64, most)].push_back(row);
      }
      index++;
    }
  return rows;
}

// Writes a row's inputs [length] and targets [length], padded with zeros, and returns the number of inputs.
int fill(const Row& row, int most, int* inputs, int* targets) {
  const std::vector<int>&context = row.example->context, &completion = row.choice->tokens;
  auto token = [&](size_t at) { return at < context.size() ? context[at] : completion[at - context.size()]; };
  int count = row.inputs(most), first = row.to - 1 - count;
  for (int t = 0; t < count; t++) inputs[t] = token(size_t(first + t)), targets[t] = token(size_t(first + t + 1));
  return count;
}

// The number of the largest value / size(choice), the first among equals.
template <class Size> size_t best(const BenchmarkExample& example, const double* values, Size size) {
  size_t best = 0;
  auto scaled = [&](size_t i) { return values[i] / double(size(example.choices[i])); };
  for (size_t i = 1; i < example.choices.size(); i++)
    if (scaled(i) > scaled(best)) best = i;
  return best;
}

std::string sample_text(const Benchmark& benchmark, const BenchmarkAnswers& answers) {
  std::string text;
  size_t index = 0;
  for (size_t number = 0; number < benchmark.examples.size(); number++) {
    const BenchmarkExample& example = benchmark.examples[number];
    nlohmann::ordered_json line = {{"task", benchmark.name}, {"example", number}, {"gold", example.gold}};
    for (const BenchmarkChoice& choice : example.choices) {
      line["loglikelihood"].push_back(answers.likelihoods[index++]);
      line["tokens"].push_back(choice.tokens.size());
      if (benchmark.has_lengths) line["characters"].push_back(choice.characters);
      if (benchmark.texts) line["words"] = choice.words, line["bytes"] = choice.bytes;
      if (!answers.greedy.empty()) line["greedy"] = answers.greedy[number] > 0;
    }
    text += line.dump() + "\n";
  }
  return text;
}

}  // namespace

std::vector<Benchmark> open_benchmarks(const Config& config) {
  std::vector<Benchmark> benchmarks;
  for (const std::string& name : config.task.names) {
    for (const Benchmark& benchmark : benchmarks)
      if (benchmark.name == name) user_error("task %s is named twice in task.names or --tasks", name.c_str());
    benchmarks.push_back(read_benchmark(config.task.dir, name, config.model.vocab, config.task.limit));
    for (const BenchmarkExample& example : benchmarks.back().examples)
      for (const BenchmarkChoice& choice : example.choices)
        if (!benchmarks.back().texts && choice.tokens.size() > size_t(max_length(config)))
          user_error(
              "task %s: example %td has a completion of %zu tokens, but task.max_length = %d; raise it, or "
              "model.context where positions are learned",
              name.c_str(), &example - benchmarks.back().examples.data(), choice.tokens.size(), max_length(config));
  }
  return benchmarks;
}

std::map<int, int64_t> benchmark_sequences(const Config& config, const Benchmark& benchmark) {
  std::map<int, int64_t> sequences;
  for (auto& [length, rows] : rows_of(benchmark, max_length(config))) sequences[length] = int64_t(rows.size());
  return sequences;
}

std::vector<int> benchmark_lengths(const Config& config, const std::vector<Benchmark>& benchmarks) {
  std::vector<int> lengths;
  if (!benchmarks.empty()) lengths.push_back(max_length(config));  // of the rotation
  for (const Benchmark& benchmark : benchmarks)
    for (auto [length, rows] : benchmark_sequences(config, benchmark)) lengths.push_back(length);
  return lengths;
}

// Whether the benchmark is of texts that are single words.
static bool asks_words(const Benchmark& benchmark) {
  return benchmark.texts &&
         std::ranges::all_of(benchmark.examples, [](auto& example) { return example.choices[0].words == 1; });
}

std::optional<BenchmarkAnswers> benchmark_answers(Model& model, const Benchmark& benchmark, const Stop& stop) {
  const Config& config = model.config();
  Comm& comm = model.comm();
  std::map<int, std::vector<Row>> by_length = rows_of(benchmark, max_length(config));
  int64_t all = 0, done = 0;  // tokens
  for (auto& [length, rows] : by_length) all += int64_t(rows.size()) * length;
  size_t numbers = 0;  // of rows
  for (auto& [length, rows] : by_length) numbers += rows.size();
  bool words = asks_words(benchmark);
  std::vector<double> likelihoods(numbers), greedy(words ? numbers : 0);  // of rows
  ProgressBar progress(benchmark.name, all, comm.first() ? stderr : nullptr);
  model.set_length(max_length(config));
  bool complete = true;
  for (auto& [length, rows] : by_length) {
    int batch = prompt_batch(config, length);
    auto add_batch = [&, length = length, &rows = rows](int64_t first, int count) {
      // A short last batch is filled up with zeros.
      std::vector<int> inputs(size_t(batch) * length, 0), targets(inputs.size(), 0), ends(count), above(inputs.size());
      std::vector<float> losses(inputs.size());
      for (int i = 0; i < count; i++)
        ends[i] = fill(rows[first + i], max_length(config), &inputs[i * length], &targets[i * length]);
      model.losses(losses.data(), inputs.data(), targets.data(), batch, length, above.data());
      for (int i = 0; i < count; i++) {
        const Row& row = rows[first + i];
        int end = i * length + ends[i], begin = end - (row.to - row.from);
        likelihoods[row.number] = -std::accumulate(&losses[begin], losses.data() + end, 0.0);
        if (words)
          greedy[row.number] = std::all_of(&above[begin], above.data() + end, [](int count) { return count == 0; });
      }
      progress.update(done + (first + count) * length);
    };
    complete = complete && for_batches_of_rank(comm, int64_t(rows.size()), batch, stop, add_batch);
    done += int64_t(rows.size()) * length;
  }
  model.set_length(config.model.context);
  if (!complete) return std::nullopt;
  for (auto* values : {&likelihoods, &greedy}) comm.combine(values->data(), values->size());
  BenchmarkAnswers answers;
  std::vector<size_t> index_of(numbers);
  for (auto& [length, rows] : by_length)
    for (const Row& row : rows) index_of[row.number] = row.index;
  for (size_t number = 0; number < numbers; number++) {
    if (index_of[number] == answers.likelihoods.size()) {
      answers.likelihoods.push_back(likelihoods[number]);
      if (words) answers.greedy.push_back(greedy[number]);
      continue;
    }
    answers.likelihoods.back() += likelihoods[number];
    if (words) answers.greedy.back() = std::min(answers.greedy.back(), greedy[number]);
  }
  return answers;
}

// Those of texts, of which all other measures are NaN.
static void add_perplexities(BenchmarkReport& report, const Benchmark& benchmark, const BenchmarkAnswers& answers) {
  report.acc_norm = report.acc_bytes = report.acc_norm_tokens = report.margin = report.chance = NAN;
  const std::vector<double>& greedy = answers.greedy;
  double likelihood = std::accumulate(answers.likelihoods.begin(), answers.likelihoods.end(), 0.0), words = 0,
         bytes = 0, n = double(benchmark.examples.size());
  for (const BenchmarkExample& example : benchmark.examples)
    words += double(example.choices[0].words), bytes += double(example.choices[0].bytes);
  report.word_perplexity = std::exp(-likelihood / words);
  report.bits_per_byte = -likelihood / std::numbers::ln2 / bytes;
  report.acc = greedy.empty() ? NAN : std::accumulate(greedy.begin(), greedy.end(), 0.0) / n;
  report.standard_error = greedy.empty() ? NAN : share_error(report.acc, n);
}

BenchmarkReport benchmark_report(const Benchmark& benchmark, const BenchmarkAnswers& answers, int max_length) {
  BenchmarkReport report;
  const double* values = answers.likelihoods.data();
  for (const BenchmarkExample& example : benchmark.examples) {
    size_t gold = size_t(example.gold);
    auto right = [&](auto size) { return best(example, values, size) == gold; };
    auto per_character = [&](size_t i) { return values[i] / example.choices[i].characters; };
    report.acc += right([](const BenchmarkChoice&) { return 1; });
    report.acc_norm += right([](const BenchmarkChoice& choice) { return choice.characters; });
    report.acc_bytes += right([](const BenchmarkChoice& choice) { return choice.bytes; });
    report.acc_norm_tokens += right([](const BenchmarkChoice& choice) { return choice.tokens.size(); });
    report.chance += 1 / double(example.choices.size());
    double other = -INFINITY;
    for (size_t i = 0; i < example.choices.size(); i++) {
      size_t most = size_t(max_length), predicted = example.choices[i].tokens.size();
      if (benchmark.texts) predicted = std::min(predicted, most);  // of the first window
      report.cut += example.context.size() + predicted > most + 1;
      if (i != gold) other = std::max(other, per_character(i));
    }
    report.margin += per_character(gold) - other;
    values += example.choices.size();
  }
  double n = double(benchmark.examples.size());
  for (double* sum :
       {&report.acc, &report.acc_norm, &report.acc_bytes, &report.acc_norm_tokens, &report.margin, &report.chance})
    *sum /= n;
  if (!benchmark.has_lengths) report.acc_norm = report.acc_bytes = report.margin = NAN;
  report.standard_error = share_error(report.acc, n);
  if (benchmark.texts) add_perplexities(report, benchmark, answers);
  return report;
}

// The fields of a line that say what was asked.
static ordered_json question(const Config& config, const Benchmark& benchmark) {
  int length = max_length(config);
  return {{"task", benchmark.name},
          {"n", benchmark.examples.size()},
          {"max_length", length},
          {"xxh64", benchmark.checksum},
          {"of", conditions_at(config, length)}};
}

std::string benchmark_id(const Config& config, const Benchmark& benchmark) {
  return evaluation_id(question(config, benchmark));
}

static void write_line(const EvalContext& context, const Benchmark& benchmark, const BenchmarkReport& r) {
  const Config& config = context.model.config();
  ordered_json fields = line_of(context.origin, benchmark_id(config, benchmark));
  fields.update(question(config, benchmark));
  fields.update({{"acc", r.acc},
                 {"acc_norm", r.acc_norm},
                 {"acc_bytes", r.acc_bytes},
                 {"acc_norm_tokens", r.acc_norm_tokens},
                 {"stderr", r.standard_error},
                 {"margin", r.margin},
                 {"chance", r.chance},
                 {"cut", r.cut}});
  if (benchmark.texts) fields.update({{"word_perplexity", r.word_perplexity}, {"bits_per_byte", r.bits_per_byte}});
  context.metrics.write("task", fields);
}

bool evaluate_benchmarks(const EvalContext& context, const std::vector<Benchmark>& benchmarks,
                         const std::vector<int>& numbers, const std::string& samples) {
  Model& model = context.model;
  if (numbers.empty()) return true;
  bool first = model.comm().first(), finite = true;
  std::string text;
  if (first && !samples.empty()) write_new_file(model.config(), "task.samples", samples, text);
  std::string table = format(
      "tasks, step %ld, accuracy in %%\n%-20s |   acc +-    |  norm  bytes tokens | chance |  margin | examples\n",
      context.origin.step, "");
  for (int number : numbers) {
    const Benchmark& benchmark = benchmarks[size_t(number)];
    std::optional<BenchmarkAnswers> answers = benchmark_answers(model, benchmark, context.stop);
    if (!answers) break;
    BenchmarkReport r = benchmark_report(benchmark, *answers, max_length(model.config()));
    auto percent = [](double share) { return cell_text("%5.1f", 100 * share); };
    table += format("%-20s | %s %s | %s  %s  %s |  %s | %s | %8zu", benchmark.name.c_str(), percent(r.acc).c_str(),
                    percent(r.standard_error).c_str(), percent(r.acc_norm).c_str(), percent(r.acc_bytes).c_str(),
                    percent(r.acc_norm_tokens).c_str(), percent(r.chance).c_str(), cell_text("%7.4f", r.margin).c_str(),
                    benchmark.examples.size());
    if (benchmark.texts)
      table += format(", perplexity %.6g a word, %.4f bits per byte", r.word_perplexity, r.bits_per_byte);
    if (r.cut) table += format(", %ld %s with a shortened context", r.cut, plural(double(r.cut), "completion").c_str());
    table += "\n";
    write_line(context, benchmark, r);
    for (double likelihood : answers->likelihoods) finite = finite && std::isfinite(likelihood);
    if (first && !samples.empty()) write_text_file(samples, text += sample_text(benchmark, *answers));
  }
  std::fputs(table.c_str(), stdout);  // at once: no line of another thread, as "saved ...", falls between its rows
  std::fflush(stdout);
  return finite;
}
