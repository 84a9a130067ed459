// Batches of windows in one fixed order, prepared ahead by a background thread.
// Optimizer step s, micro step m of M, rank r of R, row b of B takes window number ((s M + m) R + r) B + b. Numbers
// beyond the total continue in the next epoch. Unshuffled, number n is window n modulo the total; shuffled, each epoch
// has its own permutation drawn from (seed, epoch): a bijection computed in integers and in constant memory, so the
// order is the same on every machine and seeking any step takes no longer. A batch larger than all the data wraps
// around.
// With labels, the row_weights of a batch say what each of its rows counts in the loss of the whole step, of all ranks:
// 1 if all rows of the step have a label, 0 for a row without. label_mean batch: all labels weigh the same; sequence:
// all windows that have any do, and within a window its labels.
// An error in the thread (a token beyond the vocabulary, a truncated file) is thrown by next().
#pragma once
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "data/shards.h"

struct LoaderSettings {
  int T = 0;            // tokens of a window, as in the WindowReader
  int micro = 1;        // B, rows of a micro batch
  int micro_steps = 1;  // M, micro batches of an optimizer step on one rank
  int rank = 0, ranks = 1;
  bool shuffle = true;
  uint64_t seed = 0;
  int outputs = 0;           // K, the values of a label; 0: labels are tokens
  bool by_sequence = false;  // train.label_mean = sequence
};

struct Batch {
  int64_t step = 0;                  // the optimizer step,
  int micro_step = 0;                // and the micro step within it, that this batch is for
  std::vector<int> inputs, targets;  // [B, T]
  std::vector<float> values;         // [B, T, K] if labels are values, else empty
  std::vector<float> row_weights;    // [B, T] with labels, else empty
  bool labelled = true;              // whether any row of the step, of all ranks, is to predict something
};

// The window, 0 to total - 1, of this row of this rank's micro batch.
int64_t window_of(const LoaderSettings& settings, int64_t total, int64_t step, int micro_step, int row);

// A bijection of [0, total), drawn from (seed, epoch): returns where `position` is mapped to.
int64_t permute(int64_t position, int64_t total, uint64_t seed, int64_t epoch);

class Loader {
 public:
  Loader(WindowReader reader, const LoaderSettings& settings);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;
  void seek(int64_t step);  // next() then returns the first micro batch of this step; a new loader is at step 0
  const Batch& next();      // waits for the batch; valid until the following next() or seek()

 private:
  static constexpr int SLOTS = 3;  // one in use by the caller, one ready, one being filled
  void start(int64_t step);
  void stop();
  void run();
  void fill(Batch& batch, int64_t number);
  double weight_of_step(int64_t step);

  WindowReader reader_;
  LoaderSettings settings_;
  int64_t counted_step_ = -1;  // the step that step_weight_ is of; these two belong to the thread
  double step_weight_ = 0;
  int64_t first_step_ = 0;
  Batch batches_[SLOTS];
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  int64_t filled_ = 0, taken_ = 0;  // batches since first_step_
  bool stopping_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};
