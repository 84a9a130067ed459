#include "attention/score.h"
// Softmax of soft-capped scores, with a cap that each head learns.
SCORE(learned_cap) {
  static constexpr RowWeights weights = RowWeights::softmax;
  static constexpr LearnedNumber learned[] = {{"cap", 10}};
  static constexpr const char* pytorch = "cap * torch.tanh(z / cap)";
  FORMULA f(Z z, At at) { return at.learned[0] * tanh(z / at.learned[0]); }
};
