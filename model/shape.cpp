#include "model/shape.h"

#include "attention/position_bias.cuh"
#include "kernels/gpu.cuh"

// The output layer's product is fastest on tensor cores with whole tiles of 128 rows of wte.
int padded_vocab(const Config& config) { return int(round_up(config.model.vocab, 128)); }

int padded_outputs(const Config& config) { return int(round_up(config.model.head.outputs, 8)); }

// Q is 3A, the bias's and the gate's logits, padded to whole heads (TMA requires it), or to a multiple of 8 where TMA
// cannot be used anyway.
QkvColumns qkv_columns(const Config::Model& m, const AttentionSettings& a) {
  int C = m.channels, H = m.heads, D = m.head_dim, A = H * D;
  int Z = bias_is_learned(a.bias) ? H : 0, G = a.gate.position == GatePosition::output ? C : A;
  if (a.gate.granularity == GateGranularity::headwise) G = H;
  if (a.gate.granularity == GateGranularity::shared) G = D;
  if (!a.gate.exists()) G = 0;
  return {Z, G, Z + G ? int(round_up(3 * A + Z + G, D % 8 == 0 ? D : 8)) : 3 * A};
}

bool planned_for_cpu(const Config& config) { return on_cpu && !config.plan.plans_other_gpu(); }
