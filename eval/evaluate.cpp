#include "eval/evaluate.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numbers>
#include <numeric>

#include "base/text.h"

using nlohmann::ordered_json;

static int batch_of(const Config& config, int length, int64_t windows) {
  return int(std::min<int64_t>(eval_batch(config, length), windows));
}

int batch_of(const Config& config, int separator, const std::vector<Shard>& shards, int length) {
  return batch_of(config, length, eval_windows(config, separator, shards, length, config.eval.tokens).count);
}

size_t eval_rows(const Config& config, const std::vector<int>& lengths) {
  size_t rows = 0;
  for (int length : lengths) {
    int64_t windows = std::max<int64_t>(1, config.eval.tokens / config.eval.window(length));
    rows = std::max(rows, size_t(batch_of(config, length, windows)) * length);
  }
  return rows;
}

int window_batch(const Config& config, int length) { return int(eval_rows(config, {length}) / size_t(length)); }

int prompt_batch(const Config& config, int length) { return std::min(64, window_batch(config, length)); }

void write_new_file(const Config& config, const char* key, const std::string& path, const std::string& text) {
  std::string tag = source_tag(source_of(config, {key}));
  if (std::filesystem::exists(path))
    user_error("config: %s = \"%s\" exists; name a new file, or remove it first%s", key, path.c_str(), tag.c_str());
  check_output_file(format("config: %s = \"%s\"", key, path.c_str()), path);
  write_text_file(path, text);
}

EvalWindows windows_of(const Config& config, int separator, const std::vector<Shard>& shards, const char* key,
                       WindowStart start, bool within, int window, int64_t tokens) {
  WindowReader reader(shards, window, config.model.vocab, "data.val");
  if (start == WindowStart::any) return {reader, std::min(tokens / window, reader.windows())};
  int64_t too_short = reader.begin_with_documents({separator, within, tokens / window});
  if (reader.windows() == 0)
    user_error(
        "config: %s = document, but data.val has no %d tokens in a row that begin with the token between documents, "
        "%s%s; use %s=any, or a shorter length%s",
        key, window,
        separator < 0 ? "which is not known: data.separator names it (GPT-2's is 50256)"
                      : std::to_string(separator).c_str(),
        within ? ", and are of one document" : "", key, source_tag(source_of(config, {key})).c_str());
  return {reader, reader.windows(), too_short};
}

EvalWindows eval_windows(const Config& config, int separator, const std::vector<Shard>& shards, int length,
                         int64_t tokens) {
  int window = config.eval.window(length);
  if (tokens < window)
    user_error(
        "config: eval.tokens = %ld is less than one window of %d tokens; raise eval.tokens or evaluate a shorter "
        "length  [%s]",
        tokens, window, config.file.c_str());
  return windows_of(config, separator, shards, "eval.start", config.eval.start, true, window, tokens);
}

// Edges of the bins of positions, eight to an octave where that is more than one position: 0, the distinct values of
// round(2^(k / 8)) below the length, the length.
static std::vector<int> position_edges(int length) {
  std::vector<int> edges = {0};
  for (int k = 0;; k++) {
    int edge = int(std::lround(std::exp2(k / 8.0)));
    if (edge >= length) break;
    if (edge > edges.back()) edges.push_back(edge);
  }
  edges.push_back(length);
  return edges;
}

// Of the mean of these values, one of each window, with these weights; NaN for a single one.
static double standard_error(const std::vector<double>& windows, const std::vector<double>& weights) {
  double count = double(windows.size()), squares = 0, all = count * mean_of(weights);
  double mean = std::inner_product(windows.begin(), windows.end(), weights.begin(), 0.0) / all;
  for (size_t w = 0; w < windows.size(); w++) squares += std::pow(weights[w] * (windows[w] - mean), 2);
  return windows.size() > 1 ? std::sqrt(squares * count / (count - 1)) / all : NAN;
}

// Fills the standard error of the loss, and the means and weights of groups of windows, from by_window and weights.
static void add_spread(EvalReport& report) {
  const std::vector<double>&windows = report.by_window, &weights = report.weights;
  size_t count = windows.size(), groups = std::min<size_t>(count, 256);
  report.standard_error = standard_error(windows, weights);
  for (size_t g = 0; g < groups; g++) {
    size_t begin = g * count / groups, end = (g + 1) * count / groups;
    report.group_weights.push_back(std::accumulate(&weights[begin], weights.data() + end, 0.0));
    double sum = std::inner_product(&windows[begin], windows.data() + end, &weights[begin], 0.0);
    report.window_losses.push_back(sum / report.group_weights.back());
  }
}

// Fills the difference to the loss of the same targets at another length. Its error comes from the differences of
// single windows, which vary far less than their losses.
static void add_difference(EvalReport& report, const EvalReport& from) {
  std::vector<double> differences;
  for (size_t w = 0; w < report.by_window.size(); w++) differences.push_back(report.by_window[w] - from.by_window[w]);
  report.difference = {from.length, report.loss - from.loss, standard_error(differences, report.weights)};
}

// The shards that the first windows come from.
static std::vector<size_t> shards_of(const WindowReader& reader, int64_t windows) {
  std::vector<size_t> used;
  for (size_t i = 0; i <= reader.shard_of(windows - 1); i++)
    if (reader.has_windows(i)) used.push_back(i);
  return used;
}

std::vector<DataFile> files_of(const EvalWindows& windows, const std::vector<Shard>& shards,
                               const std::vector<DataFile>& files) {
  std::vector<size_t> used = shards_of(windows.reader, windows.count);
  std::vector<DataFile> found;
  for (size_t i : used) found.push_back(files[i]);
  for (size_t i : used)
    if (shards[i].labels) found.push_back(files[shards.size() + i]);
  return found;
}

// Fills the tokenizer, and bits per byte: the nats of a token in bits, times the tokens and over the bytes of the whole
// shards that the windows come from, which for the evaluated windows alone are not known.
static void add_bytes(EvalReport& report, const WindowReader& reader, const std::vector<Shard>& shards, int64_t windows,
                      int targets) {
  double tokens = 0, bytes = 0;
  for (size_t i : shards_of(reader, windows)) {
    if (shards[i].vocabulary.known()) report.tokenizer = shards[i].vocabulary.text();
    tokens += double(shards[i].tokens);
    bytes += shards[i].text_bytes > 0 ? double(shards[i].text_bytes) : NAN;
  }
  if (report.tokens < windows * targets || std::isnan(report.perplexity)) return;  // not all text is predicted
  report.bits_per_byte = report.loss / std::numbers::ln2 * tokens / bytes;
}

void read_batch(const WindowReader& reader, int64_t first, int count, int length, std::vector<int>& inputs,
                std::vector<int>& targets, float* values) {
  for (size_t row = 0; row < inputs.size() / length; row++) {
    size_t at = row * length;
    reader.read(first + std::min<int64_t>(row, count - 1), &inputs[at], &targets[at], reader.T() - length,
                values ? values + at * reader.outputs() : nullptr);
  }
}

namespace {

// Sums of one number of each target.
struct Sums {
  std::vector<double> by_position;  // weighted by the window; over the windows in order, then over the ranks
  std::vector<double> by_window;
};
struct WindowSums {
  Sums loss, labels, right;  // right: the target is the likeliest token
};

// A window weighs as many as it has positions.
bool by_sequence(const Config& config) { return config.train.label_mean == LabelMean::sequence; }

// Computes all windows; nothing if it is stopped.
std::optional<WindowSums> collect(Model& model, const EvalWindows& windows, int length, const Stop& stop) {
  const Config& config = model.config();
  int counted = config.eval.targets(length), batch = batch_of(config, length, windows.count);
  std::vector<int> inputs(size_t(batch) * length), targets(inputs.size()), above(inputs.size());
  std::vector<float> losses(inputs.size()), values(inputs.size() * config.model.head.outputs);
  Sums none = {std::vector<double>(counted, 0.0), std::vector<double>(windows.count, 0.0)};
  WindowSums all = {none, none, none};
  auto add_batch = [&](int64_t window, int count) {
    read_batch(windows.reader, window, count, length, inputs, targets, values.data());
    model.losses(losses.data(), inputs.data(), {targets.data(), nullptr, values.data()}, batch, length, above.data());
    for (int row = 0; row < count; row++) {
      size_t first_counted = size_t(row) * length + length - counted;
      const int* target = &targets[first_counted];
      double found = double(counted - std::count(target, target + counted, -1));
      if (found == 0) continue;
      double weight = by_sequence(config) ? counted / found : 1;
      for (int t = 0; t < counted; t++) {
        auto add = [&](Sums& sums, double number) {
          sums.by_position[t] += weight * number;
          sums.by_window[window + row] += number;
        };
        add(all.loss, losses[first_counted + t]);
        add(all.labels, target[t] >= 0);
        add(all.right, target[t] >= 0 && above[first_counted + t] == 0);
      }
    }
  };
  std::string what = format("eval length %d", length);
  if (!for_windows_of_rank(model, what, length, windows.count, batch, stop, add_batch)) return std::nullopt;
  for (Sums* sums : {&all.loss, &all.labels, &all.right}) {
    model.comm().all_reduce_sum(sums->by_position.data(), sums->by_position.size());
    model.comm().combine(sums->by_window.data(), sums->by_window.size());
  }
  return all;
}

double sum(const std::vector<double>& numbers, int from, int to) {
  return std::accumulate(&numbers[from], numbers.data() + to, 0.0);
}

// The means of these sums, by position and as a whole, and their spread. A user_error if nothing has a label.
EvalReport report_of(const WindowSums& all, const Config& config, const EvalWindows& windows) {
  int counted = int(all.loss.by_position.size());
  auto mean = [&](const Sums& sums, int from, int to) {
    double found = sum(sums.by_position, from, to) / sum(all.labels.by_position, from, to);
    return std::isnan(found) ? NAN : found;  // without a sign, which would be printed
  };
  EvalReport report;
  std::vector<double> accurate, exact;  // shares, of the windows that have labels
  for (int64_t w = 0; w < windows.count; w++) {
    double found = all.labels.by_window[w];
    if (found == 0) continue;
    report.by_window.push_back(all.loss.by_window[w] / found);
    report.weights.push_back(by_sequence(config) ? 1 : found);
    accurate.push_back(all.right.by_window[w] / found);
    exact.push_back(all.right.by_window[w] == found);
  }
  if (exact.empty())
    user_error(
        "data.val_labels: none of the %ld windows of %d tokens that are evaluated has a label; raise eval.tokens, "
        "or use other labels",
        windows.count, windows.reader.T());

  report.tokens = int64_t(sum(all.labels.by_window, 0, int(windows.count)));
  report.windows = int64_t(exact.size());
  report.too_short = windows.too_short;
  report.position_edges = position_edges(counted);
  report.loss = mean(all.loss, 0, counted);
  report.last_loss = mean(all.loss, counted - std::min(1024, counted), counted);
  bool tokens = config.model.head.outputs == 0;
  for (size_t i = 0; i + 1 < report.position_edges.size(); i++) {
    int from = report.position_edges[i], to = report.position_edges[i + 1];
    report.by_position.push_back(mean(all.loss, from, to));
    if (tokens) report.accuracy_by_position.push_back(mean(all.right, from, to));
  }
  if (tokens) {
    report.perplexity = std::exp(report.loss);
    // From the windows, whose numbers are whole, so that no number of ranks changes a bit.
    double right = sum(all.right.by_window, 0, int(windows.count));
    double share = by_sequence(config) ? mean_of(accurate) : right / double(report.tokens);
    report.accuracy = {share, standard_error(accurate, report.weights)};
    report.exact = {mean_of(exact), standard_error(exact, std::vector<double>(exact.size(), 1))};
  }
  add_spread(report);
  return report;
}

}  // namespace

std::optional<EvalReport> evaluate(Model& model, const std::vector<Shard>& shards, int length, int64_t tokens,
                                   const Stop& stop) {
  const EvalWindows windows = eval_windows(model.config(), model.facts().separator, shards, length, tokens);
  std::optional<WindowSums> sums = collect(model, windows, length, stop);
  if (!sums) return std::nullopt;
  EvalReport report = report_of(*sums, model.config(), windows);
  report.length = length;
  report.separator = model.facts().separator;
  add_bytes(report, windows.reader, shards, windows.count, model.config().eval.targets(length));
  return report;
}

static void print(const Config::Eval& eval, int64_t step, const EvalReport& r, const char* type) {
  auto plus_minus = [](double error) { return std::isfinite(error) ? format(" +- %.4f", error) : ""; };
  std::string length = format("length %5d", r.length),
              more =
                  std::isfinite(r.last_loss) ? format(" | last %d: %.4f", std::min(1024, r.length), r.last_loss) : "";
  if (eval.mode == EvalMode::suffix) {
    length = format("last %d of %d, context %5d", eval.targets(r.length), eval.window(r.length), r.length);
    more = r.length == r.difference.from
               ? ""
               : format(" | %+.4f", r.difference.loss) + plus_minus(r.difference.standard_error) +
                     format(" from context %d", r.difference.from);
  }
  if (std::isfinite(r.accuracy.mean))
    more += format(" | accuracy %.4f", r.accuracy.mean) + plus_minus(r.accuracy.standard_error);
  if (r.exact.mean > 0) more += format(" | exact %.4f", r.exact.mean) + plus_minus(r.exact.standard_error);
  if (std::isfinite(r.bits_per_byte)) more += format(" | %.4f bits per byte", r.bits_per_byte);
  std::string documents = eval.start == WindowStart::any
                              ? ""
                              : format(" of %ld %s, %ld shorter left out", r.windows,
                                       plural(double(r.windows), "document").c_str(), r.too_short);
  std::printf("%s  step %ld  %s | loss %.4f%s%s | %s %s%s\n", type, step, length.c_str(), r.loss,
              plus_minus(r.standard_error).c_str(), more.c_str(), count_text(double(r.tokens)).c_str(),
              plural(double(r.tokens), "token").c_str(), documents.c_str());
  std::fflush(stdout);
}

// To 1e-6: enough to compare runs, and short.
static std::vector<double> rounded(std::vector<double> values) {
  for (double& x : values) x = std::round(x * 1e6) / 1e6;
  return values;
}

LossQuestion loss_question(const Config& config, int separator, const std::vector<Shard>& shards,
                           const std::vector<DataFile>& files, int length) {
  const Config::Eval& eval = config.eval;
  EvalWindows windows = eval_windows(config, separator, shards, length, eval.tokens);
  ordered_json fields = {{"mode", eval_mode_names[int(eval.mode)]}}, of = ordered_json::object();
  if (eval.mode == EvalMode::suffix)
    fields.update({{"context_of", eval.window(length)}, {"suffix", eval.targets(length)}});
  if (eval.start == WindowStart::document) fields["start"] = "document", of["separator"] = separator;
  if (config.model.head.outputs > 0) of["outputs"] = config.model.head.outputs;
  if (!config.data.val_labels.empty()) of["label_mean"] = label_mean_names[int(config.train.label_mean)];
  ordered_json series = fields;
  series["of"] = of;
  series["of"].update({{"data", data_json(files)},
                       {"tokens_asked", eval.tokens},
                       {"precision", precision_names[int(config.precision)]},
                       {"rope_scaling", rope_scaling_names[int(eval.rope_scaling)]},
                       {"window", eval.key_window},
                       {"sink_tokens", eval.sink_tokens}});
  of.update({{"data", data_json(files_of(windows, shards, files))}, {"windows", windows.count}});
  of.update(conditions_at(config, length));
  fields.update({{"length", length}, {"of", of}});
  return {fields, evaluation_id(fields), evaluation_id(series)};
}

void write_line(const Config& config, const WeightsOrigin& origin, MetricsLog& metrics, const char* type,
                const LossQuestion& question, const EvalReport& r) {
  bool suffix = config.eval.mode == EvalMode::suffix;
  ordered_json fields = line_of(origin, question.id);
  fields["series"] = question.series;
  fields.update(question.fields);
  fields["of"].update({{"tokens_asked", config.eval.tokens}, {"tokens", r.tokens}, {"windows", r.windows}});
  if (!r.tokenizer.empty()) fields["of"]["tokenizer"] = r.tokenizer;
  if (config.attention.documents == Documents::separate) fields["of"]["separator"] = r.separator;
  if (config.eval.start == WindowStart::document) fields["too_short"] = r.too_short;
  fields.update({{"loss", r.loss},
                 {"stderr", r.standard_error},
                 {"perplexity", r.perplexity},
                 {"bits_per_byte", r.bits_per_byte},
                 {"accuracy", r.accuracy.mean},
                 {"accuracy_stderr", r.accuracy.standard_error},
                 {"exact", r.exact.mean},
                 {"exact_stderr", r.exact.standard_error}});
  if (suffix)
    fields["difference"] = {
        {"from", r.difference.from}, {"loss", r.difference.loss}, {"stderr", r.difference.standard_error}};
  else
    fields.update({{"last_loss", r.last_loss},
                   {"position_edges", r.position_edges},
                   {"by_position", rounded(r.by_position)},
                   {"accuracy_by_position", rounded(r.accuracy_by_position)}});
  fields["window_losses"] = rounded(r.window_losses);
  if (!config.data.val_labels.empty() && config.train.label_mean == LabelMean::batch)
    fields["window_labels"] = std::vector<int64_t>(r.group_weights.begin(), r.group_weights.end());
  metrics.write(type, fields);
}

bool evaluate_lengths(const EvalContext& context, const std::vector<Shard>& shards, const std::vector<DataFile>& files,
                      const std::vector<int>& lengths, const char* type) {
  const Config& config = context.model.config();
  const Config::Eval& eval = config.eval;
  std::vector<int> order = lengths;
  bool suffix = eval.mode == EvalMode::suffix;
  if (suffix && !order.empty()) {
    order.push_back(*std::min_element(eval.lengths.begin(), eval.lengths.end()));
    std::sort(order.begin(), order.end());
    order.erase(std::unique(order.begin(), order.end()), order.end());
  }
  std::optional<EvalReport> shortest;
  bool finite = true;
  for (int length : order) {
    std::optional<EvalReport> report = evaluate(context.model, shards, length, eval.tokens, context.stop);
    if (!report) return finite;
    if (suffix) {
      if (!shortest) shortest = report;
      add_difference(*report, *shortest);
    }
    if (std::find(lengths.begin(), lengths.end(), length) == lengths.end()) continue;
    finite = finite && std::isfinite(report->loss);
    print(eval, context.origin.step, *report, type);
    LossQuestion question = loss_question(config, report->separator, shards, files, length);
    write_line(config, context.origin, context.metrics, type, question, *report);
  }
  return finite;
}
