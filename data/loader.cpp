#include "data/loader.h"

#include <algorithm>

#include "base/error.h"

namespace {

uint64_t mix(uint64_t x) {  // the finaliser of splitmix64: every output bit depends on every input bit
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

// The swap-or-not shuffle (Hoang, Morris and Rogaway, 2012): round i pairs every x with k_i - x modulo total and swaps
// the two or not by one random bit that both of them compute. It needs neither a power of two nor cycle walking, and
// O(log total) rounds make it a random permutation: 128 are plenty for any number of windows.
int64_t permute(int64_t position, int64_t total, uint64_t seed, int64_t epoch) {
  constexpr int ROUNDS = 128;
  constexpr uint64_t GOLDEN = 0x9e3779b97f4a7c15u;
  uint64_t n = total, key = mix(mix(seed + GOLDEN) + uint64_t(epoch) * GOLDEN + 1);
  uint64_t x = position;
  for (int round = 0; round < ROUNDS; round++) {
    uint64_t round_key = mix(key + (round + 1) * GOLDEN), k = round_key % n;
    uint64_t partner = k >= x ? k - x : k + n - x;
    if (mix(mix(round_key) + std::max(x, partner)) >> 63) x = partner;
  }
  return int64_t(x);
}

int64_t window_of(const LoaderSettings& s, int64_t total, int64_t step, int micro_step, int row) {
  int64_t number = ((step * s.micro_steps + micro_step) * s.ranks + s.rank) * s.micro + row;
  int64_t position = number % total;
  return s.shuffle ? permute(position, total, s.seed, number / total) : position;
}

Loader::Loader(WindowReader reader, const LoaderSettings& settings) : reader_(std::move(reader)), settings_(settings) {
  const LoaderSettings& s = settings;
  if (s.T != reader_.T() || s.micro < 1 || s.micro_steps < 1 || s.rank < 0 || s.rank >= s.ranks)
    failure("loader: impossible settings: T %d (reader %d), micro batch %d, micro steps %d, rank %d of %d", s.T,
            reader_.T(), s.micro, s.micro_steps, s.rank, s.ranks);
  for (Batch& batch : batches_) {
    batch.inputs.resize(size_t(s.micro) * s.T);
    batch.targets.resize(size_t(s.micro) * s.T);
    if (reader_.has_labels()) batch.row_weights.resize(size_t(s.micro) * s.T);
    batch.values.resize(size_t(s.micro) * s.T * s.outputs);
  }
  start(0);
}

Loader::~Loader() { stop(); }

void Loader::seek(int64_t step) {
  if (step < 0) failure("loader: cannot seek step %ld", step);
  stop();
  start(step);
}

const Batch& Loader::next() {
  std::unique_lock lock(mutex_);
  taken_++;
  changed_.notify_all();  // the batch returned before may be refilled
  changed_.wait(lock, [&] { return filled_ >= taken_ || error_; });
  if (filled_ >= taken_) return batches_[(taken_ - 1) % SLOTS];
  taken_--;  // so that calling again throws again
  std::rethrow_exception(error_);
}

void Loader::start(int64_t step) {
  first_step_ = step;
  filled_ = taken_ = 0;
  stopping_ = false;
  error_ = nullptr;
  thread_ = std::thread(&Loader::run, this);
}

void Loader::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void Loader::run() {
  std::unique_lock lock(mutex_);
  try {
    while (true) {
      // Batch filled_ replaces batch filled_ - slots, which the caller must no longer be using.
      changed_.wait(lock, [&] { return stopping_ || filled_ - SLOTS < taken_ - 1; });
      if (stopping_) return;
      int64_t number = filled_;
      lock.unlock();
      fill(batches_[number % SLOTS], number);
      lock.lock();
      filled_++;
      changed_.notify_all();
    }
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    error_ = std::current_exception();
    changed_.notify_all();
  }
}

// The weight of a label of this step if all windows with labels have T of them: the tokens of the step over its labels,
// or its windows over those that have any; 0 for a step without labels. Every rank counts the labels of all ranks.
double Loader::weight_of_step(int64_t step) {
  if (counted_step_ == step) return step_weight_;
  LoaderSettings s = settings_;
  int64_t windows = int64_t(s.micro_steps) * s.ranks * s.micro, labels = 0, labelled = 0;
  for (s.rank = 0; s.rank < s.ranks; s.rank++)
    for (int micro_step = 0; micro_step < s.micro_steps; micro_step++)
      for (int row = 0; row < s.micro; row++) {
        int found = reader_.labels(window_of(s, reader_.windows(), step, micro_step, row));
        labels += found;
        labelled += found > 0;
      }
  counted_step_ = step;
  if (labels == 0) return step_weight_ = 0;
  return step_weight_ = s.by_sequence ? double(windows) / double(labelled) : double(windows * s.T) / double(labels);
}

void Loader::fill(Batch& batch, int64_t number) {
  const LoaderSettings& s = settings_;
  batch.step = first_step_ + number / s.micro_steps;
  batch.micro_step = int(number % s.micro_steps);
  double weight = reader_.has_labels() ? weight_of_step(batch.step) : 1;
  batch.labelled = weight > 0;
  for (int row = 0; row < s.micro; row++) {
    size_t offset = size_t(row) * s.T;
    int* targets = &batch.targets[offset];
    int labels = reader_.read(window_of(s, reader_.windows(), batch.step, batch.micro_step, row), &batch.inputs[offset],
                              targets, 0, batch.values.data() + offset * s.outputs);
    if (!reader_.has_labels()) continue;
    float of_label = float(s.by_sequence && labels > 0 ? weight * s.T / labels : weight);
    for (int t = 0; t < s.T; t++) batch.row_weights[offset + t] = targets[t] >= 0 ? of_label : 0;
  }
}
