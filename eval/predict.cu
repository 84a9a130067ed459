#include "eval/predict.h"

#include <algorithm>
#include <cstdio>
#include <optional>

#include "base/file.h"
#include "base/text.h"
#include "eval/evaluate.h"
#include "ranks/requests.h"

// Version 1 of the format, in 128 bytes.
static std::string npy_header(int64_t windows, int T, int K) {
  std::string text =
      format("{'descr': '<f4', 'fortran_order': False, 'shape': (%lld, %d, %d), }", (long long)windows, T, K);
  text.resize(117, ' ');
  return std::string("\x93NUMPY\x01\x00\x76\x00", 10) + text + "\n";
}

void predict(Model& model, const std::vector<Shard>& shards, const std::string& file) {
  const Config& config = model.config();
  Comm& comm = model.comm();
  int T = config.model.context, K = config.model.head.outputs;
  // The batch of an evaluation, whose matrix products all ranks have agreed on.
  int batch = int(std::min<int64_t>(eval_batch(config, T), check_windows(config, shards, T, config.eval.tokens)));
  std::vector<Shard> inputs_only = shards;
  for (Shard& shard : inputs_only) shard.labels = nullptr;
  WindowReader reader(inputs_only, T, config.model.vocab, "data.val");
  int64_t windows = reader.windows(), at_once = int64_t(comm.size()) * batch;
  std::vector<int> inputs(size_t(batch) * T), unused(inputs.size());
  std::vector<float> outputs(inputs.size() * K), values;
  std::vector<double> all(size_t(at_once) * T * K);  // of all ranks: each is 0 on all but one
  std::optional<PendingFile> out;
  std::string header = npy_header(windows, T, K);
  if (comm.first()) out.emplace(file).write(header.data(), header.size());
  auto add_batch = [&](int64_t window, int) {
    std::fill(all.begin(), all.end(), 0.0);
    if (int64_t count = std::min<int64_t>(batch, windows - window); count > 0) {
      for (int row = 0; row < batch; row++)  // a short last batch is filled with its last window
        reader.read(window + std::min<int64_t>(row, count - 1), &inputs[size_t(row) * T], &unused[size_t(row) * T]);
      model.outputs(outputs.data(), inputs.data(), batch, T);
      std::copy(outputs.begin(), outputs.begin() + count * T * K,
                all.begin() + comm.rank() * ptrdiff_t(outputs.size()));
    }
    comm.all_reduce_sum(all.data(), all.size());
    if (!out) return;
    values.assign(all.begin(), all.begin() + std::min(at_once, windows - window) * T * K);
    out->write(values.data(), values.size() * sizeof(float));
  };
  // Whole rounds, because all ranks take part in each sum: the last windows of some ranks may not exist.
  int64_t rounds = (windows + at_once - 1) / at_once;
  auto stop = [&] { return requests_of_ranks(comm).stop; };
  if (!for_batches_of_rank(model, "predict", T, rounds * at_once, batch, stop, add_batch)) return;
  if (!out) return;
  out->publish();
  std::printf("outputs of %lld %s of %d %s in %s\n", (long long)windows, plural(double(windows), "window").c_str(), T,
              plural(T, "token").c_str(), file.c_str());
}
