// The kernels that a build has. The files general_KIND.cu, tensor_KIND.cu and hopper_KIND.cu in instances/ enter theirs
// here when the program starts, so a build may leave any of them out (make ATTN=...); dispatch.cu looks them up.
#pragma once
#include "attention/prepare.cuh"

// The settings that a policy may use, the same for a whole launch.
struct PolicySettings {
  float power, exponent, offset, log_context;  // exponent: power - 1, but above 0, so that 0^exponent = 0
  int offset_free_rows;
  float sink;  // logit of the sink where none is learned: 0, or -inf for no sink
};

// out [B, T, H, D] =, stats = (nullptr in evaluation), from qkv. sink is [H] or nullptr.
template <class T> struct ForwardCall {
  T* out;
  float* stats;
  const T* qkv;
  const T* sink;
  PolicySettings settings;
  AttentionShape shape;
  int qkv_stride, spare_multiprocessors;
  cudaStream_t stream;
};

// Rows of a head in the backward's workspace: rounded up to whole tiles, so that the copy engine can load them.
inline int workspace_rows(int T) { return (T + 127) / 128 * 128; }

// dqkv =, dsink [H] += (or nullptr); preparation: see Launchers. workspace: Policy::ROW_VALUES floats per row (b, h, t < workspace_rows(T)).
template <class T> struct BackwardCall {
  T* dqkv;
  const T *dout, *out;
  const float* stats;
  const T* qkv;
  float* workspace;
  const T* sink;
  float* dsink;
  PolicySettings settings;
  AttentionShape shape;
  int qkv_stride, spare_multiprocessors;
  cudaStream_t stream;
  Preparation<T> preparation;
};

template <class T> struct Launchers {
  void (*forward)(const ForwardCall<T>&) = nullptr;
  void (*evaluate)(const ForwardCall<T>&) = nullptr;  // leaves out what only a backward pass needs
  void (*backward)(const BackwardCall<T>&) = nullptr;
  bool undoes_preparation = false;  // backward does what BackwardCall::preparation asks for, with heads of 64 or 128
};

struct KindKernels {
  int saved = -1, vectors = 0;     // per row: floats, and vectors of D floats; -1: this build lacks the kind
  int tensor_D = 0, hopper_D = 0;  // the largest heads of the tensor-core kernels and of Hopper's
  Launchers<float> general_float;
  Launchers<bf16> general_bf16, tensor_bf16, hopper_bf16;
};

// lssar's power: 15, the usual one; another integer up to 32; any other number. Other kinds have kernels for `usual`
// alone.
enum class PowerClass { usual, whole, any };
constexpr int POWER_CLASSES = 3;

KindKernels& kernels_of(Kind kind, PowerClass power = PowerClass::usual);  // their entry in the table
