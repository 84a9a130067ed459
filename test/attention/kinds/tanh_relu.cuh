#include "attention/score.h"
// tanh of what is above 0, not normalised.
SCORE(tanh_relu) {
  static constexpr RowWeights weights = RowWeights::none;
  static constexpr const char* pytorch = "torch.tanh(torch.relu(z))";
  FORMULA f(Z z, At) { return tanh(relu(z)); }
};
