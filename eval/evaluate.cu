#include "eval/evaluate.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "base/progress.h"
#include "base/text.h"

// How many windows are computed at once if `windows` are evaluated in all.
static int batch_of(const Config& config, int length, int64_t windows) {
  return int(std::min<int64_t>(eval_batch(config, length), windows));
}

size_t eval_rows(const Config& config, const std::vector<int>& lengths) {
  size_t rows = 0;
  for (int length : lengths) {
    int64_t windows = std::max<int64_t>(1, config.eval.tokens / length);
    rows = std::max(rows, size_t(batch_of(config, length, windows)) * length);
  }
  return rows;
}

int64_t check_windows(const Config& config, const std::vector<Shard>& shards, int length, int64_t tokens) {
  if (tokens < length)
    user_error(
        "config: eval.tokens = %lld is less than one window of %d tokens; raise eval.tokens or evaluate a shorter "
        "length  [%s]",
        (long long)tokens, length, config.file.c_str());
  return std::min(tokens / length, WindowReader(shards, length, config.model.vocab, "data.val").windows());
}

void make_products_of_evaluate(Model& model, const std::vector<Shard>& shards, int length, int64_t tokens) {
  const Config& config = model.config();
  int batch = batch_of(config, length, check_windows(config, shards, length, tokens));
  std::vector<int> zeros(size_t(batch) * length);
  std::vector<float> losses(zeros.size());
  model.set_rope(length);
  model.losses(losses.data(), zeros.data(), zeros.data(), batch, length);
  model.set_rope(config.model.context);
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

// windows: the mean loss of each. Fills the standard error of their mean, and the means of groups of them.
static void add_spread(EvalReport& report, const std::vector<double>& windows) {
  size_t count = windows.size(), groups = std::min<size_t>(count, 256);
  double mean = std::accumulate(windows.begin(), windows.end(), 0.0) / double(count), squares = 0;
  for (double loss : windows) squares += (loss - mean) * (loss - mean);
  if (count > 1) report.standard_error = std::sqrt(squares / double(count - 1) / double(count));
  for (size_t g = 0; g < groups; g++) {
    auto begin = windows.begin() + g * count / groups, end = windows.begin() + (g + 1) * count / groups;
    report.window_losses.push_back(std::accumulate(begin, end, 0.0) / double(end - begin));
  }
}

// Fills the shards that the windows come from, and bits per byte: the nats of a token in bits, times the tokens and
// over the bytes of these whole shards, which for the evaluated windows alone are not known.
static void add_data(EvalReport& report, const WindowReader& reader, const std::vector<Shard>& shards,
                     const std::vector<DataFile>& files) {
  double tokens = 0, bytes = 0;
  size_t next = 0;  // shards before it have been counted
  for (int64_t w = 0; w < report.windows; w++) {
    size_t i = reader.shard_of(w);
    if (i < next) continue;
    next = i + 1;
    report.data.push_back(files[i]);
    tokens += double(shards[i].tokens);
    bytes += shards[i].text_bytes > 0 ? double(shards[i].text_bytes) : NAN;
  }
  report.bits_per_byte = report.loss / std::numbers::ln2 * tokens / bytes;
}

std::optional<EvalReport> evaluate(Model& model, const std::vector<Shard>& shards, const std::vector<DataFile>& files,
                                   int length, int64_t tokens, const std::function<bool()>& stop) {
  const Config& config = model.config();
  int64_t windows = check_windows(config, shards, length, tokens);
  WindowReader reader(shards, length, config.model.vocab, "data.val");
  int batch = batch_of(config, length, windows);
  std::vector<int> inputs(size_t(batch) * length), targets(inputs.size());
  std::vector<float> losses(inputs.size());
  std::vector<double> by_position(length, 0.0);  // summed over the windows in order, then over the ranks
  std::vector<double> by_window(windows, 0.0);   // means; each is 0 on all ranks but one, so their sum is exact
  model.set_rope(length);
  Comm& comm = model.comm();
  std::unique_ptr<ProgressBar> progress;
  if (comm.first()) progress = std::make_unique<ProgressBar>(format("eval length %d", length), windows);
  bool stopped = false;
  for (int64_t first = 0; first < windows; first += int64_t(comm.size()) * batch) {
    if (stop && (stopped = stop())) break;
    int64_t window = first + int64_t(comm.rank()) * batch;
    if (window >= windows) continue;
    int count = int(std::min<int64_t>(batch, windows - window));
    // A short last batch is filled with its last window, which is counted once, so all batches have one size.
    for (int row = 0; row < batch; row++)
      reader.read(window + std::min(row, count - 1), &inputs[size_t(row) * length], &targets[size_t(row) * length]);
    model.losses(losses.data(), inputs.data(), targets.data(), batch, length);
    for (int row = 0; row < count; row++) {
      const float* loss = &losses[size_t(row) * length];
      for (int t = 0; t < length; t++) by_position[t] += loss[t];
      by_window[window + row] = std::accumulate(loss, loss + length, 0.0) / length;
    }
    if (progress) progress->update(window + count);
  }
  model.set_rope(config.model.context);
  if (stopped) return std::nullopt;
  comm.all_reduce_sum(by_position.data(), by_position.size());
  comm.all_reduce_sum(by_window.data(), by_window.size());

  EvalReport report;
  report.length = length;
  report.tokens_asked = tokens;
  report.tokens = windows * length;
  report.windows = windows;
  report.rope_scaling = rope_scaling_names[int(config.eval.rope_scaling)];
  report.position_edges = position_edges(length);
  int last = std::min(1024, length);
  for (int t = 0; t < length; t++) {
    report.loss += by_position[t];
    if (t >= length - last) report.last_loss += by_position[t];
  }
  report.loss /= double(windows) * length;
  report.last_loss /= double(windows) * last;
  for (size_t i = 0; i + 1 < report.position_edges.size(); i++) {
    int from = report.position_edges[i], to = report.position_edges[i + 1];
    double sum = std::accumulate(&by_position[from], by_position.data() + to, 0.0);
    report.by_position.push_back(sum / (double(windows) * (to - from)));
  }
  add_spread(report, by_window);
  add_data(report, reader, shards, files);
  return report;
}

bool evaluate_lengths(Model& model, const std::vector<Shard>& shards, const std::vector<DataFile>& files,
                      const std::vector<int>& lengths, const char* type, const Weights& weights, MetricsLog& metrics,
                      const std::function<bool()>& stop) {
  bool finite = true;
  for (int length : lengths) {
    std::optional<EvalReport> report = evaluate(model, shards, files, length, model.config().eval.tokens, stop);
    if (!report) return finite;
    EvalReport& r = *report;
    finite = finite && std::isfinite(r.loss);
    std::string error = std::isfinite(r.standard_error) ? format(" +- %.4f", r.standard_error) : "",
                bits = std::isfinite(r.bits_per_byte) ? format(" | %.4f bits per byte", r.bits_per_byte) : "";
    std::printf("%s  step %lld  length %5d | loss %.4f%s | last %d: %.4f%s | %s tokens\n", type,
                (long long)weights.step, length, r.loss, error.c_str(), std::min(1024, length), r.last_loss,
                bits.c_str(), count_text(double(r.tokens)).c_str());
    std::fflush(stdout);
    r.weights = weights;
    metrics.evaluation(type, r);
  }
  return finite;
}
