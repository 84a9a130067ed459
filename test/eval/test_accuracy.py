"""accuracy and exact in the lines of evaluations: of a model that knows its answers, of one that guesses, and for any
number of ranks and threads. Against float64 logits: eval_test.cpp."""
import math
import random

from data.test_labels import NONE, label_file
from support.workspace import Workspace, shard

WINDOWS, SIZE = 50, 16
ANSWERS = {"data__val": "known.bin", "data__val_labels": "answers.bin", "eval__tokens": WINDOWS * SIZE}


class Accuracy(Workspace):
  def setUp(self):
    """50 windows of random tokens, each of which has its own first one; the last half of each is asked for."""
    super().setUp()
    chance = random.Random(5)
    windows = [[first, *(chance.randrange(256) for _ in range(SIZE - 1))] for first in range(WINDOWS)]
    self.tokens = sum(windows, []) + [0]
    self.write("known.bin", shard(self.tokens))
    self.write("answers.bin", label_file([token if at % SIZE >= SIZE // 2 else NONE
                                          for at, token in enumerate([*self.tokens[1:], NONE])]))

  def line(self, *flags, **changes):
    self.said = self.ok("--eval", *flags, **{**ANSWERS, **changes}).stdout
    return {key: value for key, value in self.metrics(kind="eval")[-1].items() if key != "time"}

  def test_a_model_that_knows_the_answers(self):
    training = {"data__train": "known.bin", "data__labels": "answers.bin", "model__channels": 64, "batch__tokens": 800,
                "batch__micro": 25, "train__steps": 150, "eval__every": 0}
    self.ok(**training)
    known = {**ANSWERS, **training}
    line = self.line("--resume", **known)
    self.assertEqual([line[key] for key in ("accuracy", "accuracy_stderr", "exact", "exact_stderr")], [1, 0, 1, 0])
    asked = [share for share, edge in zip(line["accuracy_by_position"], line["position_edges"]) if edge >= SIZE // 2]
    self.assertEqual(set(asked), {1})
    self.assertIn("| accuracy 1.0000 +- 0.0000 | exact 1.0000 +- 0.0000 |", self.said)
    self.assertEqual(line["of"]["tokens"], WINDOWS * SIZE // 2)
    # The next tokens alone: those of the first halves are not known.
    every = self.line("--resume", **{**known, "data__val_labels": []})
    self.assertTrue(0.5 <= every["accuracy"] < 0.7 and every["exact"] == 0, every)
    self.assertNotIn("exact", self.said)
    # One answer of one window is another.
    wrong = self.tokens[1:] + [NONE]
    wrong[SIZE - 1] ^= 1
    self.write("answers.bin", label_file([token if at % SIZE >= SIZE // 2 else NONE
                                          for at, token in enumerate(wrong)]))
    line = self.line("--resume", **known)
    self.assertAlmostEqual(line["accuracy"], 1 - 1 / 400, places=12)
    self.assertAlmostEqual(line["exact"], 0.98, places=12)
    self.assertAlmostEqual(line["exact_stderr"], math.sqrt(0.98 * 0.02 / 49), places=9)
    lines = [self.line("--resume", *flags, **{**known, **changes}) for flags, changes in (
        ((), {"threads": 2}), (("--gpus", "2"), {}), ((), {"eval__batch": 7}))]
    shares = [[each[key] for key in each if key.startswith(("accuracy", "exact"))] for each in [line, *lines]]
    self.assertEqual(shares, shares[:1] * 4)

  def test_a_model_that_guesses(self):
    chance = random.Random(7)
    self.write("known.bin", shard([chance.randrange(256) for _ in range(20001)]))
    line = self.line(data__val_labels=[], eval__tokens=20000)
    self.assertLess(abs(line["accuracy"] - 1 / 256), 3 * math.sqrt(1 / 256 / 20000))
    self.assertLess(abs(line["accuracy_stderr"] / math.sqrt(1 / 256 / 20000) - 1), 0.2)
