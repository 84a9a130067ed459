#include "eval/predict.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/file.h"
#include "base/progress.h"
#include "eval/evaluate.h"

void check_output_file(const std::string& flag, const std::string& file) {
  std::filesystem::path folder = std::filesystem::path(file).parent_path();
  std::error_code ignored;
  if (!folder.empty() && !std::filesystem::is_directory(folder, ignored))
    user_error("command line: %s %s: there is no folder %s; create it first", flag.c_str(), file.c_str(),
               folder.c_str());
  if (std::filesystem::is_directory(file, ignored))
    user_error("command line: %s %s is a folder; name a file", flag.c_str(), file.c_str());
  if (std::filesystem::exists(file, ignored) && !std::filesystem::is_regular_file(file, ignored))
    user_error("command line: %s %s is a device or a pipe, which the new file would replace; name another file",
               flag.c_str(), file.c_str());
}

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
  std::vector<float> outputs(inputs.size() * K);
  std::vector<double> all(size_t(at_once) * T * K);  // of all ranks: each is 0 on all but one
  std::filesystem::path path = file;
  std::string temporary = (path.parent_path() / (".tmp_" + path.filename().string())).string();
  File out;
  std::unique_ptr<ProgressBar> progress;
  if (comm.first()) {
    out = File::create(temporary);
    progress = std::make_unique<ProgressBar>("predict", windows);
    std::string header = npy_header(windows, T, K);
    out.write(header.data(), header.size());
  }
  model.set_rope(T);
  for (int64_t first = 0; first < windows; first += at_once) {
    int64_t window = first + int64_t(comm.rank()) * batch;
    std::fill(all.begin(), all.end(), 0.0);
    if (window < windows) {
      int count = int(std::min<int64_t>(batch, windows - window));
      for (int row = 0; row < batch; row++)  // a short last batch is filled with its last window
        reader.read(window + std::min(row, count - 1), &inputs[size_t(row) * T], &unused[size_t(row) * T]);
      model.outputs(outputs.data(), inputs.data(), batch, T);
      std::copy(outputs.begin(), outputs.begin() + ptrdiff_t(count) * T * K,
                all.begin() + ptrdiff_t(comm.rank()) * batch * T * K);
    }
    comm.all_reduce_sum(all.data(), all.size());
    if (!comm.first()) continue;
    int64_t done = std::min(at_once, windows - first);
    std::vector<float> values(all.begin(), all.begin() + done * T * K);
    out.write(values.data(), values.size() * sizeof(float));
    progress->update(first + done);
  }
  if (!comm.first()) return;
  out.sync();
  out.close();
  std::filesystem::rename(temporary, file);
  progress->clear();
  std::printf("outputs of %lld windows of %d tokens in %s\n", (long long)windows, T, file.c_str());
}
