// Finds and checks what a run needs before its first step, and reports errors before an older run's files are touched.
#pragma once
#include <memory>
#include <vector>

#include "checkpoint/resume.h"
#include "data/loader.h"
#include "data/benchmark_file.h"
#include "ranks/comm.h"
#include "settings/command_line.h"
#include "training/device.h"

// Chooses this rank's device, describes it, and completes the settings that depend on it (precision, threads).
// remeasure: as use_product_cache()'s.
DeviceInfo prepare_device(Config& config, const Ranks& ranks, bool remeasure);

// If CONFIG is the folder of a run, or one of its checkpoints: takes the run's config.json, with --resume from there,
// and the folder's name as flags.run. A user_error if it is another folder, is not there, or is not in ./runs although
// the program will write to the run.
void take_run_folder(Flags& flags);
// load_config() of the flags' file and --set; the run is called flags.run where that is given and no --set names it.
Config load_config(const Flags& flags);

struct Data {
  std::vector<Shard> train, val;
  std::vector<DataFile> train_files, val_files;  // the shards, then their label files
  std::vector<Benchmark> benchmarks;             // the benchmarks of task.names, if they will be run
  std::shared_ptr<Tokenizer> tokenizer;          // of generate.tokenizer_dir, if texts are made or the model is trained
  std::vector<std::string> warnings;             // complete sentences, to be printed once
  Vocabulary vocabulary() const;                 // of the tokenizer that made data.train, as far as that is known
};

// Opens and checks the shards that the run will read and the lengths it evaluates (evaluates: losses on data.val):
// --lengths, if given, becomes eval.lengths, and config.end_of_text is set. A user_error names the key. rank: only 0
// warns.
Data open_data(const Flags& flags, Config& config, bool evaluates, int rank);
// With separate documents: counts separators in windows from all shards; prints what they separate, or warns, if
// `first`. If the run trains, the lengths of these documents become config.document_lengths.
void sample_documents(Config& config, const Data& data, bool first);
// Warns of shards and of a tokenizer for texts that are of another tokenizer than `trained`, that of the model (not
// known: than the first shard), of shards that say none, unless the run continues on its own data; and if model.vocab
// does not suit it. For rank 0.
void report_tokenizers(const Config& config, const Data& data, const Vocabulary& trained, bool continues);
// Warns of files of data.val with the content (the tokens' number and the sampled checksum) of one in `train`, on which
// the model trains or was trained, and says if data.val holds fewer tokens than eval.tokens. For rank 0.
void report_validation(const Config& config, const Data& data, const std::vector<DataFile>& train);
// Reads all tokens, for at most a minute for each key, and says how many it has read. A user_error names the first one
// that model.vocab does not allow.
void check_all_tokens(const Config& config, const Data& data);
// The windows of `shards` for training; prints their number and the number of epochs. A user_error if there are none.
std::unique_ptr<WindowReader> training_windows(const Config& config, const std::vector<Shard>& shards, bool first);

// Finds where --resume asks to start; all ranks find the same. A user_error if --resume names
// nothing that can be resumed, or if random weights would be used instead of the run's checkpoints.
ResumePoint find_resume_point(const Flags& flags, const Config& config, Comm& comm);
