"""scripts/recall.py: its shards, read back, against the definition of each task."""
import collections
import json
import math
import os
import zlib

from support.scripts import ScriptTest

from lib import shards  # from SCRIPTS

try:
  import numpy as np
except ImportError:
  np = None

NONE = shards.NO_LABEL


class Recall(ScriptTest):
  def setUp(self):
    super().setUp()
    if np is None:
      self.skipTest("needs numpy")

  def make(self, task, *flags, code=0):
    self.run_script("recall.py", task, "--out", self.path("out"), "--name", "x", "--overwrite",
                    "--samples", "1500", "--val-samples", "100", *flags, code=code)

  def windows(self, task, *flags, split="train"):
    """[(tokens, labels)] of the samples."""
    self.make(task, *flags)
    about = self.json_of("out", "x.json")
    tokens, labels = (np.frombuffer(self.bytes_of("out", f"x_{stem}{split}_000000.bin")[1024:], "<u2").astype(int)
                      for stem in ("", "labels_"))
    L, count = about["length"], about["samples"][split]
    self.assertEqual((len(tokens), len(labels), labels[-1]), (L * count + 1, L * count + 1, NONE))
    self.assertLess(tokens.max(), about["vocab"])
    return [*zip(tokens[:-1].reshape(-1, L), labels[:-1].reshape(-1, L))]

  def test_mqar(self):
    gaps = collections.Counter()
    for fill in ("random", "zero"):
      for tokens, labels in self.windows("mqar", "--length", "64", "--pairs", "8", "--vocab", "128", "--fill", fill):
        keys, values = tokens[0:16:2], tokens[1:16:2]
        self.assertEqual((len(set(keys)), len(set(values))), (8, 8))
        self.assertTrue(keys.min() >= 1 and keys.max() < 64 <= values.min() and values.max() < 128)
        asked = np.flatnonzero(labels != NONE)
        self.assertTrue((asked >= 16).all() and (asked % 2 == 0).all())
        self.assertEqual([labels[at] for at in asked], [dict(zip(keys, values))[tokens[at]] for at in asked])
        self.assertEqual(sorted(tokens[asked]), sorted(keys))
        if fill == "zero":
          self.assertEqual(np.delete(tokens[16:], asked - 16).sum(), 0)
        gaps[np.flatnonzero(tokens[16::2] == keys[0])[0] if fill == "zero" else -1] += 1
    # The place of the first key has a weight of k^-0.99, if the program draws it first.
    weights = np.arange(1, 25) ** -0.99
    for place, weight in enumerate(weights / weights.sum()):
      self.assertLess(abs(gaps[place] - 1500 * weight), 4.5 * math.sqrt(1500 * weight), place)

  def test_flipflop(self):
    for ignored in (0.8, 0.1):
      counts = collections.Counter()
      for tokens, labels in self.windows("flipflop", "--length", "64", "--ignored", str(ignored)):
        instructions, bits = tokens[::2], tokens[1::2]
        self.assertEqual((instructions[0], instructions[-1]), (0, 1))
        self.assertTrue(set(instructions) <= {0, 1, 2} and set(bits) <= {3, 4})
        written = None
        for at, (instruction, bit) in enumerate(zip(instructions, bits)):
          written = bit if instruction == 0 else written
          self.assertEqual(labels[2 * at], written if instruction == 1 else NONE)
          if instruction == 1:
            self.assertEqual(bit, written)
        self.assertEqual(set(labels[1::2]), {NONE})
        counts.update(instructions[1:-1])
        counts.update(f"bit {bit}" for bit, instruction in zip(bits, instructions) if instruction != 1)
      count = 30 * 1500
      for instruction, share in ((0, (1 - ignored) / 2), (1, (1 - ignored) / 2), (2, ignored)):
        self.assertLess(abs(counts[instruction] - count * share), 4.5 * math.sqrt(count * share * (1 - share)))
      of_bits = counts["bit 3"] + counts["bit 4"]
      self.assertLess(abs(counts["bit 3"] - of_bits / 2), 4.5 * math.sqrt(of_bits / 4))

  def test_copy(self):
    sizes = collections.Counter()
    for tokens, labels in self.windows("copy", "--length", "48", "--least", "3", "--most", "20"):
      again = list(tokens).index(1)
      size = again - 1
      sizes[size] += 1
      text = list(tokens[1:again])
      self.assertTrue(min(text) >= 3 and max(text) < 29)
      self.assertEqual(list(tokens), [0, *text, 1, *text] + [2] * (48 - 2 * size - 2))
      self.assertEqual(list(labels), [NONE] * again + text + [2] + [NONE] * (46 - 2 * size))
    self.assertEqual(sorted(sizes), [*range(3, 21)])
    self.assertLess(max(abs(count - 1500 / 18) for count in sizes.values()), 4.5 * math.sqrt(1500 / 18))

  def test_induction(self):
    places = collections.Counter()
    for tokens, labels in self.windows("induction", "--length", "24", "--vocab", "16"):
      first, last = np.flatnonzero(tokens == tokens[-1])
      self.assertEqual((last, labels[-1], set(labels[:-1])), (23, tokens[first + 1], {NONE}))
      places[first] += 1
    self.assertEqual(sorted(places), [*range(22)])
    self.assertLess(max(abs(count - 1500 / 22) for count in places.values()), 4.5 * math.sqrt(1500 / 22))

  def test_stack(self):
    deepest, pops = 0, 0
    for tokens, labels in self.windows("stack", "--length", "96"):
      held = []
      for token, label in zip(tokens, labels):
        if token:
          held.append(token)
          self.assertEqual(label, NONE)
        else:
          self.assertEqual(held.pop(), label)
        pops += token == 0
        deepest = max(deepest, len(held))
    self.assertEqual(deepest, 8)
    self.assertTrue(0.45 < pops / (96 * 1500) < 0.5)

  def test_splits_and_seeds(self):
    one, val = self.windows("stack"), self.windows("stack", split="val")
    self.assertEqual((len(one), len(val)), (1500, 100))
    texts = lambda windows: {tokens.tobytes() for tokens, _ in windows}
    self.assertFalse(texts(one) & texts(val))
    self.assertEqual(texts(one), texts(self.windows("stack")))
    self.assertFalse(texts(one) & texts(self.windows("stack", "--seed", "2")))
    self.make("stack", "--samples", "0")
    self.assertEqual(sorted(os.listdir(self.path("out"))),
                     ["x.json", "x_labels_val_000000.bin", "x_val_000000.bin", "x_val_000000.json"])
    self.assertIn('"data": {"val": ', self.output)
    self.assertEqual(json.loads(self.text_of("out", "x.json")), {
        "task": "stack", "length": 128, "seed": 1, "samples": {"val": 100}, "vocab": 9})

  def test_a_seed_always_makes_these_bytes(self):
    """Whatever the size of the pieces in which they are made."""
    for task, length, checksum in (("mqar", 64, 1344318397), ("flipflop", 1024, 4119065511), ("copy", 128, 736463504),
                                   ("induction", 64, 518144943), ("stack", 64, 532124948)):
      self.make(task, "--samples", "4500", "--length", str(length))
      self.assertEqual((task, zlib.crc32(b"".join(self.bytes_of("out", name) for name in sorted(os.listdir(self.out))
                                                  if name.endswith(".bin")))), (task, checksum))
      for kind, stem in (("tokens", ""), ("labels", "labels_")):
        self.assertEqual(self.bytes_of("out", f"x_{stem}train_000000.bin")[:shards.HEADER_BYTES],
                         shards.header(kind, 4500 * length + 1))
      self.assertEqual(self.errors, "")

  def test_shards_say_what_made_them(self):
    self.make("stack", "--samples", "30", "--length", "16")
    self.assertEqual(json.loads(self.text_of("out", "x_train_000000.json")),
                     {"tokens": 30 * 16 + 1, "bytes": None, "tokenizer": "recall stack 9"})

  def test_validation_samples_that_training_has(self):
    self.make("copy", "--length", "16", "--least", "1", "--most", "1")
    self.assert_error("warning: 100 of 100 validation samples are in training too")

  def test_sizes_at_their_limits(self):
    for task, *flags in (("mqar", "--length", "4", "--pairs", "1", "--vocab", "4"),
                         ("flipflop", "--length", "4", "--ignored", "0"), ("flipflop", "--ignored", "1"),
                         ("copy", "--length", "4", "--least", "1", "--most", "1"), ("stack", "--length", "2"),
                         ("induction", "--length", "3", "--vocab", "2"), ("induction", "--vocab", "65535"),
                         ("stack", "--seed", "0", "--samples", "0", "--val-samples", "1")):
      self.make(task, "--samples", "9", "--val-samples", "2", *flags)

  def test_bad_input(self):
    for flags, *parts in (
        (["mqar", "--length", "64", "--pairs", "17"], "--length 64 is too short for mqar", "at least 68"),
        (["mqar", "--pairs", "4", "--vocab", "9"], "--vocab 9 is not between 10 and"),
        (["mqar", "--pairs", "0"], "--pairs must be 1"), (["mqar", "--length", "63"], "--length 63 must be even"),
        (["copy", "--most", "64"], "--length 128", "at least 130"), (["copy", "--least", "0"], "--least must be 1"),
        (["flipflop", "--ignored", "1.5"], "--ignored"), (["flipflop", "--length", "2"], "at least 4"),
        (["induction", "--vocab", "1"], "--vocab 1"), (["induction", "--length", "2"], "at least 3"),
        (["stack", "--samples", "99999999"], "too many tokens"), (["stack", "--name", "a/b"], "--name: 'a/b'"),
        (["stack", "--name", ""], "argument --name: ''"), (["stack", "--name=-x"], "behind them"),
        (["stack", "--seed", "-1"], "--samples and --seed must be 0 or more"),
        (["stack", "--val-samples", "0"], "--val-samples 1 or more")):
      self.make(*flags, code=2)
      self.assert_error(*parts)
    self.assertFalse(os.path.exists(self.path("out")) and os.listdir(self.path("out")))
