#include "attention/score.h"
// Softmax with a penalty that grows with the root of the distance, by head.
SCORE(nearby) {
  static constexpr RowWeights weights = RowWeights::softmax;
  static constexpr ScoreKey parameters[] = {{"steepness", 1, "[0, 1e3]", "factor of nearby's penalty sqrt(i - j)"}};
  static constexpr const char* pytorch = "z - steepness * head / heads * torch.sqrt(torch.abs(i - j))";
  FORMULA f(Z z, At at) { return z - at.parameter[0] * at.head / at.heads * sqrt(abs(at.i - at.j)); }
};
