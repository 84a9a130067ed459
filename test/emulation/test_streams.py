"""Whole runs in which the CPU layer holds back the work of streams, as late as waits allow or at random: the same bits.

A missing wait, between two streams or before the host uses the memory of a copy, would change the results here;
emulation/cpu/streams.h says how. FULL=1: more random orders.
"""
import os

from support.runs import LARGE, Runs


class Streams(Runs):
  def run_with(self, order, *flags, **changes):
    self.set("PLUSGPT_STREAMS", order)
    self.run_ok("--overwrite", *flags, name=order, train__steps=8, checkpoint__every=2, batch__tokens=128, **changes)
    return self.outcome(4, order), self.outcome(8, order)

  def test_same_bits(self):
    for ranks, changes in ((1, {"attention__variant": "lssar_softplus_gated"}), (1, {"precision": "bf16"}),
                           (2, {}), (2, {"train__zero_stage": 0, "attention__variant": "softmax_sink"})):
      at_once = None
      for order in ("at_once", "late", "random", *(("random2", "random3") if os.environ.get("FULL") else ())):
        with self.subTest(order, ranks=ranks, **changes):
          outcome = self.run_with(order, "--gpus", str(ranks), **{**LARGE, **changes})
          at_once = at_once or outcome
          self.assertEqual(outcome, at_once)

  def test_unknown_orders(self):
    self.set("PLUSGPT_STREAMS", "later")
    self.bad(names=["PLUSGPT_STREAMS=later", "at_once, late, or random"])
