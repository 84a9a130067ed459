// Validation loss by length, the measurement for which this program was written.
// Windows of W tokens do not overlap and never cross a shard's end; they are taken in order, through the shards in
// order, until floor(tokens / W) are used (fewer if the shards end). With eval.start = document a window is the first W
// tokens of a document, with the separator, which begins it; documents of fewer tokens are left out, and the last
// target may be the next document's beginning. The model sees the last L tokens of each, and the loss is the mean
// cross-entropy, in nats, over the last S targets. With eval.mode = windows, W = S = L. With suffix, W is the longest
// of eval.lengths and S = min(1024, the shortest), so the losses at all lengths are of the same targets, and only the
// context grows. With data.val_labels only targets that are labels count, by train.label_mean, and windows with none
// are left out; if all are, that is a user_error. A loss does not depend on the number of windows computed at once.
// Ranks take batches of windows in turn, and all get the result.
#pragma once
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "data/shards.h"
#include "eval/eval_context.h"

// Validation loss at one length L, and what was evaluated.
struct EvalReport {
  int length = 0;               // L
  double loss = 0;              // mean over all targets
  double perplexity = NAN;      // of tokens; NaN for squared errors
  double standard_error = NAN;  // of the loss, from the spread of the windows; NaN for a single window
  double bits_per_byte = NAN;   // of the text; NaN if its bytes are unknown
  double last_loss = 0;         // mean over the last min(1024, L) targets of every window
  struct Share {                // with a standard error like that of the loss; NaN with a regression head
    double mean = NAN, standard_error = NAN;
  } accuracy, exact;  // of the targets that are the likeliest token, of equal ones the first; of the windows of such
  struct {            // of mode "suffix": the loss less that of the same targets at the shortest length
    int from = 0;
    double loss = 0, standard_error = NAN;
  } difference;
  std::string tokenizer;                     // that made the shards, as text; "": unknown
  int separator = -1;                        // the token between documents
  int64_t too_short = 0;                     // documents that were left out
  int64_t tokens = 0, windows = 0;           // targets used, with labels those that have one; windows with such targets
  std::vector<int> position_edges;           // 0 .. L: bin i has the positions from edge i to before edge i + 1
  std::vector<double> by_position;           // [edges - 1], mean loss in each bin
  std::vector<double> accuracy_by_position;  // the same of accuracy
  std::vector<double> by_window;             // [windows], mean loss of each; not written
  std::vector<double> weights;               // [windows], of each in the loss: its targets, or 1; not written
  std::vector<double> window_losses;         // [G = min(windows, 256)], mean of windows g W / G to before (g + 1) W / G
  std::vector<double> group_weights;         // [G], their sums of weights
};

// A user_error if the shards or `tokens` hold less than one window. length: in mode suffix, one of eval.lengths. The
// model must have been made for at least eval_rows(config, {length}) rows.
std::optional<EvalReport> evaluate(Model& model, const std::vector<Shard>& shards, int length, int64_t tokens,
                                   const Stop& stop = {});

// Windows of validation text.
struct EvalWindows {
  WindowReader reader;
  int64_t count;          // the first ones, that are used
  int64_t too_short = 0;  // documents up to the last of these, that are left out
};

// The windows at this length, for a check before a run begins too: the same user_errors.
EvalWindows eval_windows(const Config& config, int separator, const std::vector<Shard>& shards, int length,
                         int64_t tokens);

// Those of `window` tokens, as many as `tokens` holds. key: of the setting that is `start`. within: those that begin
// with a document also end in it. A user_error if there are none.
EvalWindows windows_of(const Config& config, int separator, const std::vector<Shard>& shards, const char* key,
                       WindowStart start, bool within, int window, int64_t tokens);

// The files that these windows come from: of shards, then of their labels. files: those of all shards, likewise.
std::vector<DataFile> files_of(const EvalWindows& windows, const std::vector<Shard>& shards,
                               const std::vector<DataFile>& files);

// How many windows of this length evaluate() computes at once.
int batch_of(const Config& config, int separator, const std::vector<Shard>& shards, int length);

// Reads the last `length` tokens of `count` windows into inputs and targets [batch, length] and, where labels are
// values, `values`. The rest of the batch is filled with the last window, so that all batches have one size.
void read_batch(const WindowReader& reader, int64_t first, int count, int length, std::vector<int>& inputs,
                std::vector<int>& targets, float* values);

// The most rows (windows x length) that are evaluated at once.
size_t eval_rows(const Config& config, const std::vector<int>& lengths);
int window_batch(const Config& config, int length);  // windows of this length, as far as eval.tokens holds them
// How many prompts of this length are computed at once, however many there are: at most 64, whose logits fit the host's
// memory.
int prompt_batch(const Config& config, int length);

// Evaluates at each of the lengths, prints the losses, and writes them as lines of this type ("val" or "eval"). In mode
// suffix, the shortest of eval.lengths comes first, for the differences to it; if it is not among `lengths`, it is not
// written. Returns whether all losses are finite. If it is stopped, a resumed run evaluates the missing lengths.
bool evaluate_lengths(const EvalContext& context, const std::vector<Shard>& shards, const std::vector<DataFile>& files,
                      const std::vector<int>& lengths, const char* type);
// What the losses at a length depend on besides the weights: the fields of their line that say it, and evaluation_id()
// of these. series: that of what the lengths of one evaluation share.
struct LossQuestion {
  nlohmann::ordered_json fields;
  std::string id, series;
};
LossQuestion loss_question(const Config& config, int separator, const std::vector<Shard>& shards,
                           const std::vector<DataFile>& files, int length);
void write_line(const Config& config, const WeightsOrigin& origin, MetricsLog& metrics, const char* type,
                const LossQuestion& question, const EvalReport& report);

// Writes a file that the setting `key` names. A user_error if it exists or cannot be created.
void write_new_file(const Config& config, const char* key, const std::string& path, const std::string& text);
