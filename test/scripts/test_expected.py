"""scripts/expected.py: which losses another seed would give, and which not."""
import json

from support.scripts import ScriptTest

import expected  # from SCRIPTS
from lib import results

LOSSES = {"softmax": [1.59, 1.60, 1.61, 1.60, 1.60], "lssar": [1.9, 2.0, 2.1, 2.0, 2.0]}
RESULT = {"name": "quick", "size": "", "config": "c.json", "set": {}, "seeds": [1, 2, 3, 4, 5],
          "axes": {"attention.variant": list(LOSSES)}, "chart": "lengths", "mode": "windows", "commit": "abc",
          "device": "CPU", "command": "sweep.py", "context": 16, "steps": "8", "tokens_per_step": "64", "lengths": [16],
          "runs": [{"name": "", "labels": {"attention.variant": variant}, "seed": seed, "state": "complete", "why": "",
                    "initial": 5.5, "loss": loss, "losses": {"16": loss}}
                   for variant, losses in LOSSES.items() for seed, loss in enumerate(losses, 1)]}


class Expected(ScriptTest):
  def judge(self, code=0, variant="lssar", steps=8, seeds=json.dumps(RESULT), **losses):
    self.write("seeds.json", seeds)
    for name, loss in losses.items():
      start = {"type": "start", "config": {"attention": {"variant": variant}, "model": {"context": 16},
                                           "eval": {"lengths": [16]}, "train": {"steps": steps}}}
      self.make_run(name, [start, {"type": "val", "step": 8, "length": 16, "loss": loss}])
    return self.run_module(expected, self.path("seeds.json"), *map(self.path, losses), code=code)

  def test_bounds_are_those_of_a_further_loss(self):
    # mean 2, s 0.0707; t of 4 degrees of freedom leaves 0.5% on each side beyond 4.604: -+ 4.604 x 0.0707 x sqrt(1.2)
    (low,), (high,) = expected.bounds(results.pandas.DataFrame([LOSSES["lssar"]]))
    self.assertAlmostEqual(low, 2 - 0.35663, places=4)
    self.assertAlmostEqual(high, 2 + 0.35663, places=4)

  def test_inside(self):
    output = self.judge(inside=2.35)
    self.assertIn("| softmax, 5 seeds | 1.600 (1.590 to 1.610) |\n", output)
    self.assertIn("| lssar, 5 seeds | 2.000 (1.900 to 2.100) |\n| inside | 2.350 |\n", output)
    self.assertIn("All losses of these runs are as expected", output)

  def test_outside(self):
    output = self.judge(inside=2.0, below=1.64, above=2.36)
    self.assertIn("NOT as expected", output)
    self.assertIn("  below at 16: 1.640, expected 1.643 to 2.357\n  above at 16: 2.360,", output)
    self.assertNotIn("  inside", output)

  def test_nothing_to_compare_is_not_as_expected(self):
    output = self.judge(diverged=None)
    self.assertIn("| diverged | - |\n", output)
    self.assertIn("NOT as expected", output)
    self.assertIn("  diverged at 16: no loss", output)

  def test_what_cannot_be_compared(self):
    self.judge(code=2, variant="alibi", other=2.0)
    self.assert_error("other: attention.variant is alibi; there are losses to compare with for softmax, lssar")
    self.judge(code=2, steps=9, longer=2.0)
    self.assert_error("longer: train.steps is 9; the losses to compare with are of 8 steps")
    damaged = ("{", "[]", "{}", json.dumps({**RESULT, "axes": {}}), json.dumps({**RESULT, "runs": []}))
    for number, seeds in enumerate(damaged):
      self.judge(code=2, seeds=seeds, **{f"run{number}": 2.0})
      self.assert_error("seeds.json")
    self.run_module(expected, self.path("none.json"), code=2)
    self.run_module(expected, self.path("none.json"), self.path("longer"), code=2)
    self.assert_error("none.json: No such file")
