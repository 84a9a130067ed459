// What a run is of, by content. A name says nothing once data, weights or a tokenizer were made again under it, so what
// pools or repeats runs reads this record (scripts/lib/metrics.py). Evaluations say themselves what they are of
// (evaluation_id()).
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "training/data.h"

// {"data.train", "data.labels", "data.val", "data.val_labels": as data_json();
//  "init": [{"name", "xxh64"}] of its weight files, whole; "checkpoint": the checksum of the one that was loaded;
//  "tokenizer": of the data (Data::vocabulary()), as text}, without what is not there.
// from: the checkpoint that the run continues from, or nullptr.
nlohmann::ordered_json identity_json(const Config& config, const Data& data, const Checkpoint* from);

// Which tokenizer the weights in this folder are of: by its state.json, or else by GPT-2's files beside them; not known
// without either.
Vocabulary tokenizer_of_weights(const std::string& folder);
