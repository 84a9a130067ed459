#include "checkpoint/hugging_face.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "checkpoint/run_dir.h"
#include "data/gpt2_bpe.h"

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

static const char* const OUTPUT_LAYER = "lm_head.weight";  // wte.weight here

// "; FIX", for a folder without weights that can be read, or for a file.
static std::string found_instead(const std::string& folder) {
  const std::string example = "; name one, as runs/NAME/step_00001000";
  auto saves = [&](const std::string& arguments) {
    return format(
        "; save it with transformers: AutoModelForCausalLM.from_pretrained(\"%s\"%s).save_pretrained(\"NEW\")",
        is_folder(folder) ? folder.c_str() : "ITS FOLDER", arguments.c_str());
  };
  auto about = [&](const std::string& file) -> std::string {
    const std::string ending = fs::path(file).extension();
    if (ending == ".gguf") return " but " + file + ", of llama.cpp" + saves(", gguf_file=\"" + file + "\"");
    if (ending == ".safetensors") return " but " + file + "; if that is the whole model, call it model.safetensors";
    for (const char* other : {".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack"})
      if (ending == other) return " but " + file + ", another format" + saves("");
    return "";
  };
  if (!is_folder(folder)) {
    if (!is_there(folder)) return ": there is no such folder" + example;
    if (fs::path(folder).filename() == "model.safetensors") return " but that file itself; name the folder";
    std::string found = about(fs::path(folder).filename());
    return found.empty() ? example : found;
  }
  if (std::vector<StepFolder> steps = step_folders(folder); !steps.empty())
    return " but a run; name one of its checkpoints, as " + steps[0].path;
  std::set<std::string> names;
  std::error_code error;
  for (auto& entry : fs::directory_iterator(folder, error)) names.insert(entry.path().filename());
  for (const std::string& name : names)
    if (std::string found = about(name); !found.empty()) return found;
  return example;
}

std::vector<std::string> weight_files(const std::string& folder) {
  const std::string one = folder + "/model.safetensors", index = one + ".index.json";
  std::error_code error;
  if (fs::exists(one, error)) return {one};
  if (!is_there(index)) {
    std::string reason = error ? ": " + error.message() + "; name another" : found_instead(folder);
    user_error("config: init = %s is not a folder with a model.safetensors%s", json_quote(folder).c_str(),
               reason.c_str());
  }
  json root = parse_json(read_utf8_file(index, "init", size_t(64) << 20), "init", index);
  auto map = root.find("weight_map");
  if (map == root.end() || !map->is_object() || map->empty())
    user_error("init: %s has no weight_map of tensors and their files; save the model again", index.c_str());
  std::map<std::string, std::vector<std::string>> files;
  for (auto& [tensor, file] : map->items()) {
    // Files elsewhere are refused, because an index may come from anywhere.
    if (!file.is_string() || fs::path(file.get<std::string>()).filename() != file.get<std::string>() ||
        !file.get<std::string>().ends_with(".safetensors"))
      user_error("init: %s: the file of tensor %s is %s, but must be the name of a .safetensors file beside it",
                 index.c_str(), shortened(json_quote(tensor)).c_str(), shortened(file.dump(-1, ' ', true)).c_str());
    files[folder + "/" + file.get<std::string>()].push_back(tensor);
  }
  std::vector<std::string> paths;
  for (auto& [path, tensors] : files) {
    if (!is_there(path))
      user_error("init: %s lists %s, which is not there; download or copy all files of the model", index.c_str(),
                 path.c_str());
    SafetensorsReader reader(path);
    for (const std::string& tensor : tensors)
      if (!reader.find(tensor))
        user_error("init: %s lists tensor %s in %s, which has none of that name; save the model again", index.c_str(),
                   shortened(json_quote(tensor)).c_str(), path.c_str());
    paths.push_back(path);
  }
  return paths;
}

// Llama's names of what we call `name`: several where columns of ours are matrices there. None: it has no such tensor.
static std::vector<std::string> llama_names(const std::string& name) {
  static const std::map<std::string, std::vector<const char*>> names = {
      {"wte.weight", {"model.embed_tokens.weight"}},
      {"ln_1.weight", {"input_layernorm.weight"}},
      {"attn.c_attn.weight", {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"}},
      {"attn.c_proj.weight", {"self_attn.o_proj.weight"}},
      {"ln_2.weight", {"post_attention_layernorm.weight"}},
      {"mlp.c_fc.weight", {"mlp.gate_proj.weight", "mlp.up_proj.weight"}},
      {"mlp.c_proj.weight", {"mlp.down_proj.weight"}},
      {"ln_f.weight", {"model.norm.weight"}},
      {OUTPUT_LAYER, {OUTPUT_LAYER}}};
  size_t layer = name.starts_with("h.") ? name.find('.', 2) : 0;  // the end of "h.LAYER"
  auto found = names.find(layer ? name.substr(layer + 1) : name);
  std::vector<std::string> theirs;
  if (found == names.end()) return theirs;
  for (const char* each : found->second)
    theirs.push_back(layer ? "model.layers." + name.substr(2, layer - 1) + each : each);
  return theirs;
}

// The tensors of a file in which this array of ours lies: itself, or Llama's. With the values that it has.
// queries: the columns of c_attn that are queries; keys and values have half of the others each.
static std::vector<ArrayView> pieces_of(const ArrayView& array, bool llama, int64_t queries) {
  if (!llama) return {array};
  std::vector<ArrayView> pieces;
  std::vector<std::string> names = llama_names(array.name);
  if (names.empty()) return {array};  // which is missing there
  int64_t begin = 0, all = array.columns();
  for (const std::string& name : names) {
    int64_t columns = names.size() < 3 ? all / int64_t(names.size()) : pieces.empty() ? queries : (all - queries) / 2;
    ArrayView piece = array;
    piece.name = name;
    piece.transposed = array.name.find(".c_") != std::string::npos;
    if (piece.transposed) piece.shape = {columns, array.shape[0]};
    if (piece.values) piece.values += begin;
    pieces.push_back(piece);
    begin += columns;
  }
  return pieces;
}

// As attention's projection has rows for them.
static int64_t queries_of(const std::vector<ArrayView>& arrays) {
  auto projects = [](const ArrayView& array) { return array.name.ends_with(".attn.c_proj.weight"); };
  auto found = std::ranges::find_if(arrays, projects);
  return found == arrays.end() ? 0 : found->shape[0];
}

ArrayFiles::ArrayFiles(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    const SafetensorsReader& file = files_.emplace_back(path);
    for (const TensorInfo& tensor : file.tensors()) {
      std::string name = tensor.name;
      if (name.starts_with("transformer.")) name.erase(0, 12);
      auto [other, is_new] = found_.emplace(name, Found{&file, &tensor});
      if (is_new) continue;
      std::string where = other->second.file == &file ? "with and without the prefix \"transformer.\""
                                                      : "also in " + other->second.file->path();
      user_error("%s: tensor %s is there twice, %s; remove one", path.c_str(), shortened(json_quote(name)).c_str(),
                 where.c_str());
    }
  }
}

// Tensors that transformers' GPT-2 keeps beside the parameters of a layer: its causal mask, [1, 1, n, n], and a number.
static bool is_mask(const std::string& name, const TensorInfo& tensor, const std::set<std::string>& parameters) {
  const std::vector<int64_t>& shape = tensor.shape;
  size_t at = name.rfind(".attn.");
  if (at == std::string::npos || !parameters.contains(name.substr(0, at) + ".attn.c_attn.weight")) return false;
  bool square = shape.size() == 4 && shape[0] == 1 && shape[1] == 1 && shape[2] == shape[3];
  return (name.substr(at) == ".attn.bias" && (square || tensor.count == 1)) ||
         (name.substr(at) == ".attn.masked_bias" && tensor.count == 1);
}

bool ArrayFiles::has(const std::string& name) const {
  std::vector<std::string> names = is_llama() ? llama_names(name) : std::vector{name};
  return !names.empty() && std::ranges::all_of(names, [&](auto& each) { return found_.contains(each); });
}

void ArrayFiles::load(const std::vector<ArrayView>& arrays,
                      const std::function<void(size_t i, const float* values)>& write) const {
  std::vector<std::string> problems;
  std::set<std::string> parameters;
  auto check = [&](const ArrayView& array) {
    parameters.insert(array.name);
    auto it = found_.find(array.name);
    if (it == found_.end()) {
      problems.push_back(format("%s %s is missing", array.name.c_str(), shape_text(array.shape).c_str()));
      return;
    }
    const TensorInfo& tensor = *it->second.tensor;
    if (tensor.shape != array.shape)
      problems.push_back(format("%s has shape %s, but the model's is %s", array.name.c_str(),
                                shortened(shape_text(tensor.shape)).c_str(), shape_text(array.shape).c_str()));
    else if (tensor.dtype != "F32" && tensor.dtype != "F16" && tensor.dtype != "BF16")
      problems.push_back(
          format("%s is %s, but only F32, F16 and BF16 can be read", array.name.c_str(), tensor.dtype.c_str()));
  };
  const int64_t queries = queries_of(arrays);
  for (const ArrayView& array : arrays)
    for (const ArrayView& piece : pieces_of(array, is_llama(), queries)) check(piece);
  for (auto& [name, found] : found_)
    if (!parameters.contains(name) && name != OUTPUT_LAYER && !is_mask(name, *found.tensor, parameters) &&
        !(is_llama() && name.ends_with(".rotary_emb.inv_freq")))
      problems.push_back(format("%s %s is not a parameter of this model",
                                shortened(json_quote(found.tensor->name)).c_str(),
                                shortened(shape_text(found.tensor->shape)).c_str()));
  if (!problems.empty())
    user_error(
        "%s does not fit the model that the configuration describes; set model.* and attention.* as in the config.json "
        "beside it:%s",
        files_.front().path().c_str(), listed(problems, 8).c_str());

  std::vector<float> values, piece_values;
  for (size_t i = 0; i < arrays.size(); i++) {
    values.resize(arrays[i].count());
    float* to = values.data();
    for (const ArrayView& piece : pieces_of(arrays[i], is_llama(), queries)) {
      const Found& found = found_.at(piece.name);
      piece_values.resize(piece.transposed ? piece.count() : 0);
      found.file->read(*found.tensor, 0, found.tensor->count, piece.transposed ? piece_values.data() : to);
      int64_t inputs = piece.columns();
      for (int64_t at = 0; at < int64_t(piece_values.size()); at++)
        to[at % inputs * arrays[i].columns() + at / inputs] = piece_values[at];
      to += piece.transposed ? piece.count() / inputs : piece.count();
    }
    write(i, values.data());
  }
}

std::vector<float> ArrayFiles::values(const std::string& name) const {
  const Found& found = found_.at(name);
  std::vector<float> values(found.tensor->count);
  found.file->read(*found.tensor, 0, found.tensor->count, values.data());
  return values;
}

bool ArrayFiles::has_untied_head() const {
  if (!has(OUTPUT_LAYER)) return false;
  const Found &head = found_.at(OUTPUT_LAYER),
              &wte = found_.at(is_llama() ? "model.embed_tokens.weight" : "wte.weight");
  if (head.tensor->shape != wte.tensor->shape) return true;
  std::vector<float> a, b;
  for (int64_t done = 0; done < head.tensor->count; done += int64_t(a.size())) {
    a.resize(std::min<int64_t>(head.tensor->count - done, 1 << 20)), b.resize(a.size());
    head.file->read(*head.tensor, done, int64_t(a.size()), a.data());
    wte.file->read(*wte.tensor, done, int64_t(b.size()), b.data());
    if (std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) != 0) return true;
  }
  return false;
}

static const char PYTHON[] =
#include "modeling_plusgpt.inc"  // made by the Makefile
    ;

// The network is GPT-2's or Llama's, but for the block around attention.
static bool is_plain(const Config& config) {
  auto differs = [](const Config::Layer& layer) {
    const AttentionSettings& a = layer.attention;
    return a.kind != Kind::softmax || a.qk_norm != QkNorm::none || a.scale != Scale::rsqrt_d || a.sink != Sink::none ||
           a.window > 0 || a.documents != Documents::joined || a.bias != Bias::none || a.changes_output() ||
           a.gate.exists();
  };
  return !config.some_layer(differs) && config.model.head.outputs == 0 && config.model.logit_cap == 0;
}

static bool is_gpt2(const Config& config) {
  const Config::Model& m = config.model;
  return is_plain(config) && m.position == Position::learned && m.head_dim * m.heads == m.channels &&
         m.kv_heads == m.heads && m.norm == Norm::layernorm && m.mlp == Mlp::gelu && m.bias && m.tied;
}

// Its rotation turns the same pairs of channels: d and d + D/2.
static bool is_llama(const Config& config) {
  const Config::Model& m = config.model;
  auto rests = [](const Config::Layer& layer) { return !layer.rotated; };
  return is_plain(config) && m.position == Position::rope && m.rope_fraction == 1 && !config.some_layer(rests) &&
         m.norm == Norm::rmsnorm && m.mlp == Mlp::swiglu && !m.bias;
}

std::vector<ArrayView> arrays_of_folder(const Config& config, const std::vector<ArrayView>& parameters) {
  if (!is_llama(config)) return parameters;
  std::vector<ArrayView> arrays;
  const int64_t queries = queries_of(parameters);
  for (const ArrayView& array : parameters)
    for (const ArrayView& piece : pieces_of(array, true, queries)) arrays.push_back(piece);
  return arrays;
}

static std::vector<const KindRow*> kinds_of(const Config& config) {
  std::vector<const KindRow*> kinds;
  for (const KindRow& kind : kind_rows())
    if (config.some_layer([&](const Config::Layer& l) { return &kind_row(l.attention.kind) == &kind; }))
      kinds.push_back(&kind);
  return kinds;
}

std::string modelling_code(const Config& config) {
  if (is_gpt2(config) || is_llama(config)) return "";
  std::string code = PYTHON, begin = "FORMULAS = {\n", lines;
  for (const KindRow* kind : kinds_of(config)) {
    if (!kind->pytorch) continue;
    std::string fixed, learned, names;
    for (const ScoreKey& parameter : kind->parameters) {
      fixed += format("\"%s\", ", parameter.name);
      names += format(", %s", parameter.name);
    }
    for (size_t n = 0; n < kind->learned.size(); n++) {
      double initial = config.attention.parameters[kind->initial_of(n)];
      append_item(learned, format("\"%s\": %.17g", kind->learned[n].name, initial));
      names += format(", %s", kind->learned[n].name);
    }
    lines += format(
        "  \"%s\": (\"%s\", (%s), {%s}, lambda z, i, j, n, head, heads, context, seen, softmax, normalised%s: %s),\n",
        kind->name, row_weights_names[int(kind->weights)], fixed.c_str(), learned.c_str(), names.c_str(),
        kind->pytorch);
  }
  return code.insert(code.find(begin) + begin.size(), lines);
}

std::map<std::string, std::string> texts_of_kinds(const Config& config) {
  std::map<std::string, std::string> texts;
  for (const KindRow* file : kinds_of(config)) {
    if (!file->text) continue;
    texts[std::string(file->name) + ".cuh"] = file->text;
    if (!file->pytorch)
      warn(
          "checkpoints will not open in transformers: %s has no formula in PyTorch; give it a line \"static constexpr "
          "const char* pytorch = ...\" (attention/score.h)",
          file->path);
  }
  return texts;
}

std::unique_ptr<Tokenizer> tokenizer_to_carry(const Config& config, bool warns) {
  const std::string& dir = config.generate.tokenizer_dir;
  if (config.generate.tokenizer != TokenizerKind::gpt2 || dir.empty()) return nullptr;
  std::string problem = "is not a folder";
  if (is_folder(dir)) {
    auto tokenizer = open_tokenizer(TokenizerKind::gpt2, dir);
    bool separates = tokenizer->end_of_text() >= 0;
    if (tokenizer->vocab() <= config.model.vocab && separates) return tokenizer;
    problem = format("has %d tokens%s, but model.vocab is %d", tokenizer->vocab(),
                     separates ? "" : ", without <|endoftext|>", config.model.vocab);
  }
  if (warns)
    warn("checkpoints will hold no tokenizer: generate.tokenizer_dir = \"%s\" %s", dir.c_str(), problem.c_str());
  return nullptr;
}

// The tokenizer in the form of the package tokenizers, which newer versions of transformers look for first.
static std::string tokenizer_json(const std::string& vocabulary, const std::string& merges, int end_of_text) {
  ordered_json pairs = ordered_json::array();
  for (const std::string& line : split(merges, '\n')) {
    std::string pair = line.substr(0, line.find('\r'));
    if (!pair.empty() && !(pairs.empty() && pair.starts_with("#version"))) pairs.push_back(pair);
  }
  const ordered_json special = {
      {"id", end_of_text}, {"content", "<|endoftext|>"}, {"single_word", false}, {"lstrip", false},
      {"rstrip", false},   {"normalized", false},        {"special", true}};
  const ordered_json bytes = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const ordered_json model = {{"type", "BPE"},
                              {"dropout", nullptr},
                              {"unk_token", nullptr},
                              {"continuing_subword_prefix", nullptr},
                              {"end_of_word_suffix", nullptr},
                              {"fuse_unk", false},
                              {"byte_fallback", false},
                              {"vocab", ordered_json::parse(vocabulary)},
                              {"merges", pairs}};
  return ordered_json{{"version", "1.0"},          {"truncation", nullptr}, {"padding", nullptr},
                      {"added_tokens", {special}}, {"normalizer", nullptr}, {"pre_tokenizer", bytes},
                      {"post_processor", bytes},   {"decoder", bytes},      {"model", model}}
             .dump(1) +
         "\n";
}

std::map<std::string, std::string> tokenizer_files(const Config& config, const Tokenizer& tokenizer) {
  const ordered_json about = {{"tokenizer_class", "GPT2Tokenizer"},
                              {"bos_token", "<|endoftext|>"},
                              {"eos_token", "<|endoftext|>"},
                              {"unk_token", "<|endoftext|>"},
                              {"add_prefix_space", false}};
  if (config.generate.tokenizer != TokenizerKind::gpt2) return {};
  const Gpt2Files paths = gpt2_files(config.generate.tokenizer_dir);
  auto content = [](const std::string& path) { return read_utf8_file(path, "tokenizer", size_t(1) << 28); };
  std::string vocabulary = content(paths.vocabulary), merges = content(paths.merges);
  return {{"vocab.json", vocabulary},
          {"merges.txt", merges},
          {"tokenizer.json", tokenizer_json(vocabulary, merges, tokenizer.end_of_text())},
          {"tokenizer_config.json", about.dump(2) + "\n"}};
}

std::string model_config_json(const Config& config, int separator) {
  const Config::Model& m = config.model;
  ordered_json end_of_text = separator >= 0 ? ordered_json(separator) : ordered_json(), root;
  ordered_json own = config_json(config, {"model", "attention"});
  if (config.attention.documents == Documents::separate) own["data"]["separator"] = config.data.separator;
  if (is_llama(config)) {
    root = {{"model_type", "llama"},
            {"architectures", {"LlamaForCausalLM"}},
            {"num_hidden_layers", m.layers},
            {"num_attention_heads", m.heads},
            {"num_key_value_heads", m.kv_heads},
            {"head_dim", m.head_dim},
            {"hidden_size", m.channels},
            {"intermediate_size", m.mlp_width()},
            {"max_position_embeddings", m.context},
            {"hidden_act", "silu"},
            {"rms_norm_eps", 1e-5},
            {"rope_theta", m.rope_base},
            {"attention_bias", false},
            {"mlp_bias", false}};
  } else {
    root = {{"model_type", "gpt2"}, {"architectures", {"GPT2LMHeadModel"}}};
    if (!is_gpt2(config))
      root = {{"model_type", "plusgpt"},
              {"architectures", {"PlusGPTLMHeadModel"}},
              {"auto_map",
               {{"AutoConfig", "modeling_plusgpt.PlusGPTConfig"},
                {"AutoModelForCausalLM", "modeling_plusgpt.PlusGPTLMHeadModel"}}}};
    root.update({{"n_layer", m.layers},
                 {"n_head", m.heads},
                 {"n_embd", m.channels},
                 {"n_inner", m.mlp_width()},
                 {"n_positions", m.context},
                 {"n_ctx", m.context},
                 {"activation_function", "gelu_new"},
                 {"layer_norm_epsilon", 1e-5},
                 {"attn_pdrop", 0.0},
                 {"embd_pdrop", 0.0},
                 {"resid_pdrop", 0.0}});
  }
  root.update({{"vocab_size", m.vocab},
               {"initializer_range", m.init_std},
               {"tie_word_embeddings", m.tied},
               {"torch_dtype", "float32"},
               {"bos_token_id", end_of_text},
               {"eos_token_id", end_of_text},
               {"plusgpt", own}});
  return root.dump(2) + "\n";
}

// The model of a config.json that another program wrote, as far as it says how the weights are used: their shapes tell
// the rest, which is as here. Adds to `differences` what this program does not do.
static Config model_of_other_program(const json& found, const std::string& path, const Config& here,
                                     std::vector<std::string>& differences) {
  bool llama = found["model_type"] == "llama";
  Config theirs = here;
  theirs.variant = "softmax", theirs.attention = {}, theirs.layers = {}, theirs.kind_file = "";
  theirs.model.norm = llama ? Norm::rmsnorm : Norm::layernorm;
  theirs.model.mlp = llama ? Mlp::swiglu : Mlp::gelu;
  theirs.model.logit_cap = 0;
  if (!llama) return theirs;
  theirs.model.position = Position::rope, theirs.model.rope_fraction = 1;
  // transformers 5 writes the base into an object with what stretches the rotation
  const json rope = found.value("rope_parameters", json::object()),
             base = rope.is_object() && rope.contains("rope_theta") ? rope["rope_theta"]
                                                                    : found.value("rope_theta", json(10000.0));
  if (base.is_number()) theirs.model.rope_base = base;
  if (rope.is_object() && rope.value("rope_type", json("default")) != "default")
    differences.push_back(path +
                          " stretches the rotation (rope_type), which is not done here: its outputs will change");
  return theirs;
}

std::vector<std::string> model_differences(const std::string& folder, const ArrayFiles& weights, const Config& config) {
  std::vector<std::string> differences;
  if (config.model.head.outputs == 0 && config.model.tied && weights.has_untied_head())
    differences.push_back(folder + ": " + OUTPUT_LAYER +
                          " differs from wte.weight, which is the output layer here (model.tied): its outputs will "
                          "change");
  std::string path = folder + "/config.json";
  if (!is_there(path)) return differences;
  const json found = parse_json(read_utf8_file(path, "init", 1 << 20), "init", path);
  if (!found.is_object())
    user_error("init: %s is not a JSON object, so it does not say which model this is; correct or remove it",
               path.c_str());
  std::string changes;
  auto compare = [&](const Config& theirs) {
    for (const ChangedSetting& change : changed_model(theirs, config))
      if (change.key != "model.head.outputs")  // another head's tensors have other shapes, and a new one is reported
        append_item(changes, format("%s = %s (here %s)", change.key.c_str(), change.was.c_str(), change.is.c_str()));
  };
  if (found.contains("plusgpt")) {
    try {  // one of our checkpoints
      // The file does not give the batch, which must suit its context.
      json context = found["plusgpt"].value("/model/context"_json_pointer, json(Config().model.context));
      Config theirs = config_from_json(found["plusgpt"], path, {"batch.tokens=" + context.dump()}, false);
      compare(theirs);
    } catch (const std::exception& error) {
      differences.push_back(error.what());
    }
  } else if (json type = found.value("model_type", json()); type == "gpt2" || type == "llama") {
    compare(model_of_other_program(found, path, config, differences));
  }
  if (!changes.empty()) differences.push_back(path + ": the weights were trained with " + changes);
  const std::pair<const char*, std::vector<json>> computed[] = {
      {"n_head", {config.model.heads}},
      {"activation_function", {"gelu_new", "gelu_pytorch_tanh"}},
      {"layer_norm_epsilon", {1e-5}},
      {"tie_word_embeddings", {config.model.tied}},
      {"scale_attn_weights", {true}},
      {"scale_attn_by_inverse_layer_idx", {false}},
      {"num_key_value_heads", {config.model.kv_heads}},
      {"rms_norm_eps", {1e-5}},
      {"num_attention_heads", {config.model.heads}},
      {"hidden_act", {"silu"}},
      {"rope_scaling", {nullptr}},
  };
  for (auto& [key, values] : computed)
    if (found.contains(key) && !(key == std::string("tie_word_embeddings") && weights.has(OUTPUT_LAYER)) &&
        std::find(values.begin(), values.end(), found[key]) == values.end() &&
        (!std::strstr(key, "_head") || changes.find("model.heads") == std::string::npos))  // reported already
      differences.push_back(format("%s says %s = %s, but here it is %s: its outputs will change", path.c_str(), key,
                                   found[key].dump(-1, ' ', true).substr(0, 80).c_str(), values[0].dump().c_str()));
  return differences;
}
