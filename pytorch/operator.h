// The C functions of the library. plusgpt_attention.py lists the same members.
#pragma once
#include <cstdint>

#include "attention/settings.h"
#include "kernels/gpu.cuh"

// A tensor [B, T, heads, D] of any strides, in elements, but with whole rows of D elements.
struct PlusgptHeads {
  const void* x;
  int64_t b, t, h;  // strides
};

// One call. What the settings do not have is nullptr. T is float or bf16.
struct PlusgptCall {
  // The trained length, whether there are a decay, a sink and a scale of ssmax, and the number of learned tensors; then
  // lines "KEY=VALUE", with the keys behind "attention.".
  const char* settings;
  int B, T, H, D, kv_heads, bf16, training, threads, prunes;
  void* stream;
  PlusgptHeads q, k, v;  // k and v have kv_heads heads
  // forward: qkv [B, T, 3, H, D] = the prepared q, k and v, out [B, T, H, D] =, saved [row_floats, B, H, T] =; the
  // backward reads all three. y [B, T, H, D] = out after the operation and the norm, if the settings have one
  void *qkv, *out, *y;
  float* saved;
  const void *sink, *ssmax_scale, *learned[MOST_PARAMETERS];  // T [H]
  const float* decay;                                         // [B, T, H]: c grows by it
  const int2* documents;                                      // [B, T]: AttentionCall::documents
  void* workspace;
  // backward: dqkv [B, T, 3, H, D] =; dout [B, T, H, D] is changed where y is not out
  void *dout, *dqkv;
  float *dsink, *dssmax_scale, *dlearned[MOST_PARAMETERS];  // [H] +=
  float* ddecay;                                            // [B, T, H] =
};

struct PlusgptSizes {
  int64_t row_floats;         // of `saved`, for each row (b, h, t)
  int64_t forward, backward;  // bytes of the workspace
  int64_t changes_output;     // y is not out
};

// Each returns nullptr, or a line that says what is wrong.
#define EXPORT extern "C" __attribute__((visibility("default")))
EXPORT const char* plusgpt_sizes(const PlusgptCall* call, PlusgptSizes* to);
EXPORT const char* plusgpt_forward(const PlusgptCall* call);
EXPORT const char* plusgpt_backward(const PlusgptCall* call);
#undef EXPORT
