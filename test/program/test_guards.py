"""Events that skip an update or end a run before it does damage: loss spikes, divergence, impossible tokens."""
import os
import re
import shutil
import struct

from support.runs import FILES, Runs
from support.workspace import CRASH, TEXT, read_safetensors, shard


class Guards(Runs):
  def test_spikes_are_skipped(self):
    # Step 31 reads bytes that occur nowhere else in the text; the data is not shuffled, 64 tokens per step.
    tokens = bytearray(TEXT * 40)
    tokens[30 * 64:31 * 64] = bytes(range(160, 224))
    self.write("train_000000.bin", shard(tokens))
    changes = {"data__train": "train_000000.bin", "data__shuffle": False, "optimizer__skip_spikes": 6.0}
    expected = self.straight(**changes)
    skipped, = self.metrics("straight", "skip")
    self.assertEqual((skipped["step"], skipped["skipped"]), (31, 1))
    self.assertRegex(skipped["reason"], "(loss|norm) .* standard deviations above")
    self.assertEqual(self.state(40, "straight")["spikes"]["skipped"], 1)
    self.assertEqual(self.state(40, "straight")["updates"], 39)
    self.assertEqual(len(self.metrics("straight", "train")), 40)
    # The count and the windows survive: continued from before the spike, and from after it.
    for last in (30, 35):
      with self.subTest(last=last):
        process = self.start(**changes, checkpoint__every=5)
        self.wait_for(process, lambda: os.path.exists(self.checkpoint(last)))
        process.kill()
        process.wait()
        self.run_ok("--resume", f"runs/tiny/step_{last:08d}", **changes)
        self.assertEqual(self.outcome(), expected)
        self.assertEqual(self.state(40)["spikes"], self.state(40, "straight")["spikes"])
        shutil.rmtree(self.path("runs/tiny"))
    # Without the guard the update is made.
    self.run_ok(**{**changes, "optimizer__skip_spikes": 0})
    self.assertNotEqual(self.outcome()[1], expected[1])
    self.assertEqual(self.metrics(kind="skip"), [])

  def test_skipping_leaves_everything_as_it_is(self):
    # With a threshold that every step exceeds once the window is full, nothing changes any more.
    self.run_ok(optimizer__skip_spikes=1e-6, optimizer__schedule="constant", optimizer__lr=0.0, checkpoint__every=1,
                checkpoint__keep=99)
    skips = [entry["step"] for entry in self.metrics(kind="skip")]
    self.assertTrue(skips and min(skips) > 16, skips)
    for step in skips:
      before, after = (read_safetensors(self.checkpoint(s, "optimizer.safetensors")) for s in (step - 1, step))
      self.assertTrue(before == after, step)

  def test_parameters_without_a_gradient(self):
    dead = {"activation": "relu", "weight_init": "zero"}
    for layers in (1, 3, 2):
      count = rf" \({layers} tensors\)" if layers > 1 else ""
      for flags in (["--dry-run"], ["--gpus", "2", "--overwrite"]):  # of ranks, each has a share of the gradients
        done = self.run_ok(*flags, attention__gate=dead, train__steps=2, model__layers=layers)
        self.assertRegex(done.stderr, rf"warning: h\.\*\.ln_1\.weight{count}, .*h\.\*\.attn\.c_gate\.weight{count}, "
                         ".*: gradient exactly 0 in step 1")
        self.assertEqual(done.stderr.count("\n"), 1)
        names = re.findall(r"h\.\*\.[a-z_.0-9]+", done.stderr)
        self.assertEqual(len(names), len(set(names)))
    self.assertEqual(self.run_ok("--resume", "--dry-run", attention__gate=dead, train__steps=2).stderr, "")

  def test_parameters_that_learn_later(self):
    opening = [{"gate": {"activation": activation, "weight_init": "zero"}} for activation in ("silu", "tanh")]
    variants = re.search(r"unknown.* \((.*)\)", self.call("--set", "attention.variant=?").stderr)[1].split(", ")
    self.assertGreater(len(variants), 9)
    for attention in [{"variant": name} for name in variants] + opening:
      with self.subTest(**attention):
        self.assertEqual(self.run_ok("--dry-run", attention=attention).stderr, "")

  def test_divergence_names_the_parameter(self):
    self.write_start_with_nan()
    done = self.call(**{**self.changes, "init": "start", "eval__every": 0})
    self.assertEqual(done.returncode, 1)
    self.assertRegex(done.stderr, r"^step 1: loss nan, gradient norm nan, before any update; the first parameter .*"
                     r"h\.1\.ln_2\.weight\. The learning rate is not the cause: .* the weights of init = start$")
    self.assertNotIn("-nan", done.stdout)
    self.assertNotRegex(done.stderr, CRASH)
    self.assertIsNone(self.metrics(kind="train")[0]["loss"])

  def test_a_bad_token_says_how_to_continue(self):
    """It is in the middle of a shard, which is not checked before the run reads it."""
    tokens = list(TEXT * 600)
    tokens[1500] = 300
    self.write("train_000000.bin", shard(tokens))
    done = self.bad(names=["train_000000.bin", "300", "1500"],
                    wrote_nothing=False, **{**self.changes, "data__shuffle": False})
    self.assertRegex(done.stderr, r"Training stops in step \d\d; the last checkpoint, runs/tiny/step_000000\d0")

  def test_divergence_says_how_to_continue(self):
    changes = {**self.changes, "optimizer__lr": 1000.0, "optimizer__grad_clip": 0, "optimizer__warmup_steps": 0,
               "optimizer__schedule": "constant", "checkpoint__every": 1, "checkpoint__keep": 2, "eval__every": 0}
    done = self.call(**changes)
    self.assertEqual(done.returncode, 1, done.stdout)
    before, step = self.steps()  # the newer one gave the loss that is not finite
    advice = re.search(rf"step {step + 1}: .*(?:parameter|gradient).* is .*\. Begin another run .*: --set name=\.\.\. "
                       rf"--set optimizer.lr=\.\.\. .*finite loss: (--set) (init=runs/tiny/step_{before:08d})$",
                       done.stderr)
    self.assertTrue(advice, done.stderr)
    self.ok(*advice.groups(), "--set", "name=other", "--set", "optimizer.lr=1e-3", **{**changes, "train__steps": 2})
    # The update that would have spoiled the weights was not made: they are still finite.
    for name in FILES[:2]:
      for tensor, (_, _, data) in read_safetensors(self.checkpoint(step, name)).items():
        self.assertTrue(all(x == x and abs(x) != float("inf") for x, in struct.iter_unpack("<f", data)), tensor)
    self.assertEqual(self.call("--resume", **changes).stderr, done.stderr)
