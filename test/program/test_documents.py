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
    self.bad(attention__layers=[{"documents": "joined"}],
             names=["attention.layers", 'attention.documents = "separate"'])
    self.describe(end_of_text=300)
    self.bad(attention__documents="separate", names=["X.json of a shard says 300", "vocab = 256", "set data.separator"])
    self.bad(**SEPARATE, model__position="learned", eval__lengths=[32], names=["eval.lengths = 32", "learned"])

  def test_it_is_counted(self):
    """In the windows of 16 of 660 and 300 tokens."""
    said = self.ok("--dry-run", **SEPARATE, attention__layers=[{"documents": "joined"}])
    self.assertNotRegex(said.stdout + said.stderr, "documents: |separates nothing")
    spaces = sum(tokens[:len(tokens) // 16 * 16].count(b" ") for tokens in
                 (self.bytes_of(f"train_00000{n}.bin")[1024::2][:-1] for n in range(2)))
    said = self.ok("--dry-run", attention__documents="separate", data__separator=ord(" ")).stdout
    count, tokens, mean = re.search(r"documents: (\d+) of (\S+) tokens in windows of data.train are the separator, 32: "
                                    r"a row has (\S+) keys .* of 8.5 joined; .* from data.separator\n", said).groups()
    self.assertEqual((int(count), tokens), (spaces, "944"))
    self.assertLess(float(mean), 4)
    said = self.ok("--dry-run", attention__documents="separate", data__separator=1)
    self.assertRegex(said.stderr, "separates nothing: 0 of 944 tokens in windows of data.train are the separator, 1;")

  def test_sources_without_it_are_named(self):
    self.write("none.bin", shard(b"a" * 400))
    for changes, part in (({"data__train": ["train_000000.bin", "none.bin"]}, "nothing in none.bin: the"),
                          ({"data__val": ["val.bin", "none.bin"]}, "nothing in none.bin:"),
                          ({"data__train": "none.bin", "data__val": "none.bin"}, "0 of 384 tokens in windows of")):
      said = self.ok("--dry-run", attention__documents="separate", data__separator=32, **changes)
      self.assertIn(part, said.stderr)

  def describe(self, end_of_text, names=("train_000000", "train_000001", "val")):
    for name in names:
      tokens = len(self.bytes_of(name + ".bin")) // 2 - 512
      self.write(name + ".json", json.dumps({"tokens": tokens, "bytes": tokens, "tokenizer": "t", "vocab": 256,
                                             "end_of_text": end_of_text, "crc32": "01234567"}))

  def test_a_shard_names_it(self):
    self.describe(ord(","))
    self.assertRegex(self.ok("--dry-run", attention__documents="separate").stdout,
                     "are the separator, 44: .* comes from the X.json of a shard\n")
    self.describe(ord("."), ["train_000001"])
    self.assertIn("of another tokenizer (t, 256 tokens, 46 between documents",
                  self.ok("--dry-run", attention__documents="separate").stderr)

  def test_it_belongs_to_the_run(self):
    """Whatever the shards, or a tokenizer's files, say later."""
    self.describe(ord(","))
    self.ok(attention__documents="separate", train__steps=4, checkpoint__every=2, eval__every=4)
    bits = self.bytes_of("runs/tiny/step_00000004/model.safetensors")
    self.assertEqual(self.json_of("runs/tiny/config.json")["data"]["separator"], 44)
    self.assertEqual(self.json_of("runs/tiny/step_00000004/config.json")["plusgpt"]["data"], {"separator": 44})
    for says in (ord("."), None):
      self.describe(says)
      with self.subTest(says):
        done = self.ok("--resume", "runs/tiny/step_00000002", attention__documents="separate", train__steps=4,
                       checkpoint__every=2, eval__every=4)
        self.assertEqual("46 between documents" in done.stderr, says is not None)
        self.assertIn("comes from the checkpoint\n", done.stdout)
        self.assertEqual(self.bytes_of("runs/tiny/step_00000004/model.safetensors"), bits)
        for what in ((), ("--eval",), ("--diagnostics",), ("--generate", "a")):
          self.bad("--resume", *what, attention__documents="separate", data__separator=46, train__steps=4,
                   names=["data.separator: 44 in the checkpoint, 46 now"], wrote_nothing=False)
    self.ok("--eval", "--resume", attention__documents="separate")
    line = self.metrics(kind="eval")[-1]
    self.assertEqual((line["of"]["separator"], line["loss"]), (44, self.metrics(kind="val")[-1]["loss"]))
    # Keys of a trained token are known from the documents of data.train.
    starts = [start["flops_per_token"] for start in self.metrics(kind="start")]
    self.assertEqual([flops is None for flops in starts], [False] * (len(starts) - 1) + [True])
    # A file of texts ends where a document does, and `init` brings the separator to data that do not say one.
    self.write("prompts.jsonl", '{"prompt": ""}\n')
    texts = {"init": "runs/tiny/step_00000004", "name": "other", "attention__documents": "separate"}
    self.ok("--generate-file", "prompts.jsonl", **texts)
    self.bad("--generate-file", "prompts.jsonl", **{**texts, "init": ""}, wrote_nothing=False,
             names=["no tokenizer of these data says one"])
    self.assertIn("data.separator = 44 (here 46)", self.ok("--eval", **texts, data__separator=46).stderr)

  def test_without_effect_it_may_change(self):
    self.ok(train__steps=2, checkpoint__every=1)
    self.ok("--resume", "runs/tiny/step_00000001", data__separator=32, eval__start="document", eval__lengths=[4],
            train__steps=2, checkpoint__every=1)
    self.assertEqual([line["of"]["separator"] for line in self.metrics(kind="val") if "start" in line], [32])

  def test_texts_end_with_it(self):
    """A model that has learned to repeat the separator."""
    for name in ("train_000000", "train_000001", "val"):
      self.write(name + ".bin", shard([97, SEPARATOR] * 300))
    self.ok(data__separator=SEPARATOR, train__steps=100)
    self.write("prompts.jsonl", '{"prompt": "a"}\n')
    settings = {"generate__temperature": 0, "generate__tokens": 5, "train__steps": 100}
    completion = lambda **changes: json.loads(
        self.ok("--resume", "--generate-file", "prompts.jsonl", **settings, **changes).stdout)["completion"]
    self.assertEqual(completion(data__separator=SEPARATOR), "")
    self.assertEqual(completion(data__separator=98)[:2], "\na")

  def test_plans_say_what_they_count(self):
    for documents, said in (("separate", True), ("joined", False)):
      done = self.ok("--dry-run", plan__memory="80GiB", attention__documents=documents)
      self.assertEqual("FLOP are those of joined documents" in done.stdout, said)

  def test_diagnostics_are_of_rows_with_several_keys(self):
    """Of random weights, and of documents of two tokens, every row of which has one or two keys."""
    for name in ("train_000000", "train_000001", "val"):
      self.write(name + ".bin", shard([SEPARATOR, 97] * 300))
    self.ok("--diagnostics", **SEPARATE, diagnostics__tokens=64)
    line = self.metrics(kind="diagnostics")[-1]
    self.assertAlmostEqual(line["entropy_norm"], 1, places=3)
    self.assertAlmostEqual(line["first_token"], 0.5, places=2)
