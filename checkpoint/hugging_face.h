// A folder that holds a model: model.safetensors, with all parameters in float32 under Hugging Face's names and
// layouts; config.json; unless the network is exactly GPT-2's or Llama's, the Python file with which transformers opens
// it; and the tokenizer, if its files are known. Names and layouts are those of GPT-2, with what it lacks; but Llama's,
// whose matrices are [outputs, inputs], if the network is that.
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "settings/config.h"

// The files with the weights of a folder: its model.safetensors, else those that model.safetensors.index.json lists. A
// user_error if it has neither, which says what is there instead; and if a file lacks a tensor that the index lists.
std::vector<std::string> weight_files(const std::string& folder);

// The arrays of these files together, by names without the prefix "transformer.". A name that is there twice is a
// user_error. Files with Llama's names are read as if they had GPT-2's.
class ArrayFiles {
 public:
  explicit ArrayFiles(const std::vector<std::string>& paths);
  bool has(const std::string& name) const;
  // Whether the output layer, lm_head.weight, is there with other values than wte.weight.
  bool has_untied_head() const;
  // Calls write(i, values) for every array, holding one array in memory at a time. Missing, extra or mis-shaped tensors
  // are a user_error that lists them, before the first write; but lm_head.weight, which model_differences() judges, and
  // the masks that Hugging Face keeps beside the parameters are ignored.
  void load(const std::vector<ArrayView>& arrays,
            const std::function<void(size_t i, const float* values)>& write) const;
  std::vector<float> values(const std::string& name) const;  // of an array that is there

 private:
  struct Found {
    const SafetensorsReader* file;
    const TensorInfo* tensor;
  };
  bool is_llama() const { return found_.contains("model.embed_tokens.weight"); }
  std::deque<SafetensorsReader> files_;
  std::map<std::string, Found> found_;
};

// The arrays of model.safetensors, from those of the parameters: the same, or Llama's.
std::vector<ArrayView> arrays_of_folder(const Config& config, const std::vector<ArrayView>& parameters);

// config.json of a folder with model.safetensors. If the network is exactly GPT-2's (softmax, learned positions, D =
// C/H), transformers' GPT2LMHeadModel reads it, and LlamaForCausalLM if it is exactly Llama's (softmax, rope, RMSNorm,
// SwiGLU, no biases); any other has model_type "plusgpt" and names the classes in
// MODELLING_FILE. Its key "plusgpt" holds our own settings. The text begins and ends with the separator, if any.
std::string model_config_json(const Config& config, int separator);

// Warnings if the output layer of `init`'s weights is not wte, or the config.json beside them describes another
// computation with the same tensor shapes: transformers' GPT-2 has such settings, and so has ours.
std::vector<std::string> model_differences(const std::string& folder, const ArrayFiles& weights, const Config& config);

// The content of MODELLING_FILE in the folder: scripts/lib/modeling_plusgpt.py as it was when the program was built,
// with the formulas of kinds that are files; "" if transformers' own GPT-2 or Llama opens the model.
inline constexpr const char* MODELLING_FILE = "modeling_plusgpt.py";
std::string modelling_code(const Config& config);

// The files of the layers' kinds that are files (attention/score.h), by name. A warning for each without a formula that
// modelling_code() can carry.
std::map<std::string, std::string> texts_of_kinds(const Config& config);

// The tokenizer that generate.tokenizer_dir names. None if the configuration names no such folder; none, with a warning
// if `warns`, if it does not exist or has no <|endoftext|> or more tokens than the model. A damaged one: a user_error.
std::unique_ptr<Tokenizer> tokenizer_to_carry(const Config& config, bool warns);
// That tokenizer as transformers' AutoTokenizer reads it: the content of vocab.json, merges.txt, tokenizer.json and
// tokenizer_config.json, by name.
std::map<std::string, std::string> tokenizer_files(const Config& config, const Tokenizer& tokenizer);
