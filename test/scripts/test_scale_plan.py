"""scripts/scale_plan.py with the real ./train."""
import math
import re

from support.workspace import TRAIN
from support.scripts import ScriptTest


class ScalePlan(ScriptTest):
  def tables(self, *flags, code=0):
    """The cells of each row of each table."""
    text = self.run_script("scale_plan.py", "--train", TRAIN, *flags, code=code, cwd=self.folder)
    if code == 0:
      self.assertTrue(text.startswith("On paper, not measured:"))
    blocks = [block for block in text.split("\n\n") if block.startswith("|")]
    return [[line.strip("| ").split(" | ") for line in block.split("\n")[2:]] for block in blocks]

  def test_tables(self):
    models, memory, hours = self.tables("--models", "350M,6.7B", "--ranks", "1,8", "--mfu", "0.4", "--tokens", "1e9")
    for (_, _, parameters, flops), (L, C) in zip(models, ((24, 1024), (32, 4096))):
      expected = 50257 * C + L * (12 * C * C + 13 * C) + 2 * C
      self.assertEqual(int(parameters.replace(",", "")), expected)
      self.assertAlmostEqual(float(flops), (6 * expected + 6 * L * 1024 * C) / 1e9, delta=0.01)
    self.assertEqual([row[:4] for row in memory[:2]], [["350M", "1", "16", "none"], ["350M", "1", "16", "gelu"]])
    whole = next(list(map(float, row[4:])) for row in memory if row[:4] == ["350M", "8", "16", "none"])  # by stage
    N = 355e6 / 2**30  # masters and moments shared: 12 bytes each; then gradients, 4; then parameters, 2
    for stage, (before, bytes_each) in enumerate(zip(whole, (12, 4, 2)), 1):
      self.assertAlmostEqual(before - whole[stage], bytes_each * N * 7 / 8, delta=0.11)  # of two rounded numbers
    big = [row for row in memory if row[:2] == ["6.7B", "1"]]
    self.assertTrue(all("too much" in row[4] for row in big))
    self.assertEqual(hours[1][1], "does not fit")
    alone, eight = (float(cell.split(" ")[0]) for cell in hours[0][1:3])
    self.assertAlmostEqual(alone, 1e9 * float(models[0][3]) * 1e9 / (0.4 * 989e12) / 3600, delta=0.01)
    self.assertLess(alone / 8, eight)

  def test_hours(self):
    # 2.2 GiB hold stage 1 alone: on 64 ranks with recompute=block, on 1024 without
    for flags, ranks, tokens, micro_steps, recompute, speed in (
        (("--memory", "2.2GiB"), 64, 2**19, 1, "block", 40e9), (("--memory", "2.2GiB"), 1024, 2**20, 1, "none", 40e9),
        (("--links", "5,40"), 8, 2**19, 4, "none", 5e9)):
      models, _, hours = self.tables("--models", "124M", "--ranks", str(ranks), *flags)
      N, flops = int(models[0][2].replace(",", "")), float(models[0][3]) * 1e9
      computing = tokens / ranks * flops * {"block": 4 / 3, "none": 1}[recompute] / (0.5 * 989e12)
      part, waits = (ranks - 1) / ranks * N / speed, 13 * math.log2(ranks) * 10e-6
      gradients = max(0, 4 * part + waits - 2 / 3 * computing / micro_steps)
      waiting = gradients + 2 * part + waits
      number, kind, share = re.fullmatch(r"([\d.]+) \((\w+), (\d+)%\)", hours[0][1]).groups()
      self.assertEqual(kind, recompute)
      self.assertAlmostEqual(float(number) / (1e10 / tokens * (computing + waiting) / 3600), 1, delta=0.01)
      self.assertAlmostEqual(int(share), 100 * waiting / (computing + waiting), delta=1)

  def test_bad_input(self):
    for flags, part in ((["--memory", "80GB"], "80GiB"), (["--models", "1T"], "124M"),
                        (["--set", "attention.variant=x"], "attention.variant"), (["--context", "1000"], "batch.tokens")):
      self.tables(*flags, code=2)
      self.assert_error(part)
