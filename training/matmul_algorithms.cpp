#include "training/matmul_algorithms.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "kernels/matmul.cuh"

static void print(const MatmulChoices::Taken& taken, const DeviceInfo& device, const std::string& from) {
  if (taken.count > 0)
    std::printf("matrix products: %d algorithms for %s from %s, the oldest measured on %s\n", taken.count,
                device.name.c_str(), from.c_str(), taken.oldest.c_str());
}

void use_product_cache(const DeviceInfo& device, bool remeasure) {
  MatmulChoices* choices = matmul_choices();
  const char *xdg = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  auto given = [](const char* value) { return value && *value; };
  if (!choices || (!given(xdg) && !given(home))) return;
  std::filesystem::path folder =
      (given(xdg) ? std::filesystem::path(xdg) : std::filesystem::path(home) / ".cache") / "plusgpt";
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return;  // the products are measured again
  std::string file = (folder / "matmul.txt").string();
  print(choices->use_file(file, !remeasure), device, file);
}

void take_products(const Checkpoint& from, const DeviceInfo& device) {
  const std::string &before = from.state.products, &now = device.products;
  if (!before.empty() && before != now)
    std::printf("matrix products by %s round differently from those before this checkpoint, by %s\n", now.c_str(),
                before.c_str());
  if (MatmulChoices* choices = matmul_choices()) print(choices->take(from.state.matmul_choices), device, from.path);
}

// Each rank measures by itself, and its times differ from the others'. Generated text is left out: rank 0 alone writes
// it, so what it chooses there changes no other rank's bits.
void agree_on_products(Model& model, const std::vector<Evaluation>& evaluations, bool training) {
  Comm& comm = model.comm();
  MatmulChoices* choices = matmul_choices();
  if (!choices || comm.size() == 1) return;
  auto take_rank_0s = [&] { choices->take(comm.broadcast(choices->text())); };
  take_rank_0s();  // what rank 0 has already is not measured again
  const Config& config = model.config();
  if (training) {  // all micro steps have one shape; without update() only the gradients change
    std::vector<int> zeros(size_t(config.batch.micro) * config.model.context);
    std::vector<float> values(zeros.size() * config.model.head.outputs);
    model.begin_step();
    model.forward_backward(zeros.data(), {zeros.data(), nullptr, values.data()});
    model.reduce_and_clip(float(config.optimizer.grad_clip));
    model.parameters().choose_products();
  }
  for (const Evaluation& evaluation : evaluations)
    for (int length : evaluation.lengths) {
      int batch = evaluation.batch(config, length);
      std::vector<int> zeros(size_t(batch) * length);
      std::vector<float> results(std::max(zeros.size(), size_t(config.model.vocab)));
      std::vector<float> values(zeros.size() * config.model.head.outputs);
      model.set_length(length);
      if (evaluation.by_row) model.row_logits(results.data(), zeros.data(), batch, length, {0});
      else model.losses(results.data(), zeros.data(), {zeros.data(), nullptr, values.data()}, batch, length);
    }
  model.set_length(config.model.context);
  take_rank_0s();
}
