// From JSON and --set to a Config: values into rows, and which source wins.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "settings/table.h"

using nlohmann::json;

namespace {

constexpr size_t MAX_FILE_BYTES = 1 << 20;

std::string shown(const json& value) { return shortened(value.dump(-1, ' ', false, json::error_handler_t::replace)); }

// ---------------------------------------------------------------------------------------------------------------------
// One value into one row. Each returns what is wrong with it, to follow "config: key = value ", or "".

std::string range_problem(const ConfigRow& row, const char* kind) {
  return std::string("must be ") + kind + " in " + row.allowed +
         (row.automatic ? ", or 0 for " + std::string(row.automatic) : "");
}

template <class Int> std::string assign_integer(const ConfigRow& row, Int& target, const json& value) {
  Int x = 0;
  bool fits = false;
  auto take = [&](auto number) {
    fits = std::in_range<Int>(number);
    if (fits) x = Int(number);
  };
  if (value.is_number_unsigned()) take(value.get<uint64_t>());
  else if (value.is_number_integer()) take(value.get<int64_t>());
  else if (value.is_number_float()) {  // 1e9 and 4.0 are integers too
    double number = value.get<double>();
    if (std::floor(number) == number && std::fabs(number) <= EXACT_INTEGERS) take(int64_t(number));
  }
  if (!fits && value.is_number_float() && value.get<double>() > EXACT_INTEGERS &&
      value.get<double>() < interval(row.allowed).high)
    return "is beyond the integers that floating point holds exactly; write it with all its digits";
  bool automatic = fits && row.automatic && x == 0;
  if (!fits || !(automatic || interval(row.allowed).contains(double(x)))) return range_problem(row, "an integer");
  target = x;
  return "";
}

std::string assign(const ConfigRow& row, double& target, const json& value) {
  if (!value.is_number() || !interval(row.allowed).contains(value.get<double>())) return range_problem(row, "a number");
  target = value.get<double>();
  return "";
}

std::string assign(const ConfigRow& row, const WholeNumber& target, const json& value) {
  int64_t x = 0;
  std::string problem = assign_integer(row, x, value);
  if (problem.empty()) *target.value = double(x);
  return problem;
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

std::string assign(const ConfigRow&, std::string& target, const json& value) {
  if (std::string problem = text_problem(value); !problem.empty()) return problem;
  target = value.get<std::string>();
  return "";
}

// For a kind, or a key of a kind, that another build may have.
constexpr const char* BY_ITS_FILE =
    "; to use your own kind, build with its file, which checkpoints hold: make KINDS=PATH.cuh";

std::string assign(const ConfigRow& row, const EnumField& target, const json& value) {
  if (target.number && value.is_number()) {
    if (!interval(row.allowed).contains(value.get<double>()))
      return std::string("must be a name or a number in ") + row.allowed;
    *target.number = value.get<double>();
    target.set(target.names.size());
    return "";
  }
  // The value is on the left: nlohmann compares from there in every version.
  auto name = std::ranges::find_if(target.names, [&](const char* name) { return value == name; });
  if (name != target.names.end()) return target.set(size_t(name - target.names.begin())), "";
  std::string list = allowed_text(row, ", ");
  if (!value.is_string()) return "must be one of " + list;
  std::string hint = value == "softmax1"
                         ? "; softmax1 is attention.sink = \"one\""
                         : did_you_mean(value.get<std::string>(), {target.names.begin(), target.names.end()});
  std::string key = row.key;
  bool is_kind = key == "attention.kind" || key == "attention.variant" || key == "kind";
  return "is unknown (" + list + ")" + (hint.empty() && is_kind ? BY_ITS_FILE : hint);
}

std::string assign(const ConfigRow&, std::vector<std::string>& target, const json& value) {
  std::vector<std::string> items;
  for (auto& item : value.is_array() ? value : json::array({value})) {
    if (std::string problem = text_problem(item); !problem.empty()) return "must be text or a list of text items";
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
    if (!problem.empty() || x == 0) return std::string("must be a list of integers in ") + row.allowed;
    items.push_back(x);
  }
  target = items;
  return "";
}

std::string assign(const ConfigRow& row, const json& value);

// Of an entry of attention.layers that is a string: a kind, or words joined by _ ("window256_lssar"), which checkpoints
// of before 0.1.0 have in place of objects.
json object_of(const std::string& text) {
  json entry = json::object();
  std::string kind;
  for (const std::string& word : split(text, '_')) {
    const char* end = word.data() + word.size();
    int keys = 0;
    if (word.starts_with("window") && std::from_chars(word.data() + 6, end, keys).ptr != end) keys = 0;
    if (keys > 0 || word == "full") entry["window"] = keys;
    else if (std::ranges::count(bias_names, word)) entry["bias"] = word;
    else if (word == "joined") entry["documents"] = word;
    else if (word == "unrotated") entry["rotated"] = false;
    else if (word == "ungated") entry["gated"] = false;
    else if (word != "window" && word != "separate" && word != "rotated" && word != "gated")
      append_item(kind, word.empty() ? "?" : word, "_");
  }
  bool is_kind = std::ranges::count(kind_names, text), words = kind.empty() || std::ranges::count(kind_names, kind);
  if (is_kind || !words) return {{"kind", text}};
  if (!kind.empty()) entry["kind"] = kind;
  return entry;
}

std::string assign_entry(LayerEntry& entry, const json& value) {
  if (!value.is_string() && !value.is_object())
    return "an entry must be a kind or an object, such as {\"kind\": \"lssar\", \"window\": 256}";
  if (value.is_string() && value.get<std::string>().find_first_of("[{") == 0)
    return "this is not JSON; in a shell, write --set 'attention.layers=[\"lssar\", {\"window\": 256}]'";
  const json object = value.is_string() ? object_of(value.get<std::string>()) : value;
  std::vector<ConfigRow> rows = rows_of_entry(entry);
  for (auto& item : object.items()) {
    if (item.key().starts_with("_") || item.value().is_null()) continue;
    auto row = std::ranges::find_if(rows, [&](const ConfigRow& row) { return row.key == item.key(); });
    if (row == rows.end()) {
      std::vector<std::string> keys;
      std::string list;
      for (const ConfigRow& row : rows) keys.push_back(row.key), append_item(list, row.key);
      return shortened(json_quote(item.key())) + " is unknown (" + list + ")" + did_you_mean(item.key(), keys);
    }
    if (std::string problem = assign(*row, item.value()); !problem.empty()) return item.key() + " " + problem;
    entry.given.insert(item.key());
  }
  return "";
}

std::string assign(const ConfigRow&, std::vector<LayerEntry>& target, const json& value) {
  std::vector<LayerEntry> entries;
  for (auto& item : value.is_array() ? value : json::array({value}))
    if (std::string problem = assign_entry(entries.emplace_back(), item); !problem.empty())
      return "has " + shown(item) + ": " + problem;
  target = entries;
  return "";
}

std::string assign(const ConfigRow& row, const json& value) {
  return std::visit(
      [&](auto& target) {
        using Target = std::decay_t<decltype(target)>;
        if constexpr (std::is_class_v<Target>) return assign(row, target, value);
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
  auto [stop, error] = std::from_chars(text.data(), end, real);
  if (error == std::errc::result_out_of_range) real = std::strtod(text.c_str(), nullptr);  // 1e-400 is 0, as in JSON
  if (stop == end && error != std::errc::invalid_argument && std::isfinite(real)) return real;
  return std::nullopt;
}

// The value of a --set text, by the type of its row; a list is "a,b" or JSON. Text that does not fit the type stays
// text, and `assign` refuses it.
json value_of(const ConfigRow& row, const std::string& text) {
  bool texts = std::holds_alternative<std::vector<std::string>*>(row.value) ||
               std::holds_alternative<std::vector<LayerEntry>*>(row.value);
  if (texts || std::holds_alternative<std::vector<int>*>(row.value)) {
    json list = parsed_or_null(text);
    if (list.is_array() || list.is_object()) return list;
    list = json::array();
    if (text.empty()) return list;
    for (const std::string& item : split(text, ',')) {
      auto number = texts ? std::nullopt : number_of(item);
      list.push_back(number ? *number : json(item));
    }
    return list;
  }
  if (std::holds_alternative<bool*>(row.value) && (text == "true" || text == "false")) return text == "true";
  auto* names = std::get_if<EnumField>(&row.value);
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

// What nanoGPT, llm.c and transformers call a key of ours: the last words of theirs.
// clang-format off
constexpr std::pair<const char*, std::string_view> NAMES_ELSEWHERE[] = {
    {"optimizer.lr", " learning_rate max_lr "},
    {"optimizer.final_lr_fraction", " min_lr final_learning_rate_frac learning_rate_decay_frac "},
    {"optimizer.schedule", " lr_scheduler_type lr_scheduler "},
    {"optimizer.warmup_steps", " warmup_iters warmup_iterations "},
    {"optimizer.beta1", " adam_beta1 "},
    {"optimizer.beta2", " adam_beta2 "},
    {"optimizer.eps", " adam_epsilon "},
    {"optimizer.grad_clip", " max_grad_norm clip_grad "},
    {"batch.tokens", " batch_size total_batch_size gradient_accumulation_steps "},
    {"eval.batch", " eval.batch_size eval_batch_size per_device_eval_batch_size "},
    {"batch.micro", " micro_batch_size device_batch_size per_device_train_batch_size "},
    {"train.steps", " max_steps max_iters num_iterations num_train_epochs "},
    {"train.recompute", " gradient_checkpointing "},
    {"model.context", " block_size seq_len seq_length sequence_length max_seq_len n_positions n_ctx "},
    {"model.layers", " n_layer num_hidden_layers "},
    {"model.heads", " n_head num_attention_heads "},
    {"model.channels", " n_embd hidden_size d_model "},
    {"model.vocab", " vocab_size "},
    {"model.mlp_ratio", " n_inner "},
    {"model.rope_base", " rope_theta "},
    {"model.init_std", " initializer_range "},
    {"init", " init_from "},
    {"precision", " dtype torch_dtype "},
    {"eval.every", " eval_interval val_loss_every eval_steps "},
    {"eval.tokens", " eval_iters "},
    {"checkpoint.every", " save_steps save_every checkpoint_every "},
    {"checkpoint.keep", " save_total_limit "},
    {"log.every", " log_interval logging_steps "},
    {"name", " out_dir output_dir run_name "},
};
// clang-format on

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
    of_file = of_file || (prefix == "attention." && object.contains("kind_file"));
    for (auto& member : object.items())  // clang 14 captures no structured bindings
      if (!member.key().starts_with("_")) errors.attempt([&] { read_member(prefix, member.key(), member.value()); });
  }

  // After the file.
  void read_sets(const std::vector<std::string>& sets) {
    if (auto variant = given.find("attention.variant"); variant != given.end() && variant->second.value.is_string())
      variant_of_file = variant->second.value;
    for (auto& set : sets) errors.attempt([&] { read_assignment(set); });
  }

  void apply() {
    if (given.contains("attention.variant")) take("attention.variant", given.at("attention.variant"));
    for (auto& variant : variants()) {
      if (config.variant != variant.name) continue;
      for (auto& [key, text] : variant.changes) {
        auto& row = rows[index.at(key)];
        take(key, {value_of(row, text), std::string("variant ") + variant.name});
      }
    }
    for (auto& key : keys)  // in the table's order, so that the errors' order does not depend on the file's
      if (given.contains(key) && key != "attention.variant") take(key, given.at(key));
    errors.report();
    if (config.name.empty()) name_run();
  }

 private:
  void read_member(const std::string& prefix, const std::string& name, const json& value) {
    std::string key = prefix + name;
    if (name.empty()) refuse(file, "the key \"\" is empty; remove it, or see --help for the keys");
    if (has_control_characters(name))
      refuse(file, "the key %s has control characters", shortened(json_quote(name)).c_str());
    if (name.find('.') != std::string::npos)
      refuse(file, "the key %s has a dot; nest objects instead: \"model\": {\"layers\": 12}",
             shortened(json_quote(name)).c_str());
    if (sections.contains(key)) {
      if (value.is_null()) return;
      if (!value.is_object())
        refuse(file, "%s = %s must be an object: \"%s\": {...}", key.c_str(), shown(value).c_str(), name.c_str());
      return read_object(value, key + ".");
    }
    const ConfigRow& row = row_of(key, file);
    if (!value.is_null()) given[row.key] = {value, file};
  }

  void read_assignment(const std::string& text) {
    const std::string source = "--set";
    size_t equals = text.find('=');
    if (!is_utf8(text)) user_error("config: --set %s is not UTF-8", shortened(json_quote(text)).c_str());
    if (equals == std::string::npos || equals == 0)
      user_error("config: --set %s has no %s; write --set key=value", shortened(text).c_str(),
                 equals ? "\"=\"" : "key");
    std::string key = text.substr(0, equals);
    bool unset = text.substr(equals + 1) == "null", variant = key == "attention.variant";
    if (unset && sections.contains(key))
      return void(std::erase_if(given, [&](auto& item) { return item.first.starts_with(key + "."); }));
    const ConfigRow& row = row_of(key, source);
    if (!unset || variant) {  // without a variant, what the file spells out of its own goes too
      Given next = {unset ? json(config.variant) : value_of(row, text.substr(equals + 1)), source};
      if (variant) replace_variant(next);
      given[row.key] = next;
    }
    if (unset) given.erase(row.key);
  }

  const ConfigRow& row_of(const std::string& key, const std::string& source) {
    auto found = index.find(key);
    if (found != index.end()) return rows[found->second];
    if (sections.contains(key)) {
      std::string inside;
      for (auto& name : keys)
        if (name.starts_with(key + ".")) append_item(inside, name, ", ");
      refuse(source, "%s is a group of keys; set one of %s", key.c_str(), inside.c_str());
    }
    if (of_file && key.starts_with("attention."))
      refuse(source, "%s is unknown in this build%s", key.c_str(), BY_ITS_FILE);
    std::string word = key.substr(key.rfind('.') + 1);
    std::vector<std::string> candidates = keys;
    candidates.insert(candidates.end(), sections.begin(), sections.end());
    std::string hint;
    for (auto& [own, others] : NAMES_ELSEWHERE)
      if (others.find(" " + word + " ") != others.npos || others.find(" " + key + " ") != others.npos)
        hint = format("; did you mean \"%s\"?", own);
    if (hint.empty()) hint = did_you_mean(key, candidates);
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
    errors.attempt([&] {
      std::string problem = assign(rows[index.at(key)], from.value);
      auto controls = [](const json& item) {
        return item.is_string() && has_control_characters(item.get<std::string>());
      };
      const json list = from.value.is_array() ? from.value : json::array({from.value});
      if (problem.empty() && key != "generate.prompt" && key != "generate.stop" && key != "name" &&
          std::any_of(list.begin(), list.end(), controls))
        problem = "must have no control characters";
      if (!problem.empty()) refuse(from.source, "%s = %s %s", key.c_str(), shown(from.value).c_str(), problem.c_str());
      config.origins[key] = from.source;
    });
  }

  // A run is named after its file. With another variant than the file's, that takes the place of the file's at the end
  // of the name, or follows it: gpt2_124m_softmax is gpt2_124m_lssar then, and quickstart quickstart_lssar.
  void name_run() {
    std::string& name = config.name;
    name = file.empty() ? "run" : std::filesystem::path(file).stem().string();
    if (name == ".json") name.clear();
    config.origins["name"] = "the file's name";
    if (file.empty() || name.empty() || config.variant == variant_of_file) return;
    if (name.ends_with("_" + variant_of_file)) name.resize(name.size() - variant_of_file.size() - 1);
    name += "_" + config.variant;
    config.origins["name"] = "the file's name, and --set";
  }

  // The value that this variant gives to each key that any variant changes. Empty for an unknown variant.
  std::map<std::string, json> meaning_of(const json& name) {
    std::map<std::string, json> meaning;
    auto is_named = [&](const Variant& variant) { return name == variant.name; };
    if (std::none_of(variants().begin(), variants().end(), is_named)) return meaning;
    Config plain = plain_variant(name.get_ref<const std::string&>());
    auto all = config_rows(plain);
    for (auto& variant : variants())
      for (auto& [key, text] : variant.changes) meaning[key] = value_json(all[index.at(key)]);
    return meaning;
  }

  // --set attention.variant over a file that names a variant and also its values, as a run's config.json does: these
  // values are dropped. Keys that the file sets to other values stay, with a warning.
  void replace_variant(const Given& next) {
    auto meaning = meaning_of(next.value);
    auto old = given.find("attention.variant");
    auto spelled = old == given.end() ? std::map<std::string, json>{} : meaning_of(old->second.value);
    for (auto& [key, value] : meaning) {
      auto in_file = given.find(key);
      if (in_file == given.end() || in_file->second.source == "--set" || in_file->second.value == value) continue;
      if (spelled.contains(key) && in_file->second.value == spelled[key]) {
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
  bool of_file = false;  // the settings of a run with a kind that is a file
  std::string variant_of_file = config.variant;
  std::vector<ConfigRow> rows;
  std::map<std::string, size_t> index;
  std::vector<std::string> keys;
  std::set<std::string> sections;
  std::map<std::string, Given> given;
  ErrorList errors;
};

}  // namespace

// ---------------------------------------------------------------------------------------------------------------------

Config plain_variant(const std::string& name) {
  Config plain;
  for (const Variant& variant : variants()) {
    if (name != variant.name) continue;
    for (auto& [key, text] : variant.changes) {
      ConfigRow row = config_row(plain, key);
      assign(row, value_of(row, text));
    }
  }
  return plain;
}

Config parse_config(std::string_view text, const std::string& file, const std::vector<std::string>& sets, bool trains) {
  if (text.size() > MAX_FILE_BYTES)
    refuse(file, "%zu bytes are too many for a configuration (at most %zu)", text.size(), MAX_FILE_BYTES);
  return config_from_json(parse_json(text, "config", file), file, sets, trains);
}

Config config_from_json(const json& root, const std::string& file, const std::vector<std::string>& sets, bool trains) {
  if (!root.is_object()) refuse(file, "the file must hold one JSON object: {...}");
  Config config;
  config.file = file;
  config.trains = trains;
  Reader reader(config, file);
  reader.read_object(root, "");
  reader.read_sets(sets);
  reader.apply();
  complete_and_check(config);
  return config;
}

Config load_config(const std::string& path, const std::vector<std::string>& sets, bool trains) {
  return parse_config(read_utf8_file(path, "config", MAX_FILE_BYTES, Pipes::taken), path, sets, trains);
}

std::vector<int> parse_lengths(const std::string& text, const char* what) {
  Config scratch;
  ConfigRow row = config_row(scratch, "eval.lengths");
  json value = value_of(row, text);
  std::string problem =
      value.empty() ? std::string("must be a list of integers in ") + row.allowed : assign(row, value);
  if (!problem.empty()) user_error("%s %s %s, as in 1024,2048", what, shortened(text).c_str(), problem.c_str());
  return scratch.eval.lengths;
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& candidates) {
  if (word.size() > 64) return "";
  auto same = [](char a, char b) { return std::tolower(uint8_t(a)) == std::tolower(uint8_t(b)); };
  // edits: insert, delete, replace, swap two neighbours; a change of case does not count
  auto distance = [&](const std::string& other) {
    std::vector<std::vector<size_t>> d(word.size() + 1, std::vector<size_t>(other.size() + 1));
    for (size_t i = 0; i <= word.size(); i++) {
      for (size_t j = 0; j <= other.size(); j++) {
        if (i == 0 || j == 0) {
          d[i][j] = i + j;
          continue;
        }
        d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + !same(word[i - 1], other[j - 1])});
        if (i > 1 && j > 1 && same(word[i - 1], other[j - 2]) && same(word[i - 2], other[j - 1]))
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
