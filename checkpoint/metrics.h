// metrics.jsonl: what a run reports to programs, one JSON object per line; docs/metrics.md lists the fields. Each line
// is written immediately, by one call, so a killed process tears at most the last one. NaN and infinities become null
// (an exploded loss, an unknown mfu).
#pragma once
#include <cmath>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "checkpoint/checkpoint.h"

struct TrainReport {
  int64_t step, steps;  // 1 .. steps
  double loss;          // mean over the whole batch
  double grad_norm;     // before clipping
  double lr;
  int64_t tokens;  // from the beginning of the run
  double tokens_per_s;
  double mfu;  // 0 .. 1; NaN if the device's peak is unknown
  double ms;
};

// The weights that are evaluated.
struct Weights {
  std::string path;              // the folder of the run while it trains, of the checkpoint, of `init`; else "random"
  int64_t step = 0, tokens = 0;  // the updates they have had, and the tokens of these updates
};

// Validation loss at one length L, and what was evaluated.
struct EvalReport {
  EvalMode mode = EvalMode::windows;
  int length = 0;               // L
  int window = 0, targets = 0;  // the tokens of a window, of which the last L are seen, and its last targets that count
  double loss = 0;              // mean over all targets
  double perplexity = NAN;      // of tokens; NaN for squared errors
  double standard_error = NAN;  // of the loss, from the spread of the windows; NaN for a single window
  double bits_per_byte = NAN;   // of the text; NaN if its bytes are unknown
  double last_loss = 0;         // mean over the last min(1024, L) targets of every window
  struct {                      // of mode "suffix": the loss less that of the same targets at the shortest length
    int from = 0;
    double loss = 0, standard_error = NAN;
  } difference;
  Weights weights;
  std::vector<DataFile> data;       // the shards that the windows come from
  int64_t tokens_asked = 0;         // eval.tokens
  int64_t tokens = 0, windows = 0;  // targets used, with labels those that have one; windows with such targets
  std::string rope_scaling;
  int keys_window = 0, sink_tokens = 0;  // eval.window and eval.sink_tokens, at this length; written if there is one
  std::vector<int> position_edges;       // 0 .. L: bin i has the positions from edge i to before edge i + 1
  std::vector<double> by_position;       // [edges - 1], mean loss in each bin
  std::vector<double> by_window;         // [windows], mean loss of each; not written
  std::vector<double> window_losses;     // [G = min(windows, 256)], mean of windows g W / G to before (g + 1) W / G
};

// What --passkey measured at one length. The lists are by depth of the key; eval/passkey.h says what they are.
struct PasskeyReport {
  Weights weights;
  std::string form;                              // landmark | compact
  int length = 0;                                // tokens
  int window = 0, sink_tokens = 0;               // of attention at this length; written if there is one
  int trials = 0;                                // at each depth
  std::vector<double> depths, exact, nll, rank;  // means over the trials
  std::vector<double> distance;                  // mean tokens from the last mention of the key to the answer
  double control = 0;                            // the share of exact answers without the line with the key
  double standard_error = 0;                     // of the mean of exact over all depths
};

// What one benchmark measured; eval/benchmarks.h says what the accuracies are.
struct BenchmarkReport {
  Weights weights;
  std::string task, checksum;  // of its file
  int64_t examples = 0;
  int max_length = 0;
  int64_t cut = 0;  // completions whose context was shortened to fit max_length
  double acc = 0, acc_norm = 0, acc_bytes = 0, acc_norm_tokens = 0;  // shares; NaN where the file lacks the lengths
  double standard_error = 0;                                         // of acc; NaN for a single example
  double margin = 0;  // mean of the right completion's log-likelihood per character minus that of the best wrong one
  double chance = 0;  // mean of 1 / completions
};

class MetricsLog {
 public:
  MetricsLog() = default;                        // writes nothing
  explicit MetricsLog(const std::string& path);  // appends; a torn last line is dropped first
  // commit: of this build. config: the resolved settings. versions: {"cuda", "12.4"}, ... parameters, flops_per_token:
  // of the model, the operations those of training.
  void start(const std::string& commit, const std::string& command, const nlohmann::ordered_json& config,
             const std::string& device, const std::vector<std::pair<std::string, std::string>>& versions,
             int64_t parameters, double flops_per_token);
  void train(const TrainReport& report);
  void evaluation(const char* type, const EvalReport& report);          // type: "val" while training, "eval" by --eval
  void skip(int64_t step, const std::string& reason, int64_t skipped);  // skipped: updates skipped in the whole run
  void passkey(const PasskeyReport& report);
  void task(const BenchmarkReport& report);
  // A line of any other type; fields begin with the step.
  void write(int64_t step, const char* type, const nlohmann::ordered_json& fields);
  // Called if a line cannot be written, with its step and the reason; must throw. Unset: the failure itself.
  std::function<void(int64_t step, const std::string& error)> failed;

 private:
  File file_;
};

// Before a run resumes from `step`: removes what was written while training after it (train, val, skip, groups,
// diagnostics and task lines), which will be written again, and a torn last line. What was asked of checkpoints stays.
// A reader finds the old file or the new one, never a part.
void rewind_metrics(const std::string& path, int64_t step);
// The lengths with a val line of this step whose mode, window and targets are these settings'.
std::set<int> evaluated_lengths(const std::string& path, int64_t step, const Config::Eval& eval);
// The lengths with a diagnostics line of this step that was written while training.
std::set<int> diagnosed_lengths(const std::string& path, int64_t step);
// The same of benchmarks.
std::set<std::string> evaluated_benchmarks(const std::string& path, int64_t step);
