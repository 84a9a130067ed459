#include "attention/score.h"
// (1 + z / sqrt(n))^2, divided by its sum.
SCORE(polynomial) {
  static constexpr RowWeights weights = RowWeights::sum;
  static constexpr const char* pytorch = "(1 + z / torch.sqrt(n)) ** 2";
  FORMULA f(Z z, At at) { return square(1 + z / sqrt(at.n)); }
};
