// The one place where the settings of a run become template arguments, and the tables of names.
#include "attention/attention.h"
#include "attention/general.cuh"
#include "attention/names.h"

namespace {

// The struct of each kind. f.template operator()<Policy>() is called with that of `kind`.
template <class F>
void with_kind(Kind kind, F f) {
  switch (kind) {
    case Kind::softmax: return f.template operator()<Softmax>();
    case Kind::lssa: return f.template operator()<Lssa>();
    case Kind::lssar: return f.template operator()<Lssar<true>>();
    case Kind::sigmoid: return f.template operator()<Sigmoid>();
    case Kind::relu: return f.template operator()<Relu>();
    case Kind::relu2: return f.template operator()<Relu2>();
  }
  std::string built;
  for (const char* name : kind_names) built += (built.empty() ? "" : ", ") + std::string(name);
  user_error("config: attention.kind = %d has no kernels; choose one of %s.", int(kind), built.c_str());
}

PolicySettings policy_settings(const AttentionSettings& s) {
  return {.power = s.power,
          .offset = s.offset,
          .log_context = logf(float(s.context)),
          .offset_free_rows = s.offset_free_rows,
          .sink = s.sink == Sink::none ? -INFINITY : 0.0f};
}

template <class T>
const T* sink_of(const AttentionSettings& s, const AttentionLearned<T>& learned) {
  if (s.sink == Sink::learned && !learned.sink) failure("attention: the sink is learned, but no array of sinks was given.");
  return s.sink == Sink::learned ? learned.sink : nullptr;
}

}  // namespace

Kind kind_from_name(const std::string& name) { return from_name<Kind>("attention.kind", kind_names, name); }
QkNorm qk_norm_from_name(const std::string& name) { return from_name<QkNorm>("attention.qk_norm", qk_norm_names, name); }
Scale scale_from_name(const std::string& name) { return from_name<Scale>("attention.scale", scale_names, name); }
Sink sink_from_name(const std::string& name) { return from_name<Sink>("attention.sink", sink_names, name); }
RopeScaling rope_scaling_from_name(const std::string& name) {
  return from_name<RopeScaling>("eval.rope_scaling", rope_scaling_names, name);
}

void attention_check(const AttentionSettings& settings, int D) {
  if (D < 1 || D > 512) user_error("config: model.head_dim = %d has no kernels; 1 to 512 have.", D);
  with_kind(settings.kind, []<class Policy>() {});
}

int attention_statistics(const AttentionSettings& settings, int D) {
  int count = 0;
  with_kind(settings.kind, [&]<class Policy>() { count = Policy::SAVED + (Policy::VALUES - 1) * D; });
  return count;
}

size_t attention_backward_workspace(int B, int T, int H, int) { return size_t(8) * sizeof(float) * B * H * T; }

template <class T>
void attention_forward(T* out, float* stats, const T* qkv, const AttentionSettings& settings, int B, int T_, int H, int D,
                       bool training, cudaStream_t stream, const AttentionLearned<T>& learned) {
  attention_check(settings, D);
  with_kind(settings.kind, [&]<class Policy>() {
    if (training)
      general_forward<T, Policy>(out, stats, qkv, policy_settings(settings), sink_of(settings, learned), B, T_, H, D,
                                  settings.qkv_stride, stream);
    else
      general_forward<T, typename Policy::Evaluation>(out, nullptr, qkv, policy_settings(settings), sink_of(settings, learned),
                                                      B, T_, H, D, settings.qkv_stride, stream);
  });
}

template <class T>
void attention_backward(T* dqkv, const T* dout, const T* out, const float* stats, const T* qkv, void* workspace,
                        const AttentionSettings& settings, int B, int T_, int H, int D, cudaStream_t stream,
                        const AttentionLearned<T>& learned) {
  attention_check(settings, D);
  with_kind(settings.kind, [&]<class Policy>() {
    static_assert(Policy::ROWS <= 8, "attention_backward_workspace() has 8 floats per row");
    general_backward<T, Policy>(dqkv, dout, out, stats, qkv, static_cast<float*>(workspace), policy_settings(settings),
                                sink_of(settings, learned), learned.dsink, B, T_, H, D, settings.qkv_stride, stream);
  });
}

#define INSTANTIATE(T)                                                                                                     \
  template void attention_forward(T*, float*, const T*, const AttentionSettings&, int, int, int, int, bool, cudaStream_t, \
                                  const AttentionLearned<T>&);                                                            \
  template void attention_backward(T*, const T*, const T*, const float*, const T*, void*, const AttentionSettings&, int,  \
                                   int, int, int, cudaStream_t, const AttentionLearned<T>&);
INSTANTIATE(float)
INSTANTIATE(bf16)
