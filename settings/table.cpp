#include "settings/table.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "attention/families.h"
#include "base/error.h"
#include "base/json.h"

static EnumField choice(Kind& field) {
  return {{kind_names.begin(), kind_names.end()},
          [&field] { return size_t(field); },
          [&field](size_t index) { field = Kind(index); },
          nullptr};
}

// number: the value of the last enumerator, which then has no name in a configuration.
template <class Enum, size_t N>
static EnumField choice(Enum& field, const char* const (&names)[N], double* number = nullptr) {
  return {{names, names + N - (number ? 1 : 0)},
          [&field] { return size_t(field); },
          [&field](size_t index) { field = Enum(index); },
          number};
}

// A text that is one of `names` or the name of one of these rows.
template <class Rows> static EnumField choice(std::string& text, std::vector<const char*> names, const Rows& rows) {
  for (const auto& row : rows) names.push_back(row.name);
  return {names, [&text, names] { return size_t(std::ranges::find(names, text) - names.begin()); },
          [&text, names](size_t index) { text = names[index]; }, nullptr};
}

static bool has_gate(const Config::Layer& l) { return l.attention.gate.exists(); }
static bool has_window(const Config::Layer& l) { return l.attention.window > 0; }
static bool rotates(const Config::Layer& l) { return l.rotated; }

static bool some_layer_lacks(const Config& c, const char* key) {
  return c.some_layer([&](const Config::Layer& l) { return !l.own.says(key); });
}

// clang-format off
static const EffectiveWhen
    GATE = {"layers with an attention.gate.activation", [](const Config& c) { return c.some_layer(has_gate); }},
    GATE_BIAS = {"layers with a gate and attention.gate.bias",
                 [](const Config& c) { return GATE.met(c) && c.attention.gate.bias; }},
    GATE_INPUT = {"layers with a gate, and attention.gate.input other than \"none\"",
                  [](const Config& c) { return GATE.met(c) && c.attention.gate.input != GateInput::none; }},
    ROPE = {"layers that rotate: model.position = \"rope\", and not \"rotated\": false in attention.layers",
            [](const Config& c) { return c.some_layer(rotates); }},
    ROPE_BASE = {"layers that rotate more than one pair of channels",
                 [](const Config& c) {
                   return ROPE.met(c) && std::lround(c.model.rope_fraction * (c.model.head_dim / 2)) > 1;
                 }},
    TOKENS = {"model.head.outputs = 0", [](const Config& c) { return c.model.head.outputs == 0; }},
    INIT = {"init", [](const Config& c) { return !c.init.empty(); }},
    SAMPLES = {"generate.every > 0 (--generate gives its own prompt)",
               [](const Config& c) { return c.generate.every > 0; }, true},
    TOP_K = {"generate.temperature > 0", [](const Config& c) { return c.generate.temperature > 0; }},
    GPT2_TOKENS = {"generate.tokenizer = \"gpt2\"",
                   [](const Config& c) { return c.generate.tokenizer == TokenizerKind::gpt2; }},
    SAVES = {"checkpoint.every > 0", [](const Config& c) { return c.checkpoint.every > 0; }},
    TASKS = {"task.every > 0 (--tasks names its own)", [](const Config& c) { return c.task.every > 0; }, true},
    LONGER = {"a length beyond model.context in eval.lengths, or in --lengths",
              [](const Config& c) {
                return std::any_of(c.eval.lengths.begin(), c.eval.lengths.end(),
                                   [&](int length) { return length > c.model.context; });
              }, true},
    LONGER_ROPE = {"layers that rotate, and a length beyond model.context in eval.lengths, or in --lengths",
                   [](const Config& c) { return LONGER.met(c) && ROPE.met(c); }, true},
    KIND = {"a layer whose kind attention.layers does not say",
            [](const Config& c) { return some_layer_lacks(c, "kind"); }},
    BIAS = {"a layer whose bias attention.layers does not say",
            [](const Config& c) { return some_layer_lacks(c, "bias"); }},
    PRUNES = {"softmax layers with a bias",
              [](const Config& c) { return c.some_layer([](const auto& l) { return l.attention.may_prune(); }); }},
    KEY_WINDOW = {"a layer whose window attention.layers does not say",
                  [](const Config& c) { return some_layer_lacks(c, "window"); }},
    MAY_GATE = {"a layer without \"gated\": false in attention.layers",
                [](const Config& c) { return c.some_layer([](const auto& l) { return l.own.gated; }); }},
    WINDOW = {"layers with a window", [](const Config& c) { return c.some_layer(has_window); }},
    EVAL_WINDOW = {"a layer whose window attention.layers does not say, and a length beyond model.context in "
                   "eval.lengths, or in --lengths",
                   [](const Config& c) { return LONGER.met(c) && KEY_WINDOW.met(c); }, true},
    EVAL_SINK = {"eval.window > 0, and a layer whose window attention.layers does not say",
                 [](const Config& c) { return c.eval.key_window > 0 && KEY_WINDOW.met(c); }},
    LABELS = {"data.labels or data.val_labels",
              [](const Config& c) { return !c.data.labels.empty() || !c.data.val_labels.empty(); }},
    PLAN = {"plan.memory", [](const Config& c) { return c.plan.plans_other_gpu(); }},
    WSD = {"optimizer.schedule = \"wsd\"", [](const Config& c) { return c.optimizer.schedule == Schedule::wsd; }},
    MUON = {"optimizer.matrices = \"muon\"", [](const Config& c) { return c.optimizer.matrices == Matrices::muon; }},
    DECAY = {"a schedule other than \"constant\"",
             [](const Config& c) { return c.optimizer.schedule != Schedule::constant; }};

static ConfigRow only_with(const EffectiveWhen& condition, ConfigRow row) {
  row.effective_when = &condition;
  return row;
}

std::vector<ConfigRow> rows_of_entry(LayerEntry& e) {
  const char* no = nullptr;
  return {
    {"kind", choice(e.kind), "", no, ""},
    {"bias", choice(e.bias, bias_names), "", no, ""},
    {"window", &e.window, "[0, 16777216]", no, " (0: all keys)"},
    {"documents", choice(e.documents, documents_names), "", no, ""},
    {"rotated", &e.rotated, "", no, " (false: no rope)"},
    {"gated", &e.gated, "", no, " (false: no gate)"},
  };
}

static std::string layers_help() {
  LayerEntry entry;
  std::string keys;
  for (const ConfigRow& row : rows_of_entry(entry)) append_item(keys, std::string(row.key) + row.help);
  return "pattern repeated over the layers, each entry a kind or an object of what differs: " + keys;
}

static std::vector<ConfigRow> rows_of_all(Config& c) {
  auto& m = c.model;
  auto& a = c.attention;
  auto& g = c.attention.gate;
  auto& o = c.optimizer;
  const char* no = nullptr;
  constexpr AtResume may_change = AtResume::free, compared = AtResume::compared;
  constexpr bool may_differ = true;
  static const std::string help_of_layers = layers_help();
  return {
    {"name", &c.name, "", "the file's name, with --set's variant", "the run's name: output goes to runs/NAME; no slash",
     may_change, may_differ},
    {"seed", &c.seed, "[0, 18446744073709551615]", no, "seed of the initial weights, the data order and sampling"},
    {"init", &c.init, "", no,
     "folder with a model.safetensors, whole or in parts, to start from; empty starts afresh", compared, may_differ},
    only_with(INIT, {"init_missing", choice(c.init_missing, init_missing_names), "", no,
                     "parameters of attention or a regression head that init lacks: made from the seed, or refused",
                     compared}),
    {"precision", choice(c.precision, precision_names), "", "bf16 on a GPU, fp32 on the CPU",
     "precision of activations and matrix products"},
    {"threads", &c.threads, "[1, 1024]", "cores / ranks", "threads of the CPU build", may_change, may_differ},

    {"model.layers", &m.layers, "[1, 1000]", no, "transformer blocks"},
    {"model.heads", &m.heads, "[1, 1024]", no, "attention heads"},
    {"model.kv_heads", &m.kv_heads, "[1, 1024]", "heads",
     "heads of keys and values; a group of heads shares each (GQA)"},
    {"model.channels", &m.channels, "[8, 65536]", no, "width of the residual stream, a multiple of 8"},
    {"model.head_dim", &m.head_dim, "[1, 512]", "channels / heads", "width of a head; even with rope"},
    {"model.context", &m.context, "[1, 16777216]", no, "tokens of a training sequence"},
    {"model.vocab", &m.vocab, "[1, 65536]", no, "tokens of the vocabulary"},
    {"model.mlp", choice(m.mlp, mlp_names), "", no,
     "the MLP's function; relu2: max(0, x)^2; swiglu: silu(gate) x up, whose product has twice the width"},
    {"model.mlp_ratio", &m.mlp_ratio, "(0, 64]", no,
     "MLP width = round(mlp_ratio x channels), a multiple of 8; swiglu's default: 8/3, up to a multiple of 64"},
    {"model.position", choice(m.position, position_names), "", no, "how positions are encoded"},
    only_with(ROPE_BASE, {"model.rope_base", &m.rope_base, "(0, 1e12]", no, "base of the rotation frequencies"}),
    only_with(ROPE, {"model.rope_fraction", &m.rope_fraction, "[0, 1]", no,
                     "share of the frequencies that rotate, highest first (p-RoPE)"}),
    {"model.norm", choice(m.norm, norm_names), "", no, "norms before attention, before the MLP and at the end"},
    {"model.bias", &m.bias, "", no,
     "whether norms and products have biases; a gate's has its own key, a decay's (fox, cable) is always there"},
    only_with(TOKENS, {"model.tied", &m.tied, "", no,
                       "whether the embeddings are the output layer too, or it has a matrix of its own"}),
    {"model.init_std", &m.init_std, "(0, 1]", no, "standard deviation of random weights"},
    {"model.residual_init", choice(m.residual_init, residual_init_names), "", no,
     "of products that add to the residual stream: init_std / sqrt(2 layers), or 0"},
    only_with(TOKENS, {"model.logit_cap", &m.logit_cap, "[0, 1e6]", no,
                       "c: logits z become c tanh(z / c), in losses and samples; 0: they stay as they are"}),
    {"model.head.outputs", &m.head.outputs, "[0, 1024]", no,
     "0: predicts tokens; K: K values for each token, with a squared error, from float32 labels"},

    {"attention.variant", choice(c.variant, {}, variants()), "", no, "sets the keys below to this variant's values"},
    {"attention.qk_norm", choice(a.qk_norm, qk_norm_names), "", no, "normalises queries and keys"},
    {"attention.scale", choice(a.scale, scale_names, &a.scale_number), "[-1e6, 1e6]", no,
     "factor of a row's scores"},
    only_with(KIND, {"attention.kind", choice(a.kind), "", no, "how scores become weights"}),
    {"attention.output", choice(a.output, output_operation_names), "", no,
     "changes each head's output; exclusive: takes away its part along the token's own value"},
    {"attention.output_norm", choice(a.output_norm, qk_norm_names), "", no, "then normalises it, before the gate"},
    {"attention.sink", choice(a.sink, sink_names), "", no,
     "an extra term in softmax's denominator; one: 1 + sum e^z (softmax1)"},
    only_with(KEY_WINDOW, {"attention.window", &a.window, "[0, 16777216]", no,
                           "most recent keys that a row sees; 0 = all"}),
    only_with(WINDOW, {"attention.sink_tokens", &a.sink_tokens, "[0, 16777216]", no,
                       "first keys that every row sees beside its window"}),
    {"attention.documents", choice(a.documents, documents_names), "", no,
     "joined: a row sees its whole window; separate: its own document, from the separator on (data.separator)"},
    only_with(BIAS, {"attention.bias", choice(a.bias, bias_names), "", no,
                     "added to the scores by position (usually with model.position none)"}),
    only_with(PRUNES, {"attention.prune", &a.prune, "", no,
                     "leaves out tiles of scores that the bias has made negligible: less than 2^-24 of a row's sum",
                     compared}),
    {"attention.layers", &c.layers, "", no, help_of_layers.c_str()},
    {"attention.family", choice(a.family, {""}, family_rows()), "", "the fastest that was measured and can",
     "kernels of all layers, by their name in attention/families.cpp"},
    only_with(MAY_GATE, {"attention.gate.activation", choice(g.activation, gate_activation_names), "", no,
                      "what the gate applies to its logits; none: no gate"}),
    only_with(GATE, {"attention.gate.granularity", choice(g.granularity, gate_granularity_names), "", no,
                     "a logit for each channel, for each head, or for each channel of a head, shared by all heads"}),
    only_with(GATE, {"attention.gate.op", choice(g.op, gate_op_names), "", no, "how the gate acts"}),
    only_with(GATE, {"attention.gate.position", choice(g.position, gate_position_names), "", no, "what it acts on"}),
    only_with(GATE, {"attention.gate.input", choice(g.input, gate_input_names), "", no,
                     "where its logits come from: x, each token; none: a learned bias alone"}),
    only_with(GATE_INPUT, {"attention.gate.weight_init", choice(g.weight_init, gate_weights_names), "", no,
                     "its initial weights: normal, as the model's, or zero"}),
    only_with(GATE, {"attention.gate.bias", &g.bias, "", no, "whether its logits have a bias"}),
    only_with(GATE_BIAS, {"attention.gate.bias_init", &g.bias_init, "[-1e6, 1e6]", no, "the initial bias"}),

    {"data.train", &c.data.train, "", no,
     "shards to train on: a glob, or a list of globs and files, sorted", compared, may_differ},
    {"data.val", &c.data.val, "", no, "shards to evaluate on", compared, may_differ},
    {"data.labels", &c.data.labels, "", no,
     "label files that say what to predict, one for each shard of data.train; none: the next tokens",
     compared, may_differ},
    {"data.val_labels", &c.data.val_labels, "", no, "the same for data.val", compared, may_differ},
    {"data.separator", &c.data.separator, "[-1, 65535]", no,
     "token that begins a document; -1: the tokenizer's end of text (GPT-2's: 50256)"},
    {"data.shuffle", &c.data.shuffle, "", no, "windows in an order drawn from (seed, epoch), or in file order"},

    {"batch.tokens", &c.batch.tokens, "[1, 1073741824]", no,
     "tokens of an optimizer step over all ranks, a multiple of micro x context x ranks"},
    {"batch.micro", &c.batch.micro, "[1, 65535]", "as many as fit, at most 64",
     "sequences in a forward and backward pass"},

    {"optimizer.lr", &o.lr, "[0, 1000]", no, "peak learning rate"},
    {"optimizer.beta1", &o.beta1, "[0, 0.9999999]", no, "AdamW's decay of the first moment"},
    {"optimizer.beta2", &o.beta2, "[0, 0.9999999]", no, "AdamW's decay of the second moment"},
    {"optimizer.eps", &o.eps, "[1e-30, 1]", no, "AdamW's epsilon"},
    {"optimizer.weight_decay", &o.weight_decay, "[0, 1000]", no, "decay of matrices and embeddings"},
    {"optimizer.grad_clip", &o.grad_clip, "[0, 1e9]", no, "largest norm of the gradient; 0 = off"},
    {"optimizer.schedule", choice(o.schedule, schedule_names), "", no, "learning rate after the warmup"},
    {"optimizer.schedule_start", &o.schedule_start, "[0, 1e9]", no,
     "with --resume from this step: use these optimizer settings and restart the schedule; the moments are kept"},
    {"optimizer.warmup_steps", &o.warmup_steps, "[0, 1e9]", no, "steps in which the learning rate rises to lr"},
    only_with(DECAY, {"optimizer.final_lr_fraction", &o.final_lr_fraction, "[0, 1]", no, "final rate / lr"}),
    only_with(WSD, {"optimizer.decay_fraction", &o.decay_fraction, "[0, 1]", no, "share of steps in which wsd decays"}),
    {"optimizer.skip_spikes", &o.skip_spikes, "[0, 1e6]", no, "z-score beyond which an update is skipped; 0 = off"},
    {"optimizer.matrices", choice(o.matrices, matrices_names), "", no,
     "updates the layers' matrices of q, k, v (each for itself), attn.c_proj, mlp.c_fc, mlp.c_proj; AdamW all others"},
    only_with(MUON, {"optimizer.muon.lr", &o.muon.lr, "(0, 1000]", no,
                     "Muon's peak rate (0.02 for spectral), on the same schedule"}),
    only_with(MUON, {"optimizer.muon.momentum", &o.muon.momentum, "[0, 0.9999999]", no, "Muon's (Nesterov) momentum"}),
    only_with(MUON, {"optimizer.muon.weight_decay", &o.muon.weight_decay, "[0, 1000]", no,
                     "decay of Muon's matrices, in place of optimizer.weight_decay"}),
    only_with(MUON, {"optimizer.muon.scale", choice(o.muon.scale, muon_scale_names), "", no,
                     "what multiplies an orthogonal update of m inputs, n outputs: sqrt(max(1, n / m)), or 0.2 "
                     "sqrt(max(m, n)), which suits AdamW's rates"}),

    {"train.steps", &c.train.steps, "[1, 1e9]", no, "optimizer steps", compared},
    {"train.tokens", &c.train.tokens, "[0, 1e15]", no,
     "instead of steps: train on at least this many; 0 = not used", compared},
    only_with(LABELS, {"train.label_mean", choice(c.train.label_mean, label_mean_names), "", no,
                       "the loss is the mean over all labels, or over the means of sequences that have any"}),
    {"train.recompute", choice(c.train.recompute, recompute_names), "", no,
     "what the backward pass recomputes to save memory; gelu changes last digits in bf16", may_change},
    {"train.zero_stage", &c.train.zero_stage, "[0, 1]", no,
     "1: each rank keeps its share of the optimizer's state", may_change},

    {"eval.every", &c.eval.every, "[0, 1e9]", no, "steps between evaluations; 0 = never", may_change},
    {"eval.tokens", &c.eval.tokens, "[1, 1e15]", no, "validation tokens of an evaluation, at each length", may_change},
    {"eval.mode", choice(c.eval.mode, eval_mode_names), "", no,
     "at each length all targets, or the same last targets with that much context", may_change},
    {"eval.start", choice(c.eval.start, window_start_names), "", no,
     "where windows begin: anywhere, as in training, or with a document that is as long", may_change},
    {"eval.lengths", &c.eval.lengths, "[1, 16777216]", "[model.context]",
     "sequence lengths to evaluate at", may_change},
    {"eval.batch", &c.eval.batch, "[1, 65535]", "max(1, micro x context / length)",
     "sequences per evaluation batch", may_change},
    only_with(LONGER_ROPE, {"eval.rope_scaling", choice(c.eval.rope_scaling, rope_scaling_names), "", no,
                       "how rope is scaled beyond the trained length", may_change}),
    only_with(EVAL_WINDOW, {"eval.window", &c.eval.key_window, "[0, 16777216]", no,
                       "attention.window beyond the trained length; 0 = as trained", may_change}),
    only_with(EVAL_SINK, {"eval.sink_tokens", &c.eval.sink_tokens, "[0, 16777216]", no,
                            "attention.sink_tokens with eval.window", may_change}),

    {"checkpoint.every", &c.checkpoint.every, "[0, 1e9]", no, "steps between checkpoints; 0 = only at_end", may_change},
    only_with(SAVES, {"checkpoint.minutes", &c.checkpoint.minutes, "[0, 1e6]", no,
                      "also saves when the last checkpoint is that old, unless checkpoint.every = 0; 0 = never",
                      may_change}),
    {"checkpoint.keep", &c.checkpoint.keep, "[1, 1e6]", no, "checkpoints kept; older ones are removed", may_change},
    {"checkpoint.at_end", &c.checkpoint.at_end, "", no, "whether the last step is saved", may_change},

    {"generate.every", &c.generate.every, "[0, 1e9]", no, "steps between printed samples; 0 = never", may_change},
    {"generate.tokens", &c.generate.tokens, "[1, 1e6]", no, "tokens of a sample", may_change},
    only_with(SAMPLES, {"generate.prompt", &c.generate.prompt, "", no, "text that a sample continues", may_change}),
    {"generate.temperature", &c.generate.temperature, "[0, 1000]", no,
     "temperature of sampling; 0 = always the most likely token", may_change},
    only_with(TOP_K, {"generate.top_k", &c.generate.top_k, "[0, 65536]", no,
                      "sample from this many of the most likely tokens; 0 = all", may_change}),
    {"generate.tokenizer", choice(c.generate.tokenizer, tokenizer_kind_names), "", no,
     "converts text to tokens and back", may_change},
    only_with(GPT2_TOKENS, {"generate.tokenizer_dir", &c.generate.tokenizer_dir, "", no,
                            "folder with vocab.json and merges.txt, GPT-2's or others; checkpoints carry them",
                            may_change, may_differ}),
    {"generate.stop", &c.generate.stop, "", no,
     "text that ends a completion of --generate-file; empty: none", may_change},

    {"passkey.form", choice(c.passkey.form, passkey_form_names), "", no,
     "form of the prompts of --passkey (eval/passkey.h)", may_change},
    {"passkey.trials", &c.passkey.trials, "[1, 1000000]", no, "keys at each length and depth", may_change},
    {"passkey.depths", &c.passkey.depths, "[2, 1001]", no, "depths of the key, evenly from 0 to 1", may_change},
    {"passkey.examples", &c.passkey.examples, "", no, "file to write the prompts to, as JSON lines; empty: none",
     may_change, may_differ},

    {"task.every", &c.task.every, "[0, 1e9]", no, "steps between rounds of task.names; 0 = never", may_change},
    only_with(TASKS, {"task.names", &c.task.names, "", no,
                      "benchmarks to run while training: files NAME.bin of scripts/prepare_tasks.py", may_change}),
    {"task.dir", &c.task.dir, "", no, "folder of these files", may_change, may_differ},
    {"task.limit", &c.task.limit, "[0, 1e9]", no, "run only the first this many examples of each; 0 = all", may_change},
    {"task.max_length", &c.task.max_length, "[1, 16777216]", "model.context",
     "tokens of an example; longer ones lose the first tokens of their context", may_change},
    {"task.samples", &c.task.samples, "", no,
     "file to which --tasks writes the log-likelihoods, as JSON lines; empty: none", may_change, may_differ},

    {"diagnostics.every", &c.diagnostics.every, "[0, 1e9]", no,
     "steps between diagnostics of attention (--diagnostics); 0 = never", may_change},
    {"diagnostics.tokens", &c.diagnostics.tokens, "[1, 1e15]", no, "validation tokens of diagnostics, at each length",
     may_change},
    {"diagnostics.start", choice(c.diagnostics.start, window_start_names), "", no,
     "where their windows begin: anywhere, as in training, or at a separator of documents", may_change},

    {"plan.memory", &c.plan.memory, "", no,
     "with --dry-run: plans for a GPU with this much free memory (such as 80GiB) and runs nothing; empty: this device",
     may_change, may_differ},
    only_with(PLAN, {"plan.ranks", &c.plan.ranks, "[0, 65536]", no,
                     "the ranks of that plan; 0: as many as were started", may_change, may_differ}),
    {"plan.tflops", &c.plan.tflops, "[0, 1e6]", no,
     "TFLOP/s of each rank, as measured: with --dry-run, says how many hours the run takes; 0: unknown", may_change,
     may_differ},

    {"log.every", &c.log.every, "[1, 1e9]", no, "steps between console lines", may_change, may_differ},
    {"log.groups_every", &c.log.groups_every, "[0, 1e9]", no,
     "steps between norms of gradients, weights and updates by group of parameters; 0 = never", may_change},
  };
}
// clang-format on

std::vector<ConfigRow> config_rows(Config& c) {
  std::vector<ConfigRow> rows = rows_of_all(c), of_kinds = rows_of_kinds(c, rows);
  auto is_kind = [](const ConfigRow& row) { return row.key == std::string("attention.kind"); };
  rows.insert(std::ranges::find_if(rows, is_kind) + 1, of_kinds.begin(), of_kinds.end());
  return rows;
}

ConfigRow config_row(Config& config, const std::string& key) {
  for (ConfigRow& row : config_rows(config))
    if (row.key == key) return row;
  failure("%s is not in the configuration table", key.c_str());
}

// Beside those that are a kind with its settings (attention/kinds/).
static std::vector<Variant> composed_variants() {
  return {
      {"sigmoid_gated", {{"attention.gate.activation", "sigmoid"}, {"attention.gate.bias", "false"}}},
      {"softplus_gated",
       {{"attention.gate.activation", "softplus"},
        {"attention.gate.weight_init", "zero"},
        {"attention.gate.bias_init", "0.541324855"}}},
      {"two_sigmoid_gated", {{"attention.gate.activation", "two_sigmoid"}, {"attention.gate.weight_init", "zero"}}},
      {"lssar_softplus_gated",
       {{"attention.qk_norm", "l2"},
        {"attention.scale", "logd_logn"},
        {"attention.kind", "lssar"},
        {"attention.gate.activation", "softplus"},
        {"attention.gate.weight_init", "zero"},
        {"attention.gate.bias_init", "0.541324855"}}},
      {"softmax_qknorm", {{"attention.qk_norm", "l2"}, {"attention.scale", "logd_logn"}}},
      {"ssmax", {{"attention.scale", "ssmax"}}},
      {"alibi", {{"attention.bias", "alibi"}, {"model.position", "none"}}},
      {"fox", {{"attention.bias", "fox"}, {"model.position", "none"}}},
      {"cable", {{"attention.bias", "cable"}, {"model.position", "none"}}},
      {"softmax_sink", {{"attention.sink", "learned"}}},
  };
}

const std::vector<Variant>& variants() {
  static const std::vector<Variant> table = [] {
    std::vector<Variant> all;
    for (const KindRow& kind : kind_rows()) {
      all.push_back({kind.name, {kind.variant.begin(), kind.variant.end()}});
      if (all.size() > 1) all.back().changes.push_back({"attention.kind", kind.name});
    }
    std::vector<Variant> composed = composed_variants();
    for (const KindRow& kind : kind_rows()) check_kind_name(kind, composed);
    std::ranges::copy(composed, std::back_inserter(all));
    return all;
  }();
  return table;
}

using nlohmann::json;

static json entry_json(LayerEntry entry) {
  json object = json::object();
  for (const ConfigRow& row : rows_of_entry(entry))
    if (entry.says(row.key)) object[row.key] = value_json(row);
  return object.size() == 1 && entry.says("kind") ? object["kind"] : object;
}

json value_json(const ConfigRow& row) {
  auto number = [](double x) {  // 4, not 4.0
    return std::floor(x) == x && std::fabs(x) <= EXACT_INTEGERS ? json(int64_t(x)) : json(x);
  };
  return std::visit(
      Overloaded{
          [&](double* x) { return number(*x); },
          [&](const WholeNumber& x) { return number(*x.value); },
          [&](const EnumField& x) { return x.get() < x.names.size() ? json(x.names[x.get()]) : number(*x.number); },
          [](std::vector<LayerEntry>* x) {
            json list = json::array();
            for (const LayerEntry& entry : *x) list.push_back(entry_json(entry));
            return list;
          },
          [](auto* x) { return json(*x); },
      },
      row.value);
}

std::string entry_text(const LayerEntry& entry) { return entry_json(entry).dump(); }

std::string value_text(const ConfigRow& row) {
  return value_json(row).dump(-1, ' ', false, json::error_handler_t::replace);
}

bool is_automatic(const ConfigRow& row) {
  if (!row.automatic) return false;
  json value = value_json(row);
  return value == 0 || value == "" || value == json::array();
}

std::string allowed_text(const ConfigRow& row, const char* separator) {
  auto* choice = std::get_if<EnumField>(&row.value);
  if (!choice) return row.allowed;
  std::string list;
  for (const char* name : choice->names)
    if (*name) append_item(list, name, separator);
  return choice->number ? list + separator + "a number in " + row.allowed : list;
}

Interval interval(const std::string& allowed) {
  size_t comma = allowed.find(',');
  return {std::stod(allowed.substr(1, comma - 1)), std::stod(allowed.substr(comma + 1)), allowed.front() == '(',
          allowed.back() == ')'};
}
