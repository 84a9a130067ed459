"""scripts/diagnose.py, and what scripts/lib/metrics.py reads for it: diagnostics lines, spike scores."""
import math
import os
import random
import statistics
import sys

from support.scripts import ScriptTest, drawing_python

from lib import drawing, metrics, section_answers, section_losses, section_sweep, section_training  # from SCRIPTS
from lib.sections import View

CONFIG = {"model": {"context": 16}}


def line(step, length, first, layers=2, gate=None, **more):
  bins = (length - 1).bit_length() + 1
  head = {"first": first, "entropy_norm": 0.5, "zeros": 0.25, "reach": [1 / bins] * bins}
  layer = {"max": [8.0, 4.0, 2.0], "gate": gate, "heads": [head, {**head, "first": first and first / 2}],
           **({"gate_shares": [0.0, *[0.05] * 20, 0.0]} if gate else {})}
  return {"type": "diagnostics", "time": 1.0, "step": step, "length": length, "sequences": 3, "first_token": first,
          "sink_rate": 12.5, "entropy": 2.0, "entropy_norm": 0.5, "m_act": 8.0, "gate": gate, "zeros": 0.25,
          "layers": [layer] * layers, **more}


class Diagnose(ScriptTest):
  def diagnosed(self, name, *lines, steps=4, **config):
    train = [{"type": "train", "step": step, "loss": 2.0, "grad_norm": 1.0} for step in range(1, steps + 1)]
    return self.make_run(name, [{"type": "start", "config": {**CONFIG, **config}}, *train, *lines])

  def diagnose(self, *args, **options):
    return self.draw("diagnose.py", *args, **options)

  def test_table_and_picture(self):
    a = self.diagnosed("a", line(2, 16, 0.9), line(4, 16, 0.8), line(4, 64, 0.5),
                       line(4, 16, 0.25), line(4, 8, None, zeros=None), steps=200)  # the last of each length counts
    b = self.diagnosed("b", line(9, 16, 0.125, layers=3, gate=0.5))
    out = self.diagnose(a, b, "--out", "x.png", alone=True)
    self.assertIn("at length 16.", out)  # the trained one
    self.assertIn("| a | 4 | 0.250 | 12.5% | 8 | 0.500 | - | 0.250 | 0.00% | 0.00% |", out)
    self.assertIn("| b | 9 | 0.125 | 12.5% | 8 | 0.500 | 0.500 | 0.250 | - | - |", out)
    self.assertEqual(self.bytes_of("x.png")[:4], b"\x89PNG")
    self.assertIn("at length 16.", self.diagnose(a))  # not the shortest
    self.assertIn("at length 64.", self.diagnose(a, "--length", 64))
    self.assertTrue(os.path.exists(os.path.join(a, "diagnostics.png")))
    self.assertIn("at length 8.", self.diagnose(a, "--length", 8))  # of nulls

  def test_conditions_are_named(self):
    """Of several diagnostics of a length, those that most runs have; of equally many the first."""
    fp32, yarn, bf16 = {"precision": "fp32"}, {"precision": "fp32", "rope_scaling": "yarn"}, {"precision": "bf16"}
    a = self.diagnosed("a", line(4, 64, 0.5, of=fp32), line(4, 64, 0.25, of=yarn))
    b = self.diagnosed("b", line(4, 64, 0.125, of=yarn))
    out = self.diagnose(a, b)
    self.assertIn("| a | 4 | rope_scaling yarn | 0.250 |", out)
    self.assertIn("| b | 4 | rope_scaling yarn | 0.125 |", out)
    self.assertIn("| a | 4 | 0.500 |", self.diagnose(self.diagnosed("a", line(4, 64, 0.5, of=fp32))))
    self.diagnosed("b", line(4, 64, 0.125, of=bf16))
    self.assertIn("| b | 4 | precision bf16 | 0.125 |", self.diagnose(a, b))

  def test_panels(self):
    """Title, axes, and the points of the first lines or the cells of each."""
    if drawing_python() != sys.executable:
      self.skipTest("no matplotlib")
    passkey = {"type": "passkey", "step": 4, "form": "compact", "length": 48, "depths": [0, 1], "exact": [0.25, 1.0],
               "distance": [9, 3]}
    task = {"type": "task", "step": 4, "task": "piqa", "n": 4, "max_length": 16, "acc": 0.5, "acc_norm": 0.25}
    asked = line(4, 16, 0.25, gate=0.5)
    asked["layers"][0]["gate_shares"] = [0.25, 0.5, *[0.0] * 19, 0.25]
    start = {"type": "start", "config": CONFIG}
    train = [{"type": "train", "step": step, "loss": 3.0 - step, "grad_norm": 0.5 * step, "lr": 0.1, "ms": 6e4,
              "tokens": 64 * step, "tokens_per_s": 9.0} for step in (1, 2)]
    view = View([metrics.Run(self.make_run("a", [start, *train, asked, passkey, task]))])
    losses, by_layer = [2.0, 1.0], lambda value: [[0, value], [1, value]]
    expected = [
        ("First token, length 16", "layer", "share of attention", by_layer(0.1875)),
        ("Largest activation", "layer", "max |x| of the residual stream", by_layer(8.0)),
        ("Entropy (solid) and zeros (dashed)", "layer", "relative to uniform; share of pairs", by_layer(0.5)),
        ("Reach (dotted: uniform)", "distance (tokens)", "attention within it",
         [[1, 0.2], [2, 0.4], [4, 0.6], [8, 0.8], [16, 1.0]]),
        ("Gate scores", "score (at the ends: below 0, above 1)", "share",
         [[bin / 20 - 0.025, {0: 0.25, 1: 0.5, 21: 0.25}.get(bin, 0)] for bin in range(22)]),
        ("First token: a", "head", "layer", [[0.25, 0.125]] * 2),
        ("By distance", "tokens from the key to the answer", "share of exact answers", [[3, 1.0], [9, 0.25]]),
        ("a, compact", "length (tokens); cells: exact answers in %", "depth of the key (0: the beginning)",
         [[0.25], [1.0]]),
        ("Tasks: piqa", "step", "mean of correct answers (%)", [[4, 25.0]]),
        ("Gradient norm", "step", "before clipping", [[1, 0.5], [2, 1.0]]),
        ("Learning rate", "step", "", [[1, 0.1], [2, 0.1]]), ("Speed", "step", "tokens per second", [[1, 9], [2, 9]]),
        ("Training", "tokens", "loss (nats per token)", [*zip((64, 128), losses)]),
        ("Training", "minutes", "loss (nats per token)", [*zip((1, 2), losses)])]
    sections = (section_answers.DIAGNOSTICS, section_answers.PASSKEY, section_answers.TASKS, section_training.STABILITY,
                section_training.SPEED, section_training.CURVES)
    panels = [panel for section in sections for panel in section.content(view)[1]]
    self.assertEqual(len(panels), len(expected))
    for panel, (*texts, numbers) in zip(panels, expected):
      axes = drawing.picture([panel]).axes[0]
      self.assertEqual([axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel()], texts)
      shown = axes.images[0].get_array() if axes.images else axes.lines[0].get_xydata()
      self.assertEqual(len(shown), len(numbers), texts)
      for row, wanted in zip(shown.tolist(), numbers):
        for one, other in zip(row, wanted):
          self.assertAlmostEqual(one, other, msg=texts)

  def test_panels_of_losses_and_sweeps(self):
    if drawing_python() != sys.executable:
      self.skipTest("no matplotlib")
    val = {"type": "val", "step": 2, "length": 16, "loss": 2.0, "of": {"label_mean": "batch"},
           "position_edges": [0, 1, 16], "by_position": [3.0, 2.0],
           "accuracy_by_position": [0.25, 0.5], "accuracy": 0.375, "exact": 0.125}
    lines = [{"type": "start", "config": CONFIG}, val, {**val, "length": 32, "loss": 3.0}]
    run = metrics.Run(self.make_run("a", lines))
    made = [{"labels": {"optimizer.lr": rate}, "seed": 1, "state": "complete", "why": "", "initial": 5.0, "loss": loss,
             "losses": {"16": loss}, "bits_per_byte": {}, "accuracy": {}, "exact": {}, "clipped": None, "name": rate}
            for rate, loss in (("0.001", 2.0), ("0.01", 3.0))]
    sweep = {"axes": {"optimizer.lr": ["0.001", "0.01"]}, "best_of": "", "mode": "windows", "seeds": [1],
             "lengths": [16], "context": 16, "runs": made}
    losses, share = "loss (nats per token)", "share of the targets that are the likeliest token"
    expected = [("Validation loss by length", "evaluated length (tokens)", losses, [[16, 2.0], [32, 3.0]]),
                ("Loss by position in windows of 32", "position (token)", losses, None),
                ("Accuracy by length", "evaluated length (tokens)", share, [[16, 0.375], [32, 0.375]]),
                ("Accuracy by position in windows of 32", "position (token)", share, None),
                ("Exact windows by length", "evaluated length (tokens)", "share of the windows with all targets right",
                 [[16, 0.125], [32, 0.125]]),
                ("One seed", "learning rate (optimizer.lr)", "validation " + losses, [[1e-3, 2], [1e-2, 3]])]
    panels = [*section_losses.lengths(View([run]))[1], *section_losses.accuracies(View([run]))[1]]
    panels.append(lambda axes: section_sweep.draw({**sweep, "chart": "lr"}, axes))
    for panel, (*texts, points) in zip(panels, expected, strict=True):
      axes = drawing.picture([panel]).axes[0]
      self.assertEqual([axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel()], texts)
      if points:
        self.assertEqual(axes.lines[0].get_xydata().tolist(), points)

  def test_what_the_heads_learned(self):
    learned = {"attn.sink": [[1.5, -0.25], None], "attn.score.slope": [[0.125, 2.0], [3.0, None]],
               "odd": 7, "none": [7]}
    groups = {"type": "groups", "time": 1.0, "step": 4, "norms": {}, "learned": learned}
    doubled = {**groups, "learned": {"attn.sink": [[2.5, -0.25], None]}}
    for seed, entry in ((1, groups), (2, doubled)):
      earlier = line(2, 16, 0.5, learned={"attn.sink": [[9, 9], [9, 9]]})
      self.diagnosed(f"s_{seed}", earlier, {**earlier, "step": 3}, entry, line(4, 16, 0.5), seed=seed)
    self.diagnosed("old", line(4, 16, 0.5), attention={"variant": "relu"})
    out = self.diagnose("s_1", "old", "--out", "x.png")
    for row in ("run | number | layer | head 0 | head 1", "s_1 | attn.sink | 0 | 1.5 | -0.25",
                "s_1 | attn.score.slope | 0 | 0.125 | 2", "s_1 | attn.score.slope | 1 | 3 | -"):
      self.assertIn(f"| {row} |\n", out + "\n")
    self.assertEqual(out.count("attn.sink"), 1)
    self.assertIn("| s_* (2 seeds) | attn.sink | 0 | 2 ± ", self.diagnose("s_1", "s_2", "--out", "x.png"))
    self.assertNotIn("head 0", self.diagnose("old", "--out", "x.png"))

  def test_seeds_are_one_line_and_one_map(self):
    passkey = lambda *exact: {"type": "passkey", "step": 4, "form": "compact", "length": 48, "depths": [0, 1],
                              "exact": exact, "distance": [9, 3]}
    for seed, exact in ((1, (0.5, 1.0)), (2, (0.0, 0.5))):
      self.diagnosed(f"_s_{seed}", line(4, 16, seed / 4), passkey(*exact), seed=seed)
    out = self.diagnose("_s_1", "_s_2", "--out", "x.svg")
    self.assertIn("| _s_* (2 seeds) | 4 | 0.375 ± 1.588 | 12.5% | 8 |", out)
    for text in ("First token: _s_*", "_s_* (2 seeds)", "Mean and range over up to 2 seeds"):
      self.assertIn(f"<!-- {text} -->", self.text_of("x.svg"))
    self.draw("passkey.py", "picture", "_s_1", "_s_2", "--out", "p.svg")
    picture = self.text_of("p.svg")
    for text in ("_s_* (2 seeds), compact", "By distance", "48", "25", "75"):  # %: means over the seeds
      self.assertIn(f"<!-- {text} -->", picture)

  def test_bad_input(self):
    a, b, none = self.diagnosed("a", line(4, 16, 0.5)), self.diagnosed("b", line(4, 64, 0.5)), self.diagnosed("none")
    for args, part in (([a, b], "--diagnostics --lengths 16"), ([a, "--length", 32], "--lengths 32"),
                       ([none], f"./train {none} --diagnostics"), (["absent"], "absent"),
                       ([a, "--out", "no/x.png"], "no/x.png"), ([a, "--out", "x.nonsense"], "x.nonsense")):
      self.diagnose(*args, code=2)
      self.assert_error(part)

  def test_damaged_lines_are_skipped(self):
    good = line(4, 16, 0.5)
    damaged = [{**good, "step": "4"}, {**good, "length": 0}, {**good, "layers": []}, {**good, "layers": 7},
               {**good, "layers": [7]}, {**good, "layers": [{"max": [], "heads": []}]},
               {**good, "layers": [*good["layers"], {**good["layers"][0], "heads": good["layers"][0]["heads"][:1]}]}]
    later = [{**entry, "step": entry["step"] if entry["step"] == "4" else 5} for entry in damaged]
    rows = section_answers.diagnosed(View([metrics.Run(self.diagnosed("a", *later, good))]))
    self.assertEqual(rows["step"].tolist(), [4])
    self.assertEqual(section_answers.by_head(rows)["first"].tolist(), [0.5, 0.25] * 2)

  def test_spike_score(self):
    rng = random.Random(1)
    for length, window, limit, huge in ((150, 128, 6, 0), (1999, 128, 6, 0), (1999, 128, 6, 1e25), (2500, 1000, 7, 0),
                                        (2500, 1000, 7, 1e8)):
      values = [3 + rng.gauss(0, 0.1) for _ in range(length)]
      values[9] += huge  # leaves no trace in the windows after it
      for at in (length - 1, length - 17, length - 18, window // 2):
        values[at] += rng.choice((2, -2))
      expected = 0
      for at in range(window, length):
        mean, before = statistics.fmean(values[at - window:at]), values[at - window:at]
        expected += abs(values[at] - mean) >= limit * math.dist(before, [mean] * window) / math.sqrt(window)
      share, *rest = metrics.spike_score(values)
      self.assertEqual(rest, [window, limit])
      self.assertAlmostEqual(share, expected / (length - window))
      self.assertGreater(share, 0)
    self.assertIsNone(metrics.spike_score([1.0] * 128))
    for odd in (None, math.inf, math.nan):
      self.assertIsNone(metrics.spike_score([1.0] * 200 + [odd]))
    self.assertEqual(metrics.spike_score([1.0] * 200)[0], 0)

  def test_uniform_reach(self):
    for length in (2, 3, 16, 37):
      expected = [0] * ((length - 1).bit_length() + 1)
      for i in range(2, length + 1):
        for j in range(1, i + 1):
          expected[(i - j).bit_length()] += 1 / i / (length - 1)
      for got, want in zip(section_answers.uniform_reach(length), expected):
        self.assertAlmostEqual(got, want)
    # distance 0, 1, 2 to 3: within 1, 2 and 4 tokens
    self.assertEqual(section_answers.cumulative([0.5, None, 0.25]), [(1, 0.5), (2, 0.5), (4, 0.75)])
