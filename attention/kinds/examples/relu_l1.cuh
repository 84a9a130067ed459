#include "attention/score.h"
// relu(z), divided by its sum; a row without a score above 0 has no weights.
SCORE(relu_l1) {
  static constexpr RowWeights weights = RowWeights::sum;
  static constexpr const char* pytorch = "torch.relu(z)";
  FORMULA f(Z z, At) { return relu(z); }
};
