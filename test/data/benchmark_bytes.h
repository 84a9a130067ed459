// The bytes of a task file, written down once more, for tests.
#pragma once
#include <string>
#include <vector>

#include "data/benchmark_file.h"

inline std::string benchmark_bytes(const std::vector<BenchmarkExample>& examples, int version) {
  std::vector<uint16_t> all;
  size_t longest = 0;
  for (size_t i = 0; i < examples.size(); i++) {
    const BenchmarkExample& example = examples[i];
    std::vector<uint16_t> numbers = {65535, 0, uint16_t(i), uint16_t(example.gold), uint16_t(example.choices.size())};
    auto add = [&](const std::vector<int>& tokens) {
      numbers.push_back(uint16_t(tokens.size()));
      numbers.insert(numbers.end(), tokens.begin(), tokens.end());
    };
    add(example.context);
    for (const BenchmarkChoice& choice : example.choices) add(choice.tokens);
    for (const BenchmarkChoice& choice : example.choices)
      if (version > 1)
        numbers.insert(numbers.end(),
                       {uint16_t(version == 3 ? choice.words : choice.characters), uint16_t(choice.bytes)});
    numbers[1] = uint16_t(2 * numbers.size());
    longest = std::max<size_t>(longest, numbers[1]);
    all.insert(all.end(), numbers.begin(), numbers.end());
  }
  int header[256] = {20240522, version, int(examples.size()), int(longest)};
  return std::string(reinterpret_cast<char*>(header), sizeof header) +
         std::string(reinterpret_cast<char*>(all.data()), 2 * all.size());
}
