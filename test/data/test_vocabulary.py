"""Tokenizers of one's own, from text to a checkpoint that holds the tokenizer; and shards, models and tokenizers that
do not belong together. Comparisons with Hugging Face are skipped where transformers or tokenizers is missing.
"""
import json
import os
import shutil

from support.scripts import ScriptTest
from support.workspace import TRAIN, Workspace, shard

try:
  import tokenizers
  import transformers
except ImportError:
  transformers = None

WORDS = "hello world  hello\n\n\u20ac1 he'll\thello world"
NEW = {"tokens": 1120, "bytes": 1120, "tokenizer": "gpt2", "vocab": 268, "end_of_text": 267, "crc32": "01234567"}


class Tokenizers(Workspace, ScriptTest):
  def setUp(self):
    super().setUp()
    self.changes = {"train__steps": 1, "eval__every": 0, "generate__tokenizer": "gpt2", "model__vocab": 268,
                    "optimizer__warmup_steps": 0}

  def trained(self, **changes):
    """What ./train warns of, and end of text as config.json of the checkpoint has it."""
    said = self.ok("--overwrite", **{**self.changes, **changes}).stderr
    config = self.json_of(self.checkpoint(1, "config.json"))
    self.assertEqual(config["bos_token_id"], config["eos_token_id"])
    return said, config["eos_token_id"]

  def describe(self, name, **about):
    size = os.path.getsize(self.path(name + ".bin"))
    self.write(name + ".json", json.dumps({"tokens": (size - 1024) // 2, "bytes": size, **about}))

  def test_from_text_to_a_checkpoint_with_its_tokenizer(self):
    self.write_vocabulary("bpe")
    text = self.write("corpus.jsonl", (json.dumps({"text": WORDS}) + "\n") * 60)
    self.run_script("prepare_text.py", text, "--out", self.out, "--name", "x", "--tokenizer", "gpt2",
                    "--tokenizer-dir", self.path("bpe"), "--train", TRAIN)
    config = json.loads("{%s}" % self.output.partition("for the configuration: ")[2].splitlines()[0])
    self.assertEqual(config["generate"], {"tokenizer": "gpt2", "tokenizer_dir": self.path("bpe")})
    changes = {"data__train": config["data"]["train"], "data__val": config["data"]["val"], "eval__every": 1,
               "generate__tokenizer_dir": "bpe", "eval__tokens": 64}
    self.assertEqual(self.trained(**changes), ("", 267))  # the same CRC-32 in Python and C++: no warning
    self.assertEqual(self.trained(**{**changes, "generate__tokenizer_dir": ""}), ("", 267))  # from X.json
    self.trained(**changes)
    folder = self.checkpoint(1)
    self.assertIn("hello", self.train("runs/tiny", "--generate", "hello").stdout)
    self.train("runs/tiny", "--diagnostics", "--set", "diagnostics.start=document")
    about = self.json_of(folder, "tokenizer.json")
    self.assertEqual(about["model"]["vocab"], self.json_of("bpe/encoder.json"))
    self.assertEqual(about["model"]["merges"], self.text_of("bpe/vocab.bpe").splitlines()[1:])
    self.assertEqual([(token["id"], token["content"]) for token in about["added_tokens"]], [(267, "<|endoftext|>")])
    if transformers:
      first = list(memoryview(self.bytes_of(self.out, "x_train_000000.bin")[1024:]).cast("H"))
      first = first[1:first.index(267, 1)]
      self.assertEqual(tokenizers.Tokenizer.from_file(os.path.join(folder, "tokenizer.json")).encode(WORDS).ids, first)
      loaded = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
      self.assertEqual((loaded.encode(WORDS), loaded.eos_token_id), (first, 267))
    # Weights of a folder of GPT-2's files are of its tokenizer; what says none may be of any.
    os.mkdir(self.path("other"))
    for name in ("vocab.json", "merges.txt", "model.safetensors"):
      shutil.copy(os.path.join(folder, name), self.path("other"))
    foreign = {"init": "other", "generate__tokenizer_dir": ""}
    self.assertEqual(self.trained(**{**changes, **foreign})[0], "")
    self.assertRegex(self.trained(**foreign)[0], r"train_000000.bin has no X.json .* the model has one \(gpt2, 268 ")
    self.describe("train_000000", **{key: NEW[key] for key in ("tokenizer", "vocab", "crc32")})
    self.assertRegex(self.trained(**foreign)[0], "train_000000.bin is of another tokenizer .* than the model")
    os.remove(self.path("train_000000.json"))
    # Benchmarks of another one.
    self.write("piqa.jsonl", '{"goal": "hello", "sol1": "world", "sol2": "hello", "label": 0}\n')
    self.trained(**changes)
    for tokenizer, flags in ("gpt2", ("--tokenizer-dir", self.path("bpe"), "--train", TRAIN)), ("bytes", ()):
      self.run_script("prepare_tasks.py", "--task", "piqa", "--input", self.path("piqa.jsonl"), "--out",
                      self.path("asked"), "--tokenizer", tokenizer, *flags, "--overwrite")
      said = self.train("runs/tiny", "--tasks", "piqa", "--set", "task.dir=asked").stderr
      self.assertRegex(said, "^" if flags else "task piqa is of another tokenizer .bytes, 256 tokens. than the model")
      self.assertEqual("another" in said, not flags)
    self.write("asked/piqa.json", "{")
    self.assertIn("piqa.json", self.train("runs/tiny", "--tasks", "piqa", "--set", "task.dir=asked", code=2).stderr)
    # Another vocabulary of the same size, for texts and for the validation of the trained model.
    merges = self.text_of("bpe/vocab.bpe").splitlines()
    self.write("bpe/vocab.bpe", "\n".join([merges[0], merges[2], merges[1], *merges[3:]]))
    self.assertRegex(self.trained(**changes)[0], "generate.tokenizer_dir = \"bpe\" is of another tokenizer")
    self.describe("val", tokenizer="bytes", vocab=256)
    self.assertRegex(self.train("runs/tiny", "--eval", "--set", "data.val=val.bin").stderr,
                     r"data.val: val.bin is of another tokenizer \(bytes, 256 tokens\) than the model \(gpt2, 268 ")

  def test_end_of_text_of_shards(self):
    for about, vocab, expected in (({"tokenizer": "gpt2"}, 50257, 50256), ({"tokenizer": "gpt2"}, 268, None),
                                   ({"tokenizer": "a/tokenizer.json"}, 50257, None),
                                   ({"tokenizer": "bytes"}, 50257, None),
                                   ({**NEW, "end_of_text": 5}, 268, 5), ({**NEW, "end_of_text": None}, 268, None)):
      self.describe("train_000000", **{key: about[key] for key in about if key not in ("tokens", "bytes")})
      self.assertEqual(self.trained(model__vocab=vocab, model__channels=8, model__layers=1)[1], expected, about)

  def test_shards_of_different_tokenizers(self):
    new = {key: NEW[key] for key in NEW if key not in ("tokens", "bytes")}
    for names, mine, other in ((("train_000000", "val"), new, {"tokenizer": "bytes"}),
                               (("train_000000", "train_000001"), new, {**new, "crc32": "76543210"}),
                               (("train_000000", "val"), {"tokenizer": "a/t.json"}, {"tokenizer": "b/t.json"}),
                               (("train_000001", "val"), new, {**new, "vocab": 260})):
      for name in ("train_000000", "train_000001", "val"):
        self.describe(name)
      self.describe(names[0], **mine)
      self.describe(names[1], **mine)
      flags = {**self.changes, "eval__every": 1}
      self.assertEqual(self.ok("--dry-run", **flags).stderr, "")
      self.describe(names[1], **other)
      self.assertRegex(self.ok("--dry-run", **flags).stderr,
                       rf"warning: data.\w+: {names[1]}.bin is of another tokenizer .* than data.train: {names[0]}.bin")
    self.assertRegex(self.ok("--dry-run", **{**flags, "model__vocab": 50257}).stderr,
                     "model.vocab = 50257, .* set model.vocab=268")
    self.write("train_000001.bin", shard(range(100)))  # damage is said as before
    self.assertIn("make the shard again", self.ok("--dry-run", **flags).stderr)
