// attention_diagnose() and gate_statistics() against float64 references that hold whole rows of weights, by the rule of
// test/support/compare.h; closed forms of uniform scores; equal bits.
#include "attention/prune.cuh"
#include "test/attention/attention_reference.h"
#include "test/attention/gate_reference.h"

#include <gtest/gtest.h>

#include "test/support/device.h"

static const bool poisoned = (set_cpu_poison(true), true);

namespace {

using F = RowStatistic;

template <class T> struct Diagnosed {
  AttentionShape shape;
  std::vector<float> statistics;
  double at(int statistic, int b, int h, int i) const {
    return statistics[statistic * shape.rows() + (size_t(b) * shape.H + h) * shape.T + i];
  }
  Diagnosed(const AttentionSetup& s, const AttentionShape& shape, const std::vector<T>& qkv,
            const std::vector<T>& sinks = {}, const Numbers<Exact>& bias = {})
      : shape(shape) {
    DeviceArray<T> in(qkv), out(shape.out_size()), sink(sinks);
    DeviceArray<float> c(as_kernels_read(bias, shape, s.kind));
    DeviceArray<float> stats(attention_statistics(s, shape.D) * shape.rows()),
        rows(row_statistics(shape.T) * shape.rows());
    AttentionCall<T> call = s.call<T>(shape);
    call.family = "general";
    if (s.sink == Sink::learned) call.sink = sink;
    if (s.bias != Bias::none) call.bias = c;
    find_needed_tiles<T>(c, nullptr, in, call);
    attention_forward<T>(out, stats, in, call, true);
    attention_diagnose<T>(rows, stats, in, call);
    statistics = rows.download();
  }
};

// From the scores and weights of the keys that the row sees, the last of which is its own.
template <class P>
Numbers<P> ref_row_statistics(const Numbers<P>& z, const Numbers<P>& p, const std::vector<int>& keys, int T) {
  Numbers<P> statistics(row_statistics(T));
  for (size_t n = 0; n < keys.size(); n++) {
    int distance = keys.back() - keys[n], bin = 0;
    statistics[F::SUM] += p[n];
    if (p[n] > 0) statistics[F::P_LOG_P] += P::round(p[n] * std::log(p[n]));
    if (keys[n] == 0) statistics[F::FIRST] = p[n];
    statistics[F::LARGEST] = std::max(statistics[F::LARGEST], p[n]);
    statistics[F::DISTANCE] += p[n] * distance;
    statistics[F::ZEROS] += p[n] == 0;
    statistics[F::KEYS]++;
    statistics[F::SCORES] += std::fabs(z[n]);
    statistics[F::SCORE] = std::max(statistics[F::SCORE], std::fabs(z[n]));
    for (int first = 1; first <= distance; first *= 2) bin++;
    statistics[F::REACH + bin] += p[n];
  }
  return statistics;
}

// Keys whose weight is at most `largest`, with every score raised by `raise` and a sharpened kind's offset lowered by
// it: what rounding may move.
double small_weights(AttentionSetup s, Numbers<Exact> z, double sink, double raise, double largest, const RefRow& row) {
  double sink_weight;
  if (is_sharpened(s.kind)) s.parameters[kind_row(s.kind).first_parameter + 1] -= raise;
  for (double& x : z) x += raise;
  auto p = ref_weights<Exact>(s, z, sink, &sink_weight, row);
  return double(std::count_if(p.begin(), p.end(), [&](double x) { return x <= largest; }));
}

// As the kernels compute weights: softmax's from the logarithm of its denominator, which is kept in float32.
Numbers<Naive<float>> plain_weights(const AttentionSetup& s, const Numbers<Naive<float>>& z, float sink,
                                    const RefRow& row) {
  float unused, largest = sink, sum = 0;
  auto p = ref_weights<Naive<float>>(s, z, sink, &unused, row);
  if (s.kind != Kind::softmax) return p;
  for (float x : z) largest = std::max(largest, x);
  for (float x : z) sum += std::exp(x - largest);
  if (sink > -INFINITY) sum += std::exp(sink - largest);
  float lse = largest + std::log(sum);
  for (size_t j = 0; j < z.size(); j++) p[j] = std::exp(z[j] - lse);
  return p;
}

// Of all shapes of one kind and D, three tensors: sums of weights; of P ln P, which near 1 is as wrong as a number of
// size 1; of distances as shares of T.
template <class T> struct Check {
  AttentionSetup s;
  Pool weights, p_log_p, distances, scores;
  Check(const AttentionSetup& s, const AttentionShape& shape)
      : s(s),
        weights(describe(s, shape) + " weights", u<float>),
        p_log_p(describe(s, shape) + " P ln P", u<float>, 1),
        distances(describe(s, shape) + " distances", u<float>),
        scores(describe(s, shape) + " scores", u<float>) {}

  void add(const AttentionShape& shape, unsigned seed) {
    s.context = shape.T;
    auto qkv = random_qkv<T>(shape, seed), sinks = random_normal<T>(s.sink == Sink::learned ? shape.H : 0, seed + 100);
    if (is_sharpened(s.kind)) look_at_first_key(shape, qkv);
    auto bias = s.bias == Bias::none ? Numbers<Exact>() : random_bias(shape, seed + 200);
    Diagnosed<T> diagnosed(s, shape, qkv, sinks, bias);
    auto x = widen<Exact>(qkv), sink = widen<Exact>(sinks);
    auto nx = widen<Naive<float>>(qkv), nsink = widen<Naive<float>>(sinks);  // weights are float32 whatever T is
    for (size_t row = 0; row < shape.rows(); row++) {
      int i = int(row % shape.T), h = int(row / shape.T % shape.H), b = int(row / shape.T / shape.H);
      double logit = ref_sink<Exact>(s, sink, h), unused;
      auto keys = ref_keys(s, i);
      auto z = ref_scores<Exact>(s, shape, x, bias, keys, b, h, i);
      auto nz = ref_scores<Naive<float>>(s, shape, nx, bias, keys, b, h, i);
      RefRow place = {i, h, shape.H, &keys};
      auto exact = ref_row_statistics<Exact>(z, ref_weights<Exact>(s, z, logit, &unused, place), keys, shape.T);
      auto naive = ref_row_statistics<Naive<float>>(
          nz, plain_weights(s, nz, ref_sink<Naive<float>>(s, nsink, h), place), keys, shape.T);
      double fewest = small_weights(s, z, logit, 1e-5, 0, place),
             most = small_weights(s, z, logit, -1e-5, 1e-37, place);
      double zeros = diagnosed.at(F::ZEROS, b, h, i), reach = 0;
      EXPECT_TRUE(fewest <= zeros && zeros <= most) << describe(s, shape) << " row " << i << ": " << zeros;
      EXPECT_EQ(diagnosed.at(F::KEYS, b, h, i), double(keys.size()));
      for (int f = 0; f < row_statistics(shape.T); f++) {
        if (f == F::ZEROS || f == F::KEYS) continue;
        bool of_scores = f == F::SCORES || f == F::SCORE;
        double of = f == F::DISTANCE ? shape.T : f == F::SCORES ? double(keys.size()) : 1;
        double got = diagnosed.at(f, b, h, i) * (of_scores ? kind_row(s.kind).unit : 1);
        Pool& pool = f == F::P_LOG_P ? p_log_p : f == F::DISTANCE ? distances : of_scores ? scores : weights;
        pool.add(std::vector{got / of}, {exact[f] / of}, std::vector{naive[f] / of});
        if (f >= F::REACH) reach += got;
      }
      EXPECT_NEAR(reach, diagnosed.at(F::SUM, b, h, i), 1e-5 * reach);
    }
  }
};

std::vector<AttentionSetup> settings_of_all_kinds() {
  std::vector<AttentionSetup> all;
  for (size_t k = 0; k < std::size(kind_names); k++)
    if (attention_is_built(Kind(k)) && has_reference(Kind(k))) all.push_back({{.kind = Kind(k)}});
  return all;
}

template <class T> void check_every_kind() {
  for (int D : {1, 36, 64, 128})
    for (const AttentionSetup& s : settings_of_all_kinds()) {
      // look_at_first_key() divides by the one channel: scores of hundreds, of whose rows one decides every error
      if (s.kind == Kind::softmaxr && D == 1) continue;
      Check<T> check(s, {1, 257, 3, D});
      for (int T_ : {1, 2, 3, 4, 31, 113, 257})
        for (unsigned seed = 1; seed <= (T_ < 100 ? 8u : 1u); seed++) check.add({T_ < 100 ? 2 : 1, T_, 3, D}, seed);
    }
}
TEST(Diagnose, EveryKindAtEveryShape) { check_every_kind<float>(); }
TEST(Diagnose, EveryKindInBf16) { check_every_kind<bf16>(); }

TEST(Diagnose, SettingsOfTheKinds) {
  AttentionShape shape{1, 70, 2, 200};
  for (Sink sink : {Sink::one, Sink::learned})
    if (attention_is_built(Kind::softmax)) Check<float>({{.sink = sink}}, shape).add(shape, 5);
  for (Kind kind : {Kind::lssar, Kind::softmaxr})
    for (double power : {1.0, 2.5, 3.0}) {
      AttentionSetup s{of_kind(kind, {{"power", power}, {"offset_free_rows", 7}})};
      if (attention_is_built(kind)) Check<float>(s, shape).add(shape, 6);
    }
}

// With a window no weight lies beyond it, except those of the sink tokens.
TEST(Diagnose, WindowsAndBiases) {
  if (!on_cpu) GTEST_SKIP() << "the general kernels have no such masks on a GPU";
  for (AttentionSetup s : settings_of_all_kinds()) {
    Check<float> fp32(s, {1, 200, 2, 36});
    Check<bf16> half(s, {1, 200, 2, 36});
    for (int n = 0; n < 4; n++) {
      AttentionShape shape{1, n == 3 ? 100 : 200, 2, 36};
      s.window = std::vector{3, 17, 70, 0}[n], s.sink_tokens = std::vector{0, 4, 1, 0}[n];
      s.bias = n % 2 ? Bias::fox : Bias::none;
      fp32.s = half.s = s;
      fp32.add(shape, 7 + n);
      half.add(shape, 7 + n);
    }
  }
}

// All scores equal: weights that sum to 1 are uniform, but sharpened ones only in the first rows; the others are
// degenerate.
TEST(Diagnose, UniformScores) {
  int T = 100;
  AttentionShape shape{1, T, 1, 16};
  auto qkv = random_normal<float>(shape.qkv_size(), 1);
  for (int t = 0; t < T; t++)
    for (int d = 0; d < shape.D; d++) qkv[shape.qkv(0, t, 1, 0, d)] = 0;
  for (const AttentionSetup& s : settings_of_all_kinds()) {
    if (!s.sums_to_1() || looks_at_places(s.kind)) continue;
    Diagnosed<float> diagnosed(s, shape, qkv);
    for (int i = 0; i < T; i++) {
      bool degenerate = is_sharpened(s.kind) && i >= s.parameter("offset_free_rows");
      EXPECT_EQ(diagnosed.at(F::ZEROS, 0, 0, i), degenerate ? i + 1 : 0);
      double sum = diagnosed.at(F::SUM, 0, 0, i), n = i + 1;
      EXPECT_NEAR(sum, degenerate ? 0 : 1, 1e-5);
      if (degenerate) continue;
      EXPECT_NEAR(diagnosed.at(F::FIRST, 0, 0, i), 1 / n, 1e-6);
      EXPECT_NEAR(-diagnosed.at(F::P_LOG_P, 0, 0, i), std::log(n), 1e-5 * std::log(n) + 1e-6);
      EXPECT_NEAR(diagnosed.at(F::DISTANCE, 0, 0, i), i / 2.0, 1e-5 * n);
    }
  }
}

TEST(Diagnose, EqualBits) {
  AttentionShape shape{2, 150, 3, 40};
  auto qkv = random_qkv<float>(shape, 9);
  for (const AttentionSetup& s : settings_of_all_kinds())
    expect_reproducible(kind_names[int(s.kind)], [&] { return bits_of(Diagnosed<float>(s, shape, qkv).statistics); });
}

}  // namespace

// ---- gate_statistics()

TEST(GateStatistics, EveryActivation) {
  const int N = 300, H = 3, D = 20, W = H * D, Q = 3 * W + 64;
  auto x = random_normal<float>(size_t(N) * W, 1, 0.1f), logits = random_normal<float>(size_t(N) * Q, 2, 3);
  DeviceArray<float> dx(x), dlogits(logits), statistics(H * GATE_STATISTICS_BLOCKS * GateStatistic::COUNT);
  for (size_t a = 0; a < std::size(gate_activation_names); a++)
    for (GateGranularity granularity :
         {GateGranularity::elementwise, GateGranularity::headwise, GateGranularity::shared})
      for (GateOp op : {GateOp::multiply, GateOp::add}) {
        GateCase c{{.activation = GateActivation(a), .granularity = granularity, .op = op}, N, H, D};
        if (a == 0 && op == GateOp::add) continue;
        auto run = [&] {
          gate_statistics<float>(statistics, {dx, W}, {dlogits + 3 * W, Q}, c.settings, N, H, D, nullptr);
          return bits_of(statistics);
        };
        run();
        std::vector<float> got = statistics.download();
        std::vector<double> sums(H * GateStatistic::COUNT), exact(sums.size());
        for (size_t n = 0, blocks = GATE_STATISTICS_BLOCKS; n < got.size(); n++)
          sums[n / (blocks * GateStatistic::COUNT) * GateStatistic::COUNT + n % GateStatistic::COUNT] += got[n];
        for (int row = 0; row < N; row++)
          for (int column = 0; column < W; column++) {
            double* of_head = &exact[column / D * GateStatistic::COUNT];
            double g = logits[size_t(row) * Q + 3 * W + c.logit(column)], slope;
            g = a == 0 ? 1 : ref_activation<Exact>(GateActivation(a), g, &slope);
            double v = x[size_t(row) * W + column], y = op == GateOp::add ? v + g : v * g;
            of_head[GateStatistic::BEFORE] += std::fabs(v), of_head[GateStatistic::AFTER] += std::fabs(y);
            of_head[GateStatistic::BELOW_001] += std::fabs(y) < 0.01,
                of_head[GateStatistic::BELOW_0001] += std::fabs(y) < 0.001;
            of_head[GateStatistic::GATE] += g, of_head[GateStatistic::CLOSED] += g < 0.01,
                of_head[GateStatistic::NARROW] += g < 0.1;
            int share = int(std::min(g * GateStatistic::BINS, GateStatistic::BINS - 1.0));
            of_head[g < 0 ? GateStatistic::NEGATIVE : g > 1 ? GateStatistic::ABOVE : GateStatistic::SHARES + share]++;
          }
        for (size_t n = 0; n < exact.size(); n++) {  // at most 128 sums; a number at an edge may be counted apart
          size_t f = n % GateStatistic::COUNT;
          bool counts = f != GateStatistic::BEFORE && f != GateStatistic::AFTER && f != GateStatistic::GATE;
          EXPECT_NEAR(sums[n], exact[n], counts ? 1 : 1e-5 * N * D + 0x1p-17 * exact[n])
              << gate_activation_names[a] << " " << gate_op_names[int(op)] << " head " << n / GateStatistic::COUNT
              << " statistic " << f;
        }
        expect_reproducible("gate statistics", run);
      }
}
