// The attention kernels as a C library, which plusgpt_attention.py loads. It knows nothing of PyTorch: tensors are
// addresses, settings are text, and a call returns nullptr or a line that says what is wrong. Nothing is allocated on a
// device, and no call waits for one, so calls on a GPU can be captured in a graph. Read operator.h, then forward().
#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <type_traits>

#include "attention/attention.h"
#include "attention/output.cuh"
#include "attention/position_bias.cuh"
#include "attention/prepare.cuh"
#include "attention/prune.cuh"
#include "base/text.h"
#include "kernels/elementwise.cuh"
#include "pytorch/caller.h"
#include "pytorch/operator.h"
#include "settings/config.h"

namespace {

// Settings as the trainer reads them; made once for each text, and kept.
struct Parsed {
  Config config;
  AttentionSettings attention;
};

Parsed parse(const PlusgptCall& p) {
  std::istringstream lines(p.settings);
  int context = 0, learned = 0;
  bool has_decay = false, has_sink = false, has_ssmax_scale = false;
  lines >> context >> has_decay >> has_sink >> has_ssmax_scale >> learned >> std::ws;
  std::vector<std::string> sets = {format("model.heads=%d", p.H),
                                   format("model.head_dim=%d", p.D),
                                   "model.channels=8",
                                   "model.position=none",
                                   format("model.context=%d", context),
                                   "batch.micro=1",
                                   format("batch.tokens=%d", context)};
  for (std::string line; std::getline(lines, line);) sets.push_back("attention." + line);
  Parsed parsed{parse_config("{}", "", sets, false), {}};
  for (const std::string& text : parsed.config.warnings) warn("%s", text.c_str());
  AttentionSettings& a = parsed.attention = parsed.config.layer(0, context).attention;
  if (a.gate.exists() || !parsed.config.layers.empty())
    user_error(
        "attention.gate and attention.layers belong to a model: compute the gate in PyTorch, and call each layer "
        "with its own keys");
  if (bias_is_learned(a.bias))
    user_error("attention.bias = \"%s\" is computed from a model's logits g: pass decay=%s", bias_names[int(a.bias)],
               a.bias == Bias::fox ? "F.logsigmoid(g)" : "-F.softplus(g)");
  if (has_decay && a.bias != Bias::none)
    user_error("attention.bias = \"%s\" and decay= both add to scores: leave one out", bias_names[int(a.bias)]);
  if ((a.sink == Sink::learned) != has_sink)
    user_error("attention.sink = \"%s\": a learned sink is a tensor, sink=[H]", sink_names[int(a.sink)]);
  if ((a.scale == Scale::ssmax) != has_ssmax_scale)
    user_error("attention.scale = \"%s\": pass ssmax_scale=[H] with scale=\"ssmax\", and only then",
               scale_names[int(a.scale)]);
  const KindRow& kind = kind_row(a.kind);
  if (learned && size_t(learned) != kind.learned.size()) {
    std::string names;
    for (const LearnedNumber& number : kind.learned) append_item(names, number.name);
    user_error("learned has %d tensors, but the kind %s learns %s", learned, kind.name,
               names.empty() ? "no numbers: leave it out" : names.c_str());
  }
  if (has_decay) a.bias = Bias::given;
  attention_check(a, p.D, !p.bf16);
  return parsed;
}

// By the text of a call. A run that changes a number in each step would keep one for each.
std::shared_ptr<const Parsed> parsed_of(const PlusgptCall& p) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const Parsed>> all;
  std::string key = format("%d %d %d ", p.H, p.D, p.bf16) + p.settings;
  std::lock_guard lock(mutex);
  if (auto found = all.find(key); found != all.end()) return found->second;
  if (all.size() >= 256) all.clear();
  return all.emplace(key, std::make_shared<const Parsed>(parse(p))).first->second;
}

// A call with its settings, and what is where in `saved` and in the workspace.
template <class T> struct Layer {
  std::shared_ptr<const Parsed> parsed;
  AttentionSettings settings;  // a copy, to change
  AttentionCall<T> call;
  bool has_norms = settings.qk_norm != QkNorm::none, changes_output = settings.changes_output();
  int statistics;  // floats of a row
  float* stats;
  float *bias, *along;  // along: of output_backward()
  char* sums;           // the workspace of the backward pass

  explicit Layer(const PlusgptCall& p)
      : parsed(parsed_of(p)),
        settings(parsed->attention),
        call{.settings = settings,
             .shape = {p.B, p.T, p.H, p.D},
             .context = parsed->config.model.context,
             .stream = static_cast<cudaStream_t>(p.stream)},
        statistics(p.training ? attention_statistics(settings, p.D) : 0) {
    if (!p.prunes) settings.prune = false;
    size_t rows = call.shape.rows();
    stats = p.saved;
    call.norms = has_norms ? p.saved + rows * statistics : nullptr;
    bias = static_cast<float*>(p.workspace);
    along = reinterpret_cast<float*>(static_cast<char*>(p.workspace) + bias_bytes());
    sums = reinterpret_cast<char*>(along) + along_bytes();
    call.bias = settings.bias == Bias::none ? nullptr : bias;
    call.documents = p.documents;
    call.sink = static_cast<const T*>(p.sink), call.dsink = p.dsink;
    call.ssmax_scale = static_cast<const T*>(p.ssmax_scale), call.dssmax_scale = p.dssmax_scale;
    for (int n = 0; n < MOST_PARAMETERS; n++)
      call.learned[n] = static_cast<const T*>(p.learned[n]), call.dlearned[n] = p.dlearned[n];
  }
  Layer(const Layer&) = delete;  // call refers to settings
  int64_t row_floats() const { return statistics + 2 * has_norms; }
  static size_t aligned(size_t floats) { return (floats * sizeof(float) + 255) / 256 * 256; }
  size_t bias_bytes() const { return settings.bias == Bias::none ? 0 : aligned(bias_floats(call.shape)); }
  size_t along_bytes() const { return changes_output ? aligned(call.shape.rows()) : 0; }
  // The bias is made again in the backward pass: it costs less than to keep it. A decay is float, whatever T is.
  void make_bias(const PlusgptCall& p) const {
    AttentionCall<float> in_float{
        .settings = settings, .shape = call.shape, .stream = call.stream, .documents = call.documents};
    position_bias_forward<float>(bias, {p.decay, p.H}, in_float);
    find_needed_tiles(bias, nullptr, static_cast<const T*>(p.qkv), call);
  }
};

// A row (b, t, part, head) of D elements by one lane on the CPU, by 8 on a GPU.
constexpr int LANES = on_cpu ? 1 : 8, THREADS = 128;

template <int W, class T>
__global__ void pack_kernel(T* qkv, PlusgptHeads q, PlusgptHeads k, PlusgptHeads v, AttentionShape s, int each) {
  size_t row = (blockIdx.x * size_t(blockDim.x) + threadIdx.x) / LANES;
  if (row >= 3 * size_t(s.B) * s.T * s.H) return;
  int h = int(row % s.H), part = int(row / s.H % 3);
  size_t n = row / s.H / 3;
  PlusgptHeads from = part == 0 ? q : part == 1 ? k : v;
  const T* x = static_cast<const T*>(from.x) + int64_t(n / s.T) * from.b + int64_t(n % s.T) * from.t +
               (part == 0 ? h : h / each) * from.h;
  for (int d = int(threadIdx.x) % LANES * W; d < s.D; d += LANES * W) {
    if constexpr (W == 1) qkv[row * s.D + d] = x[d];
    else store16(qkv + row * s.D + d, load16(x + d));
  }
}

// qkv [B, T, 3, H, D] = q, k and v; a head of k and v is that of H / kv_heads heads.
template <class T> void pack(const PlusgptCall& p, const AttentionCall<T>& call) {
  constexpr int W = Pack<T>::size;
  bool wide = p.D % W == 0 && aligned16(p.qkv, p.q.x, p.k.x, p.v.x);
  for (const PlusgptHeads* part : {&p.q, &p.k, &p.v})
    wide = wide && part->b % W == 0 && part->t % W == 0 && part->h % W == 0;
  T* qkv = static_cast<T*>(p.qkv);
  dim3 grid(blocks_for(3 * size_t(p.B) * p.T * p.H * LANES, THREADS));
  int each = p.H / p.kv_heads;
  if (wide) LAUNCH((pack_kernel<W, T>), grid, dim3(THREADS), 0, call.stream, qkv, p.q, p.k, p.v, call.shape, each);
  else LAUNCH((pack_kernel<1, T>), grid, dim3(THREADS), 0, call.stream, qkv, p.q, p.k, p.v, call.shape, each);
}

template <class T> void forward(const PlusgptCall& p) {
  Layer<T> layer(p);
  T *qkv = static_cast<T*>(p.qkv), *out = static_cast<T*>(p.out);
  pack(p, layer.call);
  prepare_forward(qkv, layer.call);
  layer.make_bias(p);
  attention_forward(out, layer.stats, qkv, layer.call, p.training);
  if (layer.changes_output) output_forward(static_cast<T*>(p.y), out, qkv, layer.call);
}

template <class T> void backward(const PlusgptCall& p) {
  Layer<T> layer(p);
  const T *qkv = static_cast<const T*>(p.qkv), *out = static_cast<const T*>(p.out);
  T *dout = static_cast<T*>(p.dout), *dqkv = static_cast<T*>(p.dqkv);
  layer.make_bias(p);
  if (layer.changes_output) output_backward(dout, layer.along, out, qkv, layer.call);
  attention_backward<T>(dqkv, dout, out, layer.stats, qkv, layer.sums, layer.call, true);
  output_backward_values(dqkv, dout, layer.along, out, qkv, layer.call);
  if (!p.ddecay) return;
  AttentionCall<float> in_float{
      .settings = layer.settings, .shape = layer.call.shape, .stream = layer.call.stream, .documents = p.documents};
  position_bias_backward<float>({p.ddecay, p.H}, p.H, {p.decay, p.H}, layer.sums, in_float);
}

template <class T> void sizes(const PlusgptCall& p, PlusgptSizes& to) {
  Layer<T> layer(p);
  if (int most = most_sequences(layer.parsed->config, p.T); p.B > most)
    user_error("q has B = %d sequences of T = %d: at most %d can be computed at once", p.B, p.T, most);
  size_t backward =
      std::max(attention_backward_workspace(layer.call), prepare_backward_workspace(layer.settings, layer.call.shape));
  to = {layer.row_floats(), int64_t(layer.bias_bytes()), int64_t(layer.bias_bytes() + layer.along_bytes() + backward),
        layer.changes_output};
}

// nullptr, or what f threw: a text that lives until this thread fails again.
template <class F> const char* text_of_error(F f) try {
  [[maybe_unused]] std::conditional_t<on_cpu, CallOfThread, int> call{};
  f();
  return nullptr;
} catch (const std::exception& e) {
  static thread_local std::string text;
  text = e.what();
  return text.c_str();
}

}  // namespace

const char* plusgpt_sizes(const PlusgptCall* p, PlusgptSizes* to) {
  return text_of_error([&] { p->bf16 ? sizes<bf16>(*p, *to) : sizes<float>(*p, *to); });
}
const char* plusgpt_forward(const PlusgptCall* p) {
  return text_of_error([&] {
    set_threads_without_signals(p->threads);
    p->bf16 ? forward<bf16>(*p) : forward<float>(*p);
  });
}
const char* plusgpt_backward(const PlusgptCall* p) {
  return text_of_error([&] {
    set_threads_without_signals(p->threads);
    p->bf16 ? backward<bf16>(*p) : backward<float>(*p);
  });
}
