#include "eval/eval_context.h"

#include <algorithm>
#include <cmath>

#include "base/progress.h"

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
