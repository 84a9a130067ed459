#include "attention/score.h"
// (1 + z / sqrt(n))^2, divided by its sum.
SCORE(polynomial) {
  static constexpr RowWeights weights = RowWeights::sum;
  FORMULA f(Z z, At<Z> at) { return square(1 + z / sqrt(at.n)); }
};
