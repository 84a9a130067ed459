// attention/masks.cuh by itself: the streamed tiles and the numbers of keys that a mask gives, against a search for the
// pairs of rows that see each other (ref_keys()); what a GPU build refuses. attention_test.cu has what kernels make of
// them. Host code: the masks' functions are for both sides.
#include "attention/masks.cuh"

#include "attention/hopper/roles.cuh"

#include <gtest/gtest.h>

#include <algorithm>

#include "test/attention/attention_reference.h"
#include "test/support/error_of.h"

// Every held tile's streamed tiles are those in which a row sees a key, and no others, by either way to count them.
// starts: where documents begin, without 0.
template <class Mask, int HELD, int STREAM>
static int64_t check_tiles(const AttentionSettings& s, int T, const std::vector<int>& starts = {}) {
  std::vector<int2> documents(T, make_int2(0, T));
  for (int start : starts) {
    for (int t = 0; t < std::min(start, T); t++) documents[t].y = std::min(documents[t].y, start);
    for (int t = start; t < T; t++) documents[t] = make_int2(start, T);
  }
  KernelSettings settings{.window = s.window > 0 ? s.window : NO_WINDOW,
                          .sink_tokens = s.sink_tokens,
                          .heads = 1,
                          .documents = documents.data()};
  Mask mask(settings, T, 0);
  int64_t count = 0;
  auto check = [&](const char* name, auto tiles, int row0, auto sees) {
    std::vector<int> expected, by_rows, by_numbers;
    for (int other = 0; other < T; other += STREAM) {
      bool needed = false;
      for (int a = row0; a < std::min(row0 + HELD, T); a++)
        for (int b = other; b < std::min(other + STREAM, T); b++) needed = needed || sees(a, b);
      if (needed) expected.push_back(other);
    }
    for (int row = tiles.begin; row < tiles.stop; row = tiles.next(row)) by_rows.push_back(row);
    for (int n = tiles.first(); n < tiles.end(); n++) by_numbers.push_back(tiles.row(n));
    ASSERT_EQ(by_rows, expected) << name << " of " << row0 << ", T " << T << " window " << s.window;
    ASSERT_EQ(by_numbers, expected) << name << " of " << row0 << ", T " << T << " window " << s.window;
    count += int64_t(expected.size());
  };
  auto start = [&](int i) { return Mask::DOCUMENTS ? documents[i].x : 0; };
  auto sees = [&](int i, int j) { return j >= start(i) && ref_sees(s, i - start(i), j - start(i)); };
  for (int row0 = 0; row0 < T; row0 += HELD) {
    check("keys", mask.template key_tiles<STREAM>(row0, HELD), row0, sees);
    check("queries", mask.template query_tiles<STREAM>(row0, HELD), row0, [&](int j, int i) { return sees(i, j); });
  }
  for (int i = 0; i < T; i++) EXPECT_EQ(mask.keys(i), int(ref_keys(s, i - start(i)).size())) << i;
  // Whole tiles that are not cut are seen as the diagonal says; and each score as it is.
  auto check_scores = [&]<bool KEYS>(std::bool_constant<KEYS>) {
    for (int held0 = 0; held0 < T; held0 += HELD) {
      mask.template hold<KEYS>(held0, HELD);
      for (int stream0 = 0; stream0 < T; stream0 += STREAM) {
        bool cut = mask.template cuts<KEYS>(held0, HELD, stream0, STREAM);
        for (int held = held0; held < std::min(held0 + HELD, T); held++)
          for (int streamed = stream0; streamed < std::min(stream0 + STREAM, T); streamed++) {
            int i = KEYS ? streamed : held, j = KEYS ? held : streamed;
            ASSERT_EQ(mask.template sees<KEYS>(held, streamed), sees(i, j)) << i << " sees " << j;
            ASSERT_TRUE(cut || j > i || sees(i, j)) << i << " sees " << j << " in an uncut tile";
          }
      }
    }
  };
  check_scores(std::false_type()), check_scores(std::true_type());
  return count;
}
TEST(Masks, TilesAreThoseThatAreSeen) {
  for (int T : {1, 40, 97, 130})
    for (int window : {0, 1, 2, 16, 17, 33, 64, 129})
      for (int sinks : {0, 1, 4, 16, 20, 200}) {
        AttentionSettings s{.window = window, .sink_tokens = window ? sinks : 0};
        check_tiles<Window, 32, 16>(s, T);
        check_tiles<Window, 16, 32>(s, T);
        if (window == 0) check_tiles<Causal, 32, 16>(s, T), check_tiles<Causal, 16, 32>(s, T);
      }
}

TEST(Masks, TilesOfDocumentsAreThoseThatAreSeen) {
  const std::vector<std::vector<int>> all_starts = {{}, {1}, {39}, {16, 32, 64}, {5, 6, 7, 70, 71, 100}, {50, 128}};
  for (int T : {1, 40, 97, 130})
    for (int window : {0, 1, 16, 33, 64})
      for (int sinks : {0, 1, 16, 20})
        for (const std::vector<int>& starts : all_starts) {
          AttentionSettings s{.window = window, .sink_tokens = window ? sinks : 0};
          check_tiles<OwnDocument<Window>, 32, 16>(s, T, starts);
          check_tiles<OwnDocument<Window>, 16, 32>(s, T, starts);
        }
}

// With a window the tiles grow as T does; without one as its square.
TEST(Masks, AWindowIsLinearInTheLength) {
  auto tiles = [](int window, int T) {
    Window mask({.window = window, .sink_tokens = 4}, T, 0);
    int64_t count = 0;
    for (int i0 = 0; i0 < T; i0 += 32) {
      auto keys = mask.key_tiles<64>(i0, 32);
      auto queries = mask.query_tiles<64>(i0, 32);
      count += keys.end() - keys.first() + queries.end() - queries.first();
    }
    return double(count);
  };
  // From 4096 on each further row adds the same, whatever the window.
  EXPECT_EQ(tiles(1024, 65536) - tiles(1024, 32768), 8 * (tiles(1024, 8192) - tiles(1024, 4096)));
  EXPECT_NEAR(tiles(NO_WINDOW, 65536) / tiles(NO_WINDOW, 4096), 256, 8);
}

// Blocks of Hopper's kernels take each row tile of each head once, also if a head has an odd number of them, and most
// get about as much to do, whatever the window. (Without a rest, and with one order for all masks, the fullest of 132
// blocks would have 1.14 times its share at T 1024 with a window of 256.)
template <class Mask> static double fullest_block(int T, int heads, int window) {
  constexpr int HELD = 128, BLOCKS = 132;
  Mask mask({.window = window}, T, 0);
  int tiles = (T + HELD - 1) / HELD, all = 0;
  std::vector<int> work(BLOCKS), taken(tiles * heads);
  for (int n = 0;; n++) {
    RowTile mine = RowTile::at<Mask>(n, tiles, heads);
    if (mine.head >= heads) break;
    taken.at(mine.head * tiles + mine.tile)++;
    int steps = 1 + mask.template key_tiles<128>(mine.tile * HELD, HELD).end();  // 1: begin and end of a row tile
    work[n / 2 % BLOCKS] += steps, all += steps;
  }
  EXPECT_EQ(taken, std::vector<int>(tiles * heads, 1)) << "T " << T << ", heads " << heads;
  return double(*std::max_element(work.begin(), work.end())) * BLOCKS / all;
}
TEST(Masks, RowTilesAreSharedEvenly) {
  for (int T : {100, 300, 640, 1024})
    for (int heads : {1, 3, 12}) fullest_block<Causal>(T, heads, NO_WINDOW), fullest_block<Window>(T, heads, 200);
  EXPECT_LT(fullest_block<Causal>(1024, 384, NO_WINDOW), 1.05);
  for (int window : {NO_WINDOW, 256}) EXPECT_LT(fullest_block<Window>(1024, 384, window), 1.05) << window;
  for (int window : {NO_WINDOW, 1024, 4096}) EXPECT_LT(fullest_block<Window>(16384, 24, window), 1.05) << window;
}

// On a GPU windows and biases need the kernels for tensor cores; on the CPU nothing is refused.
TEST(Masks, NeedTensorCoresOnAGpu) {
  Kind kind = Kind::softmax;
  if (!attention_is_built(kind)) GTEST_SKIP() << "built without softmax";
  int most = LARGEST_TENSOR_D;  // make HEAD_DIM=... leaves out some
  AttentionSettings plain{.kind = kind}, window{.kind = kind, .window = 64}, bias = window;
  bias.bias = Bias::fox;
  auto supports = [&](int D) {
    return find_family<bf16>({.settings = bias, .shape = {1, 1, 1, D}, .family = "tensor"}, {}) != nullptr;
  };
  while (!on_cpu && !supports(most)) most--;
  auto refusal = [](const AttentionSettings& s, int D, bool fp32, bool diagnoses = false, bool gpu = true) {
    return error_of([&] { attention_check(s, D, fp32, diagnoses, gpu); });
  };
  EXPECT_EQ(refusal(window, most, true),
            "user: config: a window of 64 keys (attention.window, attention.layers, eval.window) has no kernels on a "
            "GPU for precision = \"fp32\"; use \"bf16\", or no window");
  EXPECT_EQ(refusal(bias, most + 1, false), format("user: config: the bias \"fox\" (attention.bias, attention.layers) "
                                                   "has no kernels on a GPU for model.head_dim = %d; use up "
                                                   "to %d, or no bias",
                                                   most + 1, most));
  expect_has(refusal(window, most, false, true), {"for diagnostics; run those with the CPU build"});
  for (const AttentionSettings& s : {plain, window, bias}) {
    EXPECT_EQ(refusal(s, most, false), "");
    EXPECT_EQ(refusal(s, 200, true, true, false), "");
  }
  EXPECT_EQ(refusal(plain, 200, true, true), "");
}
