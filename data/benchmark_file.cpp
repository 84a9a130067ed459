#include "data/benchmark_file.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>

#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "data/shards.h"

namespace {

constexpr int32_t BENCHMARK_MAGIC = 20240522;
constexpr size_t BENCHMARK_HEADER_BYTES = 256 * sizeof(int32_t), MOST_EXAMPLES = 65535;
constexpr int MOST_CHOICES = 26, MARK = 65535;

const char* const make_it = "make it with scripts/prepare_tasks.py";

std::string benchmarks_in(const std::string& dir) {
  std::vector<std::string> names;
  std::error_code error;
  for (auto& entry : std::filesystem::directory_iterator(dir, error))
    if (entry.path().extension() == ".bin") names.push_back(entry.path().stem());
  std::sort(names.begin(), names.end());
  std::string list;
  for (const std::string& name : names) append_item(list, name);
  return list.empty() ? "no tasks" : shortened(list, 400);
}

// Takes an example's numbers from the front. where: begins the text of an error.
class Numbers {
 public:
  Numbers(std::span<const uint16_t> numbers, const std::string& where) : rest_(numbers), where_(where) {}
  int next(const char* what, int least, int most) {
    if (rest_.empty()) bad(format("ends before its %s", what));
    int value = rest_[0];
    rest_ = rest_.subspan(1);
    if (value < least || value > most) bad(format("has %d as its %s, not %d to %d", value, what, least, most));
    return value;
  }
  std::vector<int> tokens(const char* what, int vocab, int least = 1) {
    size_t count = size_t(next(what, least, 65535));
    if (count > rest_.size()) bad(format("ends within its %s", what));
    std::vector<int> tokens(rest_.begin(), rest_.begin() + count);
    rest_ = rest_.subspan(count);
    int largest = count == 0 ? 0 : *std::max_element(tokens.begin(), tokens.end());
    if (largest >= vocab)
      user_error(
          "%s has token %d, but model.vocab = %d allows 0 to %d; make it with the tokenizer of the training data "
          "(scripts/prepare_tasks.py --tokenizer)",
          where_.c_str(), largest, vocab, vocab - 1);
    return tokens;
  }
  void end() const {
    if (!rest_.empty()) bad(format("has %zu bytes beyond its last field", 2 * rest_.size()));
  }

 private:
  [[noreturn]] void bad(const std::string& problem) const {
    user_error("%s %s; %s", where_.c_str(), problem.c_str(), make_it);
  }
  std::span<const uint16_t> rest_;
  std::string where_;
};

BenchmarkExample read_example(Numbers numbers, int number, int vocab, int version) {
  BenchmarkExample example;
  numbers.next("mark", MARK, MARK);
  numbers.next("size", 0, 65535);  // known already
  numbers.next("number", number, number);
  bool text = version == 3;
  int most = text ? 1 : MOST_CHOICES;
  example.gold = numbers.next("right completion", 0, most - 1);
  example.choices.resize(size_t(numbers.next("number of completions", std::max(text ? 1 : 2, example.gold + 1), most)));
  example.context = numbers.tokens("context", vocab, text && number > 0 ? 0 : 1);
  for (BenchmarkChoice& choice : example.choices) choice.tokens = numbers.tokens("completions", vocab);
  for (BenchmarkChoice& choice : example.choices) {
    if (version == 1) break;
    int least = example.context.empty() ? 0 : 1;  // of a text that continues the rest may be counted already
    if (text) choice.words = numbers.next("words", least, 65535);
    else choice.characters = numbers.next("characters", least, 65535);
    choice.bytes = numbers.next("bytes", text ? least : choice.characters, 65535);
  }
  numbers.end();
  return example;
}

}  // namespace

Benchmark read_benchmark(const std::string& dir, const std::string& name, int vocab, int64_t limit) {
  std::string path = dir + "/" + name + ".bin", where = "task " + name + ": " + path;
  const char* w = where.c_str();
  std::error_code error;
  if (name.find('/') != std::string::npos)
    user_error("task %s: a task is named without its folder; name that with --set task.dir=FOLDER, which is now \"%s\"",
               shortened(name).c_str(), dir.c_str());
  if (name.empty() || !std::filesystem::is_regular_file(path, error))
    user_error("task %s: there is no file %s; task.dir = \"%s\" has %s; scripts/prepare_tasks.py makes others",
               shortened(name).c_str(), shortened(path, 200).c_str(), dir.c_str(), benchmarks_in(dir).c_str());
  std::string bytes = read_text_file(path, w, BENCHMARK_HEADER_BYTES + MOST_EXAMPLES * 65535);
  int32_t header[4] = {};
  if (bytes.size() >= BENCHMARK_HEADER_BYTES) std::memcpy(header, bytes.data(), sizeof header);
  if (header[0] != BENCHMARK_MAGIC || header[1] < 1 || header[1] > 3)
    user_error("%s does not begin as a task file of version 1, 2 or 3; %s", w, make_it);
  if (header[2] < 1 || header[2] > int(MOST_EXAMPLES))
    user_error("%s says that it has %d examples, not 1 to %zu; %s", w, header[2], MOST_EXAMPLES, make_it);
  Benchmark benchmark{name, header[1] == 2, sampled_checksum(path), {}, header[1] == 3};
  std::string_view rest = std::string_view(bytes).substr(BENCHMARK_HEADER_BYTES);
  for (int number = 0; number < header[2]; number++) {
    uint16_t start[2] = {};  // the mark and the size
    std::memcpy(start, rest.data(), std::min(rest.size(), sizeof start));
    if (rest.size() < sizeof start || start[1] > rest.size())
      user_error("%s is cut short in example %d of %d; copy it again, or %s", w, number, header[2], make_it);
    if (start[1] % 2 != 0 || start[1] < sizeof start)
      user_error("%s, example %d has %d as its size in bytes; %s", w, number, start[1], make_it);
    std::vector<uint16_t> numbers(start[1] / 2);
    std::memcpy(numbers.data(), rest.data(), start[1]);
    rest.remove_prefix(start[1]);
    std::string example = where + format(", example %d", number);
    BenchmarkExample read = read_example({numbers, example}, number, vocab, header[1]);
    if (!read.context.empty()) {
      benchmark.examples.push_back(std::move(read));
      continue;
    }
    BenchmarkChoice &whole = benchmark.examples.back().choices[0], &part = read.choices[0];
    whole.tokens.insert(whole.tokens.end(), part.tokens.begin(), part.tokens.end());
    whole.words += part.words, whole.bytes += part.bytes;
  }
  if (!rest.empty()) user_error("%s has %zu bytes beyond its last example; %s", w, rest.size(), make_it);
  if (std::string about = dir + "/" + name + ".json"; is_there(about))
    benchmark.vocabulary = vocabulary_in(parse_json(read_utf8_file(about, w, 1 << 16), w, about), w, about);
  if (limit > 0 && limit < int64_t(benchmark.examples.size())) benchmark.examples.resize(size_t(limit));
  return benchmark;
}
