#include "eval/eval_context.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/checksum.h"
#include "base/progress.h"

using nlohmann::ordered_json;

std::string evaluation_id(const ordered_json& what) {
  ordered_json content = what;
  if (content.contains("of") && content["of"].contains("data"))
    for (ordered_json& file : content["of"]["data"]) file.erase("name");
  return checksum_text(content.dump());
}

ordered_json conditions_at(const Config& config, int length) {
  RopeScaling scaling = length > config.model.context ? config.eval.rope_scaling : RopeScaling::none;
  ordered_json conditions = {{"precision", precision_names[int(config.precision)]},
                             {"rope_scaling", rope_scaling_names[int(scaling)]}};
  if (config.has_eval_window(length))
    conditions.update({{"window", config.eval.key_window}, {"sink_tokens", config.eval.sink_tokens}});
  return conditions;
}

ordered_json line_of(const WeightsOrigin& origin, const std::string& id) {
  ordered_json line = {{"id", id},
                       {"step", origin.step},
                       {"tokens", origin.tokens},
                       {"weights", {{"run", origin.run}, {"path", origin.path}}}};
  if (!origin.checksum.empty()) line["weights"]["xxh64"] = origin.checksum;
  return line;
}

bool for_batches_of_rank(Comm& comm, int64_t count, int batch, const Stop& stop,
                         const std::function<void(int64_t first, int n)>& f) {
  for (int64_t round = 0; round < count; round += int64_t(comm.size()) * batch) {
    if (stop && stop()) return false;
    int64_t first = round + int64_t(comm.rank()) * batch;
    if (first < count) f(first, int(std::min<int64_t>(batch, count - first)));
  }
  return true;
}

bool for_windows_of_rank(Model& model, const std::string& title, int length, int64_t windows, int batch,
                         const Stop& stop, const std::function<void(int64_t first, int n)>& f) {
  ProgressBar progress(title, windows, model.comm().first() ? stderr : nullptr);
  model.set_length(length);
  bool complete = for_batches_of_rank(model.comm(), windows, batch, stop, [&](int64_t first, int n) {
    f(first, n);
    progress.update(first + n);
  });
  model.set_length(model.config().model.context);
  return complete;
}

double share_error(double share, double count) { return std::sqrt(std::max(0.0, share * (1 - share)) / (count - 1)); }

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / double(values.size());
}
