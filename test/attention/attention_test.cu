// attention/ against its float64 references (attention_reference_test.cu checks those): all kernels, forward and
// backward, float32 and bf16, by the rule of test/support/compare.h. Also: causality, extreme scores, equal bits in any
// order, nothing written outside (test/support/device.h), errors. prepare_test.cu has the rest.
#include <cstdlib>
#include <cstring>

#include "test/attention/run_attention.h"

#include "attention/general/kernels.cuh"
#include "attention/kinds/lssar.cuh"
#include "attention/kinds/softmax.cuh"
#include "attention/kinds/softmaxr.cuh"

template <class K> class AttentionTest : public OfFamily<K> {};
TYPED_TEST_SUITE(AttentionTest, Families);

// ---- shapes: every T with every D; B and H vary along so that all pairs meet

static const int lengths[] = {1, 2, 3, 4, 31, 113, 257}, dims[] = {1, 36, 64, 90, 128, 360};

TYPED_TEST(AttentionTest, SmallShapes) {
  for (Kind kind : built_kinds())
    for (int T : {1, 2, 3, 4, 31})
      for (int D : {1, 36, 64, 130})
        check_random<typename TypeParam::T>(settings_of(kind, T), {D == 36 ? 3 : 1, T, T == 4 ? 3 : 1, D});
}

TYPED_TEST(AttentionTest, LongShapes) {
  double used = 0;
  for (Kind kind : built_kinds())
    for (int t = 0; t < 7; t++)
      for (int d = 0; d < 6; d++) {
        int choice = (t + d) % 4;
        if (kind != Kind::softmax && choice != t % 2)
          continue;  // a quarter for the others, which share all but the policy
        AttentionShape shape{choice % 2 ? 3 : 1, lengths[t], choice / 2 ? 3 : 1, dims[d]};
        used = std::max(used, check_random<typename TypeParam::T>(settings_of(kind, shape.T), shape));
      }
  printf("largest share of the bound used: %.2f\n", used);
}

TYPED_TEST(AttentionTest, LongEdgesOfTiles) {
  for (Kind kind : built_kinds())
    for (int T : {63, 64, 65, 128, 129})
      for (int D : {8, 16, 32, 33, 96, 127, 129, 256, 257, 512}) {
        if (kind != Kind::softmax && D % 2 == 0) continue;  // see above
        if (T == 64 || T == 65 || D < 100) check_random<typename TypeParam::T>(settings_of(kind, T), {1, T, 2, D});
      }
}

TYPED_TEST(AttentionTest, MisalignedArrays) {
  if (on_hopper()) {
    EXPECT_THROW(check_random<bf16>(settings_of(built_kinds().at(0), 70), {2, 70, 2, 32}, 1), Failure);
    return;
  }
  for (Kind kind : built_kinds()) check_random<typename TypeParam::T>(settings_of(kind, 70), {2, 70, 2, 32}, 1);
}

// The layout in which a gate's logits follow q, k and v.
TYPED_TEST(AttentionTest, RowsFurtherApart) {
  using T = typename TypeParam::T;
  AttentionShape shape{2, 70, 3, 40};
  auto qkv = random_qkv<T>(shape, 1);
  auto dout = random_normal<T>(shape.out_size(), 2);
  for (Kind kind : built_kinds())
    for (int extra : {3, 8, 40, 120}) {
      if (on_hopper() && extra % shape.D) continue;
      auto together = run_attention<T>({{.kind = kind}}, shape, qkv, dout),
           apart = run_attention<T>({{.kind = kind}}, shape, qkv, dout, {}, 0, extra);
      expect_same_bits(format("%s out, %d apart", kind_names[int(kind)], extra), apart.out, together.out);
      expect_same_bits(format("%s dqkv, %d apart", kind_names[int(kind)], extra), apart.dqkv, together.dqkv);
    }
}

static bool general_on_gpu() { return family == "general" && !on_cpu; }  // these have no such masks
TYPED_TEST(AttentionTest, WindowsAndBiases) {
  using T = typename TypeParam::T;
  for (Kind kind : built_kinds())
    for (int n = 0; n < 9; n++) {  // the last: whole tiles between sink tokens and window, also of Hopper's 128 rows
      int wide = family == "general" ? 130 : has_kernels(kind, 128, n % 2) ? 128 : 64;
      int length = std::vector{200, 97, 97, 200, 97, 97, 200, 97, 450}[n];
      // At least two heads: errors are compared with the largest number, which is too much a matter of chance in one.
      int batch = n % 2 || n % 3 == 0 ? 2 : 1;
      AttentionShape shape = fit({batch, length, n % 3 + 1, n == 2 || n == 3 ? wide : n % 4 == 1 ? 64 : 36});
      if (!has_kernels(kind, shape.D, n % 2)) continue;
      AttentionSetup s = settings_of(kind, shape.T);
      s.window = n == 7 ? 0 : std::vector{1, 3, 17, 64, 65, 70, 150, 0, 30}[n];
      s.sink_tokens = n == 8 ? 4 : std::vector{0, 4, 70, 1}[n % 4];
      s.bias = n % 2 ? Bias::fox : Bias::none;
      if (n == 6) s.sink_tokens = 0, s.sink = kind == Kind::softmax ? Sink::one : Sink::none;
      auto qkv = random_qkv<T>(shape, 3 + n), dout = random_normal<T>(shape.out_size(), 40 + n);
      if (is_sharpened(kind)) look_at_first_key(shape, qkv);
      auto bias = n % 2 ? random_bias(shape, 80 + n) : Numbers<Exact>();
      Comparison<T> comparison(describe(s, shape));
      if (general_on_gpu()) EXPECT_ANY_THROW(comparison.add(s, shape, qkv, dout, {}, 0, bias));
      else comparison.add(s, shape, qkv, dout, {}, 0, bias);
    }
}

// A bias may fall by hundreds within a tile. Behind the last query it means nothing, and e^-c_j is infinite: no such
// number may get into the sums of columns.
TYPED_TEST(AttentionTest, SteepBiases) {
  using T = typename TypeParam::T;
  if (general_on_gpu()) GTEST_SKIP() << "has no biases";
  for (int D : {64, 128}) {
    AttentionShape shape{2, 100, 2, D};
    auto qkv = random_qkv<T>(shape, 1), dout = random_normal<T>(shape.out_size(), 2);
    for (Kind kind : built_kinds())
      if (has_kernels(kind, D, true))
        run_attention<T>({{.kind = kind, .bias = Bias::fox}}, shape, qkv, dout, {}, 0, 0, random_bias(shape, 3, 5));
  }
}

// A window of all keys changes no bit, nor does a bias of zeros, which other kernels add.
TYPED_TEST(AttentionTest, MasksThatHideNothing) {
  using T = typename TypeParam::T;
  if (general_on_gpu()) GTEST_SKIP() << "has no such masks";
  AttentionShape shape{2, 150, 3, 40};
  auto qkv = random_qkv<T>(shape, 1), dout = random_normal<T>(shape.out_size(), 2);
  for (Kind kind : built_kinds()) {
    auto expected = run_attention<T>({{.kind = kind}}, shape, qkv, dout);
    for (int choice = 0; choice < 3; choice++) {
      if (choice > 0 && !has_kernels(kind, shape.D, true)) continue;
      AttentionSetup s{{.kind = kind, .window = choice == 1 ? 0 : 150}};
      if (choice > 0) s.bias = Bias::fox;
      auto result = run_attention<T>(s, shape, qkv, dout, {}, 0, 0, Numbers<Exact>(choice ? shape.rows() : 0));
      expect_same_bits(describe(s, shape) + " out", result.out, expected.out);
      expect_same_bits(describe(s, shape) + " dqkv", result.dqkv, expected.dqkv);
    }
  }
}

// ---- values

// Scores of +-100 and of +-4000: e^z alone would overflow.
// Gradients cannot be better then than lse, rounded to float32.
TYPED_TEST(AttentionTest, LargeScores) {
  using T = typename TypeParam::T;
  AttentionShape shape = fit({1, 70, 2, 36});
  auto dout = random_normal<T>(shape.out_size(), 2);
  for (Kind kind : built_kinds()) {
    AttentionSetup s = with_learned<T>({{.kind = kind}}, shape.H);
    check_attention<T>(s, shape, random_qkv<T>(shape, 1, 30), dout);
    auto qkv = random_qkv<T>(shape, 1, 1000);
    auto weights = [&](const Numbers<Exact>& z) {
      double sink_weight;
      return ref_weights<Exact>(s, z, -INFINITY, &sink_weight);
    };
    if (s.sums_to_1() && weights({0, 1}) != weights({-1000, -999}))  // the sum vanishes: a score of 0 for every row
      for (int h = 0; h < shape.H; h++)
        for (int d = 0; d < shape.D; d++) qkv[shape.qkv(0, 0, 1, h, d)] = from_float<T>(0);
    auto result = run_attention<T>(s, shape, qkv, dout);
    expect_close(describe(s, shape) + " out", result.out, ref_attention<Exact>(s, shape, widen<Exact>(qkv)),
                 ref_attention<Naive<T>>(s, shape, widen<Naive<T>>(qkv)), u<T>);
    for (T x : result.dqkv) ASSERT_TRUE(std::isfinite(to_float(x)));
  }
}

// All keys equal: equal weights for all, whatever their score.
TYPED_TEST(AttentionTest, EqualKeys) {
  AttentionShape shape{1, 70, 1, 64};
  auto qkv = random_qkv<typename TypeParam::T>(shape, 1);
  for (int t = 1; t < shape.T; t++)
    for (int d = 0; d < shape.D; d++) qkv[shape.qkv(0, t, 1, 0, d)] = qkv[shape.qkv(0, 0, 1, 0, d)];
  for (Kind kind : built_kinds())
    check_attention<typename TypeParam::T>(settings_of(kind, shape.T), shape, qkv,
                                           random_normal<typename TypeParam::T>(shape.out_size(), 2));
}

// Thresholds that half of the scores exceed, and one in twenty.
TYPED_TEST(AttentionTest, Thresholds) {
  if (!is_built(Kind::threshold)) GTEST_SKIP() << "built without threshold";
  for (double threshold : {0.0, 0.5})
    check_random<typename TypeParam::T>({of_kind(Kind::threshold, {{"threshold", threshold}})}, {3, 200, 3, 64});
}

// The references must have the same degenerate rows as the kernels, or they would not agree: equal keys above, many
// keys here.
TYPED_TEST(AttentionTest, PowersAndOffsets) {
  using T = typename TypeParam::T;
  for (Kind kind : {Kind::lssar, Kind::softmaxr}) {
    if (!is_built(kind)) continue;
    for (float power : {1.0f, 2.0f, 3.0f, 7.5f, 15.0f})
      check_random<T>({of_kind(kind, {{"power", power}})}, {3, 113, 3, 20});
    for (int D : {64, 128}) check_random<T>({{.kind = kind}}, {1, 200, 2, D});
    check_random<T>({of_kind(kind, {{"power", 3}, {"offset", 0}})}, {2, 40, 3, 16});
    check_random<T>({of_kind(kind, {{"power", 3}, {"offset", 0.5}, {"offset_free_rows", 0}})}, {2, 40, 3, 16});
    check_random<T>({of_kind(kind, {{"power", 3}, {"offset_free_rows", 100}})}, {2, 40, 3, 16});
  }
}

// The references are softmax's, of queries times ln 2: kernels take the scores of softmaxr in this unit.
TYPED_TEST(AttentionTest, SoftmaxrOfPower1WithoutOffsetIsSoftmax) {
  using T = typename TypeParam::T;
  if (!is_built(Kind::softmaxr)) GTEST_SKIP() << "built without softmaxr";
  AttentionSetup softmaxr{of_kind(Kind::softmaxr, {{"power", 1}, {"offset", 0}})}, softmax;
  for (int T_ : {70, 129}) {
    AttentionShape shape = fit({2, T_, 2, T_ == 70 ? 64 : 33});
    auto qkv = random_qkv<T>(shape, 1), dout = random_normal<T>(shape.out_size(), 2);
    auto result = run_attention<T>(softmaxr, shape, qkv, dout);
    double terms[6] = {};
    auto reference = [&]<class P>(P) {
      using R = typename P::real;
      auto is_query = [&](size_t n) { return n / (size_t(shape.H) * shape.D) % 3 == 0; };
      Numbers<P> x = widen<P>(qkv), dx;
      for (size_t n = 0; n < x.size(); n++) x[n] *= is_query(n) ? ref_unit<R>(Kind::softmaxr) : R(1);
      dx = ref_attention_backward<P>(softmax, shape, x, widen<P>(dout), {}, nullptr, terms);
      for (size_t n = 0; n < x.size(); n++) dx[n] *= is_query(n) ? ref_unit<R>(Kind::softmaxr) : R(1);
      return std::pair(ref_attention<P>(softmax, shape, x), dx);
    };
    auto [naive, naive_d] = reference(Naive<T>());
    auto [exact, exact_d] = reference(Exact());
    expect_close("out", result.out, exact, naive, u<T>);
    for (int part = 0; part < 3; part++) {
      Pool gradient(format("part %d of dqkv", part), u<T>);
      gradient.add(part_of(shape, result.dqkv, part), part_of(shape, exact_d, part), part_of(shape, naive_d, part),
                   terms[part]);
      gradient.compare();
    }
  }
}

// Scores of about -4, -8, -12, -17, -40 for all keys, or for some: small weights must keep their digits.
TYPED_TEST(AttentionTest, VeryNegativeScores) {
  using T = typename TypeParam::T;
  for (Kind kind : built_kinds())
    for (float level : {-4.0f, -8.0f, -12.0f, -17.0f, -40.0f})
      for (bool some : {false, true}) {  // for all 70 keys, or for the first 100 of 270
        AttentionShape shape = fit({some ? 1 : 2, some ? 270 : 70, some ? 1 : 2, 33});
        auto qkv = random_qkv<T>(shape, 1);
        for (size_t i = 0; i < qkv.size(); i += shape.D) {  // the last channel adds `level` to the score
          size_t t = i / (3 * size_t(shape.H) * shape.D) % shape.T;
          if (size_t part = i / (size_t(shape.H) * shape.D) % 3; part < 2)
            qkv[i + shape.D - 1] = from_float<T>(part ? !some || t < 100 : level / ref_unit<float>(kind));
        }
        // Where a formula is flat many weights are equal, and each of the 31 sums that merge a row's 32 parts may lose
        // half a unit to the same side.
        double lost = formula_of(kind) ? 31 * u<float> / 2 : 0;
        check_attention<T>(settings_of(kind, shape.T), shape, qkv, random_normal<T>(shape.out_size(), 2), lost);
      }
}

// Scores at the end of float32's range, where 1 / S overflows: weights may become 0, but nothing becomes NaN.
TYPED_TEST(AttentionTest, VanishingScores) {
  using T = typename TypeParam::T;
  AttentionShape shape{1, 40, 1, 16};
  for (Kind kind : built_kinds())
    for (float first : {-80.0f, -86.0f, -87.0f, -88.0f, -95.0f}) {
      std::vector<T> qkv(shape.qkv_size(), from_float<T>(0.5f));
      for (int t = 0; t < shape.T; t++)
        for (int d = 0; d < shape.D; d++) {
          qkv[shape.qkv(0, t, 0, 0, d)] = from_float<T>(d == 0 ? 1.0f : 0.0f);
          qkv[shape.qkv(0, t, 1, 0, d)] = from_float<T>(t == 0 ? first : -95.0f);
        }
      auto result = run_attention<T>({{.kind = kind}}, shape, qkv, random_normal<T>(shape.out_size(), 2));
      for (T x : result.out) ASSERT_TRUE(std::isfinite(to_float(x))) << kind_names[int(kind)] << " " << first;
      for (T x : result.dqkv) ASSERT_TRUE(std::isfinite(to_float(x))) << kind_names[int(kind)] << " " << first;
    }
}

// One key that the last query agrees with among 2048 random ones, 16384 with FULL=1 (a minute). Earlier queries have no
// gradient, so that the references need the last four only.
TYPED_TEST(AttentionTest, LongOneKeyAmongThousands) {
  using T = typename TypeParam::T;
  AttentionShape shape{1, std::getenv("FULL") ? 16384 : 2048, 1, 32};
  int first = shape.T - 4, key = shape.T / 3;
  auto numbers = random_normal<float>(shape.qkv_size(), 1);
  for (int t = 0; t < shape.T; t++)
    for (int part = 0; part < 2; part++) {
      float *x = &numbers[shape.qkv(0, t, part, 0)], squares = 0;
      for (int d = 0; d < shape.D; d++) squares += x[d] * x[d];
      for (int d = 0; d < shape.D; d++) x[d] /= std::sqrt(squares);
    }
  for (int d = 0; d < shape.D; d++) numbers[shape.qkv(0, key, 1, 0, d)] = numbers[shape.qkv(0, shape.T - 1, 0, 0, d)];
  for (int t = 0; t < shape.T; t++)  // the length scale of lssa
    for (int d = 0; d < shape.D; d++) numbers[shape.qkv(0, t, 0, 0, d)] *= std::log(32.0f) * std::log(float(t + 1));
  std::vector<T> qkv(numbers.size()), dout(shape.out_size(), from_float<T>(0)),
      random = random_normal<T>(4 * shape.D, 2);
  for (size_t i = 0; i < qkv.size(); i++) qkv[i] = from_float<T>(numbers[i]);
  std::copy(random.begin(), random.end(), dout.begin() + shape.out(0, first, 0));
  for (Kind kind : built_kinds()) {
    AttentionSetup s = with_learned<T>({{.kind = kind}}, shape.H);
    std::string name = describe(s, shape);
    auto result = run_attention<T>(s, shape, qkv, dout);
    auto x = widen<Exact>(qkv), d = widen<Exact>(dout);
    auto nx = widen<Naive<T>>(qkv), nd = widen<Naive<T>>(dout);
    auto last = [&](auto values) { return decltype(values)(values.begin() + shape.out(0, first, 0), values.end()); };
    expect_close(name + " out", last(result.out), last(ref_attention<Exact>(s, shape, x, {}, first)),
                 last(ref_attention<Naive<T>>(s, shape, nx, {}, first)), u<T>);
    double terms[6] = {};
    auto exact = ref_attention_backward<Exact>(s, shape, x, d, {}, nullptr, terms, first);
    auto naive = ref_attention_backward<Naive<T>>(s, shape, nx, nd, {}, nullptr, nullptr, first);
    for (int part = 0; part < 3; part++)
      expect_close(format("%s d%c", name.c_str(), "qkv"[part]), part_of(shape, result.dqkv, part),
                   part_of(shape, exact, part), part_of(shape, naive, part), u<T>, terms[part]);
  }
}

// Whether the gradient of a score jumps at 0. What rounding moves across a jump has no bound.
static bool jumps(const AttentionSetup& s) {
  auto slope_at = [&](double z) {
    double dsink = 0;
    Numbers<Exact> slope;
    ref_score_gradients<Exact>(s, {z, 1}, {1, 1}, 0, -INFINITY, &dsink, slope);
    return slope[0];
  };
  return std::fabs(slope_at(1e-9) - slope_at(-1e-9)) > 1e-6;
}

// attention_backward() with undo_preparation. Hopper's kernels undo the preparation of heads of 64 and 128 channels
// themselves, unless ssmax's scale needs sums over rows: within the bounds of float64. Otherwise the bits are those of
// prepare_backward().
template <class T> void check_prepared(AttentionSetup s, const AttentionShape& shape, bool rotate, int extra = 0) {
  s.family = family.data();
  s.qkv_stride = 3 * shape.H * shape.D + extra;
  std::string name = describe(s, shape) + (rotate ? " rope" : "");
  auto qkv = random_normal<T>(shape.qkv_size(), 1), dout = random_normal<T>(shape.out_size(), 2);
  auto scales = s.scale == Scale::ssmax ? random_normal<T>(shape.H, 3, 0.1f, 0.43f) : std::vector<T>();
  auto rope = rotate ? rope_table(shape.T, shape.D, 10000) : std::vector<float2>();
  size_t row = 3 * size_t(shape.H) * shape.D;
  std::vector<T> apart = with_gaps(qkv, row, extra, from_float<T>(7));
  DeviceArray<T> x(apart), out(shape.out_size()), d(dout), scale(scales);
  DeviceArray<float> stats(attention_statistics(s, shape.D) * shape.rows()), norms(2 * shape.rows());
  DeviceArray<float2> angles(rope);
  AttentionCall<T> call = s.call<T>(shape);
  DeviceArray<char> workspace(attention_backward_workspace(call));
  if (!scales.empty()) call.ssmax_scale = scale;
  if (rotate) call.rope = angles;
  if (s.qk_norm != QkNorm::none) call.norms = norms;
  prepare_forward<T>(x, call);
  attention_forward<T>(out, stats, x, call, true);
  auto gradients = [&](bool at_once, bool& launched) {
    DeviceArray<T> dx(apart);
    DeviceArray<float> dscale(std::vector<float>(scales.size(), 0.5f)),
        sums(std::vector<float>(at_once ? row : 0, 0.5f));
    if (!scales.empty()) call.dssmax_scale = dscale;
    call.dqkv_sums = at_once ? sums.get() : nullptr;
    profile_start();
    attention_backward<T>(dx, d, out, stats, x, workspace, call, at_once);
    launched = false;
    for (const ProfileLine& line : profile_collect()) launched |= line.name == "prepare_backward_kernel";
    if (at_once) expect_column_sums(name, shape, sums.download(), 0.5f, without_gaps(dx.download(), row, extra));
    else prepare_backward<T>(dx, x, call, workspace);
    return std::pair(dx.download(), dscale.download());
  };
  bool launched, launched_apart;
  auto result = gradients(true, launched), expected = gradients(false, launched_apart);
  bool undone = on_hopper() && (shape.D == 64 || shape.D == 128) && scales.empty();
  EXPECT_EQ(launched, !undone) << name;
  EXPECT_FALSE(launched_apart) << name;
  if (!undone) {
    expect_same_bits(name + " dqkv", result.first, expected.first);
    expect_same_bits(name + " dscale", result.second, expected.second);
    return;
  }
  expect_gaps(name, result.first, row, extra, 7);
  if (jumps(s)) return;
  auto dqkv = without_gaps(result.first, row, extra);
  auto reference = [&]<class P>(P) {
    auto wide = widen<P>(qkv);
    auto dprepared = ref_attention_backward<P>(s, shape, ref_prepare<P>(s, shape, wide, rope), widen<P>(dout));
    return ref_prepare_backward<P>(s, shape, wide, dprepared, rope);
  };
  auto exact = reference(Exact());
  auto naive = reference(Naive<T>());
  for (int part = 0; part < 3; part++)
    expect_close(format("%s d%c", name.c_str(), "qkv"[part]), part_of(shape, dqkv, part), part_of(shape, exact, part),
                 part_of(shape, naive, part), u<T>);
}

TYPED_TEST(AttentionTest, PreparedQueriesAndKeys) {
  using T = typename TypeParam::T;
  auto check = [](Kind kind, QkNorm norm, Scale scale, const AttentionShape& shape, bool rotate, int extra = 0) {
    if (!has_kernels(kind, shape.D)) return;
    AttentionSetup s = settings_of(kind, 1024);
    s.qk_norm = norm, s.scale = scale;
    check_prepared<T>(s, shape, rotate, extra);
  };
  for (Kind kind : built_kinds())
    for (int D : {64, 128, 32}) {
      check(kind, QkNorm::none, Scale::rsqrt_d, {2, 70, 2, D}, true, D);
      check(kind, QkNorm::none, Scale::rsqrt_d, {1, 130, 1, D}, false);
      check(kind, QkNorm::rms, Scale::logn, {1, 70, 3, D}, true);
      check(kind, QkNorm::l2, Scale::logd_logn, {1, 200, 2, D}, true);
      check(kind, QkNorm::l2, Scale::ssmax, {1, 70, 2, D}, true);
    }
}

TYPED_TEST(AttentionTest, Sinks) {
  if (!is_built(Kind::softmax)) GTEST_SKIP() << "built without softmax";
  for (Sink sink : {Sink::one, Sink::learned}) check_random<typename TypeParam::T>({{.sink = sink}}, {2, 70, 3, 36});
}

// Blocks that process many tiles, as Hopper's do if there are more tiles than multiprocessors, compute the same for
// each head as with few tiles.
TYPED_TEST(AttentionTest, ManyHeads) {
  using T = typename TypeParam::T;
  AttentionShape few{1, 130, 5, 64}, many = few;
  many.H *= 3 * device_properties().multiProcessorCount / few.H + 2;
  auto qkv = random_qkv<T>(few, 1), dout = random_normal<T>(few.out_size(), 2);
  auto repeated = [&](const std::vector<T>& x) {
    std::vector<T> y;
    size_t part = size_t(few.H) * few.D;
    for (auto from = x.begin(); from != x.end(); from += part)
      for (int copy = 0; copy < many.H / few.H; copy++) y.insert(y.end(), from, from + part);
    return y;
  };
  for (Kind kind : built_kinds())
    for (int window : {0, 20}) {
      bool heads_differ = looks_at_places(kind) || !with_learned<T>({{.kind = kind}}, 1).learned.empty();
      if ((window && general_on_gpu()) || heads_differ) continue;
      AttentionSetup s{{.kind = kind, .window = window, .sink_tokens = window ? 1 : 0}};
      auto expected = run_attention<T>(s, few, qkv, dout),
           result = run_attention<T>(s, many, repeated(qkv), repeated(dout));
      expect_same_bits("out", result.out, repeated(expected.out));
      expect_same_bits("dqkv", result.dqkv, repeated(expected.dqkv));
    }
}

// Multiprocessors left to other kernels change which block computes a tile, but no bit. Only Hopper's kernels leave
// any.
static void check_spare_multiprocessors(const char* name, int kernels) {
  family = name;
  if (built_kinds().empty()) GTEST_SKIP() << "built without these kernels";
  if (lacks_hopper()) GTEST_SKIP() << "needs a GPU of compute capability 9.0";
  int all = device_properties().multiProcessorCount;
  AttentionShape shape{1, 130, all + 1, 64};  // two tiles a head, and a block takes two at a time
  auto qkv = random_qkv<bf16>(shape, 1), dout = random_normal<bf16>(shape.out_size(), 2);
  for (Kind kind : built_kinds()) {
    Result<bf16> expected;
    for (int spare : {0, 1, all + 3}) {
      profile_start();
      auto result = run_attention<bf16>({{.kind = kind}, 1024, 0, 1, nullptr, spare}, shape, qkv, dout);
      int seen = 0;
      for (const ProfileLine& line : profile_collect()) {
        if (line.name.find("_hopper_") == std::string::npos) continue;
        EXPECT_EQ(line.resources.launched, std::max(1, all - spare)) << line.name;
        seen++;
      }
      EXPECT_EQ(seen, kernels);
      if (spare == 0) expected = result;
      expect_same_bits("out", result.out, expected.out);
      expect_same_bits("dqkv", result.dqkv, expected.dqkv);
      expect_same_bits("stats", result.stats, expected.stats);
    }
  }
}
TEST(HopperAttention, SpareMultiprocessors) {
  check_spare_multiprocessors("hopper", 3);
  check_spare_multiprocessors("hopper_heads", 2);
}

// On a CPU the general kernels have tiles of their own (GENERAL_ON_CPU). Here they have those of a GPU.
template <class Policy> void check_tiles_of_a_gpu(Kind kind) {
  if constexpr (on_cpu) {
    if (!attention_is_built(kind)) return;
    family = "general";
    Family<float>& general = family_of<float>(kind, "general");
    const Family<float> usual = general;
    general.forward = general_forward<float, Policy, OwnDocument<Biased>, false>;
    general.evaluate = general_forward<float, typename Policy::Evaluation, OwnDocument<Biased>, false>;
    general.backward = general_backward<float, Policy, OwnDocument<Biased>, false>;
    for (int D : {20, 64, 200})
      for (int T : {1, 70, 257}) check_random<float>(settings_of(kind, T), {1, T, 2, D});
    general = usual;
  }
}
TEST(GeneralAttention, TilesOfAGpu) {
  check_tiles_of_a_gpu<Softmax<FullMaths>>(Kind::softmax);
  check_tiles_of_a_gpu<Sharpened<SoftplusStage<FullMaths>, WholePower>>(Kind::lssar);
  check_tiles_of_a_gpu<Sharpened<ExpStage<FullMaths>, WholePower>>(Kind::softmaxr);
}

// Later tokens change no bit of the output.
TYPED_TEST(AttentionTest, Causal) {
  using T = typename TypeParam::T;
  AttentionShape shape{1, 130, 1, 40};
  auto qkv = random_qkv<T>(shape, 1);
  auto dout = random_normal<T>(shape.out_size(), 2);
  for (int seen : {1, 37, 64, 100}) {
    auto later = qkv;
    for (int t = seen; t < shape.T; t++)
      for (int part = 0; part < 3; part++)
        for (int d = 0; d < shape.D; d++) later[shape.qkv(0, t, part, 0, d)] = from_float<T>(d % 2 ? 1e6f : -1e6f);
    for (Kind kind : built_kinds()) {
      auto a = run_attention<T>({{.kind = kind}}, shape, qkv, dout).out,
           b = run_attention<T>({{.kind = kind}}, shape, later, dout).out;
      a.resize(shape.out(0, seen, 0)), b.resize(a.size());
      expect_same_bits(format("rows before %d", seen), a, b);
    }
  }
}

TYPED_TEST(AttentionTest, SameBitsInAnyOrder) {
  using T = typename TypeParam::T;
  const AttentionShape many_heads{2, 100, 3, 40}, one_head{1, 300, 1, 64};
  const AttentionShape longer{1, 400, 1, 8};  // Hopper's forward pass has more tiles than its ring
  const std::vector<std::pair<AttentionShape, bool>> cases = {{many_heads, false}, {one_head, false}, {longer, true}};
  for (auto [shape, biased] : cases) {
    if (biased && general_on_gpu()) continue;
    auto qkv = random_qkv<T>(shape, 1);
    auto dout = random_normal<T>(shape.out_size(), 2);
    auto sinks = random_normal<T>(shape.H, 3);
    auto bias = biased ? random_bias(shape, 4) : Numbers<Exact>();
    for (Kind kind : built_kinds()) {
      if (!has_kernels(kind, shape.D, biased)) continue;
      AttentionSetup s{{.kind = kind, .sink = kind == Kind::softmax ? Sink::learned : Sink::none}};
      if (biased) s.bias = Bias::fox;
      expect_reproducible(describe(s, shape), [&] {
        auto own = s.sink == Sink::learned ? sinks : std::vector<T>();
        auto result = run_attention<T>(s, shape, qkv, dout, own, 0, 0, bias);
        return bits_of(result.out, result.dqkv, result.stats, result.dsinks, result.dbias, result.dqkv_sums);
      });
    }
  }
}
