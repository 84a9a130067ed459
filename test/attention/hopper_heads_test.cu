// The backward pass by whole heads (attention/hopper/backward_heads.cuh) compared with the two kernels that run
// elsewhere. attention_test.cu compares both with float64.
#include <gtest/gtest.h>

#include "attention/hopper/backward_heads.cuh"
#include "test/attention/attention_reference.h"

static bool has_both(Kind kind) {
  auto of = [&](const char* name) {
    return std::ranges::any_of(families_of<bf16>(kind), [&](const auto& f) { return !strcmp(f.name, name); });
  };
  return of("hopper") && of("hopper_heads");
}

struct HopperHeads : HopperTest {};

// dK and dV are the same products in the same order, and the same bits, and so are the sums of their columns. dQ is a
// sum over products of 16 keys each, by tiles of keys: in any order each of its T / 16 steps loses at most 17 / 2^25 of
// the largest partial sum, and a rounding to float32 (test/kernels/tensor_core.h). Both results are rounded to bf16.
TEST_F(HopperHeads, GiveTheBitsOfTwoKernels) {
  struct Case {
    AttentionShape shape;
    QkNorm norm;
    bool rotate;
    int window = 0, sink_tokens = 0;
  };
  const std::vector<Case> cases = {
      {{1, 1, 1, 64}, QkNorm::none, true},          {{2, 128, 1, 64}, QkNorm::rms, true},
      {{1, 129, 3, 64}, QkNorm::l2, false},         {{1, 300, 2, 40}, QkNorm::none, false},
      {{3, 449, 1, 64}, QkNorm::l2, true},          {{1, 1100, 1, 64}, QkNorm::none, true},
      {{1, 600, 2, 64}, QkNorm::none, true, 70},    {{2, 450, 1, 64}, QkNorm::rms, true, 129, 4},
      {{1, 700, 1, 64}, QkNorm::l2, true, 200, 140}};
  for (size_t k = 0; k < kind_names.size(); k++)
    for (auto [shape, norm, rotate, window, sink_tokens] : cases) {
      if (!has_both(Kind(k))) continue;
      AttentionSetup s{{.kind = Kind(k), .qk_norm = norm, .window = window, .sink_tokens = sink_tokens}};
      std::string name = describe(s, shape);
      size_t A = size_t(shape.H) * shape.D;
      std::vector<bf16> in = random_qkv<bf16>(shape, 1), dout = random_normal<bf16>(shape.out_size(), 2);
      DeviceArray<bf16> qkv(in), d(dout), out(shape.out_size());
      DeviceArray<float> stats(attention_statistics(s, shape.D) * shape.rows()), norms(2 * shape.rows());
      DeviceArray<float2> angles(rope_table(shape.T, shape.D, 10000));
      AttentionCall<bf16> call = s.call<bf16>(shape);
      if (rotate) call.rope = angles;
      if (norm != QkNorm::none) call.norms = norms;
      prepare_forward<bf16>(qkv, call);
      call.family = "hopper";
      attention_forward<bf16>(out, stats, qkv, call, true);
      auto gradients = [&](const char* family, bool undo) {
        call.family = family;
        DeviceArray<bf16> dqkv(shape.qkv_size());
        DeviceArray<float> sums(std::vector<float>(3 * A, 0.5f));
        call.dqkv_sums = sums;
        DeviceArray<char> workspace(attention_backward_workspace(call));
        attention_backward<bf16>(dqkv, d, out, stats, qkv, workspace, call, undo);
        std::vector<float> of_k_and_v = without_first(sums.download(), A);
        return std::pair(dqkv.download(), of_k_and_v);
      };
      for (bool undo : {false, true}) {
        auto [two, two_sums] = gradients("hopper", undo);
        auto [one, one_sums] = gradients("hopper_heads", undo);
        expect_same_bits(name + " column sums", one_sums, two_sums);
        for (int part : {1, 2})
          expect_same_bits(format("%s d%c", name.c_str(), "qkv"[part]), part_of(shape, one, part),
                           part_of(shape, two, part));
        if (undo) continue;  // channels are mixed
        double terms[6] = {}, steps = 2 * (shape.T / 16 + shape.T / 128 + 2);
        ref_attention_backward<Exact>(s, shape, widen<Exact>(qkv.download()), widen<Exact>(dout), {}, nullptr, terms);
        auto x = part_of(shape, one, 0), y = part_of(shape, two, 0);
        for (size_t n = 0; n < x.size(); n++) {
          double rounding = 2 * unit_roundoff<bf16> * std::max(std::fabs(as_double(x[n])), std::fabs(as_double(y[n])));
          ASSERT_NEAR(as_double(x[n]), as_double(y[n]), rounding + steps * (17.0 / (1 << 25) + 0x1p-23) * terms[0])
              << name << " dq " << n;
        }
      }
    }
}
