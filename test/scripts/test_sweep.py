"""scripts/sweep.py with a stand-in for ./train that fails, stops, diverges or waits. Standard library only."""
import json
import os
import signal
import subprocess
import sys
import time
import unittest

from support.scripts import ScriptTest, start

from lib import metrics, section_sweep, variants  # from SCRIPTS

TRAIN = """#!%s
import json, os, signal, sys, time
settings = dict(flag.split("=", 1) for flag in sys.argv if "=" in flag)
member = settings["attention.variant"] + settings["seed"]
if sys.argv[-1] == "--print-config":
  if settings["attention.variant"] == "":
    print('config: attention.variant = "" is unknown', file=sys.stderr)
    sys.exit(2)
  if settings.get("train.steps") == "0":
    print("config: train.steps = 0 is not in [1, 1e9]", file=sys.stderr)
    sys.exit(2)
  given = {**json.load(open(sys.argv[1])), **settings}
  defaults = {"attention.kind": settings["attention.variant"], "eval.every": "2", "checkpoint.at_end": "true"}
  for key, value in {**defaults, **given}.items():
    value = [value] if key.startswith("data.") else value
    value = value if type(value) is str and (value.isdigit() or value in ("true", "false")) else json.dumps(value)
    may_change = "; may change" * (key == "name" or key.startswith(("data.val", "eval.", "log.")))
    print(key, value, " ", ("--set" if key in given else "default") + may_change)
  sys.exit(0)
if sys.argv[-1] == "--print-identity":
  print("{}")
  sys.exit(0)
print(member, sys.argv[-1], file=open("calls", "a"))
what = os.environ.get(member, "")
what = "" if what == "locked" and os.path.exists("tried") else what
os.makedirs("runs/" + settings["name"], exist_ok=True)
steps, loss = int(settings.get("train.steps", 4)), float(settings["seed"])
lengths = [16, 32] if member[0] != "c" else [32, 64]
config = {"model": {"context": 16}, "train": {"steps": steps}, "batch": {"tokens": 64}, "eval": {"lengths": lengths}}
config["name"], given = settings["name"], json.load(open(sys.argv[1]))
config["eval"].update({key[5:]: json.loads(value) for key, value in given.items() if key.startswith("eval.")})
config["data"] = {key[5:]: [value] for key, value in settings.items() if key.startswith("data.")}
if settings.get("eval.mode"):
  config["eval"]["mode"] = settings["eval.mode"]
of = {"id": "", "series": "", "mode": "windows", "weights": {"run": settings["name"]},
      "of": {"data": [], "windows": 0, "tokens_asked": 64}}
if "--eval" in sys.argv:  # 10 more than the run's own
  of.update({"mode": "suffix", "context_of": 32, "suffix": 8} if settings.get("eval.mode") else {})
  with open("runs/" + settings["name"] + "/metrics.jsonl", "w") as file:
    print(json.dumps({"type": "start", "config": config}), file=file)
    for length in (16, 32):
      print(json.dumps({"type": "eval", "step": steps, "length": length, "loss": 10 + loss, **of}), file=file)
  sys.exit(0)
with open("runs/" + settings["name"] + "/metrics.jsonl", "w") as file:
  print(json.dumps({"type": "start", "config": config, "commit": "abc", "device": "CPU"}), file=file)
  print(json.dumps({"type": "val", "step": 0, "length": 16, "loss": 4.0, **of}), file=file)
  print(json.dumps({"type": "train", "step": steps if what in ("", "lacks") else 2, "loss": 1}), file=file)
  for length in lengths[:1] if what == "lacks" else lengths:
    print(json.dumps({"type": "val", "step": 2 if what else steps, "length": length, "loss": loss, **of}), file=file)
if what == "wait":
  def save(*_):
    time.sleep(1)
    open("saved", "w").close()
    sys.exit(0)
  signal.signal(signal.SIGINT, save)
  signal.signal(signal.SIGTERM, save)
  open("waiting", "w").close()
  time.sleep(60)
if what in ("locked", "busy"):
  open("tried", "w").close()
  print("runs: another process is writing to it", file=sys.stderr)
  sys.exit(2)
if what == "killed":
  signal.signal(signal.SIGINT, signal.SIG_DFL)
  os.kill(os.getpid(), signal.SIGINT)
if what == "diverges":
  print("step 3: loss nan, gradient norm nan: training has diverged, and the update was not made", file=sys.stderr)
  sys.exit(1)
print("progress\\nloss is not finite")
sys.exit(int(what if what.isdigit() else 0))
""" % sys.executable
HEAD = "| validation loss at length | 16 | 32 |\n|---|---|---|\n"
ONE = "| a | 1.000 (1 of 2 seeds) | 1.000 (1 of 2 seeds) |\n"
FILE = {"config": "c.json", "axes": {"attention.variant": ["a", "b"]}, "seeds": [1, 2], "chart": "lengths"}


class Series(ScriptTest):
  def setUp(self):
    super().setUp()
    os.chmod(self.write("train", TRAIN), 0o755)
    self.write("c.json", "{}")
    self.sweep_file()

  def sweep_file(self, **changes):
    self.write("s.json", json.dumps({**FILE, **changes}))

  def sweep(self, *flags, code=0, **behaviour):
    """Returns the first table and which members ./train was called for."""
    environment = {**os.environ, "TRAIN": "./train", **behaviour}
    self.write("calls", "")
    output = self.said = self.run_script("sweep.py", "s.json", *flags, code=code, cwd=self.folder, env=environment)
    return output.partition("\n\n")[0] + "\n" * bool(output), self.text_of("calls").splitlines()

  def test_a_run_that_fails_does_not_end_the_series(self):
    table, calls = self.sweep("--results", "r.json", code=1, a2="1")
    self.assertEqual(calls, [member + " --resume" for member in ("a1", "b1", "a2", "b2")])
    self.assertEqual(table, HEAD + ONE + "| b | 1.500 ± 6.353 | 1.500 ± 6.353 |\n")
    self.assertIn("\n2 seeds, ", self.said)
    self.assertIn("| difference in nats, one seed |", self.said)
    failed, = (entry for entry in self.json_of("r.json")["runs"] if entry["state"] == "failed")
    self.assertRegex(failed["name"], "^s_a_2_")
    self.assertEqual([variants.note(self.path("runs/" + name))
                      for name in sorted(os.listdir(self.path("runs"))) if name.startswith("s_b")],
                     [{"sweep": "s", "label": "b", "place": 1}] * 2)
    self.assertEqual(failed["why"], "exit code 1: loss is not finite")
    self.assert_error(f"runs/{failed['name']} failed: {failed['why']}")
    table, calls = self.sweep()
    self.assertEqual(calls, ["a2 --resume"])
    self.assertIn("| a | 1.500 ± 6.353 |", table)
    self.assertEqual(self.sweep()[1], [])
    self.assertEqual(self.sweep("--overwrite")[1], [member + " --overwrite" for member in ("a1", "b1", "a2", "b2")])
    self.assertEqual(self.sweep("--seeds", "1", "--set", "x=1", code=1, a1="3", b1="3")[0], "")

  def test_a_run_that_is_stopped_ends_the_series(self):
    for what in ("killed", "130", "0"):  # 0: unfinished all the same
      with self.subTest(what):
        table, calls = self.sweep("--set", f"x={what}", code=-signal.SIGINT, b1=what)
        self.assertEqual(table, HEAD + ONE + "| b | - | - |\n")
        self.assertEqual(calls, ["a1 --resume", "b1 --resume"])
        self.assertIn("\n1 of 2 seeds, ", self.said)

  def test_a_run_without_a_loss_has_failed(self):
    self.assertIn("| b | 1.500", self.sweep(code=1, a2="lacks")[0])
    self.assert_error("lacks a finite validation loss")

  def test_refuses_before_training(self):
    os.mkdir(self.path("run"))
    for flags, part in ((["--set", "attention.variant=relu"], "--set attention.variant=relu"),
                        (["--set", "seed=5"], "--set seed=5"), (["--set", "name=x"], "--set name=x"),
                        (["--set", "attention.kind=relu"], "--set attention.kind"),
                        (["--seeds", "1,01"], "twice"), (["--axis", "attention.variant=a,a"], "twice"),
                        (["--seeds", "a"], "'a' is not a list such as 1,2,3"),
                        (["--axis", "x"], "'x' is not KEY=VALUE"), (["--set", "eval.every=0"], "eval.every = 0"),
                        (["--set", "eval.mode=suffix", "--set", "checkpoint.at_end=false"],
                         "--set checkpoint.at_end=true"),
                        (["--axis", "attention.variant=a,"], 'attention.variant = "" is unknown'),
                        (["--train", "none"], "none cannot be run"), (["--size", "big"], "s.json has no sizes"),
                        (["--config", "run"], "run/config.json: No such file"),
                        (["--picture", "none/x.png"], "no folder none"),
                        (["--results", "run"], "--results run: Is a directory"),
                        (["--axis", "x=1e-3,0.001"], "x: must be a list of different"),
                        (["--axis", "seed=3,4"], "axes: seed: the sweep itself gives each run a seed"),
                        (["--axis", "name=a"], "axes: name"), (["--table"], "no run of this sweep is complete")):
      with self.subTest(flags):
        self.assertEqual(self.sweep(*flags, code=2), ("", []))
        self.assert_error(part)

  def test_refuses_files(self):
    for changes, part in (({"axis": {}}, "axis: must be one of _, name, config"), ({"axes": {}}, "name at least one"),
                          ({"axes": {"x": []}}, "x: must be a list"),
                          ({"axes": {"x": {"a": 7}}},
                           "axes: x: must be a list of different values, or an object {label: {key: value}}, not {"),
                          ({"axes": {"x": [1, "1"]}}, "different values"), ({"seeds": [1, 1]}, "seeds: must be"),
                          ({"chart": "pie"}, "chart: must be one of lengths, lines, bars, lr, not \"pie\""),
                          ({"name": "a/b"}, "name: must be a text of letters, digits and _ . + -, not \"a/b\""),
                          ({"set": [1]}, "set: must be an object {key: value}, not [1]"),
                          ({"axes": [1]}, "axes: must be an object"), ({"seeds": [[1]]}, "seeds: must be"),
                          ({"seeds": ["1", 1]}, "seeds: must be"), ({"config": 5}, "config: must be a text, not 5"),
                          ({"axes": {"x": [1e-3, "0.001"]}}, "different values"),
                          ({"axes": {"x": {"a": {"seed": 1}}}}, "axes: seed"),
                          ("[]", "must be a JSON object"), ("[" * 100000, "is not the JSON of a sweep")):
      with self.subTest(str(changes)[:60]):
        self.write("s.json", changes) if isinstance(changes, str) else self.sweep_file(**changes)
        self.assertEqual(self.sweep(code=2), ("", []))
        self.assert_error("s.json", part)

  def test_refuses_the_name_of_no_picture(self):
    self.draw("sweep.py", "s.json", "--picture", "x.doc", code=2, alone=True, env={**os.environ, "TRAIN": "./train"})
    self.assertFalse(os.path.exists(self.path("calls")))
    self.assert_error("--picture x.doc: no picture is called .doc; use one of")

  def test_several_lengths_of_training(self):
    self.sweep_file(axes={"train.steps": [4, 2]}, set={"attention.variant": "a"})
    self.assertIn("2 seeds, 2 or 4 steps of 64 tokens",
                  self.run_script("sweep.py", "s.json", cwd=self.folder, env={**os.environ, "TRAIN": "./train"}))

  def test_lengths_of_each_run(self):
    self.sweep_file(axes={"attention.variant": ["a", "c"]}, seeds=[1])
    self.assertEqual(self.sweep()[0], "| validation loss at length | 16 | 32 | 64 |\n|---|---|---|---|\n"
                                      "| a | 1.000 | 1.000 | - |\n| c | - | 1.000 | 1.000 |\n")

  def test_another_seed_and_label_join_the_results(self):
    self.sweep("--seeds", "1")
    table, calls = self.sweep("--seeds", "2", "--axis", "attention.variant=a,d")
    self.assertEqual(calls, ["a2 --resume", "d2 --resume"])
    self.assertEqual(table, HEAD + "| a | 1.500 ± 6.353 | 1.500 ± 6.353 |\n" + ONE.replace("a", "b") +
                     "| d | 2.000 (1 of 2 seeds) | 2.000 (1 of 2 seeds) |\n")
    self.assertEqual(len(self.json_of("runs/s.json")["runs"]), 4)
    self.assertNotIn("| d |", self.sweep("--results", "r.json")[0])
    self.write("c.json", '{"model.layers": "3"}')  # other runs, which those do not join
    self.assertNotIn("| d |", self.sweep()[0])

  def test_a_number_has_one_spelling_and_its_run_is_found(self):
    self.sweep_file(axes={"x": ["1"]}, set={"attention.variant": "a"}, seeds=[1])
    self.assertEqual(self.sweep("--axis", "x=2e-2,1e3")[1], ["a1 --resume"] * 2)
    self.assertEqual([*self.json_of("runs/s.json")["axes"]["x"]], ["0.02", "1000"])
    name, = (name for name in os.listdir(self.path("runs")) if name.startswith("s_0.02"))
    os.rename(self.path("runs/" + name), self.path("runs/" + name.replace("0.02", "2e-2")))  # as they were called
    self.assertEqual(self.sweep("--axis", "x=0.02")[1], [])

  def test_a_label_beside_those_of_the_file(self):
    self.sweep_file(axes={"what": {"one": {"attention.variant": "a"}, "other": {"attention.variant": "b"}}}, seeds=[1])
    self.assertEqual(self.sweep("--axis", "what=+my_own")[1], [f"{what}1 --resume" for what in ("a", "b", "my_own")])
    self.sweep_file(axes={"what": {"one": {"attention.variant": "a", "x": 1}, "other": {"x": 2, "y": 1}, "z": {}}})
    self.sweep("--axis", "what=+own", code=2)
    self.assert_error("what=+own: its labels do not have one key in common")

  def test_an_axis_wins_over_the_set_of_the_file(self):
    self.sweep_file(axes={"attention.variant": ["a"]}, set={"x": 1, "attention.variant": "b"}, seeds=[1])
    self.assertEqual([name[:7] for name, _ in self.plan("--axis", "x=2,3")], ["s_a_2_1", "s_a_3_1"])
    self.sweep("--axis", "x=2,3", "--set", "x=4", code=2)
    self.assert_error("--set x=4")

  def test_the_seed_in_a_value(self):
    self.sweep_file(axes={"init": ["base_{seed}"]}, set={"attention.variant": "a"})
    names = [name for name, _ in self.plan()]
    self.assertEqual([name for name, _ in self.plan("--seeds", "2")], names[1:])
    self.sweep_file(axes={"init": ["base_2"]}, set={"attention.variant": "a"})
    self.assertEqual(self.plan("--seeds", "2")[0][0].split("_")[-1], names[1].split("_")[-1])

  def test_refuses_equal_runs(self):
    self.sweep_file(axes={"x": {label: {"attention.variant": "a"} for label in ("one", "other")}})
    self.assertEqual(self.sweep(code=2), ("", []))
    self.assert_error("one, seed 1 and other, seed 1 have the same settings")

  def test_evaluations_of_a_run_train_nothing(self):
    self.sweep_file(axes={"what": {"plain": {"attention.variant": "a"},
                                   "wide": {"attention.variant": "a", "eval.window": 8}}})
    table, calls = self.sweep()
    plain = [name for name in sorted(os.listdir(self.path("runs"))) if name.startswith("s_plain")]
    evaluations = [f"a{seed} {os.path.join('runs', name)}" for seed, name in zip("12", plain)]
    self.assertEqual(calls, ["a1 --resume", evaluations[0], "a2 --resume", evaluations[1]])
    self.assertEqual(table, HEAD + "| plain | 1.500 ± 6.353 | 1.500 ± 6.353 |\n"
                                   "| wide | 11.500 ± 6.353 | 11.500 ± 6.353 |\n")
    self.assertEqual(self.sweep(), (table, []))
    table, calls = self.sweep("--set", "eval.mode=suffix", "--axis", "what=wide")
    self.assertEqual(calls, evaluations)
    self.assertIn("| loss of the last targets at length | 16 | 32 |\n|---|---|---|\n| wide | 11.500", table)
    self.assertEqual(self.sweep("--set", "eval.mode=suffix")[1], evaluations)  # of plain: those of wide are there
    self.assertEqual(self.json_of("runs/s_suffix.json")["mode"], "suffix")
    calls = self.sweep("--set", "x=1", "--axis", "what=wide")[1]
    self.assertEqual([call.partition("_1_")[0] for call in calls],
                     ["a1 --resume", "a1 runs/s_plain", "a2 --resume", calls[3].partition("_1_")[0]])
    table, calls = self.sweep("--set", "x=2", "--seeds", "1", a1="diverges")
    self.assertEqual((table, calls), (HEAD + "| plain | diverged | diverged |\n| wide | diverged | diverged |\n",
                                      ["a1 --resume"]))
    self.assertEqual(self.sweep("--set", "x=3", "--seeds", "1", code=1, a1="3")[1], ["a1 --resume"])

  def test_other_data_are_evaluations_of_the_same_weights(self):
    for name in "vwl":
      self.write(name, "")
    self.sweep_file(set={"attention.variant": "a", "data.val": "v"},
                    axes={"asked": {"as trained": {}, "longer": {"data.val": "[w]", "data.val_labels": "l"}}})
    calls = self.sweep("--seeds", "1")[1]
    first, = [name for name in os.listdir(self.path("runs")) if name.startswith("s_as-trained")]
    self.assertEqual(calls, ["a1 --resume", f"a1 runs/{first}"])
    self.assertEqual(self.sweep("--seeds", "1")[1], [])
    self.assertEqual(self.sweep("--seeds", "1", "--set", "x=1", "--axis", "asked=as trained")[1], ["a1 --resume"])
    self.sweep("--seeds", "1", "--set", "data.val=x", code=2)
    self.assert_error("the sweep sets data.val")
    os.remove(self.path("l"))  # noticed before the training
    self.assertEqual(self.sweep("--seeds", "2", code=2)[1], [])
    self.assert_error("longer, seed 2: data.val_labels: no file is called l")

  def test_a_size_changes_some_axes(self):
    named = {label: {"attention.variant": label} for label in "abc"}
    self.sweep_file(axes={"lr": [1, 2], "attention": named}, seeds=[1], sizes={
        "one": {"axes": {"lr": [3]}}, "few": {"axes": {"attention": ["c", "a"]}}, "more": {"axes": {"x": ["y"]}},
        "wrong": {"axes": {"attention": ["d"]}}})
    for size, names in (("one", ["s_3_a_1", "s_3_b_1", "s_3_c_1"]),
                        ("few", ["s_1_c_1", "s_1_a_1", "s_2_c_1", "s_2_a_1"]),
                        ("more", [f"s_{lr}_{label}_y_1" for lr in "12" for label in "abc"])):
      self.assertEqual([name[:-9] for name, _ in self.plan("--size", size)], names)
    self.plan("--size", "wrong", code=2)
    self.assert_error("axis attention: d is not one of a, b, c")
    for chart, best_of in (("lines", "lr"), ("lines", "z"), ("lengths", "z")):
      self.sweep_file(axes={"lr": [1, 2], "attention": named}, chart=chart, best_of=best_of)
      self.plan(code=2)
      self.assert_error(f"best_of: {best_of} is not one of the axes that make rows")

  def plan(self, *flags, **options):
    said = self.run_script("sweep.py", "s.json", "--plan", *flags, cwd=self.folder,
                           env={**os.environ, "TRAIN": "./train"}, **options)
    return [line.split(": ") for line in said.splitlines()]

  def test_plan(self):
    named = {"plain": {"attention.variant": "a"}, "with, more": {"attention.variant": "b", "y": [1, True]}}
    self.sweep_file(axes={"lr": [0.001, "2e-3"], "which": named}, sizes={"big": {"set": {"z": 1}, "seeds": [7]}})
    names = [name for name, _ in self.plan()]
    self.assertEqual([name[:-9] for name in names],
                     ["s_0.001_plain_1", "s_0.001_with-more_1", "s_2e-3_plain_1", "s_2e-3_with-more_1",
                      "s_0.001_plain_2", "s_0.001_with-more_2", "s_2e-3_plain_2", "s_2e-3_with-more_2"])
    self.assertEqual([name for name, _ in self.plan()], names)
    self.assertEqual([name for name, _ in self.plan("--axis", "which=plain", "--seeds", "1")], [names[0], names[2]])
    self.assertEqual([name for name, _ in self.plan("--axis", "lr=0.0020,1e-3", "--seeds", "1")],
                     names[2:4] + names[:2])  # other spellings of the file's values
    self.assertEqual([name[:-9] for name, _ in self.plan("--size", "big", "--axis", "lr=5", "--axis", "which=plain")],
                     ["s_5_plain_7"])
    self.plan("--axis", "which=other", code=2)
    self.assert_error("other is not one of plain, with, more")
    self.write("c.json", '{"model.layers": "3"}')
    self.assertFalse(set(names) & {name for name, _ in self.plan()})  # another configuration
    self.write("c.json", '{"eval.tokens": "4"}')
    self.assertFalse(set(names) & {name for name, _ in self.plan("--set", "z=1")})
    self.sweep()
    self.assertEqual(self.plan(), [[name, "complete"] for name in names])
    self.assertEqual(self.sweep("--table")[1], [])
    self.write("c.json", '{"log.every": "5", "eval.tokens": "4"}')
    self.assertEqual(self.plan(), [[name, "complete"] for name in names])
    self.write("c.json", '{"eval.tokens": "5"}')  # other losses of the same weights
    plan = self.plan()
    self.assertEqual({how for _, how in plan}, {"to evaluate"})
    self.assertEqual([name[:-9] for name, _ in plan], [name[:-9] for name in names])
    self.assertFalse(set(names) & {name for name, _ in plan})
    calls = self.sweep()[1]
    self.assertEqual([call.split()[1] for call in calls], ["runs/" + name for name in names])
    self.assertEqual(self.plan(), [[name, "complete"] for name, _ in plan])
    self.write("c.json", '{"eval.tokens": "4"}')
    self.assertEqual(self.plan(), [[name, "complete"] for name in names])

  def test_long_labels_make_names_that_are_legal_and_differ(self):
    long, wide = "a" * 150, "ä" * 90
    for axes in ({"x": {long + end: {"y": end} for end in "12"}, "z": {wide: {"z": 1}, "b": {"z": 2}}},
                 {"log.every": {long * 2 + end: {"log.every": end} for end in "12"}}, {"x": [[long] * 9, [long] * 10]}):
      self.sweep_file(axes=axes, set={"attention.variant": "a"}, name="s" * 245)
      names = [name for name, _ in self.plan()]
      self.assertEqual(len(set(names)), len(names))
      self.assertLessEqual(max(len(name.encode()) for name in names), 200)
    self.sweep("--seeds", "1", "--set", "eval.mode=suffix")
    self.assertTrue(any(len(name) == 255 and name.endswith(".json") for name in os.listdir(self.path("runs"))))
    for length, cut in ((180, False), (200, True)):  # names that were legal stay
      self.sweep_file(axes={"x": ["b" * length]}, set={"attention.variant": "a"})
      self.assertEqual([f"s_{'b' * length}_" not in name for name, _ in self.plan()], [cut] * 2)

  def test_a_plan_is_checked(self):
    for flags, part in ((["--set", "train.steps=0"], "train.steps = 0"),
                        (["--axis", "attention.variant=a,"], 'attention.variant = "" is unknown'),
                        (["--set", "eval.every=0"], "eval.every = 0")):
      self.sweep("--plan", *flags, code=2)
      self.assert_error(part)

  def test_a_run_that_diverges_is_recorded(self):
    table, calls = self.sweep("--results", "r.json", a1="diverges")
    self.assertEqual(len(calls), 4)
    self.assertIn("), 1 diverged, means of 1 to 2 seeds; losses", self.said)
    self.assertEqual(table, HEAD + "| a | 2.000 (1 diverged) | 2.000 (1 diverged) |\n"
                                   "| b | 1.500 ± 6.353 | 1.500 ± 6.353 |\n")
    entry = self.json_of("r.json")["runs"][0]
    self.assertEqual((entry["state"], entry["why"], entry["loss"], entry["losses"], entry["initial"]),
                     ("diverged", "step 3: loss nan, gradient norm nan", None, {}, 4.0))
    self.assertEqual(self.sweep(), (table, []))
    self.assertEqual(self.sweep("--overwrite")[0],
                     HEAD + "".join(f"| {x} | 1.500 ± 6.353 | 1.500 ± 6.353 |\n" for x in "ab"))
    self.assertEqual(self.sweep("--set", "x=1", a1="diverges", b1="diverges", a2="diverges", b2="diverges")[0],
                     HEAD + "".join(f"| {x} | diverged | diverged |\n" for x in "ab"))

  def test_the_folder_of_a_run(self):
    os.mkdir(self.path("run"))
    self.write("run/config.json", "{}")
    self.assertIn("| a | 1.500", self.sweep("--config", "run")[0])

  def test_without_matplotlib(self):
    blocked = self.write("sitecustomize.py", "import sys\nsys.modules['matplotlib'] = None\n")
    output, _ = self.sweep("--picture", "p.png", code=2, PYTHONPATH=os.path.dirname(blocked))
    self.assertIn("| a | 1.500", output)
    self.assertLess(self.errors.index("no picture will be drawn"), self.errors.index("1/4: a, seed 1"))

  def test_interrupting_waits_until_the_run_has_saved(self):
    for sign in (signal.SIGINT, signal.SIGTERM):
      with self.subTest(sign=sign):
        self.interrupt(sign)
        os.remove(self.path("waiting"))
        os.remove(self.path("saved"))

  def test_waits_for_the_run_of_a_killed_sweep(self):
    self.assertEqual(self.sweep(a1="locked")[1], ["a1 --resume"] * 2 + ["b1 --resume", "a2 --resume", "b2 --resume"])

  def test_its_run_saves_when_it_is_killed(self):
    process = self.start_waiting()
    process.kill()
    process.communicate()
    end = time.monotonic() + 60
    while not os.path.exists(self.path("saved")) and time.monotonic() < end:
      time.sleep(0.01)
    self.assertTrue(os.path.exists(self.path("saved")))

  def test_interrupting_a_second_copy_prints_its_table(self):
    self.interrupt(signal.SIGINT, "busy", "tried")

  def start_waiting(self, what="wait", until="waiting"):
    process = start("sweep.py", "s.json", cwd=self.folder, text=True,
                    env={**os.environ, "TRAIN": "./train", "b1": what}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while process.poll() is None and not os.path.exists(self.path(until)):
      time.sleep(0.01)
    return process

  def interrupt(self, sign, *how):
    process = self.start_waiting(*how)
    time.sleep(0.5 if how else 0)  # until it sleeps between two attempts
    process.send_signal(sign)
    output, errors = process.communicate()
    self.assertEqual(process.returncode, -signal.SIGINT, errors)
    self.assertTrue(how or os.path.exists(self.path("saved")))
    self.assertEqual(output.partition("\n\n")[0] + "\n", HEAD + ONE + "| b | - | - |\n")


class Judgement(ScriptTest):
  def run_of(self, losses, first, last, halfway=None, **settings):
    config = {"model": {"context": 16}, "train": {"steps": len(losses)}, "eval": {"lengths": [16]},
              "optimizer": {"grad_clip": 1.0}, **settings}
    lines = [{"type": "start", "config": config}, {"type": "val", "step": 0, "length": 16, "loss": first}]
    lines += [{"type": "train", "step": step, "loss": loss, "grad_norm": loss} for step, loss in enumerate(losses, 1)]
    lines += [{"type": "val", "step": len(losses) // 2, "length": 16, "loss": halfway}] * bool(halfway)
    lines += [{"type": "val", "step": len(losses), "length": 16, "loss": last}]
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
    self.assertAlmostEqual(metrics.half_width([1.0, 1.2]), 12.7062 * 0.1, places=4)
    self.assertEqual([metrics.plus_minus(values) for values in ([1.0], [1.0, 1.2], [1.0, 1.0])],
                     ["", " ± 1.271", " ± <0.001"])
    self.assertEqual(metrics.plus_minus([0.5, 0.5], "{:.1%}"), " ± <0.1%")

  def result(self, losses, chart="lr"):
    """losses: {row: {rate: [loss or None for diverged, by seed]}}, from 6 nats at step 0."""
    runs = [{"name": f"{row}{rate}", "labels": {"lr": rate, "kind": row}, "seed": seed,
             "state": "diverged" if loss is None else "complete",
             "why": "", "initial": 6.0, "loss": loss, "losses": {} if loss is None else {"16": loss}}
            for row, rates in losses.items() for rate, values in rates.items() for seed, loss in enumerate(values)]
    rates = list(next(iter(losses.values())))
    return {"name": "s", "chart": chart, "axes": {"lr": rates, "kind": list(losses)}, "seeds": [0, 1], "lengths": [16],
            "runs": runs}

  def test_learning_rates(self):
    result = self.result({"a": {"1": [3.0, 3.2], "2": [2.0, 2.2]}, "b": {"1": [3.5, 3.5], "2": [2.5, None]}})
    self.assertEqual(section_sweep.table(result).splitlines()[2:], [
        "| a | 3.100 ± 1.271 | 2.100 ± 1.271 | 2.100 ± 1.271 at 2 | 0.500 |",  # (1 + 0) / 2
        "| b | 3.500 ± <0.001 | 2.500 (1 diverged) | 3.500 ± <0.001 at 1 | 0.375 |"])  # (0 + (2.5 + 6) / 2 - 3.5) / 2
    # b - a by seed: 0.5 and 0.3, standard error 0.1, t of 1 degree of freedom 12.706; the best ones 1.5 and 1.3
    self.assertEqual(section_sweep.difference_table(result).splitlines()[2:],
                     ["| b - a | +0.400 ± 1.271 | +0.500 | +1.400 ± 1.271 |"])

  def test_bits_per_byte(self):
    result = self.result({"a": {"1": [3.0, 3.0], "2": [2.0, None]}, "b": {"1": [3.5, 3.5], "2": [2.5, 2.5]}}, "lines")
    self.assertEqual(len(section_sweep.texts({**result, "steps": 1, "tokens_per_step": 1, "config": "c", "commit": "",
                                              "device": ""})), 3)
    for run in result["runs"]:
      run["bits_per_byte"] = {n: loss / 2 for n, loss in run["losses"].items()}
    in_bits = section_sweep.measured_by("bits_per_byte", result)
    self.assertEqual(section_sweep.table(in_bits, "bits per byte").splitlines(), [
        "| bits per byte at lr | 1 | 2 |", "|---|---|---|", "| a | 1.500 ± <0.001 | 1.000 (1 diverged) |",
        "| b | 1.750 ± <0.001 | 1.250 ± <0.001 |"])

  def test_accuracy_of_labels(self):
    """The best rate is that of the lowest loss; shares have no best one."""
    result = self.result({"a": {"1": [3.0, 3.2], "2": [2.0, 2.2]}})
    for run in result["runs"]:
      run["accuracy"] = {n: 1 - loss / 8 for n, loss in run["losses"].items()}
      run["exact"] = dict.fromkeys(run["losses"], 0.0)
    said = section_sweep.texts({**result, "steps": 1, "tokens_per_step": 1, "config": "c", "commit": "", "device": ""})
    self.assertEqual([table.splitlines()[::2] for table in said[1:3]], [
        ["| accuracy of the labels at lr | 1 | 2 |", "| a | 0.613 ± 0.159 | 0.738 ± 0.159 |"],
        ["| exact windows at lr | 1 | 2 |", "| a | 0.000 ± <0.001 | 0.000 ± <0.001 |"]])

  def test_two_seeds_are_too_few_for_an_interval_of_shares(self):
    for values, text in (([0.5, 0.9], "0.700 (2 seeds are too few for an interval)"), ([0.7, 0.71], "0.705 ± 0.064"),
                         ([0.9] * 4 + [1.0] * 4 + [0.6], "0.911 ± 0.098"), ([0.5], "0.500"),
                         ([1, 1], "1.000 ± <0.001")):
      self.assertEqual(variants.mean_text(values, share=True), text)
    self.assertRegex(variants.mean_text([0.5, 0.9]), "0.700 ± 2.5")
    result = self.result({"a": {"1": [3.0, 1.0]}}, "lines")
    for run in result["runs"]:
      run["exact"] = {n: loss / 4 for n, loss in run["losses"].items()}
    exact = section_sweep.table(section_sweep.measured_by("exact", result), "exact windows")
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
    result = {**self.result({"a": {"1": []}}, "lines"), "axes": axes, "runs": runs, "best_of": "lr", "steps": 1,
              "tokens_per_step": 1, "config": "c", "commit": "", "device": ""}
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
    row, = section_sweep.grid(self.result({"a": {"1": [3.0, 3.2], "2": [2.5]}})).values()
    self.assertEqual(section_sweep.best(row)[0], "1")

  def test_a_rate_without_a_run_leaves_the_sensitivity_open(self):
    result = self.result({"a": {"1": [3.0, 3.2], "2": []}})
    self.assertEqual(section_sweep.table(result).splitlines()[2], "| a | 3.100 ± 1.271 | - | 3.100 ± 1.271 at 1 | - |")
    self.assertEqual(section_sweep.difference_table(result), "")
