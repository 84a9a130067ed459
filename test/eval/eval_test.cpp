// Evaluation and generation: losses at any length against the float64 reference, the protocol of an evaluation, logits,
// sampling.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <regex>

#include "eval/evaluate.h"
#include "eval/generate.h"
#include "test/data/shard_files.h"
#include "test/model/model_reference.h"
#include "test/model/small_model.h"

namespace {

struct Evaluation : ShardFiles {
  // Shards of random tokens; sizes: the tokens of each.
  std::vector<Shard> shards_of(const std::vector<int>& sizes) {
    std::vector<std::string> names;
    for (int size : sizes) {
      names.push_back(format("val_%zu.bin", names.size()));
      add(names.back(), random_ints(size, unsigned(names.size()), 61));
    }
    return open(names, 61);
  }
};

// ---- evaluation

TEST_F(Evaluation, LossesMatchTheReferenceAtAnyLength) {
  struct {
    int T;  // up to beyond the trained length
    const char* scaling;
  } cases[] = {{1, "none"}, {5, "yarn"}, {11, "none"}, {29, "none"}, {29, "linear"}, {29, "ntk"}, {29, "yarn"}};
  for (auto [T, scaling] : cases) {
    Config config = small_config("fp32", {std::string("eval.rope_scaling=") + scaling});
    auto model = evaluated_model(config, 2 * 29, 29, 100);
    std::vector<int> tokens = random_ints(2 * T + 1, 5, 61), inputs(tokens.begin(), tokens.end() - 1),
                     targets(tokens.begin() + 1, tokens.end());
    ReferenceModel<Exact> exact(config);
    ReferenceModel<Naive<float>> naive(config);
    exact.take_parameters(*model);
    naive.take_parameters(*model);
    exact.forward(inputs, targets, 2, T);
    naive.forward(inputs, targets, 2, T);
    std::vector<float> losses(2 * T, NAN);
    model->set_length(T);
    model->losses(losses.data(), inputs.data(), targets.data(), 2, T);
    expect_close(format("losses, T = %d, RoPE's scaling %s", T, scaling), losses, exact.losses, naive.losses,
                 unit_roundoff<float>);
  }
}

std::vector<DataFile> files_of(const std::vector<Shard>& shards) {
  std::vector<DataFile> files;
  for (const Shard& shard : shards)
    files.push_back({std::filesystem::path(shard.path).filename().string(), shard.tokens, "sum " + shard.path});
  return files;
}

// The losses of a window, [reader.T()], computed alone.
std::vector<float> losses_of(Model& model, const WindowReader& reader, int64_t window) {
  int L = reader.T();
  std::vector<int> inputs(L), targets(L);
  std::vector<float> losses(L);
  reader.read(window, inputs.data(), targets.data());
  model.set_length(L);
  model.losses(losses.data(), inputs.data(), targets.data(), 1, L);
  return losses;
}

// The protocol: windows, spread and tail, from the losses of every window one by one; independent of the evaluation
// batch, of which the last is short.
TEST_F(Evaluation, FollowsTheProtocol) {
  std::vector<Shard> shards = shards_of({150, 75});
  for (std::string batch : {"1", "3"}) {
    Config config = small_config("fp32", {"eval.batch=" + batch});
    const int L = 40;
    auto model = evaluated_model(config, eval_rows(config, {L}), L);
    WindowReader reader(shards, L, 61);
    ASSERT_EQ(reader.windows(), 3 + 1);  // (150 - 1) / 40 and (75 - 1) / 40
    for (int64_t tokens : {1000, 85, 40}) {
      EvalReport result = *evaluate(*model, shards, L, tokens);
      int64_t windows = std::min<int64_t>(4, tokens / L);
      std::vector<double> position(L, 0);
      double mean = 0, squares = 0;
      for (int64_t w = 0; w < windows; w++) {
        std::vector<float> losses = losses_of(*model, reader, w);
        for (int t = 0; t < L; t++) position[t] += double(losses[t]) / double(windows);
        double window = std::accumulate(losses.begin(), losses.end(), 0.0) / L;
        mean += window / double(windows), squares += window * window;
        EXPECT_NEAR(result.window_losses[w], window, 1e-6 * window);
      }
      EXPECT_EQ(result.windows, windows);
      EXPECT_EQ(result.tokens, windows * L);
      EXPECT_EQ(result.window_losses.size(), size_t(windows));
      EXPECT_NEAR(result.loss, mean, 1e-6 * mean);
      EXPECT_NEAR(result.last_loss, mean, 1e-6 * mean);  // the last min(1024, 40)
      // If no window errs by more than e, the square root of the summed squares errs by at most e sqrt(windows).
      double error = std::sqrt((squares / double(windows) - mean * mean) / double(windows - 1));
      if (windows > 1) EXPECT_NEAR(result.standard_error, error, 1e-6 * mean);
      else EXPECT_TRUE(std::isnan(result.standard_error));
      std::vector<DataFile> used = files_of(shards);
      if (windows <= 3) used.pop_back();
      EXPECT_EQ(files_of(eval_windows(config, -1, shards, L, tokens), shards, files_of(shards)), used);
      for (size_t i = 0; i < result.by_position.size(); i++) {
        int from = result.position_edges[i], to = result.position_edges[i + 1];
        double sum = std::accumulate(&position[from], position.data() + to, 0.0);
        EXPECT_NEAR(result.by_position[i], sum / (to - from), 1e-5);
      }
    }
    EXPECT_THROW(evaluate(*model, shards, L, 39), UserError);
    EXPECT_THROW(evaluate(*model, {shards[0]}, 150, 1000), UserError);  // the last target is outside
  }
}

TEST_F(Evaluation, BinsAndTailOfLongWindows) {
  Config config = small_config("fp32", {"model.layers=1"});
  const int L = 1200;
  auto model = evaluated_model(config, L, L);
  std::vector<Shard> shards = shards_of({1201});
  EvalReport result = *evaluate(*model, shards, L, L);
  std::vector<float> losses = losses_of(*model, WindowReader(shards, L, 61), 0);
  auto mean = [&](int from, int to) {
    return std::accumulate(losses.begin() + from, losses.begin() + to, 0.0) / (to - from);
  };
  EXPECT_NEAR(result.last_loss, mean(L - 1024, L), 1e-5);
  auto same =
      evaluated_model(small_config("fp32", {"model.layers=1", "eval.mode=suffix", "eval.lengths=1200,1030"}), L, L);
  EXPECT_EQ(evaluate(*same, shards, L, L)->loss, result.last_loss);
  const std::vector<int> edges = {0,   1,   2,   3,   4,   5,   6,   7,   8,   9,   10,  11,  12,   13,   15,  16,  17,
                                  19,  21,  23,  25,  27,  29,  32,  35,  38,  41,  45,  49,  54,   59,   64,  70,  76,
                                  83,  91,  99,  108, 117, 128, 140, 152, 166, 181, 197, 215, 235,  256,  279, 304, 332,
                                  362, 395, 431, 470, 512, 558, 609, 664, 724, 790, 861, 939, 1024, 1117, 1200};
  EXPECT_EQ(result.position_edges, edges);
  ASSERT_EQ(result.by_position.size(), edges.size() - 1);
  for (size_t i = 0; i + 1 < edges.size(); i++)
    EXPECT_NEAR(result.by_position[i], mean(edges[i], edges[i + 1]), 1e-5) << i;
}

TEST_F(Evaluation, EdgesOfShortWindows) {
  Config config = small_config("fp32");
  auto model = evaluated_model(config, 3 * 29, 29);
  std::vector<Shard> shards = shards_of({100});
  auto edges = [&](int L) { return evaluate(*model, shards, L, L)->position_edges; };
  EXPECT_EQ(edges(1), (std::vector<int>{0, 1}));
  EXPECT_EQ(edges(2), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(edges(14), (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}));
  EXPECT_EQ(edges(15), (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15}));
}

// The same last targets at every length, from the losses of every window one by one; the last batch is short.
TEST_F(Evaluation, SuffixesAreOfTheSameTargets) {
  std::vector<Shard> shards = shards_of({150, 75});
  const int W = 29, S = 8, windows = 5 + 2;  // (150 - 1) / 29 and (75 - 1) / 29
  WindowReader reader(shards, W, 61);
  for (std::string batch : {"1", "3"}) {
    Config config = small_config("fp32", {"eval.mode=suffix", "eval.lengths=13,8,29", "eval.batch=" + batch});
    auto model = evaluated_model(config, eval_rows(config, config.eval.lengths), W);
    for (int L : config.eval.lengths) {
      EvalReport result = *evaluate(*model, shards, L, 1000);
      std::vector<double> expected;
      for (int w = 0; w < windows; w++) {
        std::vector<int> inputs(W), targets(W);
        std::vector<float> losses(L);
        reader.read(w, inputs.data(), targets.data());
        model->set_length(L);
        model->losses(losses.data(), &inputs[W - L], &targets[W - L], 1, L);
        expected.push_back(std::accumulate(losses.end() - S, losses.end(), 0.0) / S);
      }
      ASSERT_EQ(result.by_window.size(), size_t(windows));
      for (int w = 0; w < windows; w++) EXPECT_NEAR(result.by_window[w], expected[w], 1e-6 * expected[w]) << L;
      double mean = std::accumulate(expected.begin(), expected.end(), 0.0) / windows;
      EXPECT_NEAR(result.loss, mean, 1e-6 * mean);
      EXPECT_EQ(std::vector<int64_t>({result.length, result.windows, result.tokens}),
                std::vector<int64_t>({L, windows, windows * S}));
    }
    EXPECT_THROW(evaluate(*model, shards, S, W - 1), UserError);
    std::vector<Shard> cut = shards;
    cut[0].tokens = cut[1].tokens = W;  // the last target of a window is outside
    EXPECT_THROW(evaluate(*model, cut, S, 1000), UserError);
  }
}

// Windows of documents, placed by hand, against the float64 reference: those as long as the window, from their first
// token, in both modes and beyond the trained length.
TEST_F(Evaluation, WindowsOfDocuments) {
  std::vector<int> a = random_ints(100, 1, 60), b = random_ints(60, 2, 60);
  for (int at : {0, 5, 34, 46}) a[at] = 60;  // documents of 5, 29, 12 and 54 tokens
  for (int at : {11, 40}) b[at] = 60;        // the end of one; 29 and 20, the last without a target for the 20th
  add("a.bin", a), add("b.bin", b);
  std::vector<Shard> shards = open({"a.bin", "b.bin"}, 61);
  struct {
    int length;
    const char* mode;
    int64_t tokens;
    std::vector<std::pair<std::vector<int>*, int>> places;
    int64_t too_short;
  } cases[] = {{29, "windows", 1000, {{&a, 5}, {&a, 46}, {&b, 11}}, 3},
               {12, "windows", 1000, {{&a, 5}, {&a, 34}, {&a, 46}, {&b, 11}, {&b, 40}}, 1},
               {12, "windows", 24, {{&a, 5}, {&a, 34}}, 1},
               {20, "windows", 1000, {{&a, 5}, {&a, 46}, {&b, 11}}, 3},
               {40, "windows", 1000, {{&a, 46}}, 5},
               {12, "suffix", 1000, {{&a, 5}, {&a, 46}, {&b, 11}}, 3},
               {29, "suffix", 1000, {{&a, 5}, {&a, 46}, {&b, 11}}, 3}};
  for (const auto& [L, mode, tokens, places, too_short] : cases) {
    Config config = small_config(
        "fp32", {"eval.start=document", std::string("eval.mode=") + mode, "eval.batch=2", "eval.lengths=12,29"});
    config.data.separator = 60;
    auto model = evaluated_model(config, 2 * 40, 40, 100);
    int W = config.eval.window(L), S = config.eval.targets(L), count = int(places.size());
    std::vector<int> inputs, targets;
    for (auto& [shard, first] : places) {
      EXPECT_EQ((*shard)[first], 60);
      auto begin = shard->begin() + first + W - L;
      inputs.insert(inputs.end(), begin, begin + L), targets.insert(targets.end(), begin + 1, begin + L + 1);
    }
    ReferenceModel<Exact> exact(config);
    exact.take_parameters(*model);
    exact.forward(inputs, targets, count, L);
    EvalReport result = *evaluate(*model, shards, L, tokens);
    EXPECT_EQ(std::vector<int64_t>({result.windows, result.tokens, result.too_short}),
              std::vector<int64_t>({count, count * S, too_short}));
    double mean = 0;
    for (int w = 0; w < count; w++) {
      auto end = exact.losses.begin() + (w + 1) * L;
      double expected = std::accumulate(end - S, end, 0.0) / S;
      EXPECT_NEAR(result.by_window[w], expected, 1e-5 * expected) << mode << " " << L;
      mean += expected / count;
    }
    EXPECT_NEAR(result.loss, mean, 1e-5 * mean) << mode << " " << L;
    EXPECT_EQ(files_of(eval_windows(config, 60, shards, L, tokens), shards, files_of(shards)).size(),
              places.back().first == &a ? 1u : 2u);
  }
  Config config = small_config("fp32", {"eval.start=document"});
  for (int end_of_text : {60, -1}) {
    expect_user_error([&] { eval_windows(config, end_of_text, shards, end_of_text < 0 ? 12 : 55, 1000); },
                      {"eval.start = document", end_of_text < 0 ? "not known" : "60, and are of one document",
                       "eval.start=any, or a shorter length"});
  }
}

// Shares of targets that have the largest float64 logit, of windows and positions, with labels on some rows: the
// likeliest token, the second, or none. A window without labels is left out.
TEST_F(Evaluation, AccuracyMatchesTheReference) {
  const int L = 20, WINDOWS = 7;
  for (const char* mean : {"batch", "sequence"}) {
    Config config = small_config("fp32", {std::string("train.label_mean=") + mean, "eval.batch=2"});
    auto model = evaluated_model(config, 2 * L, L, 100);
    std::vector<int> tokens = random_ints(WINDOWS * L + 1, 5, 61), inputs(tokens.begin(), tokens.end() - 1);
    ReferenceModel<Exact> exact(config);
    exact.take_parameters(*model);
    exact.forward(inputs, inputs, WINDOWS, L);
    std::vector<uint16_t> labels(tokens.size(), 65535);
    std::vector<double> found(WINDOWS, 0), right(WINDOWS, 0), found_at(L, 0), right_at(L, 0);
    for (int row = 0; row < WINDOWS * L; row++) {
      int window = row / L, t = row % L;
      if (window == 3 || (row * 7 % 5 == 0 && window != 2)) continue;
      auto first = exact.logits.begin() + row * 61;
      std::vector<int> order = numbers(61);
      std::sort(order.begin(), order.end(), [&](int i, int j) { return first[i] > first[j]; });
      ASSERT_GT(first[order[0]] - first[order[1]], 1e-5);  // float32 has the same order
      bool is_right = window == 2 || window == 5 || row % 3 > 0;
      labels[row] = uint16_t(order[!is_right]);
      found[window]++, right[window] += is_right;
      found_at[t]++, right_at[t] += is_right;
    }
    std::string file = add_labels("labels", labels);
    add("val.bin", tokens);
    std::vector<Shard> shards = open({"val.bin"}, 61);
    open_labels(shards, {file}, 61, 0, "data.val_labels");
    EvalReport result = *evaluate(*model, shards, L, WINDOWS * L);
    double sum = 0, squares = 0, exact_windows = 0, all = 0, of_all = 0, n = WINDOWS - 1;
    for (int w = 0; w < WINDOWS; w++) {
      if (w == 3) continue;
      double share = right[w] / found[w];
      sum += share, squares += share * share, exact_windows += share == 1;
      all += found[w], of_all += right[w];
    }
    bool by_window = config.train.label_mean == LabelMean::sequence;
    EXPECT_EQ(result.windows, n);
    EXPECT_DOUBLE_EQ(result.accuracy.mean, by_window ? sum / n : of_all / all);
    double weighed = 0;  // of labels: each window's labels times how far its share is from that of all
    for (int w = 0; w < WINDOWS; w++) weighed += std::pow(right[w] - of_all / all * found[w], 2);
    EXPECT_NEAR(result.accuracy.standard_error,
                by_window ? std::sqrt((squares - sum * sum / n) / (n - 1) / n) : std::sqrt(weighed * n / (n - 1)) / all,
                1e-9);
    EXPECT_DOUBLE_EQ(result.exact.mean, exact_windows / n);
    EXPECT_NEAR(result.exact.standard_error, share_error(exact_windows / n, n), 1e-12);
    EXPECT_GE(exact_windows, 2);
    ASSERT_EQ(result.position_edges[1], 1);
    if (!by_window) {
      EXPECT_NEAR(result.accuracy_by_position[0], right_at[0] / found_at[0], 1e-12);
    }
    EXPECT_EQ(result.accuracy_by_position.size(), result.by_position.size());
  }
}

// Means of groups that differ by at most one window, in order, with every window in one of them.
TEST_F(Evaluation, GroupsOfWindows) {
  const int L = 2;
  Config config = small_config("fp32", {"model.layers=1", "eval.batch=64"});
  auto model = evaluated_model(config, 64 * L, L);
  std::vector<Shard> shards = shards_of({1000 * L + 1});
  std::vector<double> single;
  for (int w = 0; w < 1000; w++) {
    std::vector<float> losses = losses_of(*model, WindowReader(shards, L, 61), w);
    single.push_back((double(losses[0]) + losses[1]) / 2);
  }
  for (int windows : {1, 255, 256, 257, 1000}) {
    EvalReport result = *evaluate(*model, shards, L, windows * L);
    size_t groups = std::min(windows, 256);
    ASSERT_EQ(result.window_losses.size(), groups);
    size_t at = 0;
    for (size_t g = 0; g < groups; g++) {
      size_t end = (g + 1) * windows / groups, first = at;
      double sum = 0;
      for (; at < end; at++) sum += single[at];
      EXPECT_NEAR(result.window_losses[g], sum / double(end - first), 1e-5) << windows << " " << g;
    }
    EXPECT_EQ(at, size_t(windows));
  }
}

TEST_F(Evaluation, BitsPerByteNeedTheBytesOfAllShardsUsed) {
  Config config = small_config("fp32");
  const int L = 40;
  auto model = evaluated_model(config, 2 * L, L);
  std::vector<Shard> shards = shards_of({41, 30, 61});  // the second is too short
  auto report = [&](int64_t tokens) { return *evaluate(*model, shards, L, tokens); };
  EXPECT_TRUE(std::isnan(report(40).bits_per_byte));
  shards[0].text_bytes = 100;
  EvalReport one = report(40), two = report(80);
  EXPECT_DOUBLE_EQ(one.bits_per_byte, one.loss / std::log(2.0) * 41 / 100);
  EXPECT_EQ(two.windows, 2);
  EXPECT_TRUE(std::isnan(two.bits_per_byte));
  shards[2].text_bytes = 500;
  two = report(80);
  EXPECT_DOUBLE_EQ(two.bits_per_byte, two.loss / std::log(2.0) * (41 + 61) / 600);
  std::vector<DataFile> used = files_of(eval_windows(config, -1, shards, L, 80), shards, files_of(shards));
  ASSERT_EQ(used.size(), 2u);
  EXPECT_EQ(used[1].name, "val_2.bin");
}

TEST(EvalLines, AreAsDocumented) {
  TempDir dir;
  MetricsLog log(dir / "m");
  Config config = small_config("fp32", {"eval.tokens=9000", "eval.rope_scaling=yarn"});
  EvalReport report;
  report.length = 1024;
  write_line(config, {"x", "runs/x", 250}, log, "val", {{{"length", 1024}, {"of", {{"data", {}}}}}, "01", "02"},
             report);
  report.loss = 0.5, report.standard_error = 0.25, report.bits_per_byte = 2, report.last_loss = 0.75;
  report.perplexity = 1.5;
  report.tokens = 4096, report.windows = 2;
  report.position_edges = {0, 1, 2, 1024};
  report.by_position = {1, NAN, 1.23456789};
  report.accuracy = {0.375, 0.125}, report.exact = {0, NAN};
  report.accuracy_by_position = {0.5, NAN, 1 / 3.0};
  report.window_losses = {1.0000004, 2.0000006};
  write_line(config, {"x", "runs/x/step_00001000", 1000, 64000, "03"}, log, "eval",
             {{{"of", {{"windows", 3}}}}, "", ""}, report);
  report = {};
  report.length = 1024, report.difference = {512, -0.25, NAN};
  config.eval.mode = EvalMode::suffix, config.eval.lengths = {512, 1024, 4096};
  write_line(config, {"", "random"}, log, "eval",
             {{{"context_of", 4096}, {"of", nlohmann::ordered_json::object()}}, "", ""}, report);
  EXPECT_EQ(
      std::regex_replace(bytes_of(dir / "m"), std::regex(R"re("time":[\d.]+)re"), "\"time\":0"),
      R"({"type":"val","time":0,"id":"01","step":250,"tokens":0,"weights":{"run":"x","path":"runs/x"},"series":"02",)"
      R"("length":1024,"of":{"data":null,"tokens_asked":9000,"tokens":0,"windows":0},)"
      R"("loss":0.0,"stderr":null,"perplexity":null,"bits_per_byte":null,)"
      R"("accuracy":null,"accuracy_stderr":null,"exact":null,"exact_stderr":null,"last_loss":0.0,)"
      R"("position_edges":[],"by_position":[],"accuracy_by_position":[],"window_losses":[]})"
      "\n"
      R"({"type":"eval","time":0,"id":"","step":1000,"tokens":64000,)"
      R"("weights":{"run":"x","path":"runs/x/step_00001000","xxh64":"03"},"series":"",)"
      R"("of":{"windows":2,"tokens_asked":9000,"tokens":4096},)"
      R"("loss":0.5,"stderr":0.25,"perplexity":1.5,"bits_per_byte":2.0,)"
      R"("accuracy":0.375,"accuracy_stderr":0.125,"exact":0.0,"exact_stderr":null,"last_loss":0.75,)"
      R"("position_edges":[0,1,2,1024],"by_position":[1.0,null,1.234568],)"
      R"("accuracy_by_position":[0.5,null,0.333333],"window_losses":[1.0,2.000001]})"
      "\n"
      R"({"type":"eval","time":0,"id":"","step":0,"tokens":0,"weights":{"run":"","path":"random"},"series":"",)"
      R"("context_of":4096,"of":{"tokens_asked":9000,"tokens":0,"windows":0},)"
      R"("loss":0.0,"stderr":null,"perplexity":null,"bits_per_byte":null,)"
      R"("accuracy":null,"accuracy_stderr":null,"exact":null,"exact_stderr":null,)"
      R"("difference":{"from":512,"loss":-0.25,"stderr":null},"window_losses":[]})"
      "\n");
}

TEST(ShareError, IsThatOfTheMeanOfItsValues) {
  EXPECT_DOUBLE_EQ(share_error(0.25, 4), std::sqrt((0.75 * 0.75 + 3 * 0.25 * 0.25) / 3 / 4));
  EXPECT_EQ(share_error(1, 9), 0);
  EXPECT_TRUE(std::isnan(share_error(1, 1)));
}

// ---- generation

TEST(Generation, LogitsBelongToTheLastToken) {
  Config config = small_config("fp32");
  auto model = evaluated_model(config, 11, 11, 9);
  std::vector<int> tokens = random_ints(12, 4, 61);
  std::vector<float> losses(11), logits(61);
  model->losses(losses.data(), tokens.data(), tokens.data() + 1, 1, 11);
  for (int count = 1; count <= 11; count++) {
    next_token_logits(*model, logits.data(), tokens.data(), count);
    double sum = 0;
    for (float x : logits) sum += std::exp(double(x));
    EXPECT_NEAR(std::log(sum) - logits[tokens[count]], losses[count - 1], 1e-5) << count;
  }
}

TEST(Generation, SamplingFollowsTheDistribution) {
  const float logits[] = {0, 1, 2, -50};
  EXPECT_EQ(sample(logits, 4, 0, 0, 0.999), 2);  // temperature 0: the likeliest
  EXPECT_EQ(sample(logits, 4, 1, 1, 0.999), 2);
  EXPECT_EQ(sample(logits, 4, 1, 2, 0.999), 1);  // of the top two, likeliest first: e^2 / (e + e^2) = 0.731
  EXPECT_EQ(sample(logits, 4, 1, 2, 0.730), 2);
  EXPECT_EQ(sample(logits, 4, 1, 2, 0.732), 1);
  EXPECT_EQ(sample(logits, 4, 1, 0, 0.0), 0);
  EXPECT_EQ(sample(logits, 4, 1, 0, 0.0899), 0);  // 1 / (1 + e + e^2) = 0.0900
  EXPECT_EQ(sample(logits, 4, 1, 0, 0.0901), 1);
  EXPECT_EQ(sample(logits, 4, 1, 0, 0.9999999), 2);
  EXPECT_EQ(sample(logits, 4, 1e-3, 0, 0.5), 2);
}

TEST(Generation, SameSeedSameTextBeyondTheContext) {
  Config config = small_config("fp32", {"model.vocab=256", "generate.tokens=30", "generate.prompt=ab"});
  auto model = evaluated_model(config, 11, 11, 9);
  auto tokenizer = open_tokenizer(TokenizerKind::bytes, "");
  auto text = [&](uint64_t seed) {
    std::string all;
    generate(*model, *tokenizer, config.generate, seed, [&](const std::string& piece) { all += piece; });
    return all;
  };
  EXPECT_EQ(text(1), text(1));
  EXPECT_NE(text(1), text(2));
  EXPECT_EQ(text(1).size(), 32u);
  EXPECT_EQ(text(1).substr(0, 2), "ab");
  Config small = small_config("fp32", {"generate.prompt=z"});
  auto other = make_model(small, 11, 11, false);
  EXPECT_THROW(generate(*other, *tokenizer, small.generate, 1, [](const std::string&) {}),
               UserError);  // "z" is 122, the vocabulary 61
}

}  // namespace
