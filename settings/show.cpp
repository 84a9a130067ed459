// A Config as text: --print-config, --help, JSON, and the differences of two.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "settings/table.h"

using nlohmann::ordered_json;

std::string print_config(const Config& config) {
  Config copy = config;
  auto rows = config_rows(copy);
  int key_width = 0, value_width = 0;
  auto shown = [](const ConfigRow& row) {
    return is_automatic(row) ? "auto (" + std::string(row.automatic) + ")" : value_text(row);
  };
  for (auto& row : rows) {
    key_width = std::max(key_width, int(std::string(row.key).size()));
    value_width = std::max(value_width, std::min(int(shown(row).size()), 36));
  }
  std::string text;
  for (auto& row : rows) {
    auto origin = config.origins.find(row.key);
    text += format("%-*s  %-*s  ", key_width, row.key, value_width, shown(row).c_str()) +
            (origin == config.origins.end() ? "default" : origin->second) +
            (row.at_resume == AtResume::free ? "; may change\n" : "\n");
  }
  return text;
}

ordered_json config_json(const Config& config, const std::vector<std::string>& sections) {
  Config copy = config;
  copy.train.tokens = 0;  // steps holds what it asked for, and both together would be refused
  ordered_json root;
  for (const ConfigRow& row : config_rows(copy)) {
    if (row.effective_when && row.effective_when->only_in_builds_with_it && !row.effective_when->met(config)) continue;
    std::string path = row.key, section = path.substr(0, path.find('.'));
    std::replace(path.begin(), path.end(), '.', '/');
    if (sections.empty() || std::count(sections.begin(), sections.end(), section))
      root[ordered_json::json_pointer("/" + path)] = value_json(row);
  }
  return root;
}

std::string config_text(const Config& config) {
  return config_json(config).dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

static const char* type_name(const ConfigRow& row) {
  return std::visit(Overloaded{
                        [](bool*) { return "true/false"; },
                        [](double*) { return "number"; },
                        [](const WholeNumber&) { return "integer"; },
                        [](std::string*) { return "text"; },
                        [](const EnumField& x) { return x.number ? "choice/number" : "choice"; },
                        [](std::vector<std::string>*) { return "text/list"; },
                        [](std::vector<int>*) { return "integers"; },
                        [](std::vector<LayerEntry>*) { return "list"; },
                        [](auto*) { return "integer"; },
                    },
                    row.value);
}

std::string config_help() {
  Config defaults;
  auto default_of = [](const ConfigRow& row) {
    return is_automatic(row) ? std::string(row.automatic) : value_text(row);
  };
  auto short_key = [](const std::string& key) { return key.substr(key.find('.') + 1); };  // without "attention."
  std::string text =
      "Configuration keys, as JSON or as --set key=value. Missing keys, and keys and groups with the value null, "
      "take the default.\n"
      "Keys that begin with \"_\" are comments.\n";
  for (auto& row : config_rows(defaults)) {
    text += format("\n  %-30s%s\n  %30s%s, default %s", row.key, row.help, "", type_name(row), default_of(row).c_str());
    std::string allowed = allowed_text(row);
    if (!allowed.empty() && allowed.size() < 90) text += "; " + allowed;
    if (row.automatic && allowed.starts_with("[") && !std::holds_alternative<std::vector<int>*>(row.value))
      text += ", or 0 for that default";
  }
  text += "\n\nVariants (attention.variant) and what they change; a key given beside the variant wins:\n\n";
  for (auto& variant : variants()) {
    std::string changes;
    for (auto& [key, value] : variant.changes) append_item(changes, short_key(key) + " " + value);
    text += format("  %-30s%s\n", variant.name, changes.empty() ? "nothing" : changes.c_str());
  }
  return text;
}

std::vector<ChangedSetting> changed_settings(const Config& before, const Config& now) {
  Config old_copy = before, new_copy = now;
  auto old_rows = config_rows(old_copy), new_rows = config_rows(new_copy);
  std::vector<ChangedSetting> changes;
  for (size_t i = 0; i < new_rows.size(); i++) {
    std::string was = value_text(old_rows[i]), is = value_text(new_rows[i]);
    if (was != is) changes.push_back({new_rows[i].key, was, is, new_rows[i].at_resume != AtResume::refused});
  }
  return changes;
}

// Keys that change nothing now, whatever their values.
static std::set<std::string> idle_keys(const Config& config) {
  std::set<std::string> idle;
  Config copy = config;
  for (const ConfigRow& row : config_rows(copy))
    if (row.effective_when && !row.effective_when->met(config)) idle.insert(row.key);
  return idle;
}

std::string attention_text(const Config& config) {
  std::string variant = config.variant, changes;
  if (Kind kind = config.attention.kind; kind != plain_variant(variant).attention.kind)
    variant = kind_names[int(kind)];  // each kind is a variant too
  std::set<std::string> idle = idle_keys(config);
  idle.insert({"attention.variant", "attention.kind_file"});
  for (const ChangedSetting& change : changed_settings(plain_variant(variant), config))
    if ((change.key.starts_with("attention.") || change.key == "model.position") && !idle.contains(change.key))
      append_item(changes, change.key.substr(change.key.find('.') + 1) + " = " + change.is);
  return variant + " attention" + (changes.empty() ? "" : " with " + changes);
}

std::vector<ChangedSetting> changed_model(const Config& before, const Config& now) {
  std::set<std::string> same = {"attention.variant",          "attention.family",         "attention.prune",
                                "attention.gate.weight_init", "attention.gate.bias_init", "model.residual_init"};
  for (const KindRow& kind : kind_rows())
    for (const LearnedNumber& number : kind.learned) same.insert(format("attention.%s_init", number.name));
  std::set<std::string> was_idle = idle_keys(before);
  for (const std::string& key : idle_keys(now))
    if (was_idle.contains(key)) same.insert(key);
  std::vector<ChangedSetting> changes = changed_settings(before, now);
  bool separate = before.attention.documents == Documents::separate && now.attention.documents == Documents::separate;
  std::erase_if(changes, [&](const ChangedSetting& change) {
    bool of_model = change.key.starts_with("model.") || change.key.starts_with("attention.") ||
                    (separate && change.key == "data.separator");
    return same.contains(change.key) || !of_model;
  });
  return changes;
}
