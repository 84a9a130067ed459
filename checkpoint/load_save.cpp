#include "checkpoint/load_save.h"

#include <cstdio>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "base/text.h"
#include "checkpoint/hugging_face.h"
#include "checkpoint/resume.h"

// The arrays of a file with these parts of the model: part after part, each in the order of the tensors.
static std::vector<ArrayView> arrays_of(const std::vector<Tensor>& tensors, const std::vector<Part>& parts) {
  std::vector<ArrayView> arrays;
  for (Part part : parts)
    for (const Tensor& tensor : tensors)
      arrays.push_back({(part == Part::moment1   ? "m."
                         : part == Part::moment2 ? "v."
                                                 : "") +
                            tensor.name,
                        {tensor.shape.begin(), tensor.shape.end()}});
  return arrays;
}

static std::vector<ArrayView> snapshot_arrays(Model& model, const std::vector<Part>& parts) {
  std::vector<ArrayView> arrays = arrays_of(model.parameters().tensors(), parts);
  for (size_t i = 0, count = model.parameters().tensors().size(); i < arrays.size(); i++) {
    const Tensor& tensor = model.parameters().tensors()[i % count];
    arrays[i].values = model.parameters().snapshot(parts[i / count]) + tensor.offset;
    arrays[i].stride = int64_t(tensor.stride);
  }
  return arrays;
}

void save_gradients(Model& model, const std::string& path) {
  model.parameters().gather(Part::gradients);
  if (!model.comm().first()) return;
  SafetensorsWriter writer(path, arrays_of(model.parameters().tensors(), {Part::gradients}));
  std::vector<float> values;
  for (const Tensor& tensor : model.parameters().tensors()) {
    values.resize(tensor.size);
    model.parameters().read(tensor, Part::gradients, values.data());
    writer.write(values.data(), int64_t(values.size()));
  }
  writer.finish();
}

// squares: names of tensors whose second moments begin as the squares of the first.
static void load(Model& model, const std::vector<Part>& parts, const ArrayFiles& files,
                 const std::vector<Tensor>& tensors, const std::set<std::string>& squares = {}) {
  size_t count = tensors.size();
  files.load(arrays_of(tensors, parts), [&](size_t i, const float* values) {
    Part part = parts[i / count];
    std::vector<float> begun;
    if (part == Part::moment2 && squares.contains(tensors[i % count].name)) {
      begun = files.values("m." + tensors[i % count].name);
      for (float& value : begun) value *= value;
      values = begun.data();
    }
    model.parameters().write(tensors[i % count], values, part);
    if (i % count + 1 == count) model.parameters().scatter(part);
  });
}

// Whether init may make a parameter that its weights lack: one that GPT-2 does not have, of a variant's attention (a
// gate, learned numbers) or of a regression head; no half of a matrix and its bias.
static bool may_be_new(const Tensor& tensor, const std::function<bool(const std::string&)>& has) {
  const std::string& name = tensor.name;
  size_t weight = name.rfind(".weight"), at = name.find(".attn.");
  if (weight != std::string::npos && has(name.substr(0, weight) + ".bias")) return false;
  return name.starts_with("head.") ||
         (at != std::string::npos && name.find("c_attn.", at) != at + 6 && name.find("c_proj.", at) != at + 6);
}

std::string init_problem(const Config& before, const Config& now) {
  std::map<std::string, std::vector<int>> there;
  for (const Tensor& tensor : parameters_of(before)) there[tensor.name] = tensor.shape;
  auto has = [&](const std::string& name) { return there.contains(name); };
  for (const Tensor& tensor : parameters_of(now)) {
    if (!has(tensor.name) && (now.init_missing == InitMissing::refuse || !may_be_new(tensor, has)))
      return tensor.name + " is missing there";
    if (has(tensor.name) && there[tensor.name] != tensor.shape) return tensor.name + " has another shape there";
    there.erase(tensor.name);
  }
  return there.empty() ? "" : there.begin()->first + " has no place in the new model";
}

// Loads the weights of `init`. Parameters that they lack are made from the seed, as in a run that starts afresh.
static void load_init(Model& model, const ArrayFiles& weights) {
  std::vector<Tensor> there;
  std::string head, others;
  for (const Tensor& tensor : model.parameters().tensors()) {
    bool makes = model.config().init_missing == InitMissing::make && !weights.has(tensor.name) &&
                 may_be_new(tensor, [&](const std::string& name) { return weights.has(name); });
    if (makes) append_item(tensor.name.starts_with("head.") ? head : others, tensor.name);
    else there.push_back(tensor);
  }
  if (!head.empty() || !others.empty()) {
    model.parameters().init_random(model.config().seed);
    model.parameters().gather(Part::parameters);
  }
  load(model, {Part::parameters}, weights, there);
  if (!head.empty()) std::printf("new, from the seed: %s\n", head.c_str());
  if (!others.empty() && model.comm().first())
    warn(
        "init: the weights lack parameters of this model, which are new, from the seed (init_missing = \"refuse\" "
        "refuses that): %s",
        others.c_str());
}

// Says what becomes of the moments if another optimizer left them, and returns those that load() makes squares: Muon
// has no second moments, and with 0 AdamW's first updates would be as large as an element's gradient happens to be
// small.
static std::set<std::string> begun_moments(Model& model, const Config& before) {
  Matrices now = model.config().optimizer.matrices;
  if (before.optimizer.matrices == now) return {};
  if (model.comm().first())
    warn("optimizer.matrices: %s", now == Matrices::muon
                                       ? "AdamW's first moments of the matrices become Muon's momentum; their second "
                                         "moments are dropped"
                                       : "Muon's momentum becomes AdamW's first moment of the matrices, and its square "
                                         "the second, which Muon does not have; give the schedule a warmup "
                                         "(optimizer.warmup_steps)");
  std::set<std::string> begun;
  for (const Tensor& tensor : parameters_of(before))
    if (!tensor.matrices.empty()) begun.insert(tensor.name);
  return begun;
}

int64_t initial_state(Model& model, const std::optional<Checkpoint>& from, bool training) {
  const std::string& init = model.config().init;
  if (from) {
    const std::vector<Tensor>& all = model.parameters().tensors();
    load(model, {Part::parameters}, ArrayFiles({from->path + "/model.safetensors"}), all);
    if (training)
      load(model, {Part::moment1, Part::moment2}, ArrayFiles({from->path + "/optimizer.safetensors"}), all,
           begun_moments(model, from->state.config));
    return from->state.step;
  }
  if (init.empty()) {
    if (!training) std::printf("weights: random; give --resume, or --set init=DIR\n");
    model.parameters().init_random(model.config().seed);
    return 0;
  }
  StepFolder folder = named_folder(init);
  const ArrayFiles weights(weight_files(folder.path));
  if (std::string damage = damage_of_weights(folder.path); !damage.empty())
    user_error(
        "config: init = \"%s\": %s; name another checkpoint, or remove state.json there if the weights were changed on "
        "purpose",
        init.c_str(), damage.c_str());
  load_init(model, weights);
  std::printf("weights from %s%s\n", folder.path.c_str(),
              training ? "; the optimizer's moments, the data order and the steps begin anew" : "");
  for (const std::string& difference : model_differences(folder.path, weights, model.config()))
    if (model.comm().first()) warn("init: %s", difference.c_str());
  return folder.step;
}

int64_t newest_step(const std::string& run) {
  std::vector<StepFolder> folders = step_folders(run);
  return folders.empty() ? 0 : folders[0].step;
}

std::string how_to_continue(const std::string& run, int64_t failed) {
  std::string path = checkpoint_before(run, failed);
  if (path.empty()) return "there is no checkpoint yet (checkpoint.every)";
  return "the last checkpoint, " + path + ", is intact: continue from it with --resume";
}

void save(Model& model, RunDir* run, const RunState& state, Background& background) {
  background.wait();  // the previous checkpoint still reads the snapshot
  model.parameters().take_snapshot();
  if (!run) return;
  background.start([&model, run, state] {
    try {
      sync_path(run->metrics_path());  // the lines of steps that will not be repeated must not get lost either
      std::string path =
          write_checkpoint(*run, {.model = arrays_of_folder(model.config(), snapshot_arrays(model, {Part::parameters})),
                                  .optimizer = snapshot_arrays(model, {Part::moment1, Part::moment2}),
                                  .config = model_config_json(model.config(), model.facts().separator),
                                  .modelling = modelling_code(model.config()),
                                  .state = state});
      std::printf("saved %s\n", path.c_str());
      std::fflush(stdout);
    } catch (const std::exception& error) {
      failure("the checkpoint of step %ld could not be written: %s. Training stops; %s", state.step, error.what(),
              how_to_continue(run->path(), state.step).c_str());
    }
    run->keep_newest(model.config().checkpoint.keep);
  });
}
