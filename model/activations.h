// A model's device memory besides its parameters: the activations that the forward pass leaves for the backward
// pass, and the workspace of both. The letters of the shapes are train_gpt2.cu's.
#pragma once
#include <algorithm>
#include <functional>
#include <vector>

#include "attention/attention.h"
#include "attention/gate.cuh"
#include "attention/prepare.cuh"
#include "kernels/device_memory.h"
#include "kernels/embedding.cuh"
#include "kernels/layernorm.cuh"
#include "kernels/linear_bias.cuh"
#include "model/shape.h"

template <class Real> struct LayerActivations {
  QkvColumns columns;

  Real* x;        // [N, C]  the residual stream that enters the layer
  Real* ln1;      // [N, C]
  Real* qkv;      // [N, Q]  Q = 3A and the gate's logits; q and k already prepared (rotated, normalised, scaled)
  Real* att;      // [N, A]  output of attention
  Real* ungated;  // [N, A], or [N, C] at the output projection: what the gate acts on, unless it is at sdpa
  Real* mid;      // [N, C]  the residual stream between attention and MLP
  Real* ln2;      // [N, C]
  Real* fc;       // [N, W]  before the MLP's function: W = F, or 2F with SwiGLU
  Real* gelu;     // [N, F]  after it; the backward pass leaves the gradient here if it is not GELU
  float *mean1, *rstd1, *mean2, *rstd2;  // [N]; no mean with RMSNorm
  float* qk_norms;                       // [N, 2, H] or nullptr
  float* att_stats;                      // [statistics, B, H, T]
  float* bias;                           // [bias_floats()] or nullptr
};

// The arrays of one pass over N rows. Training keeps every layer's arrays for the backward pass (except those that it
// computes again, config.train.recompute); evaluation has one layer's arrays, which all layers use in turn.
template <class Real> struct Activations {
  std::vector<LayerActivations<Real>> layers;
  Real* x_final;            // [N, C]  the residual stream that leaves the last layer
  Real* lnf;                // [N, C]
  float *meanf, *rstdf;     // [N]; no mean with RMSNorm
  Real* narrow;             // [N, P]  a layer's product, or its gradient, where groups of heads share keys and values
  Real* finished;           // [N, A]  attention's output after its operation, norm and gate; recomputed by the backward
  Real* logits;             // [logit_rows, Vp]; nullptr with a regression head, and without one:
  float *outputs, *values;  // [N, Kp], [N, K]  the head's outputs and their targets
  Real* doutputs;           // [N, Kp]
  int logit_rows;
  float* losses;          // [N]
  int* above;             // [N]  of an evaluation, token_losses()
  int *inputs, *targets;  // [N]
  int* sorted;            // [2, N], in training: sort_by_token()'s of the inputs
  int* sorted_positions;  // [2, N], in training with positions that are learned and begin anew: the same of these
  float* row_weights;     // [N], nullptr without labels: what each row's loss counts

  void plan(MemoryPlan& plan, const Config& config, size_t N, bool training, const char* category) {
    plan_layers(plan, config, N, training, category);
    const Config::Model& m = config.model;
    size_t C = m.channels, A = size_t(m.heads) * m.head_dim;
    size_t widest = 0;
    bool finishes = config.attention.changes_output();
    for (const LayerActivations<Real>& layer : layers) {
      widest = std::max(widest, size_t(layer.columns.P));
      finishes |= config.attention.gate.position == GatePosition::sdpa && layer.columns.G > 0;
    }
    plan.add(&narrow, m.kv_heads < m.heads ? N * widest : 0, category);
    plan.add(&x_final, N * C, category);
    plan.add(&lnf, N * C, category);
    plan.add(&meanf, m.norm == Norm::rmsnorm ? 0 : N, category);
    plan.add(&rstdf, N, category);
    plan.add(&finished, finishes ? N * A : 0, category);
    plan.add(&losses, N, category);
    plan.add(&above, training || config.model.head.outputs ? 0 : N, category);
    plan.add(&inputs, N, category);
    plan.add(&targets, N, category);
    plan.add(&sorted, training ? 2 * N : 0, category);
    bool begin_anew = config.attention.documents == Documents::separate && m.position == Position::learned;
    plan.add(&sorted_positions, training && begin_anew ? 2 * N : 0, category);
    size_t K = config.model.head.outputs, Kp = padded_outputs(config);
    plan.add(&outputs, N * Kp, category);
    plan.add(&values, N * K, category);
    plan.add(&doutputs, training ? N * Kp : 0, category);
    plan.add(&row_weights, training && !config.data.labels.empty() ? N : 0, category);
    // Logits of all N rows would be the largest array of all (6.6 GB for GPT-2 at 64 x 1024): they are computed by
    // chunks of rows of equal size. Each chunk reads and writes the gradient of wte, and its products must fill a GPU.
    size_t Vp = padded_vocab(config), most = size_t(1) << (planned_for_cpu(config) ? 28 : 30);
    size_t chunks = std::max<size_t>(1, (N * Vp + most - 1) / most);
    logit_rows = int(std::min(N, round_up((N + chunks - 1) / chunks, 128)));
    plan.add(&logits, K ? 0 : size_t(logit_rows) * Vp, training ? "logits" : category);
  }

 private:
  void plan_layers(MemoryPlan& plan, const Config& config, size_t N, bool training, const char* category) {
    const Config::Model& m = config.model;
    size_t C = m.channels, A = size_t(m.heads) * m.head_dim;
    bool keep = training && config.train.recompute != Recompute::block,
         keep_gelu = keep && config.train.recompute != Recompute::gelu;
    layers.assign(m.layers, {});
    std::vector<AttentionSettings> attention;
    for (int l = 0; l < m.layers; l++) {
      attention.push_back(config.layer(l).attention);
      layers[l].columns = qkv_columns(m, attention[l]);
    }
    // kept: every layer has its own, for the backward pass. size: of layer l's, in elements.
    using Layer = LayerActivations<Real>;
    auto per_layer = [&](auto member, bool kept, const std::function<size_t(int l)>& size) {
      add_to_layers(plan, member, size, kept, category);
    };
    auto all = [](size_t size) { return [size](int) { return size; }; };
    const GatePosition gate_at = config.attention.gate.position;
    size_t ungated = gate_at == GatePosition::sdpa     ? 0
                     : gate_at == GatePosition::output ? N * C
                     : gate_at == GatePosition::query  ? N * A
                                                       : N * m.kv_width();
    // Evaluation may have any length; 1 takes the most floats for a token.
    size_t bias = m.heads * (training ? N / m.context * bias_floats(m.context) : N * bias_floats(1));
    size_t means = m.norm == Norm::rmsnorm ? 0 : N;
    per_layer(&Layer::x, training, all(N * C));
    per_layer(&Layer::ln1, keep, all(N * C));
    per_layer(&Layer::mid, keep, all(N * C));
    per_layer(&Layer::ln2, keep, all(N * C));
    per_layer(&Layer::mean1, keep, all(means));
    per_layer(&Layer::rstd1, keep, all(N));
    per_layer(&Layer::mean2, keep, all(means));
    per_layer(&Layer::rstd2, keep, all(N));
    per_layer(&Layer::qkv, keep, [&](int l) { return N * layers[l].columns.Q; });
    per_layer(&Layer::qk_norms, keep, all(config.attention.qk_norm == QkNorm::none ? 0 : N * 2 * m.heads));
    per_layer(&Layer::att, keep, all(N * A));
    per_layer(&Layer::ungated, keep, [&](int l) { return layers[l].columns.G ? ungated : 0; });
    per_layer(&Layer::att_stats, keep,
              [&](int l) { return N * m.heads * attention_statistics(attention[l], m.head_dim); });
    per_layer(&Layer::bias, keep, [&](int l) { return attention[l].bias == Bias::none ? 0 : bias + BIAS_SLACK; });
    per_layer(&Layer::fc, keep, all(N * m.mlp_columns()));
    per_layer(&Layer::gelu, keep_gelu, all(N * m.mlp_width()));
  }

  // An array that is not kept is as large as the largest layer's, and all layers use it in turn.
  template <class Member>
  void add_to_layers(MemoryPlan& plan, Member member, const std::function<size_t(int l)>& size, bool kept,
                     const char* category) {
    size_t most = 0;
    for (size_t l = 0; l < layers.size(); l++) most = std::max(most, size(int(l)));
    LayerActivations<Real>* owner = nullptr;
    for (size_t l = 0; l < layers.size(); l++) {
      LayerActivations<Real>& layer = layers[l];
      if (size(int(l)) == 0) continue;
      if (owner) plan.alias(&(layer.*member), &(owner->*member));
      else plan.add(&(layer.*member), kept ? size(int(l)) : most, category);
      if (!kept && !owner) owner = &layer;
    }
  }
};

// Everything on the device but the parameters.
template <class Real> struct Buffers {
  float2* rope;       // [longest length, D/2]
  int2* documents;    // [N] of the rows at work (AttentionCall::documents), or nullptr
  float* loss_sum;    // [1]
  float2* tiles;      // [L, H] of the step at work (find_needed_tiles()), or nullptr
  float* statistics;  // of diagnose()
  Activations<Real> training, evaluation;
  Real* dx;         // [N, C]  gradient of the residual stream, carried from the last layer to the first
  Real* dnorm;      // [N, C]  gradient of a layernorm's output, or of the projection before a gate
  Real* dwide;      // [N, max(Q, W)]
  Real* datt;       // [N, A]
  float* along;     // [N, H], of output_backward(), or nullptr
  void* workspace;  // bytes

  void plan(MemoryPlan& plan, const Config& config, int micro, size_t eval_rows, int eval_length, bool train) {
    const Config::Model& m = config.model;
    size_t C = m.channels, A = size_t(m.heads) * m.head_dim, W = m.mlp_columns(), context = m.context;
    bool rotates = m.position == Position::rope;
    plan.add(&rope, rotates ? std::max(context, size_t(eval_length)) * (m.head_dim / 2) : 0, "workspace");
    plan.add(&loss_sum, 1, "workspace");
    bool prunes = config.some_layer([](const Config::Layer& layer) { return layer.attention.prunes(); });
    plan.add(&tiles, prunes ? size_t(m.layers) * m.heads : 0, "workspace");
    size_t N = size_t(micro) * context, rows = std::max(eval_rows, context);
    bool separate = config.attention.documents == Documents::separate;
    plan.add(&documents, separate ? std::max(N, rows) : 0, "workspace");
    size_t shared = plan.mark();  // evaluation happens between steps: it uses the memory of the step
    if (train) {
      training.plan(plan, config, N, true, "activations");
      AttentionShape attention = {micro, m.context, m.heads, m.head_dim};
      size_t Q = 0, attention_bytes = prepare_backward_workspace(config.attention, attention);
      for (int l = 0; l < m.layers; l++) {
        AttentionSettings settings = config.layer(l).attention;
        Q = std::max(Q, size_t(training.layers[l].columns.Q));
        AttentionCall<Real> call{.settings = settings, .shape = attention, .qkv_stride = training.layers[l].columns.Q};
        attention_bytes = std::max(attention_bytes, attention_backward_workspace(call));
      }
      plan.add(&dx, N * C, "activation gradients");
      plan.add(&dnorm, N * C, "activation gradients");
      plan.add(&dwide, N * std::max(Q, W), "activation gradients");
      plan.add(&datt, N * A, "activation gradients");
      bool exclusive = config.attention.output == OutputOperation::exclusive;
      plan.add(&along, exclusive ? N * m.heads : 0, "activation gradients");
      size_t workspace_bytes =
          std::max({embedding_backward_workspace(int(N), m.channels), layernorm_backward_workspace(int(N), m.channels),
                    linear_bias_backward_workspace(int(N), int(std::max({Q, W, C, size_t(padded_outputs(config))}))),
                    attention_bytes});
      plan.add(reinterpret_cast<char**>(&workspace), workspace_bytes, "workspace");
      plan.rewind(shared);
    }
    evaluation.plan(plan, config, rows, false, "evaluation");
    size_t row_statistics_count = rows * m.heads * row_statistics(std::max(m.context, eval_length));
    plan.add(&statistics, config.diagnoses ? std::max(row_statistics_count, m.heads * GATE_STATISTICS) : 0,
             "evaluation");
    plan.end_sharing();
  }
};
