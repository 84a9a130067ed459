// How the flat arrays of a model are divided among ranks. Gradients are reduced bucket by bucket, while the backward
// pass continues in the layers below. Each rank has an equal share of every bucket; in ZeRO stage 1 only it updates it.
//   0        begin[1]            begin[2]      padded
//   | bucket 0 | rank 0 | rank 1 | ...          |          the whole array; bucket 1 shows the ranks' shares
// All borders are multiples of `block` elements, the blocks of the gradient norm, so every block belongs to one rank.
#pragma once
#include <cstddef>
#include <vector>

struct Share {
  size_t begin, size;  // elements of the whole array
  size_t at;           // its first element in an array of this rank's shares only, one after the other
};

class Buckets {
 public:
  Buckets() = default;  // of an empty array
  // total: elements to divide. starts: where in [0, total) a bucket may begin, ascending; each is rounded up to a
  // multiple of ranks * block, and those that become equal give one bucket.
  Buckets(size_t total, const std::vector<size_t>& starts, int ranks, size_t block) : ranks_(size_t(ranks)) {
    size_t unit = ranks_ * block;
    auto round_up = [&](size_t n) { return (n + unit - 1) / unit * unit; };
    for (size_t start : starts)
      if (size_t border = round_up(start); border > begin_.back() && border < round_up(total)) begin_.push_back(border);
    begin_.push_back(round_up(total));
  }
  size_t count() const { return begin_.size() - 1; }
  size_t begin(size_t bucket) const { return begin_[bucket]; }
  size_t size(size_t bucket) const { return begin_[bucket + 1] - begin_[bucket]; }
  size_t share(size_t bucket) const { return size(bucket) / ranks_; }
  size_t padded() const { return begin_.back(); }  // `total`, rounded up in the same way
  std::vector<Share> shares(int rank) const {
    std::vector<Share> list;
    for (size_t k = 0; k < count(); k++)
      list.push_back({begin(k) + size_t(rank) * share(k), share(k), begin(k) / ranks_});
    return list;
  }

 private:
  size_t ranks_ = 1;
  std::vector<size_t> begin_ = {0};  // of each bucket, then the end of the last one
};
