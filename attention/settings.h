// The settings of attention and its gate. Each enum is followed by its names, in the same order. The configuration's
// table, the kernels, tests and benchmarks all take them from here. Plain C++, for files that do not include CUDA.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

// From scores z to weights P. Each is a file, attention/kinds/NAME.cuh, and make lists them (KINDS_OF_THE_TREE); behind
// them are those of other files (make KINDS=...), numbered on.
enum class Kind { KINDS_OF_THE_TREE };
extern const std::span<const char* const> kind_names;  // of all
enum class RowWeights { softmax, sum, none };          // of a number f for each score: e^f / sum e^f, f / sum f, or f
inline constexpr const char* row_weights_names[] = {"softmax", "sum", "none"};
constexpr int MOST_PARAMETERS = 4;  // of a kind, fixed and learned
// A key attention.NAME that belongs to one kind.
struct ScoreKey {
  const char* name;
  double initial;
  const char *allowed, *help;  // as in settings/table.cpp
  bool whole = false;          // an integer
  const char* with = nullptr;  // it has an effect only with this other key of the kind, at another value than 0
};
struct LearnedNumber {  // one for each head
  const char* name;
  double initial;
};
// Where a score is: query i and key j, from 1; n, the keys that row i sees; head of heads, from 1.
template <class X> struct ScorePosition { X i, j, n, head, heads; };
struct Setting {  // as in --set
  const char *key, *value;
};
// What the program knows of a kind; kind.h says what each member means.
struct KindRow {
  const char *name, *path, *text;  // of a file of KINDS, which checkpoints carry; path and text nullptr: in the tree
  RowWeights weights;
  double unit;
  bool has_sink;
  std::span<const ScoreKey> parameters;
  std::span<const LearnedNumber> learned;
  std::span<const Setting> variant;
  const char *pytorch, *dense_rows;
  int first_parameter;  // in AttentionSettings::parameters; its learned numbers' initial values follow its parameters
  // to [MOST_PARAMETERS] = what its kernels read of both
  void (*numbers)(const double* parameters, float* to);
  // Of a formula (score.h), else nullptr: value of f and its slopes by z and by the learned numbers, in double; in
  // float, as a naive formula computes them. numbers: parameters, then the head's learned numbers.
  void (*exact)(double z, const ScorePosition<int>&, const double* numbers, double& value, double* slopes);
  void (*naive)(float z, const ScorePosition<int>&, const double* numbers, float& value, float* slopes);
  // Where AttentionSettings::parameters has this one; a Failure if the kind has none of this name.
  size_t parameter(const char* name) const;
  // Whether both kinds take one array of parameters, which are the same keys then.
  bool shares_keys(const KindRow& other) const {
    bool one_array = parameters.data() == other.parameters.data() && !parameters.empty();
    return std::string_view(name) == other.name || (one_array && learned.empty() && other.learned.empty());
  }
  size_t initial_of(size_t number) const { return size_t(first_parameter) + parameters.size() + number; }
  bool is_formula() const { return exact; }
  bool sums_to_1() const { return weights != RowWeights::none; }  // the weights of a row
};
std::span<const KindRow> kind_rows();
const KindRow& kind_row(Kind kind);
std::vector<double> default_parameters();  // those of all kinds, in their order, and learned numbers' initial values

enum class QkNorm { none, l2, rms };
inline constexpr const char* qk_norm_names[] = {"none", "l2", "rms"};
enum class Scale { rsqrt_d, logd_logn, logn, ssmax, number };
inline constexpr const char* scale_names[] = {"rsqrt_d", "logd_logn", "logn", "ssmax", "number"};
enum class Sink { none, one, learned };
inline constexpr const char* sink_names[] = {"none", "one", "learned"};
enum class Documents { joined, separate };
inline constexpr const char* documents_names[] = {"joined", "separate"};
enum class Bias { none, alibi, fox, cable, given };  // given: its steps are a tensor (pytorch/), which no key asks for
inline constexpr const char* bias_names[] = {"none", "alibi", "fox", "cable"};
enum class RopeScaling { none, linear, ntk, yarn };
inline constexpr const char* rope_scaling_names[] = {"none", "linear", "ntk", "yarn"};
enum class OutputOperation { none, silu, exclusive };
inline constexpr const char* output_operation_names[] = {"none", "silu", "exclusive"};
enum class GateActivation { none, sigmoid, softplus, silu, relu, tanh, two_sigmoid, half_sigmoid, identity, exp };
inline constexpr const char* gate_activation_names[] = {"none", "sigmoid",     "softplus",     "silu",     "relu",
                                                        "tanh", "two_sigmoid", "half_sigmoid", "identity", "exp"};
enum class GateGranularity { elementwise, headwise, shared };
inline constexpr const char* gate_granularity_names[] = {"elementwise", "headwise", "shared"};
enum class GateInput { x, none };
inline constexpr const char* gate_input_names[] = {"x", "none"};
enum class GateOp { multiply, add };
inline constexpr const char* gate_op_names[] = {"multiply", "add"};
enum class GatePosition { sdpa, value, key, query, output };
inline constexpr const char* gate_position_names[] = {"sdpa", "value", "key", "query", "output"};
enum class GateWeights { normal, zero };
inline constexpr const char* gate_weights_names[] = {"normal", "zero"};

struct GateSettings {
  GateActivation activation = GateActivation::none;  // none: there is no gate
  GateGranularity granularity = GateGranularity::elementwise;
  GateOp op = GateOp::multiply;
  GatePosition position = GatePosition::sdpa;
  GateInput input = GateInput::x;  // none: the logits are the bias alone
  GateWeights weight_init = GateWeights::normal;
  bool bias = true;
  double bias_init = 0;
  bool exists() const { return activation != GateActivation::none; }
};

struct AttentionSettings {
  Kind kind = Kind::softmax;
  QkNorm qk_norm = QkNorm::none;
  Scale scale = Scale::rsqrt_d;
  double scale_number = 1;                                // of Scale::number
  std::vector<double> parameters = default_parameters();  // of all kinds: KindRow::first_parameter
  Sink sink = Sink::none;                                 // KindRow::has_sink
  OutputOperation output = OutputOperation::none;         // of each head's output (output.cuh), then its norm
  QkNorm output_norm = QkNorm::none;
  int window = 0;  // a row sees its last `window` keys and the first `sink_tokens`; 0: all
  int sink_tokens = 0;
  Documents documents = Documents::joined;  // separate: a row sees keys of its own document alone
  Bias bias = Bias::none;
  bool prune = true;        // tiles of scores that the bias has made negligible are left out (prune.cuh)
  std::string family = "";  // of kernels, by its name (families.h); "": the fastest that was measured
  GateSettings gate = {};
  bool sums_to_1() const { return kind_row(kind).sums_to_1(); }
  double parameter(const char* name) const;  // of its kind; a Failure if that has none of this name
  bool changes_output() const { return output != OutputOperation::none || output_norm != QkNorm::none; }
  bool may_prune() const { return bias != Bias::none && kind == Kind::softmax; }  // the bound is that of its weights
  bool prunes() const { return prune && may_prune(); }
  int keys_seen(int rows) const { return window > 0 && rows - window > sink_tokens ? window + sink_tokens : rows; }
};
