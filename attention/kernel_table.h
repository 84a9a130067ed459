// The kernels that a build has. The files general_KIND.cu, tensor_KIND.cu and hopper_KIND.cu in instances/ register
// their kernels at program start, so a build may leave any of them out (make ATTN=...); dispatch.cu looks them up.
#pragma once
#include "attention/prepare.cuh"

constexpr int NO_WINDOW = 1 << 30;  // beyond all lengths, far enough from INT_MAX to be added to one

// The settings that a policy or a mask may use, the same for a whole launch.
struct PolicySettings {
  float power = 0, exponent = 0;  // exponent: power - 1, but above 0, so that 0^exponent = 0
  float offset = 0, log_context = 0;
  int offset_free_rows = 0;
  float sink = 0;                           // logit of the sink where none is learned: 0, or -inf for no sink
  int window = NO_WINDOW, sink_tokens = 0;  // of Shaped (masks.cuh)
  const float2* bias = nullptr;             // c [B, H, T], or nullptr
  float per_unit = 1;                       // 1 / score_unit(kind)
  float threshold = 0;
  float *dz_by_query = nullptr, *dz_by_key = nullptr;  // with a bias, in the backward pass: [B, H, T], sums of dz
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
constexpr int ROW_VALUES_MOST = 6;  // of any policy; behind them the workspace has dz_by_query and dz_by_key

// dqkv =, dsink [H] += (or nullptr); preparation: see Launchers. workspace: Policy::ROW_VALUES floats per row (b, h, t
// < workspace_rows(T)).
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

// figures [row_figures(T), B, H, T] =, from what the forward saved in stats.
template <class T> struct DiagnoseCall {
  float* figures;
  const float* stats;
  const T* qkv;
  PolicySettings settings;
  AttentionShape shape;
  int qkv_stride;
  cudaStream_t stream;
};

template <class T> struct Launchers {
  void (*forward)(const ForwardCall<T>&) = nullptr;
  void (*evaluate)(const ForwardCall<T>&) = nullptr;  // leaves out what only a backward pass needs
  void (*backward)(const BackwardCall<T>&) = nullptr;
  bool undoes_preparation = false;  // backward does what BackwardCall::preparation asks for, with heads of 64 or 128
  void (*diagnose)(const DiagnoseCall<T>&) = nullptr;  // of the general kernels alone
};

constexpr int LARGEST_TENSOR_D = 128;  // of a build with all head sizes

struct KindKernels {
  int saved = -1, vectors = 0;     // per row: floats, and vectors of D floats; -1: this build lacks the kind
  int tensor_D = 0, hopper_D = 0;  // the largest heads of the tensor-core kernels and of Hopper's; 0: none
  Launchers<float> general_float;
  Launchers<bf16> general_bf16, tensor_bf16, hopper_bf16;
};

// lssar's power: 15, the usual one; another integer up to 32; any other number. Other kinds have kernels for `usual`
// alone.
enum class PowerClass { usual, whole, any };
constexpr int POWER_CLASSES = 3;

// Their entry in the table. shaped: the kernels with the mask Shaped in place of Causal.
KindKernels& kernels_of(Kind kind, PowerClass power = PowerClass::usual, bool shaped = false);
