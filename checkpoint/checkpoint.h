// A checkpoint: the folder step_N of a run, from which training continues bit for bit.
//   model.safetensors      the parameters: the float32 masters, under Hugging Face's names
//   optimizer.safetensors  AdamW's moments: m.NAME and v.NAME, shapes as in model.safetensors
//   config.json            describes the model to Hugging Face transformers
//   modeling_plusgpt.py    the model in Python, if transformers does not know it
//   vocab.json, merges.txt, tokenizer.json, tokenizer_config.json   the tokenizer, if generate.tokenizer_dir names it
//   state.json             RunState, then size and XXH64 of these files, and last the XXH64 of everything before it
// No random generator has a state to save: the initial weights are a function of the seed, the data order of (seed,
// epoch), samples of the seed. So the step and the position in the data are enough.
// RunDir publishes the folder, so a step_N that exists was complete once.
// Reading trusts nothing: a folder is intact if its files have the checksums with which they were written.
// modeling_plusgpt.py and the tokenizer, which no run reads, may be changed or missing.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/run_dir.h"
#include "checkpoint/safetensors.h"
#include "settings/config.h"

struct DataFile {  // a shard: its name without folders, because data may move
  std::string name;
  int64_t tokens = 0;
  std::string xxh64;  // sampled_checksum()
  bool operator==(const DataFile&) const = default;
};
// [{"name": ..., "tokens": N, "xxh64": ...}, ...]
nlohmann::ordered_json data_json(const std::vector<DataFile>& files);

// The losses and norms by which training/spikes.h detects spikes.
struct SpikeHistory {
  static constexpr size_t WINDOW = 128;  // steps
  std::vector<double> loss, grad_norm;   // oldest first
  int64_t skipped = 0;                   // updates, from the beginning of the run
};

struct RunState {
  int64_t step = 0;  // steps made, those whose update was skipped included
  // How many updates AdamW's moments have had; none if an older program, which counted steps, began the run.
  std::optional<int64_t> updates = 0;
  int64_t tokens = 0;                // trained on so far
  int64_t next_window = 0;           // position in the data order, counted over all epochs
  int64_t windows = 0;               // in one epoch
  std::vector<DataFile> train, val;  // val is empty if the run does not evaluate
  Vocabulary tokenizer;              // of `train`, as far as it is known
  SpikeHistory spikes;
  std::string matmul_choices;                 // the measured algorithms, which a resumed run must use again
  std::string products;                       // matmul_library() of the program that wrote it; "" if unknown
  Config config;                              // the resolved settings
  std::map<std::string, std::string> others;  // files by name: the tokenizer, kinds that are files; not in state.json
};

struct CheckpointContent {
  std::vector<ArrayView> model, optimizer;
  std::string config;     // config.json
  std::string modelling;  // modeling_plusgpt.py; "": no such file
  RunState state;
};

// Writes step_N of the run and returns its path; the folder appears complete, by one rename. Values go from memory to
// the disk without a copy. A failure (full disk, no permission) leaves the other checkpoints as they are and nothing
// behind.
std::string write_checkpoint(RunDir& run, const CheckpointContent& content);

struct Checkpoint {
  std::string path;
  std::shared_ptr<File> lock;  // no other process removes it until this is reset
  std::string checksum;        // of state.json, which holds the other files' checksums: so it covers everything
  RunState state;
};
struct SkippedCheckpoint {
  StepFolder folder;
  std::string reason;
  bool damaged;  // false: it could not be read now
};

inline constexpr const char* REMOVED = "it was removed just now";
// Reads and verifies one folder; training = false: only the weights are needed, and optimizer.safetensors may be
// missing. Returns a description of the damage, "" if there is none, REMOVED if the folder is gone. A folder without
// read permission is a user_error, and a disk that fails to return the bytes, but may later, is a failure.
std::string read_checkpoint(const std::string& folder, bool training, Checkpoint* checkpoint);

// The verified content of state.json alone; none if it is damaged or missing.
std::optional<RunState> read_state(const std::string& folder);

// The damage of the weights of a folder, by its state.json; "" if there is none, or no state.json.
std::string damage_of_weights(const std::string& folder);

// The newest intact checkpoint of a run, if it has one. Newer ones that are not intact are appended to `skipped`.
std::optional<Checkpoint> newest_checkpoint(const std::string& run_path, bool training,
                                            std::vector<SkippedCheckpoint>* skipped);
