// Kinds that are files (attention/score.h): slopes of its functions against differences, what every file of this build
// promises, and how broken promises are named. The other tests of attention run these kinds like all others.
#include "attention/kind_row.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/checksum.h"
#include "base/text.h"
#include "checkpoint/hugging_face.h"
#include "settings/config.h"
#include "test/support/error_of.h"
#include "train_gpt2.h"

namespace {

using Z = Score<HostFunctions<double>, true>;
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

// The first promise of score.h that f breaks at this place, "" if it keeps all. numbers: parameters, then learned ones.
std::string broken_promise(const KindRow& file, std::vector<double> numbers, ScorePosition<int> at) {
  size_t fixed = file.parameters.size();
  for (double z : {-4000.0, -80.0, -30.0, -1.0, -0.1, 0.1, 1.0, 30.0, 80.0, 4000.0}) {
    double value, slopes[1 + MOST_PARAMETERS], unused[1 + MOST_PARAMETERS];
    float naive, naive_slopes[1 + MOST_PARAMETERS];
    file.exact(z, at, numbers.data(), value, slopes);
    file.naive(float(z), at, numbers.data(), naive, naive_slopes);
    std::string where = format(" at z = %g", z);
    if (std::isnan(value))
      return "f is not a number" + where + ": it must be one for every z; bound what log or sqrt takes";
    if (!std::isfinite(naive)) return "f overflows in float32" + where + ": bound it, by min() for example";
    if (file.weights == RowWeights::sum && value < 0)
      return "f is negative" + where + ": weights by sum need f >= 0; use relu, exp, square or softplus";
    for (size_t l = 0; l <= file.learned.size(); l++) {
      std::string slope = "the slope of f" + (l ? format(" by %s", file.learned[l - 1].name) : "");
      if (std::isnan(slopes[l])) return slope + " is not a number" + where + ": bound what log, sqrt and / take";
      if (!std::isfinite(naive_slopes[l]))
        return slope + " overflows in float32" + where + ": so does a part of f; bound it";
      double z_there = z, &x = l ? numbers[fixed + l - 1] : z_there, here = x, above, below;
      double h = 1e-5 * std::max(1.0, std::fabs(here));
      x = here + h, file.exact(z_there, at, numbers.data(), above, unused);
      x = here - h, file.exact(z_there, at, numbers.data(), below, unused);
      x = here;
      double derivative = (above - below) / (2 * h), size = std::fabs(value / here) + std::fabs(slopes[l]);
      if (std::fabs(slopes[l] - derivative) > 1e-6 * (1 + size))
        return format("%s is %g%s, but its derivative is %g: keep to Z and C, without .value", slope.c_str(), slopes[l],
                      where.c_str(), derivative);
    }
  }
  return "";
}

// By the numbers that it begins with, at several places.
std::string broken_promise(const KindRow& file) {
  std::vector<double> numbers;
  for (const ScoreKey& parameter : file.parameters) numbers.push_back(parameter.initial);
  for (const LearnedNumber& number : file.learned) numbers.push_back(number.initial);
  constexpr int places[][3] = {{1, 1, 1}, {70, 70, 2}, {70, 1, 1}, {5000, 20, 2}};
  for (auto [i, j, head] : places)
    if (std::string broken = broken_promise(file, numbers, {i, j, i, head, 2}); !broken.empty())
      return format("%s: %s (i = %d, j = %d, head %d of 2)", file.path, broken.c_str(), i, j, head);
  return "";
}

TEST(KindFiles, KeepTheirPromises) {
  for (const KindRow& kind : kind_rows()) EXPECT_EQ(kind.is_formula() ? broken_promise(kind) : "", "");
}

struct Files {
  SCORE(overflows) {
    static constexpr RowWeights weights = RowWeights::none;
    FORMULA f(Z z, At) { return exp(z); }
  };
  SCORE(negative) {
    static constexpr RowWeights weights = RowWeights::sum;
    FORMULA f(Z z, At) { return z; }
  };
  SCORE(undefined) {
    static constexpr RowWeights weights = RowWeights::none;
    FORMULA f(Z z, At) { return log(z); }
  };
  SCORE(steep) {
    static constexpr RowWeights weights = RowWeights::none;
    FORMULA f(Z z, At) { return tanh(square(exp(min(z, 85.0)))); }
  };
  SCORE(detached) {
    static constexpr RowWeights weights = RowWeights::none;
    FORMULA f(Z z, At) { return tanh(z) * typename Z::Constant(tanh(z).value); }
  };
  SCORE(detached_cap) {
    static constexpr RowWeights weights = RowWeights::none;
    static constexpr LearnedNumber learned[] = {{"cap", 3}};
    FORMULA f(Z z, At at) { return typename Z::Constant(at.learned[0].value) * tanh(z / at.learned[0]); }
  };
  SCORE(early) {  // of the first key of a row alone
    static constexpr RowWeights weights = RowWeights::sum;
    FORMULA f(Z z, At at) { return relu(z) + at.i - at.j - 1; }
  };
};

TEST(KindFiles, BrokenPromisesAreNamed) {
  auto expect = [](const KindRow& file, const std::string& begin) {
    std::string broken = broken_promise(file);
    EXPECT_TRUE(broken.starts_with("a/x.cuh: " + begin)) << begin << ": " << broken;
  };
  expect(kind_row_of<Files::kind_overflows>("x", "a/x.cuh", ""), "f overflows in float32 at z = 4000: bound it");
  expect(kind_row_of<Files::kind_negative>("x", "a/x.cuh", ""), "f is negative at z = -4000: weights by sum need");
  expect(kind_row_of<Files::kind_undefined>("x", "a/x.cuh", ""), "f is not a number at z = -4000");
  expect(kind_row_of<Files::kind_steep>("x", "a/x.cuh", ""), "the slope of f overflows in float32 at z = ");
  expect(kind_row_of<Files::kind_detached>("x", "a/x.cuh", ""), "the slope of f is ");
  expect(kind_row_of<Files::kind_detached_cap>("x", "a/x.cuh", ""), "the slope of f by cap is ");
  expect(kind_row_of<Files::kind_early>("x", "a/x.cuh", ""), "f is negative at z = -4000");
}

TEST(KindFiles, HaveKeysWithDefaultsInRange) {
  Config config = parse_config("{}", "c.json");
  for (const KindRow& file : kind_rows())
    for (const ScoreKey& p : file.parameters)
      EXPECT_NO_THROW(parse_config(
          "{}", "c.json", {format("attention.kind=%s", file.name), format("attention.%s=%.17g", p.name, p.initial)}))
          << file.name << ": parameter " << p.name;
}

// With their formulas in PyTorch, or a warning.
TEST(KindFiles, AreInCheckpoints) {
  auto with_kind = [](const char* kind) { return parse_config("{}", "c.json", {format("attention.kind=%s", kind)}); };
  EXPECT_NE(modelling_code(with_kind("lssar")).find("\nFORMULAS = {\n}\n"), std::string::npos);
  EXPECT_TRUE(texts_of_kinds(with_kind("lssa")).empty());
  for (const KindRow& file : kind_rows()) {
    Config config = with_kind(file.name);
    testing::internal::CaptureStderr();
    auto texts = texts_of_kinds(config);
    bool warned = testing::internal::GetCapturedStderr().find("has no formula in PyTorch") != std::string::npos;
    std::map<std::string, std::string> own;
    if (file.text) own[std::string(file.name) + ".cuh"] = file.text;
    EXPECT_EQ(texts, own) << file.name;
    EXPECT_EQ(warned, file.text && !file.pytorch) << file.name;
    std::string entry = format("\nFORMULAS = {\n  \"%s\": (\"%s\", (", file.name, row_weights_names[int(file.weights)]);
    EXPECT_EQ(modelling_code(config).find(entry) != std::string::npos, file.pytorch != nullptr) << file.name;
  }
}

TEST(KindFiles, OtherTextsAreRefused) {
  for (const KindRow& file : kind_rows()) {
    if (!file.text) continue;
    std::vector<std::string> sets = {format("attention.kind=%s", file.name)};
    std::string own = parse_config("{}", "c.json", sets).kind_file;
    EXPECT_EQ(parse_config("{}", "c.json", sets).origins.at("attention.kind_file"), "make KINDS");
    sets.push_back("attention.kind_file=" + own);
    EXPECT_EQ(parse_config("{}", "c.json", sets).kind_file, own);
    sets.back() = format("attention.kind_file=%s 0123456789abcdef", file.name);
    expect_user_error([&] { parse_config("{}", "c.json", sets); },
                      {"attention.kind_file", file.path, own, "make KINDS="});
    // Older versions hashed comments and spaces too.
    sets.back() = format("attention.kind_file=%s %s", file.name, checksum_text(file.text).c_str());
    EXPECT_EQ(parse_config("{}", "c.json", sets).kind_file, own);
    EXPECT_NE(sets.back(), "attention.kind_file=" + own);
  }
}

TEST(KindFiles, LearnedNumbersBeginAsTheirKeySays) {
  for (const KindRow& file : kind_rows())
    for (size_t n = 0; n < file.learned.size(); n++) {
      const LearnedNumber& number = file.learned[n];
      std::string key = format("attention.%s_init", number.name), kind = format("attention.kind=%s", file.name);
      auto with = [&](const std::string& value) { return parse_config("{}", "c.json", {kind, key + "=" + value}); };
      EXPECT_EQ(config_json(parse_config("{}", "c.json", {kind}))["attention"][key.substr(10)], number.initial);
      Config config = with("0.75");
      EXPECT_EQ(config_json(config)["attention"][key.substr(10)], 0.75);
      EXPECT_EQ(config.attention.parameters[file.initial_of(n)], 0.75);
      if (file.pytorch) {
        EXPECT_NE(modelling_code(config).find(format("\"%s\": 0.75", number.name)), std::string::npos);
      }
      EXPECT_TRUE(changed_model(config, with("0.5")).empty());  // the same model: its weights are learned
      expect_user_error([&] { with("2e6"); }, {key, "must be a number in [-1e6, 1e6]"});
      float numbers[MOST_PARAMETERS];
      file.numbers(config.attention.parameters.data() + file.first_parameter, numbers);
      if (file.is_formula()) {
        EXPECT_EQ(numbers[file.parameters.size() + n], 0.75f);
      }
      for (const Tensor& tensor : parameters_of(config))
        if (tensor.name.ends_with(std::string(".score.") + number.name)) {
          EXPECT_EQ(tensor.init.constant, 0.75f);
        }
    }
}

}  // namespace
