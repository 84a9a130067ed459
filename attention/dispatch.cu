// Chooses the kernels that the settings of a run ask for; no other file does.
#include "attention/attention.h"
#include "attention/kernel_table.h"

namespace {

constexpr int KINDS = int(std::size(kind_names)), LARGEST_D = 512;

// Whether a row of T may see less than all keys before it, or something is added to its scores.
bool shaped(const AttentionSettings& s, int T) { return s.bias != Bias::none || s.keys_seen(T) < T; }

const KindKernels& kernels_for(const AttentionSettings& s, bool shaped = false) {
  float power = float(s.power);
  PowerClass power_class = s.kind != Kind::lssar || power == 15    ? PowerClass::usual
                           : power <= 32 && power == floorf(power) ? PowerClass::whole
                                                                   : PowerClass::any;
  if (int(s.kind) < KINDS && kernels_of(s.kind, power_class).saved >= 0) return kernels_of(s.kind, power_class, shaped);
  std::string built;
  for (int k = 0; k < KINDS; k++)
    if (kernels_of(Kind(k)).saved >= 0) built += (built.empty() ? "" : ", ") + std::string(kind_names[k]);
  const char* name = int(s.kind) < KINDS ? kind_names[int(s.kind)] : "?";
  user_error(
      "config: attention.kind = \"%s\" has no kernels in this build (attention/instances/general_%s.cu, left out by "
      "make "
      "ATTN=...); choose one of %s, or build with that file",
      name, name, built.c_str());
}

using Arrays = std::initializer_list<const void*>;

const Launchers<float>& launchers_for(const AttentionSetup& s, const AttentionShape& shape, TypeTag<float>, Arrays) {
  return kernels_for(s, shaped(s, shape.T)).general_float;
}

// On a GPU, picks the fastest kernels that support this case. (On the CPU layer those for tensor cores are slower than
// the general ones, and only tests ask for them.) Hopper's copy engine needs heads that begin at multiples of 16 bytes,
// rows that are whole heads apart, and arrays at multiples of 128 bytes (CUDA Programming Guide 4.11.2; the driver's
// own header asks for 16).
const Launchers<bf16>& launchers_for(const AttentionSetup& s, const AttentionShape& shape, TypeTag<bf16>,
                                     Arrays arrays) {
  const KindKernels& k = kernels_for(s, shaped(s, shape.T));
  int D = shape.D;
  bool tensor = D <= k.tensor_D, hopper = D <= k.hopper_D && D % 8 == 0 && s.qkv_stride % D == 0;
  for (const void* array : arrays) hopper = hopper && reinterpret_cast<size_t>(array) % 128 == 0;
  switch (s.kernels) {
    case Kernels::general:
      if (!k.general_bf16.forward) failure("attention: no general kernels for a window or a bias on a GPU");
      return k.general_bf16;
    case Kernels::tensor:
      if (!tensor) failure("attention: no tensor-core kernels for heads of %d channels in this build", D);
      return k.tensor_bf16;
    case Kernels::hopper:
      if (!hopper)
        failure("attention: no Hopper kernels for %s, heads of %d channels, %sor these addresses and strides",
                kind_names[int(s.kind)], D, shaped(s, shape.T) ? "a window or a bias, " : "");
      return k.hopper_bf16;
    case Kernels::automatic: break;
  }
  if (on_cpu) return k.general_bf16;
  if (hopper && device_properties().major == 9) return k.hopper_bf16;
  return tensor ? k.tensor_bf16 : k.general_bf16;
}

// T: of the rows. A window may hide all of a row's keys in the first tiles: there the largest score so far must be a
// number, so "no sink" is one whose weight vanishes beside the first score that is seen.
PolicySettings policy_settings(const AttentionSetup& s, int T, const float2* bias, ScoreGradientSums sums = {}) {
  if (s.bias != Bias::none && !bias) failure("attention: the settings have a bias, but no array of it was given");
  float no_sink = shaped(s, T) ? -0x1p100f : -INFINITY;
  return {.power = float(s.power),
          .exponent = std::max(float(s.power) - 1, 1e-30f),
          .offset = float(s.offset),
          .log_context = logf(float(s.context)),
          .offset_free_rows = s.offset_free_rows,
          .sink = s.sink == Sink::none ? no_sink : 0.0f,
          .window = s.window > 0 ? s.window : NO_WINDOW,
          .sink_tokens = s.sink_tokens,
          .bias = s.bias == Bias::none ? nullptr : bias,
          .per_unit = float(1 / score_unit(s.kind)),
          .threshold = float(s.threshold),
          .dz_by_query = sums.by_query,
          .dz_by_key = sums.by_key};
}

template <class T> const T* sink_of(const AttentionSettings& s, const AttentionLearned<T>& learned) {
  if (s.sink == Sink::learned && !learned.sink)
    failure("attention: the sink is learned, but no array of sinks was given");
  return s.sink == Sink::learned ? learned.sink : nullptr;
}

}  // namespace

KindKernels& kernels_of(Kind kind, PowerClass power, bool shaped) {
  static KindKernels table[KINDS][POWER_CLASSES][2];  // function-local: constructed before the first file registers
  return table[int(kind)][int(power)][shaped];
}

bool attention_is_built(Kind kind) { return kernels_of(kind).saved >= 0; }

void attention_check(const AttentionSettings& settings, int D, bool fp32, bool diagnoses, bool gpu) {
  if (D < 1 || D > LARGEST_D) user_error("config: model.head_dim = %d has no kernels; 1 to %d have", D, LARGEST_D);
  int most = kernels_for(settings, true).tensor_D;
  if (most == 0 && on_cpu)
    most = LARGEST_TENSOR_D;  // ./train for the CPU lacks them, and plans for a GPU that has them
  bool biased = settings.bias != Bias::none;
  if (!gpu || !(biased || settings.window > 0) || !(fp32 || D > most || diagnoses)) return;
  std::string mask =
      biased ? format("the bias \"%s\" (attention.bias, attention.layers)", bias_names[int(settings.bias)])
             : format("a window of %d keys (attention.window, attention.layers, eval.window)", settings.window);
  std::string use = fp32       ? "precision = \"fp32\"; use \"bf16\""
                    : D > most ? format("model.head_dim = %d; use up to %d", D, most)
                               : "diagnostics; run those with the CPU build";
  user_error("config: %s has no kernels on a GPU for %s, or no %s", mask.c_str(), use.c_str(),
             biased ? "bias" : "window");
}

int attention_statistics(const AttentionSettings& settings, int D) {
  const KindKernels& k = kernels_for(settings);
  return k.saved + k.vectors * D;
}

size_t attention_backward_workspace(const AttentionShape& s) {
  return size_t(ROW_VALUES_MOST + 2) * sizeof(float) * s.B * s.H * workspace_rows(s.T);
}

ScoreGradientSums score_gradient_sums(void* workspace, const AttentionShape& s) {
  float* by_query = static_cast<float*>(workspace) + size_t(ROW_VALUES_MOST) * s.B * s.H * workspace_rows(s.T);
  return {by_query, by_query + s.rows()};
}

template <class T>
void attention_forward(T* out, float* stats, const T* qkv, const AttentionSetup& settings, const AttentionShape& shape,
                       bool training, cudaStream_t stream, const AttentionLearned<T>& learned) {
  attention_check(settings, shape.D, std::is_same_v<T, float>);
  const Launchers<T>& launchers = launchers_for(settings, shape, TypeTag<T>(), {out, qkv});
  (training ? launchers.forward : launchers.evaluate)({out, training ? stats : nullptr, qkv, sink_of(settings, learned),
                                                       policy_settings(settings, shape.T, learned.bias), shape,
                                                       settings.qkv_stride, settings.spare_multiprocessors, stream});
}

template <class T>
void attention_backward(T* dqkv, const T* dout, const T* out, const float* stats, const T* qkv, void* workspace,
                        const AttentionSetup& settings, const AttentionShape& shape, cudaStream_t stream,
                        const AttentionLearned<T>& learned, const std::optional<Prepared>& prepared) {
  attention_check(settings, shape.D, std::is_same_v<T, float>);
  const Launchers<T>& launchers = launchers_for(settings, shape, TypeTag<T>(), {dqkv, dout, out, qkv, workspace});
  Preparation<T> preparation;
  // A whole tile's width of channels: then both channels that RoPE turns together belong to one thread. The gradient of
  // ssmax's scale is a sum over rows that prepare_backward() makes.
  if (prepared && launchers.undoes_preparation && (shape.D == 64 || shape.D == 128) && settings.scale != Scale::ssmax)
    preparation = {true, prepared->rope, prepared->norms, settings.qk_norm, row_scale<T>(settings, shape.D, nullptr)};
  launchers.backward({dqkv, dout, out, stats, qkv, static_cast<float*>(workspace), sink_of(settings, learned),
                      learned.dsink,
                      policy_settings(settings, shape.T, learned.bias, score_gradient_sums(workspace, shape)), shape,
                      settings.qkv_stride, settings.spare_multiprocessors, stream, preparation});
  if (prepared && !preparation.undo)
    prepare_backward(dqkv, qkv, prepared->norms, prepared->rope, settings, shape, stream, learned, workspace);
}

template <class T>
void attention_diagnose(float* figures, const float* stats, const T* qkv, const AttentionSetup& settings,
                        const AttentionShape& shape, cudaStream_t stream, const AttentionLearned<T>& learned) {
  AttentionSetup general = settings;
  general.kernels = Kernels::general;
  launchers_for(general, shape, TypeTag<T>(), {})
      .diagnose(
          {figures, stats, qkv, policy_settings(settings, shape.T, learned.bias), shape, settings.qkv_stride, stream});
}

#define INSTANTIATE(T)                                                                                           \
  template void attention_forward(T*, float*, const T*, const AttentionSetup&, const AttentionShape&, bool,      \
                                  cudaStream_t, const AttentionLearned<T>&);                                     \
  template void attention_backward(T*, const T*, const T*, const float*, const T*, void*, const AttentionSetup&, \
                                   const AttentionShape&, cudaStream_t, const AttentionLearned<T>&,              \
                                   const std::optional<Prepared>&);                                              \
  template void attention_diagnose(float*, const float*, const T*, const AttentionSetup&, const AttentionShape&, \
                                   cudaStream_t, const AttentionLearned<T>&);
INSTANTIATE(float)
INSTANTIATE(bf16)
