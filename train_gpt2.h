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
#include "ranks/comm.h"
#include "settings/config.h"
#include "kernels/device_memory.h"

// normal: std 0.02; residual: 0.02 / sqrt(2 L), for what is added to the residual stream; ssmax: 0.43; gate_bias:
// gate.bias_init
enum class Init { zero, one, normal, residual, ssmax, gate_bias };

// One parameter of the model. Names, shapes and layouts are Hugging Face's GPT-2: a matrix is [inputs, outputs].
struct Tensor {
  std::string name;        // "h.0.attn.c_attn.weight"
  std::vector<int> shape;  // as in the file
  Init init;
  bool decays;             // weight decay: matrices and embeddings only
  size_t offset;           // of its first element in the parameter, gradient and moment arrays
  size_t size;             // product of shape
  size_t stride;  // from row to row there: longer than a row where tensors lie side by side (c_attn and c_gate)
  size_t columns() const { return size_t(shape.back()); }
  size_t rows() const { return size / columns(); }
};

// parameters: the float32 masters; moments: AdamW's m and v
enum class Part { parameters, gradients, moment1, moment2 };

// What one optimizer step reports.
struct StepResult {
  float loss;       // mean over the whole batch, nats
  float grad_norm;  // before clipping
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const Config& config() const = 0;
  virtual Comm& comm() = 0;  // the ranks that train it together: what says "all ranks" they must all call, in one order
  virtual const std::vector<Tensor>& tensors() const = 0;
  virtual void init_random() = 0;                                                 // from config.seed
  virtual void read(const Tensor&, Part, float* out) const = 0;                   // out = [shape] on the host
  virtual void write(const Tensor&, const float* values, Part part = Part::parameters) = 0;  // = values
  // Where ranks share a part among them (ZeRO): gather() before it is read, scatter() after its tensors were written,
  // both of all ranks. Until then the values lie where the gradients do, which are lost.
  virtual void gather(Part) = 0;
  virtual void scatter(Part) = 0;
  virtual void set_rope(int length) = 0;  // rotation for this length, by eval.rope_scaling

  // One optimizer step of all ranks: begin_step(), all micro steps, finish(), and update() unless the gradients are not
  // to be used. Ranks reduce their gradients during the last micro step.
  virtual void begin_step() = 0;                                                  // loss and gradients = 0
  virtual void forward_backward(const int* inputs, const int* targets) = 0;           // += ; [micro, context], host
  virtual StepResult finish(float grad_clip) = 0;  // loss, norm of all ranks; waits for the device
  virtual void update(const AdamW& settings) = 0;  // AdamW, with what finish() found to clip
  StepResult end_step(const AdamW& settings, float grad_clip) {
    StepResult result = finish(grad_clip);
    update(settings);
    return result;
  }

  // Parameters and moments at one moment, on the host, for a checkpoint that is written while training goes on.
  virtual void allocate_snapshot() = 0;              // rank 0: snapshot_bytes() of pinned memory, once, before training
  virtual void take_snapshot() = 0;  // all ranks; begins rank 0's copy; the next update waits for its end
  virtual const float* snapshot(Part) const = 0;     // waits for its end; laid out as tensors() say; from any thread

  // Evaluation: losses = [B, T] in nats; [B, T] inputs and targets on the host.
  virtual void losses(float* losses, const int* inputs, const int* targets, int B, int T) = 0;
  // Logits = [V] of the token that follows tokens[0..count), count <= config.model.context.
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

size_t snapshot_bytes(const Config& config);  // of host memory

int64_t parameter_count(const Config& config);
double flops_per_token(const Config& config);  // 6 x parameters + 6 L T A, as llm.c counts causal training

int padded_vocab(const Config& config);
int gate_logits(const Config& config);  // columns of the gate in the q,k,v product: 0 without a gate
