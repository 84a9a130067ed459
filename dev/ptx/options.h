// Environment variables:
//   PTX_ASYNC=late|random|early  when asynchronous copies and products happen: as late as a wait allows, at random
//                                moments, at once. Default: drawn for every launch
//   PTX_DIVERGE=1                run the lanes of a diverged warp in random order; default: those furthest behind first
//   PTX_SEED=N                   the seed of every random choice; default 1
//   PTX_WRONG_PRODUCTS=1         the first of cuBLASLt's algorithms is wrong, in a corner of its results, if it fuses
//                                an epilogue or divides k
//   PTX_TENSOR_CORE=ampere|hopper|exact  how products are added (tensor_core.cpp); default: as the target does. exact:
//                                without cutting the terms, as if tensor cores were better than they are
//   PTX_MULTIPROCESSORS=N        the number of the device's multiprocessors; default 3
//   PTX_MUTATE=KERNEL/FROM/TO/N  a planted bug: in kernels whose names contain KERNEL, in the N-th line of PTX that
//                                FROM, a regular expression, matches (0: in each), the match becomes TO
#pragma once
#include <cstdint>
#include <random>
#include <string>

namespace ptx {

enum class Async { drawn, late, random, early };
enum class TensorCore { of_target, ampere, hopper, exact };

struct Options {
  uint64_t seed = 1;
  Async async = Async::drawn;
  TensorCore tensor_core = TensorCore::of_target;
  bool random_divergence = false;
  bool wrong_products = false;
  int multiprocessors = 3;
  std::string mutation;
};
const Options& options();

// The only source of random choices.
std::mt19937_64& random_bits();
inline int draw(int n) { return int(random_bits()() % uint64_t(n)); }

}  // namespace ptx
