#include "model/parameters.h"

#include <algorithm>
#include <iterator>

#include "kernels/convert.cuh"
#include "kernels/grad_norm.cuh"
#include "kernels/random.cuh"

// ---- Layout

static constexpr size_t ALIGNMENT = 64;  // elements between blocks: 16-byte accesses everywhere

static size_t elements(const std::vector<int>& shape) {
  size_t count = 1;
  for (int extent : shape) count *= size_t(extent);
  return count;
}

ParameterLayout::ParameterLayout(const std::function<std::vector<ParameterRow>(int l)>& table, int layers, int ranks,
                                 bool zero_stage_1)
    : zero(ranks > 1 && zero_stage_1) {
  const std::vector<ParameterRow> first_layer = table(0);
  size_t ids = size_t(first_layer.back().id) + 1;  // a layer may lack some
  offsets.assign(ids, std::vector<size_t>(layers, ABSENT));
  std::vector<Tensor> latest(ids);  // the last tensor so far of each row
  auto place = [&](const ParameterRow& row, int l) {
    if (elements(row.shape) == 0) return;
    std::string name = row.per_layer ? format("h.%d.%s", l, row.name.c_str()) : row.name;
    Tensor tensor = {name,       row.shape, row.init, row.decays, total, elements(row.shape), 0, row.per_layer ? l : -1,
                     row.by_head};
    if (row.continues != NOTHING) {
      const Tensor& left = latest[row.continues];
      tensor.offset = left.offset + left.columns();
      tensor.stride = left.stride;
    } else {
      const std::vector<int>& in_memory = row.padded.empty() ? row.shape : row.padded;
      tensor.stride = size_t(in_memory.back());
      blocks.push_back({total, elements(in_memory), row.decays});
      total += (elements(in_memory) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    offsets[row.id][l] = tensor.offset;
    tensors.push_back(tensor);
    latest[row.id] = tensor;
  };
  auto first = std::ranges::find(first_layer, true, &ParameterRow::per_layer);
  auto last = std::find_if_not(first, first_layer.end(), [](const ParameterRow& row) { return row.per_layer; });
  for (auto row = first_layer.begin(); row != first; ++row) place(*row, 0);
  for (int l = 0; l < layers; l++) {
    layer_begin.push_back(total);
    for (const ParameterRow& row : table(l))
      if (row.per_layer) place(row, l);
  }
  for (auto row = last; row != first_layer.end(); ++row) place(*row, 0);
  buckets = Buckets(total, layer_begin, ranks, NORM_BLOCK);
  allocated = ranks > 1 ? buckets.padded() : total;
  own = zero ? allocated / size_t(ranks) : allocated;
}

// ---- Arrays

ParameterStore::ParameterStore(const ParameterLayout& layout, bool rounds, Comm& comm, cudaStream_t stream)
    : layout_(layout),
      rounds_(rounds),
      comm_(comm),
      stream_(stream),
      own_(layout.zero ? layout.buckets.shares(comm.rank()) : std::vector<Share>{{0, layout.total, 0}}) {}

ParameterStore::~ParameterStore() {
  if (!snapshot_) return;
  cudaFreeHost(snapshot_);
  cudaEventDestroy(updated_), cudaEventDestroy(snapshot_taken_);
  cudaStreamDestroy(snapshot_stream_);
}

void ParameterStore::plan(MemoryPlan& plan, bool training) {
  plan.add(&masters_, rounds_ ? layout_.own : layout_.allocated, rounds_ ? "masters" : "parameters");
  plan.add(&rounded_, rounds_ ? layout_.allocated : 0, "parameters");
  if (!training) return;
  plan.add(&gradients_, layout_.allocated, "gradients");
  plan.add(&moment1_, layout_.own, "moments");
  plan.add(&moment2_, layout_.own, "moments");
  plan.add(&square_sums_, square_sums_count(layout_.allocated), "workspace");
  plan.add(&step_sums_, 3 * STEP_SUM_BLOCKS, "workspace");
  plan.add(&norm_, 1, "workspace");
  plan.add(&scale_, 1, "workspace");
}

// array [allocated] = every rank's shares of it
template <class T> void ParameterStore::gather_shares(T* array) {
  const Buckets& buckets = layout_.buckets;
  comm_.after(stream_);
  for (size_t k = 0; k < buckets.count(); k++) comm_.all_gather(array + buckets.begin(k), buckets.share(k));
  comm_.before(stream_);
}

// ---- A step

// Every rank gets the sums of its shares and, without ZeRO, those of the others: an all-reduce in the two steps that it
// is made of, so that both ways add in the same order.
void ParameterStore::reduce_from(size_t offset) {
  const Buckets& buckets = layout_.buckets;
  if (comm_.size() == 1 || unreduced_ == 0 || buckets.begin(unreduced_ - 1) < offset) return;
  comm_.after(stream_);
  for (; unreduced_ > 0 && buckets.begin(unreduced_ - 1) >= offset; unreduced_--) {
    size_t k = unreduced_ - 1;
    comm_.reduce_scatter(gradients_ + buckets.begin(k), buckets.share(k));
    if (!layout_.zero) comm_.all_gather(gradients_ + buckets.begin(k), buckets.share(k));
  }
}

const float* ParameterStore::clip(float largest) {
  size_t shared_blocks = layout_.zero ? layout_.allocated / NORM_BLOCK : 0;
  if (shared_blocks) zero(square_sums_, shared_blocks, stream_);
  for (const Share& own : own_)
    square_sums(square_sums_ + own.begin / NORM_BLOCK, gradients_ + own.begin, own.size, stream_);
  if (shared_blocks) {  // a block is summed by one rank and is 0 on the others: the same bits as without ZeRO
    comm_.after(stream_);
    comm_.all_reduce(square_sums_, shared_blocks);
    comm_.before(stream_);
  }
  clip_scale(norm_, scale_, square_sums_, int(square_sums_count(layout_.total)), largest, stream_);
  return norm_;
}

void ParameterStore::update(const AdamW& settings) {
  if (snapshot_) CUDA_CHECK(cudaStreamWaitEvent(stream_, snapshot_taken_));
  for (const ParameterLayout::Block& block : layout_.blocks) {
    AdamW with = settings;
    if (!block.decays) with.weight_decay = 0;
    for (const Share& own : own_) {
      size_t from = std::max(block.offset, own.begin), to = std::min(block.offset + block.size, own.begin + own.size);
      if (from >= to) continue;
      size_t n = to - from, at = own.at + (from - own.begin);
      float *x = masters_ + (rounds_ ? at : from), *m = moment1_ + at, *v = moment2_ + at, *dx = gradients_ + from;
      if (rounds_) adamw_update(rounded_ + from, x, m, v, dx, scale_, n, with, stream_);
      else adamw_update(x, x, m, v, dx, scale_, n, with, stream_);
    }
  }
  if (!layout_.zero) return;
  if (rounds_) gather_shares(rounded_);
  else gather_shares(masters_);
}

std::array<double, 3> ParameterStore::step_squares(const std::vector<RowBlock>& blocks, const AdamW& settings) {
  zero(step_sums_, 3 * STEP_SUM_BLOCKS, stream_);
  for (const RowBlock& block : blocks)
    for (const Share& own : own_) {
      size_t end = own.begin + own.size, block_end = block.offset + (block.rows - 1) * block.stride + block.columns;
      if (block_end <= own.begin || block.offset >= end) continue;
      ptrdiff_t shift = ptrdiff_t(own.at) - ptrdiff_t(own.begin);
      add_step_sums(step_sums_, block, own.begin, end, gradients_, masters_ + (rounds_ ? shift : 0), moment1_ + shift,
                    moment2_ + shift, settings, stream_);
    }
  std::vector<double> sums(3 * STEP_SUM_BLOCKS);
  CUDA_CHECK(cudaMemcpyAsync(sums.data(), step_sums_, sums.size() * sizeof(double), cudaMemcpyDeviceToHost, stream_));
  CUDA_CHECK(cudaStreamSynchronize(stream_));
  std::array<double, 3> squares{};
  for (size_t n = 0; n < sums.size(); n++) squares[n % 3] += sums[n];
  if (layout_.zero) comm_.all_reduce_sum(squares.data(), squares.size());
  return squares;
}

// ---- Values in and out

static uint64_t hash_of(const std::string& text) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325;
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3;
  return hash;
}

void ParameterStore::init_random(uint64_t seed) {
  for (const Tensor& tensor : layout_.tensors) {
    float *to = whole(Part::parameters) + tensor.offset, std = tensor.init.std;
    // Seeded by the tensor's name: variants of one seed share the weights that they have in common.
    uint64_t tensor_seed = seed ^ hash_of(tensor.name);
    if (std > 0) normal_fill(to, tensor.rows(), tensor.columns(), tensor.stride, std, tensor_seed, stream_);
    else write(tensor, std::vector<float>(tensor.size, tensor.init.constant).data(), Part::parameters);
  }
  if (shared(Part::parameters)) return scatter(Part::parameters);
  if (rounds_) convert(rounded_, masters_, layout_.total, stream_);
}

void ParameterStore::read(const Tensor& tensor, Part part, float* out) const {
  const float* from = whole(part) + tensor.offset;
  size_t row = tensor.columns() * sizeof(float);
  CUDA_CHECK(cudaMemcpy2DAsync(out, row, from, tensor.stride * sizeof(float), row, tensor.rows(),
                               cudaMemcpyDeviceToHost, stream_));
  CUDA_CHECK(cudaStreamSynchronize(stream_));
}

void ParameterStore::write(const Tensor& tensor, const float* values, Part part) {
  float* to = whole(part) + tensor.offset;
  size_t row = tensor.columns() * sizeof(float), span = (tensor.rows() - 1) * tensor.stride + tensor.columns();
  CUDA_CHECK(cudaMemcpy2DAsync(to, tensor.stride * sizeof(float), values, row, row, tensor.rows(),
                               cudaMemcpyHostToDevice, stream_));
  if (rounds_ && part == Part::parameters && !shared(part)) convert(rounded_ + tensor.offset, to, span, stream_);
  CUDA_CHECK(cudaStreamSynchronize(stream_));  // the caller may free the values now
}

void ParameterStore::gather(Part part) {
  if (!layout_.zero || (!shared(part) && part != Part::gradients)) return;
  if (part != Part::gradients)
    for (const Share& own : own_)
      CUDA_CHECK(cudaMemcpyAsync(gradients_ + own.begin, array(part) + own.at, own.size * sizeof(float),
                                 cudaMemcpyDeviceToDevice, stream_));
  gather_shares(gradients_);
}

void ParameterStore::scatter(Part part) {
  if (!shared(part)) return;
  for (const Share& own : own_)
    CUDA_CHECK(cudaMemcpyAsync(array(part) + own.at, gradients_ + own.begin, own.size * sizeof(float),
                               cudaMemcpyDeviceToDevice, stream_));
  if (part == Part::parameters) convert(rounded_, gradients_, layout_.total, stream_);  // shared: there are two arrays
  zero(gradients_, layout_.allocated, stream_);                                         // padding stays zero
}

// ---- Snapshots

static constexpr Part SNAPSHOT_PARTS[] = {Part::parameters, Part::moment1, Part::moment2};

void ParameterStore::allocate_snapshot() {
  size_t bytes = layout_.snapshot_bytes();
  if (cudaMallocHost(&snapshot_, bytes) != cudaSuccess)
    failure("memory: checkpoints need %zu MiB of pinned host memory, but this machine could not allocate them",
            bytes >> 20);
  CUDA_CHECK(cudaStreamCreateWithFlags(&snapshot_stream_, cudaStreamNonBlocking));
  CUDA_CHECK(cudaEventCreateWithFlags(&updated_, cudaEventDisableTiming));
  CUDA_CHECK(cudaEventCreateWithFlags(&snapshot_taken_, cudaEventDisableTiming | cudaEventBlockingSync));
}

// A shared part is gathered into the array of gradients, which the next step overwrites: it is copied before that step.
void ParameterStore::take_snapshot() {
  if (snapshot_) {
    CUDA_CHECK(cudaEventRecord(updated_, stream_));
    CUDA_CHECK(cudaStreamWaitEvent(snapshot_stream_, updated_));
  }
  float* to = snapshot_;
  for (Part part : SNAPSHOT_PARTS) {
    gather(part);
    if (!snapshot_) continue;  // another rank's
    cudaStream_t on = shared(part) ? stream_ : snapshot_stream_;
    CUDA_CHECK(cudaMemcpyAsync(to, whole(part), layout_.total * sizeof(float), cudaMemcpyDeviceToHost, on));
    to += layout_.total;
  }
  if (!snapshot_) return;
  if (layout_.zero) {
    CUDA_CHECK(cudaEventRecord(updated_, stream_));
    CUDA_CHECK(cudaStreamWaitEvent(snapshot_stream_, updated_));
  }
  CUDA_CHECK(cudaEventRecord(snapshot_taken_, snapshot_stream_));
}

const float* ParameterStore::snapshot(Part part) const {
  CUDA_CHECK(cudaEventSynchronize(snapshot_taken_));
  const Part* found = std::find(std::begin(SNAPSHOT_PARTS), std::end(SNAPSHOT_PARTS), part);
  return snapshot_ + layout_.total * size_t(found - SNAPSHOT_PARTS);
}
