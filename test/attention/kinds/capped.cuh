#include "attention/score.h"
// Softmax of scores that are soft-capped, as Gemma 2's (arXiv 2408.00118).
SCORE(capped) {
  static constexpr RowWeights weights = RowWeights::softmax;
  static constexpr ScoreKey parameters[] = {{"cap", 50, "(0, 1e6]", "bound of capped's scores"}};
  static constexpr const char* pytorch = "cap * torch.tanh(z / cap)";
  FORMULA f(Z z, At at) { return at.parameter[0] * tanh(z / at.parameter[0]); }
};
