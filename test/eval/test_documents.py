"""eval.start=document: what ./train says of it, its lines in metrics.jsonl, and the losses of its tokens."""
import json
import math
import os

from support.scripts import SCRIPTS  # noqa: F401: on the path
from support.workspace import TEXT, Workspace, floats, shard

from lib import metrics  # from SCRIPTS

DOCUMENTS = 10, 17, 40, 5, 33, 64, 16  # tokens with the separator, which is 256
SEPARATED = {"model__vocab": 257, "eval__start": "document", "eval__tokens": 1000}


class Documents(Workspace):
  def setUp(self):
    super().setUp()
    tokens = [token for size in DOCUMENTS for token in [256, *TEXT[:size - 1]]]
    self.write("val.bin", shard(tokens))
    for name in ("train_000000", "train_000001", "val"):
      size = (len(self.bytes_of(name + ".bin")) - 1024) // 2
      self.write(name + ".json", json.dumps({"tokens": size, "bytes": size, "tokenizer": "t.json", "vocab": 257,
                                             "end_of_text": 256}))

  def losses(self, lengths, **changes):
    """--per-token-losses by length, of each document."""
    name = "losses%d.npy" % len(os.listdir(self.folder))
    self.ok("--per-token-losses", name, "--lengths", lengths, **SEPARATED, **changes)
    values, found = floats(self.bytes_of(name)[128:]), []
    for begin in range(0, len(values), sum(DOCUMENTS)):
      found.append([])
      for size in DOCUMENTS:
        found[-1].append(list(values[begin:begin + size]))
        begin += size
    return found

  def test_losses_and_lines(self):
    said = self.ok("--eval", "--lengths", "16,32", **SEPARATED).stdout
    self.assertRegex(said, r"length +16 .* \| 64 tokens of 4 documents, 3 shorter left out\n")  # the last: no target
    self.assertRegex(said, r"length +32 .* \| 96 tokens of 3 documents, 4 shorter left out\n")
    self.assertNotIn("are evaluated", said)
    for length, line, documents in zip((16, 32), self.metrics(kind="eval"), self.losses("16,32")):
      fits = [size >= length and not (number == 6 and size == length) for number, size in enumerate(DOCUMENTS)]
      for document, fit in zip(documents, fits):
        self.assertEqual([x == x for x in document], [fit and t < length for t in range(len(document))])
      counted = [x for document in documents for x in document if x == x]
      self.assertAlmostEqual(line["loss"], math.fsum(counted) / len(counted), delta=2e-6)
      self.assertEqual((line["start"], line["too_short"], line["of"]["windows"]),
                       ("document", len(fits) - sum(fits), sum(fits)))
    self.ok("--eval", "--lengths", "16,32", eval__mode="suffix", **SEPARATED)
    for length, line, documents in zip((16, 32), self.metrics(kind="eval")[2:],
                                       self.losses("16,32", eval__mode="suffix")):
      self.assertEqual([[t for t, x in enumerate(document) if x == x] for document in documents],
                       [[*range(16, 32)] if size >= 32 else [] for size in DOCUMENTS])
      counted = [x for document in documents for x in document if x == x]
      self.assertAlmostEqual(line["loss"], math.fsum(counted) / len(counted), delta=2e-6)
      self.assertEqual((line["length"], line["context_of"], line["start"]), (length, 32, "document"))

  def test_other_windows_are_other_evaluations(self):
    self.ok(**SEPARATED)
    self.assertEqual([line["start"] for line in self.metrics(kind="val")], ["document"] * 3)
    self.ok("--eval", "--resume", **{**SEPARATED, "eval__start": "any"})
    self.assertNotIn("start", self.metrics(kind="eval")[0])
    rows = metrics.load(self.path("runs/tiny")).evaluations
    self.assertEqual(rows.groupby("series", sort=False).size().tolist(), [3, 1])

  def test_ranks_find_the_same(self):
    for ranks in "12":
      self.ok("--eval", "--gpus", ranks, eval__batch=1, name="ranks" + ranks, **SEPARATED)
    one, two = (self.metrics("ranks" + ranks, "eval")[0] for ranks in "12")
    self.assertEqual(one["window_losses"], two["window_losses"])
    self.assertEqual(one["too_short"], two["too_short"])

  def test_bad_input(self):
    names = ["eval.start = document", "65 tokens", "256, and are of one document", "eval.start=any"]
    self.bad("--eval", "--lengths", "65", names=names, **SEPARATED)
    self.bad(names=names, eval__lengths=[65], **SEPARATED)  # before the first step
    for name in ("train_000000", "train_000001", "val"):
      os.remove(self.path(name + ".json"))
    self.bad("--eval", names=["which is not known"], **SEPARATED)
    self.ok("--diagnostics", eval__every=0, **SEPARATED)  # without an evaluation the key has no effect
