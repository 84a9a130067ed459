// What the environment chooses:
//   PTX_ASYNC=late|random|early  when asynchronous copies and products happen: as late as a wait allows, at some
//                                moment, at once. Default: drawn for every launch
//   PTX_DIVERGE=1                which lanes of a diverged warp go first is drawn; default: those furthest behind
//   PTX_SEED=N                   of every random choice; default 1
//   PTX_MULTIPROCESSORS=N        of the device; default 3
//   PTX_MUTATE=KERNEL/FROM/TO/N  a planted bug: in kernels whose names contain KERNEL, in the N-th line of PTX that
//                                FROM, a regular expression, matches (0: in each), the match becomes TO
#pragma once
#include <cstdint>
#include <random>
#include <string>

namespace ptx {

enum class Async { drawn, late, random, early };

struct Options {
  uint64_t seed = 1;
  Async async = Async::drawn;
  bool random_divergence = false;
  int multiprocessors = 3;
  std::string mutation;
};
const Options& options();

// The one source of random choices.
std::mt19937_64& random_bits();
inline int draw(int n) { return int(random_bits()() % uint64_t(n)); }

}  // namespace ptx
