// Label files: what positions predict, which files are refused, and what a loader makes of them.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "data/loader.h"
#include "data/shards.h"
#include "test/data/shard_files.h"

namespace {

const float NONE = NAN;

struct Labels : ShardFiles {
  static constexpr int T = 4;
  // Shards of 10 and 6 tokens.
  std::vector<Shard> labelled(const std::vector<std::string>& patterns, int outputs = 0, int vocab = 100) {
    add("a.bin", numbers(10));
    add("b.bin", numbers(6, 50));
    std::vector<Shard> shards = open({"a.bin", "b.bin"});
    std::vector<std::string> paths;
    for (const std::string& pattern : patterns) paths.push_back(dir / pattern);
    open_labels(shards, paths, vocab, outputs, "data.labels");
    return shards;
  }
  void refused(const std::vector<std::string>& patterns, std::initializer_list<std::string> parts, int outputs = 0) {
    expect_user_error([&] { labelled(patterns, outputs); }, {"data.labels"});
    expect_user_error([&] { labelled(patterns, outputs); }, parts);
  }
};

std::vector<uint16_t> words(int count, int first) {
  std::vector<uint16_t> result(count);
  std::iota(result.begin(), result.end(), uint16_t(first));
  return result;
}

TEST_F(Labels, BelongToTheInputsOfTheirPositions) {
  std::vector<uint16_t> a = words(10, 80), b = words(6, 90);
  for (int i : {0, 5, 6, 7, 8}) a[i] = 65535;
  add_labels("labels_1", b);
  add_labels("labels_0", a);
  WindowReader reader(labelled({"labels_*"}), 4, 100);
  ASSERT_EQ(reader.windows(), 2 + 1);
  EXPECT_TRUE(reader.has_labels());
  std::vector<int> inputs(4), targets(4);
  EXPECT_EQ(reader.read(0, inputs.data(), targets.data()), 3);
  EXPECT_EQ(inputs, numbers(4));
  EXPECT_EQ(targets, (std::vector<int>{-1, 81, 82, 83}));
  EXPECT_EQ(reader.read(1, inputs.data(), targets.data()), 1);
  EXPECT_EQ(targets, (std::vector<int>{84, -1, -1, -1}));
  EXPECT_EQ(reader.read(2, inputs.data(), targets.data()), 4);
  EXPECT_EQ(targets, numbers(4, 90));
  EXPECT_EQ((std::vector<int>{reader.labels(0), reader.labels(1), reader.labels(2)}), (std::vector<int>{3, 1, 4}));
  EXPECT_EQ(reader.read(0, inputs.data(), targets.data(), 3), 1);  // without the first three
  EXPECT_EQ(inputs[0], 3);
  EXPECT_EQ(targets[0], 83);
  WindowReader plain(labelled({}), 4, 100);
  EXPECT_FALSE(plain.has_labels());
  EXPECT_EQ(plain.labels(0), 4);
}

TEST_F(Labels, PairAsTheListsAreWrittenOrAreRefused) {
  using Names = std::vector<std::string>;
  for (const char* name : {"news", "books", "next"}) add(name, numbers(6));
  for (const char* name : {"1_news", "2_books", "x_books", "x_news", "1_next"}) add_labels(name, words(6, 1));
  auto labelled = [&](const Names& names, const Names& patterns) {
    std::vector<Shard> shards = open(names);
    std::vector<std::string> paths;
    for (const std::string& pattern : patterns) paths.push_back(dir / pattern);
    open_labels(shards, paths, 100, 0, "data.val_labels");
    return shards;
  };
  auto file = [](const Shard& shard) { return std::filesystem::path(shard.path).filename().string(); };
  for (const auto& [names, patterns] : std::vector<std::pair<Names, Names>>{{{"news", "books"}, {"1_news", "2_books"}},
                                                                            {{"books", "news"}, {"2_books", "1_news"}},
                                                                            {{"books", "news"}, {"x_*"}},
                                                                            {{"[bn]*s"}, {"x_books", "x_news"}},
                                                                            {{"[bn]*s"}, {"x_*"}},
                                                                            {{"n*", "books"}, {"1_*", "x_books"}}}) {
    std::vector<Shard> shards = labelled(names, patterns);
    EXPECT_TRUE(std::ranges::is_sorted(shards, {}, &Shard::path));
    for (const Shard& shard : shards) EXPECT_EQ(file(*shard.labels).substr(2), file(shard));
  }
  for (const auto& [names, patterns] : std::vector<std::pair<Names, Names>>{
           {{"news", "books"}, {"x_*"}}, {{"[bn]*s"}, {"x_news", "x_books"}}, {{"n*", "books"}, {"1_news", "x_*"}}})
    expect_user_error([&] { labelled(names, patterns); }, {"data.val_labels", "it is not clear whether", "same order"});
  expect_user_error([&] { labelled({"[bn]*s"}, {"[12]_*s"}); },
                    {(dir / "1_news") + " would be the labels of " + (dir / "books"),
                     "is called after " + (dir / "news"), "as lists in the same order"});
}

TEST_F(Labels, OfSeveralValues) {
  std::vector<float> a(30, NONE), b(18, NONE);
  for (int i : {0, 1, 2, 4, 11}) a[i] = float(i) / 2;  // all of token 0, some of tokens 1 and 3
  add_labels("0", a, 3);
  add_labels("1", b, 3);
  WindowReader reader(labelled({"0", "1"}, 3), 4, 100);
  std::vector<int> inputs(4), targets(4);
  std::vector<float> values(12);
  EXPECT_EQ(reader.read(0, inputs.data(), targets.data(), 0, values.data()), 3);
  EXPECT_EQ(targets, (std::vector<int>{0, 0, -1, 0}));
  for (int i = 0; i < 12; i++) EXPECT_TRUE(values[i] == a[i] || (std::isnan(a[i]) && std::isnan(values[i]))) << i;
  EXPECT_EQ(reader.labels(2), 0);
}

TEST_F(Labels, ThatDoNotFitAreRefused) {
  add_labels("a10", words(10, 80));
  add_labels("b6", words(6, 90));
  add_labels("b5", words(5, 90));
  refused({"none"}, {"none", "No such file", "probe-data"});
  refused({"a10"}, {"1 label file for", "2 token shards"});
  refused({"a10", "a10"}, {"twice"});
  refused({"a10", "b5"}, {dir / "b5", "5 labels", dir / "b.bin", "6 tokens"});
  refused({"a10", "b6"}, {dir / "a10", "tokens", "model.head.outputs = 2"}, 2);
  add_labels("c10", std::vector<float>(10));
  add_labels("d6", std::vector<float>(6));
  refused({"c10", "d6"}, {"1 value for", "model.head.outputs = 0"});
  refused({"c10", "d6"}, {"1 value for", "model.head.outputs = 3"}, 3);
  add("shard", numbers(10));
  refused({"a10", "shard"}, {dir / "shard", "not a label file", "20240520", "20261101"});
  std::string file = shard_bytes(numbers(10), {.magic = 20261101});
  write_file(dir / "typeless", file);
  refused({"a10", "typeless"}, {dir / "typeless", "damaged header", "type 0"});
  file[12] = 1, file[16] = 2;
  write_file(dir / "wide", file);
  refused({"a10", "wide"}, {"type 1 with 2 columns"});
  file[12] = 2, file[17] = 5;
  write_file(dir / "wider", file);
  refused({"a10", "wider"}, {"type 2 with 1282 columns", "1 to 1024"});
  file[12] = 1, file[16] = 1, file[17] = 0;
  write_file(dir / "short", file.substr(0, file.size() - 1));
  refused({"a10", "short"}, {"cut short", "10 labels", "1 missing"});
  write_file(dir / "long", file + "x");
  refused({"a10", "long"}, {"too long", "10 labels", "1 too many"});
}

TEST_F(Labels, BadOnesAreFoundWhereTheyAre) {
  std::vector<uint16_t> a = words(10, 80);
  a[7] = 100;
  add_labels("a", a);
  add_labels("b", words(6, 90));
  refused({"a", "b"}, {dir / "a", "label 100 at position 7", "model.vocab = 100", "65535"});
  std::vector<float> c(20), d(12);
  d[9] = INFINITY;
  add_labels("c", c, 2);
  add_labels("d", d, 2);
  refused({"c", "d"}, {dir / "d", "label inf at position 4", "NaN"}, 2);
  // Beyond those that are read at the start.
  add("big.bin", numbers(3001));
  std::vector<uint16_t> late(3001, 65535);
  late[1000] = 7, late[2000] = 5000;
  add_labels("late", late);
  std::vector<Shard> shards = open({"big.bin"});
  open_labels(shards, {dir / "late"}, 4000, 0, "data.labels");
  expect_user_error([&] { check_tokens(shards, 4000, [](int64_t) { return true; }); },
                    {"data.labels: " + (dir / "late"), "label 5000 at position 2000"});
  std::vector<int> inputs(100), targets(100);
  WindowReader reader(shards, 100, 4000, "data.train");
  EXPECT_EQ(reader.read(19, inputs.data(), targets.data()), 0);
  expect_user_error([&] { reader.read(20, inputs.data(), targets.data()); },
                    {"data.labels: " + (dir / "late"), "position 2000"});
  ASSERT_EQ(::truncate((dir / "late").c_str(), 1024 + 2 * 1000), 0);
  expect_user_error([&] { reader.labels(12); },
                    {"data.labels: " + (dir / "late"), "became shorter", "labels 1200 to 1299"});
}

// Of each step, over all ranks: with label_mean batch all labels weigh the same, with sequence all windows that have
// any. A step with a label at every position weighs each 1, exactly.
TEST_F(Labels, WeightsOfLabels) {
  std::vector<uint16_t> a = words(101, 0), b = words(50, 0);
  for (size_t i = 0; i < a.size(); i++)
    if (i >= 40 && (i / 4 % 3 == 0 || i % 3 == 0)) a[i] = 65535;  // windows with none, two, three labels
  add("a.bin", numbers(101));
  add("b.bin", numbers(50, 1000));
  std::vector<Shard> shards = open({"a.bin", "b.bin"});
  open_labels(shards, {add_labels("labels_a", a), add_labels("labels_b", b)}, 65536, 0, "data.labels");
  WindowReader r(shards, T, 65536, "data.train");
  for (bool by_sequence : {false, true}) {
    LoaderSettings s{.T = T, .micro = 3, .micro_steps = 2, .ranks = 2, .shuffle = false, .by_sequence = by_sequence};
    Loader first(r, s);
    s.rank = 1;
    Loader second(r, s);
    for (int step = 0; step < 5; step++) {
      std::vector<float> weights;
      std::vector<int> targets;
      for (int m = 0; m < 2; m++)
        for (Loader* loader : {&first, &second}) {
          const Batch& batch = loader->next();
          weights.insert(weights.end(), batch.row_weights.begin(), batch.row_weights.end());
          targets.insert(targets.end(), batch.targets.begin(), batch.targets.end());
        }
      ASSERT_EQ(weights.size(), 12u * T);
      int labels = int(targets.size() - std::count(targets.begin(), targets.end(), -1)), windows = 0;
      std::vector<int> of_window(12);
      for (int w = 0; w < 12; w++) {
        of_window[w] = T - int(std::count(&targets[w * T], targets.data() + (w + 1) * T, -1));
        windows += of_window[w] > 0;
      }
      for (int i = 0; i < 12 * T; i++) {
        double mean = by_sequence ? 1.0 / windows / of_window[i / T] : 1.0 / labels;
        EXPECT_FLOAT_EQ(weights[i], targets[i] < 0 ? 0 : float(12 * T * mean)) << step << " " << i;
        if (labels == 12 * T) {
          EXPECT_EQ(weights[i], 1.0f);
        }
      }
      if (step == 1) {
        EXPECT_LT(labels, 12 * T);
      }
    }
  }
  Loader unlabelled(WindowReader(open({"a.bin", "b.bin"}), T, 65536), {.T = T});
  EXPECT_TRUE(unlabelled.next().row_weights.empty());
}

TEST_F(Labels, AStepWithoutAnyLabelIsMarkedAndNoLabelAtAllIsRefused) {
  std::vector<uint16_t> a(101, 65535), b(50, 65535);
  add("a.bin", numbers(101));
  add("b.bin", numbers(50, 1000));
  std::vector<Shard> shards = open({"a.bin", "b.bin"});
  auto open_both = [&] {
    open_labels(shards, {add_labels("labels_a", a), add_labels("labels_b", b)}, 65536, 0, "data.labels");
  };
  expect_user_error(open_both, {"data.labels", "no label in " + (dir / "labels_a")});
  a[50] = 7;
  open_both();
  Loader loader(WindowReader(shards, T, 65536), {.T = T, .micro = 10, .shuffle = false});
  const Batch& first = loader.next();
  EXPECT_FALSE(first.labelled);
  EXPECT_EQ(std::count(first.row_weights.begin(), first.row_weights.end(), 0.0f), 10 * T);
  const Batch& second = loader.next();
  EXPECT_TRUE(second.labelled);
  EXPECT_EQ(second.row_weights[(50 - 10 * T)], 40.0f);
}

}  // namespace
