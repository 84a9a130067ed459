// Passkey retrieval: does a model use distant context? A key is hidden in filler at some depth of a
// prompt, which ends by asking for it. Two forms of prompts:
//   landmark  the prompt of landmark attention, which later work uses too: a first line, filler, "The pass key is K.
//             Remember it. K is the pass key.", filler, "What is the pass key? The pass key is". K is 1 to 50000. The
//             filler has as many characters as fit; floor(depth x that) of them precede the key.
//   compact   fits 128 bytes: filler, "The key is K. Remember K. ", filler, "What is the key? The key is". K is 00000
//             to 99999. "PROMPT K." has exactly the length asked for, and floor(depth x its filler) tokens precede the
//             key. The filler is cut at both ends.
// If the tokenizer has a separator of documents, the prompt begins with it, as training text does.
//
// A prompt is scored by one pass over "PROMPT K." (teacher forcing). Padding follows it, which no row before it sees:
//   exact  whether every token of " K" is the likeliest, and the likeliest after it does not begin with a digit. Greedy
//          decoding then answers K. (It may also answer K by other tokens of the same digits; that counts as wrong.)
//   nll    mean of -log p over the tokens of " K", nats
//   rank   mean over them of log2 of the token's rank, 0 for the likeliest; of equal logits the first is the likelier
// nll and rank improve long before exact leaves 0.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "eval/eval_context.h"

struct PasskeyPrompt {
  int length;               // that was asked for; the tokens are at most as many
  double depth;             // 0 .. 1
  std::string key;          // "00417"
  bool control;             // lacks the line with the key
  int fill;                 // characters of filler: landmark's in all, compact's after the key
  std::vector<int> tokens;  // of "PROMPT K."
  int answer, key_tokens;   // where the tokens of " K" at the end begin, and how many they are
  int distance;             // tokens from the last mention of the key in the prompt to the answer; 0 in a control
};

// first_sentence: of the filler after compact's key, 0 to 4. fill: as above; -1: as much as fits. A user_error if the
// prompt does not fit the length even without filler.
PasskeyPrompt passkey_prompt(const Tokenizer& tokenizer, PasskeyForm form, int length, double depth,
                             const std::string& key, int first_sentence, int fill = -1, bool control = false);

// The prompts of passkey.trials trials at each of passkey.depths depths, then as many controls, for each length in
// turn. Keys and first sentences are drawn from form, length, depth and trial alone, so all models see the same. A
// user_error if the tokenizer does not fit the form or the model, or a length is too short.
std::vector<PasskeyPrompt> passkey_prompts(const Tokenizer& tokenizer, const Config& config,
                                           const std::vector<int>& lengths);
// Writes them to the file passkey.examples, if it is set, as JSON lines without the controls: form, length, depth, key,
// and prompt, which the answer " KEY" follows. A user_error if the file cannot be created.
void write_passkey_prompts(const Tokenizer& tokenizer, const Config& config, const std::vector<PasskeyPrompt>& prompts);

struct PasskeyScore {
  double exact = 0, nll = 0, rank = 0;
};
// From the logits [key_tokens + 1, V] that predict the tokens of the key and the one after them.
PasskeyScore passkey_score(const float* logits, int V, const int* key, int key_tokens, const Tokenizer& tokenizer);

// The scores of prompts of one length. The ranks divide them, and each gets all scores, with the same bits for any
// number of ranks. The model must have been made for eval_rows(config, {length}) rows. done: called with the number of
// prompts that are done.
std::vector<PasskeyScore> passkey_scores(Model& model, const Tokenizer& tokenizer,
                                         const std::vector<PasskeyPrompt>& prompts,
                                         const std::function<void(size_t)>& done = {});

// Scores the prompts of passkey_prompts(), prints the results by length and depth, then by distance, and writes a line
// for each length. Returns whether all scores are finite.
bool evaluate_passkey(const EvalContext& context, const Tokenizer& tokenizer,
                      const std::vector<PasskeyPrompt>& prompts);
