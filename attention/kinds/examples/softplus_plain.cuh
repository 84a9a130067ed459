#include "attention/score.h"
// softplus(z), not normalised.
SCORE(softplus_plain) {
  static constexpr RowWeights weights = RowWeights::none;
  static constexpr const char* pytorch = "F.softplus(z)";
  FORMULA f(Z z, At) { return softplus(z); }
};
