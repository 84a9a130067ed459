// The settings of a run: read from JSON and --set, checked, completed.
// Defaults are the initialisers below; the table in table.cpp says what each key means and allows, and drives reading,
// --set, --print-config, the resolved JSON and --help. 0 or "" marked "auto" is filled in where the comment says. An
// error in a configuration is a user_error that names key, value, what is allowed, and file.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "attention/settings.h"
#include "data/tokenizer.h"

// Each followed by its names, as those of attention/settings.h; the name "": filled in.
enum class Precision { automatic, fp32, bf16 };  // automatic: bf16 on a GPU, fp32 on the CPU
inline constexpr const char* precision_names[] = {"", "fp32", "bf16"};
enum class InitMissing { make, refuse };
inline constexpr const char* init_missing_names[] = {"make", "refuse"};
enum class Position { rope, learned, none };
inline constexpr const char* position_names[] = {"rope", "learned", "none"};
enum class Norm { layernorm, rmsnorm };
inline constexpr const char* norm_names[] = {"layernorm", "rmsnorm"};
enum class Mlp { gelu, relu2, swiglu };
inline constexpr const char* mlp_names[] = {"gelu", "relu2", "swiglu"};
enum class ResidualInit { scaled, zero };
inline constexpr const char* residual_init_names[] = {"scaled", "zero"};
enum class Schedule { cosine, linear, wsd, constant };
inline constexpr const char* schedule_names[] = {"cosine", "linear", "wsd", "constant"};
enum class Matrices { adamw, muon };
inline constexpr const char* matrices_names[] = {"adamw", "muon"};
enum class MuonScale { spectral, rms };
inline constexpr const char* muon_scale_names[] = {"spectral", "rms"};
enum class LabelMean { batch, sequence };
inline constexpr const char* label_mean_names[] = {"batch", "sequence"};
enum class Recompute { none, gelu, block };
inline constexpr const char* recompute_names[] = {"none", "gelu", "block"};
enum class PasskeyForm { landmark, compact };
inline constexpr const char* passkey_form_names[] = {"landmark", "compact"};
enum class WindowStart { any, document };
inline constexpr const char* window_start_names[] = {"any", "document"};
enum class EvalMode { windows, suffix };
inline constexpr const char* eval_mode_names[] = {"windows", "suffix"};

// An entry of attention.layers: what it says of its layers.
struct LayerEntry {
  std::set<std::string> given;  // keys, the names of the members below
  Kind kind = Kind::softmax;
  Bias bias = Bias::none;
  int window = 0;  // 0: none
  Documents documents = Documents::joined;
  bool rotated = true, gated = true;
  bool says(const char* key) const { return given.contains(key); }
};

struct Config {
  std::string name;  // output goes to runs/NAME; auto: the file's name, without .json
  uint64_t seed = 1337;
  std::string init;  // folder with model.safetensors to start from; "" = fresh
  InitMissing init_missing = InitMissing::make;
  Precision precision = Precision::automatic;
  int threads = 0;  // CPU only; 0 = auto: cores / ranks

  struct Model {
    int layers = 12;
    int heads = 12;
    int kv_heads = 0;  // auto: heads (never 0 after loading)
    int channels = 768;
    int head_dim = 0;  // auto: channels / heads (never 0 after loading)
    int context = 1024;
    int vocab = 50257;
    Mlp mlp = Mlp::gelu;
    double mlp_ratio = 4.0;  // with swiglu, if it is not given: of 8/3 channels, rounded up to a multiple of 64
    Position position = Position::rope;
    double rope_base = 10000;
    double rope_fraction = 1;  // p-RoPE
    Norm norm = Norm::layernorm;
    bool bias = true;
    bool tied = true;
    double init_std = 0.02;
    ResidualInit residual_init = ResidualInit::scaled;
    double logit_cap = 0;  // 0 = none
    struct Head {
      int outputs = 0;  // K; 0 = the output layer of a language model
    } head;
    int kv_width() const { return kv_heads * head_dim; }                 // of keys, and of values
    int qkv_width() const { return heads * head_dim + 2 * kv_width(); }  // what one token's product makes of them
    int mlp_width() const { return int(std::lround(mlp_ratio * channels)); }
    int mlp_columns() const { return mlp_width() * (mlp == Mlp::swiglu ? 2 : 1); }  // of its first product
  } model;

  std::string variant = "softmax";  // attention.variant: sets the attention keys that are not given themselves
  AttentionSettings attention;
  std::string kind_file;           // "NAME HASH,..." of the layers' kinds that are files (attention/score.h)
  std::vector<LayerEntry> layers;  // attention.layers: repeated over the layers; empty: all as the other keys say
  // At this length: beyond the trained one eval.window takes the place of attention.window.
  bool has_eval_window(int length) const { return length > model.context && eval.key_window > 0; }
  AttentionSettings attention_at(int length) const {
    AttentionSettings a = attention;
    if (has_eval_window(length)) a.window = eval.key_window, a.sink_tokens = eval.sink_tokens;
    return a;
  }
  struct Layer {
    AttentionSettings attention;
    bool rotated;
    LayerEntry own;  // of `layers`
  };
  Layer layer(int l, int length = 0) const;  // what `layers` makes of that in layer l
  template <class F> bool some_layer(F holds) const {
    for (int l = 0; l < model.layers && (l == 0 || l < int(layers.size())); l++)  // then they repeat
      if (holds(layer(l))) return true;
    return false;
  }

  struct Data {
    std::vector<std::string> train = {"data/shards/fineweb10B/fineweb_train_*.bin"};  // globs or files
    std::vector<std::string> val = {"data/shards/fineweb10B/fineweb_val_*.bin"};
    std::vector<std::string> labels, val_labels;  // none: the next tokens
    bool shuffle = true;
    int separator = -1;  // the token between documents; -1: found by find_separator(), and set if they are separate
  } data;

  struct Batch {
    int64_t tokens = 524288;  // per optimizer step, over all ranks
    int micro = 0;            // sequences; 0 = auto: resolve_batch()
  } batch;

  struct Optimizer {
    double lr = 6e-4;
    double beta1 = 0.9;
    double beta2 = 0.95;
    double eps = 1e-8;
    double weight_decay = 0.1;
    double grad_clip = 1.0;  // 0 = off
    Schedule schedule = Schedule::cosine;
    int64_t schedule_start = 0;
    int64_t warmup_steps = 700;
    double final_lr_fraction = 0;
    double decay_fraction = 0.2;
    double skip_spikes = 0;  // 0 = off
    Matrices matrices = Matrices::adamw;
    struct Muon {
      double lr = 0.02;
      double momentum = 0.95;
      double weight_decay = 0;
      MuonScale scale = MuonScale::spectral;
    } muon;
  } optimizer;

  struct Train {
    LabelMean label_mean = LabelMean::batch;
    int64_t steps = 18865;  // after loading always the number of steps, also where `tokens` was given
    int64_t tokens = 0;
    Recompute recompute = Recompute::none;
    int zero_stage = 1;  // 0 | 1
  } train;

  struct Eval {
    int64_t every = 250;  // 0 = never
    int64_t tokens = 10485760;
    EvalMode mode = EvalMode::windows;
    WindowStart start = WindowStart::any;
    std::vector<int> lengths;  // auto: [context] (never empty after loading)
    int batch = 0;             // sequences; 0 = auto: eval_batch()
    RopeScaling rope_scaling = RopeScaling::none;
    int key_window = 0;  // eval.window; 0: attention.window
    int sink_tokens = 0;
    // At each of `lengths`, the model sees the last `length` tokens of windows of this many, and the last
    // targets(length) of their targets count.
    int window(int length) const {
      return mode == EvalMode::suffix ? *std::max_element(lengths.begin(), lengths.end()) : length;
    }
    int targets(int length) const {
      return mode == EvalMode::suffix ? std::min(1024, *std::min_element(lengths.begin(), lengths.end())) : length;
    }
  } eval;

  struct Checkpoint {
    int64_t every = 5000;  // 0 = only at_end
    double minutes = 30;   // 0 = by steps alone
    int keep = 2;
    bool at_end = true;
  } checkpoint;

  struct Generate {
    int64_t every = 0;
    int tokens = 64;
    std::string prompt;
    double temperature = 1.0;
    int top_k = 0;
    TokenizerKind tokenizer = TokenizerKind::gpt2;
    std::string tokenizer_dir;
    std::string stop;  // "" = none
  } generate;

  struct Passkey {
    PasskeyForm form = PasskeyForm::landmark;
    int trials = 20;
    int depths = 11;
    std::string examples;  // "" = none
  } passkey;

  struct Task {
    int64_t every = 0;               // 0 = never
    std::vector<std::string> names;  // of files in dir, without .bin
    std::string dir = "data/tasks";
    int64_t limit = 0;    // 0 = all
    int max_length = 0;   // 0 = context
    std::string samples;  // "" = none
  } task;

  struct Diagnostics {
    int64_t every = 0;  // 0 = never
    int64_t tokens = 65536;
    WindowStart start = WindowStart::any;
  } diagnostics;

  struct Plan {
    std::string memory;  // "80GiB" of another GPU; "" = this device's
    int ranks = 0;       // 0: as many as were started
    double tflops = 0;   // a second, of each rank; 0: unknown
    bool plans_other_gpu() const { return !memory.empty(); }
  } plan;

  struct Log {
    int64_t every = 1;
    int64_t groups_every = 0;  // 0 = never
  } log;

  // Not settings: where the settings came from.
  std::string file;                            // as the user named it
  std::map<std::string, std::string> origins;  // by key: "configs/x.json", "variant lssar", "--set", "channels / heads"
  std::vector<std::string> warnings;           // complete sentences, to be printed once
  bool trains = true;                          // false: the settings of an evaluation, or of a checkpoint
  bool diagnoses = false;                      // diagnostics will be asked for, by --diagnostics or diagnostics.every
};

// Reads the file, then the --set texts ("key=value") over it, checks everything and fills in what is derived. null: as
// if the key was not given. Mistakes are reported together.
// trains: also check eval.lengths if they are used, and warn of settings of samples and evaluations without effect.
Config load_config(const std::string& path, const std::vector<std::string>& sets = {}, bool trains = true);
// The same with the file's content at hand; `file` is its name in error texts.
Config parse_config(std::string_view text, const std::string& file, const std::vector<std::string>& sets = {},
                    bool trains = true);
Config config_from_json(const nlohmann::json& root, const std::string& file, const std::vector<std::string>& sets = {},
                        bool trains = true);

inline constexpr int MOST_MICRO = 64;  // sequences, where batch.micro is chosen
// Chooses or checks batch.micro, which depends on the ranks and on the memory. `fits`: the largest that the memory plan
// allows. If it is auto, it becomes the largest one <= min(fits, MOST_MICRO) for which batch.tokens is a multiple of
// micro x context x ranks; a given value is only checked to divide.
void resolve_batch(Config& config, int ranks, int64_t fits);
int64_t micro_steps(const Config& config, int ranks);  // per optimizer step; needs batch.micro > 0

// Evaluation lengths, from eval.lengths or --lengths: `what` is the key or the flag, for the error text.
std::vector<int> parse_lengths(const std::string& text, const char* what);  // "1024,2048" -> {1024, 2048}
// Checks that they lie within the learned positions, and that eval.tokens holds a window of each. parse_config calls it
// for eval.lengths.
void check_lengths(const Config& config, const std::vector<int>& lengths, const char* what);
// The most sequences of a length that one pass takes; 0 if a single one is too many for the kernels' 32-bit counts.
int most_sequences(const Config& config, int length);
int eval_batch(const Config& config, int length);  // sequences: eval.batch, else max(1, micro x context / length)

// The source that an error about these keys names: "--set" where one of them was given there, else the file.
std::string source_of(const Config& config, const std::vector<const char*>& keys);

struct ChangedSetting {
  std::string key, was, is;  // values as JSON
  bool may_change;           // in a continued run
};
std::vector<ChangedSetting> changed_settings(const Config& before, const Config& now);  // all, in the table's order
// Settings of model and attention that change what the same weights compute.
std::vector<ChangedSetting> changed_model(const Config& before, const Config& now);

// "lssar attention with power = 3": the variant, or the kind where that is another one, and what was set besides, with
// model.position.
std::string attention_text(const Config& config);

std::string print_config(const Config& config);  // one line per key: value and origin
// The resolved settings as JSON that loads back to the same Config; with `sections` ("model") only those.
nlohmann::ordered_json config_json(const Config& config, const std::vector<std::string>& sections = {});
std::string config_text(const Config& config);  // the same, indented: config.json of a run
std::string config_help();                      // keys with type, default, allowed values and meaning; variants

// `; did you mean "x"?` with the candidate nearest to `word` by edits; "" when none is near. For flags and keys alike.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& candidates);
