#include "eval/evaluate.h"

#include <algorithm>
#include <cmath>

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

std::optional<LengthLoss> evaluate(Model& model, const std::vector<Shard>& shards, int length, int64_t tokens,
                                   const std::function<bool()>& stop) {
  const Config& config = model.config();
  int64_t windows = check_windows(config, shards, length, tokens);
  WindowReader reader(shards, length, config.model.vocab, "data.val");
  int batch = batch_of(config, length, windows);
  std::vector<int> inputs(size_t(batch) * length), targets(inputs.size());
  std::vector<float> losses(inputs.size());
  std::vector<double> by_position(length, 0.0);  // summed over the windows in order, then over the ranks
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
    for (int row = 0; row < count; row++)
      for (int t = 0; t < length; t++) by_position[t] += losses[size_t(row) * length + t];
    if (progress) progress->update(window + count);
  }
  model.set_rope(config.model.context);
  if (stopped) return std::nullopt;
  comm.all_reduce_sum(by_position.data(), by_position.size());

  LengthLoss result{length, 0, 0, windows * length, {}};
  int bin = std::clamp(length / 32, 1, 256), last = std::min(1024, length);
  for (int t = 0; t < length; t++) {
    if (t % bin == 0) result.by_position.push_back(0);
    result.by_position.back() += by_position[t];
    result.loss += by_position[t];
    if (t >= length - last) result.last_loss += by_position[t];
  }
  for (size_t i = 0; i < result.by_position.size(); i++)
    result.by_position[i] /= double(windows) * std::min<double>(bin, length - double(i) * bin);
  result.loss /= double(windows) * length;
  result.last_loss /= double(windows) * last;
  return result;
}

bool evaluate_lengths(Model& model, const std::vector<Shard>& shards, const std::vector<int>& lengths, int64_t step,
                      const char* type, MetricsLog* metrics, const std::function<bool()>& stop) {
  bool finite = true;
  for (int length : lengths) {
    std::optional<LengthLoss> loss = evaluate(model, shards, length, model.config().eval.tokens, stop);
    if (!loss) return finite;
    LengthLoss& result = *loss;
    finite = finite && std::isfinite(result.loss);
    std::printf("%s  step %lld  length %5d | loss %.4f | last %d: %.4f | %s tokens\n", type, (long long)step, length,
                result.loss, std::min(1024, length), result.last_loss, count_text(double(result.tokens)).c_str());
    std::fflush(stdout);
    if (!metrics) continue;
    if (std::string(type) == "eval")
      metrics->eval(step, length, result.loss, result.tokens, result.last_loss, result.by_position);
    else metrics->val(step, length, result.loss, result.tokens);
  }
  return finite;
}
