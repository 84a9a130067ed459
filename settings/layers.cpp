// attention.layers: a pattern of entries, each of words, that gives layers a kind, bias, window, rotation and gate of
// their own.
#include <algorithm>
#include <charconv>

#include "base/json.h"
#include "base/text.h"
#include "settings/table.h"

// Of each pair of layer_words: what the second says of a layer, for --help; and what the configuration must have, or
// both are refused.
static const struct {
  const char* what;
  EffectiveWhen effective_when;
} LAYER_WORDS[] = {
    {"no window",
     {"attention.window > 0, or eval.window",
      // The words belong to the model, but an evaluation may leave the windows out.
      [](const Config& c) { return c.attention.window > 0 || c.eval.key_window > 0 || !c.trains; }}},
    {"documents",
     {"attention.documents = \"separate\"",
      [](const Config& c) { return c.attention.documents == Documents::separate; }}},
    {"no rope", {"model.position = \"rope\"", [](const Config& c) { return c.model.position == Position::rope; }}},
    {"no gate", {"an attention.gate.activation", [](const Config& c) { return c.attention.gate.exists(); }}}};
static_assert(std::size(LAYER_WORDS) == std::size(layer_words));

std::string layers_help() {
  std::string usual, others;
  for (size_t pair = 0; pair < std::size(layer_words); pair++) {
    append_item(usual, layer_words[pair][0]);
    append_item(others, format("%s (%s)", layer_words[pair][1], LAYER_WORDS[pair].what));
  }
  return "pattern repeated over the layers, each entry words joined by _: a kind, a bias, window256 (its own), " +
         others + "; " + usual + ": as the keys say, which must give one";
}

constexpr int LARGEST_WINDOW = 16777216;  // as the table allows

static int own_window(const std::string& word) {  // N of "windowN"; 0: it is none
  const std::string begin = "window";
  if (!word.starts_with(begin)) return 0;
  const char* end = word.data() + word.size();
  int keys = 0;
  if (std::from_chars(word.data() + begin.size(), end, keys).ptr != end) return 0;
  return keys >= 1 && keys <= LARGEST_WINDOW ? keys : 0;
}

LayerEntry layer_entry(const std::string& entry) {
  LayerEntry parts;
  for (const std::string& piece : split(entry, '_')) {
    int window = own_window(piece);
    if (window) parts.window = window;
    bool is_word = window > 0 || std::ranges::count(bias_names, piece);
    for (auto& pair : layer_words) is_word = is_word || std::ranges::count(pair, piece);
    if (is_word) parts.words.push_back(piece);
    else append_item(parts.kind, piece, "_");
  }
  return parts;
}

bool some_entry_lacks(const Config& c, bool (*says)(const LayerEntry&)) {
  auto end = c.layers.begin() + std::min(c.layers.size(), size_t(c.model.layers));
  return c.layers.empty() || std::any_of(c.layers.begin(), end, [&](auto& entry) { return !says(layer_entry(entry)); });
}

Config::Layer Config::layer(int l, int length) const {
  Layer layer = {attention_at(length), model.position == Position::rope};
  AttentionSettings& a = layer.attention;
  LayerEntry entry = layer_entry(layers.empty() ? "" : layers[size_t(l) % layers.size()]);
  for (size_t kind = 0; kind < std::size(kind_names); kind++)
    if (entry.kind == kind_names[kind]) a.kind = Kind(kind);
  if (entry.window) a.window = entry.window, a.sink_tokens = attention.sink_tokens;  // at every length
  for (const std::string& word : entry.words) {
    for (size_t bias = 0; bias < std::size(bias_names); bias++)
      if (word == bias_names[bias]) a.bias = Bias(bias);
    if (word == "full") a.window = a.sink_tokens = 0;
    if (word == "joined") a.documents = Documents::joined;
    if (word == "unrotated") layer.rotated = false;
    if (word == "ungated") a.gate.activation = GateActivation::none;
  }
  if (!kind_row(a.kind).has_sink) a.sink = Sink::none;
  return layer;
}

std::string layer_problem(const Config& c, const std::string& entry) {
  std::vector<std::string> names(std::begin(kind_names), std::end(kind_names));
  std::string kinds, biases, pairs, without_effect, named = "has " + json_quote(shortened(entry)) + ": ";
  for (const char* kind : kind_names) append_item(kinds, kind);
  for (const char* bias : bias_names) append_item(biases, bias);
  auto [words, kind, window] = layer_entry(entry);
  // full has an effect if another layer has its own window.
  bool some_own = std::ranges::any_of(c.layers, [](const auto& other) { return layer_entry(other).window > 0; });
  auto has = [&](const std::string& text) { return ("_" + entry + "_").find("_" + text + "_") != std::string::npos; };
  bool wrong = has("") || (!kind.empty() && !(std::ranges::count(names, kind) && has(kind)));
  auto is_bias = [](const std::string& word) { return std::ranges::count(bias_names, word) > 0; };
  wrong = wrong || std::ranges::count_if(words, is_bias) > 1;
  names.insert(names.end(), std::begin(bias_names), std::end(bias_names));
  for (size_t pair = 0; pair < std::size(layer_words); pair++) {
    auto& [usual, other] = layer_words[pair];
    const EffectiveWhen& effective_when = LAYER_WORDS[pair].effective_when;
    auto is_usual = [&name = usual](const std::string& word) { return word.starts_with(name); };
    auto given = std::ranges::count_if(words, is_usual) + std::ranges::count(words, other);
    bool met = effective_when.met(c) || (some_own && other == std::string("full") && !std::ranges::count(words, usual));
    wrong = wrong || given > 1;
    append_item(pairs, format("%s or %s", usual, other));
    if (given && !met && without_effect.empty())
      without_effect = format("%s and %s need %s; set it, or remove these words", usual, other, effective_when.what);
    names.insert(names.end(), {usual, other});
  }
  if (!wrong) return without_effect.empty() ? "" : named + without_effect;
  std::string hint = did_you_mean(kind, names);
  for (const std::string& piece : split(kind, '_'))
    if (hint.empty() && !std::ranges::count(names, piece)) hint = did_you_mean(piece, names);
  return named + "an entry is words joined by _, at most one of each: a kind (" + kinds +
         ", that of a file needs make KINDS=PATH.cuh), a bias (" + biases + "), " + pairs +
         format("; windowN is a window of N keys, 1 to %d", LARGEST_WINDOW) + hint;
}
