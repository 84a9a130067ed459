"""Training on labels: a position predicts its label instead of the next token, or nothing. The comparison with PyTorch
is skipped where torch or transformers is missing.
"""
import array
import os
import random
import unittest

from support.runs import Runs
from support.workspace import TEXT, read_safetensors, shard

from lib import shards  # from SCRIPTS

try:
  import torch
  import torch.nn.functional as F
  import transformers  # noqa: F401
  from lib.modeling_plusgpt import PlusGPTConfig, PlusGPTLMHeadModel
except ImportError:
  torch = None

NONE = 65535
SHARDS = {"train_000000": TEXT * 6, "train_000001": TEXT[10:] * 3, "val": TEXT[30:] * 10}  # those of Workspace
LABELS = {"data__labels": "labels_train_*.bin", "data__val_labels": "labels_val.bin"}


def label_file(values, columns=1):
  """uint16 labels, or floats, `columns` for each token."""
  kind = "labels" if isinstance(values[0], int) else "values"
  return shards.header(kind, len(values) // columns, columns) + array.array(shards.TYPES[kind], values).tobytes()


def following(tokens):
  """The next token of each."""
  return [*tokens[1:], 0]


def some(tokens, seed=1):
  """The next tokens of about a third, in windows of 16 of which some have none."""
  chance = random.Random(seed)
  labels = [token if chance.random() < 0.4 else NONE for token in following(tokens)]
  for first in range(0, len(labels), 16):
    if first == 16 or chance.random() < 0.2:
      labels[first:first + 16] = [NONE] * len(labels[first:first + 16])
  return labels


class LabelRuns(Runs):
  def write_labels(self, labels_of):
    for name, tokens in SHARDS.items():
      self.write(f"labels_{name}.bin", label_file(labels_of(list(tokens))))


class Steps(LabelRuns):
  def setUp(self):
    super().setUp()
    self.changes.update(batch__tokens=128, train__steps=12, checkpoint__every=5)

  def test_steps_without_labels_are_skipped(self):
    def none_in_steps_1_and_4(tokens):
      return [NONE if at < 8 * 16 or 24 * 16 <= at < 32 * 16 else token for at, token in enumerate(following(tokens))]
    self.write_labels(none_in_steps_1_and_4)
    changes = {"data__shuffle": False, **LABELS}
    self.assertNotIn("is not", self.ok("--dry-run", **self.changes, **changes).stderr)
    for key, other in ("labels", "val_labels"), ("val_labels", "labels"):
      alone = {**self.changes, **changes, f"data__{other}": None}
      self.assertIn(f"data.{key} is set and data.{other} is not", self.ok("--dry-run", **alone).stderr)
    outcomes = []
    for ranks in "12":
      done = self.run_ok("--gpus", ranks, name=f"ranks{ranks}", **changes)
      self.assertEqual(done.stderr.count("data.labels: step 1 has no label"), 1)
      self.assertEqual(done.stderr.count("no label"), 1)
      lines = self.metrics(f"ranks{ranks}", "train")
      self.assertEqual([line["step"] for line in lines if line["loss"] is None or line["grad_norm"] is None], [1, 4])
      self.assertEqual([(line["step"], line["skipped"]) for line in self.metrics(f"ranks{ranks}", "skip")],
                       [(1, 1), (4, 2)])
      self.run_ok("--gpus", ranks, "--overwrite", **changes)
      self.remove_checkpoints(10, 12)
      self.run_ok("--gpus", ranks, "--resume", **changes)
      self.assertEqual(self.outcome(12), self.outcome(12, f"ranks{ranks}"))
      outcomes.append([line["loss"] for line in lines if line["loss"] is not None])
    for one, two in zip(*outcomes):
      self.assertLess(abs(one / two - 1), 1e-5)
    # Not even the weight decay of such an update is made.
    weights = [self.run_ok("--overwrite", train__steps=1, **changes),
               self.bytes_of("runs/tiny/step_00000001/model.safetensors")]
    self.run_ok("--overwrite", train__steps=1, optimizer__lr=0)
    self.assertEqual(weights[1], self.bytes_of("runs/tiny/step_00000001/model.safetensors"))

  def test_steps_that_are_skipped_are_no_updates(self):
    """At a constant rate the weights and moments are those of a run on the windows with labels alone."""
    flags = {"data__shuffle": False, "optimizer__warmup_steps": 0, "optimizer__schedule": "constant", "eval__every": 0,
             "data__train": "train_*.bin", "data__labels": "labels_train_*.bin", "log__groups_every": 1}
    tokens = (TEXT * 20)[:9 * 128 + 1]
    os.remove(self.path("train_000001.bin"))

    def write(first, unlabelled):
      part = list(tokens[128 * first:])
      self.write("train_000000.bin", shard(part))
      self.write("labels_train_000000.bin", label_file(
          [NONE if at // 128 in unlabelled else token for at, token in enumerate(following(part))]))
    for ranks in "12":
      write(6, ())
      self.run_ok("--gpus", ranks, "--overwrite", name="straight", **{**flags, "train__steps": 3})
      write(0, range(6))  # the checkpoint of step 5 is before the first update, that of step 8 after two
      self.run_ok("--gpus", ranks, "--overwrite", **{**flags, "train__steps": 9, "checkpoint__every": 1})
      self.assertEqual([self.state(step)["updates"] for step in (5, 8, 9)], [0, 2, 3])
      for last in (8, 5, None):
        for name in ("model", "optimizer"):
          self.assertEqual(*(self.digest(self.checkpoint(step, name + ".safetensors", run=run))
                             for step, run in ((9, "tiny"), (3, "straight"))), (ranks, last))
        groups = [self.metrics(run, "groups") for run in ("tiny", "straight")]
        self.assertEqual([line["step"] for line in groups[0]], [7, 8, 9])
        self.assertEqual(*([line["norms"] for line in lines] for lines in groups))
        if last:
          self.remove_checkpoints(*range(last + 1, 10))
          self.run_ok("--gpus", ranks, "--resume", **{**flags, "train__steps": 9})
    # What is said of the first step is said of the first update.
    dead = {**flags, "attention__gate": {"activation": "relu", "weight_init": "zero"}, "train__steps": 7}
    for mode in ("--dry-run", "--overwrite"):
      self.assertIn("gradient exactly 0 in step 7", self.run_ok(mode, **dead).stderr)
    self.write_start_with_nan()
    done = self.call("--overwrite", **{**self.changes, **flags, "init": "start"})
    self.assertRegex(done.stderr, "step 7: loss nan, .* before any update")

  def test_other_labels_are_another_run(self):
    self.write_labels(some)
    self.run_ok(**LABELS)
    self.run_bad("--resume", names=["data.train, shard 3", "labels_train_000000.bin", "no further shard"],
                 train__steps=20)
    self.write_labels(lambda tokens: some(tokens, 2))
    self.run_bad("--resume", names=["data.train, shard 3", "labels_train_000000.bin"], train__steps=20, **LABELS)
    self.write_labels(some)
    self.run_bad("--resume", names=["train.label_mean", "sequence"], train__steps=20,
                 train__label_mean="sequence", **LABELS)


class Losses(LabelRuns):
  def test_evaluation_counts_labels_alone(self):
    """The loss of labels is that of the same targets in an evaluation without labels, window by window."""
    self.write_labels(some)
    self.run_ok(train__steps=10, eval__every=0)
    flags = {"init": "runs/tiny/step_00000010", "eval__tokens": 10000, "eval__lengths": [16]}
    labels = some(list(SHARDS["val"]))
    for mean in ("batch", "sequence"):
      self.ok("--eval", name=mean, data__val_labels="labels_val.bin", train__label_mean=mean, **flags)
    windows = (len(labels) - 1) // 16
    found = [[at for at in range(16) if labels[16 * window + at] != NONE] for window in range(windows)]
    count, labelled = sum(map(len, found)), [window for window, places in enumerate(found) if places]
    self.assertLess(len(labelled), windows)
    means = []  # of the windows with labels: a shard of its own each, whose only label files are these
    tokens = SHARDS["val"]
    for window in labelled:
      self.write("val.bin", shard(tokens[16 * window:16 * window + 17]))
      self.write("one.bin", label_file(labels[16 * window:16 * window + 17]))
      self.ok("--eval", name="one", data__val_labels="one.bin", **flags)
      means.append(self.metrics("one", "eval")[-1]["loss"])
      if len(means) == 12:
        break
    for mean in ("batch", "sequence"):
      line = self.metrics(mean, "eval")[0]
      self.assertEqual((line["of"]["tokens"], line["of"]["windows"]), (count, len(labelled)))
      self.assertEqual([file["name"] for file in line["of"]["data"]], ["val.bin", "labels_val.bin"])
      self.assertIsNone(line["bits_per_byte"])
      self.assertEqual(len(line["window_losses"]), len(labelled))
      for ours, theirs in zip(line["window_losses"], means):
        self.assertLess(abs(ours - theirs), 2e-6)
      weights = [1] * len(labelled) if mean == "sequence" else [len(found[window]) for window in labelled]
      expected = sum(w * x for w, x in zip(weights, line["window_losses"])) / sum(weights)
      self.assertLess(abs(line["loss"] - expected), 2e-6)
      self.assertEqual(line.get("window_labels"), None if mean == "sequence" else weights)
      squares = sum((w * (x - expected)) ** 2 for w, x in zip(weights, line["window_losses"]))
      n = len(weights)
      self.assertLess(abs(line["stderr"] - (squares * n / (n - 1)) ** 0.5 / sum(weights)), 2e-6)

  def test_bad_labels_are_refused(self):
    """labels_test.cpp has more."""
    self.write_labels(following)
    tokens = list(SHARDS["val"])
    self.bad(names=["data.val_labels", "not a label file"], data__val_labels="val.bin")
    self.write("none.bin", label_file([NONE] * (len(tokens) - 1) + [1]))
    self.bad("--eval", names=["data.val_labels", "none of the .* windows"], wrote_nothing=False,
             data__val_labels="none.bin", eval__tokens=100)
    late = [256 if at == 2000 else token for at, token in enumerate(following(list(TEXT) * 24))]
    self.write("train_000000.bin", shard(TEXT * 24))
    self.write("labels_train_000000.bin", label_file(late))
    self.bad("--dry-run", names=["data.labels", "label 256 at position 2000"], wrote_nothing=False, **LABELS)


@unittest.skipUnless(torch, "needs torch and transformers")
class Gradients(LabelRuns):
  """Of the first step, against PyTorch's."""

  def expected(self, loss_of):
    """The loss and the gradients, by name, that PyTorch computes for the first step: loss_of(model, inputs [B, T],
    first) of its windows, which begin at `first` of the first shard."""
    folder = self.path("runs/tiny/step_00000001")
    model = PlusGPTLMHeadModel(PlusGPTConfig.from_pretrained(folder))
    weights = {name: torch.frombuffer(bytearray(data), dtype=torch.float32).view(shape)
               for name, (_, shape, data) in read_safetensors(os.path.join(folder, "model.safetensors")).items()}
    model.load_state_dict(weights)
    first = torch.arange(4)[:, None] * 16 + torch.arange(16)
    loss = loss_of(model, torch.tensor(list(SHARDS["train_000000"]))[first], first)
    loss.backward()
    return loss.item(), {name: parameter.grad for name, parameter in model.named_parameters()}

  def compare(self, loss_of, **changes):
    changes = {"init": "runs/tiny/step_00000001", "data__shuffle": False, "batch__micro": 2,
               "precision": "fp32", **changes}
    expected_loss, expected = self.expected(loss_of)
    said = self.run_ok("--dump-gradients", "gradients.safetensors", name="other", **changes).stdout
    self.assertLess(abs(float(said.split("loss ")[-1].split()[0]) - expected_loss), 1e-4 * abs(expected_loss))
    found = read_safetensors(self.path("gradients.safetensors"))
    self.assertEqual(set(found), set(expected))
    for name, (_, shape, data) in found.items():
      ours = torch.frombuffer(bytearray(data), dtype=torch.float32).view(shape)
      self.assertGreater(expected[name].abs().max(), 0, name)
      self.assertLess((ours - expected[name]).abs().max(), 1e-4 * expected[name].abs().max(), name)


class Autograd(Gradients):
  def test_sparse_labels(self):
    self.write_labels(some)
    labels = torch.tensor(some(list(SHARDS["train_000000"])))
    for variant in ("softmax", "lssar"):
      self.run_ok("--overwrite", train__steps=1, eval__every=0, optimizer__lr=0.1, optimizer__warmup_steps=0,
                  attention__variant=variant)
      for mean in ("batch", "sequence"):
        def loss_of(model, inputs, first):
          wanted = labels[first].where(labels[first] != NONE, -100)
          self.assertIn((wanted >= 0).any(1).sum(), (2, 3))
          losses = F.cross_entropy(model(inputs).logits.transpose(1, 2), wanted, reduction="none")
          if mean == "batch":
            return losses.sum() / (wanted >= 0).sum()
          counts = (wanted >= 0).sum(1)
          return (losses.sum(1)[counts > 0] / counts[counts > 0]).mean()
        self.compare(loss_of, attention__variant=variant, train__label_mean=mean, **LABELS)
