"""Runs of several ranks: what they say, resuming, spikes, divergence.

On the CPU, ranks are processes, started by --gpus N. program/test_invariance.py tests that they compute what one rank
computes, test_ranks_end.py how their runs start and end.
FULL=1 kills more often.
"""
import os
import re
import shutil
import signal

from support.runs import LARGE, RankRuns, send


class Same(RankRuns):
  def test_zero_takes_less_memory(self):
    def moments(*flags):
      return float(re.search(r"moments +([\d.]+) MiB", self.run_ok("--dry-run", *flags, **LARGE).stdout)[1])
    alone, shared = moments(), moments("--gpus", "4")
    self.assertLess(shared, alone / 3)

  def test_only_rank_0_speaks(self):
    changes = {"generate__every": 20, "generate__prompt": "It", "optimizer__warmup_steps": 100}
    done = [self.run_ok("--gpus", count, "--overwrite", **changes) for count in "12"]
    self.assertEqual(self.metrics(kind="start")[-1]["device"], "2 x CPU")
    lines = [[line for line in each.stdout.split("\n") if line and "iB" not in line] for each in done]  # memory differs
    self.assertEqual(len(lines[0]), len(lines[1]), lines)
    self.assertEqual(done[0].stderr, done[1].stderr)
    self.assertIn("warmup_steps", done[1].stderr)

  def test_what_libraries_print(self):
    said = "NCCL INFO rank {} of 2, maxCTAs 8\n".format
    self.set("NCCL_DEBUG", "INFO")
    done = self.run_ok("--gpus", "2", train__steps=3)
    self.assertEqual((done.stdout.count(said(0)), done.stderr.count(said(1))), (1, 1), done)
    self.assertNotIn(said(1), done.stdout)
    self.set("NCCL_DEBUG_FILE", "elsewhere")
    self.assertEqual(self.run_ok("--gpus", "2", "--overwrite", train__steps=3).stderr, "")
    for variable in ("CUBLASLT_LOG_LEVEL", "CUBLASLT_LOG_MASK"):
      self.set(variable, "1")
      self.assertIn(said(1), self.run_ok("--gpus", "2", "--overwrite", train__steps=3).stderr)
      del os.environ[variable]
    self.set("CUBLASLT_LOG_MASK", "1")
    self.set("CUBLASLT_LOG_FILE", "elsewhere")
    self.assertEqual(self.run_ok("--gpus", "2", "--overwrite", train__steps=3).stderr, "")

  def test_calls_that_answer_before_their_end(self):
    self.impatient(2)  # NCCL's health is then asked for every 0.2 s
    self.run_ok("--gpus", "2", name="blocking", train__steps=60)
    self.set("NCCL_COMM_BLOCKING", 0)
    self.run_ok("--gpus", "2", train__steps=60)
    self.assertEqual(self.outcome(60), self.outcome(60, "blocking"))

  def test_products_of_which_a_checkpoint_knows_nothing(self):
    """Each rank measures algorithms by itself, but all must use rank 0's from the first step."""
    self.choosing()
    changes = {"train__steps": 12, "checkpoint__every": 4, "eval__every": 3, "eval__batch": 3, "generate__every": 5}
    self.run_ok("--gpus", "2", name="before", eval__lengths=[16, 48], **changes)
    outcomes = []
    for cache in ("cold", "warm"):
      if cache == "cold":
        shutil.rmtree(self.path("cache"))
      self.run_ok("--gpus", "2", "--overwrite", "--resume", "runs/before/step_00000008", eval__lengths=[32], **changes)
      outcomes.append(self.outcome(12))
    self.assertEqual(*outcomes)
    self.assertEqual(outcomes[0][1], self.outcome(12, "before")[1])


class Resumed(RankRuns):
  def test_killed_at_random_moments(self):
    def kill(process, chance):
      """Kills a rank or their parent."""
      send(self.ranks().get(chance.randrange(3), process.pid), signal.SIGKILL)

    self.kill_at_random_moments("--gpus", "2", seed=5, longest=1 / 2, kill=kill, codes=(0, 1, -signal.SIGKILL),
                                errors=r"^(rank \d \(process \d+\) was ended by signal 9.*\n)?$")  # no damage is found

  def test_on_another_number_of_ranks(self):
    self.run_ok(name="straight")
    for first, second, micro in ((2, 1, 2), (1, 4, None), (4, 2, 2)):  # None: as many as fit, 8 on one rank
      with self.subTest(first=first, second=second):
        self.changes["batch__micro"] = micro
        self.run_ok("--overwrite", "--gpus", str(first), train__steps=40)
        os.rename(self.path("runs/tiny/step_00000040"), self.path("gone" + str(first)))
        os.rename(self.path("runs/tiny/step_00000030"), self.path("gone too" + str(first)))
        done = self.run_ok("--resume", "--gpus", str(second))
        self.assertIn("runs/tiny/step_00000020", done.stdout)
        for kind in ("train", "val"):
          lines = ([[line.get(key) for key in ("step", "length", "loss", "grad_norm")]
                    for line in self.metrics(run, kind)] for run in ("tiny", "straight"))
          self.assert_close(*lines, 1e-5)
        for key in ("tokens", "data"):
          self.assertEqual(self.state(40)[key], self.state(40, "straight")[key])

  def test_a_named_micro_batch_that_does_not_divide(self):
    self.changes["batch__micro"] = 8
    self.run_ok(train__steps=40)
    self.remove_checkpoints(40)
    self.run_bad("--resume", "--gpus", "2", names=["8 x 16 x 2 = 256", "or batch.micro = 0"])
    self.run_bad("--resume", "--gpus", "2", names=["batch.micro: 8 in the checkpoint, 4 now .0 takes"], batch__micro=4)
    self.run_ok("--resume", "--gpus", "2", batch__micro=0)

  def test_damage_is_said_once(self):
    expected = self.straight("--gpus", "2")
    self.write("runs/straight/step_00000040/model.safetensors", b"")
    done = self.run_ok("--gpus", "2", "--resume", name="straight")
    self.assertEqual(done.stderr.count("skipped the damaged checkpoint"), 1)
    self.assertEqual(self.outcome(run="straight"), expected)

  def test_spikes(self):
    changes = {"optimizer__skip_spikes": 1e-6, "optimizer__schedule": "constant", "optimizer__lr": 0.0}
    for count in "12":
      self.run_ok("--gpus", count, name="ranks" + count, **changes)
    skips = [[line["step"] for line in self.metrics("ranks" + count, "skip")] for count in "12"]
    self.assertTrue(skips[0])
    self.assertEqual(*skips)

  def test_divergence(self):
    changes = {**self.changes, "eval__every": 0, "checkpoint__every": 0}
    self.write_start_with_nan()
    for precision in ("fp32", "bf16"):
      texts = []
      for count in "12":
        done = self.call("--gpus", count, "--set", "init=start", **{**changes, "precision": precision})
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^step 1: .*first parameter that is not finite is h\.1\.ln_2\.weight")
        texts.append(done.stderr)
      self.assertEqual(*texts)
      done = self.call("--gpus", "2", **{**changes, "precision": precision, "optimizer__lr": 1000.0,
                                         "optimizer__grad_clip": 0, "optimizer__warmup_steps": 0})
      self.assertEqual(done.returncode, 1)
      self.assertRegex(done.stderr, r"^step \d+: .*the (first|largest) .* is (that of )?[hwl]\S+\. ")
