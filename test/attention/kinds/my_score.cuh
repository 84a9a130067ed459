#include "attention/score.h"
// Softmax of soft-capped scores that fall with the distance, as steeply as each head learns.
SCORE(my_score) {
  static constexpr RowWeights weights = RowWeights::softmax;
  static constexpr ScoreKey parameters[] = {{"cap", 50, "(0, 1e6]", "bound of my_score's scores"}};
  static constexpr LearnedNumber learned[] = {{"slope", 0.1}};
  static constexpr const char* pytorch = "cap * torch.tanh(z / cap) - slope * torch.log(1 + i - j)";
  FORMULA f(Z z, At at) {
    auto cap = at.parameter[0];
    return cap * tanh(z / cap) - at.learned[0] * log(1 + at.i - at.j);
  }
};
