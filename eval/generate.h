// Text from a prompt, a token at a time. The network reruns over the last `context` tokens for every token: simple, and fast enough
// for samples during training.
#pragma once
#include <functional>
#include <string>

#include "data/tokenizer.h"
#include "train_gpt2.h"

// Continues the prompt by settings.tokens tokens and passes the text on as it grows, in pieces that are whole UTF-8 characters
// where the model made such. An empty prompt begins at the start of a document (GPT-2) or of a line (bytes). temperature 0 takes the likeliest
// token; top_k 0 means all. The same seed gives the same text. A user_error where the tokenizer does not fit the model's vocabulary.
void generate(Model& model, const Tokenizer& tokenizer, const Config::Generate& settings, uint64_t seed,
              const std::function<void(const std::string&)>& print);

// The token drawn with probability softmax(logits / temperature) among the top_k; uniform in [0, 1) decides. Exposed for its test.
int sample(const float* logits, int count, double temperature, int top_k, double uniform);
