// GPT-2 as the rest of the program sees it: parameters by name, one micro step, one update, losses and logits.
// The model itself is train_gpt2.cu. Legend there and in kernels/: B batch, T time, C channels, L layers, H heads, D
// head dim, A = H*D, F MLP width, V vocabulary, Vp the vocabulary padded to a multiple of 128, N = B*T rows.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "attention/gate.cuh"
#include "kernels/adamw.cuh"
#include "kernels/device_memory.h"
#include "parameters.h"
#include "ranks/comm.h"
#include "settings/config.h"

// What one optimizer step reports.
struct StepResult {
  float loss;       // mean over the whole batch, nats
  float grad_norm;  // before clipping
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const Config& config() const = 0;
  virtual Comm& comm() = 0;        // the ranks that train it together
  virtual void init_random() = 0;  // from config.seed, on all ranks

  // The parameters: parameters.h says what these do, and which of them all ranks must call.
  virtual const std::vector<Tensor>& tensors() const = 0;
  virtual void read(const Tensor&, Part, float* out) const = 0;
  virtual void write(const Tensor&, const float* values, Part part = Part::parameters) = 0;
  virtual void gather(Part) = 0;
  virtual void scatter(Part) = 0;
  virtual void allocate_snapshot() = 0;  // of snapshot_bytes(), by rank 0, once, before training
  virtual void take_snapshot() = 0;
  virtual const float* snapshot(Part) const = 0;

  virtual void set_rope(int length) = 0;  // rotation for this length, by eval.rope_scaling

  // One optimizer step of all ranks: begin_step(), all micro steps, finish(), and update() unless this step is
  // skipped. Ranks reduce their gradients during the last micro step.
  virtual void begin_step() = 0;                                             // loss and gradients = 0
  virtual void forward_backward(const int* inputs, const int* targets) = 0;  // += ; [micro, context], host
  virtual StepResult finish(float grad_clip) = 0;  // loss and norm of all ranks; waits for the device
  virtual void update(const AdamW& settings) = 0;  // AdamW, with the gradients clipped to finish()'s grad_clip
  StepResult end_step(const AdamW& settings, float grad_clip) {
    StepResult result = finish(grad_clip);
    update(settings);
    return result;
  }

  // Evaluation: losses = [B, T] in nats; [B, T] inputs and targets on the host.
  virtual void losses(float* losses, const int* inputs, const int* targets, int B, int T) = 0;
  // Logits = [rows, V] at these rows (b * T + t) of [B, T] inputs on the host: of the token that follows each of them.
  virtual void row_logits(float* logits, const int* inputs, int B, int T, const std::vector<int>& rows) = 0;
  // Logits = [V] of the token that follows tokens[0..count), in a pass of next_token_length(config, count) rows.
  virtual void next_token_logits(float* logits, const int* tokens, int count) = 0;
};

// Memory of a run with this micro batch, in bytes by category, without allocating it; eval_rows: the most rows
// (sequences x length) that losses() will be asked for at once, eval_length: the longest of its sequences. training =
// false plans evaluation only.
MemoryPlan plan_memory(const Config& config, int micro, size_t eval_rows, int eval_length, bool training,
                       int ranks = 1);

// Allocates and leaves the parameters zero. config.precision and config.batch.micro must be resolved.
std::unique_ptr<Model> make_model(const Config& config, size_t eval_rows, int eval_length, bool training,
                                  Comm& comm = Comm::alone());

int next_token_length(const Config& config, int count);

size_t snapshot_bytes(const Config& config);  // of host memory

int64_t parameter_count(const Config& config);
double flops_per_token(const Config& config);  // 6 x parameters + 6 L T A, as llm.c counts causal training

int padded_vocab(const Config& config);
int gate_logits(const Config& config);  // columns of the gate in the q,k,v product: 0 without a gate
