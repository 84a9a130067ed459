// attention.prune: what is left out of a row against the row's sum in float64, also where the bound is nearly reached;
// that forward and backward passes leave out the same, for tiles of all sizes; and the results of all families beside
// float64 references that leave out nothing (run_attention.h).
#include "attention/prune.cuh"

#include "attention/masks.cuh"
#include "test/attention/run_attention.h"

namespace {

// One head of one sequence. The bound is that of e^-17 of the row's sum for all keys that are left out.
struct Case {
  std::string name;
  std::vector<float> q, k;  // [T, 1], prepared
  Numbers<Exact> c;         // [T]
  std::vector<int2> spans = {};
  int T() const { return int(q.size()); }
  int2 span(int t) const { return spans.empty() ? make_int2(0, T()) : spans[t]; }
};

constexpr int D = 4;

struct Needed {
  std::vector<float> c;
  AttentionSetup setup;
  // f(Mask(), ...) with the head's mask on the host.
  template <class Mask> Mask mask(int T) const {
    KernelSettings settings{.window = setup.window > 0 ? setup.window : NO_WINDOW,
                            .sink_tokens = setup.sink_tokens,
                            .bias = c.data(),
                            .prunes = true,
                            .heads = 1,
                            .documents = setup.spans.empty() ? nullptr : setup.spans.data()};
    return Mask(settings, T, 0);
  }
  NeededTiles of_block(int n, int T) const {
    return T > 2 * BIAS_ROWS ? mask<Biased>(T).needed(n * BIAS_ROWS) : NeededTiles{0, T};
  }
};

Needed find(const Case& x, AttentionSettings settings = {}) {
  AttentionShape shape{1, x.T(), 1, D};
  settings.bias = Bias::fox;
  settings.documents = x.spans.empty() ? Documents::joined : Documents::separate;
  Needed found{as_kernels_read(x.c, shape, settings.kind, x.spans), {settings}};
  found.setup.spans = x.spans;
  std::vector<float> qkv(shape.qkv_size());
  for (int t = 0; t < x.T(); t++)
    qkv[shape.qkv(0, t, 0, 0, t % D)] = x.q[t] / float(kind_row(settings.kind).unit),
                                  qkv[shape.qkv(0, t, 1, 0, t % D)] = x.k[t];
  DeviceArray<float> c(found.c), in(qkv);
  DeviceArray<int2> documents(x.spans);
  AttentionCall<float> call = found.setup.call<float>(shape);
  call.bias = c, call.documents = documents;
  find_needed_tiles<float>(c, nullptr, in, call);
  found.c = c.download();
  return found;
}

double longest(const std::vector<float>& x, int2 span) {
  double most = 0;
  for (int t = span.x; t < span.y; t++) most = std::max(most, std::fabs(double(x[t])));
  return most;
}

// The largest share of a row's sum that is left out, if all keys have the largest score with all later queries, and
// each query the smallest with itself: as large as lengths allow. Also that blocks of keys agree with blocks of
// queries, and that what is kept but for the first block is kept for a reason.
double most_left_out(const Case& x, const Needed& found) {
  double most = 0;
  int T = x.T(), blocks = bias_blocks(T);
  for (int i = 0; i < T; i++) {
    int2 span = x.span(i);
    int block = i / BIAS_ROWS, first = block * BIAS_ROWS >= span.x ? found.of_block(block, T).first_key : 0;
    double qk = longest(x.q, span) * longest(x.k, span), left_out = 0;
    for (int j = span.x; j < first; j++) left_out += std::exp(2 * qk + x.c[i] - x.c[j]);
    most = std::max(most, left_out);
    if (i % BIAS_ROWS || first / BIAS_ROWS == block) continue;
    double reach = 2 * qk + std::log(span.y - span.x) + 17, last = x.c[first + BIAS_ROWS - 1];
    EXPECT_LT(last - x.c[i], reach * 1.001 + 1e-3)
        << x.name << ": row " << i << " needs no key up to those of " << first;
  }
  for (int query = 0; query < blocks; query++)
    for (int key = 0; key <= query; key++) {
      int2 span = x.span(query * BIAS_ROWS);
      if (key * BIAS_ROWS + BIAS_ROWS - 1 < span.x) continue;
      EXPECT_EQ(found.of_block(query, T).first_key <= key * BIAS_ROWS,
                query * BIAS_ROWS < found.of_block(key, T).query_stop)
          << x.name << ": queries " << query << " and keys " << key;
    }
  return most;
}

Numbers<Exact> falling(int T, const std::function<double(int t)>& step) {
  Numbers<Exact> c(T, -3000);
  for (int t = 1; t < T; t++) c[t] = c[t - 1] - step(t);
  return c;
}

TEST(Prune, LeavesOutLessThanFloat32CanTell) {
  for (int T : {1, 63, 64, 65, 130, 600, 1100}) {
    auto q = random_normal<float>(T, 1), k = random_normal<float>(T, 2), steps = random_normal<float>(T, 3);
    auto long_key = k, long_query = q;
    long_key[T / 3] = 30, long_query[T / 2] = 30;
    auto random = [&](double by) { return falling(T, [&, by](int t) { return by * std::fabs(steps[t]); }); };
    std::vector<Case> cases = {
        {"slow", q, k, random(0.1)},
        {"fast", q, k, random(3)},
        {"a long key", q, long_key, random(1)},
        {"a long query", long_query, k, random(1)},
        {"never forgets", q, k, random(0)},
        {"forgets once", q, k, falling(T, [&](int t) { return t == T / 2 ? 500 : 0; })},
        {"has rare jumps", q, k, falling(T, [&](int t) { return t % 97 ? 1e-9 : 40; })},
    };
    const std::vector<std::vector<int>> all_starts = {{}, {T / 5, T / 5 + 3, T / 2}, {64, 128, 192}};
    for (std::vector<int> starts : all_starts) {
      std::vector<int2> spans;
      std::erase_if(starts, [&](int start) { return start >= T; });
      starts.push_back(T);
      for (int t = 0; t < T && starts.size() > 1; t++) {
        auto stop = std::ranges::upper_bound(starts, t);
        spans.push_back({stop == starts.begin() ? 0 : stop[-1], *stop});
      }
      for (Case x : cases) {
        x.name += format(", T %d, %zu documents", T, starts.size());
        x.spans = spans;
        Needed found = find(x);
        EXPECT_LT(most_left_out(x, found), 0x1p-24) << x.name;
        int first = found.of_block(bias_blocks(T) - 1, T).first_key;
        if (T < 1100 || !spans.empty()) continue;
        EXPECT_EQ(first > 0, !x.name.starts_with("never")) << x.name;
      }
    }
  }
}

// Far keys that score as much as lengths allow, and an own one that scores as little; c is flat before a jump of about
// the bound, and falls steeply behind it, so that the row's sum is that of itself.
TEST(Prune, TheBoundIsThatOfTheWorstRow) {
  const int T = 1024, half = T / 2;
  double left_out = 0;
  for (double more : {-9.0, -7.0, -4.0, -1.0, -0.05, 0.3, 2.0}) {
    double reach = 2 * 3 * 2 + std::log(T) + 17;
    Case x{format("%g beyond the bound", more), std::vector<float>(T, 3), std::vector<float>(T, 2),
           falling(T, [&](int t) { return t == half  ? reach + more
                                          : t > half ? 20
                                                     : 0; })};
    Needed found = find(x);
    double most = most_left_out(x, found);
    EXPECT_LT(most, 0x1p-24) << x.name;
    EXPECT_EQ(found.of_block(half / BIAS_ROWS, T).first_key > 0, more > 0.2) << x.name;
    left_out = std::max(left_out, most);
  }
  EXPECT_GT(left_out, 0x1p-27);
}

TEST(Prune, NumbersThatAreNoneKeepAllTiles) {
  const int T = 400;
  std::vector<float> ones(T, 1);
  for (float wrong : {NAN, INFINITY})
    for (int part : {0, 1, 2}) {
      Case x{"", ones, ones, falling(T, [](int) { return 5; })};
      if (part < 2) (part ? x.k : x.q)[100] = wrong;
      else std::fill(x.c.begin() + 100, x.c.end(), -double(wrong));
      Needed found = find(x);
      for (int n = 0; n < bias_blocks(T); n++) {
        if (part == 2 && n < 2) continue;  // rows before it
        EXPECT_EQ(found.of_block(n, T).first_key, 0) << wrong << " in part " << part << " block " << n;
        EXPECT_EQ(found.of_block(n, T).query_stop, T) << wrong << " in part " << part << " block " << n;
      }
    }
}

template <class Mask, int HELD, int STREAM> void check_pairs(const Mask& mask, int T, const std::string& name) {
  std::set<std::pair<int, int>> by_queries, by_keys, by_numbers;
  for (int i0 = 0; i0 < T; i0 += HELD) {
    auto tiles = mask.template key_tiles<STREAM>(i0, HELD);
    for (int j0 = tiles.begin; j0 < tiles.stop; j0 = tiles.next(j0)) by_queries.insert({i0, j0});
    for (int n = tiles.first(); n < tiles.end(); n++) by_numbers.insert({i0, tiles.row(n)});
  }
  for (int j0 = 0; j0 < T; j0 += STREAM) {
    auto tiles = mask.template query_tiles<HELD>(j0, STREAM);
    for (int i0 = tiles.begin; i0 < tiles.stop; i0 = tiles.next(i0)) by_keys.insert({i0, j0});
  }
  EXPECT_EQ(by_queries, by_keys) << name << " held " << HELD << " streamed " << STREAM;
  EXPECT_EQ(by_queries, by_numbers) << name << " held " << HELD << " streamed " << STREAM;
}

// A backward pass that holds keys, and one that adds to the queries' gradients from the first of their key tiles on,
// must see the pairs of tiles that the forward pass saw.
TEST(Prune, BothPassesSeeTheSameTiles) {
  const int T = 700;
  auto steps = random_normal<float>(T, 3);
  std::vector<float> ones(T, 1);
  for (bool documents : {false, true})
    for (int window : {0, 100, 400})
      for (int sinks : {0, 4, 100}) {
        if (sinks && !window) continue;
        Case x{format("window %d sinks %d", window, sinks), ones, ones,
               falling(T, [&](int t) { return (t / 128 % 2 ? 0.02 : 0.6) * std::fabs(steps[t]); })};
        for (int t = 0; t < T && documents; t++) x.spans.push_back(t < 450 ? make_int2(0, 450) : make_int2(450, T));
        Needed found = find(x, {.window = window, .sink_tokens = sinks});
        auto check = [&]<class Mask>(std::type_identity<Mask>) {
          Mask mask = found.mask<Mask>(T);
          check_pairs<Mask, 32, 16>(mask, T, x.name), check_pairs<Mask, 64, 64>(mask, T, x.name);
          check_pairs<Mask, 128, 64>(mask, T, x.name), check_pairs<Mask, 64, 128>(mask, T, x.name);
          check_pairs<Mask, 128, 128>(mask, T, x.name), check_pairs<Mask, 16, 128>(mask, T, x.name);
        };
        if (documents) check(std::type_identity<OwnDocument<Biased>>());
        else check(std::type_identity<Biased>());
      }
}

template <class K> class PruneTest : public OfFamily<K> {};
TYPED_TEST_SUITE(PruneTest, Families, );

// Biases that fall by so much that most tiles are left out, or by as much in some places only.
TYPED_TEST(PruneTest, ResultsAreThoseOfAllKeys) {
  using T = typename TypeParam::T;
  if (!is_built(Kind::softmax)) GTEST_SKIP() << "built without softmax";
  if (family == "general" && !on_cpu) GTEST_SKIP() << "has no biases on a GPU";
  for (int n = 0; n < 5; n++) {
    AttentionShape shape = fit({1, std::vector{330, 330, 450, 330, 600}[n], 2, n % 2 ? 64 : 40});
    if (!has_kernels(Kind::softmax, shape.D, true, n % 2 ? Documents::separate : Documents::joined)) continue;
    AttentionSetup s{{.window = n == 2 ? 300 : 0, .sink_tokens = n == 2 ? 100 : 0, .bias = Bias::fox}};
    Numbers<Exact> bias = random_bias(shape, 80 + n, n == 4 ? 0.5 : 1);
    if (n % 2) {
      s.documents = Documents::separate;
      for (int row = 0; row < shape.B * shape.T; row++)
        s.spans.push_back(row % shape.T < 290 ? make_int2(0, 290) : make_int2(290, shape.T));
      Numbers<Exact> all = bias;
      for (size_t i = 0; i < bias.size(); i++) bias[i] = all[i] - all[i - i % shape.T + s.spans[i % shape.T].x];
    }
    if (n == 3) s.sink = Sink::one;
    auto qkv = random_qkv<T>(shape, 3 + n), dout = random_normal<T>(shape.out_size(), 40 + n);
    DeviceArray<T> in(qkv);
    DeviceArray<float> c(as_kernels_read(bias, shape, s.kind, s.spans));
    DeviceArray<int2> documents(s.spans);
    DeviceArray<float2> tiles(std::vector<float2>(shape.H, {1, 2}));
    AttentionCall<T> call = s.call<T>(shape);
    call.bias = c, call.documents = documents;
    find_needed_tiles<T>(c, tiles, in, call);
    for (float2 of_head : tiles.download()) EXPECT_LT(of_head.x, 0.8 * of_head.y) << n;
    Comparison<T> comparison(describe(s, shape));
    comparison.add(s, shape, qkv, dout, {}, 0, bias);
    comparison.compare();
  }
}

}  // namespace
