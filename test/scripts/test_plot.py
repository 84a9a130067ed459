"""scripts/plusgpt.py and plot.py: damaged lines, which evaluations belong together, tables, the picture's place."""
import functools
import html
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from unittest import mock

from support.scripts import DAMAGED, SCRIPTS, ScriptTest, drawing_python, tables_of

from lib import drawing, metrics, section_answers, section_losses, section_sweep, section_training, sections, variants
from lib.sections import View

CONFIG = {"model": {"context": 16}, "eval": {"lengths": [16], "tokens": 64}}
GOOD = [{"type": "start", "config": CONFIG},
        *({"type": "train", "step": step, "loss": 5.0 / step, "grad_norm": 1.0, "lr": 1e-3, "tokens_per_s": 100.0}
          for step in range(1, 9)),
        {"type": "val", "step": 8, "length": 16, "loss": 1.5, "tokens": 64}]
ODD = ['{"type":"train","step":9,"loss":1.0,"grad_norm":Infinity,"lr":"x","tokens_per_s":[]}',
       *({"type": "eval", "step": 9, "length": 16, "loss": 2.0, "by_position": bins, **more}
         for bins, more in (({"a": 1}, {}), ([], {}), ([1, None], {}), ([1, None], {"position_edges": [0, None, 16]})))]
VAL, TRAIN = ([{"name": name, "tokens": 900, "xxh64": name[0]}] for name in ("val.bin", "train.bin"))


def line(step, length, loss, kind="eval", data=VAL, asked=64, rope="none", **more):
  return {"type": kind, "time": 2e9, "step": step, "tokens": 8, "length": length, "loss": loss, **more,
          "of": {"data": data, "tokens_asked": asked, "windows": 3, "rope_scaling": rope}}


def suffix(length, loss, step=8, window=32, **more):
  return line(step, length, loss, mode="suffix", context_of=window, suffix=8, **more)


class Plot(ScriptTest):
  def trained(self, name="run", lines=()):
    return self.make_run(name, [*GOOD, *lines])

  def evaluated(self, name, *lines, **config):
    """The run of these evaluations alone."""
    return metrics.Run(self.make_run(name, [{"type": "start", "config": {**CONFIG, "name": name, **config}}, *lines]))

  def plot(self, *args, **options):
    self.tables = tables_of(self.draw("plot.py", *args, **options))
    return self.output

  def losses(self, *runs, mode="windows"):
    """{length: loss} of each series of the runs, by run."""
    found = View([*runs]).series(mode)
    return [{run.label: dict(zip(rows["length"], rows["loss"])) for number, run in enumerate(runs)
             if len(rows := series[series["run"] == number])} for series in found]

  def test_damaged_lines_are_skipped(self):
    with mock.patch("sys.stderr", io.StringIO()) as said:
      folders = self.trained("good"), self.trained("damaged", DAMAGED), self.path("damaged")
      good, damaged, _ = map(metrics.Run, folders)
    number = len(GOOD) + DAMAGED.index("[]") + 1  # the last line may be half written
    self.assertEqual(said.getvalue(), f"warning: {self.path('damaged')}/metrics.jsonl: line {number} is damaged and "
                                      "left out, and 4 more\n")
    self.assertEqual([run.config for run in (good, damaged)], [CONFIG] * 2)
    self.assertEqual(damaged.train(), good.train())
    self.assertEqual([(row["step"], row["length"], row["loss"]) for row in damaged.evaluations], [(8, 16, 1.5)])
    self.assertEqual(damaged.left_out, {})

  def test_odd_values_are_drawn_around(self):
    self.plot(self.trained("odd", DAMAGED[:-1] + ODD))
    self.assertTrue(os.path.exists(self.path("odd/loss.png")))

  def test_odd_configurations(self):
    for config in ({"model": 3, "eval": 4}, {"model": {"context": "16"}}, {}):
      with self.subTest(config):
        folder = self.trained("odd")
        self.write("odd/metrics.jsonl", json.dumps({"type": "start", "config": config}) + "\n" +
                   "".join(json.dumps(line) + "\n" for line in GOOD[1:]))
        self.plot(folder)
        shutil.rmtree(folder)

  def test_load(self):
    import plusgpt
    folder = self.trained("run", [line(8, 32, 1.75, data=TRAIN)])
    training, evaluations = plusgpt.load(folder)
    self.assertEqual(training["loss"].tolist(), [5.0 / step for step in range(1, 9)])
    self.assertEqual(evaluations[["type", "length", "loss"]].values.tolist(), [["val", 16, 1.5], ["eval", 32, 1.75]])
    self.assertEqual(evaluations["of.data"].iloc[1][0]["name"], "train.bin")
    self.assertEqual([*map(str, evaluations[["step", "length"]].dtypes)], ["Int64", "Int64"])
    self.assertAlmostEqual(plusgpt.half_width(training["loss"].head(2)), 12.7062 * 1.25, places=3)

  def test_loss_by_position(self):
    edges = {"position_edges": [0, 1, 50], "by_position": [4.0, None]}
    run = self.evaluated("run", line(8, 50, 2.0, **edges), line(8, 16, 1.5))
    rows = section_losses.in_unit(View([run]).series("windows")[0], "nats")
    self.assertEqual(section_losses.positions(rows)[["position", "value"]].values.tolist(), [[1.0, 4.0]])

  def test_positions_of_windows_that_all_have(self):
    at = lambda length: line(8, length, 2.0, position_edges=[0, length // 2, length], by_position=[3.0, 2.0])
    for name, lengths in (("a", (16, 32, 64)), ("b", (16, 32)), ("c", (8,))):
      self.evaluated(name, *map(at, lengths))
    self.evaluated("d", line(8, 128, 2.0))
    for runs, text in (("abd", "Loss by position in windows of 32"), ("a", "Loss by position in windows of 64"),
                       ("ac", "no length in common"), ("d", "Loss by position")):
      self.plot(*runs, "--out", "p.svg")
      self.assertIn(f"<!-- {text} -->", self.text_of("p.svg"))

  def test_looks_differ(self):
    runs = [self.evaluated(f"run{number}", line(8, 16, 1.5, data=TRAIN if number == 1 else VAL))
            for number in range(20)]
    self.assertEqual([look["label"] for look in View(runs).looks.values()][:2], ["run0", "run1"])
    looks = [variants.look(number) for number in range(64)]
    self.assertEqual(len({(look["color"], look["marker"]) for look in looks}), 64)
    self.assertEqual(len({(look["linestyle"], look["marker"]) for look in looks[:32]}), 32)  # on a print in grey

  def test_more_than_six_lines_are_named_at_their_ends(self):
    names = [f"run{number}" for number in range(9)]
    runs = [self.evaluated(name, line(8, 16, 1 + number), line(8, 32, 2 + number / 99))
            for number, name in enumerate(names)]
    for count in (6, 9):
      view = View(runs[:count])
      panels = section_losses.lengths(view)[1][:1]
      axes = drawing.picture(panels).axes[0] if drawing_python() == sys.executable else self.skipTest("no matplotlib")
      shown = {text.get_text(): text for text in axes.texts if text.get_text() in names}
      self.assertEqual((len(shown), bool(axes.get_legend())), ((0, True) if count == 6 else (9, False)))
      for number, name in enumerate(names if shown else ()):
        self.assertAlmostEqual(shown[name].xy[1], 2 + number / 99)  # its own line's end
        self.assertEqual(shown[name].get_color(), variants.look(number)["color"])
      axes.figure.canvas.draw()
      boxes = [shown[name].get_window_extent() for name in names if name in shown]
      for lower, upper in zip(boxes, boxes[1:]):
        self.assertGreaterEqual(upper.y0 + upper.y1, lower.y0 + lower.y1 + 16)  # in order, without overlaps

  def test_seeds_are_one_line_called_as_in_the_sweep(self):
    labels = {"softmax": ["softmax"], "gated": ["lssar", "softplus gate"]}
    for name, place, base in (("gated", 1, 1.0), ("softmax", 0, 2.0)):
      for seed in (1, 2):
        self.evaluated(f"s_{name}_{seed}_51ef57fa", line(8, 16, base + seed / 4), line(8, 32, base + seed), seed=seed,
                       attention={"variant": name})
        variants.write_note(self.path(f"s_{name}_{seed}_51ef57fa"), sweep="s", labels=labels[name], place=place)
    folders = sorted(os.listdir(self.folder))  # gated first
    softmax, gated = variants.of(metrics.read_runs([self.path(name) for name in folders]))
    self.assertEqual([softmax.label, gated.label], ["softmax (2 seeds)", "lssar, softplus gate (2 seeds)"])
    self.assertEqual([softmax.look, gated.look], [variants.look(0), variants.look(1)])
    alone, = variants.of(metrics.read_runs([self.path(name) for name in folders[:2]]))
    self.assertEqual(alone.look, variants.look(1))  # as in the sweep's picture
    output = self.plot(*folders, "--out", "p.svg")
    self.assertIn("| softmax (2 seeds) | 2.375 ± 1.588 | 3.500 ± 6.353 |\n"
                  "| lssar, softplus gate (2 seeds) | 1.375 ± 1.588 | 2.500 ± 6.353 |", output)
    gap = "lssar, softplus gate (2 seeds) - softmax (2 seeds)"
    self.assertIn([gap, "-1.000 ± <0.001", "-1.000 ± <0.001"], [row for table in self.tables for row in table])
    picture = self.text_of("p.svg")
    for text in ("Difference to softmax", "lssar, softplus gate (2 seeds)", "Mean and range over up to 2 seeds"):
      self.assertIn(f"<!-- {text} -->", picture)
    self.assertFalse("51ef57fa" in picture, "a run's folder is named")
    for name in folders[:2]:
      variants.write_note(self.path(name), labels=["softmax"])  # two variants of one label are called as their folders
    found = variants.of(metrics.read_runs([self.path(name) for name in folders]))
    self.assertEqual([variant.label for variant in found],
                     ["s_softmax_*_51ef57fa (2 seeds)", "s_gated_*_51ef57fa (2 seeds)"])

  def test_a_seed_that_was_not_evaluated_is_missed(self):
    for name, loss in (("a", 1.0), ("b", 2.0)):
      for seed in (1, 2):
        far = [line(8, 32, loss, window_losses=[loss, loss * 1.1])] * (seed == 1)
        self.evaluated(f"{name}_{seed}", line(8, 16, loss), *far, seed=seed, attention={"variant": name})
    output = self.plot("a_1", "a_2", "b_1", "b_2")
    self.assertIn("| a_* (2 seeds) | 1.000 | 1.000 (1 of 2 seeds) |", output)
    self.assertIn("| b_* (2 seeds) - a_* (2 seeds) | +1.000 ± <0.001 | +1.067 ± 0.047 (1 of 2 seeds) |", output)

  def test_smoothed_losses(self):
    self.assertEqual(section_training.smooth([3.0, 6.0, 3.0, 1e25, 2.0, 3.0, 1.0, 4.0]),
                     [3.0, 4.0, (9 + 1e25) / 3, (5 + 1e25) / 3, (5 + 1e25) / 3, 2.0, 8 / 3, 2.5])

  def test_mean_and_range_over_seeds(self):
    points = [(0, 1, 2.0), (0, 2, 1.0), (0, 3, 5.0), (1, 2, 4.0), (1, 1, 3.0)]
    rows = metrics.load_pandas().DataFrame(points, columns=["run", "x", "y"])
    self.assertEqual(drawing.over_seeds(rows, "x", "y").reset_index().values.tolist(),
                     [[1, 2.5, 2.0, 3.0, 2], [2, 2.5, 1.0, 4.0, 2]])

  def test_a_series_is_of_one_step_and_one_set_of_data(self):
    run = self.evaluated("run", line(8, 32, 1.0, data=TRAIN), line(4, 8, 5.0, "val"), line(8, 16, 1.5, "val"),
                         line(8, 64, 1.1, data=TRAIN), line(8, 16, 1.2, asked=640), line(8, 32, 1.3, rope="yarn"),
                         line(8, 48, 1.6), line(4, 16, 9.0))
    self.assertCountEqual(self.losses(run), [{"run": found} for found in (
        {32: 1.0, 64: 1.1}, {16: 1.5, 48: 1.6}, {16: 1.2}, {32: 1.3})])
    self.plot("run")
    for text in ("train.bin, 64 tokens asked", "val.bin, 640 tokens asked", "64 tokens asked, rope_scaling yarn"):
      self.assertIn(text + ":", self.output)

  def test_lines_of_older_programs_are_named(self):
    old = {**line(8, 16, 1.0), "id": None}
    run = self.evaluated("run", old, {"type": "task", "step": 8, "task": "piqa", "id": None}, line(4, 16, 2.0))
    self.assertEqual([row["loss"] for row in run.evaluations], [2.0])
    note, = View([run]).notes()
    self.assertRegex(note.text, r"^run: 2 evaluations left out: 2 of an older program, .*\./train RUN --eval --resume")
    self.assertEqual(metrics.load(run.folder).evaluations["loss"].tolist(), [2.0])
    self.evaluated("old", old)
    self.plot("old", code=2)
    self.assert_error("old/metrics.jsonl holds no losses yet; run ./train")

  def test_another_window_is_another_series(self):
    other = line(8, 32, 9.0)
    other["of"]["window"] = 16
    run = self.evaluated("run", line(8, 16, 1.5, "val"), line(8, 32, 1.6), other)
    self.assertEqual(self.losses(run), [{"run": {16: 1.5, 32: 1.6}}, {"run": {32: 9.0}}])
    self.assertIn("Loss of val.bin, 64 tokens asked, window 16:", self.plot("run"))

  def test_what_acts_beyond_the_trained_length_is_named(self):
    self.evaluated("run", line(8, 16, 1.5, series="w"), line(8, 32, 1.6, rope="yarn", series="w"),
                   suffix(16, 1.5, series="s"), suffix(32, 1.6, rope="yarn", series="s"))
    self.assertEqual(self.plot("run").count("64 tokens asked, rope_scaling yarn"), 2)

  def test_a_table_for_each_set_of_data(self):
    for name, data in (("a", VAL), ("b", TRAIN), ("c", VAL)):
      self.evaluated(name, line(8, 16, 1.5, "val", data))
    output = self.plot("a", "b", "c", "--out", "p.svg")
    self.assertIn("Loss of val.bin, 64 tokens asked:\n\n"
                  "| validation loss at length | 16 |\n|---|---|\n| a | 1.500 |\n| c | 1.500 |\n\n"
                  "Loss of train.bin, 64 tokens asked:\n\n", output)

  def test_differences_are_paired_and_weighted(self):
    a = self.evaluated("a", line(8, 16, 1.0, window_losses=[1.0, 1.0]))
    b = self.evaluated("b", line(8, 16, 1.3, window_losses=[1.1, 1.4]))
    row_of = lambda run: run.losses()[0]
    mean, error = metrics.paired(row_of(b), row_of(a))  # of 1 and 2 windows
    self.assertAlmostEqual(mean, (0.1 + 2 * 0.4) / 3)
    self.assertAlmostEqual(error, ((0.2 ** 2 + 2 * 0.1 ** 2) / 1 / 3) ** 0.5)
    others = [self.evaluated("c", line(8, 16, 1.0, data=TRAIN, window_losses=[1.0, 1.0])),
              self.evaluated("d", line(8, 16, 1.0)),
              self.evaluated("e", line(8, 16, 1.0, window_losses=[1.0, 1.0, 1.0]))]
    self.assertEqual([metrics.paired(row_of(b), row_of(run)) for run in others], [None] * 3)
    output = self.plot("a", "b", "d", "--baseline", "./b/")
    self.assertIn("| difference in nats at length | 16 |\n|---|---|\n| a - b | -0.300 ± 0.141 |\n\n", output)
    self.plot("a", "b", "--baseline", "d", code=2)

  def test_differences_of_labels_are_weighed_as_the_loss(self):
    """By windows the first would be 0, with the losses -1.5 and 1.5 on the other side."""
    groups = {"a": [2.0, 2.0, 5.0], "b": [1.0, 1.0, 7.0]}
    def gap(mean, **more):
      asked = line(8, 16, 2.0, **more)
      asked["of"]["label_mean"] = mean
      a, b = (self.evaluated(name, {**asked, "window_losses": losses}).losses()[0] for name, losses in groups.items())
      return metrics.paired(b, a)
    found = gap("batch", window_labels=[15, 4, 1])
    self.assertAlmostEqual(found[0], (-15 - 4 + 2) / 20)
    self.assertAlmostEqual(found[1], (3 / 2 * (15 ** 2 * 0.15 ** 2 + 4 ** 2 * 0.15 ** 2 + 2.85 ** 2)) ** 0.5 / 20)
    self.assertAlmostEqual(gap("sequence")[0], 0)
    self.assertEqual([gap("batch"), gap("batch", window_labels=[1, 2])], [None] * 2)

  def test_the_same_targets_by_context(self):
    run = self.evaluated("a", suffix(64, 9.0, window=64), suffix(24, 9.0, step=4), suffix(8, 2.0), suffix(16, 1.25),
                         suffix(32, 1.0), line(8, 16, 1.5, mode="windows"))
    self.assertEqual(self.losses(run, mode="suffix"), [{"a": {64: 9.0}}, {"a": {8: 2.0, 16: 1.25, 32: 1.0}}])
    self.evaluated("b", suffix(8, 3.0), suffix(32, 4.0))
    self.evaluated("c", suffix(8, 5.0, data=TRAIN))
    self.plot("a", "b", "c", "--out", "p.svg")
    head = "Loss of the last 8 targets in windows of %d of %s.bin, 64 tokens asked, by the context"
    for of in (32, "val"), (64, "val"), (32, "train"):
      self.assertIn(head % of, self.output)
    name = "validation loss with context"
    self.assertEqual([table for table in self.tables if table[0][0] == name], [
        [[name, "8", "16", "32"], ["a", "2.000", "1.250", "1.000"], ["b", "3.000", "-", "4.000"]],
        [[name, "64"], ["a", "9.000"]], [[name, "8"], ["c", "5.000"]]])
    self.assertIn("context of the same targets", self.text_of("p.svg"))

  def test_evaluations_under_another_name_join_the_run_of_their_weights(self):
    of = lambda entry: {**entry, "weights": {"run": "s_a_1", "xxh64": "1"}}
    start = lambda name: {"type": "start", "config": {**CONFIG, "name": name}}
    self.make_run("s_a_1", [start("s_a_1"), {"type": "train", "step": 8, "loss": 1.0}, of(line(8, 16, 1.5))])
    self.make_run("same", [start("same"), of(suffix(8, 2.0)), of(suffix(16, 1.25)), of(line(8, 16, 4.0, rope="yarn"))])
    runs = metrics.read_runs([*map(self.path, ("same", "s_a_1"))])
    view = View(runs)
    self.assertEqual([run.label for run in view.runs], ["s_a_1"])
    self.assertEqual([rows["loss"].tolist() for rows in view.series("windows")], [[4.0], [1.5]])
    self.assertEqual([rows["loss"].tolist() for rows in view.series("suffix")], [[2.0, 1.25]])
    self.assertEqual(self.losses(runs[0], mode="suffix"), [{"same": {8: 2.0, 16: 1.25}}])  # alone

  def test_a_run_of_contexts_alone(self):
    self.evaluated("a", suffix(8, 2.0), suffix(16, 1.25))
    said = self.plot("a", "--out", "p.svg")
    self.assertTrue(said.startswith("Loss of the last 8 targets in windows of 32 of val.bin, 64 tokens asked, by"))
    self.assertEqual(self.tables[-1], [["run", "step", "loss at trained length (nats)"], ["a", "8", "1.250"]])
    self.assertIn("<!-- a -->", self.text_of("p.svg"))  # in the legend

  def test_weights_of_another_run(self):
    of = lambda run, **more: line(8, 16, 2.0, weights={"run": run, "xxh64": run}, **more)
    start = {"type": "start", "config": {**CONFIG, "name": "s2"}}
    train = {"type": "train", "step": 1, "loss": 1.0}
    suffixes = of("sm", mode="suffix", context_of=32, suffix=8)
    continued = [{"type": "start", "config": {**CONFIG, "name": "sm"}}, train, of("sm"), start, train, of("s2")]
    for name, lines, own, left_out in (
        ("moved", [start, train, of("s2"), of("sm")], 1, {"of the weights of sm": 1}),
        ("alone", [start, of("other"), of("sm")], 1, {"of the weights of other": 1}),  # of the run it looks at
        ("none", [start, train, of("sm"), suffixes], 0, {"of the weights of sm": 2}),
        ("both", continued, 2, {})):  # it continues a copy of another
      run = metrics.Run(self.make_run(name, lines))
      view = View([run])
      self.assertEqual((len(view.evaluations), view.left_out[run]), (own, left_out), name)

  def test_units(self):
    shares = {"accuracy": 0.625, "accuracy_stderr": 0.1, "exact": 0.25, "exact_stderr": 0.2, "stderr": 0.5,
              "accuracy_by_position": [0.5, 0.75], "by_position": [2.5, 1.5], "position_edges": [0, 8, 16]}
    runs = [self.evaluated("a", line(8, 16, 2.0, bits_per_byte=0.75, **shares)),
            self.evaluated("b", line(8, 16, 800.0))]
    series, = View(runs).series("windows")
    for unit, cells, error, points in (
        ("nats", ["2.000", "800.000"], 0.5, [2.5, 1.5]), ("perplexity", ["7.389", "inf"], 4.793, [12.182, 4.482]),
        ("bits_per_byte", ["0.750", "-"], 0.1875, [0.9375, 0.5625]),
        ("accuracy", ["0.625", "-"], 0.1, [0.5, 0.75]), ("exact", ["0.250", "-"], 0.2, [])):
      rows = section_losses.in_unit(series, unit)
      self.assertAlmostEqual(rows["error"].iloc[0], error, places=3)
      found = section_losses.positions(rows)
      self.assertEqual([[at, round(value, 4)] for at, value in found[["position", "value"]].values.tolist()],
                       [[at, round(value, 4)] for at, value in zip((4.5, 12.5), points)]) if unit != "perplexity" else (
                           self.assertAlmostEqual(found["value"].iloc[0], points[0], places=2))
      self.plot("a", "b", "--unit", unit, "--out", "p.svg")
      self.assertEqual([row[1] for row in self.tables[0][1:]], cells)
      name = {"nats": "Validation loss", "perplexity": "Perplexity", "bits_per_byte": "Bits per byte",
              "accuracy": "Accuracy", "exact": "Exact windows"}[unit]
      self.assertIn(f"<!-- {name} by length -->", self.text_of("p.svg"))

  def test_settings_that_differ(self):
    variant = lambda name, lr, power, loss: self.evaluated(
        f"{name}{lr}", line(8, 16, loss), optimizer={"lr": lr, "eps": 1},
        attention={"variant": name, "kind": name, "power": power})
    runs = [variant("softmax", 1, 15, 1.5), variant("lssar", 1, 15, 1.25), variant("lssar", 2, 3, 1.0)]
    self.assertEqual(sections.in_markdown(section_losses.settings(View(runs))[0][1]).splitlines(), [
        "| run | optimizer.lr | attention.variant | attention.power | step | loss at trained length (nats) |",
        "|---|---|---|---|---|---|", "| lssar2 | 2 | lssar | 3 | 8 | 1.000 |",
        "| lssar1 | 1 | lssar | 15 | 8 | 1.250 |", "| softmax1 | 1 | softmax | 15 | 8 | 1.500 |"])

  def test_tables_without_matplotlib(self):
    self.write("matplotlib.py", "raise ImportError")
    output = self.run_script("plot.py", self.trained("run"), code=2, env={**os.environ, "PYTHONPATH": self.folder})
    self.assertIn("| run | 1.500 |", output)
    self.assert_error("pip install matplotlib", "scripts/install_deps.sh")

  def test_names_that_look_like_markup(self):
    names = ["_base", "__init", "$\\frac$", "a|b", "`c` *d* [e](f) <g> &h", "_i_ 1.", "two\nlines",
             " ".join(["long"] * 40)]
    output = self.plot(*map(self.trained, names), "--out", "p.svg")
    drawn = [html.unescape(text) for text in re.findall("<!-- (.*?) -->", self.text_of("p.svg"))]
    for name in [*names[:6], "two lines", " ".join(["long"] * 40)[:37] + "..."]:
      self.assertGreaterEqual(drawn.count(name), 1, name)  # at the ends of its lines
    for row in re.findall(r"^\|.*", output.split("\n\n")[1], re.MULTILINE):
      self.assertEqual(len(re.findall(r"(?<!\\)\|", row)), 3, row)  # two columns
    with mock.patch.object(drawing, "picture"):
      self.draw("report.py", *names)
    text = self.text_of("report.md")
    for name in (r"\_base", r"\_\_init", r"\$\\frac\$", r"a\|b", r"\`c\` \*d\* \[e\](f) &lt;g&gt; &amp;h",
                 r"\_i\_ 1.", "two lines", " ".join(["long"] * 40)):
      self.assertIn(f"\n| {name} | ", text)

  def nameless(self, name, *lines):
    """The run of these lines, whose evaluations are of its own weights."""
    return metrics.Run(self.make_run(name, [GOOD[0], *lines]))

  def axes_of(self, draw):
    if drawing_python() != sys.executable:
      self.skipTest("no matplotlib")
    return drawing.picture([draw]).axes[0]

  def test_the_ends_of_curves_are_in_the_picture(self):
    falling = lambda end: [{"type": "train", "step": step, "loss": 11.0 if step < 3 else end} for step in range(1, 99)]
    runs = [self.nameless(name, *falling(end), line(0, 16, 12.0, "val"), line(98, 16, end + over, "val"))
            for name, end, over in (("a", 3.0, -1.0), ("b", 5.0, 1.0))]
    axes = self.axes_of(functools.partial(section_training.draw_losses, View(runs)))
    low, high = axes.get_ylim()
    self.assertTrue(1 < low < 2 and 6 < high < 11, (low, high))
    self.assertIn([98, 3.0], axes.lines[1].get_xydata().tolist())
    self.assertIn([98, 2.0], axes.lines[2].get_xydata().tolist())
    of_steps = [line(step, 16, step / 2, "val", asked=asked) for step, asked in ((2, 64), (4, 640), (8, 640))]
    run = self.nameless("resumed", {"type": "train", "step": 8, "loss": 3.0}, *of_steps)
    axes = self.axes_of(functools.partial(section_training.draw_losses, View([run])))
    self.assertEqual(axes.lines[2].get_xydata().tolist(), [[4, 2.0], [8, 4.0]])

  def test_panels_draw_the_numbers_of_the_tables(self):
    a, b = (self.nameless(name, {"type": "train", "step": 3, "loss": 2.0, "grad_norm": 0.5 + more},
                           line(8, 16, 1.5 + more, position_edges=[0, 4, 16], by_position=[3.0, 1.0 + more],
                                stderr=0.25, window_losses=[1.0, 1.5 + 1.5 * more]), line(8, 32, 2.0),
                           suffix(8, 3.0 + more), suffix(32, 2.0)) for name, more in (("a", 0.0), ("b", 0.5)))
    view = View([a, b])
    of_lines = lambda axes, number=2: [drawn.get_xydata().tolist() for drawn in axes.lines[:number]]
    of_bars = lambda axes: [bars.lines[0].get_xydata().tolist() for bars in axes.containers]
    lengths, positions, differences = section_losses.lengths(view)[1]
    axes = self.axes_of(lengths)
    self.assertEqual(of_bars(axes), [[[16, 1.5], [32, 2.0]], [[16, 2.0], [32, 2.0]]])
    self.assertEqual(axes.containers[1].lines[2][0].get_segments()[0].tolist(), [[16, 1.75], [16, 2.25]])
    self.assertEqual(of_lines(self.axes_of(positions)), [[[2.5, 3.0], [10.5, 1.0]], [[2.5, 3.0], [10.5, 1.5]]])
    self.assertEqual(of_bars(self.axes_of(differences)), [[[16, 0.5]]])  # of one window and two: 0 and 0.75
    contexts, = section_losses.contexts(view)[1]
    self.assertEqual(of_lines(self.axes_of(contexts)), [[[8, 3.0], [32, 2.0]], [[8, 3.5], [32, 2.0]]])
    norms = section_training.stability(view)[1][0]
    self.assertEqual(of_lines(self.axes_of(norms)), [[[3, 0.5]], [[3, 1.0]]])

  def test_labels_of_a_sweep_that_look_like_markup(self):
    for chart in ("lengths", "lines", "bars", "lr"):
      runs = [{"labels": {"x": x, "y": y}, "seed": 1, "state": "complete", "initial": 5.0, "loss": float(x),
               "losses": {"16": float(x)}} for x in "12" for y in ("_a", "$b$")]
      result = {"chart": chart, "axes": {"x": ["1", "2"], "y": ["_a", "$b$"]}, "seeds": [1], "lengths": [16],
                "context": 16, "runs": runs}
      axes = self.axes_of(functools.partial(section_sweep.draw, result))
      if chart == "bars":
        self.assertEqual([bar.get_height() for bar in axes.patches], [1.0, 2.0] * 2)
      elif chart != "lengths":
        self.assertEqual(axes.lines[0].get_xydata().tolist(), [[1, 1.0], [2, 2.0]])
      for run in runs:
        run["accuracy"] = {"16": float(run["labels"]["x"]) / 4}
      shares = self.axes_of(functools.partial(section_sweep.draw, {**result, "context": 16}))
      self.assertEqual(shares.get_ylabel(), "accuracy of the labels")
      if chart == "lr":
        self.assertEqual(shares.lines[0].get_xydata().tolist(), [[1, 0.25], [2, 0.5]])
      self.assertEqual(section_sweep.of_key("optimizer.lr"), "learning rate (optimizer.lr)")
      drawing.legend(axes)
      shown = [text.get_text() for text in axes.get_legend().get_texts()]
      self.assertEqual(len(shown), 4 if chart == "lengths" else 2)
      for text, label in zip(shown[-2:], ("_a", r"\$b\$")):
        self.assertEqual(text.replace("2, ", "").partition(" (")[0], label)

  def test_texts_of_a_sweep_do_not_overlap(self):
    for chart, rows, columns in (("lengths", 1, ()), ("lengths", 13, ()), ("lines", 4, ["1000", "1024", "4096"]),
                                 ("lines", 1, ["a_name_that_is_rather_" + "long_" * 9 + str(n) for n in range(3)])):
      kinds = [f"a kind of attention whose name is number {number}" for number in range(rows)]
      runs = [{"labels": {"x": x, "kind": kind}, "seed": 1, "state": "complete", "initial": 5.0, "loss": 1.0,
               "losses": {"1000": 1.0, "1024": 2.0, "4096": 3.0}} for x in columns or ["x"] for kind in kinds]
      result = {"chart": chart, "axes": {"x": columns or ["x"], "kind": kinds}, "seeds": [1],
                "lengths": [1000, 1024, 4096], "context": 1024, "runs": runs}
      panel = functools.partial(section_sweep.draw, result)
      figure = drawing.picture([panel]) if self.axes_of(panel) else None
      figure.canvas.draw()
      axes, renderer = figure.axes[0], figure.canvas.get_renderer()
      if rows <= drawing.NAMED:
        self.assertLess(axes.get_legend().get_window_extent().y1, axes.xaxis.get_tightbbox(renderer).y0 + 2)
      boxes = [text.get_window_extent() for text in axes.get_xticklabels()
               if text.get_text() and not text.get_rotation()]
      for left, right in zip(boxes, boxes[1:]):
        self.assertLess(left.x1, right.x0)
    self.assertEqual(drawing.in_text("Difference to a_long_name_of_a_kind", 30),
                     "Difference to a_long_name_of_\na_kind")

  def test_the_rate_0_stands_apart(self):
    runs = [{"labels": {"x": x}, "seed": 1, "state": "complete", "initial": 5.0, "loss": 1.0, "losses": {"16": 1.0}}
            for x in ("0", "0.001", "0.01")]
    result = {"chart": "lr", "axes": {"x": ["0", "0.001", "0.01"]}, "seeds": [1], "lengths": [16], "runs": runs}
    axes = self.axes_of(functools.partial(section_sweep.draw, result))
    places = [axes.transData.transform((x, 1))[0] / axes.bbox.width for x in (0, 0.001, 0.01)]
    self.assertTrue(min(places[1] - places[0], places[2] - places[1]) > 0.2, places)

  def test_the_picture_is_where_it_says(self):
    folder = self.trained("run")
    os.mkdir(self.path("pictures"))
    for out, path in (("p3", "p3.png"), ("p.svg", "p.svg"), ("pictures", "pictures/loss.png"),
                      ("pictures/", "pictures/loss.png")):
      self.assertIn(f"picture: {path}\n", self.plot(folder, "--out", out))
      os.remove(self.path(path))
    self.plot(folder, "--out", "p.xyz", code=2)
    self.assertEqual(self.plot(folder, "--out", "nosuch/p.png", code=2), "")  # before the work

  def test_runs_that_were_only_evaluated_have_no_empty_panels(self):
    self.evaluated("a", line(8, 16, 1.5), line(8, 32, 1.5))
    for flags in (), ("--brief",):
      self.plot("a", "--out", "p.svg", *flags)
      for title in ("Loss by context", "Training", "Gradient norm", "Learning rate", "Speed"):
        self.assertNotIn(f"<!-- {title}", self.text_of("p.svg"))
      self.assertIn("<!-- Validation loss by length -->", self.text_of("p.svg"))

  def test_tasks(self):
    task = lambda step, score, task="piqa", **more: {"type": "task", "step": step, "task": task, "n": 4,
                                                     "max_length": 16, "acc": 0.5, "acc_norm": score, **more}
    a = metrics.Run(self.trained("a", [task(0, 0.25), task(0, 0.5, "sciq"), task(4, 0.5),
                                       task(4, None, "sciq", acc=0.75), task(8, 0.5)]))
    b = metrics.Run(self.trained("b", [task(8, 0.25), task(8, 1.0, "sciq"), task(8, 0.125, n=3), task(8, 1.0, "arc")]))
    none = metrics.Run(self.trained("none"))
    means, names = section_answers.task_scores(View([a, b, none]))
    self.assertEqual(names, ["piqa", "sciq"])
    self.assertEqual(means[["variant", "step", "mean"]].values.tolist(),
                     [["a", 0, 37.5], ["a", 4, 62.5], ["b", 8, 62.5]])
    self.assertEqual(section_answers.tasks(View([none])), ([], []))
    other = metrics.Run(self.trained("other", [task(8, 0.125, n=3)]))
    self.assertTrue(section_answers.task_scores(View([a, other]))[0].empty)
    self.plot(*(self.path(name) for name in "ab"))

  def test_a_run_given_twice(self):
    self.trained("run")
    os.symlink("run", self.path("same"))
    output = self.plot("run", "./run/", "run/metrics.jsonl", "same", "--baseline", "same", alone=True)
    self.assertEqual([line for line in output.splitlines() if line.startswith("| ")], [
        "| validation loss at length | 16 |", "| run | 1.500 |", "| run | step | loss at trained length (nats) |",
        "| run | 8 | 1.500 |"])

  def test_the_end_of_a_pipe(self):
    python = drawing_python() or self.skipTest("no matplotlib")
    for script in ("plot.py", "report.py"):
      reader, writer = os.pipe()
      os.close(reader)
      done = subprocess.run([python, os.path.join(SCRIPTS, script),
                             self.path("run") if script == "report.py" else self.trained("run")],
                            stdout=writer, stderr=subprocess.PIPE, text=True, cwd=self.folder)
      os.close(writer)
      self.assertEqual((done.returncode, done.stderr), (-signal.SIGPIPE, ""))

  def test_runs_of_one_name_are_told_apart(self):
    folders = [self.trained(name) for name in ("a/run", "b/run", "other")]
    self.assertEqual([run.label for run in metrics.read_runs(folders)], ["a/run", "b/run", "other"])
    self.assertEqual(metrics.read_runs(folders[:1])[0].label, "run")
