// Runs the kernels of one family, forward and backward, and compares them with the float64 references by the rule of
// test/support/compare.h: for attention_test.cu and documents_test.cu.
#pragma once
#include <algorithm>
#include <string_view>
#include <tuple>

#include "test/attention/attention_reference.h"

#include <gtest/gtest.h>

#include "attention/prune.cuh"
#include "test/support/device.h"
#include "test/support/family.h"

inline const bool poisoned = (set_cpu_poison(true), true);  // reading unwritten memory gives NaN

// Which kernels run_attention() runs, and in which precision.
inline std::string_view family;
constexpr char GENERAL[] = "general", TENSOR[] = "tensor", HOPPER[] = "hopper", HOPPER_HEADS[] = "hopper_heads",
               ONEDNN[] = "onednn";
inline bool on_hopper() { return family.starts_with("hopper"); }
template <class Type, const char* NAME> struct Kernels {
  using T = Type;
  static constexpr std::string_view name = NAME;
};
// Whether this build has the family for a kind: make leaves out some. Functions, because the kernels register
// themselves while static objects are constructed.
inline bool is_built(Kind kind) {
  return std::ranges::any_of(families_of<bf16>(kind), [](const auto& f) { return f.name == family; });
}
inline std::vector<Kind> built_kinds() {
  std::vector<Kind> all;
  for (size_t k = 0; k < std::size(kind_names); k++)
    if (is_built(Kind(k)) && has_reference(Kind(k))) all.push_back(Kind(k));
  return all;
}
// Of one family: Families.
template <class K> class OfFamily : public testing::Test {
 protected:
  void SetUp() override {
    family = K::name;
    if (built_kinds().empty()) GTEST_SKIP() << "built without these kernels";
    if (on_hopper() && lacks_hopper()) GTEST_SKIP() << "needs a GPU of compute capability 9.0";
  }
};
using Families = testing::Types<Kernels<float, GENERAL>, Kernels<bf16, GENERAL>, Kernels<bf16, TENSOR>,
                                Kernels<bf16, HOPPER>, Kernels<bf16, HOPPER_HEADS>, Kernels<bf16, ONEDNN>>;

// The shape, with a head dimension that the family has kernels for: Hopper's copy engine moves multiples of 8 channels.
inline AttentionShape fit(AttentionShape shape) {
  if (on_hopper()) shape.D = (shape.D + 7) / 8 * 8;
  return shape;
}
// make HEAD_DIM=... leaves out tensor-core kernels
inline bool has_kernels(Kind kind, int D, bool biased = false, Documents documents = Documents::joined) {
  AttentionSettings s{.kind = kind, .documents = documents, .bias = biased ? Bias::fox : Bias::none};
  return family == "general" || find_family<bf16>({.settings = s, .shape = {1, 1, 1, D}, .family = family.data()}, {});
}

template <class T> struct Result {
  std::vector<T> out, dqkv;
  std::vector<float> stats, dsinks, dbias, dlearned, dqkv_sums;
};

// With numbers of its own for every head where its kind learns some.
template <class T> AttentionSetup with_learned(AttentionSetup s, int H) {
  if (!s.learned.empty()) return s;
  for (const LearnedNumber& number : kind_row(s.kind).learned)
    for (int h = 0; h < H; h++)
      s.learned.push_back(to_float(from_float<T>(float(number.initial * (1 + 0.07 * h) + 0.03 * (h % 3)))));
  return s;
}

// sums [3 A]: `before` and the column sums of dqkv, of its numbers as they are stored. A float32 addition loses at most
// 2^-24 of its result; a column is up to SUMMED_ROWS of them, then one for each such sum. A step of 16 rows on tensor
// cores loses 17 / 2^25, and 2^-23 as its result is rounded (test/kernels/tensor_core.h), which is less.
template <class T>
void expect_column_sums(const std::string& name, const AttentionShape& shape, const std::vector<float>& sums,
                        float before, const std::vector<T>& dqkv) {
  double loss = (SUMMED_ROWS + column_sums_count(shape) + 1) * 0x1p-24;
  for (size_t c = 0; c < sums.size(); c++) {
    double sum = before, sizes = before;
    for (size_t i = c; i < dqkv.size(); i += sums.size())
      sum += as_double(dqkv[i]), sizes += std::fabs(as_double(dqkv[i]));
    if (std::isfinite(sum)) ASSERT_NEAR(sums[c], sum, loss * sizes) << name << " column " << c << " of dqkv";
    else ASSERT_FALSE(std::isfinite(sums[c])) << name << " column " << c << " of dqkv";
  }
}

// The kernels' forward and backward. `shift` elements misalign every array of T; `extra` elements, which must not
// change, follow every row of q, k, v and of their gradients.
template <class T>
Result<T> run_attention(AttentionSetup s, const AttentionShape& shape, const std::vector<T>& qkv,
                        const std::vector<T>& dout, const std::vector<T>& sinks = {}, int shift = 0, int extra = 0,
                        const Numbers<Exact>& bias = {}) {
  const T other = from_float<T>(7);
  size_t row = 3 * size_t(shape.H) * shape.D;
  s.family = family.data();
  if (extra) s.qkv_stride = int(row) + extra;
  auto laid_out = [&](const std::vector<T>& x, size_t row, int extra) {
    std::vector<T> y = with_gaps(x, row, extra, other);
    y.insert(y.begin(), shift, other);
    return y;
  };
  auto taken = [&](const DeviceArray<T>& array, size_t row, int extra) {
    std::vector<T> y = without_first(array.download(), shift);
    expect_gaps("rows apart", y, row, extra, 7);
    return without_gaps(y, row, extra);
  };
  DeviceArray<T> in(laid_out(qkv, row, extra)), out(shape.out_size() + shift), d(laid_out(dout, row / 3, 0)),
      sink(sinks), dqkv(laid_out(std::vector<T>(shape.qkv_size(), from_float<T>(NAN)), row, extra));
  DeviceArray<float> stats(attention_statistics(s, shape.D) * shape.rows()),
      dsinks(std::vector<float>(sinks.size(), 0.5f));
  AttentionCall<T> call = s.call<T>(shape);
  DeviceArray<char> workspace(attention_backward_workspace(call));
  if (s.sink == Sink::learned) call.sink = sink, call.dsink = dsinks;
  DeviceArray<float> c(as_kernels_read(bias, shape, s.kind, s.spans));
  DeviceArray<int2> documents(s.spans);
  if (s.documents == Documents::separate) call.documents = documents;
  if (!bias.empty()) call.bias = c, find_needed_tiles<T>(c, nullptr, in + shift, call);
  s = with_learned<T>(s, shape.H);
  std::vector<T> numbers(s.learned.size());
  for (size_t n = 0; n < numbers.size(); n++) numbers[n] = from_float<T>(float(s.learned[n]));
  DeviceArray<T> learned(numbers);
  DeviceArray<float> dlearned(std::vector<float>(numbers.size(), 0.5f));
  for (size_t l = 0; l < numbers.size() / shape.H; l++)
    call.learned[l] = learned + l * shape.H, call.dlearned[l] = dlearned + l * shape.H;
  DeviceArray<float> dqkv_sums(std::vector<float>(row, 0.5f));
  call.dqkv_sums = dqkv_sums;
  attention_forward<T>(out + shift, stats, in + shift, call, true);
  attention_backward<T>(dqkv + shift, d + shift, out + shift, stats, in + shift, workspace, call);
  std::vector<float> dbias(bias.size());
  if (!bias.empty()) {
    std::vector<char> left = workspace.download();
    BackwardWorkspace sums = backward_workspace(left.data(), call.settings, shape);
    for (size_t i = 0; i < bias.size(); i++)
      dbias[i] = (sums.dz_by_query[i] - sums.dz_by_key[i]) / ref_unit<float>(s.kind);
  }
  DeviceArray<T> evaluated(shape.out_size());
  attention_forward<T>(evaluated, nullptr, in + shift, call, false);
  std::vector<T> result = taken(out, row / 3, 0);
  expect_same_bits("evaluation", evaluated.download(), result);
  std::vector<T> gradients = taken(dqkv, row, extra);
  expect_column_sums(describe(s, shape), shape, dqkv_sums.download(), 0.5f, gradients);
  return {result, gradients, stats.download(), dsinks.download(), dbias, dlearned.download(), dqkv_sums.download()};
}

// One document: positions [first, first + count) of sequence b, or all sequences where they are joined.
struct DocumentOfShape {
  int b, first, count;
  AttentionShape alone(const AttentionShape& all) const { return {b < 0 ? all.B : 1, count, all.H, all.D}; }
  // f(index in all sequences, index by itself) of the numbers of an array [B, T, row], or with row = 0 [B, H, T].
  template <class F> void for_numbers(const AttentionShape& s, int row, F f) const {
    for (int t = 0; t < count; t++) {
      for (int n = 0; n < row; n++) f((size_t(b) * s.T + first + t) * row + n, size_t(t) * row + n);
      for (int h = 0; h < s.H && row == 0; h++) f(s.first_row(b, h) + first + t, size_t(h) * count + t);
    }
  }
  template <class X> X take(const AttentionShape& s, const X& all, int row) const {
    if (b < 0 || all.empty()) return all;
    X own(all.size() / (size_t(s.B) * s.T) * count);
    for_numbers(s, row, [&](size_t from, size_t to) { own[to] = all[from]; });
    return own;
  }
  template <class X> void put(const AttentionShape& s, X& all, const X& own, int row) const {
    if (b < 0) all = own;
    else if (!own.empty()) for_numbers(s, row, [&](size_t to, size_t from) { all[to] = own[from]; });
  }
};
inline std::vector<DocumentOfShape> documents_of(const AttentionSetup& s, const AttentionShape& shape) {
  if (s.documents == Documents::joined) return {{-1, 0, shape.T}};
  std::vector<DocumentOfShape> all;
  for (int row = 0; row < shape.B * shape.T; row++)
    if (int2 span = s.spans[row]; span.x == row % shape.T) all.push_back({row / shape.T, span.x, span.y - span.x});
  return all;
}

// Outputs and gradients of one or several inputs of a shape beside their references. A result of a few numbers says
// little about the naive formula's error, so small shapes are compared over several draws, as one tensor.
template <class T> struct Comparison {
  Pool out, dq, dk, dv, dbias, dsinks, dlearned;
  explicit Comparison(const std::string& name, double lost = 0)
      : out(name + " out", u<T> + lost),
        dq(name + " dq", u<T>),
        dk(name + " dk", u<T>),
        dv(name + " dv", u<T>),
        dbias(name + " dbias", u<T>),
        dsinks(name + " dsink", u<float>),
        dlearned(name + " dlearned", u<T>) {}

  void add(const AttentionSetup& setup, const AttentionShape& shape, const std::vector<T>& qkv,
           const std::vector<T>& dout, const std::vector<T>& sinks = {}, int shift = 0,
           const Numbers<Exact>& bias = {}) {
    AttentionSetup s = with_learned<T>(setup, shape.H);
    auto result = run_attention<T>(setup, shape, qkv, dout, sinks, shift, 0, bias);
    double terms[6] = {};
    auto reference = [&]<class P>(P, double* terms) {
      auto x = widen<P>(qkv), sink = widen<P>(sinks), d = widen<P>(dout);
      Numbers<P> out(dout.size()), dqkv(qkv.size()), dsink(sinks.size(), 0.5f), dc(bias.size(), 0.0f),
          dl(s.learned.size(), 0.5f);
      // Each document by itself, as a sequence of its own.
      for (const DocumentOfShape& of : documents_of(s, shape)) {
        AttentionShape alone = of.alone(shape);
        Numbers<P> dc_alone(bias.empty() ? 0 : alone.rows());
        int A = shape.H * shape.D;
        auto c = of.take(shape, bias, 0);
        auto own = of.take(shape, x, 3 * A), own_d = of.take(shape, d, A);
        of.put(shape, out, ref_attention<P>(s, alone, own, sink, 0, c), A);
        of.put(shape, dqkv, ref_attention_backward<P>(s, alone, own, own_d, sink, &dsink, terms, 0, c, &dc_alone, &dl),
               3 * A);
        of.put(shape, dc, dc_alone, 0);
      }
      return std::tuple(out, dqkv, dsink, dc, dl);
    };
    auto [exact, dexact, exact_dsinks, exact_dbias, exact_dlearned] = reference(Exact(), terms);
    auto [naive, dnaive, naive_dsinks, naive_dbias, naive_dlearned] = reference(Naive<T>(), nullptr);
    out.add(result.out, exact, naive, terms[5]);
    int part = 0;
    for (Pool* pool : {&dq, &dk, &dv}) {
      pool->add(part_of(shape, result.dqkv, part), part_of(shape, dexact, part), part_of(shape, dnaive, part),
                terms[part]);
      part++;
    }
    dbias.add(result.dbias, exact_dbias, naive_dbias, terms[3]);
    dsinks.add(result.dsinks, exact_dsinks, naive_dsinks);
    dlearned.add(result.dlearned, exact_dlearned, naive_dlearned, terms[4]);
  }

  // The largest error / bound, except of the sinks.
  double compare() {
    dlearned.compare();
    return std::max({out.compare(), dq.compare(), dk.compare(), dv.compare(), dbias.compare()});
  }
};

// lost: what `out` may lose beyond its own and the naive formula's roundings
template <class T>
double check_attention(const AttentionSetup& s, const AttentionShape& shape, const std::vector<T>& qkv,
                       const std::vector<T>& dout, double lost = 0) {
  Comparison<T> comparison(describe(s, shape), lost);
  comparison.add(s, shape, qkv, dout);
  return comparison.compare();
}

template <class T> double check_random(const AttentionSetup& s, const AttentionShape& wanted, int shift = 0) {
  AttentionShape shape = fit(wanted);
  if (!has_kernels(s.kind, shape.D)) return 0;
  Comparison<T> comparison(describe(s, shape));
  bool learned = s.sink == Sink::learned;
  size_t smallest = learned ? shape.H : shape.out_size();  // numbers in the smallest result
  for (size_t draw = 0, numbers = 0; draw < 16 && numbers < 2000; draw++, numbers += smallest) {
    auto sinks = learned ? random_normal<T>(shape.H, 5 + 3 * draw) : std::vector<T>();
    auto qkv = random_qkv<T>(shape, 3 + 3 * draw);
    if (is_sharpened(s.kind)) look_at_first_key(shape, qkv);
    comparison.add(s, shape, qkv, random_normal<T>(shape.out_size(), 4 + 3 * draw), sinks, shift);
  }
  return comparison.compare();
}

// A kind as the shape tests use it. lssar and softmaxr: with power 3; 15 multiplies every rounding of z by 15 / m, so
// that few rows show little. threshold: with a quarter of the usual one, which few random scores exceed, and those by
// little.
inline AttentionSetup settings_of(Kind kind, int T) { return {of_kind(kind, {{"power", 3}, {"threshold", 0.25}}), T}; }
