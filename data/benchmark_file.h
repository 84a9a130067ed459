// Benchmarks: questions with completions to choose from, and texts to predict, in the files that
// scripts/prepare_tasks.py writes. A header of 256 int32 ([0] = 20240522, [1] = version, [2] = number of examples, [3]
// = bytes of the longest example), then for each example these uint16, all little-endian:
//   65535, its bytes in all, its number from 0, the number of the right completion, completions c (2 to 26);
//   n > 0, tokens[n] of the context; c times: m > 0, tokens[m] of a completion;
//   in version 2, c times: characters and UTF-8 bytes of a completion's text, without the space before it.
// Version 1 is the format of llm.c's evaluations. In version 3 the examples are texts with c = 1: after the tokens,
// words and UTF-8 bytes of the text, as its perplexity counts them. n = 0: this completion with its words and bytes
// continues that of the example before, as a long text needs.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer.h"

struct BenchmarkChoice {
  std::vector<int> tokens;
  int characters = 0;            // only in version 2
  int64_t bytes = 0, words = 0;  // not in version 1; only in version 3
};

struct BenchmarkExample {
  std::vector<int> context;
  int gold;  // the right one of the choices
  std::vector<BenchmarkChoice> choices;
};

struct Benchmark {
  std::string name;
  bool has_lengths;      // version 2
  std::string checksum;  // of the file
  std::vector<BenchmarkExample> examples;
  bool texts = false;          // version 3
  Vocabulary vocabulary = {};  // from NAME.json beside it, which scripts/prepare_tasks.py writes too
};

// Reads and checks the whole file dir/name.bin and keeps its first `limit` examples (0: all). A user_error names the
// file, what is wrong in it and where; for a name without a file, the files that are there.
Benchmark read_benchmark(const std::string& dir, const std::string& name, int vocab, int64_t limit);
