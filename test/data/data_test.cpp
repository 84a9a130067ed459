// Shards, the order of windows, and the loader.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <thread>

#include "data/loader.h"
#include "data/shards.h"
#include "test/data/shard_files.h"

namespace {

struct Shards : ShardFiles {
  void expect_bad(const std::string& name, std::initializer_list<std::string> parts) {
    expect_user_error([&] { open({name}); }, {"data.train", dir / name});
    expect_user_error([&] { open({name}); }, parts);
  }
  std::vector<int> first_inputs(const WindowReader& reader) {  // the first input of every window
    std::vector<int> firsts, inputs(reader.T()), targets(reader.T());
    for (int64_t w = 0; w < reader.windows(); w++) {
      reader.read(w, inputs.data(), targets.data());
      for (int t = 0; t < reader.T(); t++) {
        EXPECT_EQ(inputs[t], inputs[0] + t);
        EXPECT_EQ(targets[t], inputs[t] + 1);
      }
      firsts.push_back(inputs[0]);
    }
    return firsts;
  }
};

TEST_F(Shards, WindowsAreNumberedThroughTheShardsAndNeverCrossTheirEnds) {
  add("a.bin", numbers(9, 100));  // two windows of 4 and the last target
  add("b.bin", numbers(4, 200));  // none
  add("c.bin", numbers(8, 300));  // one: the second lacks its last target
  add("d.bin", {});
  add("e.bin", numbers(5, 400));  // one
  auto shards = open({"*.bin"});
  ASSERT_EQ(shards.size(), 5u);
  EXPECT_EQ(shards[0].tokens, 9);
  EXPECT_EQ(first_inputs(WindowReader(shards, 4, 65536)), (std::vector<int>{100, 104, 300, 400}));
  EXPECT_EQ(WindowReader(shards, 1, 65536).windows(), 8 + 3 + 7 + 4);
  EXPECT_EQ(first_inputs(WindowReader(shards, 8, 65536)), (std::vector<int>{100}));
  std::vector<size_t> holders;
  for (int64_t w = 0; w < 4; w++) holders.push_back(WindowReader(shards, 4, 65536).shard_of(w));
  EXPECT_EQ(holders, (std::vector<size_t>{0, 0, 2, 4}));
}

TEST_F(Shards, WindowsThatBeginWithDocuments) {
  std::vector<int> a = numbers(30, 100), b(70000, 1);  // beyond one block of the search
  for (int at : {0, 3, 9, 24}) a[at] = 7;
  for (int at : {2, 65500, 69995}) b[at] = 7;
  add("a.bin", a), add("b.bin", numbers(3)), add("c.bin", b);
  auto found = [&](int T, DocumentWindows documents, int64_t expected_short) {
    WindowReader reader(open({"*.bin"}), T, 65536);
    EXPECT_EQ(reader.begin_with_documents(documents), expected_short);
    std::vector<std::pair<size_t, int64_t>> places;
    for (int64_t w = 0; w < reader.windows(); w++) {
      std::vector<int> inputs(T), targets(T);
      reader.read(w, inputs.data(), targets.data());
      EXPECT_EQ(inputs[0], 7);
      EXPECT_EQ(targets[T - 1], (reader.shard_of(w) == 0 ? a : b)[reader.first_token(w) + T]);
      places.push_back({reader.shard_of(w), reader.first_token(w)});
    }
    for (size_t i = 0; i < 3; i++)
      EXPECT_EQ(reader.has_windows(i), std::ranges::count(places, i, [](auto& place) { return place.first; }) > 0);
    return places;
  };
  using Places = std::vector<std::pair<size_t, int64_t>>;
  EXPECT_EQ(found(3, {7, true, 99}, 0), (Places{{0, 0}, {0, 3}, {0, 9}, {0, 24}, {2, 2}, {2, 65500}, {2, 69995}}));
  EXPECT_EQ(found(6, {7, true, 99}, 3), (Places{{0, 3}, {0, 9}, {2, 2}, {2, 65500}}));   // a[24..29]: no last target
  EXPECT_EQ(found(6, {7, false, 99}, 2), (Places{{0, 0}, {0, 9}, {2, 2}, {2, 65500}}));  // the second overlaps
  EXPECT_EQ(found(6, {7, true, 3}, 2), (Places{{0, 3}, {0, 9}, {2, 2}}));
  EXPECT_EQ(found(65498, {7, true, 99}, 6), (Places{{2, 2}}));
  EXPECT_EQ(found(65499, {7, true, 99}, 7), Places());
  EXPECT_EQ(found(3, {-1, true, 99}, 0), Places());
}

TEST_F(Shards, PatternsAndNamesAreSortedTogether) {
  for (const char* name : {"x_2.bin", "x_10.bin", "y.bin", "B.bin", "a.bin"}) add(name, {1, 2, 3});
  std::vector<std::string> names;
  for (const Shard& shard : open({"y.bin", "x_*.bin", "./a.bin", "B.bin"}))
    names.push_back(std::filesystem::path(shard.path).filename());
  EXPECT_EQ(names, (std::vector<std::string>{"B.bin", "a.bin", "x_10.bin", "x_2.bin", "y.bin"}));
}

TEST_F(Shards, PatternsLeaveOutJson) {
  add("a.bin", {1, 2});
  write_file(dir / "a.json", "{}");
  EXPECT_EQ(open({"a*"}).size(), 1u);
  expect_bad("*.json", {"the pattern matches no file"});
  expect_bad("a.json", {"not a token shard"});
}

TEST_F(Shards, BytesOfText) {
  add("a.bin", numbers(10));
  add("b.x.bin", numbers(11));
  add("c", numbers(12));
  auto bytes = [&](const std::string& a, std::vector<std::string> warned = {}) {
    write_file(dir / "a.json", a);
    auto shards = open({"a.bin", "b.x.bin", "c"});
    std::vector<std::string> warnings = read_descriptions(shards);
    EXPECT_EQ(warnings.size(), warned.empty() ? 0u : 1u);
    if (!warned.empty()) expect_has(warnings.at(0), warned);
    EXPECT_EQ(shards[1].text_bytes + shards[2].text_bytes, 0);
    return shards[0].text_bytes;
  };
  EXPECT_EQ(bytes(R"({"tokens": 10, "bytes": 43, "tokenizer": "gpt2"})"), 43);
  EXPECT_EQ(bytes(R"({"tokens": 10, "bytes": null, "tokenizer": "t.json"})"), 0);
  const std::string file = dir / "a.json";
  EXPECT_EQ(bytes(R"({"tokens": 9, "bytes": 43})", {file, "\"tokens\" is 9, but the shard has 10"}), 0);
  EXPECT_EQ(bytes(R"({"tokens": 10, "bytes": 0})", {file, "\"bytes\" is 0", "1 to 10240"}), 0);
  EXPECT_EQ(bytes(R"({"tokens": 10, "bytes": 10241})", {file, "1 to 10240"}), 0);
  EXPECT_EQ(bytes(R"({"tokens": 10, "bytes": 18446744073709551615})", {file, "whole number"}), 0);
  EXPECT_EQ(bytes(R"({"tokens": 10, "bytes": 4.5})", {file, "\"bytes\" must be a whole number"}), 0);
  EXPECT_EQ(bytes(R"({"bytes": 43})", {file, "\"tokens\" must be a whole number"}), 0);
  EXPECT_EQ(bytes("{\"tok", {file, "not valid JSON"}), 0);
  for (const std::string& other :
       std::vector<std::string>{"[10, 43]", R"({"model": {"vocab": 7}, "batch": {"tokens": 4}})", "{\"text\": 1}\n{}",
                                "text", R"({"tokens": 9)" + std::string(1 << 16, ' ')})
    EXPECT_EQ(bytes(other), 0);  // not an X.json, so no warning
  EXPECT_EQ(bytes("{\"tokens\": 10,", {file, "not valid JSON"}), 0);
  std::filesystem::remove(file);
  std::filesystem::create_directory(file);
  auto shards = open({"a.bin"});
  expect_has(read_descriptions(shards).at(0), {"cannot read the file: Is a directory"});
}

TEST_F(Shards, TheTokenizerThatMadeThem) {
  add("a.bin", numbers(10));
  auto made_by = [&](const std::string& fields) {
    write_file(dir / "a.json", R"({"tokens": 10, "bytes": 43)" + fields + "}");
    auto shards = open({"a.bin"});
    EXPECT_EQ(read_descriptions(shards).size(), 0u);
    EXPECT_EQ(shards[0].text_bytes, 43);
    return shards[0].vocabulary;
  };
  EXPECT_FALSE(made_by("").known());
  Vocabulary gpt2 = made_by(R"(, "tokenizer": "gpt2", "vocab": 1024, "end_of_text": 7, "crc32": "01234567")");
  EXPECT_EQ(gpt2.text(), "gpt2, 1024 tokens, 7 between documents, CRC-32 01234567");
  EXPECT_EQ(gpt2.end_of_text, 7);
  Vocabulary bytes = made_by(R"(, "tokenizer": "bytes")"), older = made_by(R"(, "tokenizer": "gpt2")");
  EXPECT_EQ((std::vector<int>{bytes.tokens, older.tokens, older.end_of_text}), (std::vector<int>{256, 0, -1}));
  EXPECT_EQ(made_by(R"(, "tokenizer": "t", "vocab": 4, "end_of_text": null)").end_of_text, -1);
  auto named = [](const char* name, int tokens, const char* crc32) { return Vocabulary{name, tokens, crc32, -1}; };
  Vocabulary path = named("a/t.json", 0, ""), file = named("t.json", 0, "");
  for (auto& [a, b] : {std::pair(bytes, gpt2), std::pair(bytes, older), std::pair(path, named("b/t.json", 0, "")),
                       std::pair(gpt2, named("gpt2", 1025, "01234567")), std::pair(gpt2, named("gpt2", 1024, "0")),
                       std::pair(gpt2, Vocabulary{"gpt2", 1024, "01234567", 8})})
    EXPECT_TRUE(a.differs(b) && b.differs(a)) << a.text() << " and " << b.text();
  for (auto& [a, b] : {std::pair(gpt2, Vocabulary()), std::pair(gpt2, older), std::pair(path, file),
                       std::pair(gpt2, named("x", 1024, "01234567"))})
    EXPECT_FALSE(a.differs(b) || b.differs(a)) << a.text() << " and " << b.text();
}

TEST_F(Shards, ANameWithPatternCharactersIsAName) {
  add("a[1].bin", {7, 8});
  add("a1.bin", {9});
  EXPECT_EQ(open({"a[1].bin"})[0].tokens, 2);
}

TEST_F(Shards, AFileNamedTwiceIsRefused) {
  add("a.bin", {1, 2});
  add("b.bin", {1, 2});
  expect_user_error([&] { open({"*.bin", ".//b.bin"}); }, {"data.train", dir / "b.bin", "twice"});
}

TEST_F(Shards, MissingFilesAreNamedWithTheirPattern) {
  expect_bad("none.bin", {"No such file", "working directory", "prepare_text.py", "download_fineweb.py"});
  expect_bad("none_*.bin", {"the pattern matches no file", "working directory"});
  expect_bad("nowhere/*.bin", {"the pattern matches no file"});
  expect_user_error([&] { open_shards({}, 256, "data.val"); }, {"data.val", "no files"});
  expect_user_error([&] { open_shards({""}, 256, "data.val"); }, {"data.val", "empty"});
}

TEST_F(Shards, FoldersAndSpecialFilesAreRefused) {
  ::mkdir((dir / "folder.bin").c_str(), 0755);
  expect_bad("folder.bin", {"is a folder", "/*.bin"});
  expect_user_error([&] { open({"*.bin"}); }, {"is a folder"});
  ::mkfifo((dir / "pipe").c_str(), 0644);
  expect_bad("pipe", {"not a regular file"});  // opening it would wait forever
}

TEST_F(Shards, UnreadableFilesAndFoldersAreNamed) {
  add("secret.bin", {1, 2, 3});
  ::chmod((dir / "secret.bin").c_str(), 0);
  ::mkdir((dir / "closed").c_str(), 0755);
  add("closed/x.bin", {1, 2, 3});
  ::chmod((dir / "closed").c_str(), 0);
  without_root([&] {
    expect_bad("secret.bin", {"Permission denied", "permissions"});
    expect_bad("closed/*.bin", {"folder", "Permission denied"});
  });
  ::chmod((dir / "closed").c_str(), 0755);
}

TEST_F(Shards, DamagedFilesAreRefusedWithNumbers) {
  write_file(dir / "empty.bin", "");
  expect_bad("empty.bin", {"has 0 bytes", "1024-byte header"});
  write_file(dir / "header.bin", shard_bytes({}).substr(0, 1023));
  expect_bad("header.bin", {"has 1023 bytes"});
  write_file(dir / "text.bin", std::string(5000, 'x'));
  expect_bad("text.bin", {"not a token shard", "20240520", "prepare_text.py"});
  add("magic.bin", {1, 2, 3}, {.magic = 20240521});
  expect_bad("magic.bin", {"not a token shard", "20240521", "20240520"});
  add("version.bin", {1, 2, 3}, {.version = 2});
  expect_bad("version.bin", {"version 2", "only version 1"});
  add("negative.bin", {1, 2, 3}, {.count = -5});
  expect_bad("negative.bin", {"damaged header", "-5"});
  write_file(dir / "truncated.bin", shard_bytes(numbers(10)).substr(0, 1024 + 19));
  expect_bad("truncated.bin", {"cut short", "10 tokens", "1044 bytes", "has 1043", "1 missing"});
  write_file(dir / "oversized.bin", shard_bytes(numbers(10)) + "abc");
  expect_bad("oversized.bin", {"too long", "10 tokens", "1044 bytes", "has 1047", "3 too many"});
  add("huge.bin", {1, 2, 3}, {.count = INT32_MAX});  // no memory may be allocated by this count
  expect_bad("huge.bin", {"cut short", "2147483647 tokens", "4294968318 bytes"});
}

TEST_F(Shards, TokensBeyondTheVocabularyAreFoundWhereTheyAre) {
  std::vector<int> tokens(5000, 255);
  add("good.bin", tokens);
  EXPECT_EQ(open({"good.bin"}, 256).size(), 1u);
  tokens[1000] = 256;
  add("early.bin", tokens);  // found when the file is opened
  expect_user_error(
      [&] {
        open({"good.bin", "early.bin"}, 256);
      },
      {"data.train", dir / "early.bin", "token 256 at position 1000", "model.vocab = 256", "another tokenizer"});
  tokens[1000] = 0;
  tokens[3000] = 50256;
  add("late.bin", tokens);
  WindowReader reader(open({"late.bin"}, 256), 100, 256);
  std::vector<int> inputs(100), targets(100);
  reader.read(28, inputs.data(), targets.data());
  for (int64_t window : {29, 30})  // as the last target, and as the first input
    expect_user_error([&] { reader.read(window, inputs.data(), targets.data()); },
                      {"data.train", dir / "late.bin", "token 50256 at position 3000", "model.vocab = 256"});
  reader.read(31, inputs.data(), targets.data());
  EXPECT_NO_THROW(WindowReader(open({"late.bin"}, 50257), 100, 50257).read(30, inputs.data(), targets.data()));
}

TEST_F(Shards, AllTokensCanBeReadAtOnce) {
  std::vector<int> tokens(1 << 20, 255);
  add("a.bin", tokens), add("b.bin", tokens);
  int calls = 0;
  EXPECT_EQ(check_tokens(open({"a.bin", "b.bin"}, 256), 256,
                         [&](int64_t done) {
                           EXPECT_EQ(done, int64_t(calls++) << 20);
                           return true;
                         }),
            2 << 20);
  EXPECT_EQ(calls, 2);
  tokens.back() = 256;
  add("b.bin", tokens);
  auto check = [&](int64_t most) {
    return check_tokens(open({"a.bin", "b.bin"}, 256), 256, [=](int64_t done) { return done < most; });
  };
  EXPECT_EQ(check(1), 1 << 20);
  expect_user_error([&] { check(2 << 20); }, {dir / "b.bin", "token 256 at position 1048575"});
}

TEST_F(Shards, LessThanOneWindowInAllIsRefused) {
  add("a.bin", numbers(7));
  add("b.bin", numbers(8));
  EXPECT_EQ(WindowReader(open({"*.bin"}), 7, 65536).windows(), 1);
  expect_user_error([&] { WindowReader(open({"*.bin"}), 8, 65536, "data.val"); },
                    {"data.val", "9 tokens", "length 8", dir / "b.bin", "has 8", "shorter length"});
  expect_user_error([&] { WindowReader(open({"*.bin"}), 0, 65536, "data.val"); }, {"data.val", "0 tokens"});
  expect_user_error([&] { WindowReader({}, 8, 65536, "data.val"); }, {"data.val", "no files"});
}

TEST_F(Shards, AFileThatShrinksInUseIsNamed) {
  add("a.bin", numbers(100));
  WindowReader reader(open({"a.bin"}), 10, 65536, "data.train");
  ASSERT_EQ(::truncate((dir / "a.bin").c_str(), 1024 + 50), 0);
  std::vector<int> inputs(10), targets(10);
  EXPECT_NO_THROW(reader.read(1, inputs.data(), targets.data()));
  expect_user_error([&] { reader.read(2, inputs.data(), targets.data()); }, {"data.train", dir / "a.bin", "shorter"});
}

TEST_F(Shards, AFileDeletedInUseCanStillBeRead) {
  add("a.bin", numbers(100));
  WindowReader reader(open({"a.bin"}), 10, 65536);
  std::filesystem::remove(dir / "a.bin");
  EXPECT_EQ(first_inputs(reader).size(), 9u);
}

TEST_F(Shards, WindowsThatDoNotExistAreFailures) {
  add("a.bin", numbers(100));
  WindowReader reader(open({"a.bin"}), 10, 65536);
  int inputs[10], targets[10];
  EXPECT_THROW(reader.read(-1, inputs, targets), Failure);
  EXPECT_THROW(reader.read(9, inputs, targets), Failure);
}

TEST_F(Shards, FilesBeyondTwoGigabytes) {
  const int64_t count = 2000000001;  // 4 GB, nearly all of it a hole in the file
  add("big.bin", {}, {.count = int(count)});
  ASSERT_EQ(::truncate((dir / "big.bin").c_str(), 1024 + 2 * count), 0);
  {
    std::fstream file(dir / "big.bin", std::ios::in | std::ios::out | std::ios::binary);
    const uint16_t end[] = {11, 22, 33};
    file.seekp(1024 + 2 * (count - 3));
    file.write(reinterpret_cast<const char*>(end), sizeof end);
  }
  add("next.bin", numbers(3));
  WindowReader reader(open({"big.bin", "next.bin"}, 256), 1000, 256);
  ASSERT_EQ(reader.windows(), 2000000);
  std::vector<int> inputs(1000), targets(1000);
  reader.read(1999999, inputs.data(), targets.data());
  EXPECT_EQ(inputs[997], 0);
  EXPECT_EQ(inputs[998], 11);
  EXPECT_EQ(inputs[999], 22);
  EXPECT_EQ(targets[999], 33);
}

// ---------------------------------------------------------------------------------------------------------- the order

TEST(Order, UnshuffledIsTheFormula) {
  LoaderSettings s{.T = 1, .micro = 3, .micro_steps = 2, .rank = 1, .ranks = 4, .shuffle = false, .seed = 9};
  for (int64_t step : {0, 1, 7, 1000000000})
    for (int m = 0; m < 2; m++)
      for (int b = 0; b < 3; b++) EXPECT_EQ(window_of(s, 101, step, m, b), (((step * 2 + m) * 4 + 1) * 3 + b) % 101);
}

TEST(Order, EveryEpochTakesEveryWindowOnceInAnOrderOfItsOwn) {
  LoaderSettings s{.T = 1, .micro = 4, .micro_steps = 1, .seed = 1337};
  const int64_t total = 50;  // epochs end within batches
  std::vector<std::vector<int64_t>> epochs(3);
  for (int n = 0; n < 3 * total; n++) epochs[n / total].push_back(window_of(s, total, n / 4, 0, n % 4));
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  for (auto& epoch : epochs) EXPECT_EQ(std::set<int64_t>(epoch.begin(), epoch.end()).size(), size_t(total));
}

TEST(Order, EverySeedAndEpochHasAnOrderOfItsOwn) {
  std::set<std::vector<int64_t>> orders;
  for (int seed = 0; seed < 20; seed++)
    for (int epoch = 0; epoch < 20; epoch++) {
      std::vector<int64_t> order(30);
      for (int i = 0; i < 30; i++) order[i] = permute(i, 30, seed, epoch);
      orders.insert(order);
    }
  EXPECT_EQ(orders.size(), 400u);
}

TEST(Order, PermutationsAreBijections) {
  std::vector<int64_t> totals = {1000, 4096, 65537};
  for (int64_t total = 1; total <= 130; total++) totals.push_back(total);
  for (int64_t total : totals)
    for (uint64_t seed : {uint64_t(0), uint64_t(1337), ~uint64_t(0)}) {
      std::vector<bool> seen(total);
      for (int64_t i = 0; i < total; i++) {
        const int64_t p = permute(i, total, seed, 3);
        ASSERT_TRUE(p >= 0 && p < total && !seen[p]) << total << " " << seed;
        seen[p] = true;
      }
    }
}

TEST(Order, PermutationsOfAHugeTotalStayInside) {
  const int64_t total = (int64_t(1) << 40) + 7;
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 1000; i++) seen.insert(permute(total - 1 - i, total, 1, 0));
  EXPECT_EQ(seen.size(), 1000u);
  EXPECT_GE(*seen.begin(), 0);
  EXPECT_LT(*seen.rbegin(), total);
}

// A resumed run on another machine must continue in the same order, so these numbers never change.
TEST(Order, TheSameOnEveryMachine) {
  std::vector<int64_t> order;
  for (int i = 0; i < 8; i++) order.push_back(permute(i, 1000, 1337, i / 4));
  EXPECT_EQ(order, (std::vector<int64_t>{194, 594, 205, 286, 906, 34, 747, 834}));
}

double chi_square(const std::vector<int>& counts) {
  const double expected = std::accumulate(counts.begin(), counts.end(), 0.0) / counts.size();
  double sum = 0;
  for (int count : counts) sum += (count - expected) * (count - expected) / expected;
  return sum;
}

TEST(Order, PermutationsOfFewAreUniform) {
  std::map<std::vector<int64_t>, int> found;
  for (int draw = 0; draw < 12000; draw++) {  // by epoch and by seed
    std::vector<int64_t> p(5);
    for (int i = 0; i < 5; i++) p[i] = draw % 2 ? permute(i, 5, 42, draw) : permute(i, 5, draw, 0);
    found[p]++;
  }
  ASSERT_EQ(found.size(), 120u);
  std::vector<int> counts;
  for (auto& [p, count] : found) counts.push_back(count);
  EXPECT_LT(chi_square(counts), 119 + 5 * std::sqrt(2 * 119.0));  // mean and deviation of the distribution
}

TEST(Order, NeighboursAndEpochsAreIndependent) {
  const int64_t total = 64;
  std::vector<int> steps(total), places(total), epochs(total);  // p(i+1) - p(i); p(i) - i; epoch e+1 against e
  for (int epoch = 0; epoch < 400; epoch++)
    for (int64_t i = 0; i < total; i++) {
      const int64_t p = permute(i, total, 5, epoch);
      places[(p - i + total) % total]++;
      steps[(permute((i + 1) % total, total, 5, epoch) - p + total) % total]++;
      epochs[(permute(i, total, 5, epoch + 1) - p + total) % total]++;
    }
  EXPECT_EQ(steps[0], 0);
  steps.erase(steps.begin());
  for (auto* counts : {&steps, &places, &epochs}) EXPECT_LT(chi_square(*counts), 63 + 5 * std::sqrt(2 * 63.0));
}

// --------------------------------------------------------------------------------------------------------- the loader

struct Loading : Shards {
  static constexpr int T = 4;
  WindowReader reader() {  // 25 + 12 windows; every token tells its position
    add("a.bin", numbers(101));
    add("b.bin", numbers(50, 1000));
    return WindowReader(open({"a.bin", "b.bin"}), T, 65536, "data.train");
  }
  static void expect_batch(const Batch& batch, const WindowReader& reader, const LoaderSettings& s, int64_t step,
                           int m) {
    EXPECT_EQ(batch.step, step);
    EXPECT_EQ(batch.micro_step, m);
    std::vector<int> inputs, targets, in(T), out(T);
    for (int b = 0; b < s.micro; b++) {
      reader.read(window_of(s, reader.windows(), step, m, b), in.data(), out.data());
      inputs.insert(inputs.end(), in.begin(), in.end());
      targets.insert(targets.end(), out.begin(), out.end());
    }
    EXPECT_EQ(batch.inputs, inputs);
    EXPECT_EQ(batch.targets, targets);
  }
  static void expect_order(const WindowReader& r, int64_t steps, LoaderSettings s) {
    for (bool shuffle : {false, true}) {
      s.shuffle = shuffle;
      Loader loader(r, s);
      for (int64_t step = 0; step < steps; step++)
        for (int m = 0; m < s.micro_steps; m++) expect_batch(loader.next(), r, s, step, m);
    }
  }
};

TEST_F(Loading, GivesTheFixedOrder) {
  WindowReader r = reader();
  ASSERT_EQ(r.windows(), 37);
  expect_order(r, 20, {.T = T, .micro = 3, .micro_steps = 2, .rank = 1, .ranks = 2, .seed = 7});
}

TEST_F(Loading, SeeksToAnyStep) {
  WindowReader r = reader();
  LoaderSettings s{.T = T, .micro = 2, .micro_steps = 3, .seed = 7};
  Loader loader(r, s);
  for (int64_t step : {5, 0, 1000000, 3}) {
    loader.seek(step);
    for (int m = 0; m < 3; m++) expect_batch(loader.next(), r, s, step, m);
    expect_batch(loader.next(), r, s, step + 1, 0);
  }
  EXPECT_THROW(loader.seek(-1), Failure);
}

TEST_F(Loading, RanksShareOneBatch) {
  WindowReader r = reader();
  LoaderSettings one{.T = T, .micro = 8, .seed = 3}, half{.T = T, .micro = 4, .ranks = 2, .seed = 3};
  Loader whole(r, one), first(r, half);
  half.rank = 1;
  Loader second(r, half);
  for (int step = 0; step < 12; step++) {
    std::vector<int> joined = first.next().inputs, rest = second.next().inputs;
    joined.insert(joined.end(), rest.begin(), rest.end());
    EXPECT_EQ(whole.next().inputs, joined);
  }
}

TEST_F(Loading, ABatchLargerThanAllTheDataWrapsAround) {
  add("small.bin", numbers(13));
  WindowReader r(open({"small.bin"}), T, 65536);
  ASSERT_EQ(r.windows(), 3);
  expect_order(r, 3, {.T = T, .micro = 10, .micro_steps = 2, .seed = 1});
}

TEST_F(Loading, ABatchIsUnchangedUntilTheNext) {
  WindowReader r = reader();
  Loader loader(r, {.T = T, .micro = 3});
  for (int i = 0; i < 5; i++) {
    const Batch& batch = loader.next();
    const Batch copy = batch;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // time for the thread to overwrite it
    EXPECT_EQ(batch.inputs, copy.inputs);
    EXPECT_EQ(batch.step, copy.step);
  }
}

TEST_F(Loading, PreparesBatchesAhead) {
  for (int attempt = 1;; attempt++) {  // the thread may have to wait for a core
    WindowReader r = reader();
    Loader loader(r, {.T = T, .micro = 3, .shuffle = false});
    loader.next();
    std::this_thread::sleep_for(std::chrono::milliseconds(20 * attempt));
    for (const char* name : {"a.bin", "b.bin"}) ASSERT_EQ(::truncate((dir / name).c_str(), 1024), 0);
    try {
      loader.next();
      loader.next();
      break;
    } catch (const UserError&) {
      ASSERT_LT(attempt, 30) << "nothing was read ahead";
    }
  }
}

TEST_F(Loading, ErrorsOfTheThreadComeOutOfNext) {
  std::vector<int> tokens(5000);
  tokens[4001] = 300;
  add("bad.bin", tokens);
  WindowReader r(open({"bad.bin"}, 256), T, 256, "data.train");
  Loader loader(r, {.T = T, .micro = 100, .shuffle = false});  // batch 10 has the bad token
  for (int i = 0; i < 10; i++) EXPECT_NO_THROW(loader.next()) << i;
  for (int i = 0; i < 3; i++)
    expect_user_error([&] { loader.next(); }, {"data.train", dir / "bad.bin", "token 300 at position 4001"});
  loader.seek(2);
  EXPECT_EQ(loader.next().step, 2);
  loader.seek(10);
  EXPECT_THROW(loader.next(), UserError);
}

TEST_F(Loading, EndsCleanlyAtAnyMoment) {
  WindowReader r = reader();
  for (int i = 0; i < 200; i++) {
    Loader loader(r, {.T = T, .micro = 2 + i % 50, .seed = uint64_t(i)});
    if (i % 3 == 1) loader.next();
    if (i % 3 == 2) loader.seek(i);
    if (i % 7 == 0) std::this_thread::yield();
  }
}

TEST_F(Loading, ImpossibleSettingsAreFailures) {
  WindowReader r = reader();
  EXPECT_THROW(Loader(r, {.T = T + 1}), Failure);
  EXPECT_THROW(Loader(r, {.T = T, .micro = 0}), Failure);
  EXPECT_THROW(Loader(r, {.T = T, .micro_steps = 0}), Failure);
  EXPECT_THROW(Loader(r, {.T = T, .rank = 2, .ranks = 2}), Failure);
}

}  // namespace
