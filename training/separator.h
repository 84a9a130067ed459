// Where documents begin in the data: the token that separates them, and how long that makes them.
#pragma once
#include <optional>
#include <vector>

#include "train_gpt2.h"
#include "training/data.h"

// The token between documents, from the first source that says one (docs/data.md), and that source. A user_error if
// documents are separate and none does.
RunFacts find_separator(const Config& config, const Data& data, const std::optional<Checkpoint>& from);

// With separate documents: counts separators in windows from all shards; prints what they separate and what says which
// token it is, or warns, if `first`. Returns the lengths of these documents.
std::vector<int> sample_documents(const Config& config, const Data& data, const RunFacts& facts, bool first);
