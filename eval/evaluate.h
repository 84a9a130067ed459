// Validation loss by length, the measurement for which this program was written.
// Windows of W tokens do not overlap and never cross a shard's end; they are taken in order, through the shards in
// order, until floor(tokens / W) are used (fewer if the shards end). The model sees the last L tokens of each, and the
// loss is the mean cross-entropy, in nats, over the last S targets. With eval.mode = windows, W = S = L. With suffix, W is
// the longest of eval.lengths and S = min(1024, the shortest), so the losses at all lengths are of the same targets, and
// only the context grows. With data.val_labels only targets that are labels count, by train.label_mean, and windows with
// none are left out; if all are, that is a user_error. A loss does not depend on the number of windows computed at once.
// Ranks take batches of windows in turn, and all get the result.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "checkpoint/metrics.h"
#include "data/shards.h"
#include "train_gpt2.h"

// files: the names and checksums of the shards, for the report, whose weights the caller fills in. A user_error if the
// shards or `tokens` hold less than one window. length: in mode suffix, one of eval.lengths. The model must have been made
// for at least eval_rows(config, {length}) rows. stop, if given, is called before every batch, equally often on every
// rank, and must return the same on all: true ends the evaluation without a result.
std::optional<EvalReport> evaluate(Model& model, const std::vector<Shard>& shards, const std::vector<DataFile>& files,
                                   int length, int64_t tokens, const std::function<bool()>& stop = {});

// Makes every matrix product of evaluate() with these arguments at least once, on each rank, and discards the results.
void make_products_of_evaluate(Model& model, const std::vector<Shard>& shards, int length, int64_t tokens);

// The number of windows of this length that will be evaluated. The same user_errors, for a check before a run begins.
int64_t check_windows(const Config& config, const std::vector<Shard>& shards, int length, int64_t tokens);

// Divides `windows` windows among the ranks and calls f(first, count) for each batch of this rank, in order, with the
// rotations of this length; count is `batch`, or less in a last batch. what: titles the progress bar. stop: as for
// evaluate(); returns false if it ended the loop.
bool for_batches_of_rank(Model& model, const std::string& what, int length, int64_t windows, int batch,
                         const std::function<bool()>& stop, const std::function<void(int64_t first, int count)>& f);

// Reads the last `length` tokens of `count` windows into inputs and targets [batch, length] and, where labels are
// values, `values`. The rest of the batch is filled with the last window, so that all batches have one size.
void read_batch(const WindowReader& reader, int64_t first, int count, int length, std::vector<int>& inputs,
                std::vector<int>& targets, float* values);

// The most rows (windows x length) that are evaluated at once.
size_t eval_rows(const Config& config, const std::vector<int>& lengths);
// How many prompts of this length are computed at once, however many there are: at most 64, whose logits fit the host's
// memory.
int prompt_batch(const Config& config, int length);

// Evaluates at each of the lengths, prints the losses, and writes them as lines of this type ("val" or "eval"). In mode
// suffix, the shortest of eval.lengths comes first, for the differences to it; if it is not among `lengths`, it is not
// written. Returns whether all losses are finite. stop: as for evaluate(); it ends this too, and a resumed run evaluates
// the lengths that are missing.
bool evaluate_lengths(Model& model, const std::vector<Shard>& shards, const std::vector<DataFile>& files,
                      const std::vector<int>& lengths, const char* type, const Weights& weights, MetricsLog& metrics,
                      const std::function<bool()>& stop = {});

// Writes a file that the setting `key` names. A user_error if it exists or cannot be created.
void write_new_file(const Config& config, const char* key, const std::string& path, const std::string& text);
