"""Runs that are interrupted: --resume continues them bit for bit, or says why it cannot and changes nothing.

FULL=1 kills more often. The full disk is a small tmpfs, which only root can mount.
"""
import json
import os
import resource
import random
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
import unittest.mock

from support.runs import ENDLESS, FILES, LARGE, Runs
from support.workspace import CRASH, TEXT, TRAIN, shard


class Interrupted(Runs):
  def test_killed_while_saving(self):
    for ranks in "12":
      with self.subTest(ranks=ranks):
        shutil.rmtree(self.path("runs"), ignore_errors=True)
        expected = self.straight("--gpus", ranks, **LARGE)
        self.kill_while_saving("--gpus", ranks, **LARGE)
        done = self.run_ok("--resume", "--gpus", ranks, **LARGE)
        self.assertIn("runs/tiny/step_00000010", done.stdout)
        self.assertEqual(self.steps(), [10, 20, 30, 40])
        self.assertEqual([name for name in os.listdir(self.path("runs/tiny")) if name.startswith(".tmp")], [])
        self.assertEqual(self.outcome(), expected)

  def test_killed_at_random_moments(self):
    self.kill_at_random_moments(seed=4, longest=1 / 3, kill=lambda process, _: process.kill(),
                                codes=(0, -signal.SIGKILL), errors="^$")  # no checkpoint was found damaged

  def test_other_kernels_of_matrix_products_are_named(self):
    """The bits depend on them."""
    constant = {"optimizer__schedule": "constant", "optimizer__warmup_steps": 0}
    self.run_ok(train__steps=20, **constant)
    self.assertNotIn("round differently", self.run_ok("--resume", train__steps=30, **constant).stdout)
    with unittest.mock.patch.dict(os.environ, OPENBLAS_CORETYPE="Nehalem", ONEDNN_MAX_CPU_ISA="SSE41"):
      done = self.run_ok("--resume", **constant)
    _, before, now = (line["versions"]["products"] for line in self.metrics(kind="start"))
    if before == now:
      self.skipTest("the kernels of the library cannot be chosen here")
    self.assertIn(f"matrix products by {now} round differently from those before this checkpoint, by {before}\n",
                  done.stdout)

  def test_another_schedule_keeps_the_optimizers_state(self):
    constant = {"optimizer__schedule": "constant", "optimizer__warmup_steps": 0}
    self.run_ok(name="straight", **constant)
    self.run_ok(train__steps=20, **constant)
    other = {"optimizer__warmup_steps": 0, "optimizer__schedule": "linear", "optimizer__weight_decay": 0.1}
    self.run_bad("--resume", names=["optimizer.schedule: \"constant\"", "--set optimizer.schedule_start=20"], **other)
    start = {"optimizer__schedule_start": 20}
    self.run_bad("--resume", names=["schedule_start: 0 in the checkpoint, 9 now"], **other, optimizer__schedule_start=9)
    self.run_bad("--resume", names=["seed"], seed=5, **start, **other)
    self.bad(names=["optimizer.schedule_start = 20 needs --resume"], name="new", wrote_nothing=False, **start)
    # Equal rates under another name of the schedule: equal bits. It resumes like any run, but is no longer the same.
    same = {**constant, **start, "optimizer__schedule": "wsd", "optimizer__decay_fraction": 0}
    self.run_ok("--resume", **same)
    self.remove_checkpoints(40)
    self.run_ok("--resume", **same)
    for file in ("model.safetensors", "optimizer.safetensors"):
      mine, straight = (self.bytes_of(self.checkpoint(40, file, run=run)) for run in ("tiny", "straight"))
      self.assertEqual(mine, straight)
    self.run_bad("--resume", names=["optimizer.schedule_start: 20 in the checkpoint, 0 now"], **constant)
    starts = [line["config"]["optimizer"]["schedule_start"] for line in self.metrics(kind="start")]
    self.assertEqual(starts, [0, 20, 20])
    self.run_ok("--resume", self.checkpoint(20), name="linear", **start, **other)
    rates = [line["lr"] for line in self.metrics("linear", "train")]
    for step in range(20, 40):
      self.assertAlmostEqual(rates[step], rates[0] * (40 - step) / 20, delta=1e-9)

  def test_another_start_continues_from_the_runs_own_settings(self):
    """A key that is not given again stays as the run has it, whatever the file says; every change is said."""
    def sets(*texts):
      return [word for text in texts for word in ("--set", text)]

    def said(done):
      return sorted(line.split(": ", 1)[1] for line in done.stdout.splitlines() if line.startswith("changed since "))
    self.run_ok(train__steps=10)
    self.assertEqual(said(self.run_ok("--resume", train__steps=10)), [])
    first = sets("optimizer.schedule=wsd", "optimizer.decay_fraction=0.5", "optimizer.weight_decay=0.3",
                 "optimizer.warmup_steps=0", "optimizer.schedule_start=10")
    done = self.run_ok("--resume", *first, train__steps=20)
    for change in ('optimizer.schedule: "cosine" -> "wsd"', "optimizer.weight_decay: 0.1 -> 0.3",
                   "optimizer.schedule_start: 0 -> 10", "train.steps: 10 -> 20"):
      self.assertIn(change, said(done))
    second = sets("optimizer.lr=5e-4", "optimizer.decay_fraction=0.25", "optimizer.schedule_start=20")
    changed = ["eval.every: 5 -> 10", "optimizer.decay_fraction: 0.5 -> 0.25", "optimizer.lr: 0.01 -> 0.0005",
               "optimizer.schedule_start: 10 -> 20", "train.steps: 20 -> 40"]
    for mode in ("--dry-run", "--resume"):
      done = self.run_ok("--resume", *second, *[mode][:mode == "--dry-run"], eval__every=10)
      self.assertEqual(said(done), changed)
      self.assertIn("optimizer.warmup_steps = 0 of the run wins over 2 in the file", done.stderr)
      self.assertNotIn("no effect", done.stderr)
    now = self.state(40)["config"]["optimizer"]
    self.assertEqual([now[key] for key in ("schedule", "weight_decay", "warmup_steps", "lr")], ["wsd", 0.3, 0, 5e-4])
    rates = [line["lr"] for line in self.metrics(kind="train")][20:]
    self.assertEqual(rates[:16], [5e-4] * 16)
    self.assertLess(rates[-1], 2e-4)
    # The same command resumes it, also from a step after the start; other settings are another run there.
    expected = self.outcome()
    self.remove_checkpoints(40)
    self.assertEqual(said(self.run_ok("--resume", *second, eval__every=10)), [])
    self.assertEqual(self.outcome(), expected)
    self.run_bad("--resume", *second, *sets("optimizer.lr=6e-4"), names=["optimizer.lr: 0.0005 in the checkpoint"])

  def test_saves_by_time(self):
    changes = {"train__steps": 600, "checkpoint__every": 10**6, "checkpoint__keep": 99, "eval__every": 100}
    expected = self.straight(step=600, **changes)
    self.run_ok(checkpoint__minutes=5e-4, **changes)
    steps = self.steps()
    self.assertGreater(len(steps), 2)
    self.assertEqual(self.outcome(600), expected)
    self.remove_checkpoints(*steps[1:])
    self.run_ok("--resume", **changes)
    self.assertEqual((self.steps(), self.outcome(600)), ([steps[0], 600], expected))
    self.run_ok("--overwrite", **{**changes, "checkpoint__every": 0, "checkpoint__minutes": 5e-4})
    self.assertEqual(self.steps(), [600])

  def test_metrics_are_rewound(self):
    expected = self.straight()
    self.run_ok()
    self.remove_checkpoints(30, 40)
    self.run_ok("--eval", "--resume")
    with open(self.path("runs/tiny/metrics.jsonl"), "a") as file:
      file.write('{"type":"train","step":41,"lo')  # torn
    self.write("runs/tiny/.tmp_metrics.jsonl", "half")  # left by a run that was killed
    os.mkdir(self.path("runs/tiny/.tmp_step_00000037"))
    self.run_ok("--resume")
    self.assertEqual([name for name in os.listdir(self.path("runs/tiny")) if name.startswith(".tmp")], [])
    kinds = [entry["type"] for entry in self.metrics()]
    self.assertEqual(kinds.count("start"), 3)  # the run, the evaluation and the continued run
    self.assertEqual(self.metrics(kind="eval")[0]["step"], 20)
    steady, files = self.outcome()
    self.assertEqual(([entry for entry in steady if entry["type"] != "eval"], files), expected)

  def test_lines_of_older_versions(self):
    """Without a time, and val lines with few fields: they are kept, but do not say that the step was evaluated."""
    self.run_ok(train__steps=40)
    old = [{key: value for key, value in line.items() if key != "time" and
            (line["type"] != "val" or key in ("type", "step", "length", "loss", "tokens"))} for line in self.metrics()]
    self.write("runs/tiny/metrics.jsonl", "".join(json.dumps(line) + "\n" for line in old))
    self.remove_checkpoints(40)
    self.run_ok("--resume", train__steps=40)
    kept = [line for line in old if line.get("step", 0) <= 30]
    self.assertEqual(self.metrics()[:len(kept)], kept)
    self.assertEqual([line["step"] for line in self.metrics(kind="val")], [*range(0, 31, 5), 30, 35, 40])

  def test_going_back(self):
    expected = self.straight()
    self.run_ok()
    done = self.run_ok("--resume", "runs/tiny/step_00000010/", checkpoint__keep=1)
    self.assertRegex(done.stdout, "later checkpoints, and a copy of the metrics, are now in runs/tiny/old_steps")
    self.assertEqual(self.outcome(), expected)
    self.assertEqual(self.steps(), [40])
    self.assertEqual(self.steps("tiny/old_steps"), [20, 30, 40])
    self.assertEqual(self.steady("tiny/old_steps"), expected[0])
    for place in ("runs/tiny/old_steps", "runs/tiny/old_steps/step_00000030"):
      self.run_bad("--resume", place, "--overwrite", names=["runs/tiny/old_steps", "--overwrite deletes it", "name="])
    os.rename(self.path("runs/tiny/step_00000040"), self.path("gone"))
    for flags in ((), ("--eval",)):
      self.run_bad("--resume", *flags, names=["all checkpoints of runs/tiny were moved away",
                                              "--resume runs/tiny/old_steps --set"])
    self.run_bad(names=["in old_steps; replace"])
    shutil.copytree(self.path("runs/tiny"), self.path("runs/two words"))
    self.run_bad("--resume", name="two words", names=["--resume 'runs/two words/old_steps' --set name"])
    self.run_ok("--resume", "runs/two words/old_steps/step_00000030", name="again")
    command = self.metrics("again", "start")[-1]["command"]
    self.assertEqual(shlex.split(command)[-2:], ["--resume", "runs/two words/old_steps/step_00000030"])
    self.run_ok("--resume", "runs/tiny/old_steps/step_00000030", name="other")
    self.assertEqual(self.outcome(run="other"), expected)

  def test_killed_after_going_back(self):
    """It resumes where it was killed, not from the later checkpoints, which would leave a gap in the metrics."""
    changes = {"optimizer__schedule": "constant", "eval__every": 0, "log__every": 1000}
    expected = self.straight(**changes)
    self.run_ok(**changes)
    process = self.start("--resume", "runs/tiny/step_00000010", **{**changes, "train__steps": 1000000,
                                                                   "checkpoint__every": 0})
    self.wait_for(process, lambda: 10 < len(self.lines()) < 40)
    process.kill()
    process.wait()
    done = self.run_ok("--resume", **changes)
    self.assertIn("continuing from runs/tiny/step_00000010", done.stdout)
    self.assertEqual(self.outcome(), expected)

  def test_killed_before_it_has_saved_anything(self):
    """When another run or a copy is continued, its checkpoint becomes the run's own before the first step."""
    changes = {"optimizer__schedule": "constant", "eval__every": 0, "log__every": 1000}
    expected = self.straight(**changes)
    self.run_ok(**changes)
    os.rename(self.path("runs/tiny/step_00000010"), self.path("runs/tiny/keep"))
    for name, place, step in (("other", "runs/straight/step_00000020", 20), ("tiny", "runs/tiny/keep", 10)):
      with self.subTest(name):
        process = self.start("--resume", place, name=name, **{**changes, "train__steps": 10**6, "checkpoint__every": 0})
        self.wait_for(process, lambda: len(self.lines(run=name)) > step and self.steps(name) == [step])
        process.kill()
        process.wait()
        done = self.run_ok("--resume", name=name, **changes)
        self.assertIn(f"continuing from runs/{name}/step_{step:08d}", done.stdout)
        self.assertEqual(self.outcome(run=name), expected)

  def test_another_run(self):
    expected = self.straight()
    self.remove_checkpoints(40, run="straight")
    for place in ("runs/straight", "copy"):
      with self.subTest(place):
        if place == "copy":
          shutil.copytree(self.path("runs/straight/step_00000020"), self.path("copy"))
        self.run_ok("--resume", place, name="other")
        steady, files = self.outcome(run="other")
        self.assertEqual(files, expected[1])
        if place == "copy":  # it has no metrics
          self.assertEqual(steady, [entry for entry in expected[0] if entry["step"] > 20 or
                                    (entry["step"] == 20 and entry["type"] == "val")])
        else:
          self.assertEqual(steady, expected[0])
        shutil.rmtree(self.path("runs/other"))
    self.run_ok(name="other")
    self.run_bad("--resume", "runs/straight", name="other", names=["runs/other", "--overwrite"])

  def test_the_ways_out_of_other_learning_rates(self):
    changes = {**self.changes, "optimizer__schedule": "wsd", "checkpoint__every": 10}  # it decays from step 32 on
    self.run_ok(**changes)
    longer = {**changes, "train__steps": 80}
    done = self.run_bad("--resume", **longer, names=[
        r"earlier checkpoint \(--resume runs/tiny/step_00000030 can\), begin another schedule .*=40\), or begin "
        r"another run with these weights \(--set name=\.\.\. --set init=runs/tiny/step_00000040, without --resume\)"])
    self.assertNotIn("continuing", done.stdout)
    self.run_bad("--resume", "runs/tiny", **longer, name="other",
                 names=[r"weights \(--set init=runs/tiny/step_00000040, without"])
    self.run_bad("--resume", **{**longer, "optimizer__schedule": "cosine"},
                 names=["restore the old values, begin another schedule here"])
    done = self.run_bad("--resume", "runs/tiny/step_00000030", "--gpus", "3", **longer, names=["x ranks"])
    self.assertNotIn("continuing", done.stdout)
    self.assertIn("continuing", self.run_ok("--resume", "runs/tiny/step_00000030", **longer).stdout)
    self.run_ok("--set", "init=runs/tiny/step_00000080", **longer, name="other")

  def test_a_run_is_called_as_its_folder(self):
    self.run_ok()
    original = self.run_digests()
    shutil.copytree(self.path("runs/tiny"), self.path("runs/copy"))
    says = 'warning: .*/config.json says name = "tiny", but the folder\'s name counts: this is run copy\n'
    os.symlink("copy", self.path("runs/link"))
    for folder in ("runs/copy", "runs/copy/step_00000020", self.path("runs/copy"), "runs/link"):
      self.assertRegex(self.train(folder, "--eval").stderr, says)
    self.assertEqual(len(self.metrics("copy", "eval")), 4)
    self.assertRegex(self.train("runs/copy", "--print-config").stdout, "name +\"copy\" .*the run's folder")
    self.remove_checkpoints(40, run="copy")
    self.assertRegex(self.train("runs/copy").stderr, says)
    self.assertEqual(self.digest(self.model("copy", 40)), self.digest(self.model("tiny", 40)))
    self.assertNotIn("says name", self.train("runs/copy", "--eval").stderr)  # training has written its config.json
    self.train("runs/copy", "--eval", "--set", "name=third")
    self.assertEqual([len(self.metrics("third", "eval")), len(self.metrics("copy", "eval"))], [1, 5])
    # Elsewhere than in runs/ here: read, but not written to
    shutil.copytree(self.path("runs/tiny"), self.path("elsewhere/tiny"))
    for folder, within in (("elsewhere/tiny", "."), (".", "runs/tiny")):
      self.assertIn("is not in runs/ of this folder", self.train(folder, "--eval", code=2, within=within).stderr)
    self.train("elsewhere/tiny", "--generate", "It was")
    self.train("elsewhere/tiny", "--eval", "--set", "name=fourth")
    kept = {name: digest for name, digest in self.run_digests().items() if name.startswith("runs/tiny/")}
    self.assertEqual(original, kept)

  def test_names_that_are_no_configuration(self):
    self.run_ok()
    self.run_ok("--eval", "--resume", "runs/tiny", "--set", "name=looked")
    for name, said in (
        ("runs", "runs is a folder, but there is no runs/config.json; name a configuration"),
        ("runs/nosuch", "runs/nosuch does not exist; give a configuration file or the folder of a run"),
        ("runs/looked", "runs/looked has no config.json; name the configuration"),
        ("runs/tiny/step_00000040/config.json", "transformers, not .* folder: ./train runs/tiny/step_00000040\n")):
      self.assertRegex(self.train(name, "--eval", code=2).stderr, said)

  def test_a_run_as_the_configuration(self):
    self.run_ok()
    shutil.copytree(self.path("runs"), self.path("before"))
    for folder, step in (("runs/tiny", 40), ("runs/tiny/", 40), ("runs/tiny/step_00000020", 20)):
      self.assertRegex(self.train(folder, "--eval").stdout, rf"\neval +step {step} ")
      self.assertIn(f"{step} steps", self.train(folder, "--generate", "It was").stdout)
    self.assertIn("runs/tiny is finished", self.train("runs/tiny").stdout)
    for arguments, said in ((["runs/tiny", "--set", "model.layers=3"], "model.layers: 2 in the checkpoint, 3 now"),
                            (["runs/tiny/step_00000020", "--resume"], "omit --resume")):
      self.assertIn(said, self.train(*arguments, code=2).stderr)
    self.remove_checkpoints(40)
    self.train("runs/tiny")
    self.assertEqual([self.digest(self.path(place, "tiny/step_00000040/model.safetensors"))
                      for place in ("before", "runs")],
                     [self.digest(self.path("before/tiny/step_00000040/model.safetensors"))] * 2)

  def test_beginnings_and_ends(self):
    for flags in ("--gpus", "2"), ():
      shutil.rmtree(self.path("runs"), ignore_errors=True)
      done = self.run_ok("--resume", *flags)
      self.assertRegex(done.stdout, "no checkpoint yet")
      before = self.run_digests()
      done = self.run_ok("--resume", *flags)
      self.assertRegex(done.stdout, "finished")
      self.assertEqual(before, self.run_digests())
      self.run_bad(*flags, names=["runs/tiny", "--resume", "--overwrite"])
    self.run_bad("--resume", "--overwrite", names=["--resume", "--overwrite"])
    self.run_bad("--resume", "runs/absent", names=["runs/absent"])
    self.run_bad("--resume", "val.bin", names=["val.bin"])
    self.run_bad("--resume", "--set", "name=other", "--eval", names=["runs/other"])
    self.ok("--resume", "latest", "--dry-run", **self.changes)
    self.ok("--resume", "--generate", "It was", **self.changes)
    self.assertEqual(before, self.run_digests())


class Damage(Runs):
  def damaged(self, content):
    """Name of the damage -> the file's content after it; None: the file is missing."""
    chance = random.Random(len(content))
    at, bit = chance.randrange(len(content)), 1 << chance.randrange(8)
    return {"bit flip": content[:at] + bytes([content[at] ^ bit]) + content[at + 1:], "cut short": content[:-1],
            "only the header": content[:8], "empty": b"", "longer": content + b"\0", "missing": None}

  def test_every_file(self):
    self.run_ok(checkpoint__keep=2)
    shutil.copytree(self.path("runs"), self.path("good"))
    expected = self.outcome()
    for name in FILES:
      content = self.bytes_of("good/tiny/step_00000040", name)
      for damage, rest in self.damaged(content).items():
        with self.subTest(file=name, damage=damage):
          shutil.rmtree(self.path("runs"))
          shutil.copytree(self.path("good"), self.path("runs"))
          if rest is None:
            os.remove(self.path("runs/tiny/step_00000040", name))
          else:
            self.write(f"runs/tiny/step_00000040/{name}", rest)
          done = self.run_ok("--resume", checkpoint__keep=2)
          self.assertEqual(done.stderr.count("skipped the damaged checkpoint runs/tiny/step_00000040"), 1)
          self.assertIn(name, done.stderr)
          self.assertIn("runs/tiny/step_00000030", done.stdout)
          self.assertEqual(self.outcome(), expected)
          self.assertTrue(os.path.isdir(self.path("runs/tiny/bad_step_00000040")))
          self.assertEqual(self.steps(), [30, 40])

  def test_nothing_intact(self):
    self.run_ok(train__steps=20)
    metrics = self.digest(self.path("runs/tiny/metrics.jsonl"))
    for step in (10, 20):
      self.write(f"runs/tiny/step_{step:08d}/model.safetensors", b"")
    for flags in (("--eval", "--resume"), ("--resume", "runs/tiny/step_00000010", "--dry-run")):
      self.run_bad(*flags, names=["intact", "model.safetensors"])
    for _ in range(2):  # the second time there are bad_* folders only
      self.bad("--resume", names=["no intact checkpoint", "--overwrite"], wrote_nothing=False, **self.changes)
      self.assertEqual(self.steps(), [])
      self.assertEqual(metrics, self.digest(self.path("runs/tiny/metrics.jsonl")))
    self.run_ok("--overwrite")

  def test_evaluation_takes_the_newest_intact(self):
    self.run_ok()
    self.write("runs/tiny/step_00000040/model.safetensors", b"x")
    done = self.run_ok("--eval", "--resume")
    self.assertIn("model.safetensors", done.stderr)
    self.assertEqual(self.metrics(kind="eval")[0]["step"], 30)
    self.assertEqual(self.steps(), [10, 20, 30, 40])  # only training renames a damaged checkpoint

  def test_evaluation_needs_no_moments(self):
    self.run_ok()
    os.remove(self.path("runs/tiny/step_00000040/optimizer.safetensors"))
    for place in ([], ["runs/tiny/step_00000040"]):
      done = self.run_ok("--eval", "--resume", *place)
      self.assertEqual((self.metrics(kind="eval")[-1]["step"], done.stderr), (40, ""))
    self.assertIn("skipped the damaged checkpoint runs/tiny/step_00000040: optimizer.safetensors",
                  self.run_ok("--resume").stderr)

  def as_a_user(self, *flags):
    """./train without root's rights, because root may open every file."""
    self.write_config("config.json", **self.changes)
    user, program = {}, TRAIN
    if os.geteuid() == 0:
      program = shutil.copy(TRAIN, self.path("program"))  # the checkout may be closed to that user
      user = {"user": 65534, "group": 65534, "extra_groups": []}
      for folder, _, names in os.walk(self.folder):
        for name in ["", *names]:
          os.chown(os.path.join(folder, name), 65534, 65534)
    return subprocess.Popen([program, "config.json", *flags], cwd=self.folder, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, **user)

  def test_a_file_that_may_not_be_read(self):
    self.run_ok()
    before = self.run_digests()
    for name in ("state.json", "model.safetensors"):
      os.chmod(self.path("runs/tiny/step_00000040", name), 0)
      code, _, errors = self.ended(self.as_a_user("--resume"))
      self.assertEqual(code, 2, errors)
      self.assertRegex(errors, f"Permission denied.*step_00000040/{name}")
      os.chmod(self.path("runs/tiny/step_00000040", name), 0o644)
      self.assertEqual(before, self.run_digests())

  def test_a_run_that_may_not_be_written_is_evaluated(self):
    self.run_ok()
    before = self.run_digests()
    for name, mode in (("metrics.jsonl", 0o444), ("", 0o555)):
      self.addCleanup(os.chmod, self.path("runs/tiny", name), 0o755)
      os.chmod(self.path("runs/tiny", name), mode)
      code, said, errors = self.ended(self.as_a_user("--eval", "--resume"))
      self.assertEqual(code, 0, errors)
      self.assertRegex(said, "eval  step 40 ")
      self.assertIn("runs/tiny/metrics.jsonl may not be written: results are printed, but not added", errors)
      self.assertEqual(before, self.run_digests())

  def test_a_folder_that_may_be_entered_but_not_listed(self):
    if os.geteuid() != 0:
      self.skipTest("needs root, to run as another user")
    self.run_ok()
    shared = tempfile.mkdtemp()
    self.addCleanup(shutil.rmtree, shared)
    shutil.copytree(self.path("runs/tiny/step_00000040"), os.path.join(shared, "model"))
    os.chmod(shared, 0o711)
    code, _, errors = self.ended(self.as_a_user("--eval", "--set", f"init={shared}/model"))
    self.assertEqual(code, 0, errors)

  def test_a_folder_that_may_not_be_entered(self):
    os.mkdir(self.path("runs"))
    self.addCleanup(os.chmod, self.path("runs"), 0o755)
    os.chmod(self.path("runs"), 0)
    denied = "^runs: cannot (list|create the folder) runs(/tiny)?: Permission denied; change that"
    for flags, message in (((), denied), (("--resume",), denied), (("--eval", "--resume"), denied),
                           (("--set", "init=runs/other", "--dry-run"), "^config: init = .*: Permission denied; name")):
      code, _, errors = self.ended(self.as_a_user(*flags))
      self.assertEqual(code, 2)
      self.assertRegex(errors, message)

  def test_a_folder_that_may_not_be_written(self):
    # It saves only on request, so that the failed checkpoint itself ends the run, and not the next one.
    self.changes.update(train__steps=1000000, checkpoint__every=0, eval__every=0, log__every=1000)
    process = self.as_a_user()
    self.wait_for(process, lambda: self.lines())
    process.send_signal(signal.SIGUSR1)
    self.wait_for(process, lambda: self.steps())
    os.chmod(self.path("runs/tiny"), 0o555)
    process.send_signal(signal.SIGUSR1)
    code, _, errors = self.ended(process)
    os.chmod(self.path("runs/tiny"), 0o755)
    self.assertEqual(code, 1, errors)
    self.assertRegex(errors, r"Permission denied.*the last checkpoint, runs/tiny/step_0+\d+,")
    self.assertEqual(len(self.steps()), 1)
    self.run_ok("--resume", "--dry-run")

  def small_disk(self, size):
    os.mkdir(self.path("runs"))
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=" + size, "none", self.path("runs")],
                             capture_output=True, text=True)
    if mounted.returncode != 0:
      self.skipTest("cannot mount a tmpfs: " + mounted.stderr.strip())
    self.addCleanup(subprocess.run, ["umount", self.path("runs")], check=True)

  def test_no_space_for_metrics(self):
    self.small_disk("2m")
    process = self.under_way(**ENDLESS)
    process.send_signal(signal.SIGUSR1)
    self.wait_for(process, lambda: self.steps())
    with open(self.path("runs/rest"), "wb", buffering=0) as file:
      with self.assertRaises(OSError):
        while True:
          file.write(bytes(1000000))
    code, _, errors = self.ended(process)
    self.assertEqual(code, 1)
    self.assertRegex(errors,
                     r"^step \d+: cannot write runs/tiny/metrics.jsonl: No space left on device\. Training stops; "
                     rf"the last checkpoint, runs/tiny/step_{self.steps()[0]:08d}, is intact")

  def test_full_disk(self):
    self.small_disk("480k")
    done = self.call(**self.changes)  # 148 KB per checkpoint: the third or fourth does not fit
    self.assertEqual(done.returncode, 1, done.stderr)
    kept = self.steps()
    self.assertIn(kept, ([10, 20], [10, 20, 30]))
    # This is the usual error, but a line of metrics.jsonl may hit the full disk first.
    self.assertRegex(done.stderr, rf"the checkpoint of step {kept[-1] + 10} could not be written: .*No space left on "
                                  rf"device.*step_{kept[-1]:08d}|"
                                  r"step \d+: .*metrics.jsonl: No space left on device.*step_\d+")
    self.assertNotRegex(done.stderr, CRASH)
    self.assertEqual([name for name in os.listdir(self.path("runs/tiny")) if name.startswith(".tmp")], [])
    subprocess.run(["mount", "-o", "remount,size=10m", self.path("runs")], check=True)
    done = self.run_ok("--resume")
    self.assertEqual(done.stderr, "")
    self.assertIn(f"step_{kept[-1]:08d}", done.stdout)
    self.assertEqual(self.outcome(), self.straight())

  def test_a_limit_on_the_size_of_files(self):
    self.write_config("config.json", **self.changes)
    done = subprocess.run([TRAIN, "config.json"], cwd=self.folder, capture_output=True, text=True,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (40 << 10, 40 << 10)))
    self.assertEqual(done.returncode, 1, done.stderr)
    self.assertRegex(done.stderr, "the checkpoint of step 10 could not be written: .*File too large")


class Settings(Runs):
  def test_refused(self):
    self.run_ok(train__steps=20, optimizer__warmup_steps=2)
    self.write("train_000002.bin", shard(TEXT * 2))
    for key, value in {
        "seed": 7, "precision": "bf16", "model.layers": 3, "model.rope_base": 5000, "model.position": "none",
        "model.mlp_ratio": 3.0, "attention.variant": "lssa", "attention.sink": "learned", "data.shuffle": False,
        "data.train": "train_00000[012].bin", "batch.tokens": 128, "batch.micro": 4, "optimizer.lr": 1e-3,
        "optimizer.beta2": 0.99, "optimizer.weight_decay": 0, "optimizer.grad_clip": 2.0, "optimizer.warmup_steps": 3,
        "optimizer.schedule": "linear", "optimizer.final_lr_fraction": 0.5, "optimizer.skip_spikes": 5,
        "train.steps": 40}.items():
      with self.subTest(key=key):
        changes = {"train__steps": 20, "data__train": "train_00000[01].bin", **{key.replace(".", "__"): value}}
        self.run_bad("--resume", names=[f"\n  {key}", "checkpoint", "now"], **changes)
    self.write("other.bin", shard(TEXT[30:] * 10))
    self.run_bad("--resume", names=["val.bin", "other.bin"], train__steps=20, data__train="train_00000[01].bin",
                 data__val="other.bin")
    content = self.bytes_of("val.bin")
    for name in ("train_000001.bin", "val.bin"):  # other content of the same size
      with open(self.path(name), "r+b") as file:
        file.seek(1500)
        file.write(b"x")
      self.run_bad("--resume", names=[rf'{name}" of \d+ tokens \((\w+)\) in the checkpoint, "{name}" of \d+ tokens '
                                      r"\((?!\1)\w+\) now"], train__steps=20, data__train="train_00000[01].bin")
      self.write("val.bin", content)

  def test_allowed(self):
    expected = self.straight()
    os.mkdir(self.path("moved"))
    for name in ("train_000000.bin", "train_000001.bin"):
      shutil.copy(self.path(name), self.path("moved", name))
    for changes in ({"name": "straight"}, {"log__every": 3}, {"eval__tokens": 128, "eval__lengths": [8, 16]},
                    {"checkpoint__every": 7, "checkpoint__keep": 1}, {"generate__every": 4}, {"threads": 2},
                    {"train__recompute": "block"}, {"init": "nowhere"}, {"batch__micro": None},
                    {"data__train": "moved/train*.bin"}, {"train__steps": None, "train__tokens": 40 * 64}):
      with self.subTest(**changes):
        self.remove_checkpoints(*set(self.steps("straight")) - {10, 20}, run="straight")
        self.run_ok("--resume", **{"name": "straight", **changes, "checkpoint__keep": 9})
        self.assertEqual(self.outcome(run="straight")[1][0], expected[1][0])

  def test_more_steps(self):
    for schedule, decay in (("constant", {}), ("wsd", {"optimizer__decay_fraction": 0.25})):
      with self.subTest(schedule):
        changes = {"optimizer__schedule": schedule, **decay}
        expected = self.straight(step=80, train__steps=80, **changes)
        self.run_ok(train__steps=40, **changes)
        if schedule == "wsd":
          self.remove_checkpoints(40)  # step 30 is the last one before the decay
        self.run_ok("--resume", train__steps=80, **changes)
        steady, files = self.outcome(80)
        without = [[entry for entry in lines if (entry["type"], entry["step"]) != ("val", 40)] for lines in
                   (steady, expected[0])]  # the end of the shorter run
        self.assertEqual(*without)
        self.assertEqual(files, expected[1])
        shutil.rmtree(self.path("runs"))
    self.run_ok(train__steps=40, optimizer__schedule="wsd")
    self.run_bad("--resume", names=["train.steps", "40", "80", "wsd"], train__steps=80, optimizer__schedule="wsd")

  def test_fewer_steps(self):
    self.run_ok(optimizer__schedule="constant")
    self.run_bad("--resume", names=["train.steps", "30", "40"], optimizer__schedule="constant", train__steps=30)

  def test_keep(self):
    self.run_ok(train__steps=11, checkpoint__every=2, checkpoint__keep=3)
    self.assertEqual(self.steps(), [8, 10, 11])
    self.run_ok("--overwrite", train__steps=11, checkpoint__every=2, checkpoint__keep=1, checkpoint__at_end=False)
    self.assertEqual(self.steps(), [10])
    self.run_ok("--overwrite", train__steps=11, checkpoint__every=0)
    self.assertEqual(self.steps(), [11])
