// Text from a prompt, one token at a time. The network reruns over the last `context` tokens for every token: simple,
// and fast enough for samples during training.
#pragma once
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "train_gpt2.h"

// The tokens from which a text starts: those of the prompt or, if it is empty, the separator, or a newline if there is
// none.
std::vector<int> prompt_tokens(const Tokenizer& tokenizer, const Config& config, int separator,
                               const std::string& prompt);

// A user_error if the model's vocabulary is not the tokenizer's, or that and a few tokens more: a size rounded up, or
// special tokens. prompt_tokens() calls it.
void check_vocabulary(const Tokenizer& tokenizer, const Config& config);

// Continues the prompt by settings.tokens tokens and passes the text to `print` as it grows, in pieces that do not
// split a UTF-8 character. temperature 0 takes the likeliest token; top_k 0 means all. The same seed gives the same
// text.
// stop, if given, is called before every token; true ends the text early.
void generate(Model& model, const Tokenizer& tokenizer, const Config::Generate& settings, uint64_t seed,
              const std::function<void(const std::string&)>& print, const std::function<bool()>& stop = {});

// A line of --generate-file.
struct FilePrompt {
  std::vector<int> tokens;
  std::string others;  // its fields except "prompt", as a JSON object
};
// Reads a file of JSON objects, one a line, each with a text "prompt". A user_error names the line that is something
// else, that has tokens beyond the model's vocabulary, or whose text would be longer than learned positions.
std::vector<FilePrompt> read_prompts(const std::string& path, const Tokenizer& tokenizer, const Config& config,
                                     int separator);
// The tokens of the longest prompt with its completion, rounded up: the length for the memory plan.
int longest_text(const std::vector<FilePrompt>& prompts, const Config& config);
// Writes each line's other fields with the completion, as JSON lines. A completion has at most generate.tokens tokens
// and ends before generate.stop and before the end of a document; the model sees all of the text. Runs on rank 0 only.
void generate_file(Model& model, const Tokenizer& tokenizer, const std::vector<FilePrompt>& prompts, std::FILE* out);

// Prints a text as the settings generate.* ask for; a request to stop ends it early. Only rank 0 prints.
void generate_text(Model& model);

// Logits = [V] of the token that follows tokens[0..count). Public for its test only.
void next_token_logits(Model& model, float* logits, const int* tokens, int count);

// The token drawn with probability softmax(logits[count] / temperature) among the top_k, by `uniform` in [0, 1).
// Public for its test only.
int sample(const float* logits, int count, double temperature, int top_k, double uniform);
