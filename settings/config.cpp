#include "settings/config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "settings/config_table.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

using nlohmann::json;

namespace {

constexpr size_t MAX_FILE_BYTES = 1 << 20;
constexpr double EXACT_INTEGERS = 9007199254740992.0;  // up to 2^53 a double is an exact integer

[[noreturn]] __attribute__((format(printf, 2, 3))) void refuse(const std::string& source, const char* fmt, ...) {
  va_list args;
  va_start(args, fmt);
  std::string text = vformat(fmt, args);
  va_end(args);
  throw UserError("config: " + text + source_tag(source));
}

std::string shown(const json& value) { return shortened(value.dump(-1, ' ', false, json::error_handler_t::replace)); }

// ---------------------------------------------------------------------------------------------------------------------
// One value into one row. Each returns what is wrong with it, to stand behind "config: key = value ", or "".

std::string range_problem(const ConfigRow& row, const char* kind) {
  return std::string("must be ") + kind + " in " + row.allowed +
         (row.automatic ? ", or 0 for " + std::string(row.automatic) : "");
}

template <class Int> std::string assign_integer(const ConfigRow& row, Int& target, const json& value) {
  Int x = 0;
  bool fits = false;
  auto take = [&](auto number) {
    fits = std::in_range<Int>(number);
    if (fits) x = static_cast<Int>(number);
  };
  if (value.is_number_unsigned()) take(value.get<uint64_t>());
  else if (value.is_number_integer()) take(value.get<int64_t>());
  else if (value.is_number_float()) {  // 1e9 and 4.0 are integers too
    double number = value.get<double>();
    if (std::floor(number) == number && std::fabs(number) <= EXACT_INTEGERS) take(static_cast<int64_t>(number));
  }
  bool automatic = fits && row.automatic && x == 0;
  if (!fits || !(automatic || interval(row.allowed).contains(static_cast<double>(x))))
    return range_problem(row, "an integer");
  target = x;
  return "";
}

std::string assign(const ConfigRow& row, double& target, const json& value) {
  if (!value.is_number() || !interval(row.allowed).contains(value.get<double>())) return range_problem(row, "a number");
  target = value.get<double>();
  return "";
}

std::string assign(const ConfigRow&, bool& target, const json& value) {
  if (!value.is_boolean()) return "must be true or false";
  target = value.get<bool>();
  return "";
}

std::string text_problem(const json& value) {
  if (!value.is_string()) return "must be text";
  if (value.get_ref<const std::string&>().find('\0') != std::string::npos) return "must not contain a zero byte";
  return "";
}

std::string choice_problem(const json& value, const std::vector<std::string>& names) {
  std::string list;
  for (auto& name : names) append_item(list, name);
  if (!value.is_string()) return "must be one of " + list;
  return "is unknown (" + list + ")" + did_you_mean(value.get<std::string>(), names);
}

std::string assign(const ConfigRow& row, std::string& target, const json& value) {
  auto names = choices(row.allowed);
  bool automatic = row.automatic && value == "";
  if (!names.empty() && !automatic && std::find(names.begin(), names.end(), value) == names.end())
    return choice_problem(value, names);
  if (std::string problem = text_problem(value); !problem.empty()) return problem;
  target = value.get<std::string>();
  return "";
}

std::string assign(const ConfigRow& row, const Choice& target, const json& value) {
  if (target.number && value.is_number()) {
    std::string range = row.allowed.substr(row.allowed.find('['));
    if (!interval(range).contains(value.get<double>())) return "must be a name or a number in " + range;
    *target.number = value.get<double>();
    target.set(target.names.size());
    return "";
  }
  auto name = std::find(target.names.begin(), target.names.end(), value);
  if (name == target.names.end()) return choice_problem(value, choices(row.allowed));
  target.set(size_t(name - target.names.begin()));
  return "";
}

std::string assign(const ConfigRow&, std::vector<std::string>& target, const json& value) {
  std::vector<std::string> items;
  for (auto& item : value.is_array() ? value : json::array({value})) {
    if (std::string problem = text_problem(item); !problem.empty()) return "must be text or a list of texts";
    if (item.get_ref<const std::string&>().empty()) return "must not contain an empty name";
    items.push_back(item.get<std::string>());
  }
  target = items;
  return "";
}

std::string assign(const ConfigRow& row, std::vector<int>& target, const json& value) {
  std::vector<int> items;
  for (auto& item : value.is_array() ? value : json::array({value})) {
    int x = 0;
    std::string problem = assign_integer(row, x, item);
    if (!problem.empty() || x == 0) return "must be a list of integers in " + row.allowed;
    items.push_back(x);
  }
  target = items;
  return "";
}

std::string assign(const ConfigRow& row, const json& value) {
  return std::visit(
    [&](auto& target) {
      using Target = std::decay_t<decltype(target)>;
      if constexpr (std::is_same_v<Target, Choice>) return assign(row, target, value);
      else if constexpr (std::is_integral_v<std::remove_pointer_t<Target>> && !std::is_same_v<Target, bool*>)
        return assign_integer(row, *target, value);
      else return assign(row, *target, value);
    },
    row.value);
}

std::optional<json> number_of(const std::string& text) {
  const char* end = text.data() + text.size();
  uint64_t natural;
  if (auto [stop, error] = std::from_chars(text.data(), end, natural); stop == end && error == std::errc())
    return natural;
  int64_t integer;
  if (auto [stop, error] = std::from_chars(text.data(), end, integer); stop == end && error == std::errc())
    return integer;
  double real;
  if (auto [stop, error] = std::from_chars(text.data(), end, real);
      stop == end && error == std::errc() && std::isfinite(real))
    return real;
  return std::nullopt;
}

// What a --set text means, by the type of its row; a list is "a,b" or ["a", "b"]. What does not fit the type stays text,
// so that `assign` refuses it.
json value_of(const ConfigRow& row, const std::string& text) {
  bool texts = std::holds_alternative<std::vector<std::string>*>(row.value);
  if (texts || std::holds_alternative<std::vector<int>*>(row.value)) {
    json list = json::parse(text, nullptr, false);
    if (list.is_array()) return list;
    list = json::array();
    for (size_t begin = 0; !text.empty() && begin <= text.size();) {  // "a," has two items, the second is empty
      size_t end = std::min(text.find(',', begin), text.size());
      std::string item = text.substr(begin, end - begin);
      auto number = texts ? std::nullopt : number_of(item);
      list.push_back(number ? *number : json(item));
      begin = end + 1;
    }
    return list;
  }
  if (std::holds_alternative<bool*>(row.value) && (text == "true" || text == "false")) return text == "true";
  auto* names = std::get_if<Choice>(&row.value);
  if (std::holds_alternative<bool*>(row.value) || std::holds_alternative<std::string*>(row.value) ||
      (names && !names->number))
    return text;
  auto number = number_of(text);
  return number ? *number : json(text);
}

// ---------------------------------------------------------------------------------------------------------------------
// The sources, weakest first: defaults, variant, file, --set.

struct Given {
  json value;
  std::string source;  // the file's name, or "--set"
};

// The defaults, with what this variant sets.
Config plain_variant(const std::string& name) {
  Config plain;
  for (const Variant& variant : variants()) {
    if (name != variant.name) continue;
    for (ConfigRow& row : config_rows(plain))
      for (auto& [key, text] : variant.changes)
        if (row.key == std::string(key)) assign(row, value_of(row, text));
  }
  plain.variant = name;
  return plain;
}

class Reader {
 public:
  Reader(Config& config, const std::string& file) : config(config), file(file), rows(config_rows(config)) {
    for (size_t i = 0; i < rows.size(); i++) {
      std::string key = rows[i].key;
      index[key] = i;
      keys.push_back(key);
      for (size_t dot = key.find('.'); dot != std::string::npos; dot = key.find('.', dot + 1))
        sections.insert(key.substr(0, dot));
    }
  }

  void read_object(const json& object, const std::string& prefix) {
    for (auto& [name, value] : object.items()) {
      if (name.rfind("_", 0) == 0) continue;
      std::string key = prefix + name;
      if (name.find('.') != std::string::npos)
        refuse(file, "the key %s has a dot; write the objects out: \"model\": {\"layers\": 12}",
               shortened(json_quote(name)).c_str());
      if (sections.count(key)) {
        if (!value.is_object())
          refuse(file, "%s = %s must be an object: \"%s\": {...}", key.c_str(), shown(value).c_str(), name.c_str());
        read_object(value, key + ".");
      } else {
        given[row_of(key, file).key] = {value, file};
      }
    }
  }

  void read_set(const std::string& text) {
    const std::string source = "--set";
    size_t equals = text.find('=');
    if (!is_utf8(text)) user_error("config: --set %s is not UTF-8", shortened(json_quote(text)).c_str());
    if (equals == std::string::npos || equals == 0)
      user_error("config: --set %s has no %s; write --set key=value", shortened(text).c_str(), equals ? "\"=\"" : "key");
    const ConfigRow& row = row_of(text.substr(0, equals), source);
    Given next = {value_of(row, text.substr(equals + 1)), source};
    if (std::string(row.key) == "attention.variant") replace_variant(next);
    given[row.key] = next;
  }

  void apply() {
    if (given.count("attention.variant")) take("attention.variant", given.at("attention.variant"));
    for (auto& variant : variants()) {
      if (config.variant != variant.name) continue;
      for (auto& [key, text] : variant.changes) {
        auto& row = rows[index.at(key)];
        take(key, {value_of(row, text), std::string("variant ") + variant.name});
      }
    }
    for (auto& key : keys)  // in the table's order, so that the first error does not depend on the file's
      if (given.count(key)) take(key, given.at(key));
  }

  bool is_given(const char* key) const { return given.count(key) > 0; }
  bool allows(const char* key, double x) const { return interval(rows[index.at(key)].allowed).contains(x); }

 private:
  const ConfigRow& row_of(const std::string& key, const std::string& source) {
    auto found = index.find(key);
    if (found != index.end()) return rows[found->second];
    if (sections.count(key)) {
      std::string inside;
      for (auto& name : keys)
        if (name.rfind(key + ".", 0) == 0) append_item(inside, name, ", ");
      refuse(source, "%s is a group of keys; set one of %s", key.c_str(), inside.c_str());
    }
    std::string word = key.substr(key.rfind('.') + 1);
    std::vector<std::string> candidates = keys;
    candidates.insert(candidates.end(), sections.begin(), sections.end());
    std::string hint = did_you_mean(key, candidates);
    if (hint.empty()) hint = did_you_mean_last(word);
    refuse(source, "%s is unknown%s", shortened(key).c_str(), hint.empty() ? "; see --help" : hint.c_str());
  }

  // "layers" or "modell.layers" for model.layers
  std::string did_you_mean_last(const std::string& word) {
    std::vector<std::string> last;
    for (auto& key : keys) last.push_back(key.substr(key.rfind('.') + 1));
    std::string hint = did_you_mean(word, last);
    for (size_t i = 0; i < keys.size() && !hint.empty(); i++)
      if (hint == "; did you mean \"" + last[i] + "\"?") return "; did you mean \"" + keys[i] + "\"?";
    return "";
  }

  void take(const std::string& key, const Given& from) {
    std::string problem = assign(rows[index.at(key)], from.value);
    if (!problem.empty()) refuse(from.source, "%s = %s %s", key.c_str(), shown(from.value).c_str(), problem.c_str());
    config.origins[key] = from.source;
  }

  // What each key that any variant changes is in this one: its change, else the default. Empty for an unknown variant.
  std::map<std::string, json> meaning_of(const json& name) {
    std::map<std::string, json> meaning;
    auto is_named = [&](const Variant& variant) { return name == variant.name; };
    if (std::none_of(variants().begin(), variants().end(), is_named)) return meaning;
    Config plain = plain_variant(name.get_ref<const std::string&>());
    auto all = config_rows(plain);
    for (auto& variant : variants())
      for (auto& [key, text] : variant.changes) meaning[key] = json::parse(value_text(all[index.at(key)]));
    return meaning;
  }

  // --set attention.variant over a file that names a variant and spells out what it means, as a run's config.json does:
  // what is spelled out goes. Keys that the file gives of its own accord stay, with a warning.
  void replace_variant(const Given& next) {
    auto meaning = meaning_of(next.value);
    auto old = given.find("attention.variant");
    auto spelled = old == given.end() ? std::map<std::string, json>{} : meaning_of(old->second.value);
    for (auto& [key, value] : meaning) {
      auto in_file = given.find(key);
      if (in_file == given.end() || in_file->second.source == "--set" || in_file->second.value == value) continue;
      if (spelled.count(key) && in_file->second.value == spelled[key]) {
        given.erase(in_file);
        continue;
      }
      config.warnings.push_back(format("config: %s = %s in the file wins over %s of --set attention.variant=%s%s",
                                       key.c_str(), shown(in_file->second.value).c_str(), shown(value).c_str(),
                                       next.value.get_ref<const std::string&>().c_str(), source_tag(file).c_str()));
    }
  }

  Config& config;
  std::string file;
  std::vector<ConfigRow> rows;
  std::map<std::string, size_t> index;
  std::vector<std::string> keys;
  std::set<std::string> sections;
  std::map<std::string, Given> given;
};

// ---------------------------------------------------------------------------------------------------------------------
// Values that follow from others, and what must hold between several.

void complete(Config& c, const Reader& reader) {
  auto& m = c.model;
  if (m.head_dim == 0) {
    if (m.channels % m.heads != 0)
      refuse(source_of(c, {"model.channels", "model.heads"}),
             "model.channels = %d is not divisible by model.heads = %d; change one of them, or give model.head_dim",
             m.channels, m.heads);
    m.head_dim = m.channels / m.heads;
    if (m.head_dim > 512)
      refuse(source_of(c, {"model.channels", "model.heads"}),
             "model.head_dim would be channels / heads = %d, at most 512 are possible; use more heads or give it",
             m.head_dim);
    c.origins["model.head_dim"] = "channels / heads";
  }
  if (c.train.tokens > 0) {
    if (reader.is_given("train.steps"))
      refuse(source_of(c, {"train.steps", "train.tokens"}),
             "train.steps = %ld and train.tokens = %ld are both given; give one of them", c.train.steps, c.train.tokens);
    c.train.steps = c.train.tokens / c.batch.tokens + (c.train.tokens % c.batch.tokens > 0);
    if (!reader.allows("train.steps", double(c.train.steps)))
      refuse(source_of(c, {"train.tokens", "batch.tokens"}),
             "train.tokens = %ld in steps of batch.tokens = %ld would be %ld steps, at most 1e9 are possible",
             c.train.tokens, c.batch.tokens, c.train.steps);
    c.origins["train.steps"] = "train.tokens / batch.tokens";
  }
  if (c.eval.lengths.empty()) {
    c.eval.lengths = {m.context};
    c.origins["eval.lengths"] = "model.context";
  }
}

void check_model(const Config& c) {
  auto& m = c.model;
  if (m.channels % 8 != 0)
    refuse(source_of(c, {"model.channels"}), "model.channels = %d must be a multiple of 8", m.channels);
  if (int width = m.mlp_width(); width % 8 != 0 || width == 0)
    refuse(source_of(c, {"model.mlp_ratio", "model.channels"}),
           "the MLP width must be a multiple of 8, but round(model.mlp_ratio x model.channels) = round(%s x %d) = %d",
           json_number(m.mlp_ratio).c_str(), m.channels, width);
  if (m.position == "rope" && m.head_dim % 2 != 0)
    refuse(source_of(c, {"model.head_dim", "model.position", "model.channels", "model.heads"}),
           "model.head_dim = %d must be even with model.position = \"rope\"; change it, or use \"learned\" or \"none\"",
           m.head_dim);
}

void check_attention(const Config& c) {
  auto& a = c.attention;
  if (a.sink != Sink::none && a.kind != Kind::softmax)
    refuse(source_of(c, {"attention.sink", "attention.kind", "attention.variant"}),
           "attention.sink = \"%s\" exists for attention.kind = \"softmax\" only, not \"%s\"; use sink \"none\"",
           sink_names[int(a.sink)], kind_names[int(a.kind)]);
  if (a.scale == Scale::logn && c.model.context < 2)
    refuse(source_of(c, {"attention.scale", "model.context"}),
           "attention.scale = \"logn\" divides by ln(model.context) and needs a context of at least 2");
  if (a.gate.granularity == GateGranularity::headwise && a.gate.position == GatePosition::output)
    refuse(source_of(c, {"attention.gate.granularity", "attention.gate.position"}),
           "attention.gate.granularity = \"headwise\" does not exist at attention.gate.position = \"output\", "
           "where the heads are mixed already; use \"elementwise\" or another position");
}

void check_run(const Config& c) {
  bool plain = !c.name.empty() && c.name.size() <= 200 && c.name != "." && c.name != "..";
  for (char x : c.name) plain = plain && x != '/' && static_cast<unsigned char>(x) >= 32 && x != 127;
  if (!plain)
    refuse(source_of(c, {"name"}),
           "name = %s must be a plain folder name: 1 to 200 bytes, no slash, no control characters",
           shortened(json_quote(c.name)).c_str());
  if (c.eval.rope_scaling != RopeScaling::none && c.model.position != "rope")
    refuse(source_of(c, {"eval.rope_scaling", "model.position"}),
           "eval.rope_scaling = \"%s\" needs model.position = \"rope\", not \"%s\"",
           rope_scaling_names[int(c.eval.rope_scaling)], c.model.position.c_str());
  if (c.eval.rope_scaling == RopeScaling::ntk && c.model.head_dim <= 2)
    refuse(source_of(c, {"eval.rope_scaling", "model.head_dim"}),
           "eval.rope_scaling = \"ntk\" needs model.head_dim > 2, not %d", c.model.head_dim);
}

void check_batch(const Config& c, int ranks) {
  int64_t sequences = c.batch.micro > 0 ? c.batch.micro : 1;
  int64_t tokens = sequences * c.model.context;
  if (tokens > std::numeric_limits<int>::max())
    refuse(source_of(c, {"batch.micro", "model.context"}),
           "batch.micro x model.context = %d x %d tokens at once are too many (at most 2147483647)",
           c.batch.micro, c.model.context);
  int64_t unit = tokens * ranks;
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

// Numbers that float32 has no place for.
void check_optimizer(const Config& c) {
  auto& o = c.optimizer;
  if (o.grad_clip > 0 && o.grad_clip < 1e-30)
    refuse(source_of(c, {"optimizer.grad_clip"}),
           "optimizer.grad_clip = %s is too small for float32; use 1e-30 or more, or 0 for no clipping",
           json_number(o.grad_clip).c_str());
}

struct Dependent { const char* key; bool has_effect; const char* needs; };

// Keys that only count together with others.
std::vector<Dependent> dependent_keys(const Config& c) {
  const AttentionSettings& a = c.attention;
  bool lssar = a.kind == Kind::lssar, gated = a.gate.activation != GateActivation::none;
  return {{"attention.power", lssar, "attention.kind = \"lssar\""},
          {"attention.offset", lssar, "attention.kind = \"lssar\""},
          {"attention.offset_free_rows", lssar, "attention.kind = \"lssar\""},
          {"attention.gate.granularity", gated, "an attention.gate.activation"},
          {"attention.gate.op", gated, "an attention.gate.activation"},
          {"attention.gate.position", gated, "an attention.gate.activation"},
          {"attention.gate.weight_init", gated, "an attention.gate.activation"},
          {"attention.gate.bias", gated, "an attention.gate.activation"},
          {"attention.gate.bias_init", gated && a.gate.bias, "a gate with attention.gate.bias"},
          {"model.rope_base", c.model.position == "rope", "model.position = \"rope\""},
          {"optimizer.decay_fraction", c.optimizer.schedule == "wsd", "optimizer.schedule = \"wsd\""},
          {"optimizer.final_lr_fraction", c.optimizer.schedule != "constant", "a schedule other than \"constant\""}};
}

// Those of them that change nothing now.
std::set<std::string> idle_keys(const Config& c) {
  std::set<std::string> idle;
  for (const Dependent& dependent : dependent_keys(c))
    if (!dependent.has_effect) idle.insert(dependent.key);
  return idle;
}

// Warns of keys that were changed and change nothing.
void warn_without_effect(Config& c) {
  std::vector<ChangedSetting> changes = changed_settings(plain_variant(c.variant), c);
  for (const Dependent& dependent : dependent_keys(c))
    for (const ChangedSetting& change : changes)
      if (!dependent.has_effect && change.key == dependent.key)
        c.warnings.push_back(format("config: %s = %s has no effect: it needs %s%s", dependent.key, change.is.c_str(),
                                    dependent.needs, source_tag(source_of(c, {dependent.key})).c_str()));
}

void check_everything(Config& c, const Reader& reader, bool trains) {
  warn_without_effect(c);
  check_model(c);
  check_attention(c);
  check_run(c);
  check_batch(c, 1);
  check_optimizer(c);
  if (trains && (c.eval.every > 0 || reader.is_given("eval.lengths"))) check_lengths(c, c.eval.lengths, "eval.lengths");
  if (c.optimizer.warmup_steps > c.train.steps)
    c.warnings.push_back(
      format("config: optimizer.warmup_steps = %ld is longer than the run's %ld steps, so that the learning "
             "rate never reaches optimizer.lr%s",
             c.optimizer.warmup_steps, c.train.steps,
             source_tag(source_of(c, {"optimizer.warmup_steps", "train.steps"})).c_str()));
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------------

int Config::Model::mlp_width() const { return static_cast<int>(std::lround(mlp_ratio * channels)); }

Config parse_config(std::string_view text, const std::string& file, const std::vector<std::string>& sets, bool trains) {
  if (text.size() > MAX_FILE_BYTES)
    refuse(file, "%zu bytes are too many for a configuration (at most %zu)", text.size(), MAX_FILE_BYTES);
  json root = parse_json(text, "config", file);
  if (!root.is_object()) refuse(file, "the file must hold one JSON object: {...}");
  Config config;
  config.file = file;
  Reader reader(config, file);
  reader.read_object(root, "");
  for (auto& set : sets) reader.read_set(set);
  reader.apply();
  complete(config, reader);
  check_everything(config, reader, trains);
  return config;
}

Config load_config(const std::string& path, const std::vector<std::string>& sets, bool trains) {
  return parse_config(read_text_file(path, "config", MAX_FILE_BYTES), path, sets, trains);
}

void resolve_batch(Config& config, int ranks, int64_t fits) {
  if (config.batch.micro == 0) {
    check_batch(config, ranks);  // at least one sequence must divide
    int64_t sequences = config.batch.tokens / config.model.context / ranks;
    int64_t most = std::min<int64_t>({fits, 64, std::numeric_limits<int>::max() / config.model.context});
    int64_t micro = std::max<int64_t>(most, 1);
    while (sequences % micro != 0) micro--;
    config.batch.micro = static_cast<int>(micro);
    config.origins["batch.micro"] = "as many as fit, at most 64";
  }
  check_batch(config, ranks);
}

int64_t micro_steps(const Config& config, int ranks) {
  return config.batch.tokens / (static_cast<int64_t>(config.batch.micro) * config.model.context * ranks);
}

int eval_batch(const Config& config, int length) {
  if (config.eval.batch > 0) return config.eval.batch;
  int64_t micro = std::max(config.batch.micro, 1);
  return static_cast<int>(std::clamp<int64_t>(micro * config.model.context / length, 1, MAX_SEQUENCES));
}

void check_lengths(const Config& config, const std::vector<int>& lengths, const char* what) {
  std::string name = what[0] == '-' ? std::string(what) : "config: " + std::string(what);
  std::string tag = source_tag(source_of(config, {"eval.lengths", "model.position", "model.context"}));
  for (int length : lengths) {
    if (length < 1) user_error("%s = %d must be positive%s", name.c_str(), length, tag.c_str());
    if (config.model.position == "learned" && length > config.model.context)
      user_error(
        "%s = %d is beyond the %d positions that model.position = \"learned\" has (model.context); "
        "only \"rope\" and \"none\" go further%s",
        name.c_str(), length, config.model.context, tag.c_str());
    if (length > config.eval.tokens)
      user_error(
        "%s = %d is longer than eval.tokens = %ld, so that not one window would be evaluated; raise eval.tokens%s",
        name.c_str(), length, config.eval.tokens, tag.c_str());
    if (static_cast<int64_t>(length) * config.eval.batch > std::numeric_limits<int>::max())
      user_error("%s = %d x eval.batch = %d tokens at once are too many (at most 2147483647)%s", name.c_str(), length,
                 config.eval.batch, tag.c_str());
  }
}

std::vector<int> parse_lengths(const std::string& text, const char* what) {
  Config scratch;
  for (auto& row : config_rows(scratch)) {
    if (std::string(row.key) != "eval.lengths") continue;
    json value = value_of(row, text);
    std::string problem = value.empty() ? "must be a list of integers in " + row.allowed : assign(row, value);
    if (!problem.empty()) user_error("%s %s %s, as in 1024,2048", what, shortened(text).c_str(), problem.c_str());
  }
  return scratch.eval.lengths;
}

std::string source_of(const Config& c, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (auto origin = c.origins.find(key); origin != c.origins.end() && origin->second == "--set") return "--set";
  return c.file;
}

std::string mechanism(const Config& config) {
  std::string changes;
  std::set<std::string> idle = idle_keys(config);
  for (const ChangedSetting& change : changed_settings(plain_variant(config.variant), config))
    if (change.key.starts_with("attention.") && !idle.count(change.key))
      append_item(changes, change.key.substr(10) + " = " + change.is);
  return config.variant + " attention" + (changes.empty() ? "" : " with " + changes);
}

std::vector<ChangedSetting> changed_model(const Config& before, const Config& now) {
  std::set<std::string> same = {"attention.variant", "attention.gate.weight_init", "attention.gate.bias_init"};
  std::set<std::string> was_idle = idle_keys(before);
  for (const std::string& key : idle_keys(now))
    if (was_idle.count(key)) same.insert(key);
  std::vector<ChangedSetting> changes = changed_settings(before, now);
  std::erase_if(changes, [&](const ChangedSetting& change) {
    return same.count(change.key) || !(change.key.starts_with("model.") || change.key.starts_with("attention."));
  });
  return changes;
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& candidates) {
  if (word.size() > 64) return "";
  // edits: insert, delete, replace, swap two neighbours
  auto distance = [&](const std::string& other) {
    std::vector<std::vector<size_t>> d(word.size() + 1, std::vector<size_t>(other.size() + 1));
    for (size_t i = 0; i <= word.size(); i++) {
      for (size_t j = 0; j <= other.size(); j++) {
        if (i == 0 || j == 0) {
          d[i][j] = i + j;
          continue;
        }
        d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (word[i - 1] != other[j - 1])});
        if (i > 1 && j > 1 && word[i - 1] == other[j - 2] && word[i - 2] == other[j - 1])
          d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
    return d[word.size()][other.size()];
  };
  size_t nearest = std::clamp<size_t>(word.size() / 3, 1, 3) + 1;
  std::string best;
  for (auto& candidate : candidates) {
    size_t edits = distance(candidate);
    if (edits < nearest && edits < candidate.size()) {
      nearest = edits;
      best = candidate;
    }
  }
  return best.empty() ? "" : format("; did you mean \"%s\"?", best.c_str());
}
