#include "checkpoint/state.h"

#include <cstdio>
#include <filesystem>
#include <vector>

#include "checkpoint/hugging_face.h"
#include "checkpoint/resume.h"

// A tensor, or its moments, as it stands in a file.
struct FileTensor {
  const Tensor& tensor;
  Part part;
  std::string name;
};

static std::vector<FileTensor> file_tensors(const Model& model, std::initializer_list<Part> parts) {
  std::vector<FileTensor> list;
  for (Part part : parts)
    for (const Tensor& tensor : model.tensors())
      list.push_back({tensor, part, (part == Part::moment1 ? "m." : part == Part::moment2 ? "v." : "") + tensor.name});
  return list;
}

static std::vector<int64_t> shape_of(const Tensor& tensor) { return {tensor.shape.begin(), tensor.shape.end()}; }

static std::vector<NamedArray> arrays_of(const std::vector<FileTensor>& list) {
  std::vector<NamedArray> arrays;
  for (const FileTensor& entry : list) arrays.push_back({entry.name, shape_of(entry.tensor)});
  return arrays;
}

void save_gradients(Model& model, const std::string& path) {
  model.gather(Part::gradients);
  if (!model.comm().first()) return;
  std::vector<FileTensor> list = file_tensors(model, {Part::gradients});
  save_arrays(path, arrays_of(list), [&](size_t i, float* out) { model.read(list[i].tensor, list[i].part, out); });
}

static void load(Model& model, std::initializer_list<Part> parts, const std::string& path) {
  std::vector<FileTensor> list = file_tensors(model, parts);
  load_arrays(path, arrays_of(list),
              [&](size_t i, const float* values) {
                model.write(list[i].tensor, values, list[i].part);
                if (i + 1 == list.size() || list[i + 1].part != list[i].part) model.scatter(list[i].part);
              });
}

static std::vector<SavedArray> snapshot_arrays(const Model& model, std::initializer_list<Part> parts) {
  std::vector<SavedArray> arrays;
  for (const FileTensor& entry : file_tensors(model, parts))
    arrays.push_back({entry.name, shape_of(entry.tensor), model.snapshot(entry.part) + entry.tensor.offset,
                      int64_t(entry.tensor.stride)});
  return arrays;
}

int64_t initial_state(Model& model, const std::optional<Checkpoint>& from, bool training) {
  const std::string& init = model.config().init;
  if (from) {
    load(model, {Part::parameters}, from->path + "/model.safetensors");
    if (training) load(model, {Part::moment1, Part::moment2}, from->path + "/optimizer.safetensors");
    return from->state.step;
  }
  if (init.empty()) {
    if (!training) std::printf("weights: random; give --resume, or --set init=DIR\n");
    model.init_random();
    return 0;
  }
  StepFolder folder = named_folder(init);
  std::error_code error;
  if (!std::filesystem::exists(folder.path + "/model.safetensors", error))
    user_error("config: init = \"%s\" is no folder with a model.safetensors%s; name one, as runs/NAME/step_00001000",
               init.c_str(), error ? (": " + error.message()).c_str() : "");
  load(model, {Part::parameters}, folder.path + "/model.safetensors");
  std::printf("weights from %s\n", folder.path.c_str());
  for (const std::string& difference : model_differences(folder.path, model.config()))
    if (model.comm().first()) std::fprintf(stderr, "warning: init: %s\n", difference.c_str());
  return folder.step;
}

int64_t newest_step(const std::string& run) {
  std::vector<StepFolder> folders = step_folders(run);
  return folders.empty() ? 0 : folders[0].step;
}

std::string checkpoint_before(const std::string& run, int64_t step) {
  for (const StepFolder& folder : step_folders(run))
    if (folder.step < step) return folder.path;
  return "";
}

std::string how_to_continue(const std::string& run, int64_t failed) {
  std::string path = checkpoint_before(run, failed);
  if (path.empty()) return "there is no checkpoint yet (checkpoint.every)";
  return "the last checkpoint, " + path + ", is as it was: continue from it with --resume";
}

void save(Model& model, RunDir* run, const RunState& state, Background& background) {
  background.wait();  // for the checkpoint before: it reads the snapshot
  model.take_snapshot();
  if (!run) return;
  background.start([&model, run, state] {
    try {
      sync_path(run->metrics_path());  // what is said of steps that will not be made again must not get lost either
      std::string path = write_checkpoint(*run, {.model = snapshot_arrays(model, {Part::parameters}),
                                                .optimizer = snapshot_arrays(model, {Part::moment1, Part::moment2}),
                                                .config = model_config_json(model.config()),
                                                .modelling = modelling_code(model.config()),
                                                .state = state});
      std::printf("saved %s\n", path.c_str());
      std::fflush(stdout);
    } catch (const std::exception& error) {
      failure("the checkpoint of step %lld could not be written: %s. Training stops; %s", (long long)state.step,
              error.what(), how_to_continue(run->path(), state.step).c_str());
    }
    run->keep_newest(model.config().checkpoint.keep);
  });
}
