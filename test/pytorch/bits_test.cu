// The library of pytorch/ gives the bits of the trainer's kernels, although it is compiled for other addresses. Skipped
// unless PLUSGPT_LIBRARY names it, such as build/cpu-pytorch/plusgpt_attention.so.
#include <dlfcn.h>

#include <cstdlib>

#include "attention/output.cuh"
#include "attention/position_bias.cuh"
#include "attention/prepare.cuh"
#include "attention/prune.cuh"
#include "base/text.h"
#include "pytorch/operator.h"
#include "settings/config.h"
#include "test/support/compare.h"

template <class F> F* function(const char* name) {
  static void* library = dlopen(std::getenv("PLUSGPT_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
  void* address = library ? dlsym(library, name) : nullptr;
  if (!address) ADD_FAILURE() << dlerror();
  return reinterpret_cast<F*>(address);
}

// The layer's call as train_gpt2.cu makes it, without rotations: y and dqkv.
template <class T> Outputs trained(const AttentionCall<T>& made, const std::vector<T>& x, const std::vector<T>& dy) {
  AttentionCall<T> call = made;
  AttentionShape s = call.shape;
  DeviceArray<T> qkv(x), out(dy.size()), y(dy.size()), dout(dy), dqkv(x.size());
  DeviceArray<float> stats(attention_statistics(call.settings, s.D) * s.rows()), norms(2 * s.rows()),
      bias(bias_floats(s)), along(s.rows());
  DeviceArray<char> workspace(attention_backward_workspace(call));
  if (call.settings.qk_norm != QkNorm::none) call.norms = norms;
  call.bias = call.settings.bias == Bias::none ? nullptr : bias.get();
  prepare_forward<T>(qkv, call);
  position_bias_forward<T>(bias, {}, call);
  find_needed_tiles<T>(bias, nullptr, qkv, call);
  attention_forward<T>(out, stats, qkv, call, true);
  bool changes = call.settings.changes_output();
  if (changes) output_forward<T>(y, out, qkv, call);
  auto result = changes ? y.download() : out.download();
  if (changes) output_backward<T>(dout, along, out, qkv, call);
  attention_backward<T>(dqkv, dout, out, stats, qkv, workspace, call, true);
  output_backward_values<T>(dqkv, dout, along, out, qkv, call);
  return outputs(result, dqkv);
}

template <class T>
Outputs of_library(const std::string& settings, AttentionShape s, const int2* documents, const std::vector<T>& x,
                   const std::vector<T>& dy) {
  DeviceArray<T> in(x), qkv(x.size()), out(dy.size()), y(dy.size()), dout(dy), dqkv(x.size());
  PlusgptCall call = {};
  call.settings = settings.c_str(), call.documents = documents;
  call.B = s.B, call.T = s.T, call.H = call.kv_heads = s.H, call.D = s.D;
  call.bf16 = sizeof(T) == 2, call.training = call.prunes = 1, call.threads = 2;
  PlusgptSizes sizes;
  auto check = [](const char* error) { EXPECT_STREQ(error, nullptr); };
  check(function<decltype(plusgpt_sizes)>("plusgpt_sizes")(&call, &sizes));
  DeviceArray<float> saved(sizes.row_floats * s.rows());
  DeviceArray<char> workspace(sizes.backward);
  int64_t A = s.H * s.D;
  auto part = [&](int n) { return PlusgptHeads{in.get() + n * A, 3 * A * s.T, 3 * A, s.D}; };
  call.q = part(0), call.k = part(1), call.v = part(2);
  call.qkv = qkv, call.out = out, call.y = y, call.saved = saved, call.workspace = workspace;
  call.dout = dout, call.dqkv = dqkv;
  check(function<decltype(plusgpt_forward)>("plusgpt_forward")(&call));
  auto result = sizes.changes_output ? y.download() : out.download();
  check(function<decltype(plusgpt_backward)>("plusgpt_backward")(&call));
  return outputs(result, dqkv);
}

template <class T> void expect_equal(const std::string& keys, AttentionShape shape) {
  std::vector<std::string> sets = {format("model.heads=%d", shape.H), format("model.head_dim=%d", shape.D)};
  std::string settings = "1024 0 0 0 0";
  for (const std::string& key : split(keys, ' ')) sets.push_back("attention." + key), settings += "\n" + key;
  Config config = parse_config("{}", "", sets, false);
  AttentionSettings s = config.layer(0, shape.T).attention;
  std::vector<int2> spans;
  for (int row = 0; row < shape.B * shape.T; row++)
    spans.push_back(row % shape.T < 40 ? make_int2(0, 40) : make_int2(40, shape.T));
  DeviceArray<int2> documents(spans);
  auto x = random_normal<T>(shape.qkv_size(), 1), dy = random_normal<T>(shape.out_size(), 2);
  auto right = trained<T>({.settings = s, .shape = shape, .documents = documents}, x, dy);
  auto found = of_library(settings, shape, documents, x, dy);
  for (int n : {0, 1}) expect_same_bits(keys + (n ? " dqkv" : " y"), found[n], right[n]);
}

TEST(Library, HasTheBitsOfTheTrainer) {
  if (!std::getenv("PLUSGPT_LIBRARY")) GTEST_SKIP() << "PLUSGPT_LIBRARY names no library";
  for (AttentionShape shape : {AttentionShape{2, 150, 3, 24}, AttentionShape{1, 257, 2, 64}})
    for (const char* keys :
         {"kind=softmax", "variant=lssar", "variant=lssar power=3 window=64 sink_tokens=4", "kind=softmax bias=alibi",
          "kind=softmax documents=separate", "kind=threshold qk_norm=rms output=exclusive output_norm=rms"}) {
      expect_equal<float>(keys, shape);
      expect_equal<bf16>(keys, shape);
    }
}
