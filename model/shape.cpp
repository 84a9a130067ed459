#include "model/shape.h"

#include "attention/position_bias.cuh"
#include "kernels/gpu.cuh"

// The output layer's product is fastest on tensor cores with whole tiles of 128 rows of wte.
int padded_vocab(const Config& config) { return int(round_up(config.model.vocab, 128)); }

int padded_outputs(const Config& config) { return int(round_up(config.model.head.outputs, 8)); }

// Q is 3A, the bias's and the gate's logits, padded to whole heads (TMA requires it), or to a multiple of 8 where TMA
// cannot be used anyway. P is the same of qkv_width().
QkvColumns qkv_columns(const Config::Model& m, const AttentionSettings& a) {
  int D = m.head_dim, Z = bias_is_learned(a.bias) ? m.heads : 0;
  bool of_kv = a.gate.position == GatePosition::key || a.gate.position == GatePosition::value;
  int heads = of_kv ? m.kv_heads : m.heads, G = 0;
  switch (a.gate.granularity) {
    case GateGranularity::elementwise: G = a.gate.position == GatePosition::output ? m.channels : heads * D; break;
    case GateGranularity::headwise: G = heads; break;
    case GateGranularity::shared: G = D; break;
  }
  if (!a.gate.exists()) G = 0;
  auto padded = [&](int qkv) { return Z + G ? int(round_up(qkv + Z + G, D % 8 == 0 ? D : 8)) : qkv; };
  return {Z, G, padded(3 * m.heads * D), padded(m.qkv_width())};
}

bool planned_for_cpu(const Config& config) { return on_cpu && !config.plan.plans_other_gpu(); }
