#include "training/dead_gradients.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"

// "h.*.ln_1.weight" from "h.3.ln_1.weight"
static std::string in_all_layers(const std::string& name) {
  return name.starts_with("h.") ? "h.*" + name.substr(name.find('.', 2)) : name;
}

void warn_of_zero_gradients(Model& model, int64_t step) {
  model.parameters().gather(Part::gradients);
  if (!model.comm().first()) return;
  auto is_zero = [&](Tensor tensor, size_t size) {
    tensor.size = size;  // its first rows
    std::vector<float> values(size);
    model.parameters().read(tensor, Part::gradients, values.data());
    return std::all_of(values.begin(), values.end(), [](float x) { return x == 0; });
  };
  // A gate that multiplies by 0 and has a gradient opens with the first update. The parameters behind it learn from
  // then on.
  bool multiplies = model.config().attention.gate.op == GateOp::multiply;
  std::set<std::string> opening;  // "h.3."
  std::vector<std::string> zero;
  for (const Tensor& tensor : model.parameters().tensors()) {
    bool none = is_zero(tensor, tensor.columns()) && is_zero(tensor, tensor.size);
    if (none) zero.push_back(tensor.name);
    else if (multiplies && tensor.name.find(".attn.c_gate.") != std::string::npos)
      opening.insert(tensor.name.substr(0, tensor.name.find('.', 2) + 1));
  }
  std::map<std::string, int> counts;
  std::vector<std::string> names;  // in the model's order
  for (const std::string& name : zero)
    if (!opening.contains(name.substr(0, name.find('.', 2) + 1)) && counts[in_all_layers(name)]++ == 0)
      names.push_back(in_all_layers(name));
  std::string list;
  for (const std::string& name : names)
    append_item(list, name + (counts[name] > 1 ? format(" (%d tensors)", counts[name]) : ""));
  if (!list.empty())
    warn(
        "%s: gradient exactly 0 in step %ld: the loss does not depend on them yet, and they may never train; check the "
        "settings of attention (a gate that is always 0, weights that are all 0)",
        list.c_str(), step);
}
