// Reads the environment once (options.h).
#include "emulation/ptx/options.h"
#include <cstdlib>
#include <map>
#include "emulation/ptx/program.h"

namespace ptx {
namespace {

std::string variable(const char* name) {
  const char* value = getenv(name);
  return value ? value : "";
}

Options read_options() {
  Options read;
  if (std::string seed = variable("PTX_SEED"); !seed.empty()) read.seed = strtoull(seed.c_str(), nullptr, 10);
  const std::map<std::string, Async> modes = {
      {"", Async::drawn}, {"late", Async::late}, {"random", Async::random}, {"early", Async::early}};
  const auto mode = modes.find(variable("PTX_ASYNC"));
  if (mode == modes.end()) {
    throw Error("PTX_ASYNC=" + variable("PTX_ASYNC") + " is unknown; use late, random or early");
  }
  read.async = mode->second;
  read.random_divergence = !variable("PTX_DIVERGE").empty();
  read.wrong_products = !variable("PTX_WRONG_PRODUCTS").empty();
  if (std::string n = variable("PTX_MULTIPROCESSORS"); !n.empty()) read.multiprocessors = atoi(n.c_str());
  read.mutation = variable("PTX_MUTATE");
  return read;
}

}  // namespace

const Options& options() {
  static const Options read = read_options();
  return read;
}

std::mt19937_64& random_bits() {
  static std::mt19937_64 bits(options().seed);
  return bits;
}

}  // namespace ptx
