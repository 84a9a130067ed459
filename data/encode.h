// Text into the tokens of shards, for ./train --encode, which scripts/prepare_text.py runs.
#pragma once
#include <climits>
#include <cstddef>
#include <cstdio>

#include "data/tokenizer.h"

// Reads text from `in` to its end and writes its tokens to `out`, as uint16 in the machine's byte order. The text
// <|endoftext|> ends a document; each document that is not empty gets end_of_text() and then its tokens. A byte order
// mark at the beginning is left out. `block`: the bytes to read at once, which the tokens do not depend on; memory
// grows only with a run of one class of GPT-2's pattern (letters, digits, other signs), which is held as a whole.
// user_error: the vocabulary has no end_of_text(), or more than 65536 tokens; such a run is longer than `most`.
void encode_documents(const Tokenizer& tokenizer, std::FILE* in, std::FILE* out, size_t block = size_t(1) << 22,
                      size_t most = INT_MAX);
