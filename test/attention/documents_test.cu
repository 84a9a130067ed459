// attention.documents = separate, in all families: against float64 references that compute each document by itself
// (run_attention.h), and that no number of another document reaches a row.
#include "attention/documents.cuh"

#include "test/attention/run_attention.h"

#include "attention/position_bias.cuh"
#include "attention/prepare.cuh"

namespace {

constexpr int SEPARATOR = 7;

// Tokens [T] with separators at these positions.
std::vector<int> tokens_of(int T, const std::vector<int>& separators) {
  std::vector<int> tokens(T);
  for (int t = 0; t < T; t++) tokens[t] = t % SEPARATOR;
  for (int t : separators)
    if (t < T) tokens[t] = SEPARATOR;
  return tokens;
}

std::vector<int2> spans_of(const std::vector<int>& tokens, int T) {
  std::vector<int2> spans(tokens.size());
  for (int row = 0; row < int(tokens.size()); row++) {
    int start = row % T, stop = start + 1, first = row - start;
    while (start > 0 && tokens[first + start] != SEPARATOR) start--;
    while (stop < T && tokens[first + stop] != SEPARATOR) stop++;
    spans[row] = make_int2(start, stop);
  }
  return spans;
}

// The separators of the cases below: none, at both ends, twice in a row; documents shorter and longer than a tile, and
// such that end where tiles do.
std::vector<int> separators_of(int n, int T) {
  return std::vector<std::vector<int>>{
      {}, {0, T - 1}, {5, 6, 7, T / 2}, {64, 128}, {63, 65, 130, 131, 200}, {T / 3, T / 3 + 1, 2 * T / 3}}[n % 6];
}

// Sequence b of a batch has the separators of case n + b.
std::vector<int> batch_of(const AttentionShape& shape, int n) {
  std::vector<int> tokens;
  for (int b = 0; b < shape.B; b++)
    for (int token : tokens_of(shape.T, separators_of(n + b, shape.T))) tokens.push_back(token);
  return tokens;
}

AttentionSetup separated(AttentionSetup s, const AttentionShape& shape, int n) {
  s.documents = Documents::separate;
  s.spans = spans_of(batch_of(shape, n), shape.T);
  return s;
}

// Biases that begin anew in each document.
Numbers<Exact> bias_of_documents(const AttentionSetup& s, const AttentionShape& shape, unsigned seed) {
  Numbers<Exact> c = random_bias(shape, seed), own = c;
  for (size_t row = 0; row < c.size(); row++) {
    size_t t = row % shape.T, b = row / (size_t(shape.H) * shape.T);
    own[row] = c[row] - c[row - t + s.spans[b * shape.T + t].x];
  }
  return own;
}

bool has_separate(Kind kind, int D, bool biased) { return has_kernels(kind, D, biased, Documents::separate); }

TEST(Documents, AreFoundFromTheTokens) {
  for (int T : {1, 2, 63, 255, 256, 257, 1000})
    for (int n = 0; n < 6; n++) {
      AttentionShape shape{3, T, 1, 1};
      std::vector<int> tokens = batch_of(shape, n);
      DeviceArray<int> in(tokens);
      DeviceArray<int2> out(tokens.size());
      find_documents(out, in, SEPARATOR, shape.B, T, nullptr);
      auto found = out.download(), expected = spans_of(tokens, T);
      for (size_t row = 0; row < tokens.size(); row++) {
        ASSERT_EQ(found[row].x, expected[row].x) << "T " << T << " case " << n << " row " << row;
        ASSERT_EQ(found[row].y, expected[row].y) << "T " << T << " case " << n << " row " << row;
      }
    }
}

template <class K> class DocumentsTest : public OfFamily<K> {
 protected:
  void SetUp() override {
    OfFamily<K>::SetUp();
    if (family == "hopper_heads") GTEST_SKIP() << "leaves separate documents to the other kernels of Hopper";
    if (family == "general" && !on_cpu) GTEST_SKIP() << "on a GPU they have the causal mask alone";
  }
};
TYPED_TEST_SUITE(DocumentsTest, Families);

TYPED_TEST(DocumentsTest, AreThoseOfFloat64) {
  using T = typename TypeParam::T;
  for (Kind kind : built_kinds())
    for (int n = 0; n < 12; n++) {
      int length = std::vector{1, 2, 40, 257, 129, 200, 64, 65, 97, 257, 200, 257}[n];
      int wide = family == "general" ? 130 : has_separate(kind, 128, n % 3 == 1) ? 128 : 64;
      AttentionShape shape = fit({2, length, n % 2 + 2, n == 5 || n == 10 ? wide : n % 4 == 1 ? 64 : 36});
      bool biased = n % 3 == 1;
      if (!has_separate(kind, shape.D, biased)) continue;
      AttentionSetup s = separated(settings_of(kind, shape.T), shape, n);
      if (n > 5)
        s.window = std::vector{1, 9, 20, 64, 70, 33}[n - 6], s.sink_tokens = std::vector{0, 2, 1, 4, 0, 70}[n - 6];
      if (n == 3 && kind == Kind::softmax) s.sink = Sink::learned;
      s.bias = biased ? Bias::fox : Bias::none;
      auto sinks = s.sink == Sink::learned ? random_normal<T>(shape.H, 5) : std::vector<T>();
      Comparison<T> comparison(describe(s, shape));
      // A result of few numbers says little: several draws of short ones.
      for (int draw = 0; draw < (length < 40 ? 8 : 1); draw++) {
        auto qkv = random_qkv<T>(shape, 3 + n + 50 * draw), dout = random_normal<T>(shape.out_size(), 40 + n + draw);
        if (is_sharpened(kind)) look_at_first_key(shape, qkv);
        auto bias = biased ? bias_of_documents(s, shape, 80 + n) : Numbers<Exact>();
        comparison.add(s, shape, qkv, dout, sinks, 0, bias);
      }
      comparison.compare();
    }
}

// attention_backward() with undo_preparation, where scales count from the document. A rotation by the position in the
// window is one by that in the document, for what is before it and what it gives back.
TYPED_TEST(DocumentsTest, PreparedQueriesAndKeys) {
  using T = typename TypeParam::T;
  AttentionShape shape{2, 200, 2, 64};
  std::vector<float2> rope = rope_table(shape.T, shape.D, 10000);
  for (Kind kind : {Kind::softmax, Kind::lssar})
    for (Scale scale : {Scale::logn, Scale::logd_logn}) {
      if (!is_built(kind)) continue;
      AttentionSetup s = separated(settings_of(kind, 1024), shape, 4);
      s.qk_norm = scale == Scale::logn ? QkNorm::rms : QkNorm::l2, s.scale = scale, s.family = family.data();
      auto qkv = random_normal<T>(shape.qkv_size(), 1), dout = random_normal<T>(shape.out_size(), 2);
      AttentionCall<T> call = s.call<T>(shape);
      DeviceArray<T> x(qkv), out(shape.out_size()), d(dout), dx(qkv.size());
      DeviceArray<float> stats(attention_statistics(s, shape.D) * shape.rows()), norms(2 * shape.rows());
      DeviceArray<float2> angles(rope);
      DeviceArray<int2> documents(s.spans);
      DeviceArray<char> workspace(attention_backward_workspace(call));
      call.documents = documents, call.rope = angles, call.norms = norms;
      prepare_forward<T>(x, call);
      attention_forward<T>(out, stats, x, call, true);
      attention_backward<T>(dx, d, out, stats, x, workspace, call, true);
      auto result = dx.download();
      auto reference = [&]<class P>(P) {
        auto all = widen<P>(qkv), all_d = widen<P>(dout);
        Numbers<P> dqkv(qkv.size());
        int A = shape.H * shape.D;
        for (const DocumentOfShape& of : documents_of(s, shape)) {
          AttentionShape alone = of.alone(shape);
          auto own = of.take(shape, all, 3 * A), prepared = ref_prepare<P>(s, alone, own, rope);
          auto dprepared = ref_attention_backward<P>(s, alone, prepared, of.take(shape, all_d, A));
          of.put(shape, dqkv, ref_prepare_backward<P>(s, alone, own, dprepared, rope), 3 * A);
        }
        return dqkv;
      };
      auto exact = reference(Exact());
      auto naive = reference(Naive<T>());
      for (int part = 0; part < 3; part++)
        expect_close(format("%s d%c", describe(s, shape).c_str(), "qkv"[part]), part_of(shape, result, part),
                     part_of(shape, exact, part), part_of(shape, naive, part), u<T>);
    }
}

// Documents that hide nothing change no bit.
TYPED_TEST(DocumentsTest, OneAloneIsJoined) {
  using T = typename TypeParam::T;
  AttentionShape shape{2, 150, 3, 40};
  auto qkv = random_qkv<T>(shape, 1), dout = random_normal<T>(shape.out_size(), 2);
  for (Kind kind : built_kinds()) {
    for (int window : {0, 40}) {
      AttentionSetup joined{{.kind = kind, .window = window}}, separate = separated(joined, shape, 0);
      separate.spans.assign(size_t(shape.B) * shape.T, make_int2(0, shape.T));
      auto expected = run_attention<T>(joined, shape, qkv, dout), result = run_attention<T>(separate, shape, qkv, dout);
      expect_same_bits(describe(separate, shape) + " out", result.out, expected.out);
      expect_same_bits(describe(separate, shape) + " dqkv", result.dqkv, expected.dqkv);
    }
  }
}

// What a call gives: outputs and gradients, with the bias that its logits make, and the gradients of these.
template <class T> struct Given { std::vector<T> out, dqkv, dlogits; };
template <class T>
Given<T> with_logits(AttentionSetup s, const AttentionShape& shape, const std::vector<T>& qkv,
                     const std::vector<T>& dout, const std::vector<T>& logits) {
  s.family = family.data();
  AttentionCall<T> call = s.call<T>(shape);
  DeviceArray<T> in(qkv), out(shape.out_size()), d(dout), dqkv(shape.qkv_size()), x(logits), dx(logits.size());
  DeviceArray<float> c(bias_floats(shape)), stats(attention_statistics(s, shape.D) * shape.rows());
  DeviceArray<int2> documents(s.spans);
  DeviceArray<char> workspace(attention_backward_workspace(call));
  call.documents = documents, call.bias = c;
  Matrix<const T> columns{x, shape.H};
  position_bias_forward<T>(c, columns, call);
  find_needed_tiles<T>(c, nullptr, in, call);
  attention_forward<T>(out, stats, in, call, true);
  attention_backward<T>(dqkv, d, out, stats, in, workspace, call);
  if (bias_is_learned(s.bias)) position_bias_backward<T>({dx, shape.H}, shape.H, columns, workspace, call);
  else return {out.download(), dqkv.download(), {}};
  return {out.download(), dqkv.download(), dx.download()};
}

// Other numbers in one document change no bit of the others' results, wherever tiles and warps lie.
TYPED_TEST(DocumentsTest, KeepTheirBitsWhateverTheOthersHold) {
  using T = typename TypeParam::T;
  const int length = 230;
  for (Kind kind : built_kinds())
    for (Bias bias : {Bias::none, Bias::fox, Bias::alibi})
      for (int changed = 0; changed < 3; changed++) {
        AttentionShape shape{1, length, 2, 40};
        if (!has_separate(kind, shape.D, bias != Bias::none)) continue;
        AttentionSetup s{{.kind = kind, .window = changed == 1 ? 30 : 0, .sink_tokens = changed == 1 ? 3 : 0}};
        s.bias = bias, s.documents = Documents::separate;
        s.spans = spans_of(tokens_of(length, {90, 157}), length);
        auto qkv = random_qkv<T>(shape, 1), dout = random_normal<T>(shape.out_size(), 2),
             logits = random_normal<T>(size_t(length) * shape.H, 3), other_qkv = qkv, other_dout = dout,
             other_logits = logits;
        int edges[] = {0, 90, 157, length}, first = edges[changed], stop = edges[changed + 1];
        size_t A = size_t(shape.H) * shape.D;
        auto change = [&](std::vector<T>& x, size_t row, unsigned seed) {
          auto random = random_normal<T>(x.size(), seed, 30);
          std::copy(random.begin() + first * row, random.begin() + stop * row, x.begin() + first * row);
        };
        change(other_qkv, 3 * A, 4), change(other_dout, A, 5), change(other_logits, shape.H, 6);
        auto before = with_logits<T>(s, shape, qkv, dout, logits),
             after = with_logits<T>(s, shape, other_qkv, other_dout, other_logits);
        auto others = [&](std::vector<T> x, size_t row) {
          if (!x.empty()) x.erase(x.begin() + first * row, x.begin() + stop * row);
          return x;
        };
        std::string name = describe(s, shape) + format(" changed %d ", changed);
        expect_same_bits(name + "out", others(after.out, A), others(before.out, A));
        expect_same_bits(name + "dqkv", others(after.dqkv, 3 * A), others(before.dqkv, 3 * A));
        expect_same_bits(name + "dlogits", others(after.dlogits, shape.H), others(before.dlogits, shape.H));
      }
}

// The bias and its gradient of each document are those of the document alone: c to a rounding of a block's sums, which
// are in other blocks there, and dlogits in every bit of what they are made from.
TEST(Documents, BiasesBeginAnew) {
  if (!on_cpu) GTEST_SKIP() << "on a GPU biases have no kernels in fp32";
  AttentionShape shape{2, 400, 3, 1};
  std::vector<int> tokens = batch_of(shape, 4);
  auto logits = random_normal<float>(shape.rows(), 3), sums = random_normal<float>(2 * shape.rows(), 4);
  for (Bias bias : {Bias::alibi, Bias::fox, Bias::cable}) {
    AttentionSetup s{{.documents = Documents::separate, .bias = bias}};
    s.spans = spans_of(tokens, shape.T);
    DeviceArray<float> c(bias_floats(shape)), x(logits), dx(logits.size());
    DeviceArray<int2> documents(s.spans);
    AttentionCall<float> call = s.call<float>(shape);
    call.documents = documents;
    std::vector<char> bytes(attention_backward_workspace(call));
    auto fill = [&](std::vector<char>& memory, const AttentionShape& shape, const std::vector<float>& sums) {
      BackwardWorkspace parts = backward_workspace(memory.data(), s, shape);
      std::copy_n(sums.begin(), shape.rows(), parts.dz_by_query);
      std::copy_n(sums.begin() + shape.rows(), shape.rows(), parts.dz_by_key);
    };
    fill(bytes, shape, sums);
    DeviceArray<char> workspace(bytes);
    position_bias_forward<float>(c, {x, shape.H}, call);
    auto result = c.download();
    if (bias_is_learned(bias)) position_bias_backward<float>({dx, shape.H}, shape.H, {x, shape.H}, workspace, call);
    auto gradient = dx.download();
    for (const DocumentOfShape& of : documents_of(s, shape)) {
      AttentionShape alone = of.alone(shape);
      AttentionSettings plain{.bias = bias};
      AttentionCall<float> own{.settings = plain, .shape = alone};
      DeviceArray<float> own_c(bias_floats(alone)), own_x(of.take(shape, logits, shape.H)), own_dx(alone.rows());
      std::vector<char> own_bytes(attention_backward_workspace(own));
      std::vector<float> by_query(sums.begin(), sums.begin() + shape.rows()),
          by_key(sums.begin() + shape.rows(), sums.end());
      auto own_sums = of.take(shape, by_query, 0), more = of.take(shape, by_key, 0);
      own_sums.insert(own_sums.end(), more.begin(), more.end());
      fill(own_bytes, alone, own_sums);
      DeviceArray<char> own_workspace(own_bytes);
      position_bias_forward<float>(own_c, {own_x, shape.H}, own);
      auto expected = own_c.download();
      for (int h = 0; h < shape.H; h++)
        for (int t = 0; t < of.count; t++) {
          float *all = &result[shape.head_number(of.b, h) * bias_floats(shape.T)],
                *one = &expected[size_t(h) * bias_floats(of.count)];
          int at = of.first + t;
          float2 zero = make_float2(0, 0), from = has_origin_0(at, of.first) ? zero : origin_of(all, at);
          all += bias_origins(shape.T) + at;
          double value = double(from.x) + from.y + all[0] + all[shape.T];
          float2 own_from = origin_of(one, t);
          one += bias_origins(of.count) + t;
          EXPECT_NEAR(value, double(own_from.x) + own_from.y + one[0] + one[of.count], 1e-9)
              << bias_names[int(bias)] << " at " << at;
        }
      if (!bias_is_learned(bias)) continue;
      position_bias_backward<float>({own_dx, shape.H}, shape.H, {own_x, shape.H}, own_workspace, own);
      auto own_gradient = own_dx.download(), part = of.take(shape, gradient, shape.H);
      for (size_t i = 0; i < part.size(); i++) EXPECT_NEAR(part[i], own_gradient[i], 1e-6 * (1 + std::fabs(part[i])));
    }
  }
}

}  // namespace
