"""scripts/report.py: what the page holds, that it stands alone, and what it says of unfair comparisons."""
import contextlib
import csv
import json
import os
import re
from unittest import mock

from support.scripts import DAMAGED, ScriptTest, tables_of

from lib import drawing  # from SCRIPTS

CONFIG = {"seed": 1, "model": {"context": 16}, "attention": {"variant": "softmax"},
          "optimizer": {"lr": 0.01, "grad_clip": 1}, "train": {"steps": 8}, "eval": {"lengths": [16, 32]}}
FEW = "37.5% (2 seeds are too few for an interval)"


def lines(base=1.5, config=(), steps=8, seed=1, **start):
  """Of a run whose losses lie around base, with numbers of its own in every field."""
  config = {**CONFIG, "seed": seed, **dict(config)}
  of = {"data": [{"name": "val.bin", "tokens": 900, "xxh64": "v"}], "windows": 4, "tokens_asked": 64}
  result = [{"type": "start", "time": 1e9, "config": config, "commit": "abc", "command": "./train c.json",
             "device": "CPU", "versions": {"backend": "cpu"}, "parameters": 1234567, "flops_per_token": 7.5e6, **start}]
  result += [{"type": "train", "time": 1e9 + step, "step": step, "loss": base + 4 / step,
              "grad_norm": 0.5 * step, "lr": 0.01, "tokens": 64 * step, "tokens_per_s": 1000.0 + step, "mfu": 0.25,
              "ms": 36000.0} for step in range(1, steps + 1)]
  result += [{"type": "val", "time": 1e9 + 9, "step": steps, "length": length, "loss": base + extra, "stderr": 0.01,
              "last_loss": base + 2 * extra, "window_losses": [base + extra + (-0.1) ** g for g in range(4)],
              "position_edges": [0, 8, length], "by_position": [base, base + extra], "of": of}
             for length, extra in ((16, 0.25), (32, 0.375))]
  return result


class Report(ScriptTest):
  def report(self, *flags, code=0, **options):
    pictures = contextlib.nullcontext() if options else mock.patch.object(drawing, "picture")  # most of the time
    with pictures:
      self.draw("report.py", *flags, code=code, **options)
    if code == 0:
      self.source = self.text_of("report.md")
      self.tables = tables_of(self.source)

  def summary(self):
    """{run: {column: text}}"""
    head, *rows = self.tables[0]
    return {row[0]: dict(zip(head[1:], row[1:])) for row in rows}

  def table(self, first, *cells):
    """The table whose head begins with these cells, with its head."""
    found, = (table for table in self.tables if table[0][:1 + len(cells)] == [first, *cells])
    return found

  def rows(self):
    return [row for table in self.tables for row in table]

  def warnings(self):
    found = re.findall(r"^> \*\*Warning:\*\* (.*)", self.source, re.MULTILINE)
    return [re.sub(r"\\(.)", r"\1", text) for text in found]

  def test_one_run(self):
    self.make_run("a", lines())
    self.report("a", "--title", "A <b> & c")
    self.assertTrue(self.source.startswith("# A &lt;b&gt; &amp; c\n"))
    self.assertEqual(self.summary()["a"], {
        "parameters": "1,234,567", "tokens": "512", "minutes": "4.8", "loss at 16": "1.750", "loss at 32": "1.875",
        "end of 32": "2.250", "tokens/s": "1,004", "MFU": "25.0%"})
    self.assertIn([["run", "16", "32"], ["a", "+0.000", "+0.125"]], self.tables)  # less the loss at 16
    self.assertIn("1 run, newest line of 2001-09-09 01:46 UTC", self.source)
    for section in ("Tasks: ./train RUN --tasks", "Passkey retrieval: ./train RUN --passkey",
                    "Diagnostics: ./train RUN --diagnostics", "Sweeps: python3 scripts/sweep.py"):
      self.assertIn(section, self.source)

  def test_the_page_and_its_files(self):
    self.make_run("a", lines(base=2))
    self.make_run("b", lines(base=2.25))
    self.report("a", "b", alone=True)
    first = self.source
    self.report("a", "b", "--csv", "csv", "--latex", "tex/x", alone=True)
    self.assertEqual(first, self.source)  # equal inputs, equal pages
    pictures = re.findall(r"!\[.*?\]\((\w+\.png)\)", self.source)
    self.assertEqual(sorted(pictures), sorted(name for name in os.listdir(self.folder) if name.endswith(".png")))
    self.assertEqual(len(self.tables), len(os.listdir(self.path("csv"))))
    self.assertEqual(len(self.tables), len(os.listdir(self.path("tex/x"))))
    self.assertIn("a & 2.250 & 2.375 \\\\\nb & 2.500 & 2.625 \\\\\n", self.text_of("tex/x/lengths.tex"))
    with open(self.path("csv/differences.csv"), newline="", encoding="utf-8") as file:
      rows = [[row[0], row[1], *(f"{float(cell):.6f}" for cell in row[2:])] for row in [*csv.reader(file)][1:]]
    self.assertEqual(rows, [["b - a", n, "0.250000", "0.000000"] for n in ("16", "32")])

  def test_html(self):
    self.make_run("a", lines())
    self.draw("report.py", "a", "--out", "x.html")
    page = self.text_of("x.html")
    self.assertIn("<td>1.750</td>", page)
    self.assertIn('src="x_lengths.png"', page)

  def test_each_number_is_in_its_column(self):
    for number in range(3):
      self.make_run(f"r{number}", lines(1.5 + number / 7, [("optimizer", {"lr": number, "grad_clip": 1})], 5 + number))
    self.report("r0", "r1", "r2")
    for number in range(3):
      base, steps = 1.5 + number / 7, 5 + number
      self.assertEqual(self.summary()[f"r{number}"], {
          "parameters": "1,234,567", "tokens": str(64 * steps), "minutes": f"{0.6 * steps:.3g}",
          "loss at 16": f"{base + 0.25:.3f}", "loss at 32": f"{base + 0.375:.3f}", "end of 32": f"{base + 0.75:.3f}",
          "tokens/s": f"{1000 + (steps + 1) // 2:,}", "MFU": "25.0%"})
      self.assertEqual(self.table("run", "largest norm")[1 + number], [
          f"r{number}", f"{0.5 * steps:.3f}", f"{1 - 2 / steps:.1%}", "0", "no"])
      self.assertIn([f"r{number}", "1,234,567", "7.5e+06", str(steps), str(64 * steps), f"{0.6 * steps:.3g}", "CPU",
                     "abc", "backend cpu"], self.tables[1])

  def test_seeds_are_one_row(self):
    names = [self.make_run(f"x_{variant}_{seed}_1a2b",
                           lines(base + seed / 10, [("attention", {"variant": variant})], seed=seed))
             for variant, base in (("softmax", 1.0), ("lssar", 1.5)) for seed in (1, 2)]
    self.report(*names)
    self.assertEqual({name: row["loss at 16"] for name, row in self.summary().items()},
                     {"x_softmax_*_1a2b (2 seeds)": "1.400 ± 0.635", "x_lssar_*_1a2b (2 seeds)": "1.900 ± 0.635"})
    paired, = (table for table in self.tables if table[0][0] == "difference in nats at length")
    self.assertEqual(paired[1], ["x_lssar_*_1a2b (2 seeds) - x_softmax_*_1a2b (2 seeds)", "+0.500 ± <0.001",
                                 "+0.500 ± <0.001"])
    self.assertEqual(self.warnings(), [])
    far = self.make_run("x_far_1_1a2b", lines(3.0, [("attention", {"variant": "far"})]))
    self.report(*names, far)
    self.assertIn("± is the 95% interval of a mean over seeds", self.source)

  def test_hours_of_long_runs(self):
    long = lines()
    for entry in long[1:9]:
      entry["ms"] = 3.6e6
    self.make_run("a", long)
    self.make_run("b", lines())
    self.report("a", "b")
    self.assertEqual([row["hours"] for row in self.summary().values()], ["8", "0.08"])

  def test_few_other_parameters_are_no_warning(self):
    self.make_run("a", lines(parameters=924416))
    other = lines(parameters=924448)
    for entry in other[-2:]:
      entry["bits_per_byte"] = entry["loss"] / 2
    self.make_run("b", other)
    self.report("a", "b")
    self.assertIn("Parameters differ: from 924,416 to 924,448, by 0.003%.", self.source)
    self.assertFalse([warning for warning in self.warnings() if "Parameters" in warning])
    self.assertEqual([row["bits per byte at 16"] for row in self.summary().values()], ["-", "0.875"])

  def test_accuracy_of_labels(self):
    """A section of its own, of evaluations with labels alone."""
    for name, labels in (("a", ["l.bin"]), ("b", [])):
      content = lines(config=[("data", {"val": ["val.bin"], "val_labels": labels})])
      for entry, share in zip(content[-2:], (0.75, 0.5)):
        entry.update(accuracy=share, accuracy_stderr=0.125, exact=share / 2, exact_stderr=0.25,
                     accuracy_by_position=[share, 0.25],
                     of={**entry["of"], **({"label_mean": "sequence"} if labels else {})})
      self.make_run(name, content)
    self.report("a", "b")
    tables = {table[0][0]: table[1:] for table in self.tables}
    self.assertEqual(tables["accuracy at length"], [["a", "0.750", "0.500"]])
    self.assertEqual(tables["exact windows at length"], [["a", "0.375", "0.250"]])
    self.assertIn("Accuracy of labels", self.source)

  def test_seeds_are_one_row_of_every_table(self):
    task = {"type": "task", "step": 8, "task": "piqa", "n": 20, "max_length": 16, "xxh64": "f", "acc": 0.5,
            "stderr": 0.1}
    key = {"type": "passkey", "step": 8, "form": "compact", "length": 16, "trials": 5, "depths": [0, 1],
           "distance": [9, 3]}
    for seed in (1, 2, 3):
      content = lines(1 + seed / 10, seed=seed, config=[("task", {"samples": self.path("answers.jsonl")})])
      content += [{**task, "acc_norm": seed / 4}] + [{**key, "exact": [seed / 4, seed / 4]}] * (seed < 3)
      self.make_run(f"s_{seed}", content)
    self.write("answers.jsonl", "")
    self.report("s_1", "s_2", "s_3")
    tables = {tuple(table[0][:2]): table[1:] for table in self.tables if table[0][0] == "run"}
    self.assertEqual({len(rows) for head, rows in tables.items() if head != ("run", "settings")}, {1})
    self.assertEqual(tables["run", "task"], [["s_* (3 seeds)", "piqa", "20", "50.0%", "10.0%", "50.0% ± 62.1%"]])
    self.assertEqual(tables["run", "form"][0][:5], ["s_* (3 seeds)", "compact", "16", "5", FEW + " (2 of 3 seeds)"])
    self.assertEqual(self.summary()["s_* (3 seeds)"]["passkey at 16"], FEW + " (2 of 3 seeds)")
    self.assertEqual(tables["run", "seed"], [["s_* (3 seeds)", "1, 2, 3", "8", "1.450 ± 0.248"]])
    self.assertEqual(tables["run", "tokens/s"], [["s_* (3 seeds)", "1,004", "25.0%", "36000.0", "CPU"]])
    self.assertEqual(tables["run", "largest norm"], [["s_* (3 seeds)", "4.000", "75.0%", "0", "no"]])

  def test_seeds_that_began_with_runs_of_their_own(self):
    names = [self.make_run(f"probe_{seed}", lines(
        1 + seed / 10, [("init", f"runs/orbits_{seed}/step_00000010")], seed=seed)) for seed in (1, 2)]
    self.report(*names)
    self.assertEqual({name: row["loss at 16"] for name, row in self.summary().items()},
                     {"probe_* (2 seeds)": "1.400 ± 0.635"})
    self.assertEqual(self.warnings(), [])
    names.append(self.make_run("other_3", lines(1, [("init", "runs/others_3/step_00000010")], seed=3)))
    self.report(*names)
    self.assertTrue(any("init" in warning for warning in self.warnings()), self.warnings())

  def test_another_schedule_is_no_seed(self):
    again = lines(1.1, seed=2, steps=9, config=[("optimizer", {**CONFIG.get("optimizer", {}), "schedule_start": 8})])
    newer = [again[0], *(line for line in again[1:] if line["step"] > 8)]
    self.report(self.make_run("x_1", lines(1)), self.make_run("x_2", [*lines(1.1, seed=2), *newer]))
    self.assertEqual(len(self.summary()), 2)
    self.assertIn("optimizer.schedule_start", self.source)

  def test_paired_windows(self):
    self.make_run("a", lines())
    other = lines()
    for entry in other:
      entry["window_losses"] = [loss + gap for loss, gap in zip(entry.get("window_losses", []), (0.1, 0.3, 0.1, 0.3))]
    self.make_run("b", other)
    self.report("a", "b")
    # four differences, standard deviation 0.2 / sqrt(3), over sqrt(4)
    self.assertIn(["b - a", "+0.200 ± 0.058", "+0.200 ± 0.058"], self.rows())
    self.report("a", "b", "--baseline", "b")
    self.assertIn(["a - b", "-0.200 ± 0.058", "-0.200 ± 0.058"], self.rows())
    self.report("a", "b", "--baseline", "c", code=2)
    self.assertIn("--baseline c: must be one of a, b", self.errors)

  def test_unfair_comparisons_show(self):
    self.make_run("a", lines())
    other = lines(config=[("optimizer", {"lr": 0.02, "grad_clip": 1}), ("attention", {"variant": "lssar"}),
                          ("train", {"steps": 9})],
                  device="GPU", commit="def", parameters=1300000)
    self.make_run("b", other)
    other = lines()
    other[-1]["of"]["data"][0].update(name="other.bin", xxh64="o")  # the same object in both lines
    self.make_run("c", other)
    self.report("a", "b", "c")
    self.assertEqual(self.warnings(), [
        "The runs differ in more than attention and seed: optimizer.lr (0.01, 0.02), train.steps (8, 9).",
        "Parameters differ: from 1,234,567 to 1,300,000.", "Speeds are of different devices: CPU, GPU.",
        "The builds differ: abc, def.",
        "The losses are of different data: a, b of val.bin, 64 tokens asked; c of other.bin, 64 tokens asked. "
        "The summary has those of the first.",
        "b has made 8 of 9 steps.",
        "Not every setting has several seeds: small differences may be those of another seed."])

  def test_a_run_that_was_continued_elsewhere(self):
    content = lines()
    other = {**CONFIG, "optimizer": {"lr": 0.02, "grad_clip": 0}}
    content.insert(5, {**content[0], "config": other, "command": "./train runs/a", "device": "GPU", "commit": "def",
                       "versions": {"backend": "cuda", "products": "x"}})
    content.insert(5, {**content[0], "command": "./train --resume"})  # ended before a step
    content.append({**content[0], "command": "./train runs/a --eval", "device": "other"})
    self.make_run("a", content)
    self.make_run("b", lines())
    self.report("a", "b")
    commands = self.source[self.source.index("The commands:"):]
    self.assertEqual(commands.split()[2:8], "./train c.json ./train runs/a ./train c.json".split())
    head, a, b = self.table("run", "parameters", "FLOPs per token")
    self.assertEqual(a[-3:], ["CPU and GPU", "abc and def", "backend cpu and backend cuda products x"])
    self.assertEqual(b[-3:], ["CPU", "abc", "backend cpu"])
    self.assertIn("The builds differ: abc, abc and def.", self.warnings())
    head, a, b = self.table("run", "largest norm")
    self.assertEqual((a[head.index("clipped")], b[head.index("clipped")]), ("25.0%", "75.0%"))  # norms 0.5, 1, ... 4

  def test_a_series_that_was_given_up(self):
    """As by another eval.tokens at --resume: its last losses are not those of the newest step."""
    content = lines(base=2)
    new = [{**line, "of": {**line["of"], "tokens_asked": 640}} for line in content if line["type"] == "val"]
    old = [{**line, "step": 4, "loss": line["loss"] + 1} if line["type"] == "val" else line for line in content]
    self.make_run("a", old + new)
    self.report("a")
    self.assertEqual([self.summary()["a"][f"loss at {n}"] for n in (16, 32)], ["2.250", "2.375"])
    self.assertIn([["run", "step", "loss at trained length (nats)"], ["a", "8", "2.250"]], self.tables)
    titles = re.findall("^Loss of .*", self.source, re.MULTILINE)
    self.assertEqual(titles, ["Loss of val.bin, 640 tokens asked:",
                              "Loss of val.bin, 64 tokens asked (of a after 4 steps, not the newest):"])
    self.make_run("b", lines())
    self.make_run("c", lines(config=[("attention", {"variant": "lssar"})]))
    self.report("b", "a", "c")  # of most runs: the series that a gave up
    self.assertEqual([self.summary()[name]["loss at 16"] for name in "abc"], ["-", "1.750", "1.750"])
    self.assertFalse([row for row in self.rows() if row[0].startswith("a - ")])  # of 4 and of 8 steps

  def test_the_same_targets_by_context(self):
    def run(name, variant, seed, *losses):
      content = lines(seed=seed, config=[("attention", {"variant": variant})])
      of = {**content[-1]["of"], "windows": 3}
      content += [{"type": "eval", "step": 8, "length": length, "loss": loss, "mode": "suffix", "context_of": 32,
                   "suffix": 8, "of": of}
                  for length, loss in zip((8, 32), losses)]
      return self.make_run(name, content)
    names = [run("s_1", "softmax", 1, 2.0, 1.25), run("s_2", "softmax", 2, 2.5, 1.75), run("l_1", "lssar", 1, 3.0)]
    self.report(*names)
    table, = (table for table in self.tables if table[0][0] == "validation loss with context")
    self.assertEqual(table, [["validation loss with context", "8", "32"],
                             ["s_* (2 seeds)", "2.250 ± 3.177", "1.500 ± 3.177"], ["l_1", "3.000", "-"]])
    self.assertIn("Loss of the last 8 targets in windows of 32 of val.bin, 64 tokens asked, by the context",
                  self.source)
    self.assertIn("![Loss of the same targets by context.](report_contexts.png)", self.source)
    self.assertNotIn("growing context: ./train", self.source)

  def test_speed_up(self):
    slow, fast = lines(), lines()
    for step, entry in enumerate(fast[1:9], 1):
      entry["loss"], entry["ms"] = (5.5 - step if step < 5 else 1.5), 72000.0
    for step, entry in enumerate(slow[1:9], 1):
      entry["loss"] = 5.5 - step / 2
    fast.insert(6, {"type": "skip", "step": 5, "reason": "spike", "skipped": 1})  # has no tokens
    self.make_run("slow", slow)
    self.make_run("fast", fast)
    self.report("slow", "fast")
    table = self.table("run", "last loss")
    # Means over up to three steps: slow ends at (2.0 + 1.5) / 2 = 1.75 in step 8, 512 tokens; fast passes it in step 5.
    self.assertEqual(table[1], ["slow", "1.750", "512", "1.00", "4.8", "1.00"])
    self.assertEqual(table[2], ["fast", "1.500", "320", "1.60", "6", "0.80"])

  def test_lines_of_other_types_damage_and_odd_names(self):
    name = "a<b> & $x$ | \"c\""
    key = {"type": "passkey", "step": 8, "form": "compact", "trials": 5, "stderr": 0.03, "control": 0.0,
           "depths": [0, 1], "nll": [1.0, 2.0], "rank": [0.5, 1.0], "distance": [90.0, 9.0]}
    self.make_run("a", [*lines(), {**key, "step": 4, "length": 64, "exact": [0.0, 0.0]},
                        {**key, "length": 16, "exact": [0.5, 1.0]}, {**key, "length": 128, "exact": [0.25, 0.5]},
                        {**key, "length": 128, "exact": [0.25, 0.25]}, *DAMAGED,
                        {"type": "task", "step": 8, "task": "piqa", "n": 40, "acc": 0.625, "acc_norm": 0.5,
                         "stderr": 0.0125, "chance": 0.5, "margin": -0.07}])
    self.make_run(name, [*lines(), '{"type":"passkey","step":8}',
                         '{"type":"passkey","step":8,"form":"x","length":"y","exact":[null]}',
                         '{"type":"task","step":8,"task":{"a":1},"acc":"high"}', '{"type":"train","st'])
    self.report("a", name)
    columns = ("loss at 16", "piqa acc_norm", "passkey at 16", "passkey at 128")
    self.assertEqual([[row[column] for column in columns] for row in self.summary().values()],
                     [["1.750", "50.0%", "75.0%", "25.0%"], ["1.750", "-", "-", "-"]])
    rows = self.rows()
    self.assertIn(["a", "compact", "16", "5", "75.0%", "3.0%", "1.500", "0.75", "0.0%"], rows)
    self.assertIn(["a", "piqa", "40", "62.5%", "1.2%", "50.0%", "50.0%", "-0.070"], rows)
    self.assertNotIn("--passkey", self.source)
    self.assertIn(name, self.summary())
    self.assertIn("| a&lt;b&gt; &amp; \\$x\\$ \\| \"c\" |", self.source)
    self.make_run("w", [*lines(), {**key, "length": 16, "exact": [1.0, 1.0], "window": 8, "sink_tokens": 0}])
    self.report("w")
    self.assertEqual(self.summary()["w"]["passkey at 16, window 8, sink tokens 0"], "100.0%")
    self.report("a", "w")
    row = self.summary()["w"]
    self.assertEqual((row["passkey at 16"], row["passkey at 16, window 8, sink tokens 0"]), ("-", "100.0%"))

  def test_answers_of_other_weights_or_questions_do_not_mix(self):
    task = {"type": "task", "step": 8, "task": "piqa", "n": 40, "max_length": 16, "xxh64": "f", "acc": 0.5,
            "acc_norm": 0.75}
    passkey = {"type": "passkey", "step": 8, "form": "compact", "length": 16, "trials": 5, "exact": [1.0],
               "depths": [0], "distance": [9], "weights": {"run": "a", "xxh64": "1"}}
    self.make_run("a", [*lines(config=[("name", "a")]), task, passkey,
                        {**passkey, "exact": [0.0], "weights": {"run": "c", "xxh64": "2"}},
                        {**task, "acc_norm": 0.25, "weights": {"run": "c", "xxh64": "2"}},
                        {**task, "n": 10, "acc_norm": 1.0}])
    self.make_run("b", [*lines(config=[("name", "b")]), {**task, "acc_norm": 0.125}])
    self.report("a", "b")
    self.assertEqual([(row["piqa acc_norm (n 40)"], row["piqa acc_norm (n 10)"], row["passkey at 16"])
                      for row in self.summary().values()],
                     [("75.0%", "100.0%", "100.0%"), ("12.5%", "-", "-")])
    self.assertIn(": 2 of the weights of c", self.source)
    for field, value in (("max_length", 32), ("xxh64", "g")):
      self.make_run(field, [*lines(config=[("name", "c")]), {**task, field: value}])
      self.report("b", field)
      self.assertEqual([row[f"piqa acc_norm ({field} {value})"] for row in self.summary().values()], ["-", "75.0%"])
      table, = (table for table in self.tables if "by length" in table[0])
      self.assertEqual(table[0][1:4], ["task", "n", field])

  def test_answers_under_other_conditions_do_not_mix(self):
    task = {"type": "task", "step": 8, "task": "piqa", "n": 40, "max_length": 32, "xxh64": "f", "acc": 0.5}
    passkey = {"type": "passkey", "step": 8, "form": "compact", "length": 32, "trials": 5, "depths": [0],
               "distance": [9]}
    answers = []
    for share, of in ((1.0, {}), (0.75, {"rope_scaling": "ntk"}), (0.5, {"window": 8}), (0.25, {"precision": "bf16"})):
      of = {"precision": "fp32", **of}
      answers += [{**task, "acc_norm": share, "of": of}, {**passkey, "exact": [share], "of": of}]
    self.make_run("a", [*lines(), *answers])
    self.report("a")
    row = self.summary()["a"]
    for title, share in (("piqa acc_norm (precision fp32)", "100.0%"),
                         ("piqa acc_norm (rope_scaling ntk) (precision fp32)", "75.0%"),
                         ("piqa acc_norm (window 8) (precision fp32)", "50.0%"),
                         ("piqa acc_norm (precision bf16)", "25.0%"),
                         ("passkey at 32, precision fp32", "100.0%"),
                         ("passkey at 32, rope scaling ntk, precision fp32", "75.0%"),
                         ("passkey at 32, window 8, precision fp32", "50.0%"),
                         ("passkey at 32, precision bf16", "25.0%")):
      self.assertEqual(row.get(title), share, (title, row))
    more = {**answers[1], "id": "of two depths", "depths": [0, 1], "exact": [0.0, 0.25], "distance": [9, 9]}
    self.make_run("b", [*lines(), answers[1], more])
    self.report("b")
    row = self.summary()["b"]
    self.assertEqual([row.get(f"passkey at 32, depths {count}") for count in (1, 2)], ["100.0%", "12.5%"])

  def test_paired_answers(self):
    right = {"a": [1] * 12 + [0] * 8, "b": [0] * 9 + [1] * 4 + [0] * 7}  # 9 that only a has right, 1 that only b has
    for name, found in right.items():
      rows = [{"task": "piqa", "example": n, "gold": 1, "loglikelihood": [-4.0, -5.0],
               "characters": [4, 10 if hit else 5]} for n, hit in enumerate(found)]
      self.write(f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
      of = {"type": "task", "step": 8, "task": "piqa", "n": 20, "max_length": 16, "xxh64": "f", "acc": 0.0,
            "acc_norm": sum(found) / 20}
      self.make_run(name, [*lines(config=[("task", {"samples": self.path(f"{name}.jsonl")})]), of])
    self.report("a", "b")
    # 2 (1 + 10) / 2^10
    self.assertIn(["b", "piqa", "20", "1", "9", "0.0215"], self.rows())
    for name, seed in (("a", 1), ("a", 2), ("b", 1), ("b", 2)):
      of = {"type": "task", "step": 8, "task": "piqa", "n": 20, "max_length": 16, "xxh64": "f", "acc": 0.0,
            "acc_norm": sum(right[name]) / 20}
      config = [("task", {"samples": self.path(f"{name}.jsonl")}), ("attention", {"variant": name})]
      self.make_run(f"{name}_{seed}", [*lines(config=config, seed=seed), of])
    self.report("a_1", "a_2", "b_1", "b_2")
    paired, = (table for table in self.tables if "p" in table[0])
    self.assertEqual(paired, [["run", "task", "n", "only this run", "only a_*", "p"], *(
        [f"b_*, seed {seed}", "piqa", "20", "1", "9", "0.0215"] for seed in (1, 2))])
    self.write("b.jsonl", json.dumps(rows[0]) + "\n")  # no longer the answers of the line
    self.report("a", "b")
    self.assertNotIn("McNemar", self.source)

  def test_thirty_runs(self):
    self.report(*(self.make_run(f"run_{number}", lines(1 + number / 10, [("optimizer", {"lr": number})]))
                  for number in range(30)))
    self.assertEqual(len(self.summary()), 30)
    self.assertLess(len(self.source), 3e6)

  def test_diagnostics(self):
    heads = [{"first": 0.25, "entropy_norm": 0.5, "zeros": None, "reach": [0.5, 0.5]}]
    line = {"type": "diagnostics", "step": 8, "length": 16, "sequences": 4, "first_token": 0.25, "sink_rate": 12.5,
            "entropy": 1.0, "entropy_norm": 0.5, "m_act": 94.0, "gate": None, "zeros": None,
            "layers": [{"max": [9.0, 2.0, 1.0], "heads": heads}]}
    other = {**line, "m_act": 7.0, "weights": {"run": "other", "xxh64": "1"}}
    self.make_run("a", [*lines(config=[("name", "a")]), line, other])
    groups = {"type": "groups", "step": 8, "norms": {}, "learned": {"attn.sink": [[0.5, -1.25], [0.75, 3.0]]}}
    self.make_run("b", [*lines(), groups])
    self.report("a", "b")
    self.assertIn([["run", "number", "layer", "head 0", "head 1"], ["b", "attn.sink", "0", "0.5", "-1.25"],
                   ["b", "attn.sink", "1", "0.75", "3"]], self.tables)
    self.assertEqual([(row["F-Attn"], row["M-Act"]) for row in self.summary().values()], [("0.250", "94"), ("-", "-")])
    self.assertIn(["a", "8", "0.250", "12.5%", "94", "0.500"], self.rows())
    self.assertNotIn("--diagnostics", self.source)

  def test_sweeps(self):
    entry = {"name": "s_1", "labels": {"lr": "1"}, "seed": 0, "state": "complete", "why": "", "initial": 5.0,
             "loss": 2.5, "losses": {"16": 2.5}}
    result = {"name": "s", "size": "quick", "config": "c.json", "axes": {"lr": ["1", "2"]}, "seeds": [0], "chart": "lr",
              "commit": "abc", "device": "CPU", "command": "sweep.py", "context": 16, "steps": "8",
              "tokens_per_step": "64", "lengths": [16], "set": {"data.train": "a b.bin"},
              "runs": [entry, {**entry, "name": "s_2", "labels": {"lr": "2"}, "state": "diverged",
                               "why": "step 3: loss nan", "loss": None, "losses": {}}]}
    self.make_run("a", lines())
    self.write("s.json", json.dumps(result))
    self.report("a", "--sweep", "s.json")
    self.assertIn(["loss", "2.500", "diverged", "2.500 at 1", "1.250"],
                  self.rows())
    self.assertIn("1 seed, 8 steps of 64 tokens (c.json, data.train=a b.bin, commit abc, CPU), 1 diverged; losses in "
                  "nats per token.", self.source)
    self.assertIn("growing context: ./train", self.source)
    self.write("s.json", json.dumps({**result, "mode": "suffix"}))
    self.report("a", "--sweep", "s.json")
    self.assertNotIn("growing context: ./train", self.source)  # not called "not measured": the sweep did
    self.assertIn("s_2 diverged: step 3: loss nan", self.source)
    without = lambda entry, key: {name: value for name, value in entry.items() if name != key}
    for damaged, part in ((without(result, "name"), "KeyError: 'name'"),
                          (without(result, "command"), "KeyError: 'command'"), ([result], "TypeError: "),
                          ({**result, "axes": None}, "TypeError: "), ({**result, "best_of": "x"}, "KeyError: 'x'"),
                          ({**result, "runs": [without(entry, "why")]}, "KeyError: 'why'"),
                          ({**result, "runs": [{**entry, "loss": "x"}]}, "ValueError: ")):
      with self.subTest(part):
        self.write("s.json", json.dumps(damaged))
        self.report("a", "--sweep", "s.json", code=2)
        self.assert_error(f"s.json does not hold results of scripts/sweep.py ({part}",
                          "--table --results s.json writes it again")

  def test_stability(self):
    content = lines(steps=100, config=[("train", {"steps": 100})])
    content[90]["loss"] = None
    self.make_run("a", content)
    content = lines(steps=100, config=[("train", {"steps": 100})])
    content[5]["loss"] = None  # a step without labels
    self.make_run("b", [*content, {"type": "skip", "step": 5, "reason": "no label", "skipped": 1}])
    self.report("a", "b")
    table, = (table for table in self.tables if table[0][-1] == "diverged")
    self.assertEqual(table[1:], [["a", "50.000", "98.0%", "0", "loss not finite at step 90"],
                                 ["b", "50.000", "98.0%", "1", "no"]])

  def test_refuses(self):
    self.make_run("empty", lines()[:1])
    self.make_run("a", lines())
    for flags, part in ((["none"], "none/metrics.jsonl: No such file"),
                        (["empty"], "empty/metrics.jsonl holds no losses yet"),
                        (["a", "--out", "none/x.html"], "no folder none"),
                        (["a", "--out", "x.pdf"], "--out x.pdf: must end with .md or .html"),
                        (["a", "--csv", "a/metrics.jsonl"], "--csv a/metrics.jsonl: File exists"),
                        (["a", "--sweep", "none.json"], "none.json: No such file")):
      with self.subTest(flags):
        self.report(*flags, code=2)
        self.assertIn(part, self.errors)
