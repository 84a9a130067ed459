// How many multiprocessors attention leaves free for the collectives that run beside it, in the steps of a whole model.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "settings/table.h"
#include "test/ranks/ranks_as_threads.h"
#include "test/support/family.h"
#include "train_gpt2.h"

namespace {

Family<float> kernels;            // attention's own, which those of the test call
thread_local std::string spared;  // multiprocessors spared by each call of a rank: F forward, E evaluation, B backward

template <char NAME, auto KERNEL, class Call> void noted(const Call& call) {
  spared += NAME + std::to_string(call.call.spare_multiprocessors) + " ";
  (kernels.*KERNEL)(call);
}

// What attention's calls spare in a step of two micro steps on three layers and an evaluation after it, at each rank.
std::vector<std::string> spared_by(int size, const std::string& recompute) {
  std::string tokens = std::to_string(size * 2 * 8);
  Config config = parse_config(
      "{}", "test",
      {"model.layers=3", "model.heads=2", "model.channels=128", "model.vocab=50", "model.context=8", "batch.micro=1",
       "batch.tokens=" + tokens, "precision=fp32", "data.train=x", "data.val=x", "train.recompute=" + recompute});
  std::vector<std::string> said(size);
  with_comms(size, [&](Comm& comm) {
    auto model = make_model(config, 8, 8, true, comm);
    std::vector<int> text(8, comm.rank());
    std::vector<float> losses(8);
    spared.clear();
    model->begin_step();
    for (int micro = 0; micro < 2; micro++) model->forward_backward(text.data(), text.data());
    model->reduce_and_clip(0);
    model->losses(losses.data(), text.data(), text.data(), 1, 8);
    said[comm.rank()] = spared;
  });
  return said;
}

TEST(Spared, MultiprocessorsWhileGradientsAreReduced) {
  if (!on_cpu) GTEST_SKIP() << "several ranks on one GPU";
  Family<float>& entry = family_of<float>(Kind::softmax, "general");
  kernels = entry;
  entry.forward = noted<'F', &Family<float>::forward, ForwardCall<float>>;
  entry.evaluate = noted<'E', &Family<float>::evaluate, ForwardCall<float>>;
  entry.backward = noted<'B', &Family<float>::backward, BackwardCall<float>>;
  // The first reduction follows the backward pass of the last layer.
  std::string plain = "F0 F0 F0 B0 B0 B0 F0 F0 F0 B0 B8 B8 E0 E0 E0 ";
  EXPECT_EQ(spared_by(2, "none"), (std::vector<std::string>{plain, plain}));
  std::string again = "F0 F0 F0 F0 B0 F0 B0 F0 B0 F0 F0 F0 F0 B0 F3 B3 F3 B3 E0 E0 E0 ";
  setenv("NCCL_MAX_CTAS", "3", 1);
  EXPECT_EQ(spared_by(2, "block"), (std::vector<std::string>{again, again}));
  unsetenv("NCCL_MAX_CTAS");
  EXPECT_EQ(spared_by(1, "none"), std::vector<std::string>{"F0 F0 F0 B0 B0 B0 F0 F0 F0 B0 B0 B0 E0 E0 E0 "});
  entry = kernels;
}

}  // namespace
