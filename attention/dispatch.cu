// Chooses the kernels that the settings of a run ask for; no other file does.
#include "attention/attention.h"

#include <algorithm>

#include "attention/families.h"
#include "attention/family.h"
#include "base/text.h"
#include "kernels/linear_bias.cuh"
#include "kernels/reduce.cuh"

namespace {

int kinds() { return int(kind_names.size()); }

void check_built(Kind kind) {
  if (int(kind) < kinds() && attention_is_built(kind)) return;
  std::string built;
  for (int k = 0; k < kinds(); k++)
    if (attention_is_built(Kind(k))) built += (built.empty() ? "" : ", ") + std::string(kind_names[k]);
  user_error(
      "config: attention.kind = \"%s\" has no kernels in this build, left out by make ATTN=...; choose one of %s, or "
      "build with it",
      int(kind) < kinds() ? kind_names[int(kind)] : "?", built.c_str());
}

// The family that is asked for by name, or "".
template <class T> std::string asked_family(const AttentionCall<T>& call) {
  return call.family ? call.family : call.settings.family;
}

template <class T> const Family<T>* built_family(Kind kind, const std::string& name) {
  const std::vector<Family<T>>& families = families_of<T>(kind);
  auto found = std::ranges::find_if(families, [&](const Family<T>& family) { return family.name == name; });
  return found == families.end() ? nullptr : &*found;
}

template <class T> FamilyQuery query(const AttentionCall<T>& call, const Family<T>& family, Addresses tensors) {
  const AttentionShape& s = call.shape;
  static const cudaDeviceProp none{};
  const cudaDeviceProp& device = on_cpu ? none : device_properties();
  bool aligned = reinterpret_cast<size_t>(call.bias) % 16 == 0;
  for (const void* tensor : tensors) aligned = aligned && reinterpret_cast<size_t>(tensor) % 128 == 0;
  return {sizeof(T) == 4,
          s.B * s.H,
          s.T,
          s.D,
          call.row_stride(),
          call.settings.bias != Bias::none,
          call.separate(),
          call.hides_or_adds(),
          aligned,
          family.widest,
          family.widest_masked,
          on_cpu,
          device.major,
          device.multiProcessorCount,
          device.l2CacheSize,
          !family.has_instructions || family.has_instructions()};
}

template <class T> const Family<T>& family_for(const AttentionCall<T>& call, Addresses tensors) {
  if (const Family<T>* found = find_family(call, tensors)) return *found;
  std::string name = asked_family(call);
  failure("attention: no %s kernels for %s, heads of %d channels%s, or these addresses and strides",
          name.empty() ? "suitable" : name.c_str(), kind_names[int(call.settings.kind)], call.shape.D,
          call.hides_or_adds() ? ", a window, a bias or separate documents" : "");
}

bool is_built(const char* family) {
  for (int k = 0; k < kinds(); k++)
    if (built_family<bf16>(Kind(k), family) || built_family<float>(Kind(k), family)) return true;
  return false;
}

// Why this build cannot run the family for such a call on this device, or on a GPU for which a CPU plans; "" if it can.
template <class T> std::string family_problem(const FamilyRow& row, const AttentionCall<T>& call, bool gpu) {
  Kind kind = call.settings.kind;
  const Family<T>* family = built_family<T>(kind, row.name);
  FamilyQuery q = query(call, family ? *family : Family<T>(), {});
  bool elsewhere = gpu && on_cpu;
  if (elsewhere) q.on_cpu = false, q.major = 9, q.widest = q.widest_masked = LARGEST_TENSOR_D;
  else if (!is_built(row.name)) return "is not in this build: it is for " + std::string(row.devices);
  if (!q.on_cpu && !row.suits(q)) return "is for " + std::string(row.devices);
  std::string lacks = row.lacks(q);
  if (lacks.empty() && !family && !elsewhere) lacks = format("attention.kind = \"%s\"", kind_names[int(kind)]);
  return lacks.empty() ? "" : "lacks kernels for " + lacks;
}

template <class T> void check_family(const AttentionCall<T>& call, bool gpu) {
  const std::string& name = call.settings.family;
  const std::vector<FamilyRow>& rows = family_rows();
  auto row = std::ranges::find_if(rows, [&](const FamilyRow& row) { return row.name == name; });
  std::string problem = row == rows.end() ? "is unknown" : family_problem(*row, call, gpu), others;
  if (problem.empty()) return;
  for (const FamilyRow& other : rows)
    if (family_problem(other, call, gpu).empty()) append_item(others, other.name);
  user_error("config: attention.family = \"%s\" %s; leave it out (--set attention.family=null) or use %s", name.c_str(),
             problem.c_str(), others.c_str());
}

template <class T> const T* sink_of(const AttentionCall<T>& call) {
  if (call.settings.sink != Sink::learned) return nullptr;
  if (!call.sink) failure("attention: the sink is learned, but no array of sinks was given");
  return call.sink;
}

}  // namespace

// A mask may hide all of a row's keys in the first tiles: there the largest score so far must be a number, so "no
// sink" is one whose weight vanishes beside the first score that is seen.
template <class T> KernelSettings kernel_settings(const AttentionCall<T>& call) {
  const AttentionSettings& s = call.settings;
  if (s.bias != Bias::none && !call.bias) failure("attention: the settings have a bias, but no array of it was given");
  if (call.separate() && !call.documents) failure("attention: documents are separate, but no array of them was given");
  float no_sink = call.hides_or_adds() ? -0x1p100f : -INFINITY;
  KernelSettings settings = {.log_context = logf(float(call.context)),
                             .sink = s.sink == Sink::none ? no_sink : 0.0f,
                             .window = s.window > 0 ? s.window : NO_WINDOW,
                             .sink_tokens = s.sink_tokens,
                             .bias = s.bias == Bias::none ? nullptr : call.bias,
                             .prunes = call.prunes(),
                             .heads = float(call.shape.H)};
  const KindRow& kind = kind_row(s.kind);
  kind.numbers(s.parameters.data() + kind.first_parameter, settings.numbers);
  std::ranges::copy(call.learned, settings.learned);
  settings.learned_in_bf16 = std::is_same_v<T, bf16>;
  settings.documents = call.separate_documents();
  return settings;
}

template <class T> std::vector<Family<T>>& families_of(Kind kind) {
  static std::vector<std::vector<Family<T>>> families(
      kinds());  // function-local: there before the first file adds to it
  return families[int(kind)];
}

template <class T> bool add_family(Kind kind, const Family<T>& family) {
  families_of<T>(kind).push_back(family);
  return true;
}

template <class T>
const Family<T>* find_family(const AttentionCall<T>& call, Addresses tensors, std::string* unmeasured) {
  std::string name = asked_family(call);
  for (const FamilyRow& row : family_rows()) {
    const Family<T>* family = built_family<T>(call.settings.kind, row.name);
    if (!family || (!name.empty() && name != row.name)) continue;
    FamilyQuery q = query(call, *family, tensors);
    bool fast = row.suits(q) && (!row.pays || row.pays(q)), runs = name.empty() ? fast : on_cpu || row.suits(q);
    if (!runs || !row.lacks(q).empty()) continue;
    if (!name.empty() || row.measured_on) return family;
    if (unmeasured) append_item(*unmeasured, row.name);
  }
  return nullptr;
}

bool attention_is_built(Kind kind) { return !families_of<float>(kind).empty(); }

void attention_check(const AttentionSettings& settings, int D, bool fp32, bool diagnoses, bool gpu) {
  if (D < 1 || D > LARGEST_D) user_error("config: model.head_dim = %d has no kernels; 1 to %d have", D, LARGEST_D);
  check_built(settings.kind);
  AttentionShape any{1, NO_WINDOW, 1, D};
  if (!settings.family.empty() && fp32) check_family<float>({.settings = settings, .shape = any}, gpu);
  else if (!settings.family.empty()) check_family<bf16>({.settings = settings, .shape = any}, gpu);
  bool biased = settings.bias != Bias::none;
  bool separate = settings.documents == Documents::separate;
  if (!gpu || !(biased || separate || settings.window > 0)) return;
  auto runs = [&](int D) {
    if (on_cpu) return D <= LARGEST_TENSOR_D;  // which lacks these kernels, and plans for a GPU that has them
    return find_family<bf16>({.settings = settings, .shape = {1, NO_WINDOW, 1, D}}, {}) != nullptr;
  };
  if (runs(D) && !fp32 && !diagnoses) return;
  int most = D;
  while (most > 0 && !runs(most)) most--;
  std::string mask =
      settings.bias == Bias::given ? std::string("a decay")
      : biased   ? format("the bias \"%s\" (attention.bias, attention.layers)", bias_names[int(settings.bias)])
      : separate ? std::string("separate documents (attention.documents)")
                 : format("a window of %d keys (attention.window, attention.layers, eval.window)", settings.window);
  std::string use = fp32       ? "precision = \"fp32\"; use \"bf16\""
                    : most < D ? format("model.head_dim = %d; use up to %d", D, most)
                               : "diagnostics; run those with the CPU build";
  const char* without = biased ? "bias" : separate ? "separate documents" : "window";
  user_error("config: %s has no kernels on a GPU for %s, or no %s", mask.c_str(), use.c_str(), without);
}

int attention_statistics(const AttentionSettings& settings, int D) {
  check_built(settings.kind);
  int most = 0;
  for (const Family<float>& f : families_of<float>(settings.kind)) most = std::max(most, f.saved + f.vectors * D);
  for (const Family<bf16>& f : families_of<bf16>(settings.kind)) most = std::max(most, f.saved + f.vectors * D);
  return most;
}

static size_t workspace_of_rows(const AttentionShape& s) {
  return size_t(ROW_VALUES_MOST + 2) * s.B * s.H * workspace_rows(s.T);  // floats
}
static size_t column_sums_size(const AttentionShape& s) { return size_t(column_sums_count(s)) * 3 * s.H * s.D; }
template <class T> std::string attention_family(const AttentionCall<T>& call) {
  std::string unmeasured, name = family_for<T>(call, {}).name;
  find_family(call, {}, &unmeasured);
  return unmeasured.empty() ? name
                            : format("%s (%s has not been measured: attention.family=%s runs it)", name.c_str(),
                                     unmeasured.c_str(), unmeasured.c_str());
}

template <class T> size_t attention_backward_workspace(const AttentionCall<T>& call) {
  auto more = family_for<T>(call, {}).backward_workspace;
  size_t floats = workspace_of_rows(call.shape) + column_sums_size(call.shape);
  return floats * sizeof(float) + (more ? more(call.shape) : 0);
}

BackwardWorkspace backward_workspace(void* workspace, const AttentionSettings& settings, const AttentionShape& s) {
  float* row_values = static_cast<float*>(workspace);
  float* dz_by_query = row_values + size_t(ROW_VALUES_MOST) * s.B * s.H * workspace_rows(s.T);
  float* learned_sums = dz_by_query - kind_row(settings.kind).learned.size() * s.rows();
  float* column_sums = row_values + workspace_of_rows(s);
  return {
      row_values, learned_sums, dz_by_query, dz_by_query + s.rows(), column_sums, column_sums + column_sums_size(s)};
}

template <class T>
void attention_forward(T* out, float* stats, const T* qkv, const AttentionCall<T>& call, bool training) {
  attention_check(call.settings, call.shape.D, std::is_same_v<T, float>);
  const Family<T>& family = family_for(call, {out, qkv});
  (training ? family.forward
            : family.evaluate)({out, training ? stats : nullptr, qkv, sink_of(call), kernel_settings(call), call});
}

template <class T>
void attention_backward(T* dqkv, const T* dout, const T* out, const float* stats, const T* qkv, void* workspace,
                        const AttentionCall<T>& call, bool undo_preparation) {
  const AttentionSettings& s = call.settings;
  int D = call.shape.D;
  attention_check(s, D, std::is_same_v<T, float>);
  const Family<T>& family = family_for(call, {dqkv, dout, out, qkv, workspace});
  Preparation<T> preparation;
  // A whole tile's width of channels: then both channels that RoPE turns together belong to one thread. The gradient of
  // ssmax's scale is a sum over rows that prepare_backward() makes.
  bool finishes = family.finishes_gradients && (D == 64 || D == 128) && s.scale != Scale::ssmax;
  bool sums_columns = finishes && call.dqkv_sums;
  if (finishes && undo_preparation) preparation = {true, call.rope, call.norms, s.qk_norm, row_scale(call)};
  BackwardWorkspace parts = backward_workspace(workspace, s, call.shape);
  family.backward(
      {dqkv, dout, out, stats, qkv, parts, sink_of(call), preparation, sums_columns, kernel_settings(call), call});
  for (size_t l = 0; l < kind_row(s.kind).learned.size(); l++)
    if (call.dlearned[l]) add_sums_of_heads<T>(call.dlearned[l], parts.learned_sums + l * call.shape.rows(), call);
  if (undo_preparation && !preparation.undo) prepare_backward(dqkv, qkv, call, workspace);
  int columns = 3 * call.shape.H * D, rows = call.shape.B * call.shape.T;
  if (sums_columns)
    add_column_sums({{call.dqkv_sums}, 1}, columns, parts.column_sums, column_sums_count(call.shape), call.stream);
  else if (call.dqkv_sums)
    linear_bias_backward(call.dqkv_sums, dqkv, parts.column_sums, rows, columns, call.row_stride(), call.stream);
}

template <class T>
void attention_diagnose(float* statistics, const float* stats, const T* qkv, const AttentionCall<T>& call) {
  AttentionCall<T> by_name = call;
  by_name.family = "general";
  KernelSettings settings = kernel_settings(call);
  settings.prunes = false;  // statistics are of all keys
  if (const Family<T>* general = find_family(by_name, {qkv}))
    return general->diagnose(statistics, stats, qkv, call, settings);
  failure("attention: no kernels for diagnostics with a window or a bias on a GPU");
}

#define INSTANTIATE(T)                                                                                             \
  template std::vector<Family<T>>& families_of(Kind);                                                              \
  template bool add_family(Kind, const Family<T>&);                                                                \
  template KernelSettings kernel_settings(const AttentionCall<T>&);                                                \
  template const Family<T>* find_family(const AttentionCall<T>&, Addresses, std::string*);                         \
  template std::string attention_family(const AttentionCall<T>&);                                                  \
  template size_t attention_backward_workspace(const AttentionCall<T>&);                                           \
  template void attention_forward(T*, float*, const T*, const AttentionCall<T>&, bool);                            \
  template void attention_backward(T*, const T*, const T*, const float*, const T*, void*, const AttentionCall<T>&, \
                                   bool);                                                                          \
  template void attention_diagnose(float*, const float*, const T*, const AttentionCall<T>&);
INSTANTIATE(float)
INSTANTIATE(bf16)
