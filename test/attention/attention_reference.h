// Float64 references of attention/, and the same formulas op by op with results rounded to a storage type: templates
// over the policies Exact and Naive<T> of test/support/compare.h. Written from the equations in attention/README.md,
// one row at a time, with the whole row of scores in memory. Values that the kernels keep per row in float32 are not
// rounded here.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "attention/position_bias.cuh"
#include "test/attention/inputs.h"
#include "test/support/compare.h"
#include "test/support/device.h"

template <class P> using Numbers = std::vector<typename P::real>;

// What a test sets of a layer, and the call with it.
struct AttentionSetup : AttentionSettings {
  int context = 1024, qkv_stride = 0;
  float scale_factor = 1;
  const char* family = nullptr;
  int spare_multiprocessors = 0;
  std::vector<double> learned = {};  // of a kind that is a file, [LEARNED][H]; empty: all as they begin
  std::vector<int2> spans = {};      // AttentionCall::documents, of separate ones
  template <class T> AttentionCall<T> call(const AttentionShape& shape) const {
    return {.settings = *this,
            .shape = shape,
            .context = context,
            .qkv_stride = qkv_stride,
            .scale_factor = scale_factor,
            .family = family,
            .spare_multiprocessors = spare_multiprocessors};
  }
};

// The settings of a kind with these values of its parameters; it need not have all.
inline AttentionSettings of_kind(Kind kind, const std::map<std::string, double>& parameters) {
  AttentionSettings s{.kind = kind};
  const KindRow& row = kind_row(kind);
  for (size_t n = 0; n < row.parameters.size(); n++)
    if (auto given = parameters.find(row.parameters[n].name); given != parameters.end())
      s.parameters[row.first_parameter + n] = given->second;
  return s;
}
inline const KindRow* formula_of(Kind kind) { return kind_row(kind).is_formula() ? &kind_row(kind) : nullptr; }
inline bool is_sharpened(Kind kind) { return kind == Kind::lssar || kind == Kind::softmaxr; }
// Kernels take the scores of these kinds as multiples of ln 2.
template <class R> R ref_unit(Kind kind) { return kind == Kind::lssa || is_sharpened(kind) ? std::log(R(2)) : R(1); }

// ---- one row: scores z of its keys -> weights p, and gradients dp of the weights -> dz; dot = dO . O. slope = dz per
// dp. sink: a further logit of softmax's denominator, -inf for none; its gradient is added to dsink. learned: for each
// learned number what the keys add to its gradient, then that per dp.

template <class R> R ref_softplus(R z) { return std::max(z, R(0)) + std::log1p(std::exp(-std::fabs(z))); }
template <class R> R ref_sigmoid(R z) { return z < 0 ? std::exp(z) / (1 + std::exp(z)) : 1 / (1 + std::exp(-z)); }

// What a score exceeds the threshold of a row of n keys by, or 0.
template <class P> typename P::real ref_excess(const AttentionSettings& s, typename P::real z, size_t n) {
  using R = typename P::real;
  return P::round(std::max(z - R(s.parameter("threshold")) * std::sqrt(2 * std::log(R(n))), R(0)));
}

// The stages of lssar and softmaxr, whose f is relative to the largest; slope: of f. w, q are not yet divided by W.
template <class P> struct RefSharpened {
  using R = typename P::real;
  R s = 0, offset, m = 0, W = 0, t = 0;
  Numbers<P> f, slope, r, w, q;
  RefSharpened(const AttentionSettings& settings, const Numbers<P>& z) : f(z.size()), slope(f), r(f), w(f), q(f) {
    size_t n = z.size();
    offset = double(n) <= settings.parameter("offset_free_rows") ? R(0) : R(settings.parameter("offset"));
    R largest = *std::max_element(z.begin(), z.end());
    bool is_exp = settings.kind == Kind::softmaxr;
    for (size_t j = 0; j < n; j++) {
      s += f[j] = P::round(is_exp ? std::exp(P::round(z[j] - largest)) : ref_softplus(z[j]));
      slope[j] = is_exp ? f[j] : ref_sigmoid(z[j]);
    }
    if (is_exp) {  // what divides a row of exponentials is kept as its logarithm
      R log_s = largest + std::log(s);
      for (size_t j = 0; j < n; j++) slope[j] = f[j] = P::round(std::exp(P::round(z[j] - log_s)));
      s = 1;
    }
    for (size_t j = 0; j < n; j++) {
      r[j] = P::round(std::max(R(0), P::round(R(n) * f[j] / s) - offset));
      m = std::max(m, r[j]);
    }
    if (offset > 0 && m < R(1e-3)) {  // degenerate: only rounding is left
      std::fill(r.begin(), r.end(), R(0));
      return;
    }
    R power = R(settings.parameter("power"));
    for (size_t j = 0; j < n; j++) {
      w[j] = P::round(std::pow(P::round(r[j] / m), power));
      W += w[j];
    }
    for (size_t j = 0; j < n; j++) {
      if (r[j] > 0) q[j] = P::round(power == 1 ? 1 / m : std::pow(r[j] / m, power - 1) / m);
      t += q[j];
    }
    t /= W;
  }
};

// Where a row is, for kinds that look at it: query i of head h of H, and its keys; by default the last query, and all
// keys before it.
struct RefRow {
  int i = -1, h = 0, H = 1;
  const std::vector<int>* keys = nullptr;
};

// The parameters of a kind, then the learned numbers of head h of H.
inline std::vector<double> ref_numbers(const KindRow& file, const AttentionSetup& s, int h = 0, int H = 1) {
  auto first = s.parameters.begin() + file.first_parameter;
  std::vector<double> numbers(first, first + file.parameters.size() + file.learned.size());
  for (size_t l = 0; l < file.learned.size() && !s.learned.empty(); l++)
    numbers[file.parameters.size() + l] = s.learned[l * H + h];
  return numbers;
}

// f of a formula; slopes by z, then by each learned number.
template <class P>
Numbers<P> ref_formula(const KindRow& file, const AttentionSetup& s, const Numbers<P>& z, const RefRow& row,
                       std::vector<Numbers<P>>& slopes) {
  int n = int(z.size());
  std::vector<double> numbers = ref_numbers(file, s, row.h, row.H);
  Numbers<P> f(z.size());
  slopes.assign(1 + file.learned.size(), f);
  for (int m = 0; m < n; m++) {
    int i = row.i < 0 ? n : row.i + 1, j = row.keys ? (*row.keys)[m] + 1 : m + 1;
    ScorePosition<int> at = {i, j, n, row.h + 1, row.H};
    typename P::real by[1 + MOST_PARAMETERS];
    if constexpr (std::is_same_v<P, Exact>) file.exact(z[m], at, numbers.data(), f[m], by);
    else file.naive(z[m], at, numbers.data(), f[m], by);
    f[m] = P::round(f[m]);
    for (size_t l = 0; l < slopes.size(); l++) slopes[l][m] = P::round(by[l]);
  }
  return f;
}

// Of the tests' kind `mixture`, which is a policy: the weights of its two parts, and s = sigmoid(z).
inline bool is_mixture(Kind kind) { return kind_row(kind).name == std::string_view("mixture"); }
// The families' results for other policies of files are compared with each other (policies_test.cu).
inline bool has_reference(Kind kind) { return !kind_row(kind).text || formula_of(kind) || is_mixture(kind); }
template <class P> struct RefMixture {
  using R = typename P::real;
  Numbers<P> p1, p2, s;
  R share;
  RefMixture(const AttentionSetup& setup, const Numbers<P>& z, const RefRow& row) : p1(z.size()), p2(p1), s(p1) {
    std::vector<double> numbers = ref_numbers(kind_row(setup.kind), setup, row.h, row.H);
    R largest = -std::numeric_limits<R>::infinity(), sum1 = 0, sum2 = 0;
    share = R(numbers[1]);
    for (size_t m = 0; m < z.size(); m++) {
      int distance = row.keys ? row.i - (*row.keys)[m] : int(z.size() - 1 - m);
      p1[m] = P::round(z[m] - P::round(R(numbers[0]) * P::round(std::log(R(1 + distance)))));
      largest = std::max(largest, p1[m]);
      sum2 += s[m] = P::round(ref_sigmoid(z[m]));
    }
    for (R& x : p1) sum1 += x = P::round(std::exp(P::round(x - largest)));
    for (R& x : p1) x = P::round(x / sum1);
    for (size_t m = 0; m < z.size() && sum2 > 0; m++) p2[m] = P::round(s[m] / sum2);
  }
};

// Whether equal scores of this kind may have unequal weights, by their keys or heads.
inline bool looks_at_places(Kind kind) {
  const KindRow* file = formula_of(kind);
  double values[2], slopes[1 + MOST_PARAMETERS];
  for (int n = 0; n < 2 && file; n++)
    file->exact(0.3, {9, 2 + 3 * n, 9, 1 + n, 2}, ref_numbers(*file, {}).data(), values[n], slopes);
  return is_mixture(kind) || (file && values[0] != values[1]);
}

template <class P>
Numbers<P> ref_weights(const AttentionSetup& s, const Numbers<P>& scores, typename P::real sink,
                       typename P::real* sink_weight, const RefRow& row = {}) {
  using R = typename P::real;
  const KindRow* file = formula_of(s.kind);
  std::vector<Numbers<P>> unused;
  Numbers<P> z = file ? ref_formula<P>(*file, s, scores, row, unused) : scores;
  size_t n = z.size();
  Numbers<P> p(n);
  R sum = 0;
  if (is_mixture(s.kind)) {
    RefMixture<P> mixture(s, z, row);
    for (size_t j = 0; j < n; j++) p[j] = P::round(mixture.share * mixture.p1[j] + (1 - mixture.share) * mixture.p2[j]);
    return p;
  }
  if (file && file->weights != RowWeights::softmax) {
    for (R x : z) sum += x;
    R divisor = file->weights == RowWeights::none ? 1 : sum;
    for (size_t j = 0; j < n; j++) p[j] = divisor == 0 ? R(0) : P::round(z[j] / divisor);  // as the kernels
    return p;
  }
  switch (file ? Kind::softmax : s.kind) {
    case Kind::softmax: {
      R largest = sink;
      for (R x : z) largest = std::max(largest, x);
      for (size_t j = 0; j < n; j++) p[j] = P::round(std::exp(P::round(z[j] - largest)));
      for (R x : p) sum += x;
      if (sink > -std::numeric_limits<R>::infinity()) sum += std::exp(sink - largest);
      for (R& x : p) x = P::round(x / sum);
      *sink_weight = std::exp(sink - largest) / sum;
      break;
    }
    case Kind::lssa:
      for (size_t j = 0; j < n; j++) sum += p[j] = P::round(ref_softplus(z[j]));
      for (R& x : p) x = P::round(x / sum);
      break;
    case Kind::lssar:
    case Kind::softmaxr: {
      RefSharpened<P> row(s, z);
      for (size_t j = 0; j < n && row.W > 0; j++) p[j] = P::round(row.w[j] / row.W);
      break;
    }
    case Kind::sigmoid:
      for (size_t j = 0; j < n; j++) p[j] = P::round(ref_sigmoid(P::round(z[j] - std::log(R(s.context)))));
      break;
    case Kind::relu:
      for (size_t j = 0; j < n; j++) p[j] = P::round(std::max(z[j], R(0)) / R(n));
      break;
    case Kind::relu2:
      for (size_t j = 0; j < n; j++) p[j] = P::round(P::round(std::max(z[j], R(0)) * std::max(z[j], R(0))) / R(n));
      break;
    case Kind::threshold:
      for (size_t j = 0; j < n; j++) p[j] = P::round(ref_excess<P>(s, z[j], n) * ref_excess<P>(s, z[j], n));
      break;
    default: failure("attention_reference.h: ref_weights() has no case for the policy %s", kind_row(s.kind).name);
  }
  return p;
}

template <class P>
Numbers<P> ref_score_gradients(const AttentionSetup& s, const Numbers<P>& z, const Numbers<P>& dp, typename P::real dot,
                               typename P::real sink, typename P::real* dsink, Numbers<P>& slope,
                               const RefRow& row = {}, std::vector<Numbers<P>>* learned = nullptr) {
  using R = typename P::real;
  size_t n = z.size();
  R sink_weight = 0, sum = 0;
  Numbers<P> dz(n), p = ref_weights<P>(s, z, sink, &sink_weight, row);
  slope = p;
  if (is_mixture(s.kind)) {
    RefMixture<P> mixture(s, z, row);
    R share = mixture.share, dot1 = 0;
    for (size_t j = 0; j < n; j++) dot1 += mixture.p1[j] * dp[j];
    R dot2 = (dot - share * dot1) / (1 - share);
    if (learned) learned->assign(2, dz);
    for (size_t j = 0; j < n; j++) {
      R by1 = share * mixture.p1[j], by2 = (1 - share) * P::round(mixture.p2[j] * P::round(1 - mixture.s[j]));
      slope[j] = by1 + by2;
      dz[j] = P::round(P::round(by1 * P::round(dp[j] - dot1)) + P::round(by2 * P::round(dp[j] - dot2)));
      if (!learned) continue;
      (*learned)[0][j] = P::round((mixture.p1[j] - mixture.p2[j]) * dp[j]);
      (*learned)[1][j] = mixture.p1[j] + mixture.p2[j];
    }
    return dz;
  }
  if (const KindRow* file = formula_of(s.kind)) {
    std::vector<Numbers<P>> by;
    Numbers<P> f = ref_formula<P>(*file, s, z, row, by);
    for (R x : f) sum += x;
    if (learned) learned->assign(2 * (by.size() - 1), dz);
    for (size_t j = 0; j < n; j++) {
      R by_sum = sum == 0 ? R(0) : 1 / sum;
      R by_f = file->weights == RowWeights::softmax ? p[j] : file->weights == RowWeights::sum ? by_sum : R(1);
      R from_mean = file->weights == RowWeights::none ? dp[j] : P::round(dp[j] - dot);
      slope[j] = by[0][j] * by_f;
      dz[j] = P::round(by[0][j] * P::round(by_f * from_mean));
      for (size_t l = 1; l < by.size() && learned; l++) {
        (*learned)[2 * l - 2][j] = P::round(by[l][j] * P::round(by_f * from_mean));
        (*learned)[2 * l - 1][j] = by[l][j] * by_f;
      }
    }
    return dz;
  }
  switch (s.kind) {
    case Kind::softmax:
      for (size_t j = 0; j < n; j++) dz[j] = P::round(p[j] * P::round(dp[j] - dot));
      *dsink -= sink_weight * dot;
      break;
    case Kind::lssa:
      for (R x : z) sum += P::round(ref_softplus(x));
      for (size_t j = 0; j < n; j++) {
        dz[j] = P::round(P::round(ref_sigmoid(z[j])) * P::round(P::round(dp[j] - dot) / sum));
        slope[j] = ref_sigmoid(z[j]) / sum;
      }
      break;
    case Kind::lssar:
    case Kind::softmaxr: {
      RefSharpened<P> row(s, z);
      if (row.W == 0) break;
      R with_o2 = 0;  // dO . O2 = sum of Q dP
      for (size_t j = 0; j < n; j++) with_o2 += P::round(row.q[j] / row.W) * dp[j];
      R power = R(s.parameter("power"));
      R e = power * row.offset * (with_o2 - dot * row.t);
      for (size_t j = 0; j < n; j++) {
        R da = P::round(R(n) * power * P::round(row.q[j] / row.W) * P::round(dp[j] - dot));
        dz[j] = P::round(P::round(row.slope[j]) * P::round(P::round(da - e) / row.s));
        slope[j] = row.slope[j] * R(n) * power * row.q[j] / row.W / row.s;
      }
      break;
    }
    case Kind::sigmoid:
      for (size_t j = 0; j < n; j++) dz[j] = P::round((slope[j] = P::round(p[j] * P::round(1 - p[j]))) * dp[j]);
      break;
    case Kind::relu:
      for (size_t j = 0; j < n; j++)
        slope[j] = z[j] > 0 ? 1 / R(n) : R(0), dz[j] = z[j] > 0 ? P::round(dp[j] / R(n)) : R(0);
      break;
    case Kind::relu2:
      for (size_t j = 0; j < n; j++)
        slope[j] = 2 * std::max(z[j], R(0)) / R(n), dz[j] = P::round(P::round(2 * std::max(z[j], R(0)) * dp[j]) / R(n));
      break;
    case Kind::threshold:
      for (size_t j = 0; j < n; j++) dz[j] = P::round((slope[j] = 2 * ref_excess<P>(s, z[j], n)) * dp[j]);
      break;
    default: failure("attention_reference.h: ref_score_gradients() has no case for %s", kind_row(s.kind).name);
  }
  return dz;
}

// ---- attention: qkv [B, T, 3, H, D] prepared, sinks [H] or empty

template <class P> typename P::real ref_sink(const AttentionSettings& s, const Numbers<P>& sinks, int h) {
  using R = typename P::real;
  return s.sink == Sink::none ? -std::numeric_limits<R>::infinity() : s.sink == Sink::one ? R(0) : sinks[h];
}

// The keys that row i sees.
inline bool ref_sees(const AttentionSettings& s, int i, int j) {
  return j <= i && (s.window == 0 || j > i - s.window || j < s.sink_tokens);
}
inline std::vector<int> ref_keys(const AttentionSettings& s, int i) {
  std::vector<int> keys;
  for (int j = 0; j <= i; j++)
    if (ref_sees(s, i, j)) keys.push_back(j);
  return keys;
}

// z of those keys. bias: c [B, H, T] or empty; only its differences are rounded.
template <class P>
Numbers<P> ref_scores(const AttentionSettings& s, const AttentionShape& shape, const Numbers<P>& qkv,
                      const Numbers<Exact>& bias, const std::vector<int>& keys, int b, int h, int i) {
  typename P::real unit = ref_unit<typename P::real>(s.kind);
  Numbers<P> z;
  for (int j : keys) {
    typename P::real sum = 0;
    const typename P::real *q = &qkv[shape.qkv(b, i, 0, h)], *k = &qkv[shape.qkv(b, j, 1, h)];
    for (int d = 0; d < shape.D; d++) sum += q[d] * k[d];
    z.push_back(P::round(sum) * unit);
    size_t head = (size_t(b) * shape.H + h) * shape.T;
    if (!bias.empty()) z.back() = P::round(z.back() + typename P::real(bias[head + i] - bias[head + j]));
  }
  return z;
}

// first: queries before it are left out, their outputs 0.
template <class P>
Numbers<P> ref_attention(const AttentionSetup& s, const AttentionShape& shape, const Numbers<P>& qkv,
                         const Numbers<P>& sinks = {}, int first = 0, const Numbers<Exact>& bias = {}) {
  using R = typename P::real;
  Numbers<P> out(shape.out_size()), sum(shape.D);
  for (int b = 0; b < shape.B; b++)
    for (int h = 0; h < shape.H; h++)
      for (int i = first; i < shape.T; i++) {
        R sink_weight = 0;
        auto keys = ref_keys(s, i);
        auto z = ref_scores<P>(s, shape, qkv, bias, keys, b, h, i);
        auto p = ref_weights<P>(s, z, ref_sink<P>(s, sinks, h), &sink_weight, {i, h, shape.H, &keys});
        std::fill(sum.begin(), sum.end(), R(0));
        for (size_t n = 0; n < keys.size(); n++) {
          const R* v = &qkv[shape.qkv(b, keys[n], 2, h)];
          for (int d = 0; d < shape.D; d++) sum[d] += p[n] * v[d];
        }
        for (int d = 0; d < shape.D; d++) out[shape.out(b, i, h, d)] = P::round(sum[d]);
      }
  return out;
}

// Returns dqkv; dsinks [H] += if sinks are learned. terms[0], [1]: the largest sums of slope (|dO| . |v| + its mean)
// times |k| and |q|, the sizes of the terms whose differences are dq and dk. first: only queries from there on count.
// dbias [B, H, T] += the gradient of the bias; terms[3]: the sizes of its terms. dlearned [LEARNED][H] += the gradients
// of learned numbers; terms[4]: the sizes of their terms. terms[2] and [5], of a file whose weights are f / sum f: what
// dv and the outputs change by if each score changes by all of itself, which is much where a row's f are nearly 0.
template <class P>
Numbers<P> ref_attention_backward(const AttentionSetup& s, const AttentionShape& shape, const Numbers<P>& qkv,
                                  const Numbers<P>& dout, const Numbers<P>& sinks = {}, Numbers<P>* dsinks = nullptr,
                                  double* terms = nullptr, int first = 0, const Numbers<Exact>& bias = {},
                                  Numbers<P>* dbias = nullptr, Numbers<P>* dlearned = nullptr) {
  using R = typename P::real;
  Numbers<P> dqkv(shape.qkv_size(), R(0)), sizes(dqkv),
      out = ref_attention<P>(s, shape, qkv, sinks, first, bias), bias_sizes(shape.rows(), R(0)),
      learned_sizes(MOST_PARAMETERS * shape.H), out_sizes(out.size(), R(0));
  const KindRow* file = formula_of(s.kind);
  bool divides = file && file->weights == RowWeights::sum;
  for (int b = 0; b < shape.B; b++)
    for (int h = 0; h < shape.H; h++)
      for (int i = first; i < shape.T; i++) {
        R sink = ref_sink<P>(s, sinks, h), sink_weight = 0, dsink = 0, dot = 0;
        auto keys = ref_keys(s, i);
        auto z = ref_scores<P>(s, shape, qkv, bias, keys, b, h, i);
        size_t head = (size_t(b) * shape.H + h) * shape.T, count = keys.size();
        RefRow row = {i, h, shape.H, &keys};
        auto p = ref_weights<P>(s, z, sink, &sink_weight, row);
        Numbers<P> dp(count), dp_size(count, R(0));
        const R* dout_row = &dout[shape.out(b, i, h)];
        for (size_t n = 0; n < count; n++) {
          R sum = 0;
          const R* v = &qkv[shape.qkv(b, keys[n], 2, h)];
          for (int d = 0; d < shape.D; d++) {
            R term = dout_row[d] * v[d];
            sum += term;
            dp_size[n] += std::fabs(term);
          }
          dp[n] = P::round(sum);
        }
        for (int d = 0; d < shape.D; d++) dot += dout_row[d] * out[shape.out(b, i, h, d)];
        Numbers<P> slope;
        std::vector<Numbers<P>> learned;
        auto dz = ref_score_gradients<P>(s, z, dp, dot, sink, &dsink, slope, row, dlearned ? &learned : nullptr);
        Numbers<P> score_dz = dz, score_slope = slope;
        for (Numbers<P>* gradient : {&dz, &slope})
          for (R& x : *gradient) x *= ref_unit<R>(s.kind);
        R mean_size = 0;
        for (size_t n = 0; n < count; n++) mean_size += p[n] * dp_size[n];
        if (dsinks && !sinks.empty()) (*dsinks)[h] += dsink;
        for (size_t l = 0; l < learned.size() / 2; l++)
          for (size_t n = 0; n < count; n++) {
            (*dlearned)[l * shape.H + h] += learned[2 * l][n];
            learned_sizes[l * shape.H + h] += std::fabs(learned[2 * l + 1][n]) * (dp_size[n] + mean_size);
          }
        auto add = [&](R* to, R factor, const R* x) {
          for (int d = 0; d < shape.D; d++) to[d] += factor * x[d];
        };
        auto add_sizes = [&](R* to, R factor, const R* x) {
          for (int d = 0; d < shape.D; d++) to[d] += std::fabs(factor * x[d]);
        };
        for (size_t n = 0; n < count; n++) {
          int j = keys[n];
          size_t q = shape.qkv(b, i, 0, h), k = shape.qkv(b, j, 1, h), v = shape.qkv(b, j, 2, h);
          if (dbias && !bias.empty()) (*dbias)[head + i] += score_dz[n], (*dbias)[head + j] -= score_dz[n];
          add(&dqkv[q], dz[n], &qkv[k]);
          add(&dqkv[k], dz[n], &qkv[q]);
          add(&dqkv[v], p[n], dout_row);
          if (!terms) continue;
          R size = dp_size[n] + mean_size;
          for (int row : {i, j}) bias_sizes[head + row] += std::fabs(score_slope[n]) * size;
          add_sizes(&sizes[q], slope[n] * size, &qkv[k]);
          add_sizes(&sizes[k], slope[n] * size, &qkv[q]);
          if (!divides) continue;
          R moved = score_slope[n] * z[n];
          add_sizes(&sizes[v], moved, dout_row);
          add_sizes(&out_sizes[shape.out(b, i, h)], moved, &qkv[v]);
        }
      }
  for (R& x : dqkv) x = P::round(x);
  for (size_t i = 0; terms && i < sizes.size(); i++) {
    size_t part = i / (size_t(shape.H) * shape.D) % 3;
    terms[part] = std::max(terms[part], as_double(sizes[i]));
  }
  for (size_t i = 0; divides && terms && i < out_sizes.size(); i++)
    terms[5] = std::max(terms[5], as_double(out_sizes[i]));
  for (size_t i = 0; terms && !bias.empty() && i < bias_sizes.size(); i++)
    terms[3] = std::max(terms[3], as_double(bias_sizes[i]));
  for (R size : learned_sizes)
    if (terms && dlearned) terms[4] = std::max(terms[4], as_double(size));
  return dqkv;
}

// attention_reference.cu compiles these for all tests.
#define REFERENCES(EXTERN, P)                                                                                  \
  EXTERN template Numbers<P> ref_attention<P>(const AttentionSetup&, const AttentionShape&, const Numbers<P>&, \
                                              const Numbers<P>&, int, const Numbers<Exact>&);                  \
  EXTERN template Numbers<P> ref_attention_backward<P>(                                                        \
      const AttentionSetup&, const AttentionShape&, const Numbers<P>&, const Numbers<P>&, const Numbers<P>&,   \
      Numbers<P>*, double*, int, const Numbers<Exact>&, Numbers<P>*, Numbers<P>*);
REFERENCES(extern, Exact)
REFERENCES(extern, Naive<float>)
REFERENCES(extern, Naive<bf16>)

// Part 0 q, 1 k, 2 v of an array shaped like qkv: each is compared by its own largest element.
template <class X> std::vector<X> part_of(const AttentionShape& shape, const std::vector<X>& qkv, int part) {
  std::vector<X> x;
  for (int b = 0; b < shape.B; b++)
    for (int t = 0; t < shape.T; t++)
      for (int n = 0; n < shape.H * shape.D; n++) x.push_back(qkv[shape.qkv(b, t, part, 0, n)]);
  return x;
}

// ---- preparation: rope [T, D/2] cosine and sine as the kernel reads them, or empty; scales [H] of ssmax or empty

template <class P> typename P::real ref_alpha(const AttentionSetup& s, int D, int t, typename P::real ssmax_scale) {
  using R = typename P::real;
  R n = s.window == 0 ? R(t + 1) : R(ref_keys(s, t).size()), alpha = 0;
  switch (s.scale) {
    case Scale::rsqrt_d: alpha = 1 / std::sqrt(R(D)); break;
    case Scale::logd_logn: alpha = std::log(R(D)) * std::log(n); break;
    case Scale::logn: alpha = std::log(n) / (std::log(R(s.context)) * std::sqrt(R(D))); break;
    case Scale::ssmax: alpha = ssmax_scale * std::log(n) / std::sqrt(R(D)); break;
    case Scale::number: alpha = R(float(s.scale_number)); break;
  }
  return alpha * R(s.scale_factor) / ref_unit<R>(s.kind);
}

// One row of q or k: rotated, then normalised (1 / length in *inverse), then multiplied by alpha.
template <class P>
Numbers<P> ref_prepare_row(const AttentionSetup& s, const Numbers<P>& x, const std::vector<float2>& rope, int t,
                           typename P::real alpha, bool scaled, Numbers<P>* normalised, typename P::real* inverse) {
  using R = typename P::real;
  int D = int(x.size()), half = D / 2;
  Numbers<P> y = x;
  if (!rope.empty())
    for (int d = 0; d < half; d++) {
      R c = rope[size_t(t) * half + d].x, sine = rope[size_t(t) * half + d].y;
      y[d] = P::round(x[d] * c - x[half + d] * sine);
      y[half + d] = P::round(x[half + d] * c + x[d] * sine);
    }
  R squares = 0;
  for (R v : y) squares += v * v;
  *inverse = s.qk_norm == QkNorm::l2    ? 1 / std::max(std::sqrt(squares), R(1e-12f))
             : s.qk_norm == QkNorm::rms ? 1 / std::sqrt(squares / D + R(1e-6f))
                                        : R(1);
  if (s.qk_norm != QkNorm::none)
    for (R& v : y) v = P::round(v * *inverse);
  *normalised = y;
  if (scaled)
    for (R& v : y) v = P::round(v * alpha);
  return y;
}

template <class P>
Numbers<P> ref_prepare(const AttentionSetup& s, const AttentionShape& shape, const Numbers<P>& qkv,
                       const std::vector<float2>& rope, const Numbers<P>& scales = {}, Numbers<P>* norms = nullptr) {
  using R = typename P::real;
  Numbers<P> prepared = qkv, row(shape.D), normalised;
  if (norms) norms->assign(2 * shape.rows(), R(0));
  for (int b = 0; b < shape.B; b++)
    for (int t = 0; t < shape.T; t++)
      for (int part = 0; part < 2; part++)
        for (int h = 0; h < shape.H; h++) {
          R inverse, alpha = ref_alpha<P>(s, shape.D, t, scales.empty() ? R(1) : scales[h]);
          for (int d = 0; d < shape.D; d++) row[d] = qkv[shape.qkv(b, t, part, h, d)];
          auto y = ref_prepare_row<P>(s, row, rope, t, alpha, part == 0, &normalised, &inverse);
          for (int d = 0; d < shape.D; d++) prepared[shape.qkv(b, t, part, h, d)] = y[d];
          if (norms) (*norms)[((size_t(b) * shape.T + t) * 2 + part) * shape.H + h] = inverse;
        }
  return prepared;
}

// From the gradients of the prepared q, k (and of v, untouched) those of what ref_prepare() was given; dscales [H] += .
template <class P>
Numbers<P> ref_prepare_backward(const AttentionSetup& s, const AttentionShape& shape, const Numbers<P>& qkv,
                                const Numbers<P>& dprepared, const std::vector<float2>& rope,
                                const Numbers<P>& scales = {}, Numbers<P>* dscales = nullptr) {
  using R = typename P::real;
  int D = shape.D, half = D / 2;
  Numbers<P> dqkv = dprepared, row(D), dy(D), y;
  for (int b = 0; b < shape.B; b++)
    for (int t = 0; t < shape.T; t++)
      for (int part = 0; part < 2; part++)
        for (int h = 0; h < shape.H; h++) {
          R inverse, alpha = ref_alpha<P>(s, D, t, scales.empty() ? R(1) : scales[h]), dot = 0;
          for (int d = 0; d < D; d++) row[d] = qkv[shape.qkv(b, t, part, h, d)];
          auto prepared = ref_prepare_row<P>(s, row, rope, t, alpha, part == 0, &y, &inverse);
          for (int d = 0; d < D; d++) dy[d] = dprepared[shape.qkv(b, t, part, h, d)];
          if (part == 0) {
            if (dscales && s.scale == Scale::ssmax)
              for (int d = 0; d < D; d++) (*dscales)[h] += prepared[d] * dy[d] / scales[h];
            for (R& v : dy) v = P::round(v * alpha);
          }
          if (s.qk_norm != QkNorm::none) {
            for (int d = 0; d < D; d++) dot += y[d] * dy[d];
            if (s.qk_norm == QkNorm::rms) dot /= D;
            if (s.qk_norm == QkNorm::l2 && inverse >= R(1e12)) dot = 0;
            for (int d = 0; d < D; d++) dy[d] = P::round(P::round(dy[d] - P::round(y[d] * dot)) * inverse);
          }
          Numbers<P> dx = dy;
          if (!rope.empty())
            for (int d = 0; d < half; d++) {
              R c = rope[size_t(t) * half + d].x, sine = rope[size_t(t) * half + d].y;
              dx[d] = P::round(dy[d] * c + dy[half + d] * sine);
              dx[half + d] = P::round(dy[half + d] * c - dy[d] * sine);
            }
          for (int d = 0; d < D; d++) dqkv[shape.qkv(b, t, part, h, d)] = dx[d];
        }
  return dqkv;
}

// ---- shared by the tests of attention

template <class T> constexpr double u = unit_roundoff<T>;

inline std::string describe(const AttentionSettings& s, const AttentionShape& shape) {
  const KindRow& kind = kind_row(s.kind);
  std::string more;
  for (const ScoreKey& p : kind.parameters) more += format(" %s %g", p.name, s.parameter(p.name));
  if (s.window) more += format(" window %d sink tokens %d", s.window, s.sink_tokens);
  if (s.bias != Bias::none) more += " with a bias";
  more += s.documents == Documents::joined ? "" : " separate";
  return format("%s%s sink %s norm %s scale %s B %d T %d H %d D %d", kind.name, more.c_str(), sink_names[int(s.sink)],
                qk_norm_names[int(s.qk_norm)], scale_names[int(s.scale)], shape.B, shape.T, shape.H, shape.D);
}

// Biases as fox has them far from a sequence's start, where floats are 0.004 apart: falling from row to row.
inline Numbers<Exact> random_bias(const AttentionShape& shape, unsigned seed, double fall = 0.1) {
  auto steps = random_normal<float>(shape.rows(), seed);
  Numbers<Exact> c;
  for (size_t i = 0; i < steps.size(); i++) c.push_back((i % shape.T ? c[i - 1] : -50000) - std::fabs(steps[i]) * fall);
  return c;
}

// The bias c [B, H, T] as the kernels of a kind read it; none if there is none.
inline std::vector<float> as_kernels_read(const Numbers<Exact>& c, const AttentionShape& shape, Kind kind,
                                          const std::vector<int2>& spans = {}) {
  std::vector<float> all(c.empty() ? 0 : bias_floats(shape), NAN);
  for (size_t row = 0; row < c.size(); row++) {
    int t = int(row % shape.T), start = spans.empty() ? 0 : spans[row / (size_t(shape.H) * shape.T) * shape.T + t].x;
    float* head = &all[row / shape.T * bias_floats(shape.T)];
    if (t % BIAS_ROWS == 0) origin_of(head, t) = as_two_floats(c[row] / kind_row(kind).unit);
    write_bias(head, shape.T, t, c[row] / kind_row(kind).unit, start);
  }
  return all;
}
