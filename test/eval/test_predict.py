"""Models with a regression head: training on float32 labels, --predict, and what they begin from. The comparisons with
PyTorch are skipped where torch or transformers is missing.
"""
import array
import math
import os
import random
import signal

from data.test_labels import LABELS, SHARDS, Gradients, LabelRuns, label_file, some, torch
from support.workspace import TEXT, read_safetensors, shard

if torch:
  from lib.modeling_plusgpt import PlusGPTConfig, PlusGPTLMHeadModel
NAN = math.nan


def some_values(K):
  """Of about a third of the tokens, in windows of 16 of which some have none: K numbers, of which some are missing."""
  def labels_of(tokens):
    chance = random.Random(K)
    rows = [[chance.gauss(token / 100, 0.5) if chance.random() < 0.8 else NAN for _ in range(K)]
            if chance.random() < 0.4 else [NAN] * K for token in tokens]
    for first in range(0, len(rows), 16):
      if first == 16 or chance.random() < 0.2:
        rows[first:first + 16] = [[NAN] * K for _ in rows[first:first + 16]]
    return [value for row in rows for value in row]
  return labels_of


class Head(LabelRuns):
  def write_values(self, K):
    labels_of = some_values(K)
    for name, tokens in SHARDS.items():
      self.write(f"labels_{name}.bin", label_file(labels_of(list(tokens)), K))
    return {**LABELS, "model__head__outputs": K}

  def predicted(self, *flags, what="--predict", **changes):
    """The outputs, and their shape."""
    self.ok(what, "pred.npy", *flags, **changes)
    content = self.bytes_of("pred.npy")
    self.assertEqual(content[:10], b"\x93NUMPY\x01\x00\x76\x00")
    header = eval(content[10:128])
    self.assertEqual((header["descr"], header["fortran_order"], content[127:128]), ("<f4", False, b"\n"))
    values = array.array("f", content[128:])
    self.assertEqual(len(values), math.prod(header["shape"]))
    return values, header["shape"]


class Runs(Head):
  def setUp(self):
    super().setUp()
    self.changes.update(batch__tokens=128, train__steps=12, checkpoint__every=5)

  def test_predictions_do_not_depend_on_eval_tokens_or_labels(self):
    changes = self.write_values(2)
    self.run_ok(**changes)
    before, *_, after = self.metrics(kind="val")
    self.assertLess(after["loss"], 0.7 * before["loss"])
    self.assertIsNone(after["perplexity"])
    del changes["data__val_labels"]
    expected = self.predicted("--resume", **changes)
    self.assertEqual(expected[1], ((len(SHARDS["val"]) - 1) // 16, 16, 2))
    self.assertGreater(len(set(expected[0])), 100)
    self.assertEqual(self.predicted("--resume", eval__tokens=32, eval__every=0, **changes), expected)
    self.assertEqual(self.predicted("--resume", eval__mode="suffix", eval__lengths=[8, 32], **changes), expected)
    self.assertEqual([name for name in self.files() if ".tmp" in name], [])

  def test_a_signal_leaves_no_file(self):
    changes = self.write_values(2)
    self.write("val.bin", shard(TEXT * 3000))
    for ranks in "12":
      process = self.start("--predict", "pred.npy", "--gpus", ranks, **changes, eval__batch=1)
      self.wait_for(process, lambda: os.path.exists(self.path(".tmp_pred.npy")))
      process.terminate()
      self.assertEqual(self.ended(process)[0], -signal.SIGTERM)
      self.assertEqual([name for name in self.files() if "pred" in name], [])

  def test_losses_of_tokens(self):
    """Those of an evaluation, in their tokens' places: two shards, windows, suffixes, labels, values."""
    self.write_labels(some)
    self.write("val_2.bin", shard(TEXT * 2 + b"x"))
    tokens = {"val.bin": len(SHARDS["val"]), "val_2.bin": 2 * len(TEXT) + 1}
    common = {"data__val": ["val.bin", "val_2.bin"], "eval__tokens": 10**6, "model__context": 16}
    labelled = {**common, "data__val": ["val.bin"], "data__val_labels": "labels_val.bin"}
    for changes in ({**common, "eval__lengths": [16, 24]}, {**common, "eval__mode": "suffix", "eval__lengths": [8, 24]},
                    labelled, {**labelled, "model__head__outputs": 2}):
      if "model__head__outputs" in changes:
        self.write_values(2)
      lengths = changes.get("eval__lengths", [16])
      losses, shape = self.predicted(what="--per-token-losses", **changes)
      counts = [tokens[name] for name in changes["data__val"]]
      self.assertEqual(shape, (len(lengths), sum(counts)))
      self.ok("--eval", **changes)
      for row, line in enumerate(self.metrics(kind="eval")[-len(lengths):]):
        whole = line.get("context_of", line["length"])
        mine, sums, first = losses[row * shape[1]:(row + 1) * shape[1]], [], 0
        for count in counts:
          for start in range(first, first + (count - 1) // whole * whole, whole):
            window = mine[start:start + whole]
            there = [x for x in window if x == x]
            sums += there
            if "suffix" in changes.get("eval__mode", ""):
              self.assertEqual([x == x for x in window], [False] * (whole - 8) + [True] * 8)
          self.assertTrue(all(x != x for x in mine[first + (count - 1) // whole * whole:first + count]))
          first += count
        self.assertEqual(len(sums), line["of"]["tokens"])
        self.assertAlmostEqual(math.fsum(sums) / len(sums), line["loss"], delta=2e-6)
    self.assertEqual(os.listdir(self.path("runs/tiny")).count("pred.npy"), 0)
    self.bad("--per-token-losses", "absent/x.npy", names=["--per-token-losses"], wrote_nothing=False)

  def test_losses_of_tokens_leave_eval_tokens_aside(self):
    all_tokens, few = (self.predicted(what="--per-token-losses", eval__lengths=[24], eval__tokens=tokens)
                       for tokens in (10**6, 20))
    self.assertEqual((bytes(all_tokens[0]), all_tokens[1]), (bytes(few[0]), few[1]))

  def test_an_output_takes_no_place_of_data(self):
    changes = self.write_values(2)
    os.link(self.path("labels_val.bin"), self.path("link.npy"))
    before = {name: self.bytes_of(name) for name in ("val.bin", "labels_val.bin", "link.npy")}
    for flag, name in (("--predict", "val.bin"), ("--per-token-losses", "link.npy"),
                       ("--per-token-losses", "./val.bin")):
      self.bad(flag, name, **changes, names=[f"{flag} {name}", "data.val"], wrote_nothing=False)
    self.bad("--dump-gradients", "labels_train_000001.bin", **changes, names=["data.labels"], wrote_nothing=False)
    self.assertEqual({name: self.bytes_of(name) for name in before}, before)

  def test_init_of_a_language_model(self):
    self.changes["precision"] = "bf16"  # so that ranks share the masters
    self.run_ok(name="language", model__position="learned")  # GPT-2, as transformers knows it
    before = read_safetensors(self.path("runs/language/step_00000012/model.safetensors"))
    changes = {**self.write_values(2), "init": "runs/language/step_00000012", "model__position": "learned",
               "train__steps": 1, "optimizer__lr": 0}
    for ranks in "12":
      done = self.run_ok("--gpus", ranks, "--overwrite", **changes)
      self.assertIn("new, from the seed: head.weight, head.bias\n", done.stdout)
      self.assertNotIn("warning: init", done.stderr)
      after = read_safetensors(self.path("runs/tiny/step_00000001/model.safetensors"))
      self.assertEqual(set(after) - set(before), {"head.weight", "head.bias"})
      for name, tensor in before.items():
        self.assertEqual(after[name], tensor, name)
      weight = array.array("f", after["head.weight"][2])
      self.assertEqual(after["head.weight"][1], [16, 2])
      self.assertTrue(0.01 < math.sqrt(sum(x * x for x in weight) / 32) < 0.03, weight)  # 0.02, its error an eighth
      self.assertEqual(set(array.array("f", after["head.bias"][2])), {0.0})
    config = self.text_of("runs/tiny/step_00000001/config.json")
    self.assertIn('"PlusGPTLMHeadModel"', config)
    self.bad("--eval", names=["head.weight", "not a parameter"], wrote_nothing=False, model__position="learned",
             init="runs/tiny/step_00000001")
    self.bad("--eval", names=["head.weight has shape"], wrote_nothing=False,
             **{**changes, **self.write_values(1), "init": "runs/tiny/step_00000001"})
    again = {**changes, **self.write_values(2), "init": "runs/tiny/step_00000001"}
    self.assertNotIn("new, from", self.run_ok("--overwrite", name="b", **again).stdout)

  def test_refusals(self):
    changes = self.write_values(2)
    self.bad(names=["model.head.outputs = 2", "data.labels"], model__head__outputs=2)
    self.bad(names=["model.head.outputs = 2", "data.val_labels"], model__head__outputs=2,
             data__labels=LABELS["data__labels"])
    self.bad(names=["2 values", "model.head.outputs = 3"], **{**changes, "model__head__outputs": 3})
    self.bad(names=["model.head.outputs = 2000"], model__head__outputs=2000)
    self.bad(names=["generate.every = 1", "model.head.outputs"], generate__every=1, **changes)
    for flags in (("--generate", "a"), ("--passkey",)):
      self.bad(*flags, names=["model.head.outputs = 2", "model of tokens"], passkey__form="compact", **changes)
    self.bad("--predict", "pred.npy", names=["model.head.outputs = 0"])
    self.bad("--predict", "nowhere/pred.npy", names=["--predict nowhere/pred.npy", "no folder nowhere"], **changes)
    self.bad("--predict", ".", names=["is a folder"], **changes)
    self.bad("--predict", "/dev/null", names=["/dev/null", "is a device or a pipe"], **changes)
    self.bad("--predict", "", names=["needs the name of a file"], **changes)
    self.bad("--predict", "x.npy", "--eval", names=["--predict", "--eval", "exclude"], **changes)
    tokens = SHARDS["val"]
    self.write("labels_val.bin", label_file([math.inf if at == 77 else 0.0 for at in range(2 * len(tokens))], 2))
    self.bad(names=["data.val_labels", "label inf at position 38"], **changes)


class Autograd(Head, Gradients):
  def test_the_head(self):
    for K, mean in ((1, "batch"), (2, "sequence"), (7, "batch")):
      changes = self.write_values(K)
      values = torch.tensor(some_values(K)(list(SHARDS["train_000000"]))).view(-1, K)
      self.run_ok("--overwrite", train__steps=1, optimizer__lr=0.1, optimizer__warmup_steps=0, train__label_mean=mean,
                  **{**changes, "eval__every": 0})

      def loss_of(model, inputs, first):
        wanted = values[first]
        output = model(inputs, labels=wanted)
        there = ~wanted.isnan()
        rows = (there * (output.logits - wanted.nan_to_num())**2).sum(-1) / there.sum(-1).clamp(min=1)
        labelled = there.any(-1)
        self.assertTrue(0 < labelled.any(1).sum() < 4)
        loss = rows.sum() / labelled.sum()
        torch.testing.assert_close(output.loss, loss)
        if mean == "batch":
          return loss
        counts = labelled.sum(1)
        return (rows.sum(1)[counts > 0] / counts[counts > 0]).mean()
      self.compare(loss_of, train__label_mean=mean, eval__every=0, **changes)

  def test_predictions_are_those_of_transformers(self):
    changes = self.write_values(2)
    self.run_ok(train__steps=3, eval__every=0, attention__variant="lssar", **changes)
    values, shape = self.predicted("--resume", train__steps=3, eval__every=0, attention__variant="lssar",
                                   precision="fp32", **changes)
    folder = self.path("runs/tiny/step_00000003")
    model = PlusGPTLMHeadModel(PlusGPTConfig.from_pretrained(folder))
    weights = read_safetensors(os.path.join(folder, "model.safetensors"))
    model.load_state_dict({name: torch.frombuffer(bytearray(data), dtype=torch.float32).view(size)
                           for name, (_, size, data) in weights.items()})
    inputs = torch.tensor(list(SHARDS["val"])[:shape[0] * 16]).view(shape[0], 16)
    with torch.no_grad():
      torch.testing.assert_close(torch.tensor(values).view(shape), model(inputs).logits, rtol=1e-4, atol=1e-5)
