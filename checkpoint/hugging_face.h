// A folder that holds a model: model.safetensors, with all parameters in float32 under Hugging Face's names and
// layouts; config.json; unless the network is exactly GPT-2's, the Python file with which transformers opens it; and
// the tokenizer, if its files are known.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "settings/config.h"

// Reads the file and calls write(i, values) for every array, holding one array in memory at a time. A "transformer."
// prefix is accepted; lm_head.weight, *.attn.bias and *.attn.masked_bias, which Hugging Face keeps beside the
// parameters, are ignored. Missing, extra or mis-shaped tensors are a user_error that lists them, before the first
// write.
void load_arrays(const std::string& path, const std::vector<ArrayView>& arrays,
                 const std::function<void(size_t i, const float* values)>& write);

// config.json of a folder with model.safetensors. If the network is exactly GPT-2's (softmax, learned positions, D =
// C/H), transformers' GPT2LMHeadModel reads it; any other has model_type "plusgpt" and names the classes in
// MODELLING_FILE. Its key "plusgpt" holds our own settings. The text begins and ends with config.end_of_text, if any.
std::string model_config_json(const Config& config);

// Warnings if the config.json beside `init`'s weights describes another computation with the same tensor shapes:
// transformers' GPT-2 has such settings, and so has ours. Empty if there is no such file.
std::vector<std::string> model_differences(const std::string& folder, const Config& config);

// The content of MODELLING_FILE in the folder: scripts/modeling_plusgpt.py as it was when the program was built, with
// the formulas of kinds that are files; "" if transformers' own GPT-2 opens the model.
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
