"""What several ranks compute is what one rank computes: losses, gradients, checkpoints, choices of matrix products.

On the CPU, ranks are processes, started by --gpus N. How their runs start and end is tested by test_ranks_end.py.
FULL=1 kills more often.
"""
import os
import re
import shutil
import signal

from support.runs import LARGE, RankRuns
from support.workspace import read_safetensors


class Same(RankRuns):
  def test_losses_on_1_2_and_4_ranks(self):
    for changes in ({}, {"train__zero_stage": 0, "attention__variant": "lssar_softplus_gated", "data__shuffle": False}):
      with self.subTest(**changes):
        for count in (1, 2, 4):
          self.run_ok("--overwrite", "--gpus", str(count), name=f"ranks{count}", train__steps=20, **changes)
        for count in (2, 4):
          for kind in ("train", "val"):
            self.assert_close(f"ranks{count}", "ranks1", kind)
          self.assertEqual([entry["device"] for entry in self.metrics(f"ranks{count}", "start")], [f"{count} x CPU"])

  def test_zero_changes_no_bit(self):
    # A million parameters: every rank owns some of every bucket.
    for count in (2, 4):
      for changes in ({"precision": "fp32"}, {"precision": "bf16", "attention__gate__activation": "sigmoid"}):
        with self.subTest(ranks=count, **changes):
          changes = {**LARGE, "train__steps": 6, "checkpoint__every": 3, **changes}
          for name, zero in (("off", 0), ("on", 1)):
            self.run_ok("--overwrite", "--gpus", str(count), name=name, train__zero_stage=zero, **changes)
          self.assertEqual(self.outcome(6, "on"), self.outcome(6, "off"))
          # A checkpoint does not depend on zero_stage: either setting continues what the other began.
          for begun, zero in (("on", 0), ("off", 1)):
            self.run_ok("--gpus", str(count), "--overwrite", "--resume", f"runs/{begun}/step_00000003", name="other",
                        **{**changes, "train__zero_stage": zero})
            self.assertEqual(self.outcome(6, "other"), self.outcome(6, begun))

  def test_zero_takes_less_memory(self):
    def moments(*flags):
      return float(re.search(r"moments +([\d.]+) MiB", self.run_ok("--dry-run", *flags, **LARGE).stdout)[1])
    alone, shared = moments(), moments("--gpus", "4")
    self.assertLess(shared, alone / 3)

  def test_gradients(self):
    for zero in (0, 1):
      self.run_ok("--gpus", "2", "--dump-gradients", f"two{zero}.safetensors", train__zero_stage=zero, **LARGE)
    self.run_ok("--dump-gradients", "one.safetensors", **LARGE)
    self.assertEqual(self.bytes_of("two0.safetensors"), self.bytes_of("two1.safetensors"))
    one, two = (read_safetensors(self.path(name + ".safetensors")) for name in ("one", "two1"))
    for name, (_, _, data) in one.items():
      a, b = memoryview(data).cast("f"), memoryview(two[name][2]).cast("f")
      most = max(map(abs, a))
      self.assertLess(max(abs(x - y) for x, y in zip(a, b)), 1e-5 * most, name)

  def test_evaluation(self):
    self.run_ok(name="model", train__steps=10)
    for count in (1, 2, 3):
      for mode in ("windows", "suffix"):
        self.ok("--eval", "--lengths", "8,16,48", "--gpus", str(count), name=f"ranks{count}",
                init="runs/model/step_00000010", eval__batch=2, eval__mode=mode)
    for count in (2, 3):
      self.assert_close(f"ranks{count}", "ranks1", "eval", 1e-6)
      for mine, other in zip(self.metrics(f"ranks{count}", "eval"), self.metrics("ranks1", "eval")):
        self.assertEqual(mine["of"], other["of"])
        self.assertLess(abs(mine["stderr"] - other["stderr"]), 1e-6 * other["loss"])
        for key, value in mine.get("difference", {}).items():
          self.assertLess(abs(value - other["difference"][key]), 2e-6 * other["loss"])
        for key in {"by_position", "window_losses"} & mine.keys():
          self.assertEqual(len(mine[key]), len(other[key]))
          self.assertTrue(all(abs(x / y - 1) < 1e-6 for x, y in zip(mine[key], other[key])))

  def test_only_rank_0_speaks(self):
    changes = {"generate__every": 20, "generate__prompt": "It", "optimizer__warmup_steps": 100}
    done = [self.run_ok("--gpus", count, "--overwrite", **changes) for count in "12"]
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


class Products(RankRuns):
  """Each rank measures algorithms for its matrix products by itself, but all must use rank 0's from the first step."""

  def setUp(self):
    super().setUp()
    self.choosing()
    self.changes.update(train__steps=12, checkpoint__every=4, eval__every=3, eval__lengths=[16, 48], eval__batch=3,
                        generate__every=5)

  def two(self, *flags, **changes):
    self.run_ok("--gpus", "2", "--overwrite", *flags, **changes)
    return self.outcome(12)

  def test_cold_and_warm(self):
    combinations = [{"train__zero_stage": zero, "checkpoint__every": every} for zero in (0, 1) for every in (0, 4)]
    layers = {"attention__gate__activation": "silu", "attention__layers": ["lssa_ungated", "gated"]}  # two widths of qkv
    for shape in ({"batch__micro": 4}, {"batch__micro": 2, "train__recompute": "block", "precision": "bf16", **layers}):
      for first, other in zip(combinations, combinations[::-1]):
        with self.subTest(**shape, **first):
          shutil.rmtree(self.path("cache"), ignore_errors=True)
          cold = self.two(**shape, **first)
          shapes = [line[:3] for line in self.choices()]
          self.assertEqual(len(shapes), len(set(map(tuple, shapes))))  # written by rank 0 alone
          for warm in combinations if os.environ.get("FULL") else [other]:
            self.assertEqual(self.two(**shape, **warm), cold)
          self.assertEqual([line[:3] for line in self.choices()], shapes)  # nothing was left to choose

  def test_resumed(self):
    expected = self.two()
    os.rename(self.path("runs/tiny"), self.path("runs/before"))
    for changes in ({}, {"eval__lengths": [32]}):  # the checkpoint has no choices for these products
      outcomes = []
      for cache in ("cold", "warm"):
        if cache == "cold":
          shutil.rmtree(self.path("cache"))
        outcomes.append(self.two("--resume", "runs/before/step_00000008", **changes))
      self.assertEqual(*outcomes)
      self.assertEqual(outcomes[0][1], expected[1])

  def test_evaluation(self):
    self.two()
    lines = []
    for name in ("cold", "warm"):
      self.ok("--eval", "--lengths", "8,40", "--gpus", "2", name=name, init="runs/tiny/step_00000012", eval__batch=2)
      lines.append(self.steady(name))
    self.assertEqual(*lines)


class Resumed(RankRuns):
  def test_killed_while_saving(self):
    changes = {**LARGE, "eval__every": 10}
    expected = self.straight("--gpus", "2", **changes)
    self.kill_while_saving("--gpus", "2", **changes)
    done = self.run_ok("--gpus", "2", "--resume", **changes)
    self.assertIn("runs/tiny/step_00000010", done.stdout)
    self.assertEqual(self.outcome(), expected)

  def test_killed_at_random_moments(self):
    def kill(process, chance):
      """Kills a rank or their parent."""
      try:
        os.kill(self.ranks().get(chance.randrange(3), process.pid), signal.SIGKILL)
      except ProcessLookupError:  # it had ended
        pass

    self.kill_at_random_moments("--gpus", "2", seed=5, longest=1 / 2, kill=kill, codes=(0, 1, -signal.SIGKILL),
                                errors=r"^(rank \d \(process \d+\) was ended by signal 9.*\n)?$")  # no damaged checkpoint

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
          self.assert_close("tiny", "straight", kind)
        for key in ("tokens", "data"):
          self.assertEqual(self.state(40)[key], self.state(40, "straight")[key])

  def test_a_named_micro_batch_that_does_not_divide(self):
    self.changes["batch__micro"] = 8
    self.run_ok(train__steps=40)
    self.remove_checkpoints(40)
    self.run_bad("--resume", "--gpus", "2", names=["8 x 16 x 2 = 256", "or batch.micro = 0"])
    self.run_bad("--resume", "--gpus", "2", names=["batch.micro: 8 in the checkpoint, 4 now .0 takes"], batch__micro=4)
    self.run_ok("--resume", "--gpus", "2", batch__micro=0)

  def test_beginnings_ends_and_damage(self):
    done = self.run_ok("--gpus", "2", "--resume")
    self.assertRegex(done.stdout, "no checkpoint yet")
    expected = self.outcome()
    done = self.run_ok("--gpus", "2", "--resume")
    self.assertRegex(done.stdout, "finished")
    self.write("runs/tiny/step_00000040/model.safetensors", b"")
    done = self.run_ok("--gpus", "2", "--resume")
    self.assertEqual(done.stderr.count("skipped the damaged checkpoint"), 1)
    self.assertEqual(self.outcome(), expected)
    self.run_bad("--gpus", "2", names=["runs/tiny", "--resume", "--overwrite"])

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
