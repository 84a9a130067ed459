#include "model/parameters.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "kernels/convert.cuh"
#include "kernels/grad_norm.cuh"
#include "kernels/random.cuh"

// ---- Layout

// Matrices of one shape whose products are one call. On the CPU one fills the machine.
static constexpr int MUON_BATCH = on_cpu ? 1 : 16;
static constexpr size_t ALIGNMENT = 64;  // elements between blocks: 16-byte accesses everywhere

static size_t elements(const std::vector<int>& shape) {
  size_t count = 1;
  for (int extent : shape) count *= size_t(extent);
  return count;
}

ParameterLayout::ParameterLayout(const std::function<std::vector<ParameterRow>(int l)>& table, int layers, int ranks,
                                 bool zero_stage_1, bool muon)
    : ranks(ranks), zero(ranks > 1 && zero_stage_1) {
  const std::vector<ParameterRow> first_layer = table(0);
  size_t ids = size_t(first_layer.back().id) + 1;  // a layer may lack some
  offsets.assign(ids, std::vector<size_t>(layers, ABSENT));
  std::vector<Tensor> latest(ids);  // the last tensor so far of each row
  auto place = [&](const ParameterRow& row, int l) {
    if (elements(row.shape) == 0) return;
    std::string name = row.per_layer ? format("h.%d.%s", l, row.name.c_str()) : row.name;
    Tensor tensor = {name,        row.shape,
                     row.init,    row.decays,
                     total,       elements(row.shape),
                     0,           row.per_layer ? l : -1,
                     row.by_head, muon ? row.matrices : std::vector<int>()};
    if (row.continues != NOTHING) {
      const Tensor& left = latest[row.continues];
      tensor.offset = left.offset + left.columns();
      tensor.stride = left.stride;
    } else {
      const std::vector<int>& in_memory = row.padded.empty() ? row.shape : row.padded;
      tensor.stride = size_t(in_memory.back());
      RowBlock all{total, 1, elements(in_memory), elements(in_memory)};
      for (int width : tensor.matrices) {
        if (all.rows == 1) all = {total, tensor.rows(), tensor.stride, tensor.stride};
        matrices.push_back({all.offset, all.rows, size_t(width), all.stride});
        all.offset += size_t(width), all.columns -= size_t(width);
      }
      if (all.size() > 0) blocks.push_back({all, row.decays});
      total += (elements(in_memory) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    offsets[row.id][l] = tensor.offset;
    if (!row.fixed) tensors.push_back(tensor);
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
  std::vector<size_t> order(matrices.size());  // by size: the ranks then have about the same work
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return matrices[a].size() > matrices[b].size(); });
  owners.resize(order.size());
  for (size_t n = 0; n < order.size(); n++) owners[order[n]] = int(n) % ranks;
}

std::vector<std::vector<RowBlock>> ParameterLayout::batches(int rank, size_t most) const {
  std::vector<std::vector<RowBlock>> batches;
  for (size_t n = 0; n < matrices.size(); n++) {
    if (owners[n] != rank) continue;
    auto open = std::ranges::find_if(batches, [&](const auto& batch) {
      return batch.size() < most && batch[0].rows == matrices[n].rows && batch[0].columns == matrices[n].columns;
    });
    if (open == batches.end()) batches.push_back({matrices[n]});
    else open->push_back(matrices[n]);
  }
  return batches;
}

std::vector<ParameterLayout::Piece> ParameterLayout::pieces(int rank, size_t* elements2) const {
  std::vector<Piece> pieces;
  size_t at2 = 0;
  for (const Block& block : blocks)
    for (const Share& share : shares(rank)) {
      size_t first = block.elements.before(share.begin), last = block.elements.before(share.begin + share.size);
      if (first == last) continue;
      size_t at = matrices.empty() ? share.at + block.elements.offset + first - share.begin : at2;
      pieces.push_back({block, share, first, last - first, at});
      at2 += (last - first + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
  if (elements2) *elements2 = matrices.empty() ? own : at2;
  return pieces;
}

// ---- Arrays

ParameterStore::ParameterStore(const ParameterLayout& layout, bool rounds, Comm& comm, cudaStream_t stream)
    : layout_(layout),
      rounds_(rounds),
      comm_(comm),
      stream_(stream),
      own_(layout.shares(comm.rank())),
      pieces_(layout.pieces(comm.rank())) {}

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
  size_t most2 = 0;  // of a rank's second moments
  for (int rank = 0; rank < (layout_.zero ? layout_.ranks : 1); rank++) {
    size_t elements2;
    layout_.pieces(rank, &elements2);
    most2 = std::max(most2, elements2);
  }
  plan.add(&moment2_, most2, "moments");
  if (rounds_) rounded_work_.plan(plan, layout_.matrices, MUON_BATCH);
  else work_.plan(plan, layout_.matrices, MUON_BATCH);
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

template <class T> void ParameterStore::update_piece(T* rounded, const ParameterLayout::Piece& piece, AdamW settings) {
  if (!piece.block.decays) settings.weight_decay = 0;
  const RowBlock& block = piece.block.elements;
  float *x = masters_ + (rounds_ ? shift(piece.own) : 0), *m = moment1_ + shift(piece.own), *v = moment2_ + piece.at2;
  if (block.rows > 1)
    return adamw_update_rows(rounded, x, m, v, gradients_, scale_, block, piece.first, piece.count, settings, stream_);
  size_t from = block.offset + piece.first;
  adamw_update(rounded + from, x + from, m + from, v, gradients_ + from, scale_, piece.count, settings, stream_);
}

// Leaves the orthogonal updates X in the array of gradients.
template <class T> void ParameterStore::update_matrices(T* rounded, const MuonWork<T>& work, const Muon& settings) {
  const std::vector<RowBlock>& matrices = layout_.matrices;
  if (matrices.empty()) return;
  auto for_shares = [&](auto f) {
    for (const RowBlock& matrix : matrices)
      for (const Share& own : own_)
        f(matrix, matrix.before(own.begin), matrix.before(own.begin + own.size), shift(own));
  };
  for_shares([&](const RowBlock& matrix, size_t first, size_t last, ptrdiff_t shift) {
    muon_momentum(moment1_ + shift, gradients_, scale_, matrix, first, last, settings, stream_);
  });
  if (layout_.zero) gather_shares(gradients_);
  for (size_t n = 0; n < matrices.size(); n++)
    if (const RowBlock& other = matrices[n]; layout_.owners[n] != comm_.rank())
      CUDA_CHECK(cudaMemset2DAsync(gradients_ + other.offset, other.stride * sizeof(float), 0,
                                   other.columns * sizeof(float), other.rows, stream_));
  for (const auto& batch : layout_.batches(comm_.rank(), MUON_BATCH)) orthogonalise(gradients_, batch, work, stream_);
  unreduced_ = layout_.buckets.count();
  reduce_from(0);  // a matrix is 0 on all ranks but one, so the sums are exact
  comm_.before(stream_);
  for_shares([&](const RowBlock& matrix, size_t first, size_t last, ptrdiff_t shift) {
    muon_apply(rounded, masters_ + (rounds_ ? shift : 0), gradients_, matrix, first, last, settings, stream_);
  });
}

void ParameterStore::choose_products() {
  for (int rank = 0; rank < layout_.ranks; rank++)
    for (const auto& batch : layout_.batches(rank, MUON_BATCH))
      if (rounds_) orthogonalise(gradients_, batch, rounded_work_, stream_);
      else orthogonalise(gradients_, batch, work_, stream_);
}

void ParameterStore::update(const AdamW& settings, const Muon& muon) {
  if (snapshot_) CUDA_CHECK(cudaStreamWaitEvent(stream_, snapshot_taken_));
  for (const ParameterLayout::Piece& piece : pieces_)
    if (rounds_) update_piece(rounded_, piece, settings);
    else update_piece(masters_, piece, settings);
  if (rounds_) update_matrices(rounded_, rounded_work_, muon);
  else update_matrices(masters_, work_, muon);
  if (!layout_.zero) return;
  if (rounds_) gather_shares(rounded_);
  else gather_shares(masters_);
}

std::array<double, 3> ParameterStore::step_squares(const std::vector<RowBlock>& blocks, const AdamW& settings,
                                                   const Muon& muon) {
  zero(step_sums_, 3 * STEP_SUM_BLOCKS, stream_);
  auto add = [&](const RowBlock& block, const Share& own, const float* m, const float* v, size_t v_stride,
                 const AdamW& with) {
    add_step_sums(step_sums_, block, own.begin, own.begin + own.size, gradients_, masters_ + (rounds_ ? shift(own) : 0),
                  m, v, v_stride, with, stream_);
  };
  for (const RowBlock& block : blocks) {
    auto matrix = std::ranges::find(layout_.matrices, block.offset, &RowBlock::offset);
    if (matrix != layout_.matrices.end()) {
      AdamW scaled{};
      scaled.lr = muon.lr * muon.scale(*matrix), scaled.step = 1;
      for (const Share& own : own_) add(block, own, gradients_, nullptr, 0, scaled);
      continue;
    }
    for (const ParameterLayout::Piece& piece : pieces_) {
      const RowBlock& whole = piece.block.elements;
      size_t begin = block.offset - whole.offset;  // in its first row
      if (block.offset < whole.offset || begin >= whole.rows * whole.stride || begin % whole.stride >= whole.columns)
        continue;
      add(block, piece.own, moment1_ + shift(piece.own), moment2_ + piece.at2 + begin - piece.first,
          whole.rows > 1 ? whole.columns : block.stride, settings);
    }
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
  if (!shared(part) && (!layout_.zero || part != Part::gradients)) return;
  if (compact(part)) {
    zero(gradients_, layout_.allocated, stream_);
    for (const ParameterLayout::Piece& p : pieces_)
      spread(gradients_, moment2_ + p.at2, p.block.elements, p.first, p.count, stream_);
  } else if (part != Part::gradients) {
    for (const Share& own : own_)
      CUDA_CHECK(cudaMemcpyAsync(gradients_ + own.begin, array(part) + own.at, own.size * sizeof(float),
                                 cudaMemcpyDeviceToDevice, stream_));
  }
  if (layout_.zero) gather_shares(gradients_);
}

void ParameterStore::scatter(Part part) {
  if (!shared(part)) return;
  if (compact(part)) {
    for (const ParameterLayout::Piece& p : pieces_)
      collect(moment2_ + p.at2, gradients_, p.block.elements, p.first, p.count, stream_);
  } else {
    for (const Share& own : own_)
      CUDA_CHECK(cudaMemcpyAsync(array(part) + own.at, gradients_ + own.begin, own.size * sizeof(float),
                                 cudaMemcpyDeviceToDevice, stream_));
  }
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
  if (shared(Part::moment2)) {
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
