#include "training/products.h"

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
  if (!choices || (!xdg && !home)) return;
  std::filesystem::path folder =
      (xdg ? std::filesystem::path(xdg) : std::filesystem::path(home) / ".cache") / "plusgpt";
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return;  // the products are measured again
  std::string file = (folder / "matmul.txt").string();
  print(choices->use_file(file, !remeasure), device, file);
}

void take_products(const Checkpoint& from, const DeviceInfo& device) {
  if (MatmulChoices* choices = matmul_choices()) print(choices->take(from.state.matmul_choices), device, from.path);
}
