#include "attention/score.h"
// Between 0 and 1, not normalised; of -inf, a masked score, the formula makes no number.
SCORE(softsign) {
  static constexpr RowWeights weights = RowWeights::none;
  FORMULA f(Z z, At) { return 0.5 + 0.5 * z / (1 + abs(z)); }
};
