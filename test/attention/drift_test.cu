// Tensor cores cut towards zero, so long sums of one sign drift towards zero. The mean error of O, dQ, dK and dV of the
// kernels that use them must be what the published rule (test/kernels/tensor_core.h) gives: one digit more or less
// would double or halve it, and sums that are rounded to nearest have none. FULL=1: by length, for
// docs/results/far_keys.md.
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>

#include "test/attention/attention_reference.h"

#include <gtest/gtest.h>

#include "attention/family.h"
#include "test/kernels/tensor_core.h"
#include "test/support/device.h"

#ifdef PLUSGPT_CPU
#include "emulation/blocks.h"
static void run_blocks(int64_t most) { cpu::most_blocks = most; }
#else
static void run_blocks(int64_t) {}
#endif

namespace {

constexpr int D = 64;
constexpr double NO_SINK = -std::numeric_limits<double>::infinity();

float to_bf16(double x) { return to_float(from_float<bf16>(float(x))); }

// By length, for the page, with the columns that the test does not look at.
bool by_length() { return std::getenv("FULL"); }

// Sums of errors towards zero, and of the sizes of exact sums. An output's last digit hides most of a drift, so the
// sums are also compared before they are rounded to bf16.
struct Drift {
  double sizes = 0, kernel = 0, rule = 0;          // of the kernel's outputs, and of sums by the rule as outputs
  double in_float = 0, uncut = 0, to_nearest = 0;  // by the rule; cut only once a step; in float32, one by one

  // One output: `got` of the kernel for unit * the sum of n products weight(k) factor(k), all as they enter products.
  template <class Weight, class Factor>
  void add(double got, const TensorCore& core, int n, double unit, Weight weight, Factor factor) {
    double exact = 0, by_rule = core.add(0, n, weight, factor);
    float one_by_one = 0;
    for (int k = 0; k < n; k++) {
      exact += double(weight(k)) * factor(k);
      one_by_one += weight(k) * factor(k);
    }
    double sign = unit * exact < 0 ? -1 : 1, stored = to_bf16(exact * unit);
    sizes += sign * exact * unit;
    kernel += sign * (got - stored);
    rule += sign * (to_bf16(by_rule * unit) - stored);
    in_float += sign * unit * (by_rule - exact);
    if (!by_length()) return;
    uncut += sign * unit * (TensorCore{40, 16}.add(0, n, weight, factor) - exact);
    to_nearest += sign * unit * (one_by_one - exact);
  }
  void finish(const char* family, Kind kind, const char* of, int T) {
    for (double* x : {&kernel, &rule, &in_float, &uncut, &to_nearest}) *x = sizes > 0 ? *x / sizes : 0;
    printf("| %s | %s | %s | %d | %.1e | %.1e | %.1e | %.1e | %.1e |\n", family, kind_names[int(kind)], of, T, kernel,
           rule, in_float, uncut, to_nearest);
    fflush(stdout);
  }
};

// Values of one sign with all digits of bf16; channels are of different sizes, so that they are rounded at different
// places.
class PositiveValues {
 public:
  bf16 draw(int channel, float scale = 1) {
    return from_float<bf16>(scale * (1 + float(channel) / D) * float(128 + random_() % 128) / 128);
  }

 private:
  std::mt19937 random_{1};
};

// The weights of a row as they enter its product with V: what divides a row is applied to its sums in the end. unit =
// what it is: in kinds whose weights do not sum to 1 a policy divides by n, if twice the keys halve a weight, or by 1.
std::vector<float> weights_of_row(const AttentionSetup& s, const AttentionShape& shape, const Numbers<Exact>& qkv,
                                  int i, double* unit) {
  double sink_weight;
  auto z = ref_scores<Exact>(s, shape, qkv, {}, ref_keys(s, i), 0, 0, i), twice = z;
  auto p = ref_weights<Exact>(s, z, NO_SINK, &sink_weight);
  auto top = std::max_element(p.begin(), p.end());
  *unit = *top;
  if (!kind_row(s.kind).sums_to_1()) {
    twice.insert(twice.end(), z.begin(), z.end());
    double halved = ref_weights<Exact>(s, twice, NO_SINK, &sink_weight)[top - p.begin()];
    *unit = !kind_row(s.kind).is_formula() && halved == *top / 2 ? 1.0 / (i + 1) : 1;
  }
  std::vector<float> weights;
  for (double weight : p) weights.push_back(*unit > 0 ? to_bf16(weight / *unit) : 0);
  return weights;
}

// O of the last rows, with normal q and k
Drift drift_of_output(Kind kind, const char* family, TensorCore core, int T) {
  AttentionShape shape{1, T, 1, D};
  AttentionSetup s{{.kind = kind}};
  s.family = family;
  if (on_cpu) s.spare_multiprocessors = -T;  // as if there were so many that the first block has just the last rows
  PositiveValues values;
  auto normal = random_normal<float>(shape.qkv_size(), 3);
  std::vector<bf16> qkv(shape.qkv_size());
  for (size_t n = 0; n < qkv.size(); n++) {
    size_t part = n / D % 3;
    qkv[n] = part == 2 ? values.draw(int(n % D)) : from_float<bf16>(normal[n] * (part == 0 ? 0.25f : 1));
  }
  DeviceArray<bf16> x(qkv), out(shape.out_size());
  run_blocks(1);
  attention_forward<bf16>(out, nullptr, x, s.call<bf16>(shape), false);
  run_blocks(INT64_MAX);
  std::vector<bf16> got = out.download();

  auto wide = widen<Exact>(qkv);
  Drift drift;
  for (int i = T - 16; i < T; i++) {
    double unit;
    std::vector<float> weights = weights_of_row(s, shape, wide, i, &unit);
    weights.resize(size_t(T), 0);  // the tile's other keys are masked
    for (int d = 0; d < D; d++) {
      auto weight = [&](int j) { return weights[size_t(j)]; };
      auto value = [&](int j) { return to_float(qkv[shape.qkv(0, j, 2, 0, d)]); };
      drift.add(to_float(got[shape.out(0, i, 0, d)]), core, T, unit, weight, value);
    }
  }
  drift.finish(family, kind, "O", T);
  return drift;
}

// dQ of the last queries and dK and dV of the first keys, which have the longest sums; q, k, v and dO are positive.
struct GradientDrifts {
  Drift dq, dk, dv;
};
GradientDrifts drift_of_gradients(Kind kind, const char* family, TensorCore core, int T) {
  constexpr int SOME = 64;
  AttentionShape shape{1, T, 1, D};
  AttentionSetup s{{.kind = kind}};
  s.family = family;
  PositiveValues values;
  std::vector<bf16> qkv(shape.qkv_size()), dout(shape.out_size());
  for (size_t n = 0; n < qkv.size(); n++) qkv[n] = values.draw(int(n % D), n / D % 3 ? 1 : 1.0f / 64);
  for (size_t n = 0; n < dout.size(); n++) dout[n] = values.draw(int(n % D));
  DeviceArray<bf16> x(qkv), d(dout), out(shape.out_size()), dx(shape.qkv_size());
  DeviceArray<float> stats(attention_statistics(s, D) * shape.rows());
  DeviceArray<char> workspace(attention_backward_workspace(s.call<bf16>(shape)));
  attention_forward<bf16>(out, stats, x, s.call<bf16>(shape), true);
  attention_backward<bf16>(dx, d, out, stats, x, workspace, s.call<bf16>(shape));
  std::vector<bf16> got = dx.download();

  auto wide = widen<Exact>(qkv), wide_dout = widen<Exact>(dout);
  std::vector<float> dz_of_query[SOME], dz_of_key[SOME], p_of_key[SOME];  // as they enter products
  for (int i = 0; i < T; i++) {
    double sink_weight, dot = 0;
    auto z = ref_scores<Exact>(s, shape, wide, {}, ref_keys(s, i), 0, 0, i),
         p = ref_weights<Exact>(s, z, NO_SINK, &sink_weight);
    Numbers<Exact> dp(z.size(), 0), slope;
    for (int j = 0; j <= i; j++) {
      for (int c = 0; c < D; c++) dp[j] += wide_dout[shape.out(0, i, 0, c)] * wide[shape.qkv(0, j, 2, 0, c)];
      dot += p[j] * dp[j];
    }
    auto dz = ref_score_gradients<Exact>(s, z, dp, dot, NO_SINK, &sink_weight, slope);
    auto product_dz = [&](int j) { return j <= i ? to_bf16(dz[j] * ref_unit<double>(kind)) : 0; };
    for (int j = 0; j <= i && i >= T - SOME; j++) dz_of_query[i - (T - SOME)].push_back(product_dz(j));
    for (int j = 0; j < SOME; j++) {
      dz_of_key[j].push_back(product_dz(j));
      p_of_key[j].push_back(j <= i ? to_bf16(p[j]) : 0);
    }
  }
  GradientDrifts drifts;
  auto add = [&](Drift& drift, int row, int part, int channel, const std::vector<float>& weights, auto factor) {
    auto weight = [&](int k) { return weights[size_t(k)]; };
    drift.add(to_float(got[shape.qkv(0, row, part, 0, channel)]), core, int(weights.size()), 1, weight, factor);
  };
  for (int n = 0; n < SOME; n++)
    for (int c = 0; c < D; c++) {
      auto q = [&](int i) { return to_float(qkv[shape.qkv(0, i, 0, 0, c)]); };
      auto k = [&](int j) { return to_float(qkv[shape.qkv(0, j, 1, 0, c)]); };
      auto dout_of = [&](int i) { return to_float(dout[shape.out(0, i, 0, c)]); };
      add(drifts.dq, T - SOME + n, 0, c, dz_of_query[n], k);
      add(drifts.dk, n, 1, c, dz_of_key[n], q);
      add(drifts.dv, n, 2, c, p_of_key[n], dout_of);
    }
  drifts.dq.finish(family, kind, "dQ", T);
  drifts.dk.finish(family, kind, "dK", T);
  drifts.dv.finish(family, kind, "dV", T);
  return drifts;
}

std::vector<Kind> kinds_of_the_tree() {
  using enum Kind;
  return {KINDS_OF_THE_TREE};
}

class LongDrift : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto has_it = [](const auto& family) { return !strcmp(family.name, GetParam()); };
    for (Kind kind : kinds_of_the_tree())
      if (std::ranges::none_of(families_of<bf16>(kind), has_it)) GTEST_SKIP() << "built without some kinds (FULL=1)";
    AttentionSettings settings;
    if (!find_family<bf16>({.settings = settings, .shape = {1, 1, 1, 64}, .family = GetParam()}, {}))
      GTEST_SKIP() << "for other devices";
  }
  TensorCore core() const {
    return GetParam() == std::string("hopper") ? TensorCore::of_wgmma() : TensorCore::of_mma();
  }
  // The lengths, of which the last is the one that is checked.
  static std::vector<int> lengths(std::vector<int> full, int checked) {
    if (!by_length()) full.clear();
    full.push_back(checked);
    return full;
  }
  // Of a kind's outputs too few are stored as another number to compare: of all kinds' together, over 100 are.
  void check() const {
    EXPECT_LT(rule_, -2e-5);
    EXPECT_NEAR(kernel_ / rule_, 1, 1.0 / 3);
  }
  void take(const Drift& drift) { kernel_ += drift.kernel, rule_ += drift.rule; }

 private:
  double kernel_ = 0, rule_ = 0;
};

TEST_P(LongDrift, Output) {
  for (Kind kind : kinds_of_the_tree()) {
    Drift drift;
    for (int T : lengths({1024, 4096, 65536, 131072}, 16384)) drift = drift_of_output(kind, GetParam(), core(), T);
    take(drift);
  }
  check();
}

TEST_P(LongDrift, Gradients) {
  for (Kind kind : kinds_of_the_tree()) {
    GradientDrifts drifts;
    for (int T : lengths({1024, 4096, 8192}, 2048)) drifts = drift_of_gradients(kind, GetParam(), core(), T);
    // Where dz is a multiple of dP, dK's and dQ's sums are of one sign too.
    take(drifts.dv);
    if (!kind_row(kind).sums_to_1()) take(drifts.dq), take(drifts.dk);
  }
  check();
}

INSTANTIATE_TEST_SUITE_P(Families, LongDrift, testing::Values("tensor", "hopper"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
