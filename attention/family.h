// What dispatch.cu knows of a family of kernels: one struct for each kind. attention/FAMILY/kernels.cuh ends with a
// function add_FAMILY<kind_NAME>(), which adds it; make writes a file for each family and kind that calls it at program
// start. So kinds compile in parallel, and a build may leave any of them out (make ATTN=...).
#pragma once
#include <cstring>
#include <initializer_list>
#include <vector>

#include "attention/prepare.cuh"

constexpr int NO_WINDOW = 1 << 30;  // beyond all lengths, far enough from INT_MAX to be added to one

// The settings that a policy or a mask may use, the same for a whole launch.
struct KernelSettings {
  float log_context = 0;
  float sink = 0;                           // logit of the sink where none is learned: 0, or -inf for no sink
  int window = NO_WINDOW, sink_tokens = 0;  // of Window (masks.cuh)
  const float* bias = nullptr;              // c (attention.h), or nullptr
  bool prunes = false;                      // whether tiles are left out, as prune.cuh's arrays say
  float heads = 0;
  // Of the kind (KindRow::numbers): its parameters, and the initial values of a formula's learned numbers; and the
  // learned numbers, [H] each of T, or nullptr.
  float numbers[MOST_PARAMETERS] = {};
  const void* learned[MOST_PARAMETERS] = {};
  bool learned_in_bf16 = false;
  const int2* documents = nullptr;  // of AttentionCall, if they are separate

  // Row i sees min(i, most_keys()) keys: all before it or, with a window, its last `window` and first `sink_tokens`.
  __host__ __device__ float most_keys() const { return float(window + sink_tokens); }
  template <class File> __host__ __device__ typename File::Numbers numbers_of() const {
    typename File::Numbers own;
    memcpy(&own, numbers, sizeof(own));
    return own;
  }
};

// What policies and masks read of a call.
template <class T> KernelSettings kernel_settings(const AttentionCall<T>& call);

// out [B, T, H, D] =, stats = (nullptr in evaluation), from qkv. sink is [H] or nullptr.
template <class T> struct ForwardCall {
  T* out;
  float* stats;
  const T* qkv;
  const T* sink;
  KernelSettings settings;
  AttentionCall<T> call;
};

// Rows of a head in the backward's workspace: rounded up to whole tiles, so that the copy engine can load them.
inline int workspace_rows(int T) { return (T + 127) / 128 * 128; }
// Of any policy, with its LEARNED, whose sums lie in the end of this space (BackwardWorkspace).
constexpr int ROW_VALUES_MOST = 6;

// dqkv =, call.dsink [H] += (or nullptr); preparation and sums_columns: see Family. In the workspace: row_values,
// Policy::ROW_VALUES floats per row (b, h, t < workspace_rows(T)), and the sums =; column_sums only if sums_columns.
template <class T> struct BackwardCall {
  T* dqkv;
  const T *dout, *out;
  const float* stats;
  const T* qkv;
  BackwardWorkspace workspace;
  const T* sink;
  Preparation<T> preparation;
  bool sums_columns;
  KernelSettings settings;
  AttentionCall<T> call;
};

constexpr int LARGEST_D = 512;         // of all kernels
constexpr int LARGEST_TENSOR_D = 128;  // of tensor cores, in a build with all head sizes

using Addresses = std::initializer_list<const void*>;

// The kernels of a family for one kind.
template <class T> struct Family {
  const char* name = nullptr;  // of a row of families.h
  // The most channels of a head, and with a bias or separate documents.
  int widest = LARGEST_D, widest_masked = LARGEST_D;
  bool (*has_instructions)() = nullptr;  // whether this CPU has those that make it fast; missing: yes
  int saved = 0, vectors = 0;            // of a row in training: floats, and vectors of D floats
  void (*forward)(const ForwardCall<T>&) = nullptr;
  void (*evaluate)(const ForwardCall<T>&) = nullptr;  // leaves out what only a backward pass needs
  void (*backward)(const BackwardCall<T>&) = nullptr;
  // The arguments of attention_diagnose(); may be missing.
  void (*diagnose)(float*, const float*, const T*, const AttentionCall<T>&, const KernelSettings&) = nullptr;
  size_t (*backward_workspace)(const AttentionShape&) = nullptr;  // bytes of BackwardWorkspace::dq_sums; may be missing
  // With heads of 64 or 128, backward undoes the preparation and sums columns as it stores gradients, if that is asked.
  bool finishes_gradients = false;
};

// The families that a build has for a kind.
template <class T> std::vector<Family<T>>& families_of(Kind kind);
// Returns true, so that it can initialise a variable.
template <class T> bool add_family(Kind kind, const Family<T>& family);

// What runs the call, or nullptr: the first row of families.h that was measured and can, or the one that is asked for.
// unmeasured += the names of those before it that could.
template <class T>
const Family<T>* find_family(const AttentionCall<T>& call, Addresses tensors, std::string* unmeasured = nullptr);
