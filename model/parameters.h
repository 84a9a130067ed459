// A model's parameters in memory: where each one lies, the arrays of their values, gradients and moments, how ranks
// divide these arrays, and how values enter and leave. The model says which parameters it has: see the table in
// train_gpt2.cu.
//
// All arrays have one layout, the table unrolled over the layers. Padding is always zero.
//   | wte.weight | wpe.weight | layer 0: ln_1.weight, ln_1.bias, ... | layer 1: ... | ... | ln_f.weight | ln_f.bias |
// Several ranks reduce the gradients layer by layer, while the backward pass continues with the layer before. With ZeRO
// stage 1 a rank has moments and masters of its shares only (ranks/buckets.h), updates these, and gathers the others'.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/adamw.cuh"
#include "kernels/device_memory.h"
#include "kernels/muon.cuh"
#include "ranks/buckets.h"
#include "ranks/comm.h"

// Initial values: normally distributed around 0 with this standard deviation, or all equal to constant where std is 0.
struct Init {
  float constant = 0, std = 0;
};

enum Parameter : int;  // the model lists them, in the order of its table
inline constexpr Parameter NOTHING{-1};

// A row of the model's table, for one layer. A shape that holds a 0 means that there is no such parameter.
struct ParameterRow {
  Parameter id;
  std::string name;  // after "h.LAYER." if it is per layer
  std::vector<int> shape;
  Init init;
  bool decays, per_layer;
  std::vector<int> padded = {};    // the shape in memory, if that is larger
  Parameter continues = NOTHING;   // its rows lie in the padding of that parameter's: one matrix for one product
  bool by_head = false;            // a number for each head, which reports show as what the heads learned
  std::vector<int> matrices = {};  // columns of each of those, side by side, that Muon may update
  bool fixed = false;              // stays zero, in memory alone: others lie in its padding
};

// One parameter of the model. Names, shapes and layouts are Hugging Face's GPT-2: a matrix is [inputs, outputs].
struct Tensor {
  std::string name;        // "h.0.attn.c_attn.weight"
  std::vector<int> shape;  // as in the file
  Init init;
  bool decays;                // weight decay: matrices and embeddings only
  size_t offset;              // of its first element in the parameter, gradient and moment arrays
  size_t size;                // product of shape
  size_t stride;              // from row to row there: longer than a row if padding or another tensor lies between
  int layer;                  // -1: it belongs to none
  bool by_head;               // as in the table
  std::vector<int> matrices;  // columns of each that Muon updates: they have no second moment
  size_t columns() const { return size_t(shape.back()); }
  size_t rows() const { return size / columns(); }
};

// parameters: the float32 masters; moments: AdamW's m and v. Muon's momentum is the first.
enum class Part { parameters, gradients, moment1, moment2 };

struct ParameterLayout {
  struct Block {  // of AdamW: a matrix in memory with its padding, what Muon leaves of one, or another parameter
    RowBlock elements;
    bool decays;
  };
  struct Piece {  // what one rank updates of a block
    Block block;
    Share own;
    size_t first, count;  // elements of the block, row by row
    size_t at2;           // of the first in moment2
  };
  std::vector<Tensor> tensors;
  std::vector<Block> blocks;
  std::vector<RowBlock> matrices;            // Muon's; none: all is AdamW's, and moment2 is laid out as moment1
  std::vector<int> owners;                   // [matrices]: the rank that orthogonalises its update
  std::vector<std::vector<size_t>> offsets;  // [parameter][layer]: [0] if not per layer; ABSENT: there is none
  std::vector<size_t> layer_begin;           // [layers]
  size_t total = 0;                          // elements of all blocks and the gaps between them
  Buckets buckets;                           // a layer each; what comes before the first layer is one more
  int ranks;
  bool zero;         // ranks share masters and moments
  size_t allocated;  // elements of an array: total, padded to equal shares for several ranks
  size_t own;        // elements of what ranks may share: allocated, or with ZeRO a rank's part

  static constexpr size_t ABSENT = SIZE_MAX;

  // table: of layer l; what is not per layer is in each of them, and the same.
  ParameterLayout(const std::function<std::vector<ParameterRow>(int l)>& table, int layers, int ranks,
                  bool zero_stage_1, bool muon);
  std::vector<Share> shares(int rank) const { return zero ? buckets.shares(rank) : std::vector<Share>{{0, total, 0}}; }
  // The matrices of a rank, in lists of at most `most` of one shape.
  std::vector<std::vector<RowBlock>> batches(int rank, size_t most) const;
  std::vector<Piece> pieces(int rank, size_t* elements2 = nullptr) const;  // elements2: of moment2
  size_t snapshot_bytes() const { return 3 * total * sizeof(float); }      // parameters and moments
};

// The arrays. Work is queued on `stream` unless a line says that the host waits. A function marked "all ranks" must be
// called by all of them, in the same order.
class ParameterStore {
 public:
  // rounds: kernels read the parameters rounded to bf16, not the masters. stream: the model's. The arrays exist once
  // the plan's memory is allocated.
  ParameterStore(const ParameterLayout& layout, bool rounds, Comm& comm, cudaStream_t stream);
  ~ParameterStore();
  ParameterStore(const ParameterStore&) = delete;
  void plan(MemoryPlan& plan, bool training);  // not training: parameters only
  const ParameterLayout& layout() const { return layout_; }
  const std::vector<Tensor>& tensors() const { return layout_.tensors; }

  // Shapes as in the table, padded. nullptr if the model has no such parameter, or no gradients.
  template <class Real> const Real* weight(Parameter id, int layer) const {
    if constexpr (std::is_same_v<Real, float>) return at(masters_, id, layer);
    else return at(rounded_, id, layer);
  }
  float* gradient(Parameter id, int layer) const { return at(gradients_, id, layer); }

  // A step, in this order; all ranks.
  void begin_step() {  // gradients = 0
    zero(gradients_, layout_.total, stream_);
    unreduced_ = layout_.buckets.count();
  }
  void reduce_from(size_t offset);   // gradients from this offset on are complete: starts to sum them over the ranks
                                     // (the sum is the average: forward_backward() divides by batch.tokens)
  const float* clip(float largest);  // after comm.before(stream): the norm of all gradients, [1] on the device;
                                     // update() scales them down to the norm `largest`, 0: never
  void update(const AdamW& settings, const Muon& muon);  // on the stream after a snapshot's copy
  void choose_products();                                // makes those of update() once, of all ranks' matrices
  // Before update(): the square of the gradient; after it and before the next step those of the weight and of what the
  // update took from it (add_step_sums()), over all elements of some blocks of the arrays and all ranks; the host
  // waits. With Muon update() overwrites the gradients. All ranks.
  std::array<double, 3> step_squares(const std::vector<RowBlock>& blocks, const AdamW& settings, const Muon& muon);

  void init_random(uint64_t seed);  // as the table says; all ranks
  // out, values = [shape] on the host, which waits.
  void read(const Tensor& tensor, Part part, float* out) const;
  void write(const Tensor& tensor, const float* values, Part part = Part::parameters);

  // If ranks share a part (ZeRO), or it has gaps (moment2, with Muon), all of them gather() it before it is read, and
  // scatter() it after its tensors were written. In between, its values lie in the array of gradients, which are lost.
  void gather(Part part);
  void scatter(Part part);

  // Parameters and moments at one moment, in pinned host memory.
  void allocate_snapshot();                // on the rank that wants it; `failure` if the machine has too little memory
  void take_snapshot();                    // all ranks; the copy runs beside the next forward and backward pass
  const float* snapshot(Part part) const;  // [total]; the host waits for the copy; from any thread

 private:
  template <class T> T* at(T* array, Parameter id, int layer) const {
    size_t offset = layout_.offsets[id][layer];
    return array && offset != ParameterLayout::ABSENT ? array + offset : nullptr;
  }
  float* array(Part part) const { return std::array{masters_, gradients_, moment1_, moment2_}[size_t(part)]; }
  bool compact(Part part) const { return part == Part::moment2 && !layout_.matrices.empty(); }
  bool shared(Part part) const {
    return compact(part) || (layout_.zero && part != Part::gradients && (part != Part::parameters || rounds_));
  }
  float* whole(Part part) const { return shared(part) ? gradients_ : array(part); }  // [allocated]
  template <class T> void gather_shares(T* array);
  static ptrdiff_t shift(const Share& own) { return ptrdiff_t(own.at) - ptrdiff_t(own.begin); }
  template <class T> void update_piece(T* rounded, const ParameterLayout::Piece& piece, AdamW settings);
  template <class T> void update_matrices(T* rounded, const MuonWork<T>& work, const Muon& settings);

  ParameterLayout layout_;
  bool rounds_;
  Comm& comm_;
  cudaStream_t stream_;
  std::vector<Share> own_;                         // what this rank updates: everything, or its shares
  std::vector<ParameterLayout::Piece> pieces_;     // with AdamW
  float* masters_ = nullptr;                       // [own]; [allocated] in fp32, where kernels read them
  bf16* rounded_ = nullptr;                        // [allocated]; none in fp32
  float* gradients_ = nullptr;                     // [allocated]
  float *moment1_ = nullptr, *moment2_ = nullptr;  // [own]
  MuonWork<float> work_;                           // in fp32
  MuonWork<bf16> rounded_work_;                    // in bf16
  double* step_sums_;                              // [STEP_SUM_BLOCKS, 3]
  float *square_sums_, *norm_, *scale_;            // [blocks of NORM_BLOCK], [1], [1]: of the gradients, for clipping
  size_t unreduced_ = 0;                           // buckets of this step that are not being reduced yet
  float* snapshot_ = nullptr;                      // pinned [parameters, moment1, moment2][total]
  cudaStream_t snapshot_stream_;
  cudaEvent_t updated_, snapshot_taken_;
};
