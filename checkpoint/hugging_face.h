// A folder that holds a model: model.safetensors, all parameters by name, float32, in Hugging Face's names and layouts;
// config.json; and where the network is not exactly GPT-2's, the Python file with which transformers opens it.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "settings/config.h"

// Reads the file and calls write(i, values) for every array, of which it holds one at a time. A "transformer." prefix is accepted; lm_head.weight,
// *.attn.bias and *.attn.masked_bias, which Hugging Face keeps beside the parameters, are ignored. Missing, further or
// mis-shaped tensors are a user_error that lists them, before anything was written.
void load_arrays(const std::string& path, const std::vector<ArrayView>& arrays,
                 const std::function<void(size_t i, const float* values)>& write);

// config.json of a folder with model.safetensors. Where the network is exactly GPT-2's (softmax, learned positions, D =
// C/H) it is what transformers' GPT2LMHeadModel reads; everything else has model_type "plusgpt" and names the classes
// in MODELLING_FILE. "plusgpt" in it holds our own settings.
std::string model_config_json(const Config& config);

// What config.json of a folder that `init` names says of the network and its tensors do not show, where it is not what
// this program will compute: transformers' GPT-2 can be set otherwise, and so can ours. None where there is no such file.
std::vector<std::string> model_differences(const std::string& folder, const Config& config);

// What MODELLING_FILE in the folder must hold: scripts/modeling_plusgpt.py as it was when the program was built; ""
// where transformers' own GPT-2 opens it.
inline constexpr const char* MODELLING_FILE = "modeling_plusgpt.py";
std::string modelling_code(const Config& config);
