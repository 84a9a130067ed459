// GPT-2, forward and backward, by hand. Read it from top to bottom: the parameter table, the memory plan, the forward
// pass, and in reverse order the backward pass, then the update.
//
// Legend: B batch, T time, C channels, L layers, H heads, D head dim, A = H*D, F MLP width, V vocabulary, Vp padded
// vocabulary, N = B*T rows. Real is the storage type of weights and activations, float or bf16; statistics, gradients
// of parameters and the optimizer's state are float32. Computation runs on one stream, which the host waits for only to
// report; collectives and snapshots for checkpoints have streams of their own.
#include "train_gpt2.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

#include "attention/gate.cuh"
#include "attention/prepare.cuh"
#include "kernels/bias.cuh"
#include "kernels/convert.cuh"
#include "kernels/cross_entropy.cuh"
#include "kernels/embedding.cuh"
#include "kernels/gelu.cuh"
#include "kernels/grad_norm.cuh"
#include "kernels/layernorm.cuh"
#include "kernels/matmul.cuh"
#include "kernels/random.cuh"
#include "kernels/reduce.cuh"
#include "ranks/buckets.h"

// ---------------------------------------------------------------------------------------------------------------------
// Parameters

enum Parameter {
  WTE, WPE,
  LN1_W, LN1_B, QKV_W, GATE_W, QKV_B, GATE_B, SSMAX_SCALE, SINK, ATT_PROJ_W, ATT_PROJ_B,
  LN2_W, LN2_B, FC_W, FC_B, MLP_PROJ_W, MLP_PROJ_B,
  LNF_W, LNF_B, PARAMETERS
};
constexpr Parameter NOTHING = PARAMETERS;

struct ParameterRow {
  Parameter id;
  const char* name;  // after "h.LAYER." where it is per layer
  std::vector<int> shape;
  Init init;
  bool decays, per_layer;
  int stride = 0;                 // elements from row to row; 0: its columns, nothing between them
  Parameter continues = NOTHING;  // the parameter whose rows its own rows continue: one matrix for one product
};

static size_t elements(const std::vector<int>& shape) {
  size_t count = 1;
  for (int extent : shape) count *= extent;
  return count;
}

static size_t round_up(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

int gate_logits(const Config& config) {
  const GateSettings& gate = config.attention.gate;
  const Config::Model& m = config.model;
  if (gate.activation == GateActivation::none) return 0;
  if (gate.granularity == GateGranularity::headwise) return m.heads;
  return gate.position == GatePosition::output ? m.channels : m.heads * m.head_dim;
}

// Columns of the q,k,v product: 3A, and with a gate its logits, padded to whole heads, which Hopper's copy engine wants,
// or where that is no use to a multiple of 8.
static int qkv_width(const Config& config) {
  int D = config.model.head_dim, A = config.model.heads * D, G = gate_logits(config);
  return G ? int(round_up(3 * A + G, D % 8 == 0 ? D : 8)) : 3 * A;
}

// THE parameter table: allocation, initialisation, AdamW, ranks, checkpoints, gradient dumps and tests all go by it.
// A row whose shape holds a 0 is a parameter that this configuration does not have.
static std::vector<ParameterRow> parameter_table(const Config& config) {
  const Config::Model& m = config.model;
  int C = m.channels, H = m.heads, A = H * m.head_dim, F = m.mlp_width(), G = gate_logits(config),
      Q = qkv_width(config);
  const AttentionSettings& a = config.attention;
  Init gate_init = a.gate.weight_init == GateWeights::zero ? Init::zero : Init::normal;
  return {
      {WTE, "wte.weight", {m.vocab, C}, Init::normal, true, false},
      {WPE, "wpe.weight", {m.position == "learned" ? m.context : 0, C}, Init::normal, true, false},
      {LN1_W, "ln_1.weight", {C}, Init::one, false, true},
      {LN1_B, "ln_1.bias", {C}, Init::zero, false, true},
      {QKV_W, "attn.c_attn.weight", {C, 3 * A}, Init::normal, true, true, Q},
      {GATE_W, "attn.c_gate.weight", {G ? C : 0, G}, gate_init, true, true, 0, QKV_W},
      {QKV_B, "attn.c_attn.bias", {3 * A}, Init::zero, false, true, Q},
      {GATE_B, "attn.c_gate.bias", {a.gate.bias ? G : 0}, Init::gate_bias, false, true, 0, QKV_B},
      {SSMAX_SCALE, "attn.ssmax_scale", {a.scale == Scale::ssmax ? H : 0}, Init::ssmax, false, true},
      {SINK, "attn.sink", {a.sink == Sink::learned ? H : 0}, Init::zero, false, true},
      {ATT_PROJ_W, "attn.c_proj.weight", {A, C}, Init::residual, true, true},
      {ATT_PROJ_B, "attn.c_proj.bias", {C}, Init::zero, false, true},
      {LN2_W, "ln_2.weight", {C}, Init::one, false, true},
      {LN2_B, "ln_2.bias", {C}, Init::zero, false, true},
      {FC_W, "mlp.c_fc.weight", {C, F}, Init::normal, true, true},
      {FC_B, "mlp.c_fc.bias", {F}, Init::zero, false, true},
      {MLP_PROJ_W, "mlp.c_proj.weight", {F, C}, Init::residual, true, true},
      {MLP_PROJ_B, "mlp.c_proj.bias", {C}, Init::zero, false, true},
      {LNF_W, "ln_f.weight", {C}, Init::one, false, false},
      {LNF_B, "ln_f.bias", {C}, Init::zero, false, false},
  };
}

static constexpr size_t VOCAB_PADDING = 128;  // rows of wte; keeps the output product on tensor cores' favourite shapes
static constexpr size_t ALIGNMENT = 64;       // elements between tensors: 16-byte accesses everywhere

int padded_vocab(const Config& config) { return int(round_up(config.model.vocab, VOCAB_PADDING)); }

// The table unrolled over the layers, and where each parameter of each layer lies. Padding is always zero.
struct ParameterLayout {
  struct Block {
    size_t offset, size;
    bool decays;
  };
  std::vector<Tensor> tensors;
  std::vector<Block> blocks;               // what is allocated and updated: tensors with their neighbours and padding
  std::vector<size_t> offset[PARAMETERS];  // by layer; one entry where not per layer; empty where absent
  size_t total = 0;                        // elements of the parameter, gradient and moment arrays

  explicit ParameterLayout(const Config& config) {
    std::vector<ParameterRow> table = parameter_table(config);
    size_t latest[PARAMETERS] = {};  // where in tensors the parameter of the last layer so far stands
    auto place = [&](const ParameterRow& row, const std::string& name) {
      size_t size = elements(row.shape), columns = size_t(row.shape.back());
      if (size == 0) return;
      if (row.continues != NOTHING) {
        const Tensor left = tensors[latest[row.continues]];
        offset[row.id].push_back(left.offset + left.columns());
        tensors.push_back({name, row.shape, row.init, row.decays, offset[row.id].back(), size, left.stride});
        return;
      }
      size_t stride = row.stride ? size_t(row.stride) : columns;
      size_t rows = row.id == WTE ? size_t(padded_vocab(config)) : size / columns;
      latest[row.id] = tensors.size();
      tensors.push_back({name, row.shape, row.init, row.decays, total, size, stride});
      blocks.push_back({total, rows * stride, row.decays});
      offset[row.id].push_back(total);
      total += round_up(rows * stride, ALIGNMENT);
    };
    for (size_t i = 0, end; i < table.size(); i = end) {
      end = i + 1;
      if (!table[i].per_layer) {
        place(table[i], table[i].name);
        continue;
      }
      while (end < table.size() && table[end].per_layer) end++;
      for (int l = 0; l < config.model.layers; l++)
        for (size_t k = i; k < end; k++) place(table[k], format("h.%d.%s", l, table[k].name));
    }
  }
};

// A bucket for every layer, as the backward pass completes them; what comes before the first layer is one of its own.
static Buckets gradient_buckets(const ParameterLayout& layout, int ranks) {
  return Buckets(layout.total, layout.offset[LN1_W], ranks, NORM_BLOCK);
}

// ZeRO stage 1: every rank keeps moments and masters of its shares only.
static bool shares_state(const Config& config, int ranks) { return ranks > 1 && config.train.zero_stage == 1; }

int64_t parameter_count(const Config& config) {
  int64_t count = 0;
  for (const Tensor& tensor : ParameterLayout(config).tensors) count += int64_t(tensor.size);
  return count;
}

double flops_per_token(const Config& config) {
  const Config::Model& m = config.model;
  return 6.0 * double(parameter_count(config)) + 6.0 * m.layers * m.context * m.heads * m.head_dim;
}

// ---------------------------------------------------------------------------------------------------------------------
// Memory

template <class Real>
struct LayerActivations {
  Real* x;        // [N, C]  the residual stream that enters the layer
  Real* ln1;      // [N, C]
  Real* qkv;      // [N, Q]  Q = 3A and the gate's logits; q and k already prepared (rotated, normalised, scaled)
  Real* att;      // [N, A]  output of attention
  Real* ungated;  // [N, A], or [N, C] at the output projection: what the gate acts on; att itself for the gate at sdpa
  Real* mid;      // [N, C]  the residual stream between attention and MLP
  Real* ln2;      // [N, C]
  Real* fc;       // [N, F]  before GELU
  Real* gelu;     // [N, F]
  float *mean1, *rstd1, *mean2, *rstd2;  // [N]
  float* qk_norms;                       // [N, 2, H] or nullptr
  float* att_stats;                      // [statistics, B, H, T]
};

// What one pass over N rows needs. Training keeps every layer's arrays for the backward pass (config.train.recompute
// says which it computes again instead); evaluation has one layer's arrays that all layers use in turn.
template <class Real>
struct Activations {
  std::vector<LayerActivations<Real>> layers;
  Real* x_final;            // [N, C]  the residual stream that leaves the last layer
  Real* lnf;                // [N, C]
  float *meanf, *rstdf;     // [N]
  Real* gated;              // [N, A]  attention's output behind the gate at sdpa; computed again in the backward pass
  Real* projected;  // [N, C]  what a layer adds to the residual stream; in the backward pass a gradient of that shape
  Real* logits;             // [logit_rows, Vp]
  int logit_rows;
  float* losses;            // [N]
  int *inputs, *targets;    // [N]

  void plan(MemoryPlan& plan, const Config& config, size_t N, bool training, const char* category) {
    const Config::Model& m = config.model;
    size_t C = m.channels, A = size_t(m.heads) * m.head_dim, F = m.mlp_width(), Q = qkv_width(config);
    const AttentionSettings& attention = config.attention;
    const GateSettings& gate = attention.gate;
    bool keep = training && config.train.recompute != "block", keep_gelu = keep && config.train.recompute != "gelu";
    layers.assign(m.layers, {});
    auto per_layer = [&](auto member, size_t count, bool kept) {
      for (size_t l = 0; l < layers.size(); l++)
        if (kept || l == 0) plan.add(&(layers[l].*member), count, category);
        else plan.alias(&(layers[l].*member), &(layers[0].*member));
    };
    using Layer = LayerActivations<Real>;
    per_layer(&Layer::x, N * C, training);
    for (Real* Layer::*row : {&Layer::ln1, &Layer::mid, &Layer::ln2}) per_layer(row, N * C, keep);
    for (float* Layer::*row : {&Layer::mean1, &Layer::rstd1, &Layer::mean2, &Layer::rstd2}) per_layer(row, N, keep);
    per_layer(&Layer::qkv, N * Q, keep);
    per_layer(&Layer::qk_norms, attention.qk_norm == QkNorm::none ? 0 : N * 2 * m.heads, keep);
    per_layer(&Layer::att, N * A, keep);
    bool gated_att = gate.activation != GateActivation::none && gate.position == GatePosition::sdpa;
    if (gated_att) for (Layer& layer : layers) plan.alias(&layer.ungated, &layer.att);
    else
      per_layer(&Layer::ungated,
                gate.activation == GateActivation::none ? 0 : N * (gate.position == GatePosition::output ? C : A),
                keep);
    per_layer(&Layer::att_stats, N * m.heads * attention_statistics(attention, m.head_dim), keep);
    per_layer(&Layer::fc, N * F, keep);
    per_layer(&Layer::gelu, N * F, keep_gelu);
    plan.add(&x_final, N * C, category);
    plan.add(&lnf, N * C, category);
    plan.add(&meanf, N, category);
    plan.add(&rstdf, N, category);
    plan.add(&gated, gated_att ? N * A : 0, category);
    plan.add(&projected, N * C, category);
    plan.add(&losses, N, category);
    plan.add(&inputs, N, category);
    plan.add(&targets, N, category);
    // Logits of all N rows would be the largest array of all (6.6 GB for GPT-2 at 64 x 1024): they exist for equal
    // chunks of rows.
    size_t Vp = padded_vocab(config), most = size_t(1) << 28;
    size_t chunks = std::max<size_t>(1, (N * Vp + most - 1) / most);
    logit_rows = int(std::min(N, round_up((N + chunks - 1) / chunks, 128)));
    plan.add(&logits, size_t(logit_rows) * Vp, training ? "logits" : category);
  }
};

template <class Real>
struct Buffers {
  // total: with several ranks padded to their shares; own: total, or with ZeRO the rank's shares
  float* masters;         // [own]    the parameters in float32
  Real* parameters;       // [total]  what the kernels read; the masters themselves [total] where Real is float
  float* gradients;       // [total]
  float *adam_m, *adam_v;  // [own]
  float2* rope;           // [longest length, D/2]
  float* norm_partials;   // [blocks]
  float* loss_sum;        // [1]
  float* norm_and_scale;  // [2]
  Activations<Real> training, evaluation;
  Real* dx;               // [N, C]  gradient of the residual stream, carried from the last layer to the first
  Real* dwide;            // [N, max(Q, F)]
  Real* datt;             // [N, A]
  void* workspace;        // bytes

  void plan(MemoryPlan& plan, const Config& config, int micro, size_t eval_rows, int eval_length, bool train,
            int ranks) {
    const Config::Model& m = config.model;
    ParameterLayout layout(config);
    size_t total = ranks > 1 ? gradient_buckets(layout, ranks).padded() : layout.total, context = m.context;
    size_t own = train && shares_state(config, ranks) ? total / ranks : total;
    size_t C = m.channels, A = size_t(m.heads) * m.head_dim, F = m.mlp_width(), Q = qkv_width(config);
    constexpr bool own_masters = !std::is_same_v<Real, float>;
    plan.add(&masters, own_masters ? own : total, own_masters ? "masters" : "parameters");
    if constexpr (own_masters) plan.add(&parameters, total, "parameters");
    else plan.alias(&parameters, &masters);
    bool rotates = m.position == "rope";
    plan.add(&rope, rotates ? std::max(context, size_t(eval_length)) * (m.head_dim / 2) : 0, "workspace");
    plan.add(&loss_sum, 1, "workspace");
    plan.add(&norm_and_scale, 2, "workspace");
    size_t N = size_t(micro) * context, rows = std::max(eval_rows, context);
    if (train) {
      plan.add(&gradients, total, "gradients");
      plan.add(&adam_m, own, "moments");
      plan.add(&adam_v, own, "moments");
      plan.add(&norm_partials, square_sums_count(total), "workspace");
    }
    size_t shared = plan.mark();  // evaluation happens between steps: it uses the memory of the step
    if (train) {
      training.plan(plan, config, N, true, "activations");
      plan.add(&dx, N * C, "activation gradients");
      plan.add(&dwide, N * std::max(Q, F), "activation gradients");
      plan.add(&datt, N * A, "activation gradients");
      AttentionShape attention = {micro, m.context, m.heads, m.head_dim};
      size_t workspace_bytes = std::max(
          {embedding_backward_workspace(int(N), m.channels, padded_vocab(config)),
           layernorm_backward_workspace(int(N), m.channels), bias_backward_workspace(int(N), int(std::max({Q, F, C}))),
           prepare_backward_workspace(config.attention, attention), attention_backward_workspace(attention)});
      plan.add(reinterpret_cast<char**>(&workspace), workspace_bytes, "workspace");
      plan.rewind(shared);
    }
    evaluation.plan(plan, config, rows, false, "evaluation");
    plan.end_sharing();
  }
};

MemoryPlan plan_memory(const Config& config, int micro, size_t eval_rows, int eval_length, bool training, int ranks) {
  MemoryPlan plan;  // the pointers of `buffers` are never set: a plan that is not allocated only counts
  if (config.precision == "bf16") {
    Buffers<bf16> buffers;
    buffers.plan(plan, config, micro, eval_rows, eval_length, training, ranks);
  } else {
    Buffers<float> buffers;
    buffers.plan(plan, config, micro, eval_rows, eval_length, training, ranks);
  }
  return plan;
}

// ---------------------------------------------------------------------------------------------------------------------
// The model

template <class Real>
class Gpt2 final : public Model {
 public:
  Gpt2(const Config& config, size_t eval_rows, int eval_length, bool training, Comm& comm)
      : config_(config),
        settings_{config.attention, config.model.context, qkv_width(config)},
        gate_(config.attention.gate),
        layout_(config),
        comm_(comm),
        buckets_(gradient_buckets(layout_, comm.size())),
        zero_(training && shares_state(config, comm.size())),
        own_(zero_ ? buckets_.shares(comm.rank()) : std::vector<Share>{{0, layout_.total, 0}}) {
    const Config::Model& m = config.model;
    L = m.layers, C = m.channels, H = m.heads, D = m.head_dim, A = H * D, F = m.mlp_width(), V = m.vocab,
    Vp = padded_vocab(config);
    Q = qkv_width(config), G = gate_logits(config);
    MemoryPlan plan;
    b.plan(plan, config, config.batch.micro, eval_rows, eval_length, training, comm.size());
    memory_ = DeviceBlock(plan);
    size_t rows = std::max({size_t(config.batch.micro) * m.context, eval_rows, size_t(m.context)});
    CUDA_CHECK(cudaStreamCreate(&stream));
    for (Staging& s : staging_) {
      CUDA_CHECK(cudaMallocHost(&s.tokens, 2 * rows * sizeof(int)));
      CUDA_CHECK(cudaEventCreate(&s.copied));
    }
    CUDA_CHECK(cudaMallocHost(&report_, 2 * sizeof(float)));
    set_rope(m.context);
  }
  ~Gpt2() override {
    for (Staging& s : staging_) cudaFreeHost(s.tokens), cudaEventDestroy(s.copied);
    if (snapshot_) {
      cudaFreeHost(snapshot_);
      cudaEventDestroy(updated_), cudaEventDestroy(snapshot_taken_);
      cudaStreamDestroy(snapshot_stream_);
    }
    cudaFreeHost(report_);
    cudaStreamDestroy(stream);
  }

  const Config& config() const override { return config_; }
  Comm& comm() override { return comm_; }
  const std::vector<Tensor>& tensors() const override { return layout_.tensors; }

  void init_random() override;
  void read(const Tensor& tensor, Part part, float* out) const override;
  void write(const Tensor& tensor, const float* values, Part part) override;
  void gather(Part part) override;
  void scatter(Part part) override;
  void set_rope(int length) override;
  void begin_step() override;
  void forward_backward(const int* inputs, const int* targets) override;
  StepResult finish(float grad_clip) override;
  void update(const AdamW& settings) override;
  void allocate_snapshot() override;
  void take_snapshot() override;
  const float* snapshot(Part part) const override;
  void losses(float* losses, const int* inputs, const int* targets, int B, int T) override;
  void next_token_logits(float* logits, const int* tokens, int count) override;

 private:
  using Layer = LayerActivations<Real>;
  const Real* weight(Parameter id, int layer = 0) const {
    return layout_.offset[id].empty() ? nullptr : b.parameters + layout_.offset[id][layer];
  }
  float* gradient(Parameter id, int layer = 0) const {
    return layout_.offset[id].empty() || !b.gradients ? nullptr : b.gradients + layout_.offset[id][layer];
  }
  float* array(Part part) const {  // [total], or [own] where it is shared
    switch (part) {
      case Part::parameters: return b.masters;
      case Part::gradients: return b.gradients;
      case Part::moment1: return b.adam_m;
      case Part::moment2: return b.adam_v;
    }
    return nullptr;
  }
  static constexpr bool own_masters = !std::is_same_v<Real, float>;
  bool shared(Part part) const {
    return zero_ && (part == Part::moment1 || part == Part::moment2 || (part == Part::parameters && own_masters));
  }
  float* whole(Part part) const { return shared(part) ? b.gradients : array(part); }  // [total], to be read and written
  bool last_micro_step() const { return rows_seen_ + rows_of_micro() == config_.batch.tokens / comm_.size(); }
  int64_t rows_of_micro() const { return int64_t(config_.batch.micro) * config_.model.context; }
  bool gated(GatePosition position) const { return G > 0 && gate_.position == position; }
  Matrix<const Real> logits_of(const Layer& a) const { return {a.qkv + 3 * A, Q}; }  // the gate's: columns 3A.. of qkv
  // What the layer's attention has learned beyond its matrices, and where the gradients go.
  AttentionLearned<Real> learned(int l) const {
    return {weight(SSMAX_SCALE, l), gradient(SSMAX_SCALE, l), weight(SINK, l), gradient(SINK, l)};
  }
  template <class T>
  void zero(T* array, size_t count) {
    ProfileScope scope("memset", stream);
    CUDA_CHECK(cudaMemsetAsync(array, 0, count * sizeof(T), stream));
  }
  void upload(Activations<Real>& act, const int* inputs, const int* targets, int N);
  void gate_qkv(Layer& a, GatePosition position, int part, int N);
  const Real* projection_input(const Layer& a, Activations<Real>& act, int N);
  void layer_to_gelu(Layer& a, Activations<Real>& act, int l, int B, int T, bool training);
  void forward(Activations<Real>& act, int B, int T, bool training);
  void classify(Activations<Real>& act, int N, float dloss);
  void gate_qkv_backward(Real* dqkv, const Layer& a, GatePosition position, int part, int N);
  void linear_backward(Real* dinput, const Real* doutput, const Real* input, Parameter w, Parameter bias, int l, int N,
                       int in, int out, int biased, Real* before_gelu = nullptr);
  void backward(Activations<Real>& act, int B, int T);
  void reduce_from(size_t offset);

  Config config_;
  AttentionSetup settings_;
  GateSettings gate_;
  ParameterLayout layout_;
  Comm& comm_;
  Buckets buckets_;
  bool zero_;                // ZeRO stage 1
  std::vector<Share> own_;   // what this rank updates: everything, or its shares
  size_t unreduced_ = 0;     // buckets of this step whose gradients have not been reduced yet
  int L, C, H, D, A, F, V, Vp, Q, G;
  Buffers<Real> b{};
  DeviceBlock memory_;
  cudaStream_t stream;
  struct Staging { int* tokens; cudaEvent_t copied; } staging_[2];  // pinned: a copy overlaps the micro step before it
  int next_staging_ = 0;
  float* report_;          // pinned [2]
  float* snapshot_ = nullptr;      // pinned [parameters, moment1, moment2][total]
  cudaStream_t snapshot_stream_;   // its copy runs beside the next step's forward and backward pass
  cudaEvent_t updated_, snapshot_taken_;
  int64_t rows_seen_ = 0;  // of this step, by this rank
};

// ---------------------------------------------------------------------------------------------------------------------
// Forward

// inputs, targets [N] -> device. The host waits only if the copy before last has not been done yet.
template <class Real>
void Gpt2<Real>::upload(Activations<Real>& act, const int* inputs, const int* targets, int N) {
  Staging& s = staging_[next_staging_];
  next_staging_ ^= 1;
  CUDA_CHECK(cudaEventSynchronize(s.copied));
  std::memcpy(s.tokens, inputs, N * sizeof(int));
  std::memcpy(s.tokens + N, targets, N * sizeof(int));
  ProfileScope scope("upload", stream);
  CUDA_CHECK(cudaMemcpyAsync(act.inputs, s.tokens, N * sizeof(int), cudaMemcpyHostToDevice, stream));
  CUDA_CHECK(cudaMemcpyAsync(act.targets, s.tokens + N, N * sizeof(int), cudaMemcpyHostToDevice, stream));
  CUDA_CHECK(cudaEventRecord(s.copied, stream));
}

// The gate on q, k or v (part 0, 1, 2 of a row of a.qkv), in place; what it acts on is kept.
template <class Real>
void Gpt2<Real>::gate_qkv(Layer& a, GatePosition position, int part, int N) {
  if (!gated(position)) return;
  Real* x = a.qkv + part * A;
  CUDA_CHECK(cudaMemcpy2DAsync(a.ungated, A * sizeof(Real), x, Q * sizeof(Real), A * sizeof(Real), N,
                               cudaMemcpyDeviceToDevice, stream));
  gate_forward<Real>({x, Q}, {a.ungated, A}, logits_of(a), gate_, N, H, D, stream);
}

// What attention's projection reads: a.att, or act.gated = it behind the gate, which is not kept but made again.
template <class Real>
const Real* Gpt2<Real>::projection_input(const Layer& a, Activations<Real>& act, int N) {
  if (!gated(GatePosition::sdpa)) return a.att;
  gate_forward<Real>({act.gated, A}, {a.ungated, A}, logits_of(a), gate_, N, H, D, stream);
  return act.gated;
}

// A layer from a.x and a.ln1 to a.gelu: all that the backward pass reads of it, and what recompute = block makes again.
// forward() adds what nobody reads again, the MLP's output projection.
template <class Real>
void Gpt2<Real>::layer_to_gelu(Layer& a, Activations<Real>& act, int l, int B, int T, bool training) {
  int N = B * T;
  matmul<Real, Real>({.d = a.qkv, .a = a.ln1, .b = weight(QKV_W, l), .m = N, .n = Q, .k = C,
                      .epilogue = Epilogue::bias, .bias = weight(QKV_B, l)}, stream);
  gate_qkv(a, GatePosition::query, 0, N);
  gate_qkv(a, GatePosition::key, 1, N);
  gate_qkv(a, GatePosition::value, 2, N);
  prepare_forward(a.qkv, a.qk_norms, b.rope, settings_, {B, T, H, D}, stream, learned(l));
  attention_forward(a.att, a.att_stats, a.qkv, settings_, {B, T, H, D}, training, stream, learned(l));
  Real* projected = gated(GatePosition::output) ? a.ungated : act.projected;
  matmul<Real, Real>({.d = projected, .a = projection_input(a, act, N), .b = weight(ATT_PROJ_W, l), .m = N, .n = C,
                      .k = A, .epilogue = Epilogue::bias, .bias = weight(ATT_PROJ_B, l)}, stream);
  if (gated(GatePosition::output))
    gate_forward<Real>({act.projected, C}, {projected, C}, logits_of(a), gate_, N, 1, C, stream);
  residual_layernorm_forward(a.mid, a.ln2, a.mean2, a.rstd2, a.x, act.projected, weight(LN2_W, l), weight(LN2_B, l), N,
                             C, stream);
  matmul<Real, Real>({.d = a.gelu, .a = a.ln2, .b = weight(FC_W, l), .m = N, .n = F, .k = C,
                      .epilogue = Epilogue::bias_gelu, .bias = weight(FC_B, l), .aux = a.fc}, stream);
}

// act.lnf = the whole network up to the final layernorm, from act.inputs. The logits are classify()'s.
template <class Real>
void Gpt2<Real>::forward(Activations<Real>& act, int B, int T, bool training) {
  int N = B * T;
  Layer& first = act.layers[0];
  embedding_forward(first.x, act.inputs, weight(WTE), weight(WPE), B, T, C, stream);
  layernorm_forward(first.ln1, first.mean1, first.rstd1, first.x, weight(LN1_W, 0), weight(LN1_B, 0), N, C, stream);
  for (int l = 0; l < L; l++) {
    Layer& a = act.layers[l];
    layer_to_gelu(a, act, l, B, T, training);
    matmul<Real, Real>({.d = act.projected, .a = a.gelu, .b = weight(MLP_PROJ_W, l), .m = N, .n = C, .k = F,
                        .epilogue = Epilogue::bias, .bias = weight(MLP_PROJ_B, l)}, stream);
    if (l + 1 < L) {
      Layer& next = act.layers[l + 1];
      residual_layernorm_forward(next.x, next.ln1, next.mean1, next.rstd1, a.mid, act.projected, weight(LN1_W, l + 1),
                                 weight(LN1_B, l + 1), N, C, stream);
    } else {
      residual_layernorm_forward(act.x_final, act.lnf, act.meanf, act.rstdf, a.mid, act.projected, weight(LNF_W),
                                 weight(LNF_B), N, C, stream);
    }
  }
}

// act.losses = cross-entropy of every row. With dloss != 0 also the backward pass of the output layer, because the
// logits of a chunk are overwritten by the next: act.projected = d lnf, gradient of wte +=, both of dloss x the sum of
// the losses.
template <class Real>
void Gpt2<Real>::classify(Activations<Real>& act, int N, float dloss) {
  for (int row = 0; row < N; row += act.logit_rows) {
    int n = std::min(act.logit_rows, N - row);
    Real* x = act.lnf + size_t(row) * C;
    matmul<Real, Real>({.d = act.logits, .a = x, .b = weight(WTE), .m = n, .n = Vp, .k = C, .trans_b = true}, stream);
    cross_entropy(act.losses + row, act.logits, act.targets + row, dloss, n, V, Vp, stream);
    if (dloss == 0) continue;
    matmul<Real, Real>(
        {.d = act.projected + size_t(row) * C, .a = act.logits, .b = weight(WTE), .m = n, .n = C, .k = Vp}, stream);
    matmul<Real, float>(
        {.d = gradient(WTE), .a = act.logits, .b = x, .m = Vp, .n = C, .k = n, .trans_a = true, .beta = 1}, stream);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Backward: the same steps from the last to the first. Gradients of parameters are +=, gradients of activations =.

template <class Real>
void Gpt2<Real>::gate_qkv_backward(Real* dqkv, const Layer& a, GatePosition position, int part, int N) {
  if (!gated(position)) return;
  Real* dx = dqkv + part * A;
  gate_backward<Real>({dx, Q}, {dqkv + 3 * A, Q}, Q - 3 * A, {dx, Q}, {a.ungated, A}, logits_of(a), gate_, N, H, D,
                      stream);
}

// Of output [N, out] = input [N, in] W + bias: dW, dbias +=; dinput = doutput W^T, through GELU where before_gelu is
// given. The first `biased` columns have a bias.
template <class Real>
void Gpt2<Real>::linear_backward(Real* dinput, const Real* doutput, const Real* input, Parameter w, Parameter bias,
                                 int l, int N, int in, int out, int biased, Real* before_gelu) {
  matmul<Real, float>(
      {.d = gradient(w, l), .a = input, .b = doutput, .m = in, .n = out, .k = N, .trans_a = true, .beta = 1}, stream);
  bias_backward(gradient(bias, l), doutput, b.workspace, N, biased, out, stream);
  matmul<Real, Real>({.d = dinput, .a = doutput, .b = weight(w, l), .m = N, .n = in, .k = out, .trans_b = true,
                      .epilogue = before_gelu ? Epilogue::dgelu : Epilogue::none, .aux = before_gelu}, stream);
}

// From act.projected = d lnf, left by classify().
template <class Real>
void Gpt2<Real>::backward(Activations<Real>& act, int B, int T) {
  int N = B * T;
  bool again = config_.train.recompute == "block";
  zero(b.dx, size_t(N) * C);
  layernorm_backward(b.dx, gradient(LNF_W), gradient(LNF_B), act.projected, act.x_final, act.meanf, act.rstdf,
                     weight(LNF_W), b.workspace, N, C, stream);
  for (int l = L - 1; l >= 0; l--) {
    Layer& a = act.layers[l];
    if (again) {
      layernorm_forward(a.ln1, a.mean1, a.rstd1, a.x, weight(LN1_W, l), weight(LN1_B, l), N, C, stream);
      layer_to_gelu(a, act, l, B, T, true);
    } else if (config_.train.recompute == "gelu") {
      gelu_forward(a.gelu, a.fc, size_t(N) * F, stream);
    }
    Real *dfc = b.dwide, *dqkv = b.dwide, *dln = act.projected;
    // x + MLP: dx is the gradient of the sum, so of both terms
    linear_backward(dfc, b.dx, a.gelu, MLP_PROJ_W, MLP_PROJ_B, l, N, F, C, C, a.fc);
    linear_backward(dln, dfc, a.ln2, FC_W, FC_B, l, N, C, F, F);
    layernorm_backward(b.dx, gradient(LN2_W, l), gradient(LN2_B, l), dln, a.mid, a.mean2, a.rstd2, weight(LN2_W, l),
                       b.workspace, N, C, stream);
    // x + attention; the gate's logits are columns 3A.. of qkv, and so are their gradients
    Matrix<Real> dlogits{dqkv + 3 * A, Q};
    Real* dprojected = b.dx;
    if (gated(GatePosition::output)) {
      dprojected = act.projected;
      gate_backward<Real>({dprojected, C}, dlogits, Q - 3 * A, {b.dx, C}, {a.ungated, C}, logits_of(a), gate_, N, 1,
                          C, stream);
    }
    linear_backward(b.datt, dprojected, projection_input(a, act, N), ATT_PROJ_W, ATT_PROJ_B, l, N, A, C, C);
    if (gated(GatePosition::sdpa))
      gate_backward<Real>({b.datt, A}, dlogits, Q - 3 * A, {b.datt, A}, {a.ungated, A}, logits_of(a), gate_, N, H, D,
                          stream);
    attention_backward(dqkv, b.datt, a.att, a.att_stats, a.qkv, b.workspace, settings_, {B, T, H, D}, stream,
                       learned(l));
    prepare_backward(dqkv, a.qkv, a.qk_norms, b.rope, settings_, {B, T, H, D}, stream, learned(l), b.workspace);
    gate_qkv_backward(dqkv, a, GatePosition::query, 0, N);
    gate_qkv_backward(dqkv, a, GatePosition::key, 1, N);
    gate_qkv_backward(dqkv, a, GatePosition::value, 2, N);
    int biased = gradient(GATE_B, l) ? Q : 3 * A;  // a gate may have no bias: its columns must stay zero
    linear_backward(dln, dqkv, a.ln1, QKV_W, QKV_B, l, N, C, Q, biased);
    layernorm_backward(b.dx, gradient(LN1_W, l), gradient(LN1_B, l), dln, a.x, a.mean1, a.rstd1, weight(LN1_W, l),
                       b.workspace, N, C, stream);
    reduce_from(layout_.offset[LN1_W][l]);
  }
  embedding_backward(gradient(WTE), gradient(WPE), b.dx, act.inputs, b.workspace, B, T, C, Vp, stream);
  reduce_from(0);
}

// Gradients from this offset on are complete: their buckets are summed over the ranks, beside what remains of the
// backward pass. Every rank gets the sums of its share, and, without ZeRO, those of the others: an all-reduce in the two
// steps that it is made of, so that both add in the same order.
template <class Real>
void Gpt2<Real>::reduce_from(size_t offset) {
  if (comm_.size() == 1 || !last_micro_step() || unreduced_ == 0 || buckets_.begin(unreduced_ - 1) < offset) return;
  comm_.after(stream);
  for (; unreduced_ > 0 && buckets_.begin(unreduced_ - 1) >= offset; unreduced_--) {
    size_t k = unreduced_ - 1;
    comm_.reduce_scatter(b.gradients + buckets_.begin(k), buckets_.share(k));
    if (!zero_) comm_.all_gather(b.gradients + buckets_.begin(k), buckets_.share(k));
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// The step

template <class Real>
void Gpt2<Real>::begin_step() {
  phase("update", stream);
  zero(b.gradients, layout_.total);
  zero(b.loss_sum, 1);
  rows_seen_ = 0;
  unreduced_ = buckets_.count();
}

template <class Real>
void Gpt2<Real>::forward_backward(const int* inputs, const int* targets) {
  int B = config_.batch.micro, T = config_.model.context, N = B * T;
  Activations<Real>& act = b.training;
  phase("forward", stream);
  upload(act, inputs, targets, N);
  forward(act, B, T, true);
  phase("output layer", stream);
  classify(act, N, 1.0f / float(config_.batch.tokens));  // the mean over the whole batch, of all ranks
  sum_to(b.loss_sum, act.losses, N, stream);
  if (last_micro_step()) {
    comm_.after(stream);
    comm_.all_reduce(b.loss_sum, 1);
  }
  phase("backward", stream);
  backward(act, B, T);
  rows_seen_ += N;
}

template <class Real>
StepResult Gpt2<Real>::finish(float grad_clip) {
  float *norm = b.norm_and_scale, *scale = b.norm_and_scale + 1;
  phase("update", stream);
  comm_.before(stream);  // losses and gradients are those of all ranks
  if (zero_) zero(b.norm_partials, buckets_.padded() / NORM_BLOCK);
  for (const Share& own : own_)
    square_sums(b.norm_partials + own.begin / NORM_BLOCK, b.gradients + own.begin, own.size, stream);
  if (zero_) {  // every block is summed by one rank and 0 at the others: the same bits as without ZeRO
    comm_.after(stream);
    comm_.all_reduce(b.norm_partials, buckets_.padded() / NORM_BLOCK);
    comm_.before(stream);
  }
  clip_scale(norm, scale, b.norm_partials, int(square_sums_count(layout_.total)), grad_clip, stream);
  CUDA_CHECK(cudaMemcpyAsync(report_, b.loss_sum, sizeof(float), cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaMemcpyAsync(report_ + 1, norm, sizeof(float), cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  return {report_[0] / float(rows_seen_ * comm_.size()), report_[1]};
}

template <class Real>
void Gpt2<Real>::update(const AdamW& settings) {
  if (snapshot_) CUDA_CHECK(cudaStreamWaitEvent(stream, snapshot_taken_));
  for (const ParameterLayout::Block& block : layout_.blocks) {
    AdamW with = settings;
    if (!block.decays) with.weight_decay = 0;
    for (const Share& own : own_) {
      size_t from = std::max(block.offset, own.begin), to = std::min(block.offset + block.size, own.begin + own.size);
      if (from >= to) continue;
      size_t at = own.at + (from - own.begin), master = own_masters ? at : from;
      adamw_update(b.parameters + from, b.masters + master, b.adam_m + at, b.adam_v + at, b.gradients + from,
                   b.norm_and_scale + 1, to - from, with, stream);
    }
  }
  if (zero_) {
    comm_.after(stream);
    for (size_t k = 0; k < buckets_.count(); k++) comm_.all_gather(b.parameters + buckets_.begin(k), buckets_.share(k));
    comm_.before(stream);
  }
  phase(nullptr, stream);
}

// ---------------------------------------------------------------------------------------------------------------------
// Snapshots

constexpr Part SNAPSHOT_PARTS[] = {Part::parameters, Part::moment1, Part::moment2};

size_t snapshot_bytes(const Config& config) {
  return std::size(SNAPSHOT_PARTS) * ParameterLayout(config).total * sizeof(float);
}

template <class Real>
void Gpt2<Real>::allocate_snapshot() {
  size_t bytes = snapshot_bytes(config_);
  if (cudaMallocHost(&snapshot_, bytes) != cudaSuccess)
    failure("memory: checkpoints need %zu MiB of pinned host memory, and this machine does not give them", bytes >> 20);
  CUDA_CHECK(cudaStreamCreateWithFlags(&snapshot_stream_, cudaStreamNonBlocking));
  CUDA_CHECK(cudaEventCreateWithFlags(&updated_, cudaEventDisableTiming));
  CUDA_CHECK(cudaEventCreateWithFlags(&snapshot_taken_, cudaEventDisableTiming | cudaEventBlockingSync));
}

// A shared part is gathered where the gradients are until the next step: its copy cannot run beside that step.
template <class Real>
void Gpt2<Real>::take_snapshot() {
  if (snapshot_) {
    CUDA_CHECK(cudaEventRecord(updated_, stream));
    CUDA_CHECK(cudaStreamWaitEvent(snapshot_stream_, updated_));
  }
  float* to = snapshot_;
  for (Part part : SNAPSHOT_PARTS) {
    gather(part);
    if (!snapshot_) continue;  // rank 0 writes
    size_t bytes = layout_.total * sizeof(float);
    cudaStream_t on = shared(part) ? stream : snapshot_stream_;
    CUDA_CHECK(cudaMemcpyAsync(to, whole(part), bytes, cudaMemcpyDeviceToHost, on));
    to += layout_.total;
  }
  if (!snapshot_) return;
  if (zero_) {
    CUDA_CHECK(cudaEventRecord(updated_, stream));
    CUDA_CHECK(cudaStreamWaitEvent(snapshot_stream_, updated_));
  }
  CUDA_CHECK(cudaEventRecord(snapshot_taken_, snapshot_stream_));
}

template <class Real>
const float* Gpt2<Real>::snapshot(Part part) const {
  CUDA_CHECK(cudaEventSynchronize(snapshot_taken_));
  const Part* found = std::find(std::begin(SNAPSHOT_PARTS), std::end(SNAPSHOT_PARTS), part);
  return snapshot_ + layout_.total * (found - SNAPSHOT_PARTS);
}

// ---------------------------------------------------------------------------------------------------------------------
// Evaluation

template <class Real>
void Gpt2<Real>::losses(float* losses, const int* inputs, const int* targets, int B, int T) {
  int N = B * T;
  Activations<Real>& act = b.evaluation;
  upload(act, inputs, targets, N);
  forward(act, B, T, false);
  classify(act, N, 0);
  CUDA_CHECK(cudaMemcpyAsync(losses, act.losses, N * sizeof(float), cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
}

template <class Real>
void Gpt2<Real>::next_token_logits(float* logits, const int* tokens, int count) {
  int T = config_.model.context;
  // What follows cannot influence what precedes it, and one length means one set of matrix shapes.
  std::vector<int> padded(T, 0);
  std::memcpy(padded.data(), tokens, count * sizeof(int));
  Activations<Real>& act = b.evaluation;
  upload(act, padded.data(), padded.data(), T);
  forward(act, 1, T, false);
  matmul<Real, Real>({.d = act.logits, .a = act.lnf + size_t(count - 1) * C, .b = weight(WTE), .m = 1, .n = Vp, .k = C,
                      .trans_b = true}, stream);
  std::vector<Real> row(V);
  CUDA_CHECK(cudaMemcpyAsync(row.data(), act.logits, V * sizeof(Real), cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  for (int v = 0; v < V; v++) logits[v] = to_float(row[v]);
}

// ---------------------------------------------------------------------------------------------------------------------
// Parameters in and out

static uint64_t hash_of(const std::string& text) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325;
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3;
  return hash;
}

template <class Real>
void Gpt2<Real>::init_random() {
  float residual_std = 0.02f / std::sqrt(2.0f * float(L));
  for (const Tensor& tensor : layout_.tensors) {
    float constant = 0, std = 0;
    switch (tensor.init) {
      case Init::zero: break;
      case Init::one: constant = 1; break;
      case Init::normal: std = 0.02f; break;
      case Init::residual: std = residual_std; break;
      case Init::ssmax: constant = 0.43f; break;
      case Init::gate_bias: constant = float(config_.attention.gate.bias_init); break;
    }
    // A stream of random numbers by the tensor's name: variants of one seed share the weights that they have in common.
    uint64_t seed = config_.seed ^ hash_of(tensor.name);
    float* to = whole(Part::parameters) + tensor.offset;
    if (std > 0) normal_fill(to, tensor.rows(), tensor.columns(), tensor.stride, std, seed, stream);
    else write(tensor, std::vector<float>(tensor.size, constant).data(), Part::parameters);
  }
  if (shared(Part::parameters)) return scatter(Part::parameters);
  if constexpr (own_masters) convert(b.parameters, b.masters, layout_.total, stream);
}

template <class Real>
void Gpt2<Real>::gather(Part part) {
  if (!zero_ || (!shared(part) && part != Part::gradients)) return;
  if (part != Part::gradients)
    for (const Share& own : own_)
      CUDA_CHECK(cudaMemcpyAsync(b.gradients + own.begin, array(part) + own.at, own.size * sizeof(float),
                                 cudaMemcpyDeviceToDevice, stream));
  comm_.after(stream);
  for (size_t k = 0; k < buckets_.count(); k++) comm_.all_gather(b.gradients + buckets_.begin(k), buckets_.share(k));
  comm_.before(stream);
}

template <class Real>
void Gpt2<Real>::scatter(Part part) {
  if (!shared(part)) return;
  for (const Share& own : own_)
    CUDA_CHECK(cudaMemcpyAsync(array(part) + own.at, b.gradients + own.begin, own.size * sizeof(float),
                               cudaMemcpyDeviceToDevice, stream));
  if constexpr (own_masters)
    if (part == Part::parameters) convert(b.parameters, b.gradients, layout_.total, stream);
  zero(b.gradients, buckets_.padded());  // padding stays zero
}

template <class Real>
void Gpt2<Real>::read(const Tensor& tensor, Part part, float* out) const {
  const float* from = whole(part) + tensor.offset;
  size_t row = tensor.columns() * sizeof(float);
  CUDA_CHECK(cudaMemcpy2DAsync(out, row, from, tensor.stride * sizeof(float), row, tensor.rows(),
                               cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
}

template <class Real>
void Gpt2<Real>::write(const Tensor& tensor, const float* values, Part part) {
  float* to = whole(part) + tensor.offset;
  size_t row = tensor.columns() * sizeof(float), span = (tensor.rows() - 1) * tensor.stride + tensor.columns();
  CUDA_CHECK(cudaMemcpy2DAsync(to, tensor.stride * sizeof(float), values, row, row, tensor.rows(),
                               cudaMemcpyHostToDevice, stream));
  if constexpr (own_masters)
    if (part == Part::parameters && !shared(part)) convert(b.parameters + tensor.offset, to, span, stream);
  CUDA_CHECK(cudaStreamSynchronize(stream));  // the values may go away now
}

template <class Real>
void Gpt2<Real>::set_rope(int length) {
  if (!b.rope) return;
  const Config::Model& m = config_.model;
  RopeScaling scaling = config_.eval.rope_scaling;
  double factor = std::max(1.0, double(length) / m.context);
  std::vector<float2> table = rope_table(std::max(length, m.context), D, m.rope_base, scaling, factor);
  settings_.scale_factor = rope_scale_factor(scaling, factor);
  CUDA_CHECK(cudaMemcpyAsync(b.rope, table.data(), table.size() * sizeof(float2), cudaMemcpyHostToDevice, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
}

std::unique_ptr<Model> make_model(const Config& config, size_t eval_rows, int eval_length, bool training, Comm& comm) {
  if (config.precision == "bf16") return std::make_unique<Gpt2<bf16>>(config, eval_rows, eval_length, training, comm);
  return std::make_unique<Gpt2<float>>(config, eval_rows, eval_length, training, comm);
}
