#include "attention/score.h"
// A sigmoid whose threshold falls with the distance, by two numbers that each head learns; not normalised.
SCORE(bump) {
  static constexpr RowWeights weights = RowWeights::none;
  static constexpr ScoreKey parameters[] = {{"height", 0.5, "(0, 1e3]", "bound of bump's weights"}};
  static constexpr LearnedNumber learned[] = {{"slope", 0.2}, {"offset", 0.5}};
  static constexpr const char* pytorch = "height * torch.sigmoid(z - offset - slope * torch.log(1 + (i - j).abs()))";
  FORMULA f(Z z, At at) {
    return at.parameter[0] * sigmoid(z - at.learned[1] - at.learned[0] * log(1 + abs(at.i - at.j)));
  }
};
