#include "attention/score.h"
// sigmoid(z), divided by its sum.
SCORE(sigmoid_l1) {
  static constexpr RowWeights weights = RowWeights::sum;
  static constexpr const char* pytorch = "torch.sigmoid(z)";
  FORMULA f(Z z, At) { return sigmoid(z); }
};
