// The data of a run: its shards, labels, tokenizer and benchmarks, opened and checked before the first step.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "data/benchmark_file.h"
#include "data/loader.h"
#include "settings/command_line.h"

inline constexpr int GPT2_TOKENS = 50257;

struct Data {
  std::vector<Shard> train, val;
  std::vector<DataFile> train_files, val_files;  // the shards, then their label files
  std::vector<Benchmark> benchmarks;             // the benchmarks of task.names, if they will be run
  std::shared_ptr<Tokenizer> tokenizer;          // of generate.tokenizer_dir, if texts are made or the model is trained
  std::vector<std::string> warnings;             // complete sentences, to be printed once
  Vocabulary vocabulary() const;                 // of the tokenizer that made data.train, as far as that is known
};

// Opens and checks the shards that the run will read (evaluates: losses on data.val) and the tokenizer. A user_error
// names the key. rank: only 0 warns.
Data open_data(const Flags& flags, const Config& config, bool evaluates, int rank);
// That of the first shard whose X.json says one; nullptr: none does.
const Vocabulary* first_known(const std::vector<Shard>& shards);
// Warns of shards and of a tokenizer for texts that are of another tokenizer than `trained`, that of the model (not
// known: than the first shard), of shards that say none, unless the run continues on its own data; and if model.vocab
// does not suit it. For rank 0.
void report_tokenizers(const Config& config, const Data& data, const Vocabulary& trained, bool continues);
// Warns of files of data.val with the content (the tokens' number and the sampled checksum) of one in `train`, on which
// the model trains or was trained, and says if data.val holds fewer tokens than eval.tokens. For rank 0.
void report_validation(const Config& config, const Data& data, int separator, const std::vector<DataFile>& train);
// Reads all tokens, for at most a minute for each key, and says how many it has read. A user_error names the first one
// that model.vocab does not allow.
void check_all_tokens(const Config& config, const Data& data);
// The windows of `shards` for training; prints their number and the number of epochs. A user_error if there are none.
std::unique_ptr<WindowReader> training_windows(const Config& config, const std::vector<Shard>& shards, bool first);
