// Derived values, and the rules between keys.
#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "base/utf8.h"
#include "settings/table.h"

void refuse(const std::string& source, const char* fmt, ...) {
  va_list args;
  va_start(args, fmt);
  std::string text = vformat(fmt, args);
  va_end(args);
  throw UserError("config: " + text + source_tag(source));
}

void ErrorList::report() const {
  if (!texts_.empty()) throw UserError(listed(texts_, 8, "\n").substr(1));
}

std::string source_of(const Config& c, const std::vector<const char*>& keys) {
  for (const char* key : keys)
    if (auto origin = c.origins.find(key); origin != c.origins.end() && origin->second == "--set") return "--set";
  return c.file;
}

static void complete(Config& c) {
  auto& m = c.model;
  if (m.head_dim == 0) {
    if (m.channels % m.heads != 0)
      refuse(source_of(c, {"model.channels", "model.heads"}),
             "model.channels = %d is not divisible by model.heads = %d; change one of them, or set model.head_dim",
             m.channels, m.heads);
    m.head_dim = m.channels / m.heads;
    if (m.head_dim > 512)
      refuse(source_of(c, {"model.channels", "model.heads"}),
             "model.head_dim would be channels / heads = %d, at most 512 is possible; use more heads or set it",
             m.head_dim);
    c.origins["model.head_dim"] = "channels / heads";
  }
  if (m.kv_heads == 0) m.kv_heads = m.heads, c.origins["model.kv_heads"] = "heads";
  if (m.heads % m.kv_heads != 0)
    refuse(source_of(c, {"model.heads", "model.kv_heads"}),
           "model.kv_heads = %d does not divide model.heads = %d; use a divisor of it", m.kv_heads, m.heads);
  if (m.mlp == Mlp::swiglu && !c.origins.contains("model.mlp_ratio")) {
    m.mlp_ratio = double((8 * m.channels + 3 * 64 - 1) / (3 * 64) * 64) / m.channels;
    c.origins["model.mlp_ratio"] = "8/3 of model.channels, up to a multiple of 64";
  }
  if (c.train.tokens > 0) {
    if (c.origins.contains("train.steps"))
      refuse(source_of(c, {"train.steps", "train.tokens"}),
             "train.steps = %ld and train.tokens = %ld are both given; remove one of them, or unset it: --set "
             "train.steps=null",
             c.train.steps, c.train.tokens);
    c.train.steps = c.train.tokens / c.batch.tokens + (c.train.tokens % c.batch.tokens > 0);
    if (!interval(config_row(c, "train.steps").allowed).contains(double(c.train.steps)))
      refuse(source_of(c, {"train.tokens", "batch.tokens"}),
             "train.tokens = %ld in steps of batch.tokens = %ld would be %ld steps, at most 1e9 are possible",
             c.train.tokens, c.batch.tokens, c.train.steps);
    c.origins["train.steps"] = "train.tokens / batch.tokens";
  }
  check_kind_files(c);
  if (c.eval.lengths.empty()) {
    c.eval.lengths = {m.context};
    c.origins["eval.lengths"] = "model.context";
  }
}

// ---------------------------------------------------------------------------------------------------------------------

// A limit on one key's value that depends on other keys, or that an interval cannot express.
struct Rule {
  const char* key;
  std::vector<const char*> others;        // that the limit depends on too
  std::string (*problem)(const Config&);  // what is wrong, to follow "config: KEY = VALUE "; "" if nothing is
};

// clang-format off
static const Rule RULES[] = {
  {"model.logit_cap", {}, [](const Config& c) -> std::string {
     if (c.model.logit_cap == 0 || c.model.logit_cap >= 1e-3) return "";
     return "leaves logits no room; use a larger one, such as 15 or 30, or 0 for none";
   }},
  {"model.channels", {}, [](const Config& c) -> std::string {
     return c.model.channels % 8 == 0 ? "" : "must be a multiple of 8";
   }},
  {"model.head_dim", {"model.position", "model.channels", "model.heads"}, [](const Config& c) -> std::string {
     if (c.model.position != Position::rope || c.model.head_dim % 2 == 0 || c.model.channels % 8 != 0) return "";
     return "must be even with model.position = \"rope\"; change it, or use \"learned\" or \"none\"";
   }},
  {"attention.sink", {"attention.kind", "attention.variant", "attention.layers"}, [](const Config& c) -> std::string {
     auto has_sink = [](const Config::Layer& layer) { return kind_row(layer.attention.kind).has_sink; };
     if (c.attention.sink == Sink::none || c.some_layer(has_sink)) return "";
     std::string kinds;
     for (const KindRow& kind : kind_rows())
       if (kind.has_sink) append_item(kinds, kind.name, " or ");
     return "needs a layer of the kind " + kinds + " (attention.kind, attention.layers); use sink \"none\"";
   }},
  {"attention.scale", {"model.context"}, [](const Config& c) -> std::string {
     if (c.attention.scale != Scale::logn || c.model.context >= 2) return "";
     return "divides by ln(model.context) and needs a context of at least 2";
   }},
  {"attention.layers",
   {"attention.window", "eval.window", "attention.documents", "model.position", "attention.gate.activation",
    "attention.variant"},
   [](const Config& c) -> std::string {
     auto has_window = [](const LayerEntry& entry) { return entry.window > 0; };
     // An evaluation may leave out the windows, but not what the model says of them.
     bool windows = c.attention.window > 0 || c.eval.key_window > 0 || !c.trains ||
                    std::ranges::any_of(c.layers, has_window);
     const std::tuple<const char*, bool, const char*> needs[] = {
         {"window", windows, "attention.window > 0, eval.window, or an entry with a window"},
         {"documents", c.attention.documents == Documents::separate, "attention.documents = \"separate\""},
         {"rotated", c.model.position == Position::rope, "model.position = \"rope\""},
         {"gated", c.attention.gate.exists(), "an attention.gate.activation"}};
     for (const LayerEntry& entry : c.layers)
       for (auto& [key, met, what] : needs)
         if (entry.says(key) && !met)
           return format("has %s: \"%s\" needs %s; set it, or remove \"%s\"",
                         shortened(entry_text(entry)).c_str(), key, what, key);
     return "";
   }},
  {"attention.gate.input", {"attention.gate.bias"}, [](const Config& c) -> std::string {
     const GateSettings& gate = c.attention.gate;
     if (!gate.exists() || gate.input == GateInput::x || gate.bias) return "";
     return "leaves attention.gate.bias alone to be learned, which is false; set it to true";
   }},
  {"attention.gate.granularity", {"attention.gate.position"}, [](const Config& c) -> std::string {
     const GateSettings& gate = c.attention.gate;
     if (gate.granularity == GateGranularity::elementwise || gate.position != GatePosition::output) return "";
     return "does not exist at attention.gate.position = \"output\", where the heads are mixed already; use "
            "\"elementwise\" or another position";
   }},
  {"data.separator", {"model.vocab"}, [](const Config& c) -> std::string {
     if (c.data.separator < c.model.vocab) return "";
     return format("is not a token of model.vocab = %d; use the one that begins a document, or -1", c.model.vocab);
   }},
  {"name", {}, [](const Config& c) -> std::string {
     const std::string& name = c.name;
     bool plain = is_utf8(name) && !name.empty() && name.size() <= 200 && name != "." && name != "..";
     plain = plain && name.find('/') == std::string::npos && !has_control_characters(name);
     bool of_step = name.starts_with("step_") && name.size() > 12 && name.find_first_not_of("0123456789", 5) > 200;
     if (plain && !of_step) return "";
     std::string rule = of_step ? "is the name of a checkpoint's folder; give the run another" :
         "must be a plain folder name: 1 to 200 bytes of UTF-8, no slash, no control characters";
     auto origin = c.origins.find("name");
     bool by_file = origin != c.origins.end() && origin->second.starts_with("the file's name");
     return rule + (by_file ? "; it comes from the file's name: give another with --set name=..." : "");
   }},
  {"eval.rope_scaling", {"model.position"}, [](const Config& c) -> std::string {
     if (c.eval.rope_scaling == RopeScaling::none || c.model.position == Position::rope) return "";
     return format("needs model.position = \"rope\", not \"%s\"", position_names[int(c.model.position)]);
   }},
  {"eval.rope_scaling", {"model.head_dim"}, [](const Config& c) -> std::string {
     if (c.eval.rope_scaling != RopeScaling::ntk || c.model.head_dim > 2) return "";
     return format("needs model.head_dim > 2, not %d", c.model.head_dim);
   }},
  {"task.max_length", {"model.position", "model.context"}, [](const Config& c) -> std::string {
     if (c.model.position != Position::learned || c.task.max_length <= c.model.context) return "";
     return format("is beyond the %d positions that model.position = \"learned\" has (model.context); "
                   "only \"rope\" and \"none\" go further", c.model.context);
   }},
  {"task.every", {"model.head.outputs"}, [](const Config& c) -> std::string {
     if (c.task.every == 0 || c.model.head.outputs == 0) return "";
     return "needs a model of tokens, but model.head.outputs makes one of values; use task.every = 0";
   }},
  {"task.every", {"task.names"}, [](const Config& c) -> std::string {
     return c.task.every == 0 || !c.task.names.empty() ? "" : "needs task.names, the benchmarks to run";
   }},
  {"generate.every", {"model.head.outputs"}, [](const Config& c) -> std::string {
     if (c.generate.every == 0 || c.model.head.outputs == 0) return "";
     return "needs a model of tokens, but model.head.outputs makes one of values; use generate.every = 0";
   }},
  {"plan.memory", {}, [](const Config& c) -> std::string {
     double bytes = size_in_bytes(c.plan.memory);
     if (!c.plan.plans_other_gpu() || (bytes >= 1 && bytes <= 1e18)) return "";
     return "must be a size with its unit, such as 80GiB or 512MiB (1 GB = 0.93GiB)";
   }},
  {"optimizer.muon.scale", {"optimizer.muon.lr"}, [](const Config& c) -> std::string {
     const Config::Optimizer& o = c.optimizer;
     bool given = o.muon.scale == MuonScale::spectral || c.origins.contains("optimizer.muon.lr");
     if (o.matrices == Matrices::adamw || given) return "";
     return "needs another rate than the default, which is spectral's; set optimizer.muon.lr, near optimizer.lr";
   }},
  {"optimizer.lr", {"optimizer.matrices"}, [](const Config& c) -> std::string {
     if (c.optimizer.matrices == Matrices::adamw || c.optimizer.lr > 0) return "";
     return "leaves all but the matrices as they are; with optimizer.matrices = \"muon\" set both rates";
   }},
  {"optimizer.matrices", {"model.kv_heads", "model.head_dim"}, [](const Config& c) -> std::string {
     if (c.optimizer.matrices == Matrices::adamw || c.model.kv_width() > 1) return "";
     return "finds matrices of one column, whose orthogonal updates all have one length; use more heads "
            "(model.kv_heads), wider ones (model.head_dim), or \"adamw\"";
   }},
  {"optimizer.grad_clip", {}, [](const Config& c) -> std::string {
     if (c.optimizer.grad_clip == 0 || c.optimizer.grad_clip >= 1e-30) return "";
     return "is too small for float32; use 1e-30 or more, or 0 for no clipping";
   }},
};
// clang-format on

static void check_rule(Config& c, const Rule& rule) {
  std::string problem = rule.problem(c);
  if (problem.empty()) return;
  std::vector<const char*> keys = rule.others;
  keys.push_back(rule.key);
  refuse(source_of(c, keys), "%s = %s %s", rule.key, shortened(value_text(config_row(c, rule.key))).c_str(),
         problem.c_str());
}

static void check_mlp_width(const Config& c) {
  auto& m = c.model;
  if (m.channels % 8 != 0) return;  // a rule refuses that
  if (int width = m.mlp_width(); width % 8 != 0 || width == 0)
    refuse(source_of(c, {"model.mlp_ratio", "model.channels"}),
           "the MLP width must be a multiple of 8, but round(model.mlp_ratio x model.channels) = round(%s x %d) = %d",
           json_number(m.mlp_ratio).c_str(), m.channels, width);
}

int most_sequences(const Config& config, int length) {
  // The third extent of a kernel's grid; 32 bits for a row of each head's q and k; 32 for the lanes that share a row,
  // and for the units of swiglu's.
  constexpr int64_t SEQUENCES = 65535, HEAD_ROWS = (int64_t(1) << 30) - 1, ELEMENTS = int64_t(1) << 34;
  const Config::Model& m = config.model;
  int64_t width = std::max<int64_t>(m.channels, int64_t(m.heads) * m.head_dim);
  if (m.mlp == Mlp::swiglu) width = std::max<int64_t>(width, m.mlp_width());
  return int(std::min({SEQUENCES, HEAD_ROWS / m.heads / length, ELEMENTS / width / length}));
}

// name: of the length. key: of the number of sequences at once.
static void check_sequences(const Config& c, int64_t sequences, const char* key, int length, const std::string& name) {
  int most = most_sequences(c, length);
  if (sequences <= most) return;
  std::string fix = most > 0 ? format("use %s = %d at most", key, most) : std::string("use a shorter one");
  user_error("%s = %d: %ld %s of this length are too many for one pass with %d heads and %d channels; %s%s",
             name.c_str(), length, sequences, plural(double(sequences), "sequence").c_str(), c.model.heads,
             c.model.channels, fix.c_str(), source_tag(source_of(c, {key, "model.context", "eval.lengths"})).c_str());
}

static void check_batch(const Config& c, int ranks) {
  int64_t sequences = c.batch.micro > 0 ? c.batch.micro : 1;
  check_sequences(c, sequences, "batch.micro", c.model.context, "config: model.context");
  int64_t unit = sequences * c.model.context * ranks;
  if (c.batch.tokens % unit == 0) return;
  std::string names, values;
  auto factor = [&](const char* name, int value) {
    append_item(names, name, " x ");
    append_item(values, std::to_string(value), " x ");
  };
  if (c.batch.micro > 0) factor("micro", c.batch.micro);
  factor("context", c.model.context);
  if (ranks > 1) factor("ranks", ranks);
  if (unit != c.model.context) values += " = " + std::to_string(unit);
  int64_t below = c.batch.tokens / unit * unit;
  std::string nearest = (below > 0 ? std::to_string(below) + " or " : "") + std::to_string(below + unit);
  bool smaller_divides = c.batch.tokens % (int64_t(c.model.context) * ranks) == 0;
  refuse(source_of(c, {"batch.tokens", "batch.micro", "model.context"}),
         "batch.tokens = %ld must be a multiple of %s = %s; use %s%s", c.batch.tokens, names.c_str(), values.c_str(),
         nearest.c_str(), smaller_divides ? ", or batch.micro = 0 for one that divides" : "");
}

// Warns about what was set but has no effect.
static void warn_without_effect(Config& c) {
  auto warn = [&](const std::string& what, const std::string& needs, std::vector<const char*> keys) {
    c.warnings.push_back(what + " has no effect: it needs " + needs + source_tag(source_of(c, keys)));
  };
  for (const ChangedSetting& change : changed_settings(plain_variant(c.variant), c))
    if (const EffectiveWhen* when = config_row(c, change.key).effective_when;
        when && !when->met(c) && (c.trains || !when->or_a_flag))
      warn(format("config: %s = %s", change.key.c_str(), change.is.c_str()), when->what, {change.key.c_str()});
  if (size_t reached = size_t(c.model.layers); c.layers.size() > reached)
    warn("config: attention.layers: the pattern from " + shortened(entry_text(c.layers[reached])) + " on",
         format("model.layers > %zu", reached), {"attention.layers", "model.layers"});
  int longest = std::max(c.model.context, *std::max_element(c.eval.lengths.begin(), c.eval.lengths.end()));
  std::set<int> hides_nothing;  // windows
  for (int l = 0; l < c.model.layers && c.trains; l++)
    if (int window = c.layer(l).attention.window; window >= longest) hides_nothing.insert(window);
  for (int window : hides_nothing) {
    const char* key = window == c.attention.window ? "attention.window" : "attention.layers";
    warn(format("config: %s: a window of %d keys", key, window),
         "a longer length in model.context or eval.lengths, or in --lengths", {key, "model.context", "eval.lengths"});
  }
}

// Why the warmup and the decay do not both fit into the schedule's steps, or "".
static std::string schedule_problem(const Config& c) {
  const Config::Optimizer& o = c.optimizer;
  int64_t steps = c.train.steps - o.schedule_start, decay = std::llround(o.decay_fraction * double(steps));
  if (o.warmup_steps == 0 || steps <= 0) return "";
  std::string of_steps = format("the %s %ld steps", o.schedule_start > 0 ? "schedule's" : "run's", steps);
  if (o.warmup_steps > steps)
    return format(" is longer than %s, so the learning rate never reaches optimizer.lr", of_steps.c_str());
  // The other schedules decay in the steps that the warmup leaves.
  if (o.schedule != Schedule::wsd || o.final_lr_fraction == 1 || o.warmup_steps + decay <= steps) return "";
  return format(
      " and the last %ld steps, in which the rate decays (optimizer.decay_fraction = %s), overlap in %s, so "
      "the learning rate drops after the warmup; lower one of them",
      decay, json_number(o.decay_fraction).c_str(), of_steps.c_str());
}

void complete_and_check(Config& c) {
  complete(c);
  warn_without_effect(c);
  ErrorList errors;
  for (const Rule& rule : RULES) errors.attempt([&] { check_rule(c, rule); });
  errors.attempt([&] { check_mlp_width(c); });
  errors.attempt([&] { check_batch(c, 1); });
  if (c.trains && c.eval.every > 0) errors.attempt([&] { check_lengths(c, c.eval.lengths, "eval.lengths"); });
  errors.report();
  if (std::string problem = schedule_problem(c); !problem.empty())
    c.warnings.push_back(
        "config: optimizer.warmup_steps = " + std::to_string(c.optimizer.warmup_steps) + problem +
        source_tag(source_of(c, {"optimizer.warmup_steps", "optimizer.schedule", "optimizer.decay_fraction",
                                 "optimizer.schedule_start", "train.steps", "train.tokens"})));
}

// ---------------------------------------------------------------------------------------------------------------------

void resolve_batch(Config& config, int ranks, int64_t fits) {
  if (config.batch.micro == 0) {
    check_batch(config, ranks);  // at least one sequence must divide
    int64_t sequences = config.batch.tokens / config.model.context / ranks;
    int64_t most = std::min<int64_t>(fits, MOST_MICRO);
    int64_t micro = std::max<int64_t>(most, 1);
    while (sequences % micro != 0) micro--;
    config.batch.micro = int(micro);
    config.origins["batch.micro"] = "as many as fit, at most 64";
  }
  check_batch(config, ranks);
}

int64_t micro_steps(const Config& config, int ranks) {
  return config.batch.tokens / (int64_t(config.batch.micro) * config.model.context * ranks);
}

int eval_batch(const Config& config, int length) {
  if (config.eval.batch > 0) return config.eval.batch;
  int64_t micro = std::max(config.batch.micro, 1);
  return int(
      std::clamp<int64_t>(micro * config.model.context / length, 1, std::max(1, most_sequences(config, length))));
}

void check_lengths(const Config& config, const std::vector<int>& lengths, const char* what) {
  std::string name = what[0] == '-' ? std::string(what) : "config: " + std::string(what);
  std::string tag = source_tag(source_of(config, {"eval.lengths", "model.position", "model.context"}));
  for (int length : lengths) {
    if (std::count(lengths.begin(), lengths.end(), length) > 1)
      user_error("%s names %d twice; remove one of the two%s", name.c_str(), length, tag.c_str());
    if (length < 1) user_error("%s = %d must be positive%s", name.c_str(), length, tag.c_str());
    if (config.model.position == Position::learned && length > config.model.context)
      user_error(
          "%s = %d is beyond the %d positions that model.position = \"learned\" has (model.context); "
          "only \"rope\" and \"none\" go further%s",
          name.c_str(), length, config.model.context, tag.c_str());
    if (length > config.eval.tokens)
      user_error("%s = %d is longer than eval.tokens = %ld, so no window would be evaluated; raise eval.tokens%s",
                 name.c_str(), length, config.eval.tokens, tag.c_str());
    check_sequences(config, std::max(config.eval.batch, 1), "eval.batch", length, name);
  }
}
