// A checkpoint: the folder step_N of a run, from which training continues bit for bit.
//   model.safetensors      the parameters: the float32 masters, under Hugging Face's names
//   optimizer.safetensors  AdamW's moments: m.NAME and v.NAME, shapes as in model.safetensors
//   config.json            what describes the model to others
//   modeling_plusgpt.py    with what others open it, where that is needed
//   state.json             RunState, then size and XXH64 of these files, and last the XXH64 of everything before it
// Nothing random has a state of its own: the initial weights are a function of the seed, the data order one of (seed,
// epoch), samples one of the seed. The step and the position in the data are therefore all that there is to remember.
// The folder is written under another name, synced and renamed (RunDir), so a step_N that exists was complete once.
// Reading trusts nothing: a folder is intact when its files have the checksums that they had when they were written;
// modeling_plusgpt.py, which no run reads, may be changed or missing.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/run_dir.h"
#include "checkpoint/spikes.h"
#include "settings/config.h"

struct DataFile {  // a shard: its name without folders, because data may move
  std::string name;
  int64_t tokens = 0;
  std::string xxh64;  // sampled_checksum(); "" in checkpoints of format 1
  bool operator==(const DataFile&) const = default;
};

struct RunState {
  int64_t step = 0;              // updates made, the skipped ones included
  int64_t tokens = 0;            // trained on
  int64_t next_window = 0;       // in the data order, counted over all epochs
  int64_t windows = 0;           // of one epoch
  std::vector<DataFile> train, val;  // val is empty where the run does not evaluate
  SpikeHistory spikes;
  std::string matmul_choices;    // measured algorithms, which a resumed run must use again
  Config config;                 // the resolved settings
};

// Values that lie in memory row by row, rows `stride` elements apart.
struct SavedArray {
  std::string name;
  std::vector<int64_t> shape;
  const float* values;
  int64_t stride;
};

struct CheckpointContent {
  std::vector<SavedArray> model, optimizer;
  std::string config;     // config.json
  std::string modelling;  // modeling_plusgpt.py; "": there is none
  RunState state;
};

// Writes step_N of the run, where it appears at once and complete; returns its path. Values go from memory to the disk
// without a copy. A failure (full disk, no permission) leaves the other checkpoints as they are, and nothing behind.
std::string write_checkpoint(RunDir& run, const CheckpointContent& content);

struct Checkpoint {
  std::string path;
  std::string checksum;  // of state.json, which has those of the other files: of everything
  RunState state;
};
struct SkippedCheckpoint {
  StepFolder folder;
  std::string reason;
  bool damaged;  // or not readable now
};

// Reads and verifies one folder; training = false: for its weights alone, so that optimizer.safetensors may be missing.
// Returns what is damaged, "" if nothing is. Of a folder that may not be read nothing is
// known: that is a user_error instead, and a failure where the disk does not give its bytes back, which it may later.
std::string read_checkpoint(const std::string& folder, bool training, Checkpoint* checkpoint);

// The newest intact checkpoint of a run, none where it has none. Newer ones that are not are appended to `skipped`.
std::optional<Checkpoint> newest_checkpoint(const std::string& run_path, bool training,
                                            std::vector<SkippedCheckpoint>* skipped);
