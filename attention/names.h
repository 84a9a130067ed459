// The choices for attention and its gate: enumerators, and their names in the same order. The configuration's table,
// the kernels, tests and benchmarks all take them from here. Plain C++, for files that do not include CUDA.
#pragma once
#include <string>

#include "base/error.h"

enum class Kind { softmax, lssa, lssar, sigmoid, relu, relu2 };  // from scores z to weights P
inline constexpr const char* kind_names[] = {"softmax", "lssa", "lssar", "sigmoid", "relu", "relu2"};
enum class QkNorm { none, l2, rms };
inline constexpr const char* qk_norm_names[] = {"none", "l2", "rms"};
enum class Scale { rsqrt_d, logd_logn, logn, ssmax, number };
inline constexpr const char* scale_names[] = {"rsqrt_d", "logd_logn", "logn", "ssmax", "number"};
enum class Sink { none, one, learned };
inline constexpr const char* sink_names[] = {"none", "one", "learned"};
enum class RopeScaling { none, linear, ntk, yarn };
inline constexpr const char* rope_scaling_names[] = {"none", "linear", "ntk", "yarn"};
enum class GateActivation { none, sigmoid, softplus, silu, relu, tanh, exp };
inline constexpr const char* gate_activation_names[] = {"none", "sigmoid", "softplus", "silu", "relu", "tanh", "exp"};
enum class GatePosition { sdpa, value, key, query, output };
inline constexpr const char* gate_position_names[] = {"sdpa", "value", "key", "query", "output"};
enum class Kernels { automatic, general, tensor, hopper };  // the family that runs, for tests and benchmarks
inline constexpr const char* kernels_names[] = {"automatic", "general", "tensor", "hopper"};

// The enumerator of that name; any other name is a user_error that lists the allowed ones.
template <class Enum, size_t N>
Enum from_name(const char* key, const char* const (&names)[N], const std::string& name) {
  std::string allowed;
  for (size_t i = 0; i < N; i++) {
    if (name == names[i]) return Enum(i);
    allowed += (i ? ", " : "") + std::string(names[i]);
  }
  user_error("config: %s = \"%s\" is unknown; choose one of %s.", key, name.c_str(), allowed.c_str());
}
inline Kind kind_from_name(const std::string& name) { return from_name<Kind>("attention.kind", kind_names, name); }
inline QkNorm qk_norm_from_name(const std::string& name) {
  return from_name<QkNorm>("attention.qk_norm", qk_norm_names, name);
}
inline Scale scale_from_name(const std::string& name) { return from_name<Scale>("attention.scale", scale_names, name); }
inline Sink sink_from_name(const std::string& name) { return from_name<Sink>("attention.sink", sink_names, name); }
inline RopeScaling rope_scaling_from_name(const std::string& name) {
  return from_name<RopeScaling>("eval.rope_scaling", rope_scaling_names, name);
}
inline GateActivation gate_activation_from_name(const std::string& name) {
  return from_name<GateActivation>("attention.gate.activation", gate_activation_names, name);
}
inline GatePosition gate_position_from_name(const std::string& name) {
  return from_name<GatePosition>("attention.gate.position", gate_position_names, name);
}
