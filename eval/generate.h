// Text from a prompt, a token at a time. The network reruns over the last `context` tokens for every token: simple, and
// fast enough for samples during training.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "train_gpt2.h"

// The tokens that a text continues: the prompt's, else the beginning of a document (GPT-2) or of a line (bytes). A
// user_error where the tokenizer does not fit the vocabulary.
std::vector<int> prompt_tokens(const Tokenizer& tokenizer, const Config& config);

// Continues the prompt by settings.tokens tokens and passes the text on as it grows, in pieces that are whole UTF-8
// characters where the model made such. temperature 0 takes the likeliest token; top_k 0 means all. The same seed gives
// the same text. It ends early when stop, which is asked before every token, says so.
void generate(Model& model, const Tokenizer& tokenizer, const Config::Generate& settings, uint64_t seed,
              const std::function<void(const std::string&)>& print, const std::function<bool()>& stop = {});

// Prints the text that generate.* asks for; a signal ends it early. Rank 0 alone prints.
void generate_text(Model& model);

// The token drawn with probability softmax(logits / temperature) among the top_k; uniform in [0, 1) decides. Exposed
// for its test.
int sample(const float* logits, int count, double temperature, int top_k, double uniform);
