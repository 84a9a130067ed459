// GPT-2: what it is and what its gradient is, written by hand. Read from top to bottom:
//   Parameters   the table of everything that is learned, and how a row of qkv is laid out
//   The model    the class; on a first reading, only its names
//   Forward      a layer in eleven steps, the network, the loss
//   Backward     the same eleven steps from the last to the first
//   The step     micro steps, clipping, update
//   Evaluation   losses and logits alone
// activations.h lists what the forward pass leaves for the backward pass; parameters.h says where the parameters lie
// and how several ranks divide them, kernels/ and attention/ what each step computes.
//
// Legend: B batch, T time, C channels, L layers, H heads, D head dim, A = H*D, F MLP width, W columns of its first
// product (2F with SwiGLU), V vocabulary, Vp padded vocabulary, K outputs of a regression head, Kp the same padded, Z
// logits of a learned bias, G of a gate, N = B*T rows. Real is the storage type of weights and activations, float or
// bf16; statistics, gradients of parameters and the optimizer's state are float32. Computation runs on one stream,
// which the host waits for only to report; collectives and snapshots for checkpoints have streams of their own.
#include "train_gpt2.h"

// Lines are broken by hand here, as in a formula: a product takes two lines at most.
// clang-format off

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstring>
#include <span>

#include "model/activations.h"
#include "attention/documents.cuh"
#include "attention/kv_heads.cuh"
#include "attention/output.cuh"
#include "attention/position_bias.cuh"
#include "attention/prune.cuh"
#include "attention/prepare.cuh"
#include "kernels/cross_entropy.cuh"
#include "kernels/embedding.cuh"
#include "kernels/gelu.cuh"
#include "kernels/layernorm.cuh"
#include "kernels/linear_bias.cuh"
#include "kernels/matmul.cuh"
#include "kernels/mlp.cuh"
#include "kernels/reduce.cuh"
#include "kernels/squared_error.cuh"

// ---------------------------------------------------------------------------------------------------------------------
// Parameters

enum Parameter : int {
  WTE, WPE,
  LN1_W, LN1_B, QKV_W, DECAY_W, GATE_W, QKV_B, DECAY_B, GATE_B,
  SSMAX_SCALE, SINK, SCORE, SCORE_LAST = SCORE + MOST_PARAMETERS - 1, ATT_PROJ_W, ATT_PROJ_B,
  LN2_W, LN2_B, FC_W, FC_B, MLP_PROJ_W, MLP_PROJ_B,
  LNF_W, LNF_B, LM_HEAD, HEAD_W, HEAD_B
};

// THE parameter table: allocation, initialisation, AdamW, ranks, checkpoints, gradient dumps and tests all use it. It
// is layer l's: layers may differ in their gate, bias, sink and kind. Its columns: id, name, shape, initial values,
// whether weight decay applies, whether it is per layer; then the shape in memory if it is padded, the parameter whose
// padding holds this one, whether it is a number for each head, the columns of each matrix that Muon sees in it, and
// whether it stays zero (parameters.h).
//
// One product makes all that attention needs: a token's row of qkv, Q columns.
//   column  0           A           2A          3A        3A+Z           3A+Z+G    Q
//           | queries   | keys      | values    | decay   | gate logits  | padding |
//           | h0 | h1 ..| h0 | h1 ..| h0 | h1 ..| logits  | by channel   | always  |  h0, h1, ...: heads of D columns
//           |           |           |           | by head | or by head   | zero    |
//           | c_attn.weight, c_attn.bias        | c_decay | c_gate.*     |         |  the parameters of these columns
// With fewer heads of keys and values (model.kv_heads) the product's row is narrower, QKV columns of q, k, v and P in
// all, and attention/kv_heads.cuh repeats them.
static std::vector<ParameterRow> parameter_table(const Config& config, int l) {
  const Config::Model& m = config.model;
  int C = m.channels, H = m.heads, A = H * m.head_dim, F = m.mlp_width(), W = m.mlp_columns(), K = m.head.outputs,
      Kp = padded_outputs(config);
  const AttentionSettings a = config.layer(l).attention;
  auto [Z, G, Q, P] = qkv_columns(m, a);
  int KD = m.kv_width(), QKV = m.qkv_width();
  std::vector<int> fc_matrices(m.mlp == Mlp::swiglu ? 2 : 1, F);  // gate and up are two
  Init zero, one{.constant = 1}, normal{.std = float(m.init_std)};
  Init residual{.std = normal.std / std::sqrt(2.0f * float(m.layers))};  // what 2L sublayers add to the residual stream
  if (m.residual_init == ResidualInit::zero) residual = zero;
  Init ssmax{.constant = 0.43f}, gate_bias{.constant = float(a.gate.bias_init)};
  Init gate = a.gate.weight_init == GateWeights::zero ? zero : normal;
  bool headwise = a.gate.granularity == GateGranularity::headwise, gate_reads_x = a.gate.input == GateInput::x,
       gate_biased = G && a.gate.bias;
  int biases = m.bias ? C : 0, shifts = m.norm == Norm::layernorm ? biases : 0;
  std::vector<ParameterRow> rows = {
      {WTE, "wte.weight", {m.vocab, C}, normal, true, false, {padded_vocab(config), C}},
      {WPE, "wpe.weight", {m.position == Position::learned ? m.context : 0, C}, normal, true, false},
      {LN1_W, "ln_1.weight", {C}, one, false, true},
      {LN1_B, "ln_1.bias", {shifts}, zero, false, true},
      {QKV_W, "attn.c_attn.weight", {C, QKV}, normal, true, true, {C, P}, NOTHING, false, {A, KD, KD}},
      {DECAY_W, "attn.c_decay.weight", {Z ? C : 0, Z}, normal, true, true, {}, QKV_W},
      {GATE_W, "attn.c_gate.weight", {gate_reads_x && G ? C : 0, G}, gate, true, true, {}, Z ? DECAY_W : QKV_W},
      {QKV_B, "attn.c_attn.bias", {m.bias || Z || gate_biased ? QKV : 0}, zero, false, true, {P}, NOTHING, false, {},
       !m.bias},
      {DECAY_B, "attn.c_decay.bias", {Z}, zero, false, true, {}, QKV_B, true},
      {GATE_B, "attn.c_gate.bias", {gate_biased ? G : 0}, gate_bias, false, true, {}, Z ? DECAY_B : QKV_B,
       headwise},
      {SSMAX_SCALE, "attn.ssmax_scale", {a.scale == Scale::ssmax ? H : 0}, ssmax, false, true, {}, NOTHING, true},
      {SINK, "attn.sink", {a.sink == Sink::learned ? H : 0}, zero, false, true, {}, NOTHING, true},
      {ATT_PROJ_W, "attn.c_proj.weight", {A, C}, residual, true, true, {}, NOTHING, false, {C}},
      {ATT_PROJ_B, "attn.c_proj.bias", {biases}, zero, false, true},
      {LN2_W, "ln_2.weight", {C}, one, false, true},
      {LN2_B, "ln_2.bias", {shifts}, zero, false, true},
      {FC_W, "mlp.c_fc.weight", {C, W}, normal, true, true, {}, NOTHING, false, fc_matrices},
      {FC_B, "mlp.c_fc.bias", {m.bias ? W : 0}, zero, false, true},
      {MLP_PROJ_W, "mlp.c_proj.weight", {F, C}, residual, true, true, {}, NOTHING, false, {C}},
      {MLP_PROJ_B, "mlp.c_proj.bias", {biases}, zero, false, true},
      {LNF_W, "ln_f.weight", {C}, one, false, false},
      {LNF_B, "ln_f.bias", {shifts}, zero, false, false},
      {LM_HEAD, "lm_head.weight", {m.tied || K ? 0 : m.vocab, C}, normal, true, false, {padded_vocab(config), C}},
      {HEAD_W, "head.weight", {C, K}, normal, true, false, {C, Kp}},
      {HEAD_B, "head.bias", {K}, zero, false, false, {Kp}},
  };
  auto behind_sinks = std::ranges::find(rows, ATT_PROJ_W, &ParameterRow::id);
  const KindRow& kind = kind_row(a.kind);
  for (size_t n = 0; n < kind.learned.size(); n++) {
    Init initial{.constant = float(a.parameters[kind.initial_of(n)])};
    behind_sinks = 1 + rows.insert(behind_sinks, {Parameter(SCORE + n), format("attn.score.%s", kind.learned[n].name),
                                                  {H}, initial, false, true, {}, NOTHING, true});
  }
  return rows;
}

// ranks, training: what the arrays are for.
static ParameterLayout parameter_layout(const Config& config, int ranks = 1, bool training = false) {
  return {[&](int l) { return parameter_table(config, l); }, config.model.layers, ranks,
          training && config.train.zero_stage == 1, config.optimizer.matrices == Matrices::muon};
}

size_t snapshot_bytes(const Config& config) { return parameter_layout(config).snapshot_bytes(); }

std::vector<Tensor> parameters_of(const Config& config) { return parameter_layout(config).tensors; }

MemoryPlan plan_memory(const Config& config, int micro, size_t eval_rows, int eval_length, bool training, int ranks) {
  MemoryPlan plan;  // of arrays that are never allocated: such a plan only counts
  bool rounds = config.precision == Precision::bf16;
  ParameterStore(parameter_layout(config, ranks, training), rounds, Comm::alone(), nullptr).plan(plan, training);
  if (rounds) Buffers<bf16>().plan(plan, config, micro, eval_rows, eval_length, training);
  else Buffers<float>().plan(plan, config, micro, eval_rows, eval_length, training);
  return plan;
}

// ---------------------------------------------------------------------------------------------------------------------
// The model

static cudaStream_t new_stream() {
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreate(&stream));
  return stream;
}

template <class Real>
class Gpt2 final : public Model {
 public:
  Gpt2(const Config& config, size_t eval_rows, int eval_length, bool training, Comm& comm, RunFacts facts)
      : config_(config),
        facts_(std::move(facts)),
        gate_(config.attention.gate),
        rms_(config.model.norm == Norm::rmsnorm),
        mlp_(config.model.mlp),
        output_(config.model.tied ? WTE : LM_HEAD),
        comm_(comm),
        stream(new_stream()),
        store_(parameter_layout(config, comm.size(), training), std::is_same_v<Real, bf16>, comm, stream) {
    const Config::Model& m = config.model;
    L = m.layers, C = m.channels, H = m.heads, D = m.head_dim, A = H * D, KD = m.kv_width(), QKV = m.qkv_width(),
    F = m.mlp_width(), W = m.mlp_columns(), V = m.vocab, Vp = padded_vocab(config), K = m.head.outputs,
    Kp = padded_outputs(config);
    MemoryPlan plan;
    store_.plan(plan, training);
    b.plan(plan, config, config.batch.micro, eval_rows, eval_length, training);
    memory_ = DeviceBlock(plan);
    size_t rows = std::max({size_t(config.batch.micro) * m.context, eval_rows, size_t(m.context)});
    for (Staging& s : staging_) {
      CUDA_CHECK(cudaMallocHost(&s.words, (6 + std::max(1, K)) * rows * sizeof(int)));
      CUDA_CHECK(cudaEventCreate(&s.copied));
    }
    CUDA_CHECK(cudaMallocHost(&report_, 2 * sizeof(float)));
    set_length(m.context);
  }
  ~Gpt2() override {
    for (Staging& s : staging_) cudaFreeHost(s.words), cudaEventDestroy(s.copied);
    cudaFreeHost(report_);
    matmul_release(stream);
    cudaStreamDestroy(stream);
  }

  const Config& config() const override { return config_; }
  const RunFacts& facts() const override { return facts_; }
  Comm& comm() override { return comm_; }
  ParameterStore& parameters() override { return store_; }

  void set_length(int length) override;
  void begin_step() override;
  void forward_backward(const int* inputs, const Targets& targets) override;
  StepResult reduce_and_clip(float grad_clip) override;
  std::vector<TileCount> tiles() override;
  void update(const AdamW& settings, const Muon& muon) override;
  void losses(float* losses, const int* inputs, const Targets& targets, int B, int T, int* above) override;
  void outputs(float* outputs, const int* inputs, int B, int T) override;
  void diagnose(const int* inputs, int B, int T, int counted,
                const std::function<void(const LayerStatistics&)>& see) override;
  void row_logits(float* logits, const int* inputs, int B, int T, const std::vector<int>& rows) override;

 private:
  using Layer = LayerActivations<Real>;
  const Real* weight(Parameter id, int layer = 0) const { return store_.weight<Real>(id, layer); }
  float* gradient(Parameter id, int layer = 0) const { return store_.gradient(id, layer); }
  bool last_micro_step() const { return rows_seen_ + rows_of_micro() == config_.batch.tokens / comm_.size(); }
  int64_t rows_of_micro() const { return int64_t(config_.batch.micro) * config_.model.context; }
  bool gated(const Layer& a, GatePosition position) const { return a.columns.G > 0 && gate_.position == position; }
  int gated_part(const Layer& a) const {  // of a row of qkv: 0 queries, 1 keys, 2 values; -1: the gate acts on none
    return gated(a, GatePosition::query) ? 0 : gated(a, GatePosition::key) ? 1 : gated(a, GatePosition::value) ? 2 : -1;
  }
  Matrix<const Real> decay_of(const Layer& a) const { return {a.qkv + 3 * A, a.columns.Q}; }  // the bias's logits
  Matrix<const Real> logits_of(const Layer& a) const {  // the gate's
    return {a.qkv + 3 * A + a.columns.Z, a.columns.Q};
  }
  Matrix<Real> dlogits_of(Real* dqkv, const Layer& a) const { return {dqkv + 3 * A + a.columns.Z, a.columns.Q}; }
  // The product's row, which is attention's unless heads share keys and values.
  Real* product_of(Real* qkv, Activations<Real>& act) const { return act.narrow ? act.narrow : qkv; }
  Matrix<Real> part_of(Real* product, const Layer& a, int part) const {
    return {product + (part == 0 ? 0 : A + (part - 1) * KD), a.columns.P};
  }
  GroupedRows grouped_rows(const Layer& a, int N) const {
    auto [Z, G, Q, P] = a.columns;
    return {N, H, KD / D, D, Z + G, P, Q};
  }
  AttentionCall<Real> attention_of(const Layer& a, int l, int B, int T) const {
    AttentionCall<Real> call = {
        .settings = layers_[l].attention, .shape = {B, T, H, D}, .context = config_.model.context,
        .qkv_stride = a.columns.Q, .scale_factor = layers_[l].rotated ? scale_factor_ : 1, .family = family_,
        .spare_multiprocessors = spare_multiprocessors_, .stream = stream,
        .ssmax_scale = weight(SSMAX_SCALE, l), .dssmax_scale = gradient(SSMAX_SCALE, l),
        .sink = weight(SINK, l), .dsink = gradient(SINK, l), .bias = a.bias, .documents = b.documents,
        .rope = layers_[l].rotated ? b.rope : nullptr, .norms = a.qk_norms};
    for (int n = 0; n < MOST_PARAMETERS; n++)
      call.learned[n] = weight(Parameter(SCORE + n), l), call.dlearned[n] = gradient(Parameter(SCORE + n), l);
    return call;
  }
  bool product_makes_gelu() const { return mlp_ == Mlp::gelu && config_.model.bias; }
  void activate_mlp(Layer& a, int N);
  void upload(Activations<Real>& act, const int* inputs, const Targets& targets, int N);
  void gate_qkv(Real* product, Layer& a, int N);
  const Real* finished(const Layer& a, Activations<Real>& act, int l, int B, int T, bool with_gate = true);
  void compute_activations(Layer& a, Activations<Real>& act, int l, int B, int T, bool training);
  void forward(Activations<Real>& act, int B, int T, bool training, const std::function<void(int)>& after_layer = {});
  void classify(Activations<Real>& act, int N, float dloss);
  void regress(Activations<Real>& act, const float* values, int N, float dloss);
  void gate_qkv_backward(Real* dproduct, const Layer& a, int N);
  void linear_backward(Real* dinput, const Real* doutput, const Real* input, Parameter w, int l, int N, int in, int out,
                       Real* before_gelu = nullptr);
  void backward_layer(Activations<Real>& act, int l, int B, int T);
  void backward(Activations<Real>& act, int B, int T);
  void reduce_from(size_t offset);

  Config config_;
  RunFacts facts_;
  std::vector<Config::Layer> layers_;  // [L], at the length of set_length()
  float scale_factor_ = 1;             // of AttentionCall, as the two below
  int spare_multiprocessors_ = 0;
  const char* family_ = nullptr;
  int counted_ = INT_MAX;  // sequences whose tiles are counted
  GateSettings gate_;                  // of the layers that have one
  bool rms_;                           // RMSNorm in place of layernorm
  Mlp mlp_;
  Parameter output_;                   // the output layer [Vp, C]
  Comm& comm_;
  cudaStream_t stream;
  ParameterStore store_;
  int L, C, H, D, A, KD, QKV, F, W, V, Vp, K, Kp;  // KD: channels of keys, QKV = A + 2KD
  Buffers<Real> b{};
  DeviceBlock memory_;
  struct Staging { int* words; cudaEvent_t copied; } staging_[2];  // pinned: a copy overlaps the micro step before it
  int next_staging_ = 0;
  const float* row_weights_ = nullptr;  // of the rows that were uploaded last; nullptr: 1 each
  float* report_;          // pinned [2]
  int64_t rows_seen_ = 0;  // of this step, by this rank
};

// ---------------------------------------------------------------------------------------------------------------------
// Forward

// inputs, targets [N] -> device. The host waits only if the copy before the last one is unfinished.
template <class Real>
void Gpt2<Real>::upload(Activations<Real>& act, const int* inputs, const Targets& targets, int N) {
  Staging& s = staging_[next_staging_];
  next_staging_ ^= 1;
  CUDA_CHECK(cudaEventSynchronize(s.copied));
  ProfileScope scope("upload", stream);
  int* words = s.words;
  auto send = [&](void* to, size_t bytes) {
    CUDA_CHECK(cudaMemcpyAsync(to, words, bytes, cudaMemcpyHostToDevice, stream));
    words += bytes / sizeof(int);
  };
  auto copy = [&](void* to, const void* from, size_t bytes) {
    std::memcpy(words, from, bytes);
    send(to, bytes);
  };
  copy(act.inputs, inputs, N * sizeof(int));
  if (!K && targets.tokens) copy(act.targets, targets.tokens, N * sizeof(int));
  if (targets.values) copy(act.values, targets.values, size_t(N) * K * sizeof(float));
  if (targets.row_weights) copy(act.row_weights, targets.row_weights, N * sizeof(float));
  row_weights_ = targets.row_weights ? act.row_weights : nullptr;
  if (act.sorted) {
    sort_by_token(words, inputs, N, Vp);
    send(act.sorted, size_t(2) * N * sizeof(int));
  }
  if (act.sorted_positions) {
    std::vector<int> positions(N);
    for (int row = 0, T = config_.model.context; row < N; row++)
      positions[row] = row % T == 0 || inputs[row] == config_.data.separator ? 0 : positions[row - 1] + 1;
    sort_by_token(words, positions.data(), N, config_.model.context);
    send(act.sorted_positions, size_t(2) * N * sizeof(int));
  }
  CUDA_CHECK(cudaEventRecord(s.copied, stream));
}

// The gate on queries, keys or values, in place in the product; a.ungated = what it acts on.
template <class Real>
void Gpt2<Real>::gate_qkv(Real* product, Layer& a, int N) {
  if (gated_part(a) < 0) return;
  auto [x, P] = part_of(product, a, gated_part(a));
  int width = gated_part(a) ? KD : A;
  CUDA_CHECK(cudaMemcpy2DAsync(a.ungated, width * sizeof(Real), x, P * sizeof(Real), width * sizeof(Real), N,
                               cudaMemcpyDeviceToDevice, stream));
  gate_forward<Real>({x, P}, {a.ungated, width}, {product + QKV + a.columns.Z, P}, gate_, N, width / D, D, stream);
}

// The input of attention's projection: its output after the operation, the norm and, with_gate, the gate at sdpa.
// a.att, or if one of them changes it act.finished, which both passes compute rather than store.
template <class Real>
const Real* Gpt2<Real>::finished(const Layer& a, Activations<Real>& act, int l, int B, int T, bool with_gate) {
  bool changes = config_.attention.changes_output(), gates = with_gate && gated(a, GatePosition::sdpa);
  const Real* x = changes ? act.finished : a.att;
  if (changes) output_forward(act.finished, a.att, a.qkv, attention_of(a, l, B, T));
  if (gates) gate_forward<Real>({act.finished, A}, {x, A}, logits_of(a), gate_, B * T, H, D, stream);
  return gates ? act.finished : x;
}

// a.gelu = the MLP's function of a.fc.
template <class Real>
void Gpt2<Real>::activate_mlp(Layer& a, int N) {
  if (mlp_ == Mlp::gelu) gelu_forward(a.gelu, a.fc, size_t(N) * F, stream);
  if (mlp_ == Mlp::relu2) relu2_forward(a.gelu, a.fc, size_t(N) * F, stream);
  if (mlp_ == Mlp::swiglu) swiglu_forward(a.gelu, a.fc, N, F, stream);
}

// From a.x, all activations of a layer that the backward pass reads: steps 1 to 10. Step 11 is in forward(). With
// recompute = block the backward pass runs this again.
template <class Real>
void Gpt2<Real>::compute_activations(Layer& a, Activations<Real>& act, int l, int B, int T, bool training) {
  int N = B * T;
  // 1  ln1 = the layernorm of x
  layernorm_forward(a.ln1, a.mean1, a.rstd1, a.x, weight(LN1_W, l), weight(LN1_B, l), N, C, stream, rms_);
  // 2  queries, keys, values and the gate's logits
  Real* product = product_of(a.qkv, act);
  matmul<Real, Real>({.d = product, .a = a.ln1, .b = weight(QKV_W, l), .m = N, .n = a.columns.P, .k = C,
                      .epilogue = Epilogue::bias, .bias = weight(QKV_B, l)}, stream);
  // 3  the gate, if it acts on queries, keys or values; those that heads share are repeated
  gate_qkv(product, a, N);
  if (product != a.qkv) repeat_heads(a.qkv, product, grouped_rows(a, N), stream);
  // 4  queries and keys rotated by their positions, normalised, scaled
  AttentionCall<Real> call = attention_of(a, l, B, T);
  prepare_forward(a.qkv, call);
  // 5  attention, with the bias of its scores
  position_bias_forward(a.bias, decay_of(a), call);
  find_needed_tiles(a.bias, training && b.tiles ? b.tiles + l * H : nullptr, a.qkv, call, counted_);
  attention_forward(a.att, a.att_stats, a.qkv, call, training);
  // 6  the operation on attention's output, its norm, the gate if it acts on it (sdpa): finished()
  // 7  mid = x + the projection of all heads
  bool gate_follows = gated(a, GatePosition::output);
  matmul<Real, Real>({.d = gate_follows ? a.ungated : a.mid, .a = finished(a, act, l, B, T),
                      .b = weight(ATT_PROJ_W, l), .m = N, .n = C, .k = A, .epilogue = Epilogue::bias,
                      .bias = weight(ATT_PROJ_B, l), .c = gate_follows ? nullptr : a.x}, stream);
  // 8  the gate, if it acts on the projection (output): mid = x + gated projection
  if (gate_follows) gate_forward<Real>({a.mid, C}, {a.ungated, C}, logits_of(a), gate_, N, 1, C, stream, {a.x, C});
  // 9  ln2 = the layernorm of mid
  layernorm_forward(a.ln2, a.mean2, a.rstd2, a.mid, weight(LN2_W, l), weight(LN2_B, l), N, C, stream, rms_);
  // 10  the MLP's hidden layer: fc, gelu = GELU(fc), or another function of it
  bool fused = product_makes_gelu();
  matmul<Real, Real>({.d = fused ? a.gelu : a.fc, .a = a.ln2, .b = weight(FC_W, l), .m = N, .n = W, .k = C,
                      .epilogue = fused ? Epilogue::bias_gelu : Epilogue::bias, .bias = weight(FC_B, l),
                      .aux = fused ? a.fc : nullptr}, stream);
  if (!fused) activate_mlp(a, N);
}

// act.lnf = the whole network up to the final layernorm, from act.inputs. classify() makes the logits.
template <class Real>
void Gpt2<Real>::forward(Activations<Real>& act, int B, int T, bool training,
                         const std::function<void(int)>& after_layer) {
  int N = B * T;
  if (b.documents) find_documents(b.documents, act.inputs, config_.data.separator, B, T, stream);
  embedding_forward(act.layers[0].x, act.inputs, weight(WTE), weight(WPE), b.documents, B, T, C, stream);
  for (int l = 0; l < L; l++) {
    Layer& a = act.layers[l];
    compute_activations(a, act, l, B, T, training);  // steps 1 to 10
    // 11  the next layer's x = mid + the MLP's output projection
    matmul<Real, Real>({.d = l + 1 < L ? act.layers[l + 1].x : act.x_final, .a = a.gelu, .b = weight(MLP_PROJ_W, l),
                        .m = N, .n = C, .k = F, .epilogue = Epilogue::bias, .bias = weight(MLP_PROJ_B, l),
                        .c = a.mid}, stream);
    if (after_layer) after_layer(l);
  }
  layernorm_forward(act.lnf, act.meanf, act.rstdf, act.x_final, weight(LNF_W), weight(LNF_B), N, C, stream, rms_);
}

// act.losses = cross-entropy of every row, times its weight. With dloss != 0 also the backward pass of the output
// layer, because each chunk of logits overwrites the one before: b.dnorm = d lnf, gradient of output_ +=, both of dloss
// x the sum of the losses.
template <class Real>
void Gpt2<Real>::classify(Activations<Real>& act, int N, float dloss) {
  if (K) return regress(act, act.values, N, dloss);
  float cap = float(config_.model.logit_cap);
  for (int row = 0; row < N; row += act.logit_rows) {
    int n = std::min(act.logit_rows, N - row);
    Real* x = act.lnf + size_t(row) * C;
    matmul<Real, Real>(
        {.d = act.logits, .a = x, .b = weight(output_), .m = n, .n = Vp, .k = C, .trans_b = true}, stream);
    if (dloss == 0) {
      token_losses(act.losses + row, act.above + row, act.logits, act.targets + row, n, V, Vp, stream, cap);
      continue;
    }
    cross_entropy(act.losses + row, act.logits, act.targets + row, dloss, n, V, Vp, stream,
                  row_weights_ ? row_weights_ + row : nullptr, cap);
    matmul<Real, Real>(
        {.d = b.dnorm + size_t(row) * C, .a = act.logits, .b = weight(output_), .m = n, .n = C, .k = Vp}, stream);
    matmul<Real, float>(
        {.d = gradient(output_), .a = act.logits, .b = x, .m = Vp, .n = C, .k = n, .trans_a = true, .beta = 1}, stream);
  }
}

// The same for a regression head: act.losses are squared errors, of act.outputs. values nullptr: the outputs alone.
template <class Real>
void Gpt2<Real>::regress(Activations<Real>& act, const float* values, int N, float dloss) {
  matmul<Real, float>({.d = act.outputs, .a = act.lnf, .b = weight(HEAD_W), .m = N, .n = Kp, .k = C}, stream);
  squared_error(act.losses, act.outputs, act.doutputs, weight(HEAD_B), values, row_weights_, dloss, N, K, Kp, stream);
  if (dloss == 0) return;
  linear_bias_backward<Real>(gradient(HEAD_B), act.doutputs, b.workspace, N, K, Kp, stream);
  linear_backward(b.dnorm, act.doutputs, act.lnf, HEAD_W, 0, N, C, Kp);
}

// ---------------------------------------------------------------------------------------------------------------------
// Backward: the same steps from the last to the first. Gradients of parameters are +=, gradients of activations =.

// In place in the gradient of the product: that of what the gate acted on, and of its logits.
template <class Real>
void Gpt2<Real>::gate_qkv_backward(Real* dproduct, const Layer& a, int N) {
  if (gated_part(a) < 0) return;
  auto [dx, P] = part_of(dproduct, a, gated_part(a));
  int Z = a.columns.Z, width = gated_part(a) ? KD : A;
  gate_backward<Real>({dx, P}, {dproduct + QKV + Z, P}, P - QKV - Z, {dx, P}, {a.ungated, width}, logits_of(a),
                      gate_, N, width / D, D, stream);
}

// For output [N, out] = input [N, in] W + bias: dW +=; dinput = doutput W^T, and through GELU if before_gelu is given.
// The bias's gradient is linear_bias_backward()'s; where doutput is dx, layernorm_backward() has summed it already.
template <class Real>
void Gpt2<Real>::linear_backward(Real* dinput, const Real* doutput, const Real* input, Parameter w, int l, int N,
                                 int in, int out, Real* before_gelu) {
  matmul<Real, float>({.d = gradient(w, l), .a = input, .b = doutput, .m = in, .n = out, .k = N, .trans_a = true,
                       .beta = 1}, stream);
  matmul<Real, Real>({.d = dinput, .a = doutput, .b = weight(w, l), .m = N, .n = in, .k = out, .trans_b = true,
                      .epilogue = before_gelu ? Epilogue::dgelu : Epilogue::none, .aux = before_gelu}, stream);
}

// b.dx: the gradient of the residual stream, from behind the layer to before it. Steps 11 to 1 of forward().
template <class Real>
void Gpt2<Real>::backward_layer(Activations<Real>& act, int l, int B, int T) {
  int N = B * T;
  Layer& a = act.layers[l];
  auto [Z, G, Q, P] = a.columns;
  if (config_.train.recompute == Recompute::block) compute_activations(a, act, l, B, T, true);
  else if (config_.train.recompute == Recompute::gelu) activate_mlp(a, N);
  Real *dfc = b.dwide, *dqkv = b.dwide, *dln = b.dnorm;
  // 11 and GELU: dx is the gradient of a sum, so of both its terms. Another function's follows: a.gelu = that of its
  //          output, in place
  bool gelu = mlp_ == Mlp::gelu;
  linear_backward(gelu ? dfc : a.gelu, b.dx, a.gelu, MLP_PROJ_W, l, N, F, C, gelu ? a.fc : nullptr);
  if (mlp_ == Mlp::relu2) relu2_backward(dfc, a.gelu, a.fc, size_t(N) * F, stream);
  if (mlp_ == Mlp::swiglu) swiglu_backward(dfc, a.gelu, a.fc, N, F, stream);
  // 10  the MLP's hidden layer
  linear_bias_backward<Real>(gradient(FC_B, l), dfc, b.workspace, N, W, W, stream);
  linear_backward(dln, dfc, a.ln2, FC_W, l, N, C, W);
  // 9  dx += the MLP's part; dx is now the gradient of mid, a sum as well
  bool gate_follows = gated(a, GatePosition::output);
  layernorm_backward(b.dx, gradient(LN2_W, l), gradient(LN2_B, l), gate_follows ? nullptr : gradient(ATT_PROJ_B, l),
                     dln, a.mid, a.mean2, a.rstd2, weight(LN2_W, l), b.workspace, N, C, stream, rms_);
  // 8  the gate at the output; its logits are columns 3A+Z.. of qkv, so their gradients are columns 3A+Z.. of dqkv
  Matrix<Real> dlogits = dlogits_of(dqkv, a);
  Real* dprojected = b.dx;
  if (gate_follows) {
    dprojected = b.dnorm;
    gate_backward<Real>({dprojected, C}, dlogits, Q - 3 * A - Z, {b.dx, C}, {a.ungated, C}, logits_of(a), gate_,
                        N, 1, C, stream);
  }
  // 7  the projection
  if (gate_follows) linear_bias_backward<Real>(gradient(ATT_PROJ_B, l), dprojected, b.workspace, N, C, C, stream);
  linear_backward(b.datt, dprojected, finished(a, act, l, B, T), ATT_PROJ_W, l, N, A, C);
  // 6  the gate at sdpa; the norm of attention's output and the operation on it
  AttentionCall<Real> call = attention_of(a, l, B, T);
  if (gated(a, GatePosition::sdpa))
    gate_backward<Real>({b.datt, A}, dlogits, Q - 3 * A - Z, {b.datt, A}, {finished(a, act, l, B, T, false), A},
                        logits_of(a), gate_, N, H, D, stream);
  if (call.settings.changes_output()) output_backward(b.datt, b.along, a.att, a.qkv, call);
  // 5 and 4  attention; rotation, norms, scale; the bias, whose logits' gradients are columns 3A .. 3A+Z of dqkv
  bool changes = gated_part(a) >= 0 || b.along || act.narrow;  // dqkv, below
  if (!changes && config_.model.bias) call.dqkv_sums = gradient(QKV_B, l);
  attention_backward(dqkv, b.datt, a.att, a.att_stats, a.qkv, b.workspace, call, true);
  output_backward_values(dqkv, b.datt, b.along, a.att, a.qkv, call);
  position_bias_backward<Real>({dqkv + 3 * A, Q}, G ? Z : Q - 3 * A, decay_of(a), b.workspace, call);
  // 3  the sums over groups of heads; the gate on queries, keys or values
  Real* dproduct = product_of(dqkv, act);
  if (dproduct != dqkv) add_repeated_heads(dproduct, dqkv, grouped_rows(a, N), stream);
  gate_qkv_backward(dproduct, a, N);
  // 2  queries, keys, values and the gate's logits
  int biased = gradient(GATE_B, l) ? P : QKV + Z;  // a gate may have no bias: its columns must stay zero
  int summed = call.dqkv_sums || !config_.model.bias ? QKV : 0;  // those of q, k and v may have none
  linear_bias_backward<Real>(gradient(QKV_B, l) ? gradient(QKV_B, l) + summed : nullptr, dproduct + summed,
                             b.workspace, N, biased - summed, P, stream);
  linear_backward(dln, dproduct, a.ln1, QKV_W, l, N, C, P);
  if (G && gate_.input == GateInput::none)  // the columns of its logits have no weights: theirs stay zero
    CUDA_CHECK(cudaMemset2DAsync(gradient(QKV_W, l) + QKV + Z, P * sizeof(float), 0, G * sizeof(float), C, stream));
  // 1  dx += attention's part
  layernorm_backward(b.dx, gradient(LN1_W, l), gradient(LN1_B, l), l > 0 ? gradient(MLP_PROJ_B, l - 1) : nullptr,
                     dln, a.x, a.mean1, a.rstd1, weight(LN1_W, l), b.workspace, N, C, stream, rms_);
}

// From b.dnorm = d lnf, left by classify().
template <class Real>
void Gpt2<Real>::backward(Activations<Real>& act, int B, int T) {
  int N = B * T;
  zero(b.dx, size_t(N) * C, stream);
  layernorm_backward(b.dx, gradient(LNF_W), gradient(LNF_B), gradient(MLP_PROJ_B, L - 1), b.dnorm, act.x_final,
                     act.meanf, act.rstdf, weight(LNF_W), b.workspace, N, C, stream, rms_);
  for (int l = L - 1; l >= 0; l--) {
    backward_layer(act, l, B, T);
    reduce_from(store_.layout().layer_begin[l]);
  }
  const int* positions = act.sorted_positions;
  embedding_backward(gradient(WTE), positions ? nullptr : gradient(WPE), b.dx, act.sorted, b.workspace, B, T, C,
                     stream);
  if (positions) embedding_backward(gradient(WPE), nullptr, b.dx, positions, b.workspace, B, T, C, stream);
  reduce_from(0);
}

// Gradients from this offset on are complete: the ranks sum them while the rest of the backward pass runs.
template <class Real>
void Gpt2<Real>::reduce_from(size_t offset) {
  if (!last_micro_step()) return;
  store_.reduce_from(offset);
  spare_multiprocessors_ = comm_.multiprocessors();  // until reduce_and_clip() has waited for the sums
}

// ---------------------------------------------------------------------------------------------------------------------
// The step

template <class Real>
void Gpt2<Real>::begin_step() {
  phase("update", stream);
  store_.begin_step();
  zero(b.loss_sum, 1, stream);
  if (b.tiles) zero(b.tiles, size_t(L) * H, stream);
  rows_seen_ = 0;
}

template <class Real>
std::vector<TileCount> Gpt2<Real>::tiles() {
  if (!b.tiles) return {};
  std::vector<float2> counts(size_t(L) * H);
  CUDA_CHECK(cudaMemcpyAsync(counts.data(), b.tiles, counts.size() * sizeof(float2), cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  std::vector<TileCount> tiles;
  for (float2 count : counts) tiles.push_back({double(count.x), double(count.y)});
  return tiles;
}

template <class Real>
void Gpt2<Real>::forward_backward(const int* inputs, const Targets& targets) {
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
StepResult Gpt2<Real>::reduce_and_clip(float grad_clip) {
  phase("update", stream);
  comm_.before(stream);  // losses and gradients are those of all ranks
  spare_multiprocessors_ = 0;
  const float* norm = store_.clip(grad_clip);
  CUDA_CHECK(cudaMemcpyAsync(report_, b.loss_sum, sizeof(float), cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaMemcpyAsync(report_ + 1, norm, sizeof(float), cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  return {report_[0] / float(rows_seen_ * comm_.size()), report_[1]};
}

template <class Real>
void Gpt2<Real>::update(const AdamW& settings, const Muon& muon) {
  store_.update(settings, muon);
  phase(nullptr, stream);
}

// ---------------------------------------------------------------------------------------------------------------------
// Evaluation

template <class Real>
void Gpt2<Real>::set_length(int length) {
  const Config::Model& m = config_.model;
  layers_.clear();
  for (int l = 0; l < L; l++) layers_.push_back(config_.layer(l, length));
  if (!b.rope) return;
  RopeScaling scaling = config_.eval.rope_scaling;
  double factor = std::max(1.0, double(length) / m.context);
  std::vector<float2> table = rope_table(std::max(length, m.context), D, m.rope_base, scaling, factor, m.rope_fraction);
  scale_factor_ = rope_scale_factor(scaling, factor);
  CUDA_CHECK(cudaMemcpyAsync(b.rope, table.data(), table.size() * sizeof(float2), cudaMemcpyHostToDevice, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
}

template <class Real>
void Gpt2<Real>::losses(float* losses, const int* inputs, const Targets& targets, int B, int T, int* above) {
  int N = B * T;
  Activations<Real>& act = b.evaluation;
  upload(act, inputs, targets, N);
  forward(act, B, T, false);
  classify(act, N, 0);
  CUDA_CHECK(cudaMemcpyAsync(losses, act.losses, N * sizeof(float), cudaMemcpyDeviceToHost, stream));
  if (above && K == 0) CUDA_CHECK(cudaMemcpyAsync(above, act.above, N * sizeof(int), cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
}

template <class Real>
void Gpt2<Real>::outputs(float* outputs, const int* inputs, int B, int T) {
  Activations<Real>& act = b.evaluation;
  upload(act, inputs, nullptr, B * T);
  forward(act, B, T, false);
  regress(act, nullptr, B * T, 0);
  CUDA_CHECK(cudaMemcpy2DAsync(outputs, K * sizeof(float), act.outputs, Kp * sizeof(float), K * sizeof(float), B * T,
                               cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
}

template <class Real>
void Gpt2<Real>::diagnose(const int* inputs, int B, int T, int counted,
                          const std::function<void(const LayerStatistics&)>& see) {
  int N = counted * T;
  Activations<Real>& act = b.evaluation;
  std::vector<float> of_rows(size_t(B) * T * H * row_statistics(T)), of_gate;
  LayerStatistics statistics{0, of_rows, of_gate, {}, {}};
  std::vector<Real> x(size_t(N) * C);
  auto download = [&](auto& to, const auto* from) {
    CUDA_CHECK(cudaMemcpyAsync(to.data(), from, to.size() * sizeof(to[0]), cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
  };
  upload(act, inputs, inputs, B * T);
  family_ = "general";  // they save what attention_diagnose() reads
  counted_ = counted;
  if (b.tiles) zero(b.tiles, size_t(L) * H, stream);
  forward(act, B, T, true, [&](int l) {
    Layer& a = act.layers[l];
    bool mixed = gated(a, GatePosition::output);
    int heads = mixed ? 1 : gated_part(a) > 0 ? KD / D : H, width = mixed ? C : heads * D;
    statistics.layer = l;
    statistics.gate.resize(heads * GATE_STATISTICS);
    gate_statistics<Real>(b.statistics, {a.ungated ? a.ungated : finished(a, act, l, B, T, false), width}, logits_of(a),
                          layers_[l].attention.gate, N, heads, width / heads, stream);
    download(statistics.gate, b.statistics);
    attention_diagnose(b.statistics, a.att_stats, a.qkv, attention_of(a, l, B, T));
    download(statistics.rows, b.statistics);
    statistics.tiles = tiles();
    download(x, l + 1 < L ? act.layers[l + 1].x : act.x_final);
    statistics.x.clear();
    for (Real value : x) statistics.x.push_back(to_float(value));
    see(statistics);
  });
  family_ = nullptr, counted_ = INT_MAX;
}

template <class Real>
void Gpt2<Real>::row_logits(float* logits, const int* inputs, int B, int T, const std::vector<int>& rows) {
  Activations<Real>& act = b.evaluation;
  upload(act, inputs, inputs, B * T);
  forward(act, B, T, false);
  std::vector<Real> values(V);
  for (int row : rows) {
    matmul<Real, Real>({.d = act.logits, .a = act.lnf + size_t(row) * C, .b = weight(output_), .m = 1, .n = Vp, .k = C,
                        .trans_b = true}, stream);
    CUDA_CHECK(cudaMemcpyAsync(values.data(), act.logits, V * sizeof(Real), cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    float cap = float(config_.model.logit_cap);
    for (Real value : values) *logits++ = cap > 0 ? cap * std::tanh(to_float(value) / cap) : to_float(value);
  }
}

std::unique_ptr<Model> make_model(const Config& config, size_t eval_rows, int eval_length, bool training, Comm& comm,
                                  const RunFacts& facts) {
  if (config.precision == Precision::bf16)
    return std::make_unique<Gpt2<bf16>>(config, eval_rows, eval_length, training, comm, facts);
  return std::make_unique<Gpt2<float>>(config, eval_rows, eval_length, training, comm, facts);
}
