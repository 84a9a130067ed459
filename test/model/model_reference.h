// A reference of the whole GPT-2 for the tests: forward and backward in the arithmetic of a policy
// (test/support/compare.h), built from the references of its parts. Parameters and gradients are found by name, in
// Hugging Face's layouts, without padding.
#pragma once
#include <map>
#include <numeric>
#include <string>

#include "attention/position_bias.cuh"
#include "attention/prepare.cuh"
#include "settings/config.h"
#include "test/attention/attention_reference.h"
#include "test/attention/gate_reference.h"
#include "test/attention/output_reference.h"
#include "test/kernels/reference.h"
#include "train_gpt2.h"

template <class P> struct WideOf {
  using type = P;
};  // the arithmetic of parameter gradients, which are float32 in any precision
template <class T> struct WideOf<Naive<T>> { using type = Naive<float>; };

template <class P> class ReferenceModel {
 public:
  using R = Real<P>;
  using Array = Reals<P>;
  std::map<std::string, Array> parameters, gradients;
  Array losses;  // [N], of the last call
  Array logits;  // [N, V], of the last call without a regression head

  explicit ReferenceModel(const Config& config) : config_(config), settings_{config.attention, config.model.context} {
    settings_.documents = Documents::joined;
    const Config::Model& m = config.model;
    L = m.layers, C = m.channels, H = m.heads, D = m.head_dim, A = H * D, F = m.mlp_width(), V = m.vocab,
    K = m.head.outputs, kv_heads = m.kv_heads;
    W = m.mlp_columns();
    rms_ = m.norm == Norm::rmsnorm;
    output_ = m.tied ? "wte.weight" : "lm_head.weight";
    gate_ = config.attention.gate;
    G = gate_case(1).G();
  }

  // Parameters as the kernels see them: the masters rounded to the storage type.
  void take_parameters(Model& model) {
    for (const Tensor& tensor : model.parameters().tensors()) {
      std::vector<float> values(tensor.size);
      model.parameters().read(tensor, Part::parameters, values.data());
      Array& own = parameters[tensor.name];
      own.assign(values.begin(), values.end());
      for (R& x : own) x = P::round(x);
    }
  }

  std::vector<float> weights, values;  // [N], [N, K], if set: of the rows; what a regression head is to say

  // The mean loss of the batch [B, T]; gradients = its derivatives.
  double loss_and_gradients(const std::vector<int>& inputs, const std::vector<int>& targets, int B, int T) {
    double loss = forward(inputs, targets, B, T);
    backward(inputs, B, T);
    return loss;
  }

  // The same, with each document (attention.documents = separate) as a batch of its own.
  double loss_and_gradients_of_documents(const std::vector<int>& inputs, const std::vector<int>& targets, int B,
                                         int T) {
    std::map<std::string, Array> sums;
    double loss = 0, N = B * T;
    for (int row = 0, end = 0; row < N; row = end) {
      for (end = row + 1; end % T != 0 && inputs[end] != config_.data.separator;) end++;
      auto part = [&](const auto& all) { return std::vector(all.begin() + row, all.begin() + end); };
      double share = (end - row) / N;
      loss += share * loss_and_gradients(part(inputs), part(targets), 1, end - row);
      for (auto& [name, gradient] : gradients) {
        Array& sum = sums[name];
        sum.resize(gradient.size());
        for (size_t i = 0; i < sum.size(); i++) sum[i] += R(share) * gradient[i];
      }
    }
    gradients = sums;
    return loss;
  }

  double forward(const std::vector<int>& inputs, const std::vector<int>& targets, int B, int T) {
    int N = B * T;
    layers_.assign(L, {});
    Array x = ref_embedding<P>(inputs, parameters["wte.weight"], parameters["wpe.weight"], T, C);
    auto layernorm = [&](const std::string& name) {
      return ref_layernorm<P>(x, parameters[name + ".weight"], parameters[name + ".bias"], N, C, rms_);
    };
    for (int l = 0; l < L; l++) {
      Layer& a = layers_[l];
      std::string h = format("h.%d.", l);
      a.ln1 = layernorm(h + "ln_1");
      a.narrow = linear(a.ln1.out, h + "attn.c_attn", N, C, QKV(), 1).d;
      a.gated = gate_.activation != GateActivation::none && own(l).gated;
      if (a.gated && gate_.input == GateInput::none)
        for (int n = 0; n < N; n++) std::ranges::copy(parameters[h + "attn.c_gate.bias"], std::back_inserter(a.logits));
      else if (a.gated)
        a.logits = linear(a.ln1.out, h + "attn.c_gate", N, C, G, parameters.count(h + "attn.c_gate.bias") ? 1 : 0).d;
      for (int part = 0; part < 3; part++)
        if (gated(a, part_position(part)))
          put_narrow(a.narrow, part, gate(a.ungated = get_narrow(a.narrow, part), a.logits, N));
      a.qkv = repeated(a.narrow);
      settings_.scale_factor = rope_scale_factor(scaling(), stretch(T));
      if (setup(l).bias != Bias::none) a.bias = bias(setup(l).bias, a.ln1.out, h, B, T, a.decay);
      a.prepared = ref_prepare<P>(setup(l), {B, T, H, D}, a.qkv, rope(T, l));
      a.att = ref_attention<P>(setup(l), {B, T, H, D}, a.prepared, {}, 0, a.bias);
      a.gated_att = output(l, a, B, T).y;
      if (gated(a, GatePosition::sdpa)) a.ungated = a.gated_att, a.gated_att = gate(a.ungated, a.logits, N);
      if (gated(a, GatePosition::output)) {
        a.ungated = linear(a.gated_att, h + "attn.c_proj", N, A, C, 1).d;
        add(x, gate(a.ungated, a.logits, N));
      } else {
        x = linear(a.gated_att, h + "attn.c_proj", N, A, C, 1, x).d;
      }
      a.ln2 = layernorm(h + "ln_2");
      a.mlp = mlp(a.ln2.out, h + "mlp.c_fc", N);
      x = linear(a.mlp.d, h + "mlp.c_proj", N, F, C, 1, x).d;
    }
    final_ = layernorm("ln_f");
    if (K) {
      Array zero(size_t(N) * K);
      Array y = ref_matmul<typename WideOf<P>::type>(zero, final_.out, parameters["head.weight"], N, K, C, false, false,
                                                     K, C, K)
                    .d;
      squared_ = ref_squared_error<P>(y, parameters["head.bias"], values, weights, 1.0 / N, K, K);
      losses.assign(squared_.losses.begin(), squared_.losses.end());
      return std::accumulate(losses.begin(), losses.end(), R(0)) / N;
    }
    logits.assign(size_t(N) * V, 0);
    logits = ref_matmul<P>(logits, final_.out, parameters[output_], N, V, C, false, true, V, C, C).d;
    classified_ = ref_cross_entropy<P>(logits, targets, 1.0 / N, V, V, weights, config_.model.logit_cap);
    losses = classified_.losses;
    return std::accumulate(losses.begin(), losses.end(), R(0)) / N;
  }

 private:
  struct Layer {
    RefLayernorm<P> ln1, ln2;  // .x is the residual stream that they normalise
    Array narrow, qkv, prepared, att, gated_att, logits, ungated, decay;
    bool gated;
    Numbers<Exact> bias;
    RefMatmul<P> mlp;  // .aux before GELU, .d after
  };

  static void add(Array& to, const Array& more) {
    for (size_t i = 0; i < to.size(); i++) to[i] = P::round(to[i] + more[i]);
  }

  RefOutput<P> output(int l, const Layer& a, int B, int T) const {
    return {setup(l), {B, T, H, D}, a.att, get_part(a.prepared, 2)};
  }

  // ---- the gate
  bool gated(const Layer& a, GatePosition position) const { return a.gated && gate_.position == position; }
  static GatePosition part_position(int part) {
    return part == 0 ? GatePosition::query : part == 1 ? GatePosition::key : GatePosition::value;
  }
  GateCase gate_case(int N) const {
    bool output = gate_.position == GatePosition::output;
    bool of_kv = gate_.position == GatePosition::key || gate_.position == GatePosition::value;
    return {gate_, N, output ? 1 : of_kv ? kv_heads : H, output ? C : D};
  }
  Array gate(const Array& x, const Array& logits, int N) const { return ref_gate<P>(gate_case(N), x, logits); }
  // dx from dy; the gradient of the logits is kept for the products before.
  Array gate_backward(const Array& dy, const Layer& a, int N) {
    GateGradients<P> gradients = ref_gate_backward<P>(gate_case(N), dy, a.ungated, a.logits);
    dlogits_ = gradients.dg;
    return gradients.dx;
  }
  Array get_part(const Array& qkv, int part) const {
    return part_of(AttentionShape{1, int(qkv.size()) / (3 * A), H, D}, qkv, part);
  }
  void put_part(Array& qkv, int part, const Array& x) const {
    for (size_t row = 0; row < qkv.size() / (3 * A); row++)
      std::copy(x.begin() + row * A, x.begin() + (row + 1) * A, qkv.begin() + (row * 3 + part) * A);
  }

  // The product's rows [N, QKV]: q of all heads, k and v of kv_heads, each used by a group of heads one after another.
  int QKV() const { return A + 2 * kv_heads * D; }
  int heads_of(int part) const { return part == 0 ? H : kv_heads; }
  int begin_of(int part) const { return part == 0 ? 0 : A + (part - 1) * kv_heads * D; }
  Array get_narrow(const Array& narrow, int part) const {
    Array x;
    for (auto row = narrow.begin(); row != narrow.end(); row += QKV())
      x.insert(x.end(), row + begin_of(part), row + begin_of(part) + heads_of(part) * D);
    return x;
  }
  void put_narrow(Array& narrow, int part, const Array& x) const {
    size_t width = size_t(heads_of(part)) * D;
    for (size_t row = 0; row < narrow.size() / QKV(); row++)
      std::copy(x.begin() + row * width, x.begin() + (row + 1) * width, narrow.begin() + row * QKV() + begin_of(part));
  }
  // f(index of a repeated element in [N, 3, H, D], index of what it repeats in narrow)
  template <class F> void for_repeated(size_t rows, F f) const {
    for (size_t row = 0; row < rows; row++)
      for (int part = 0; part < 3; part++)
        for (int i = 0; i < A; i++) {
          int head = i / D * heads_of(part) / H;
          f((row * 3 + part) * A + i, row * QKV() + begin_of(part) + head * D + i % D);
        }
  }
  Array repeated(const Array& narrow) const {
    Array qkv(narrow.size() / QKV() * 3 * A);
    for_repeated(narrow.size() / QKV(), [&](size_t to, size_t from) { qkv[to] = narrow[from]; });
    return qkv;
  }
  Array added(const Array& dqkv) const {
    Array sums(dqkv.size() / (3 * A) * QKV(), 0);
    for_repeated(dqkv.size() / (3 * A), [&](size_t from, size_t to) { sums[to] += dqkv[from]; });
    for (R& x : sums) x = P::round(x);
    return sums;
  }

  // c [B, H, T]; decay [N, H]: its logits
  Numbers<Exact> bias(Bias kind, const Array& x, const std::string& h, int B, int T, Array& decay) {
    Numbers<Exact> c(size_t(B) * H * T);
    if (kind != Bias::alibi) decay = linear(x, h + "attn.c_decay", B * T, C, H, 1).d;
    for (int b = 0; b < B; b++)
      for (int head = 0; head < H; head++) {
        double sum = 0;
        for (int t = 0; t < T; t++) {
          double& at = c[(size_t(b) * H + head) * T + t];
          if (kind == Bias::alibi) {
            at = -std::pow(2.0, -8.0 * (head + 1) / H) * t;
          } else {
            R g = decay[(size_t(b) * T + t) * H + head];
            at = sum += std::log(kind == Bias::fox ? ref_sigmoid(g) : ref_sigmoid(-g));
          }
        }
      }
    return c;
  }
  // dlogits [N, H] from the gradient of c
  Array bias_backward(Bias kind, const Array& dc, const Array& decay, int B, int T) const {
    Array d(decay.size());
    for (int b = 0; b < B; b++)
      for (int head = 0; head < H; head++) {
        double sum = 0;
        for (int t = T - 1; t >= 0; t--) {
          size_t n = (size_t(b) * T + t) * H + head;
          sum += dc[(size_t(b) * H + head) * T + t];
          d[n] = P::round(R(sum) * (kind == Bias::fox ? ref_sigmoid(-decay[n]) : -ref_sigmoid(decay[n])));
        }
      }
    return d;
  }

  // Of attention.layers, for layer l.
  LayerEntry own(int l) const {
    return config_.layers.empty() ? LayerEntry() : config_.layers[l % config_.layers.size()];
  }
  // Names of the learned numbers of a kind.
  static std::vector<std::string> learned(int l, Kind kind) {
    std::vector<std::string> names;
    for (const LearnedNumber& number : kind_row(kind).learned)
      names.push_back(format("h.%d.attn.score.%s", l, number.name));
    return names;
  }
  AttentionSetup setup(int l) const {
    AttentionSetup s = settings_;
    LayerEntry entry = own(l);
    if (entry.says("window")) s.window = entry.window;
    if (entry.says("kind")) s.kind = entry.kind;
    if (entry.says("bias")) s.bias = entry.bias;
    if (s.kind != Kind::softmax) s.sink = Sink::none;
    for (const std::string& name : learned(l, s.kind))
      for (R x : parameters.at(name)) s.learned.push_back(as_double(x));
    return s;
  }

  RopeScaling scaling() const { return config_.eval.rope_scaling; }
  double stretch(int T) const { return std::max(1.0, double(T) / config_.model.context); }
  std::vector<float2> rope(int T, int l) const {
    if (config_.model.position != Position::rope || !own(l).rotated) return {};
    auto table = rope_table(T, D, config_.model.rope_base, scaling(), stretch(T));
    for (size_t i = 0; i < table.size(); i++)
      if (i % (D / 2) >= std::round(config_.model.rope_fraction * (D / 2))) table[i] = {1, 0};
    return table;
  }

  // .aux before the MLP's function, .d after it
  RefMatmul<P> mlp(const Array& x, const std::string& name, int N) {
    Mlp function = config_.model.mlp;
    if (function == Mlp::gelu && config_.model.bias) return linear(x, name, N, C, F, 2);
    RefMatmul<P> r;
    r.aux = linear(x, name, N, C, W, 1).d, r.d = r.aux;
    if (function == Mlp::swiglu) r.d = ref_swiglu<P>(r.aux, N, F);
    else
      for (R& y : r.d) y = function == Mlp::gelu ? ref_gelu<P>(y) : ref_relu2<P>(y);
    return r;
  }
  // [N, W] from the gradient of mlp().d
  Array mlp_backward(Array d, const Array& before, int N) const {
    if (config_.model.mlp == Mlp::swiglu) return ref_swiglu_backward<P>(d, before, N, F);
    for (size_t i = 0; i < d.size(); i++) d[i] = P::round(d[i] * ref_relu2_grad<P>(before[i]));
    return d;
  }

  // .d = x W + bias if it has one, + residual if there is one
  RefMatmul<P> linear(const Array& x, const std::string& name, int N, int in, int out, int epilogue,
                      const Array& residual = {}) {
    Array d(size_t(N) * out), aux(epilogue == 2 ? d.size() : 0);
    if (epilogue == 1 && parameters[name + ".bias"].empty()) epilogue = 0;
    return ref_matmul<P>(residual.empty() ? d : residual, x, parameters[name + ".weight"], N, out, in, false, false,
                         out, in, out, !residual.empty(), epilogue, parameters[name + ".bias"], aux);
  }

  // dinput [N, in]; gradients of weight and bias.
  Array linear_backward(const Array& doutput, const Array& input, const std::string& name, int N, int in, int out,
                        const Array& before_gelu = {}) {
    using Wide = typename WideOf<P>::type;
    Array zero(size_t(in) * out), dinput(size_t(N) * in), dbias(out, 0);
    gradients[name + ".weight"] = ref_matmul<Wide>(zero, input, doutput, in, out, N, true, false, out, in, out).d;
    ref_bias_backward<P>(dbias, doutput, N, out, out);
    gradients[name + ".bias"] = dbias;
    return ref_matmul<P>(dinput, doutput, parameters[name + ".weight"], N, in, out, false, true, in, out, out, 0,
                         before_gelu.empty() ? 0 : 3, {}, before_gelu)
        .d;
  }

  void layernorm_backward(Array& dx, const Array& dout, const RefLayernorm<P>& norm, const std::string& name, int N) {
    Array dgamma(C, 0), dbeta(C, 0);
    ref_layernorm_backward<P>(dx, dgamma, dbeta, dout, norm.x, norm.mean, norm.rstd, parameters[name + ".weight"], N, C,
                              rms_);
    gradients[name + ".weight"] = dgamma;
    gradients[name + ".bias"] = dbeta;
  }

  void backward(const std::vector<int>& inputs, int B, int T) {
    using Wide = typename WideOf<P>::type;
    int N = B * T;
    Array dx(size_t(N) * C, 0), dln(size_t(N) * C);
    Array dwte(size_t(V) * C, 0), dhead = dwte, dwpe(parameters["wpe.weight"].size(), 0);
    if (K) {
      dln = linear_backward(squared_.dy, final_.out, "head", N, C, K);
    } else {
      dln = ref_matmul<P>(dln, classified_.dlogits, parameters[output_], N, C, V, false, false, C, V, C).d;
      dhead = ref_matmul<Wide>(dhead, classified_.dlogits, final_.out, V, C, N, true, false, C, V, C).d;
    }
    layernorm_backward(dx, dln, final_, "ln_f", N);
    for (int l = L - 1; l >= 0; l--) {
      Layer& a = layers_[l];
      std::string h = format("h.%d.", l);
      bool gelu = config_.model.mlp == Mlp::gelu;
      Array dfc = linear_backward(dx, a.mlp.d, h + "mlp.c_proj", N, F, C, gelu ? a.mlp.aux : Array());
      if (!gelu) dfc = mlp_backward(dfc, a.mlp.aux, N);
      layernorm_backward(dx, linear_backward(dfc, a.ln2.out, h + "mlp.c_fc", N, C, W), a.ln2, h + "ln_2", N);
      Array dprojected = gated(a, GatePosition::output) ? gate_backward(dx, a, N) : dx;
      Array datt = linear_backward(dprojected, a.gated_att, h + "attn.c_proj", N, A, C);
      if (gated(a, GatePosition::sdpa)) datt = gate_backward(datt, a, N);
      Array dvalues;
      output(l, a, B, T).backward(Array(datt), datt, dvalues);
      Array dbias(a.bias.size()), dlearned(setup(l).learned.size());
      Array dprepared = ref_attention_backward<P>(setup(l), {B, T, H, D}, a.prepared, datt, {}, nullptr, nullptr, 0,
                                                  a.bias, &dbias, &dlearned);
      for (auto from = dlearned.begin(); const std::string& name : learned(l, setup(l).kind))
        gradients[name] = Array(from, from + H), from += H;
      add(dvalues, get_part(dprepared, 2));
      put_part(dprepared, 2, dvalues);
      Array dqkv = ref_prepare_backward<P>(setup(l), {B, T, H, D}, a.qkv, dprepared, rope(T, l));
      Array dnarrow = added(dqkv);
      for (int part = 0; part < 3; part++)
        if (gated(a, part_position(part))) put_narrow(dnarrow, part, gate_backward(get_narrow(dnarrow, part), a, N));
      Array dln = linear_backward(dnarrow, a.ln1.out, h + "attn.c_attn", N, C, QKV());
      if (!a.decay.empty())
        add(dln, linear_backward(bias_backward(setup(l).bias, dbias, a.decay, B, T), a.ln1.out, h + "attn.c_decay", N,
                                 C, H));
      if (a.gated && gate_.input == GateInput::none)
        ref_bias_backward<P>(gradients[h + "attn.c_gate.bias"] = Array(G), dlogits_, N, G, G);
      else if (a.gated) add(dln, linear_backward(dlogits_, a.ln1.out, h + "attn.c_gate", N, C, G));
      layernorm_backward(dx, dln, a.ln1, h + "ln_1", N);
    }
    if (config_.model.tied && !K) dwte = dhead;
    else if (!K) gradients[output_] = dhead;
    ref_embedding_backward<P>(dwte, dwpe, dx, inputs, T, C);
    gradients["wte.weight"] = dwte;
    if (!dwpe.empty()) gradients["wpe.weight"] = dwpe;
    std::erase_if(gradients, [&](const auto& of) { return parameters.at(of.first).empty(); });  // of biases
  }

  Config config_;
  AttentionSetup settings_;
  GateSettings gate_;
  int L, C, H, D, A, F, W, V, G, K, kv_heads;
  bool rms_;
  std::string output_;
  Array dlogits_;
  std::vector<Layer> layers_;
  RefLayernorm<P> final_;
  RefCrossEntropy<P> classified_;
  RefSquaredError<P> squared_;
};
