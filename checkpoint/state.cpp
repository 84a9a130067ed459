#include "checkpoint/state.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "base/text.h"
#include "checkpoint/hugging_face.h"
#include "checkpoint/resume.h"

// The arrays of a file with these parts of the model: part after part, each in the order of the model's tensors.
static std::vector<ArrayView> arrays_of(Model& model, const std::vector<Part>& parts) {
  std::vector<ArrayView> arrays;
  for (Part part : parts)
    for (const Tensor& tensor : model.parameters().tensors())
      arrays.push_back({(part == Part::moment1   ? "m."
                         : part == Part::moment2 ? "v."
                                                 : "") +
                            tensor.name,
                        {tensor.shape.begin(), tensor.shape.end()}});
  return arrays;
}

static std::vector<ArrayView> snapshot_arrays(Model& model, const std::vector<Part>& parts) {
  std::vector<ArrayView> arrays = arrays_of(model, parts);
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
  SafetensorsWriter writer(path, arrays_of(model, {Part::gradients}));
  std::vector<float> values;
  for (const Tensor& tensor : model.parameters().tensors()) {
    values.resize(tensor.size);
    model.parameters().read(tensor, Part::gradients, values.data());
    writer.write(values.data(), int64_t(values.size()));
  }
  writer.finish();
}

// Loads the first `count` tensors of each part.
static void load(Model& model, const std::vector<Part>& parts, const std::string& path, size_t count) {
  std::vector<ArrayView> arrays = arrays_of(model, parts);
  if (count < model.parameters().tensors().size()) arrays.resize(count);
  load_arrays(path, arrays, [&](size_t i, const float* values) {
    Part part = parts[i / count];
    model.parameters().write(model.parameters().tensors()[i % count], values, part);
    if (i % count + 1 == count) model.parameters().scatter(part);
  });
}

// Loads the weights of `init`. A regression head that they lack is new, from the seed.
static void load_init(Model& model, const std::string& path) {
  const std::vector<Tensor>& tensors = model.parameters().tensors();
  auto is_head = [](const Tensor& tensor) { return tensor.name.starts_with("head."); };
  size_t head = std::find_if(tensors.begin(), tensors.end(), is_head) - tensors.begin(), count = tensors.size();
  if (head < count && !SafetensorsReader(path).find(tensors[head].name)) {
    model.parameters().init_random(model.config().seed);
    model.parameters().gather(Part::parameters);
    std::string names;
    for (size_t i = head; i < tensors.size(); i++) append_item(names, tensors[i].name);
    std::printf("new, from the seed: %s\n", names.c_str());
    count = head;
  }
  load(model, {Part::parameters}, path, count);
}

int64_t initial_state(Model& model, const std::optional<Checkpoint>& from, bool training) {
  const std::string& init = model.config().init;
  if (from) {
    size_t all = model.parameters().tensors().size();
    load(model, {Part::parameters}, from->path + "/model.safetensors", all);
    if (training) load(model, {Part::moment1, Part::moment2}, from->path + "/optimizer.safetensors", all);
    return from->state.step;
  }
  if (init.empty()) {
    if (!training) std::printf("weights: random; give --resume, or --set init=DIR\n");
    model.parameters().init_random(model.config().seed);
    return 0;
  }
  StepFolder folder = named_folder(init);
  std::error_code error;
  if (!std::filesystem::exists(folder.path + "/model.safetensors", error))
    user_error("config: init = \"%s\" is not a folder with a model.safetensors%s; name one, as runs/NAME/step_00001000",
               init.c_str(), error ? (": " + error.message()).c_str() : "");
  if (std::string damage = damage_of_weights(folder.path); !damage.empty())
    user_error(
        "config: init = \"%s\": %s; name another checkpoint, or remove state.json there if the weights were changed on "
        "purpose",
        init.c_str(), damage.c_str());
  load_init(model, folder.path + "/model.safetensors");
  std::printf("weights from %s\n", folder.path.c_str());
  for (const std::string& difference : model_differences(folder.path, model.config()))
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
      std::string path = write_checkpoint(*run, {.model = snapshot_arrays(model, {Part::parameters}),
                                                 .optimizer = snapshot_arrays(model, {Part::moment1, Part::moment2}),
                                                 .config = model_config_json(model.config()),
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
