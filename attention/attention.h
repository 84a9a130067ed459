// Causal attention: the two calls that the trainer makes. README.md has the equations, settings.h the settings. qkv is
// [B, T, 3, H, D], with rows (b, t) of qkv and dqkv AttentionCall::qkv_stride apart, and out [B, T, H, D], contiguous.
// Scores are q_i . k_j with q and k as in qkv: prepare.cuh has already applied rotation, norms and the row scale, and
// divided q by KindRow::unit. Memory is linear in the length, and results are the same bits in every run. Tensors are
// float or bf16; sums are taken in float32.
#pragma once
#include <bit>
#include <cstddef>
#include <iterator>
#include <string>

#include "attention/settings.h"
#include "kernels/gpu.cuh"

// B sequences of T positions, H heads of D channels (1..512).
struct AttentionShape {
  int B, T, H, D;
  __host__ __device__ size_t rows() const { return size_t(B) * H * T; }  // (b, h, t)
  // The number of a head among those of all sequences, and the first of its rows.
  __host__ __device__ size_t head_number(int b, int h) const { return size_t(b) * H + h; }
  __host__ __device__ size_t first_row(int b, int h) const { return head_number(b, h) * T; }
  // Sizes of qkv and out and the index of an element, for contiguous rows.
  size_t qkv_size() const { return 3 * rows() * D; }
  size_t out_size() const { return rows() * D; }
  size_t qkv(int b, int t, int part, int h, int d = 0) const {
    return ((((size_t(b) * T + t) * 3 + part) * H + h) * D) + d;
  }
  size_t out(int b, int t, int h, int d = 0) const { return ((size_t(b) * T + t) * H + h) * D + d; }
};

constexpr int BIAS_ROWS = 64;  // positions that share an origin of the bias (below), and are pruned together

// Attention of one layer: what all calls below and in prepare.cuh and position_bias.cuh need, beside their own tensors.
template <class T> struct AttentionCall {
  const AttentionSettings& settings;
  AttentionShape shape;
  int context = 1024;             // the trained length; for Scale::logn and Kind::sigmoid
  int qkv_stride = 0;             // elements from row to row of qkv and dqkv; 0 = 3 A, more where logits follow
  float scale_factor = 1;         // multiplies every scale: rope_scale_factor() of prepare.cuh, 1 except with yarn
  const char* family = nullptr;   // of kernels, by its name; nullptr: as the settings say
  int spare_multiprocessors = 0;  // left to kernels of other streams by Hopper's kernels; no bit of a result changes
  cudaStream_t stream = nullptr;
  // The learned numbers of the layer, if the settings have any, and their gradients, [H] each.
  const T* ssmax_scale = nullptr;
  float* dssmax_scale = nullptr;  // +=
  const T* sink = nullptr;
  float* dsink = nullptr;                  // +=
  const T* learned[MOST_PARAMETERS] = {};  // KindRow::learned; without one its initial value holds
  float* dlearned[MOST_PARAMETERS] = {};   // +=
  float* dqkv_sums = nullptr;  // [3 A] += the column sums of dqkv: the gradient of a bias that made q, k and v
  // c [B, H, bias_floats(T)] and BIAS_SLACK floats (below): scores are q_i . k_j + c_i - c_j
  const float* bias = nullptr;
  // [B, T]: the first position of a position's document, and the one behind its last (documents.cuh). Read if the
  // settings have separate documents; positions are then counted from the first.
  const int2* documents = nullptr;
  // Of the preparation, as in prepare.cuh; either may be nullptr.
  const float2* rope = nullptr;
  float* norms = nullptr;

  int row_stride() const { return qkv_stride ? qkv_stride : 3 * shape.H * shape.D; }
  // Whether a row may see less than all keys before it, or something is added to its scores.
  bool hides_or_adds() const {
    return separate() || settings.bias != Bias::none || settings.keys_seen(shape.T) < shape.T;
  }
  // In two blocks of a bias nothing is far enough to be pruned.
  bool prunes() const { return settings.prunes() && shape.T > 2 * BIAS_ROWS; }
  bool separate() const { return settings.documents == Documents::separate; }
  const int2* separate_documents() const { return separate() ? documents : nullptr; }
};

bool attention_is_built(Kind kind);  // make ATTN=... may leave kinds out

// Throws a user_error that names the key if this build has no kernels for these settings. Call it once the
// configuration has been read. diagnoses: attention_diagnose() will be called; gpu: for tests.
void attention_check(const AttentionSettings& settings, int D, bool fp32, bool diagnoses = false, bool gpu = !on_cpu);

// The bias c of a head, in units of KindRow::unit, is three arrays: origins, sums of two floats that BIAS_ROWS
// positions share (c may reach -100,000, where floats are 0.008 apart); for each position its difference from its
// origin; and what that float lost, which kernels on tensor cores do not read. They read whole tiles of up to
// BIAS_SLACK positions, so beyond the last array too. A head's arrays begin at multiples of 16 bytes but for that of
// what was lost, and origins are read two at a time, as the copy engine needs it. Behind the three are those of
// prune.cuh, for each BIAS_ROWS positions an int2 and a float4.
constexpr int BIAS_SLACK = 128;
__host__ __device__ constexpr int bias_origins(int T) {  // their floats
  return (T + 2 * BIAS_ROWS - 1) / (2 * BIAS_ROWS) * 4;
}
__host__ __device__ constexpr int bias_blocks(int T) { return (T + BIAS_ROWS - 1) / BIAS_ROWS; }
__host__ __device__ constexpr int bias_needed(int T) { return bias_origins(T) + (2 * T + 3) / 4 * 4; }  // floats before
__host__ __device__ constexpr int bias_norms(int T) { return bias_needed(T) + (2 * bias_blocks(T) + 3) / 4 * 4; }
__host__ __device__ constexpr int bias_floats(int T) { return bias_norms(T) + 4 * bias_blocks(T); }
// With separate documents c begins at 0 in each, and in the block of BIAS_ROWS where its document begins a row has the
// origin 0: no bit of c depends on the documents before.
__host__ __device__ constexpr bool has_origin_0(int row, int document_start) {
  return document_start > row / BIAS_ROWS * BIAS_ROWS;
}
inline size_t bias_floats(const AttentionShape& s) { return size_t(s.B) * s.H * bias_floats(s.T) + BIAS_SLACK; }

// Floats saved per row (b, h, t) for the backward, as one [B, H, T] array after the other (then, for policies of two
// OUTPUTS, a vector of D floats per row).
int attention_statistics(const AttentionSettings& settings, int D);

// The family that would run the call on this device, if all arrays are aligned as cudaMalloc() does, and those before
// it in the table that were not measured.
template <class T> std::string attention_family(const AttentionCall<T>& call);

// Bytes: 32 per row (b, h, t), with the rows of a head rounded up to 128, and 12 D per head and SUMMED_ROWS of them, so
// linear in T; and what the kernels of attention_family() ask for (BackwardWorkspace::dq_sums).
template <class T> size_t attention_backward_workspace(const AttentionCall<T>& call);

// What is where in that workspace. The sums stay for those who read them after attention_backward().
struct BackwardWorkspace {
  float* row_values;    // [Policy::ROW_VALUES][B, H, pitch]: what the kernels read of each row (KernelShape)
  float* learned_sums;  // [KindRow::learned][B, H, T], in the end of that space: over a query's keys, of gradients
  float *dz_by_query, *dz_by_key;  // [B, H, T], with a bias: over a query's keys, or a key's queries, of dz_ij
  float* column_sums;              // [column_sums_count(), 3 A]: of up to SUMMED_ROWS rows of dqkv, all of one sequence
  float* dq_sums;                  // of kernels that have dQ in parts (hopper/backward_heads.cuh)
};
constexpr int SUMMED_ROWS = 64;
inline int column_sums_count(const AttentionShape& s) { return s.B * ((s.T + SUMMED_ROWS - 1) / SUMMED_ROWS); }
BackwardWorkspace backward_workspace(void* workspace, const AttentionSettings& settings, const AttentionShape& shape);

// Writes out; writes stats only when training (otherwise it may be nullptr).
template <class T>
void attention_forward(T* out, float* stats, const T* qkv, const AttentionCall<T>& call, bool training);

// Writes dqkv from the forward's inputs and outputs. With undo_preparation, gradients of q and k are those of
// prepare_forward()'s inputs, as prepare_backward() makes them: by that or, where Hopper's kernels can, before they are
// rounded and stored. The latter saves one read and one write of both gradients and, with a norm, one read of q and k.
// Where they can, they also sum the columns of dqkv for AttentionCall::dqkv_sums, which saves another read of it.
template <class T>
void attention_backward(T* dqkv, const T* dout, const T* out, const float* stats, const T* qkv, void* workspace,
                        const AttentionCall<T>& call, bool undo_preparation = false);

// What attention_diagnose() says of a row of weights P_i1 .. P_ii: sums over the keys that the row sees.
struct RowStatistic {
  enum {
    SUM,       // of P
    P_LOG_P,   // of P ln P, 0 where P is 0
    FIRST,     // P_i1
    LARGEST,   // the largest P
    DISTANCE,  // of P (i - j)
    ZEROS,     // keys with P = 0
    KEYS,      // keys
    SCORES,    // of |z|, in units of the kind
    SCORE,     // the largest |z|, likewise
    REACH      // of P by distance i - j, in bins of 0, 1, 2 to 3, 4 to 7, ...: reach_bins(T) numbers
  };
};
inline int reach_bins(int T) { return std::bit_width(unsigned(T - 1)) + 1; }
inline int row_statistics(int T) { return RowStatistic::REACH + reach_bins(T); }

// statistics [row_statistics(T), B, H, T] = of every row, in one pass over the keys; weights are float32. stats: what
// attention_forward() saved, in training and with the family "general".
template <class T>
void attention_diagnose(float* statistics, const float* stats, const T* qkv, const AttentionCall<T>& call);
