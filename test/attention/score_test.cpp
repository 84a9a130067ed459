// Kinds that are files (attention/score.h): slopes of its functions against differences, and what every file of this
// build promises. The other tests of attention run these kinds like all others.
#include "attention/score.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/text.h"
#include "settings/config.h"
#include "test/support/error_of.h"

namespace {

struct Doubles {
  using Real = double;
  static double exp(double x) { return std::exp(x); }
  static double divide(double x, double y) { return x / y; }
  static double log(double x) { return std::log(x); }
  static double sqrt(double x) { return std::sqrt(x); }
  static double tanh(double x) { return std::tanh(x); }
  static double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
  static double softplus(double x) { return std::log1p(std::exp(x)); }
};
using Z = Score<Doubles, true>;
using C = Z::Constant;

TEST(Score, SlopesAreDerivatives) {
  auto check = [](const char* name, auto f) {
    for (double z : {-2.5, -0.3, 0.4, 1.7, 3.0}) {
      double h = 1e-5, difference = (f(C(z + h)).value - f(C(z - h)).value) / (2 * h);
      EXPECT_NEAR(f(Z(z, 1)).slope, difference, 1e-8 * (1 + std::fabs(difference))) << name << " at " << z;
      EXPECT_EQ(f(Z(z, 1)).value, f(C(z)).value) << name << " at " << z;
      // a factor before it: the chain rule
      double inner = (f(C(3) * C(z + h)).value - f(C(3) * C(z - h)).value) / (2 * h);
      EXPECT_NEAR(f(3 * Z(z, 1)).slope, inner, 1e-7 * (1 + std::fabs(inner))) << name << " of 3 z at " << z;
    }
  };
#define CHECK(EXPRESSION) check(#EXPRESSION, [](auto z) { return EXPRESSION; })
  CHECK(z + z * z);
  CHECK(z - z * z);
  CHECK(z / (1 + square(z)));
  CHECK(2 + z);
  CHECK(z + 2);
  CHECK(2 - z);
  CHECK(z - 2);
  CHECK(2 * z);
  CHECK(z * 2);
  CHECK(2 / (z + 20));
  CHECK(z / 2);
  CHECK(-z);
  CHECK(exp(z));
  CHECK(log(square(z)));
  CHECK(sqrt(1 + square(z)));
  CHECK(tanh(z));
  CHECK(sigmoid(z));
  CHECK(softplus(z));
  CHECK(relu(z));
  CHECK(abs(z));
  CHECK(square(z));
  CHECK(max(z, 0.5));
  CHECK(min(z, 0.5));
  CHECK(max(z, square(z)));
  CHECK(min(z, square(z)));
#undef CHECK
}

// f at some places of a file, by its default parameters.
void at_places(const KindFile& file, const std::function<void(const ScorePosition&, const std::string&)>& check) {
  std::vector<double> parameters;
  for (const ScoreKey& parameter : file.parameters) parameters.push_back(parameter.initial);
  parameters.push_back(0);  // data() of an empty one may be nullptr
  constexpr int places[][3] = {{1, 1, 1}, {70, 70, 2}, {70, 1, 1}, {5000, 20, 2}};
  for (auto [i, j, head] : places)
    check({i, j, i, head, 2, parameters.data()}, format("%s: f at i = %d, j = %d, head %d", file.path, i, j, head));
}

// The promises of score.h, each named where a file breaks it.
TEST(KindFiles, KeepTheirPromises) {
  for (const KindFile& file : kind_files())
    at_places(file, [&](const ScorePosition& place, const std::string& name) {
      for (double z : {-4000.0, -80.0, -30.0, -1.0, -0.1, 0.1, 1.0, 30.0, 80.0, 4000.0}) {
        double value, slope, above, below, unused;
        float naive, naive_slope;
        file.exact(z, place, value, slope);
        file.naive(float(z), place, naive, naive_slope);
        std::string at = name + format(", z = %g", z);
        EXPECT_TRUE(std::isfinite(naive)) << at << ": f overflows in float32 (" << naive << "): bound it";
        EXPECT_TRUE(std::isfinite(naive_slope)) << at << ": the slope of f overflows in float32 (" << naive_slope
                                                << "): write f so that no part of it does";
        if (file.weights == RowWeights::sum) EXPECT_GE(value, 0) << at << ": weights by sum need f >= 0";
        double h = 1e-5 * std::max(1.0, std::fabs(z));
        file.exact(z + h, place, above, unused), file.exact(z - h, place, below, unused);
        double difference = (above - below) / (2 * h), size = std::fabs(value) / std::fabs(z) + std::fabs(slope);
        EXPECT_NEAR(slope, difference, 1e-6 * (1 + size)) << at << ": the slope is not the derivative";
      }
    });
}

TEST(KindFiles, HaveKeysWithDefaultsInRange) {
  Config config = parse_config("{}", "c.json");
  for (const KindFile& file : kind_files())
    for (const ScoreKey& p : file.parameters)
      EXPECT_NO_THROW(parse_config(
          "{}", "c.json", {format("attention.kind=%s", file.name), format("attention.%s=%.17g", p.name, p.initial)}))
          << file.path << ": parameter " << p.name;
}

TEST(KindFiles, OtherTextsAreRefused) {
  for (const KindFile& file : kind_files()) {
    std::vector<std::string> sets = {format("attention.kind=%s", file.name)};
    std::string own = parse_config("{}", "c.json", sets).kind_file;
    sets.push_back("attention.kind_file=" + own);
    EXPECT_EQ(parse_config("{}", "c.json", sets).kind_file, own);
    sets.back() = format("attention.kind_file=%s 0123456789abcdef", file.name);
    expect_user_error([&] { parse_config("{}", "c.json", sets); },
                      {"attention.kind_file", file.path, own, "make KINDS="});
  }
}

}  // namespace
