// log.groups_every: norms by group of parameters. In each layer the groups are layernorm, attn.q, attn.k, attn.v,
// attn.c_gate, attn.c_proj, mlp.c_fc, mlp.c_proj and other (learned numbers of attention), with their biases; outside
// the layers wte, wpe, lm_head and layernorm.
#pragma once
#include "checkpoint/metrics.h"
#include "train_gpt2.h"

// Of each group, before model.update(): write_group_norms() needs them with Muon, whose update overwrites gradients.
std::vector<double> gradient_squares(Model& model);

// After model.update(settings, muon): a line {"step", "norms": {"h.0.attn.q": [norm of the gradient before clipping,
// norm of the weights, norm of the update (without weight decay) / norm of the weights], ...}}, the last null where the
// weights are 0, and "learned": learned_by_head() of eval/diagnostics.h, if there is any. gradient_squares: none with
// AdamW. All ranks; the gradients may be lost.
void write_group_norms(Model& model, const std::vector<double>& gradient_squares, const AdamW& settings,
                       const Muon& muon, int64_t step, MetricsLog& metrics);
