// The last rows of one head at lengths far beyond training, against float64: what sums over that many keys, lssar's
// power and the rounding of large scores cost. With FULL=1 up to 131,072 keys: docs/results/far_keys.md has the errors
// that it prints. On a GPU every family that suits it, in full; on the CPU layer, which can run a kernel's first blocks
// without the others, every family, only the blocks that have the last rows.
#include <cstdlib>
#include <limits>
#include <map>
#include <random>

#include "test/attention/attention_reference.h"

#include <gtest/gtest.h>

#include "attention/family.h"
#include "attention/prepare.cuh"
#include "attention/prune.cuh"
#include "settings/config.h"
#include "test/support/device.h"

#ifdef PLUSGPT_CPU
#include "emulation/blocks.h"
static void run_blocks(int64_t most) { cpu::most_blocks = most; }
#else
static void run_blocks(int64_t) {}
#endif

namespace {

constexpr int D = 64, ROWS = 8;

// Normal q, k and v, in which every query also looks at one key before it. The same for all variants.
template <class T> const std::vector<T>& queries_with_a_key(const AttentionShape& shape) {
  static std::map<int, std::vector<T>> of_length;
  std::vector<T>& qkv = of_length[shape.T];
  if (!qkv.empty()) return qkv;
  auto x = random_normal<float>(shape.qkv_size(), 1);
  for (int t = 0; t < shape.T; t++)
    for (int d = 0, key = int(uint64_t(t) * 2654435761 % (t + 1)); d < D; d++)
      x[shape.qkv(0, t, 0, 0, d)] = 0.8f * x[shape.qkv(0, t, 0, 0, d)] + 0.6f * x[shape.qkv(0, key, 1, 0, d)];
  for (float value : x) qkv.push_back(from_float<T>(value));
  return qkv;
}

template <class T> class LastRows {
 public:
  LastRows(const std::string& variant, const Config& config, int length)
      : name_(variant),
        shape_{1, length, 1, D},
        s_{config.attention, config.model.context},
        qkv_(queries_with_a_key<T>(shape_)) {
    if (config.model.position == Position::rope) rope_ = rope_table(length, D, config.model.rope_base);
    if (s_.bias == Bias::none) return;
    auto logits = random_normal<float>(length, 2);
    double sum = 0;
    for (int t = 0; t < length; t++) {
      double logit = s_.bias == Bias::fox ? -logits[t] : logits[t];
      bias_.push_back(s_.bias == Bias::alibi ? -t * std::exp2(-8.0) : sum -= ref_softplus(logit));
    }
  }

  // The largest error of the last rows against a reference that begins with the prepared q and k, as the kernel does,
  // and of that with the preparation, as shares of the largest number of these rows.
  struct Errors {
    double kernel = 0, whole = 0;
  };
  // Compares the last rows of each family, whose name is the key of its errors.
  void check(std::map<std::string, Errors>& errors) {
    DeviceArray<T> x(qkv_), scale(std::vector<T>{from_float<T>(0.43f)});
    DeviceArray<float> norms(2 * shape_.rows());
    DeviceArray<float2> angles(rope_);
    DeviceArray<float> c(as_kernels_read(bias_, shape_, s_.kind));
    AttentionCall<T> call = s_.call<T>(shape_);
    call.ssmax_scale = scale, call.norms = norms;
    if (!bias_.empty()) call.bias = c;
    if (!rope_.empty()) call.rope = angles;
    prepare_forward<T>(x, call);
    find_needed_tiles<T>(c, nullptr, x, call);
    std::vector<T> prepared = x.download();
    int first = std::max(0, shape_.T - ROWS);
    auto last = [&](auto values) { return decltype(values)(values.begin() + shape_.out(0, first, 0), values.end()); };
    auto exact = [&](const Numbers<Exact>& qkv) {
      return last(ref_attention<Exact>(s_, shape_, qkv, {}, first, bias_));
    };
    auto expected = exact(widen<Exact>(prepared)),
         from_raw = exact(ref_prepare<Exact>(s_, shape_, widen<Exact>(qkv_), rope_, {as_double(from_float<T>(0.43f))}));
    auto plain = last(ref_attention<Naive<T>>(s_, shape_, widen<Naive<T>>(prepared), {}, first, bias_));
    for (const Family<T>& family : families_of<T>(s_.kind)) {
      DeviceArray<T> out(shape_.out_size());
      if (!strcmp(family.name, "hopper_heads")) continue;  // the same forward pass as hopper
      call.family = family.name;
      if (!find_family(call, {x, out})) continue;
      // The first block, or two, have the last rows, if there are as many blocks as tiles of rows.
      if (on_cpu) call.spare_multiprocessors = -shape_.T;
      run_blocks(shape_.T % 32 && shape_.T > 32 ? 2 : 1);
      attention_forward<T>(out, nullptr, x, call, false);
      run_blocks(INT64_MAX);
      std::vector<T> got = last(out.download());
      std::string what = format("%s, %s, last rows of %d", name_.c_str(), family.name, shape_.T);
      expect_close(what, got, expected, plain, u<T>);
      Errors& error = errors[family.name];
      error.kernel = std::max(error.kernel, deviation(got, expected).error);
      error.whole = std::max(error.whole, deviation(got, from_raw).error);
    }
  }

 private:
  std::string name_;
  AttentionShape shape_;
  AttentionSetup s_;
  const std::vector<T>& qkv_;
  std::vector<float2> rope_;
  Numbers<Exact> bias_;
};

// 3 and 4: lssar's last row without its offset and the first with it.
template <class T> void check_every_variant() {
  std::vector<int> lengths = {3, 4, 1000, 16384};
  if (std::getenv("FULL")) lengths.insert(lengths.end(), {65536, 131072});
  std::vector<std::string> variants = {"softmax_qknorm", "ssmax", "alibi", "fox", "cable"};
  variants.insert(variants.begin(), std::begin(kind_names), std::end(kind_names));
  for (const std::string& variant : variants) {
    Config config = parse_config("{}", "", {"attention.variant=" + variant});
    std::map<std::string, typename LastRows<T>::Errors> errors;
    if (!attention_is_built(config.attention.kind)) continue;
    for (int length : lengths) LastRows<T>(variant, config, length).check(errors);
    bool refused = !on_cpu && sizeof(T) == 4 && config.attention.bias != Bias::none;  // attention_check()
    EXPECT_EQ(errors.empty(), refused) << variant;
    for (const auto& [family, error] : errors)
      printf("| %s | %s, %s | %.1e | %.1e |\n", variant.c_str(), sizeof(T) == 4 ? "fp32" : "bf16", family.c_str(),
             error.kernel, error.whole);
    fflush(stdout);
  }
}

TEST(LongFar, Fp32) { check_every_variant<float>(); }
TEST(LongFar, Bf16) { check_every_variant<bf16>(); }

}  // namespace
