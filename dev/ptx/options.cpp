// Reads the environment once (options.h).
#include "dev/ptx/options.h"
#include <cstdlib>
#include <map>
#include "dev/ptx/program.h"

namespace ptx {
namespace {

std::string variable(const char* name) {
  const char* value = getenv(name);
  return value ? value : "";
}

template <class T> T choice(const char* name, const std::map<std::string, T>& choices, const char* all) {
  const auto found = choices.find(variable(name));
  if (found == choices.end()) throw Error(std::string(name) + "=" + variable(name) + " is unknown; use " + all);
  return found->second;
}

Options read_options() {
  Options read;
  if (std::string seed = variable("PTX_SEED"); !seed.empty()) read.seed = strtoull(seed.c_str(), nullptr, 10);
  read.async = choice<Async>(
      "PTX_ASYNC", {{"", Async::drawn}, {"late", Async::late}, {"random", Async::random}, {"early", Async::early}},
      "late, random or early");
  read.tensor_core = choice<TensorCore>("PTX_TENSOR_CORE",
                                        {{"", TensorCore::of_target},
                                         {"ampere", TensorCore::ampere},
                                         {"hopper", TensorCore::hopper},
                                         {"exact", TensorCore::exact}},
                                        "ampere, hopper or exact");
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
