"""scripts/sweep.py with ./train on tiny configurations, its tables, and how metrics.py judges runs."""
import csv
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
import unittest

from support.scripts import ScriptTest, start
from support.workspace import CONFIG, SCRIPTS, TEXT, TRAIN, Workspace, merged, shard

from lib import metrics, results, section_sweep, variants  # from SCRIPTS

BASE = {key: value for key, value in CONFIG.items() if key not in ("name", "threads")}
FILE = {"config": "c.json", "axes": {"attention.variant": ["softmax", "lssa"]}, "seeds": [1, 2], "chart": "lengths"}


class Sweeps(ScriptTest, Workspace):
  def setUp(self):
    super().setUp()
    self.write("c.json", json.dumps(merged(BASE, {"eval.lengths": [16, 32]})))
    self.sweep_file()
    self.options = {"cwd": self.folder, "env": {**os.environ, "TRAIN": TRAIN}}

  def sweep_file(self, **changes):
    self.write("s.json", json.dumps({**FILE, **changes}))

  def sweep(self, *flags, code=0, **variables):
    """The first table; self.trained: the titles of the runs that were started."""
    options = {**self.options, "env": {**self.options["env"], **variables}}
    output = self.run_script("sweep.py", "s.json", *flags, code=code, **options)
    self.trained = re.findall(r"^\d+/\d+: (.*)$", self.errors, re.MULTILINE)
    return output.partition("\n\n")[0]

  def names(self, *flags, **options):
    """The runs that are missing."""
    lines = self.run_script("sweep.py", "s.json", "--plan", *flags, **self.options, **options).splitlines()
    return [name for line in lines for name in line.split()[-1].split(",")]

  def losses(self, file="runs/s.json"):
    return {run["name"]: run["losses"] for run in self.json_of(file)["runs"]}

  def logs(self):
    return {name for name in os.listdir(self.path("runs")) if name.endswith(".log")}

  def test_the_table_is_of_the_runs(self):
    rows = self.sweep("--csv", "t.csv", "--latex", "t.tex").splitlines()
    self.assertEqual(self.trained, [f"{kind}, seed {seed}" for seed in "12" for kind in ("softmax", "lssa")])
    self.assertEqual(rows[0], "| validation loss at length | 16 | 32 |")
    numbers = list(csv.DictReader(self.text_of("t.csv").splitlines()))
    for row, kind in zip(rows[2:], ("softmax", "lssa"), strict=True):
      names = [name for name in self.losses() if name.startswith(f"s_{kind}_")]
      for column, cell in zip("16 32".split(), row.strip("| ").split(" | ")[1:]):
        found = [[line["loss"] for line in self.metrics(name, "val")
                  if (line["step"], line["length"]) == (4, int(column))] for name in names]
        (one,), (other,) = found
        mean, half = (one + other) / 2, 12.7062 * abs(one - other) / 2
        self.assertEqual(cell, f"{mean:.3f} ± {half:.3f}")
        made, = [n for n in numbers if (n["measure"], n["row"], n["column"]) == ("loss", kind, column)]
        self.assertEqual(made["count"], "2")
        self.assertAlmostEqual(float(made["mean"]), mean)
        self.assertAlmostEqual(float(made["half"]), half, places=4)
        self.assertIn(f"{mean:.3f} $\\pm$ {half:.3f}", self.text_of("t.tex"))
    self.assertEqual({n["measure"] for n in numbers}, {"loss"})  # accuracies are of labels
    self.assertIn("\n2 seeds, 4 steps of 64 tokens (c.json, commit ", self.output)
    self.assertEqual([variants.note(self.path("runs", name))["label"] for name in sorted(self.losses())],
                     ["lssa"] * 2 + ["softmax"] * 2)
    self.assertEqual((self.sweep("--table").splitlines(), self.sweep().splitlines()), (rows, rows))
    self.assertEqual(self.trained, [])
    self.sweep("--overwrite", "--seeds", "2")
    self.assertEqual(self.trained, ["softmax, seed 2", "lssa, seed 2"])

  def test_a_run_that_fails_does_not_end_the_others(self):
    self.sweep_file(axes={"data": {"absent": {"data.train": "absent.bin"}, "there": {}}})
    for jobs in "12":
      table = self.sweep("--jobs", jobs, code=1)
      self.assertEqual(len(self.trained), 4 if jobs == "1" else 2)
      self.assertRegex(table, r"\| absent \| - \| - \|\n\| there \| \d\.\d{3} ± ")
      self.assertEqual([run["state"] for run in self.json_of("runs/s.json")["runs"]], ["failed", "complete"] * 2)
      self.assertRegex(self.json_of("runs/s.json")["runs"][0]["why"], "^exit code 2: .*absent.bin")
      self.assertIn("2 of 4 runs failed", self.errors)
    self.write("absent.bin", shard(TEXT * 6))
    self.assertNotIn("-", self.sweep().splitlines()[2])
    self.assertEqual(self.trained, ["absent, seed 1", "absent, seed 2"])

  def test_two_jobs_give_the_table_of_one(self):
    table, losses = self.sweep("--results", "1.json"), self.losses("1.json")
    os.rename(self.path("runs"), self.path("before"))
    self.assertEqual(self.sweep("--results", "2.json", "--jobs", "2"), table)
    self.assertEqual(self.losses("2.json"), losses)
    cores = len(os.sched_getaffinity(0))
    threads = {json.loads(self.text_of("runs", name, "config.json"))["threads"] for name in losses}
    self.assertEqual(threads, {max(1, cores // 2)})
    for name in losses:
      file = os.path.join(name, "step_00000004", "model.safetensors")
      self.assertEqual(self.bytes_of("runs", file), self.bytes_of("before", file))

  def test_each_job_has_a_gpu(self):
    """Which a build for the CPU does not look at."""
    self.write("shown", f'#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES $*" >> calls\nexec "{TRAIN}" "$@"\n')
    os.chmod(self.path("shown"), 0o755)
    self.sweep("--jobs", "2", "--train", "./shown", CUDA_VISIBLE_DEVICES="3,5")
    runs = [line for line in self.text_of("calls").splitlines() if line.endswith(" --resume")]
    self.assertEqual({line.split()[0] for line in runs}, {"3", "5"})
    self.assertFalse(any("threads=" in line for line in runs))
    self.sweep("--jobs", "3", code=2, CUDA_VISIBLE_DEVICES="3,5")
    self.assert_error("--jobs 3: there are 2 GPUs", "use --jobs 2")

  def test_the_plan_is_commands(self):
    self.sweep_file(axes={"what": {"plain": {}, "narrow": {"eval.window": 4}}, "optimizer.lr": [1e-3, 2e-3]})
    expected, names = self.sweep("--results", "r.json"), list(self.losses("r.json"))
    os.rename(self.path("runs"), self.path("before"))
    self.assertEqual(sorted(self.names()), sorted(names))
    self.assertEqual(len(self.output.splitlines()), 4)  # what evaluates is in the line of what it evaluates
    script = os.path.join(SCRIPTS, "sweep.py")
    command = f"{sys.executable} {script} s.json --plan | xargs -P 2 -I{{}} sh -c '{{}}'"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, **self.options)
    self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
    self.assertEqual(self.names(), [])
    self.assertEqual(self.sweep("--table"), expected)
    self.assertEqual(self.losses(), self.losses("r.json"))
    self.sweep("--only", "s_plain", code=2)
    self.assert_error("--only s_plain: no run of this sweep is called so")

  def test_hours_of_a_plan(self):
    """On another machine, which the commands do not name: ./train would refuse it."""
    self.sweep_file(axes={"what": {"plain": {}, "narrow": {"eval.window": 4}}}, seeds=[1, 2])
    elsewhere = "--set", "plan.memory=80GiB", "--set", "plan.tflops=1e-6"
    self.assertEqual(self.sweep("--plan", *elsewhere), self.sweep("--plan"))
    said = subprocess.run([TRAIN, "c.json", "--dry-run", *elsewhere], capture_output=True, text=True, **self.options)
    one = sum(map(float, re.findall(r", (\S+) hours", said.stdout)))
    self.sweep("--plan", *elsewhere)
    runs, hours = re.search(r"sweep.py: (\d) runs, (\S+) hours if one follows the other", self.errors).groups()
    self.assertEqual(runs, "2")
    self.assertAlmostEqual(float(hours), 2 * one, delta=0.01 * one)

  def test_stopped_and_continued(self):
    """By a signal to the sweep, and killed alone."""
    self.write("c.json", json.dumps(merged(BASE, {"train.steps": 1000, "eval.every": 1000, "log.every": 100})))
    self.sweep_file(seeds=[1])
    expected, losses = self.sweep(), self.losses()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
      with self.subTest(number=number):
        os.rename(self.path("runs"), self.path(f"before_{number}"))
        process = start("sweep.py", "s.json", "--jobs", "2", stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                        **self.options)
        self.addCleanup(lambda process=process: (process.kill(), process.communicate()))
        self.wait(lambda: [self.steps(name) > 20 for name in losses] == [True, True])
        children = self.text_of(f"/proc/{process.pid}/task/{process.pid}/children").split()
        if number == signal.SIGKILL:  # its runs save only once the next sweep waits for them
          self.each(children, signal.SIGSTOP)
          timer = threading.Timer(2, self.each, (children, signal.SIGCONT))
          timer.start()
          self.addCleanup(timer.join)
        process.send_signal(number)
        process.wait(60)
        self.assertEqual(process.returncode, -number)
        if number != signal.SIGKILL:
          self.assertEqual([len(self.saved(name)) for name in losses], [1, 1])
        self.assertEqual((self.sweep(), self.losses()), (expected, losses))
        self.assertEqual(len(self.trained), 2)
        for name in losses:
          self.assertEqual(len([line for line in self.metrics(name, "start")]), 2)

  def each(self, processes, number):
    for process in processes:
      os.kill(int(process), number)

  def steps(self, name):
    try:
      return self.bytes_of("runs", name, "metrics.jsonl").count(b'"type":"train"')
    except FileNotFoundError:
      return 0

  def saved(self, name):
    return [step for step in os.listdir(self.path("runs", name)) if step.startswith("step_")]

  def wait(self, what):
    end = time.monotonic() + 60
    while not what():
      self.assertLess(time.monotonic(), end)
      time.sleep(0.01)

  def test_other_data_are_evaluations_of_the_same_weights(self):
    self.write("other.bin", shard(TEXT[7:] * 10))
    self.sweep_file(axes={"asked": {"as trained": {}, "other": {"data.val": "other.bin"}}}, seeds=[1],
                    set={"data.val": "val.bin"})
    self.sweep()
    trained, asked = self.losses()
    self.assertFalse(os.path.exists(self.path("runs", asked, "config.json")))
    self.assertNotEqual(*self.losses().values())
    self.assertEqual({line["weights"]["run"] for line in self.metrics(asked, "eval")}, {trained})
    self.write("c.json", json.dumps(merged(BASE, {"eval.lengths": [16, 32], "eval.tokens": 128})))
    self.sweep()  # other losses of the same weights
    self.assertEqual(len(self.trained), 2)
    self.assertTrue(self.losses().keys().isdisjoint([trained, asked]))
    self.assertEqual(len([name for name in os.listdir(self.path("runs"))
                          if os.path.exists(self.path("runs", name, "config.json"))]), 1)
    os.remove(self.path("other.bin"))
    self.sweep("--seeds", "2", code=2)  # noticed before the training
    self.assert_error("other, seed 2: data.val: no file is called other.bin")
    self.assertEqual(self.trained, [])

  def test_refuses_before_training(self):
    os.mkdir(self.path("run"))
    for flags, part in ((["--set", "attention.variant=relu"], "--set attention.variant=relu"),
                        (["--set", "seed=5"], "--set seed=5"), (["--set", "name=x"], "--set name=x"),
                        (["--set", "attention.kind=relu"], "--set attention.kind"),
                        (["--seeds", "1,01"], "twice"), (["--axis", "attention.variant=relu,relu"], "twice"),
                        (["--seeds", "a"], "'a' is not a list such as 1,2,3"),
                        (["--axis", "x"], "'x' is not KEY=VALUE"), (["--set", "eval.every=0"], "eval.every = 0"),
                        (["--set", "eval.mode=suffix", "--set", "checkpoint.at_end=false"],
                         "--set checkpoint.at_end=true"), (["--set", "train.steps=0"], "train.steps = 0"),
                        (["--axis", "attention.variant=relu,"], 'attention.variant = ""'),
                        (["--train", "none"], "none cannot be run"), (["--size", "big"], "s.json has no sizes"),
                        (["--config", "run"], "run/config.json: No such file"), (["--jobs", "0"], "--jobs"),
                        (["--picture", "none/x.png"], "no folder none"), (["--csv", "none/x"], "no folder none"),
                        (["--picture", "x.doc"], "no picture is called .doc; use one of"),
                        (["--results", "run"], "--results run: Is a directory"),
                        (["--axis", "optimizer.lr=1e-3,0.001"], "have the same settings"),
                        (["--axis", "seed=3,4"], "axes: seed: the sweep itself gives each run a seed"),
                        (["--axis", "name=a"], "axes: name"), (["--table"], "no run of this sweep is complete")):
      with self.subTest(flags):
        self.assertEqual(self.sweep(*flags, code=2), "")
        self.assert_error(part)
        self.assertFalse(os.path.exists(self.path("runs")))

  def test_refuses_files(self):
    for changes, part in (({"axis": {}}, "axis: must be one of _, name, config"), ({"axes": {}}, "name at least one"),
                          ({"axes": {"x": []}}, "x: must be a list"), ({"axes": {"x": {"a": 7}}}, "x: must be a list"),
                          ({"axes": {"x": [1, "1"]}}, "different values"), ({"seeds": [1, 1]}, "seeds: must be"),
                          ({"chart": "pie"}, "chart: must be one of lengths, lines, bars, lr, not \"pie\""),
                          ({"name": "a/b"}, "name: must be a text of letters, digits and _ . + -, not \"a/b\""),
                          ({"set": [1]}, "set: must be an object {key: value}, not [1]"),
                          ({"axes": [1]}, "axes: must be an object"), ({"seeds": ["1"]}, "seeds: must be"),
                          ({"config": 5}, "config: must be a text, not 5"),
                          ({"axes": {"x": {"a": {"seed": 1}}}}, "axes: seed"), ({"best_of": "x"}, "best_of: x is not"),
                          ({"axes": {"x": {"one": {}, "other": {}}}}, "one, seed 1 and other, seed 1 have the same"),
                          ("[]", "must be a JSON object"), ("[" * 100000, "is not the JSON of a sweep")):
      with self.subTest(str(changes)[:60]):
        self.write("s.json", changes) if isinstance(changes, str) else self.sweep_file(**changes)
        self.assertEqual(self.sweep("--train", TRAIN, code=2), "")
        self.assert_error(part)

  def test_names(self):
    kinds = {"plain": {"attention.variant": "softmax"}, "with, more": {"attention.variant": "lssa"}}
    self.sweep_file(axes={"optimizer.lr": [0.001, "2e-3"], "which": kinds}, set={"optimizer.lr": 7}, sizes={
        "big": {"set": {"model.layers": 1}, "seeds": [7]}, "few": {"axes": {"which": ["with, more"]}},
        "wrong": {"axes": {"which": ["x"]}}})
    names = self.names()
    self.assertEqual([name[:-9] for name in names],
                     ["s_0.001_plain_1", "s_0.001_with-more_1", "s_2e-3_plain_1", "s_2e-3_with-more_1",
                      "s_0.001_plain_2", "s_0.001_with-more_2", "s_2e-3_plain_2", "s_2e-3_with-more_2"])
    self.assertEqual(self.names("--axis", "which=plain", "--seeds", "1"), [names[0], names[2]])
    self.assertEqual(self.names("--size", "few", "--seeds", "1"), [names[1], names[3]])
    self.assertEqual([name[:-9] for name in self.names("--size", "big", "--axis", "which=plain")],
                     ["s_0.001_plain_7", "s_2e-3_plain_7"])
    self.names("--size", "wrong", code=2)
    self.assert_error("axis which: x is not one of plain, with, more")
    changed = lambda **changes: self.write("c.json", json.dumps(merged(BASE, changes)))
    changed(**{"eval.lengths": [16, 32], "log.every": 5})
    self.assertEqual(self.names(), names)
    self.sweep("--seeds", "1", "--axis", "which=plain")
    self.assertEqual(self.names("--seeds", "1", "--axis", "which=plain", "--axis", "optimizer.lr=1e-3,2e-3"), [])
    changed(**{"model.layers": 3})
    self.assertFalse({*names} & {*self.names()})

  def test_the_seed_in_a_value(self):
    self.sweep_file(axes={"init": ["base_{seed}"]})
    names = self.names()
    self.assertEqual(self.names("--seeds", "2"), names[1:])
    self.sweep_file(axes={"init": ["base_2"]})
    self.assertEqual(self.names("--seeds", "2")[0].split("_")[-1], names[1].split("_")[-1])

  def test_long_labels_make_names_that_are_legal_and_differ(self):
    long, wide = "a" * 150, "ä" * 90
    self.sweep_file(axes={"x": {long + end: {"optimizer.lr": end} for end in "12"},
                          "z": {wide: {"model.layers": 1}, "b": {"model.layers": 2}}}, name="s" * 245)
    names = self.names()
    self.assertEqual((len({*names}), max(len(name.encode()) for name in names)), (8, 200))
    self.sweep("--seeds", "1", "--set", "eval.mode=suffix")
    self.assertEqual(max(map(len, os.listdir(self.path("runs")))), 255)

  def test_the_folder_of_a_run_and_steps_that_differ(self):
    self.sweep_file(axes={"train.steps": [4, 2]}, chart="lines", seeds=[1], set={"eval.lengths": [16]})
    self.sweep()
    self.assertIn("1 seed, 2 or 4 steps of 64 tokens", self.output)
    folder = "runs/" + next(iter(self.losses()))
    self.assertRegex(self.sweep("--config", folder, "--results", "r.json"), r"\| loss \| \d\.\d{3} \| \d")

  def test_without_matplotlib(self):
    self.write("sitecustomize.py", "import sys\nsys.modules['matplotlib'] = None\n")
    self.sweep("--seeds", "1", PYTHONPATH=self.folder)
    self.assertLess(self.errors.index("no picture will be drawn"), self.errors.index("1/2: softmax, seed 1"))
    self.sweep("--seeds", "2", "--picture", "p.png", code=2, PYTHONPATH=self.folder)
    self.assertEqual(self.trained, [])


class Judgement(ScriptTest):
  def run_of(self, losses, first, last, halfway=None, **settings):
    """Its losses at twice the trained length are larger."""
    config = {"model": {"context": 16}, "train": {"steps": len(losses)}, "eval": {"lengths": [32, 16]},
              "optimizer": {"grad_clip": 1.0}, **settings}
    val = lambda step, loss: [{"type": "val", "step": step, "length": length, "loss": loss * length / 16}
                              for length in (32, 16)]
    lines = [{"type": "start", "config": config}, *val(0, first)]
    lines += [{"type": "train", "step": step, "loss": loss, "grad_norm": loss} for step, loss in enumerate(losses, 1)]
    lines += [*(val(len(losses) // 2, halfway) if halfway else []), *val(len(losses), last)]
    return metrics.Run(self.make_run("run", lines))

  def test_divergence(self):
    for losses, last, why in (([3.0] * 100, 3.0, ""), ([3.0] * 99, 5.9, ""),
                              ([3.0] * 100, 5.6, "ended at 5.600, from 6.000"),
                              ([3.0] * 94 + [3.2] * 6, 3.0, "rose from 3.000 to 3.200"),
                              ([3.0] * 94 + [3.1] * 6, 3.0, ""),
                              ([3.0] * 9 + [1e20] + [3.0] * 84 + [3.2] * 6, 3.0, "rose from 3.000 to 3.200"),
                              ([3.0] * 50 + [9.0] * 40 + [3.0] * 10, 3.0, "")):  # a hump that has gone
      with self.subTest(last=last, end=losses[-1]):
        self.assertRegex(metrics.judged(self.run_of(losses, 6.0, last)), why or "^$")

  def test_no_divergence_while_validation_improves_or_within_the_noise(self):
    rising = [3.0] * 94 + [3.2] * 6
    for halfway, last, settings, why in ((3.1, 3.0, {}, ""), (2.9, 3.0, {}, "rose"), (None, 3.0, {}, "rose"),
                                         (None, 3.0, {"init": "runs/x"}, "")):
      with self.subTest(halfway=halfway, settings=settings):
        self.assertRegex(metrics.judged(self.run_of(rising, 6.0, last, halfway, **settings)), why or "^$")
    for noise, why in (0.3, ""), (0.01, "rose"):  # the same rise of 0.25
      losses = [3 + 0.25 * (step >= 190) + noise * (step % 2) for step in range(200)]
      self.assertRegex(metrics.judged(self.run_of(losses, 6.0, 3.0, 2.9)), why or "^$")

  def test_divergence_of_a_tuned_model(self):
    for settings in {"init": "runs/x"}, {"model": {"context": 16, "head": {"outputs": 2}}}:
      self.assertEqual(metrics.judged(self.run_of([0.3] * 100, 0.4, 0.3, **settings)), "")
      self.assertRegex(metrics.judged(self.run_of([0.3] * 100, 0.4, 0.5, **settings)), "ended at 0.500, from 0.400")

  def test_divergence_of_labels(self):
    """Few nats are to be won, and losses near 0 double without meaning anything."""
    for data, end, why in (({"labels": "l"}, 0.05, ""), ({}, 0.05, "ended at 0.300, from 0.500"),
                           ({"labels": "l"}, 0.07, "rose from 0.010 to 0.070")):
      run = self.run_of([0.3] * 50 + [0.01] * 40 + [end] * 10, 0.5, 0.3, data=data)
      self.assertRegex(metrics.judged(run), why or "^$")
    regression = {"model": {"context": 16, "head": {"outputs": 2}}}
    run = self.run_of([0.01] * 90 + [0.02] * 10, 0.5, 0.02, **regression)  # whose losses have any size
    self.assertRegex(metrics.judged(run), "rose from 0.010 to 0.020")

  def test_clipped_and_spikes(self):
    self.assertEqual(metrics.clipped(self.run_of([0.5, 1.5, 1.0, 2.0], 6, 3)), 0.5)
    values = [1.0 + i % 2 for i in range(328)]  # mean 1.5, deviation 0.5
    self.assertEqual(metrics.spike_score(values), (0.0, 128, 6))
    values[200], values[300] = 4.4, 4.51  # the first, 5.8 deviations above, widens the second's window
    self.assertEqual(metrics.spike_score(values)[0], 0.0)
    values[200] = 1.0
    self.assertEqual(metrics.spike_score(values)[0], 1 / 200)
    self.assertIsNone(metrics.spike_score(values[:128]))
    self.assertEqual(metrics.spike_score([1e6 + i % 2 for i in range(2000)] + [1e6 + 4.01]), (1 / 1001, 1000, 7))


class Tables(unittest.TestCase):
  def test_intervals(self):
    """Against the tables of Student's distribution."""
    for freedom, middle, most in ((1, 12.7062, 63.6567), (2, 4.3027, 9.9248), (3, 3.1824, 5.8409), (4, 2.7764, 4.6041),
                                  (8, 2.3060, 3.3554), (9, 2.2622, 3.2498), (30, 2.0423, 2.7500)):
      self.assertAlmostEqual(metrics.student(0.95, freedom), middle, places=4)
      self.assertAlmostEqual(metrics.student(0.99, freedom), most, places=4)
      values = results.pandas.DataFrame([[1.0, 1.2, 1.4, 1.1, 1.3][:freedom + 1]])
      if freedom < 5:
        half = middle * values.std(axis=1)[0] / math.sqrt(freedom + 1)
        self.assertAlmostEqual(results.statistics(values)["half"][0], half, places=4)
    self.assertAlmostEqual(metrics.half_width([1.0, 1.2]), 12.7062 * 0.1, places=4)
    self.assertEqual([metrics.plus_minus(values) for values in ([1.0], [1.0, 1.2], [1.0, 1.0])],
                     ["", " ± 1.271", " ± <0.001"])
    self.assertEqual(metrics.plus_minus([0.5, 0.5], "{:.1%}"), " ± <0.1%")

  def result(self, losses, chart="lr", **entries):
    """losses: {row: {rate: [loss or None for diverged, by seed]}}, from 6 nats at step 0."""
    runs = [{"name": f"{row}{rate}", "labels": {"lr": rate, "kind": row}, "seed": seed,
             "state": "diverged" if loss is None else "complete",
             "why": "", "initial": 6.0, "loss": loss, "losses": {} if loss is None else {"16": loss}}
            for row, rates in losses.items() for rate, values in rates.items() for seed, loss in enumerate(values)]
    rates = list(next(iter(losses.values())))
    return {"name": "s", "chart": chart, "axes": {"lr": rates, "kind": list(losses)}, "seeds": [0, 1], "lengths": [16],
            "runs": runs, "steps": 1, "tokens_per_step": 1, "config": "c", "commit": "", "device": "", "set": {},
            **entries}

  def table(self, result, measure="loss"):
    return section_sweep.table(results.Grid(result), measure).splitlines()

  def differences(self, result):
    return section_sweep.difference_table(results.Grid(result)).splitlines()

  def test_learning_rates(self):
    result = self.result({"a": {"1": [3.0, 3.2], "2": [2.0, 2.2]}, "b": {"1": [3.5, 3.5], "2": [2.5, None]}})
    self.assertEqual(self.table(result)[2:], [
        "| a | 3.100 ± 1.271 | 2.100 ± 1.271 | 2.100 ± 1.271 at 2 | 0.500 |",  # (1 + 0) / 2
        "| b | 3.500 ± <0.001 | 2.500 (1 diverged) | 3.500 ± <0.001 at 1 | 0.375 |"])  # (0 + (2.5 + 6) / 2 - 3.5) / 2
    # b - a by seed: 0.5 and 0.3, standard error 0.1, t of 1 degree of freedom 12.706; the best ones 1.5 and 1.3
    self.assertEqual(self.differences(result)[2:],
                     ["| b - a | +0.400 ± 1.271 | +0.500 | +1.400 ± 1.271 |"])

  def test_bits_per_byte(self):
    result = self.result({"a": {"1": [3.0, 3.0], "2": [2.0, None]}, "b": {"1": [3.5, 3.5], "2": [2.5, 2.5]}}, "lines")
    self.assertEqual(len(section_sweep.texts(result)), 3)
    for run in result["runs"]:
      run["bits_per_byte"] = {n: loss / 2 for n, loss in run["losses"].items()}
    self.assertEqual(self.table(result, "bits_per_byte"), [
        "| bits per byte at lr | 1 | 2 |", "|---|---|---|", "| a | 1.500 ± <0.001 | 1.000 (1 diverged) |",
        "| b | 1.750 ± <0.001 | 1.250 ± <0.001 |"])

  def test_accuracy_of_labels(self):
    """The best rate is that of the lowest loss; shares have no best one."""
    result = self.result({"a": {"1": [3.0, 3.2], "2": [2.0, 2.2]}})
    for run in result["runs"]:
      run["accuracy"] = {n: 1 - loss / 8 for n, loss in run["losses"].items()}
      run["exact"] = dict.fromkeys(run["losses"], 0.0)
    said = section_sweep.texts(result)
    self.assertEqual([table.splitlines()[::2] for table in said[1:3]], [
        ["| accuracy of the labels at lr | 1 | 2 |", "| a | 0.613 ± 0.159 | 0.738 ± 0.159 |"],
        ["| exact windows at lr | 1 | 2 |", "| a | 0.000 ± <0.001 | 0.000 ± <0.001 |"]])

  def test_two_seeds_are_too_few_for_an_interval_of_shares(self):
    for values, text in (([0.5, 0.9], "0.700 (2 seeds are too few for an interval)"), ([0.7, 0.71], "0.705 ± 0.064"),
                         ([0.9] * 4 + [1.0] * 4 + [0.6], "0.911 ± 0.098"), ([0.5], "0.500"),
                         ([1, 1], "1.000 ± <0.001")):
      self.assertEqual(variants.mean_text(values, share=True), text)
    result = self.result({"a": {"1": [3.0, 1.0]}}, "lines")
    for run in result["runs"]:
      run["exact"] = {n: loss / 4 for n, loss in run["losses"].items()}
    exact = section_sweep.table(results.Grid(result), "exact")
    self.assertEqual(exact.rows, [["a", "0.500 (2 seeds are too few for an interval)"]])

  def test_rows_at_their_best_rate(self):
    """By the losses of the first column, though accuracies and another column would choose otherwise."""
    losses = {("a", "1"): [2.0, 2.2, 1.0], ("a", "2"): [2.5, 2.5, 0.5], ("b", "1"): [3.0, None, 3.0],
              ("b", "2"): [3.5, 3.5, 3.5], ("c", "1"): [None, None, None], ("c", "2"): [None, None, None]}
    runs = [{"labels": {"asked": asked, "lr": lr, "kind": kind}, "seed": seed, "initial": 6.0, "loss": loss,
             "state": "diverged" if loss is None else "complete", "losses": {} if loss is None else {"16": loss},
             "accuracy": {} if loss is None else {"16": loss / 8}, "exact": {}}
            for (kind, lr), values in losses.items()
            for asked, chosen in (("trained", values[:2]), ("longer", values[2:] * 2))
            for seed, loss in enumerate(chosen)]
    axes = {"asked": ["trained", "longer"], "lr": ["1", "2"], "kind": [*"abc"]}
    result = self.result({"a": {"1": []}}, "lines", axes=axes, runs=runs, best_of="lr")
    found, accuracies, differences, note = section_sweep.texts(result)
    self.assertEqual(found.splitlines(), [
        "| validation loss at asked | trained | longer |", "|---|---|---|",
        "| a | 2.100 ± 1.271 | 1.000 ± <0.001 |", "| b | 3.500 ± <0.001 | 3.500 ± <0.001 |",
        "| c | diverged | diverged |"])
    self.assertEqual(accuracies.splitlines()[2], "| a | 0.263 ± 0.159 | 0.125 ± <0.001 |")
    self.assertEqual(differences.splitlines()[::2], [
        "| difference of accuracy, paired by seed, n = 2 | trained | longer |",
        "| b - a | +0.175 ± 0.159 | +0.312 ± <0.001 |"])
    self.assertIn("best lr, by the mean loss in the first column: a 1, b 2, c 1. ±", note)

  def test_a_rate_with_fewer_seeds_is_not_the_best(self):
    grid = results.Grid(self.result({"a": {"1": [3.0, 3.2], "2": [2.5]}}))
    self.assertEqual(results.best(grid.statistics()).to_dict(), {"a": "1"})

  def test_a_rate_without_a_run_leaves_the_sensitivity_open(self):
    result = self.result({"a": {"1": [3.0, 3.2], "2": []}})
    self.assertEqual(self.table(result)[2], "| a | 3.100 ± 1.271 | - | 3.100 ± 1.271 at 1 | - |")
    self.assertEqual(self.differences(result), [])
