#include "training/groups.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "eval/diagnostics.h"

using Groups = std::vector<std::pair<std::string, std::vector<RowBlock>>>;

static void add(Groups& groups, const std::string& name, const RowBlock& block) {
  for (auto& [known, blocks] : groups)
    if (known == name) return blocks.push_back(block);
  groups.push_back({name, {block}});
}

static Groups groups_of(const std::vector<Tensor>& tensors, const Config::Model& m) {
  Groups groups;
  for (const Tensor& tensor : tensors) {
    size_t after_layer = tensor.name.starts_with("h.") ? tensor.name.find('.', 2) + 1 : 0;
    std::string layer = tensor.name.substr(0, after_layer), part = tensor.name.substr(after_layer);
    std::string module = part.substr(0, part.rfind('.'));  // without .weight or .bias
    RowBlock block{tensor.offset, tensor.rows(), tensor.columns(), tensor.stride};
    if (module == "attn.c_attn") {
      for (const char* name : {"attn.q", "attn.k", "attn.v"}) {
        block.columns = size_t(name == std::string("attn.q") ? m.heads * m.head_dim : m.kv_width());
        add(groups, layer + name, block);
        block.offset += block.columns;
      }
    } else {
      bool own = module == "wte" || module == "wpe" || module == "lm_head" || module.find(".c_") != std::string::npos;
      add(groups, layer + (own ? module : module.starts_with("ln_") ? "layernorm" : "other"), block);
    }
  }
  return groups;
}

std::vector<double> gradient_squares(Model& model) {
  std::vector<double> squares;
  AdamW any{};
  any.step = 1;
  for (auto& [name, blocks] : groups_of(model.parameters().tensors(), model.config().model))
    squares.push_back(model.parameters().step_squares(blocks, any, {})[0]);
  return squares;
}

void write_group_norms(Model& model, const std::vector<double>& gradient_squares, const AdamW& settings,
                       const Muon& muon, int64_t step, MetricsLog& metrics) {
  nlohmann::ordered_json norms = nlohmann::ordered_json::object();
  auto before = gradient_squares.begin();
  for (auto& [name, blocks] : groups_of(model.parameters().tensors(), model.config().model)) {
    auto [gradient, weight, update] = model.parameters().step_squares(blocks, settings, muon);
    if (before != gradient_squares.end()) gradient = *before++;
    auto number = [](double x) { return std::strtod(format("%.7g", x).c_str(), nullptr); };
    norms[name] = {number(std::sqrt(gradient)), number(std::sqrt(weight)),
                   weight > 0 ? number(std::sqrt(update / weight)) : NAN};
  }
  nlohmann::ordered_json line = {{"step", step}, {"norms", norms}};
  if (auto learned = learned_by_head(model); !learned.is_null()) line["learned"] = learned;
  metrics.write("groups", line);
}
