"""Three updates of ./train with Muon against torch.optim.Muon, which needs PyTorch 2.9 or later, in float64; and runs
that continue with the other optimizer."""
import re
import unittest
from unittest import mock

from support.runs import RankRuns
from support.workspace import Workspace, floats, read_safetensors

try:
  import torch
  from torch.optim import Muon
except ImportError:
  torch = None

STEPS = 3
# Heads of 8 channels: q is square, k and v are tall, c_fc is wide and the last tall.
SHAPE = {"model__kv_heads": 1, "model__mlp_ratio": 3}
WIDTHS = {"attn.c_attn.weight": [16, 8, 8], "attn.c_proj.weight": [16], "mlp.c_fc.weight": [48],
          "mlp.c_proj.weight": [16]}
BOUND = 3.4445**5 * 2**-24  # five steps multiply the rounding of a small singular value by as much
MUON = {"optimizer__matrices": "muon", "optimizer__muon__lr": 0.05}
CONSTANT = {"optimizer__schedule": "constant", "optimizer__warmup_steps": 0, "optimizer__grad_clip": 0}


@unittest.skipUnless(torch, "needs PyTorch 2.9 or later")
class AgainstPyTorch(Workspace):
  def matrices(self, *parts):
    """{(name, part): a double tensor [outputs, inputs]} of what Muon updates."""
    found = {}
    for name, (_, shape, data) in read_safetensors(self.path(*parts)).items():
      widths = next((widths for end, widths in WIDTHS.items() if name.endswith(end)), [])
      if widths:
        matrix = torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(list(shape)).double()
        for index, part in enumerate(matrix.split(widths, dim=1)):
          found[name, index] = part.T.contiguous()
    return found

  def check(self, scale, adjust):
    settings = {**SHAPE, **MUON, **CONSTANT, "optimizer__muon__weight_decay": 0.1, "optimizer__muon__scale": scale,
                "precision": "fp32", "checkpoint__every": 1, "checkpoint__keep": 9, "train__steps": STEPS,
                "name": scale, "init": "runs/start/step_00000001"}
    self.ok(**settings)
    weights = [self.matrices("runs/start/step_00000001/model.safetensors"),
               *(self.matrices(f"runs/{scale}/step_{step:08d}/model.safetensors") for step in range(1, STEPS + 1))]
    self.assertEqual(len(weights[0]), 2 * 6)
    parameters = {name: torch.nn.Parameter(matrix.clone()) for name, matrix in weights[0].items()}
    muon = Muon(parameters.values(), lr=0.05, momentum=0.95, weight_decay=0.1, adjust_lr_fn=adjust)
    for step in range(STEPS):
      resumed = ["--resume", f"runs/{scale}/step_{step:08d}"] if step else []
      self.ok(*resumed, "--dump-gradients", f"{scale}{step}", **settings)
      gradients = self.matrices(f"{scale}{step}")
      for name, parameter in parameters.items():
        parameter.data, parameter.grad = weights[step][name].clone(), gradients[name]
      # The type in which it orthogonalises; and it divides by the larger of the norm and 1e-7, ./train by their sum.
      with mock.patch.object(torch, "bfloat16", torch.float64), \
           mock.patch.object(torch.Tensor, "clamp", lambda norm, min: norm + min):
        muon.step()
      for name, parameter in parameters.items():
        expected, found = parameter.data - weights[step][name], weights[step + 1][name] - weights[step][name]
        self.assertLess(float((found - expected).abs().max() / expected.abs().max()), BOUND, (scale, name, step))

  def test_both_scales(self):
    self.ok(**SHAPE, name="start", train__steps=1, precision="fp32")
    for scale, adjust in (("spectral", "original"), ("rms", "match_rms_adamw")):
      self.check(scale, adjust)


class TheOtherOptimizer(RankRuns):
  """A run that continues with the other optimizer, in a schedule of its own."""

  def arrays(self, step, run="tiny"):
    return {name: floats(data) for name, (_, _, data) in read_safetensors(
        self.checkpoint(step, "optimizer.safetensors", run=run)).items()}

  def switched(self, first, second, *flags):
    """Two steps with one and a step with the other, whose gradients are clipped to nothing: what the other made of the
    moments. Returns the warning, and the moments before and after that step."""
    constant = {**SHAPE, **CONSTANT, "precision": "fp32", "checkpoint__every": 2, "eval__every": 0}
    for name in ("tiny", "ranks"):
      self.ok(**constant, name=name, train__steps=2, optimizer__matrices=first)
    now = {**constant, "train__steps": 3, "optimizer__matrices": second, "optimizer__schedule_start": 2,
           "optimizer__grad_clip": 1e-30}
    done = self.ok("--resume", **now)
    warnings = [line for line in done.stderr.splitlines() if "optimizer.matrices" in line]
    self.assertEqual(len(warnings), 1, done.stderr)
    ranks = self.ok("--resume", "--gpus", "2", **now, name="ranks")
    self.assertEqual([line for line in ranks.stderr.splitlines() if "optimizer.matrices" in line], warnings)
    self.assertEqual(self.bytes_of(self.checkpoint(3, "optimizer.safetensors")),
                     self.bytes_of(self.checkpoint(3, "optimizer.safetensors", run="ranks")))
    self.assertNotIn("optimizer.matrices:", self.ok("--resume", **now).stderr)
    return warnings[0], self.arrays(2), self.arrays(3)

  def matrices(self, arrays):
    return [name[2:] for name in arrays if name.startswith("m.") and name.endswith(tuple(WIDTHS))]

  def assert_scaled(self, found, expected, factor):
    for x, y in zip(found, expected):
      self.assertAlmostEqual(x, factor * y, delta=1e-6 * abs(factor * y) + 1e-30)

  def test_work_of_a_plan(self):
    """k the shorter side: A = X X' and A A are k k l and k k k products, B X k k l, five times."""
    said = self.ok("--dry-run", **SHAPE, **MUON, train__steps=7).stdout
    flops, share = map(float, re.search(r"the run: (\S+) FLOP in 7 steps, (\S+)% of them Muon's", said).groups())
    sides = [sorted((width, rows)) for end, widths in WIDTHS.items() for width in widths
             for rows in [48 if end == "mlp.c_proj.weight" else 16]]
    expected = 7 * 2 * sum(5 * (4 * k * k * l + 2 * k**3) for k, l in sides)
    self.assertAlmostEqual(flops * share / 100, expected, delta=0.06 * expected)
    self.assertNotIn("Muon", self.ok("--dry-run", **SHAPE).stdout)

  def test_muon_after_adamw(self):
    said, before, after = self.switched("adamw", "muon")
    self.assertRegex(said, "first moments.*become Muon's momentum.*dropped")
    for name in self.matrices(before):
      self.assert_scaled(after["m." + name], before["m." + name], 0.95)
      self.assertFalse(any(after["v." + name]))

  def test_adamw_after_muon(self):
    said, before, after = self.switched("muon", "adamw")
    self.assertRegex(said, "becomes AdamW's first moment.*square.*optimizer.warmup_steps")
    for name in self.matrices(before):
      self.assertFalse(any(before["v." + name]))
      self.assert_scaled(after["m." + name], before["m." + name], 0.9)
      self.assert_scaled(after["v." + name], [x * x for x in before["m." + name]], 0.95)
    self.assert_scaled(after["v.wte.weight"], before["v.wte.weight"], 0.95)
