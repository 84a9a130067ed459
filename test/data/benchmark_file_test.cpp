// Files of benchmarks: what is read of good ones, and that nothing in a bad one is trusted.
#include "data/benchmark_file.h"

#include <gtest/gtest.h>

#include <random>

#include "test/data/benchmark_bytes.h"
#include "test/support/temp_dir.h"

namespace {

const std::vector<BenchmarkExample> EXAMPLES = {{{5, 60}, 1, {{{7}, 3, 4}, {{8, 9}, 5, 5}}},
                                                {{0}, 2, {{{1}, 1, 1}, {{2}, 65535, 65535}, {{3, 4, 5}, 2, 6}}}};

// The file's numbers from `header` int32 on, as uint16, where the examples begin: 512 + ...
enum { MARK, SIZE, NUMBER, GOLD, COUNT, CONTEXT, TOKEN };

class BenchmarkFile : public ::testing::Test {
 protected:
  Benchmark read(const std::string& bytes, int vocab = 61, int64_t limit = 0) {
    write_file(files_ / "x.bin", bytes);
    return read_benchmark(files_.path, "x", vocab, limit);
  }
  TempDir files_;
};

TEST_F(BenchmarkFile, IsReadAsItWasWritten) {
  for (int version : {1, 2}) {
    Benchmark benchmark = read(benchmark_bytes(EXAMPLES, version));
    EXPECT_EQ(benchmark.name, "x");
    EXPECT_EQ(benchmark.has_lengths, version == 2);
    EXPECT_EQ(benchmark.checksum.size(), 16u);
    ASSERT_EQ(benchmark.examples.size(), EXAMPLES.size());
    for (size_t i = 0; i < EXAMPLES.size(); i++) {
      EXPECT_EQ(benchmark.examples[i].context, EXAMPLES[i].context);
      EXPECT_EQ(benchmark.examples[i].gold, EXAMPLES[i].gold);
      ASSERT_EQ(benchmark.examples[i].choices.size(), EXAMPLES[i].choices.size());
      for (size_t c = 0; c < EXAMPLES[i].choices.size(); c++) {
        const BenchmarkChoice &choice = benchmark.examples[i].choices[c], &wanted = EXAMPLES[i].choices[c];
        EXPECT_EQ(choice.tokens, wanted.tokens);
        EXPECT_EQ(choice.characters, version == 2 ? wanted.characters : 0);
        EXPECT_EQ(choice.bytes, version == 2 ? wanted.bytes : 0);
      }
    }
  }
  EXPECT_EQ(read(benchmark_bytes(EXAMPLES, 2), 61, 1).examples.size(), 1u);
  EXPECT_EQ(read(benchmark_bytes(EXAMPLES, 2), 61, 9).examples.size(), 2u);
}

TEST_F(BenchmarkFile, Texts) {
  std::vector<BenchmarkExample> parts = {{{5, 60}, 0, {{{7}, 0, 4, 1}}},
                                         {{0}, 0, {{{1, 2}, 0, 65535, 65535}}},
                                         {{}, 0, {{{3}, 0, 9, 4}}},
                                         {{}, 0, {{{4, 5}, 0, 0, 0}}},
                                         {{6}, 0, {{{7}, 0, 3, 2}}}};
  Benchmark benchmark = read(benchmark_bytes(parts, 3));
  EXPECT_TRUE(benchmark.texts && !benchmark.has_lengths);
  ASSERT_EQ(benchmark.examples.size(), 3u);
  EXPECT_EQ(benchmark.examples[0].context, (std::vector<int>{5, 60}));
  const BenchmarkChoice& whole = benchmark.examples[1].choices.at(0);
  EXPECT_EQ(whole.tokens, (std::vector<int>{1, 2, 3, 4, 5}));
  EXPECT_EQ(std::pair(whole.words, whole.bytes), std::pair(int64_t(65539), int64_t(65544)));
  EXPECT_EQ(read(benchmark_bytes(parts, 3), 61, 2).examples.size(), 2u);
  parts[0].context.clear();  // nothing is before it
  expect_user_error([&] { read(benchmark_bytes(parts, 3)); }, {"example 0", "0 as its context"});
  parts[0] = {{1}, 0, {{{7}, 0, 4, 0}}};
  expect_user_error([&] { read(benchmark_bytes(parts, 3)); }, {"example 0", "0 as its words"});
  parts[0] = {{1}, 0, {{{7}, 0, 1, 1}, {{7}, 0, 1, 1}}};
  expect_user_error([&] { read(benchmark_bytes(parts, 3)); }, {"example 0", "2 as its number of completions"});
}

TEST_F(BenchmarkFile, Names) {
  read(benchmark_bytes(EXAMPLES, 2));
  write_file(files_ / "other.bin", "");
  std::filesystem::create_directory(files_ / "folder.bin");
  expect_user_error([&] { read_benchmark(files_.path, "../x", 61, 0); },
                    {"../x", "without its folder", "task.dir", files_.path});
  for (std::string name : {"y", "", "folder", "x.bin"})
    expect_user_error([&] { read_benchmark(files_.path, name, 61, 0); },
                      {name, "task.dir", "other, x", "prepare_tasks.py"});
  expect_user_error([&] { read_benchmark(files_ / "absent", "x", 61, 0); }, {"absent", "has no tasks"});
}

TEST_F(BenchmarkFile, EveryFieldIsChecked) {
  std::string good = benchmark_bytes(EXAMPLES, 2);
  auto bad = [&](size_t place, int value, std::initializer_list<std::string> parts) {  // a uint16 of the file
    std::string bytes = good;
    bytes[2 * place] = char(value & 255), bytes[2 * place + 1] = char(value >> 8);
    SCOPED_TRACE(format("number %zu = %d", place, value));
    expect_user_error([&] { read(bytes); }, parts);
    expect_user_error([&] { read(bytes); }, {"x.bin", "prepare_tasks.py"});
  };
  bad(0, 1, {"does not begin as a task file"});
  bad(2, 0, {"version 1, 2 or 3"});
  bad(2, 4, {"version 1, 2 or 3"});
  bad(2, 3, {"example 0 has 1 as its right completion, not 0 to 0"});
  bad(4, 0, {"0 examples"});
  bad(4, 1, {"beyond its last example"});
  bad(4, 3, {"cut short in example 2 of 3"});
  bad(5, 1, {"65538 examples"});
  bad(5, 0x8000, {"-2147483646 examples"});
  const size_t first = 512, second = first + 5 + 1 + 2 + 2 + 3 + 4;
  bad(first + MARK, 65534, {"example 0 has 65534 as its mark"});
  bad(first + SIZE, 0, {"example 0 has 0 as its size"});
  bad(first + SIZE, 2, {"example 0 has 2 as its size"});
  bad(first + SIZE, 33, {"example 0 has 33 as its size"});
  bad(first + SIZE, 32, {"example 0 ends before its bytes"});
  bad(first + SIZE, 36, {"example 0 has 2 bytes beyond"});
  bad(first + SIZE, 65534, {"cut short in example 0 of 2"});
  bad(first + NUMBER, 1, {"example 0 has 1 as its number"});
  bad(second + NUMBER, 0, {"example 1 has 0 as its number"});
  bad(first + GOLD, 26, {"right completion"});
  bad(second + GOLD, 3, {"number of completions, not 4 to 26"});
  bad(first + COUNT, 1, {"number of completions, not 2 to 26"});
  bad(first + COUNT, 27, {"number of completions"});
  bad(first + CONTEXT, 0, {"context"});
  bad(first + CONTEXT, 65535, {"ends within its context"});
  bad(first + TOKEN, 61, {"token 61", "model.vocab = 61", "tokenizer"});
  bad(first + TOKEN + 2, 0, {"completions"});
  bad(first + TOKEN + 2, 60, {"completions"});
  bad(first + TOKEN + 7, 0, {"characters"});
  bad(first + TOKEN + 8, 2, {"bytes"});
}

TEST_F(BenchmarkFile, CutShortOrTooLong) {
  std::string good = benchmark_bytes(EXAMPLES, 2);
  for (size_t size = 0; size < good.size(); size++)
    EXPECT_TRUE(error_of([&] { read(good.substr(0, size)); }).starts_with("user: task x: ")) << size;
  EXPECT_NE(error_of([&] { read(good + "x"); }), "");
}

TEST_F(BenchmarkFile, DamageIsNeverTrusted) {
  std::mt19937 random(1);
  std::string good = benchmark_bytes(EXAMPLES, 2);
  int accepted = 0;
  for (int trial = 0; trial < 2000; trial++) {
    std::string bytes = good;
    for (int i = trial % 3; i >= 0; i--) {
      size_t at = random() % 3 ? 1024 + random() % (bytes.size() - 1024) : random() % 16;
      bytes[at] = char(random());
    }
    std::string error = error_of([&] {
      for (const BenchmarkExample& example : read(bytes).examples) {
        ASSERT_LT(size_t(example.gold), example.choices.size());
        for (const BenchmarkChoice& choice : example.choices)
          for (int token : choice.tokens) ASSERT_LT(token, 61);
      }
      accepted++;
    });
    EXPECT_TRUE(error.empty() || error.starts_with("user: task x: ")) << error;
  }
  EXPECT_GT(accepted, 50);  // another token, another length
  EXPECT_LT(accepted, 1500);
}

}  // namespace
