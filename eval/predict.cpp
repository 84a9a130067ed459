#include "eval/predict.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdint>
#include <optional>

#include "base/file.h"
#include "base/text.h"
#include "eval/evaluate.h"
#include "ranks/requests.h"

// Begins the file on rank 0. Version 1 of the format has a header of 128 bytes. shape: "3, 4".
static void begin_npy(std::optional<PendingFile>& out, Comm& comm, const std::string& file, const std::string& shape) {
  std::string text = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + shape + "), }";
  text.resize(117, ' ');
  text = std::string("\x93NUMPY\x01\x00\x76\x00", 10) + text + "\n";
  if (comm.first()) out.emplace(file).write(text.data(), text.size());
}

// Computes `numbers` floats for each window: compute(out [batch, numbers], first, count) computes a batch, on any rank,
// and write(values [count, numbers], first, count) gets them on rank 0, in order. Returns false if a signal ended it.
static bool for_windows_in_order(Model& model, const char* what, int length, int64_t windows, int batch, size_t numbers,
                                 const std::function<void(float*, int64_t, int)>& compute,
                                 const std::function<void(const float*, int64_t, int64_t)>& write) {
  Comm& comm = model.comm();
  int64_t at_once = int64_t(comm.size()) * batch;
  std::vector<float> own(batch * numbers), values;
  std::vector<double> all(at_once * numbers);  // of all ranks
  auto add_batch = [&](int64_t window, int) {
    std::fill(all.begin(), all.end(), 0.0);
    if (int64_t count = std::min<int64_t>(batch, windows - window); count > 0) {
      compute(own.data(), window, int(count));
      std::copy(own.begin(), own.begin() + count * numbers, all.begin() + comm.rank() * ptrdiff_t(own.size()));
    }
    comm.combine(all.data(), all.size());
    if (!comm.first()) return;
    int64_t count = std::min(at_once, windows - window);
    values.assign(all.begin(), all.begin() + count * numbers);
    write(values.data(), window, count);
  };
  // Whole rounds, because all ranks take part in each sum: the last windows of some ranks may not exist.
  int64_t rounds = (windows + at_once - 1) / at_once;
  auto stop = [&] { return requests_of_ranks(comm).stop; };
  return for_windows_of_rank(model, what, length, rounds * at_once, batch, stop, add_batch);
}

void predict(Model& model, const std::vector<Shard>& shards, const std::string& file) {
  const Config& config = model.config();
  int T = config.model.context, K = config.model.head.outputs, batch = batch_of(config, -1, shards, T);
  std::vector<Shard> inputs_only = shards;
  for (Shard& shard : inputs_only) shard.labels = nullptr;
  WindowReader reader(inputs_only, T, config.model.vocab, "data.val");
  int64_t windows = reader.windows();
  std::vector<int> inputs(size_t(batch) * T), unused(inputs.size());
  std::optional<PendingFile> out;
  begin_npy(out, model.comm(), file, format("%ld, %d, %d", windows, T, K));
  auto compute = [&](float* outputs, int64_t first, int count) {
    read_batch(reader, first, count, T, inputs, unused, nullptr);
    model.outputs(outputs, inputs.data(), batch, T);
  };
  auto write = [&](const float* values, int64_t, int64_t count) { out->write(values, count * T * K * sizeof(float)); };
  if (!for_windows_in_order(model, "predict", T, windows, batch, size_t(T) * K, compute, write) || !out) return;
  out->publish();
  std::printf("outputs of %ld %s of %d %s in %s\n", windows, plural(double(windows), "window").c_str(), T,
              plural(T, "token").c_str(), file.c_str());
}

void write_token_losses(Model& model, const std::vector<Shard>& shards, const std::string& file) {
  const Config& config = model.config();
  std::vector<int64_t> begin = {0};  // of each shard, counted over all
  for (const Shard& shard : shards) begin.push_back(begin.back() + shard.tokens);
  std::optional<PendingFile> out;
  begin_npy(out, model.comm(), file, format("%zu, %ld", config.eval.lengths.size(), begin.back()));
  const std::vector<float> no_losses(4096, NAN);
  for (int length : config.eval.lengths) {
    int whole = config.eval.window(length), counted = config.eval.targets(length);
    int batch = batch_of(config, model.facts().separator, shards, length);
    const WindowReader reader = eval_windows(config, model.facts().separator, shards, length, INT64_MAX).reader;
    std::vector<int> inputs(size_t(batch) * length), targets(inputs.size());
    std::vector<float> losses(inputs.size()), labels(inputs.size() * config.model.head.outputs);
    auto compute = [&](float* values, int64_t first, int count) {
      read_batch(reader, first, count, length, inputs, targets, labels.data());
      model.losses(losses.data(), inputs.data(), {targets.data(), nullptr, labels.data()}, batch, length);
      for (size_t i = 0; i < losses.size(); i++)
        if (int t = int(i % length) - (length - counted); t >= 0)
          values[i / length * counted + t] = targets[i] < 0 ? NAN : losses[i];
    };
    int64_t token = 0;  // of which the loss is written next
    auto skip_to = [&](int64_t next) {
      for (size_t some; token < next; token += some) {
        some = std::min<size_t>(next - token, no_losses.size());
        out->write(no_losses.data(), some * sizeof(float));
      }
    };
    auto write = [&](const float* values, int64_t first, int64_t count) {
      for (int64_t w = 0; w < count; w++, token += counted) {
        skip_to(begin[reader.shard_of(first + w)] + reader.first_token(first + w) + whole - counted);
        out->write(values + w * counted, counted * sizeof(float));
      }
    };
    std::string what = format("losses length %d", length);
    if (!for_windows_in_order(model, what.c_str(), length, reader.windows(), batch, counted, compute, write)) return;
    if (out) skip_to(begin.back());
  }
  if (!out) return;
  out->publish();
  std::printf("losses of %ld %s in %s\n", begin.back(), plural(double(begin.back()), "token").c_str(), file.c_str());
}
