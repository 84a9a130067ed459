"""attention.documents = separate, through the program: what a document's losses depend on, where the separator comes
from, and what is refused. Kernels: test/attention/documents_test.cu; transformers: compare.py; ranks and resuming:
test_invariance.py.
"""
import json
import random
import re

from eval.test_predict import Head
from support.workspace import Workspace, shard

SEPARATOR = 10
SEPARATE = {"attention__documents": "separate", "data__separator": SEPARATOR}


class Losses(Head):
  def losses(self, tokens, **changes):
    """Of a window with these tokens, each but the last."""
    self.write("val.bin", shard(tokens))
    values, _ = self.predicted(what="--per-token-losses", data__val="val.bin", model__context=len(tokens) - 1,
                               batch__tokens=len(tokens) - 1, batch__micro=1, eval__every=0, **changes)
    return list(values[:-1])

  def test_they_depend_on_their_own_document_alone(self):
    chance = random.Random(1)
    first, other = ([chance.randrange(32, 127) for _ in range(37)] for _ in range(2))
    second = [SEPARATOR] + [chance.randrange(32, 127) for _ in range(50)]
    cases = ({"attention__variant": "lssar_softplus_gated"}, {"attention__variant": "fox", "precision": "bf16"},
             {"model__position": "learned", "attention__window": 7, "attention__sink_tokens": 2},
             {"attention__kind": "relu", "attention__scale": "logn"})
    for case in cases:
      with self.subTest(case):
        before, after = (self.losses(start + second, **SEPARATE, **case) for start in (first, other))
        self.assertEqual(before[len(first):], after[len(first):])
        self.assertNotEqual(before[:len(first)], after[:len(first)])
        joined = self.losses(first + second, **{**SEPARATE, "attention__documents": "joined"}, **case)
        self.assertNotEqual(before[len(first):], joined[len(first):])
        # Beside itself a document is what it is alone: here at another place, as the first of the window.
        moved = self.losses(second + [SEPARATOR] + first, **SEPARATE, **case)
        bound = 2e-2 if case.get("precision") == "bf16" else 2e-5
        for a, b in zip(before[len(first):], moved[:len(second) - 1]):
          self.assertAlmostEqual(a, b, delta=bound)


class Separator(Workspace):
  def test_mistakes_have_an_answer(self):
    self.bad(attention__documents="separate", names=["attention.documents", "set data.separator"])
    self.bad(**{**SEPARATE, "data__separator": 256}, names=["data.separator = 256", "model.vocab = 256"])
    self.bad(attention__layers=["joined"], names=["attention.layers", 'attention.documents = "separate"'])
    self.bad(**SEPARATE, model__position="learned", eval__lengths=[32], names=["eval.lengths = 32", "learned"])

  def test_it_is_counted(self):
    """In the windows of 16 of 660 and 300 tokens."""
    spaces = sum(tokens[:len(tokens) // 16 * 16].count(b" ") for tokens in
                 (self.bytes_of(f"train_00000{n}.bin")[1024::2][:-1] for n in range(2)))
    said = self.ok("--dry-run", attention__documents="separate", data__separator=ord(" ")).stdout
    count, tokens, mean = re.search(r"documents: (\d+) of (\S+) tokens in windows of data.train are the separator, 32: "
                                    r"a row has (\S+) keys .* of 8.5 joined", said).groups()
    self.assertEqual((int(count), tokens), (spaces, "944"))
    self.assertLess(float(mean), 4)
    said = self.ok("--dry-run", attention__documents="separate", data__separator=1)
    self.assertRegex(said.stderr, "separates nothing: 0 of 944 tokens in windows of data.train are the separator, 1;")

  def test_a_shard_names_it(self):
    for name in ("train_000000", "train_000001", "val"):
      tokens = len(self.bytes_of(name + ".bin")) // 2 - 512
      self.write(name + ".json", json.dumps({"tokens": tokens, "bytes": tokens, "tokenizer": "t", "vocab": 256,
                                             "end_of_text": ord(","), "crc32": "01234567"}))
    self.assertIn("are the separator, 44:", self.ok("--dry-run", attention__documents="separate").stdout)
    # An evaluation on shards that say nothing takes that of the run.
    self.ok(attention__documents="separate", train__steps=1)
    for name in ("train_000000", "train_000001", "val"):
      self.write(name + ".json", "{}")
    done = self.ok("--eval", "--resume", attention__documents="separate")
    self.assertRegex(done.stdout, "in windows of data.val are the separator, 44:")
    flops = [line["flops_per_token"] for line in self.metrics(kind="start")]
    self.ok("--overwrite", train__steps=1)
    self.assertLess(flops[0], self.metrics(kind="start")[0]["flops_per_token"])
