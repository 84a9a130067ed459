#include "attention/score.h"
// tanh of what is above 0, not normalised.
SCORE(tanh_relu) {
  static constexpr RowWeights weights = RowWeights::none;
  FORMULA f(Z z, At<Z>) { return tanh(relu(z)); }
};
