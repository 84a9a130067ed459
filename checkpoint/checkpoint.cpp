#include "checkpoint/checkpoint.h"

#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "base/checksum.h"
#include "base/error.h"
#include "base/json.h"
#include "checkpoint/hugging_face.h"
#include "checkpoint/safetensors.h"

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

constexpr int FORMAT = 2;
constexpr size_t MAX_STATE_BYTES = 64 << 20;  // names of shards and measured choices: a few hundred KB at most
const char* const MODEL_FILE = "model.safetensors";
const char* const CONFIG_FILE = "config.json";
const char* const OPTIMIZER_FILE = "optimizer.safetensors";  // not needed for an evaluation

// Thrown while a checkpoint is read; caught in this file.
struct Damage : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// ---- writing

ordered_json written_arrays(const std::string& path, const std::vector<ArrayView>& arrays) {
  SafetensorsWriter writer(path, arrays);
  for (const ArrayView& array : arrays) writer.write(array);
  writer.finish();
  return {{"bytes", writer.bytes()}, {"xxh64", writer.checksum()}};
}

ordered_json written_text(const std::string& path, const std::string& text) {
  write_text_file(path, text);
  return {{"bytes", text.size()}, {"xxh64", checksum_text(text)}};
}

// The end of the file: the checksum of everything before it, so that every byte is covered.
std::string seal(const std::string& begin) {
  return format(",\n \"xxh64\": \"%s\"\n}\n", checksum_text(begin).c_str());
}

std::string state_text(const RunState& state, const ordered_json& files) {
  ordered_json root = {
      {"format", FORMAT},
      {"step", state.step},
      {"updates", state.updates ? ordered_json(*state.updates) : ordered_json()},
      {"tokens", state.tokens},
      {"data",
       {{"next_window", state.next_window},
        {"windows", state.windows},
        {"epoch", state.next_window / state.windows},
        {"train", data_json(state.train)},
        {"val", data_json(state.val)},
        {"tokenizer",
         {{"name", state.tokenizer.name},
          {"tokens", state.tokenizer.tokens},
          {"crc32", state.tokenizer.crc32},
          {"end_of_text", state.tokenizer.end_of_text}}}}},
      {"spikes",
       {{"skipped", state.spikes.skipped}, {"loss", state.spikes.loss}, {"grad_norm", state.spikes.grad_norm}}},
      {"matmul_choices", state.matmul_choices},
      {"products", state.products},
      {"config", config_json(state.config)},
      {"files", files},
  };
  std::string begin = root.dump(1, ' ', false, json::error_handler_t::replace);
  begin.resize(begin.size() - 2);  // without the last "\n}"
  return begin + seal(begin);
}

// ---- reading

void check_present(const std::string& path, const std::string& name) {
  if (::access(path.c_str(), R_OK) == 0) return;
  if (errno == ENOENT || errno == ENOTDIR) throw Damage(name + " is missing");
  if (errno != EACCES) failure("cannot read %s: %s", path.c_str(), std::strerror(errno));
  user_error("checkpoint: cannot read the file: %s; check its permissions (nothing was changed)  [%s]",
             std::strerror(errno), path.c_str());
}

std::string unsealed_state(const std::string& path) {
  check_present(path, "state.json");
  std::error_code error;
  auto size = std::filesystem::file_size(path, error);
  if (error || size > MAX_STATE_BYTES) throw Damage("state.json is not a file, or is too large");
  std::string text = read_text_file(path, "checkpoint", MAX_STATE_BYTES);
  size_t end = seal("").size();
  if (text.size() <= end) throw Damage(format("state.json is cut short: it has %zu bytes", text.size()));
  if (text.substr(text.size() - end) != seal(text.substr(0, text.size() - end)))
    throw Damage("state.json does not match the checksum at its end");
  return text;
}

// Returns a member of state.json after checking its type.
const json& member(const json& object, const char* key, bool (json::*is)() const noexcept) {
  auto found = object.find(key);
  if (found == object.end() || !((*found).*is)()) throw Damage(std::string("state.json has no valid \"") + key + "\"");
  return *found;
}

int64_t natural(const json& object, const char* key) {
  const json& value = member(object, key, &json::is_number_unsigned);
  if (value.get<uint64_t>() > uint64_t(INT64_MAX)) throw Damage(std::string("state.json has no valid \"") + key + "\"");
  return value.get<int64_t>();
}

std::vector<DataFile> data_files(const json& object, const char* key) {
  std::vector<DataFile> files;
  for (auto& item : member(object, key, &json::is_array)) {
    if (!item.is_object()) throw Damage(std::string("state.json has no valid \"") + key + "\"");
    files.push_back({member(item, "name", &json::is_string).get<std::string>(), natural(item, "tokens"),
                     member(item, "xxh64", &json::is_string).get<std::string>()});
  }
  return files;
}

Vocabulary vocabulary_of(const json& object) {
  Vocabulary made_by;
  made_by.name = member(object, "name", &json::is_string).get<std::string>();
  made_by.crc32 = member(object, "crc32", &json::is_string).get<std::string>();
  made_by.tokens = int(natural(object, "tokens"));
  made_by.end_of_text = member(object, "end_of_text", &json::is_number_integer).get<int>();
  return made_by;
}

std::vector<double> numbers(const json& object, const char* key) {
  const json& list = member(object, key, &json::is_array);
  if (list.size() > SpikeHistory::WINDOW ||
      !std::all_of(list.begin(), list.end(), [](auto& x) { return x.is_number(); }))
    throw Damage(std::string("state.json has no valid \"") + key + "\"");
  return list.get<std::vector<double>>();
}

// path: of state.json. A user_error if this program does not accept the settings: the file itself is intact.
RunState parsed_state(const json& root, const std::string& path) {
  int64_t found = natural(root, "format");
  if (found != FORMAT)
    user_error("checkpoint: state.json has format %ld, but this program reads %d; use the version that wrote it", found,
               FORMAT);
  const json &data = member(root, "data", &json::is_object), &spikes = member(root, "spikes", &json::is_object);
  RunState state;
  state.step = natural(root, "step");
  bool counts = root.contains("updates") && !root["updates"].is_null();  // older programs did not count them
  state.updates = counts ? std::optional(natural(root, "updates")) : std::nullopt;
  state.tokens = natural(root, "tokens");
  state.next_window = natural(data, "next_window");
  state.windows = natural(data, "windows");
  state.train = data_files(data, "train");
  state.val = data_files(data, "val");
  if (data.contains("tokenizer")) state.tokenizer = vocabulary_of(member(data, "tokenizer", &json::is_object));
  state.spikes.loss = numbers(spikes, "loss");  // one by one: if one of a list throws, g++ 11 leaks those before it
  state.spikes.grad_norm = numbers(spikes, "grad_norm");
  state.spikes.skipped = natural(spikes, "skipped");
  state.matmul_choices = member(root, "matmul_choices", &json::is_string).get<std::string>();
  if (root.contains("products")) state.products = member(root, "products", &json::is_string).get<std::string>();
  const json& config = member(root, "config", &json::is_object);
  state.config = config_from_json(config, path, {}, false);
  if (!config.contains("/attention/prune"_json_pointer)) state.config.attention.prune = false;  // older runs did not
  return state;
}

json json_of_state(const std::string& text, const std::string& path) {
  try {
    return parse_json(text, "checkpoint", path);
  } catch (const UserError& error) {
    throw Damage(error.what());
  }
}

void verify_file(const std::string& folder, const std::string& name, const json& entry) {
  std::string path = folder + "/" + name;
  check_present(path, name);
  std::error_code error;
  int64_t bytes = natural(entry, "bytes"), size = int64_t(std::filesystem::file_size(path, error));
  if (error) throw Damage(name + " is not a file");
  if (size != bytes) throw Damage(format("%s has %ld bytes, but %ld were written", name.c_str(), size, bytes));
  std::string written = member(entry, "xxh64", &json::is_string).get<std::string>(), found = file_checksum(path);
  if (found != written)
    throw Damage(
        format("%s has the checksum %s, not %s as written", name.c_str(), found.c_str(), shortened(written).c_str()));
}

}  // namespace

ordered_json data_json(const std::vector<DataFile>& files) {
  ordered_json list = ordered_json::array();
  for (auto& file : files) list.push_back({{"name", file.name}, {"tokens", file.tokens}, {"xxh64", file.xxh64}});
  return list;
}

std::string write_checkpoint(RunDir& run, const CheckpointContent& content) {
  int64_t step = content.state.step;
  try {
    std::string folder = run.begin_step(step);
    ordered_json files;
    auto path = [&](const char* name) { return folder + "/" + name; };
    files[MODEL_FILE] = written_arrays(path(MODEL_FILE), content.model);
    files[OPTIMIZER_FILE] = written_arrays(path(OPTIMIZER_FILE), content.optimizer);
    files[CONFIG_FILE] = written_text(path(CONFIG_FILE), content.config);
    if (!content.modelling.empty()) files[MODELLING_FILE] = written_text(path(MODELLING_FILE), content.modelling);
    for (auto& [name, text] : content.state.others) files[name] = written_text(path(name.c_str()), text);
    write_text_file(path("state.json"), state_text(content.state, files));
    return run.publish_step(step);
  } catch (...) {
    run.abandon_step(step);
    throw;
  }
}

static std::string read_held_checkpoint(const std::string& folder, bool training, Checkpoint* checkpoint) {
  try {
    std::string path = folder + "/state.json", text = unsealed_state(path);
    json root = json_of_state(text, path);
    checkpoint->path = folder;
    checkpoint->checksum = checksum_text(text);
    checkpoint->state = parsed_state(root, path);
    const json& files = member(root, "files", &json::is_object);
    for (const char* name : {MODEL_FILE, CONFIG_FILE, OPTIMIZER_FILE})
      if (training || name != OPTIMIZER_FILE) verify_file(folder, name, member(files, name, &json::is_object));
    return "";
  } catch (const Damage& damage) {
    return damage.what();
  }
}

std::string read_checkpoint(const std::string& folder, bool training, Checkpoint* checkpoint) {
  auto lock = std::make_shared<File>();
  if (!lock_step(folder, LOCK_SH, *lock)) return REMOVED;
  auto gone = [&] { return ::access(folder.c_str(), F_OK) != 0 && errno == ENOENT; };
  try {
    std::string problem = read_held_checkpoint(folder, training, checkpoint);
    checkpoint->lock = lock;
    return !problem.empty() && gone() ? REMOVED : problem;
  } catch (const std::exception&) {
    if (gone()) return REMOVED;
    throw;
  }
}

std::optional<RunState> read_state(const std::string& folder) {
  std::string path = folder + "/state.json";
  try {
    return parsed_state(json_of_state(unsealed_state(path), path), path);
  } catch (const Damage&) {
    return std::nullopt;
  }
}

std::string damage_of_weights(const std::string& folder) {
  std::string path = folder + "/state.json";
  if (!is_there(path)) return "";
  try {
    json root = json_of_state(unsealed_state(path), path);
    verify_file(folder, MODEL_FILE, member(member(root, "files", &json::is_object), MODEL_FILE, &json::is_object));
    return "";
  } catch (const Damage& damage) {
    return damage.what();
  }
}

std::optional<Checkpoint> newest_checkpoint(const std::string& run_path, bool training,
                                            std::vector<SkippedCheckpoint>* skipped) {
  std::vector<StepFolder> folders = step_folders(run_path);
  int removed = 0;  // by a training run beside this process, which has a newer one each time
  for (size_t i = 0; i < folders.size(); i++) {
    const StepFolder& folder = folders[i];
    Checkpoint checkpoint;
    std::string problem;
    try {
      problem = read_checkpoint(folder.path, training, &checkpoint);
    } catch (const Failure& error) {
      skipped->push_back({folder, error.what(), false});
      continue;
    }
    if (problem == REMOVED && removed++ < 1000) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      folders = step_folders(run_path), i = size_t(-1);
      skipped->clear();
      continue;
    }
    if (problem.empty() && checkpoint.state.step != folder.step)
      problem = format("state.json belongs to step %ld", checkpoint.state.step);
    if (problem.empty()) return checkpoint;
    skipped->push_back({folder, problem, problem != REMOVED});
  }
  return std::nullopt;
}
