// GPT-2 as the rest of the program sees it: parameters by name, one micro step, one update, losses and logits.
// The model itself is train_gpt2.cu. Legend there and in kernels/: B batch, T time, C channels, L layers, H heads, D
// head dim, A = H*D, F MLP width, V vocabulary, Vp the vocabulary padded to a multiple of 128, N = B*T rows.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "attention/gate.cuh"
#include "kernels/adamw.cuh"
#include "kernels/device_memory.h"
#include "model/parameters.h"
#include "model/shape.h"
#include "ranks/comm.h"
#include "settings/config.h"

// What a run knows, beside its settings, once its data are open.
struct RunFacts {
  int separator = -1;                 // the token between documents, which begins one; -1: there is none, or unknown
  std::string separator_source = {};  // what says it
  std::vector<int> documents = {};    // lengths of separate documents, in windows of the data; empty: they are joined
};

// The report of one optimizer step.
struct StepResult {
  float loss;       // mean over the whole batch, in nats; with a regression head, of squared errors
  float grad_norm;  // before clipping
};

// The targets of a batch's rows [N], on the host. Constructible from tokens alone.
struct Targets {
  const int* tokens;         // [N], -1: nothing. Not read if the model has a regression head
  const float* row_weights;  // [N]: the weight of a row's loss; 1 is an equal share; nullptr: 1 each
  const float* values;       // [N, K], NaN: nothing. Of a model with a regression head
  Targets(const int* tokens, const float* row_weights = nullptr, const float* values = nullptr)
      : tokens(tokens), row_weights(row_weights), values(values) {}
};

// Tiles of scores of a head (attention/prune.cuh).
struct TileCount {
  double needed = 0, seen = 0;
};

// A layer's values in diagnose(), on the host.
struct LayerStatistics {
  int layer;
  std::vector<float> rows;  // attention_diagnose()'s, of [B, H, T]
  // gate_statistics()'s, of what the gate acts on: H heads, those of keys and values, or the output as one. Without a
  // gate of attention's output.
  std::vector<float> gate;
  std::vector<float> x;          // [counted, T, C]  the residual stream that leaves the layer
  std::vector<TileCount> tiles;  // as tiles(), of this batch and the layers so far
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const Config& config() const = 0;
  virtual const RunFacts& facts() const = 0;  // for those that evaluate it, or write its files
  virtual Comm& comm() = 0;                   // the ranks that train it together
  virtual ParameterStore& parameters() = 0;
  virtual void set_length(int length) = 0;  // rotation and window for this length, by eval.rope_scaling and eval.window

  // One optimizer step of all ranks: begin_step(), all micro steps, reduce_and_clip(), and update() unless this step
  // is skipped. Ranks reduce their gradients during the last micro step.
  virtual void begin_step() = 0;                                                 // loss and gradients = 0
  virtual void forward_backward(const int* inputs, const Targets& targets) = 0;  // += ; [micro, context], host
  virtual StepResult reduce_and_clip(float grad_clip) = 0;  // loss and norm of all ranks; waits for the device
  // [layers, H]: those of this rank's forward passes since begin_step(); empty if no layer prunes. Waits for the
  // device.
  virtual std::vector<TileCount> tiles() = 0;
  // With the gradients clipped to that grad_clip. muon: of config.optimizer.matrices = muon.
  virtual void update(const AdamW& settings, const Muon& muon = {}) = 0;

  // Evaluation: losses = [B, T] in nats (with a regression head: squared errors), 0 without a target; [B, T] inputs and
  // targets on the host, without weights. above, if given and without a regression head, = [B, T]: how many logits are
  // above the target's (token_losses()).
  virtual void losses(float* losses, const int* inputs, const Targets& targets, int B, int T, int* above = nullptr) = 0;
  // Outputs = [B, T, K] of the regression head for [B, T] inputs on the host.
  virtual void outputs(float* outputs, const int* inputs, int B, int T) = 0;
  // Computes [B, T] inputs on the host, and calls see() with each layer's statistics of the first `counted` sequences.
  // The model must have been made with config.diagnoses.
  virtual void diagnose(const int* inputs, int B, int T, int counted,
                        const std::function<void(const LayerStatistics&)>& see) = 0;
  // Without a regression head: logits [rows, V] of the token after each of these rows (b * T + t) of [B, T] host
  // inputs.
  virtual void row_logits(float* logits, const int* inputs, int B, int T, const std::vector<int>& rows) = 0;
};

// Memory of a run with this micro batch, in bytes by category, without allocating it; eval_rows: the most rows
// (sequences x length) that losses() will be asked for at once, eval_length: the longest of its sequences. training =
// false plans evaluation only.
MemoryPlan plan_memory(const Config& config, int micro, size_t eval_rows, int eval_length, bool training,
                       int ranks = 1);

// Allocates and leaves the parameters zero. config.precision, config.batch.micro and, with separate documents,
// config.data.separator must be resolved.
std::unique_ptr<Model> make_model(const Config& config, size_t eval_rows, int eval_length, bool training,
                                  Comm& comm = Comm::alone(), const RunFacts& facts = {});

size_t snapshot_bytes(const Config& config);  // of host memory

std::vector<Tensor> parameters_of(const Config& config);  // of all layers, allocating nothing
