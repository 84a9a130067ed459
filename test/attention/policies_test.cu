// Policies of files (make check-kind), which need no formula in float64 here: kernels of all families in bf16 beside
// the general ones, in float32 for the same numbers, with windows, biases, documents and large scores.
#include "test/attention/run_attention.h"

template <class K> class Policies : public OfFamily<K> {};
TYPED_TEST_SUITE(Policies, Families);

TYPED_TEST(Policies, AgreeInAllFamilies) {
  if (!on_cpu) GTEST_SKIP() << "a GPU's general kernels have no windows and biases";
  for (size_t k = 0; k < kind_names.size(); k++)
    for (int n = 0; n < 6; n++) {
      Kind kind = Kind(k);
      if (!is_built(kind) || !kind_row(kind).text || formula_of(kind)) continue;
      AttentionShape shape = fit({2, n % 2 ? 200 : 97, 2, n < 4 ? 64 : 36});
      AttentionSetup s = with_learned<bf16>({{.kind = kind}}, shape.H);
      if (n % 3) s.window = 70, s.sink_tokens = n;
      if (n % 3 == 1) s.bias = Bias::fox;
      if (n % 3 == 2) s.documents = Documents::separate;
      if (!has_kernels(kind, shape.D, n % 3 == 1, s.documents)) continue;
      for (int row = 0; row < 2 * shape.T && n % 3 == 2; row++)
        s.spans.push_back(row % shape.T < 75 ? make_int2(0, 75) : make_int2(75, shape.T));
      auto bias = n % 3 == 1 ? random_bias(shape, 7) : Numbers<Exact>();
      auto qkv = random_qkv<bf16>(shape, 1 + n, n == 5 ? 1000 : 1),
           dout = random_normal<bf16>(shape.out_size(), 20 + n);
      auto run = [&]<class T>(T, const char* of) {
        std::vector<T> x, d;
        for (bf16 number : qkv) x.push_back(from_float<T>(to_float(number)));
        for (bf16 number : dout) d.push_back(from_float<T>(to_float(number)));
        family = of;
        return run_attention<T>(s, shape, x, d, {}, 0, 0, bias);
      };
      auto found = run(typename TypeParam::T(), TypeParam::name.data());
      auto exact = run(float(), GENERAL);
      auto naive = run(bf16(), GENERAL);
      family = TypeParam::name;
      auto compare = [&](const char* what, const auto& found, const auto& exact, const auto& naive) {
        std::vector<double> wide(exact.begin(), exact.end());
        expect_close(describe(s, shape) + " " + what, found, wide, naive, u<bf16>);
      };
      compare("out", found.out, exact.out, naive.out);
      for (float x : exact.dqkv) ASSERT_TRUE(std::isfinite(x)) << describe(s, shape);
      if (n == 5) continue;  // gradients are those of rounded weights there
      for (int part = 0; part < 3; part++)
        compare("dqkv", part_of(shape, found.dqkv, part), part_of(shape, exact.dqkv, part),
                part_of(shape, naive.dqkv, part));
      compare("dbias", found.dbias, exact.dbias, naive.dbias);
      compare("dlearned", found.dlearned, exact.dlearned, naive.dlearned);
    }
}
