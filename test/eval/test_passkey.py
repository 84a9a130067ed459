"""./train --passkey, and scripts/passkey.py: its shards, whole runs on them, its picture."""
import array
import json
import math
import os
import re
import zlib

from support.scripts import ScriptTest
from support.workspace import TRAIN, Workspace, shard

from lib import metrics, section_answers, shards  # from SCRIPTS
from lib.sections import View

COMPACT = {"passkey__form": "compact", "passkey__trials": 3, "passkey__depths": 3}
KEYS = {"type", "step", "form", "length", "trials", "depths", "exact", "nll", "rank", "distance", "control",
        "stderr", "id", "tokens", "weights", "of"}


class Passkey(Workspace, ScriptTest):
  def script(self, *args, code=0):
    return self.run_script("passkey.py", *args, code=code, cwd=self.folder)

  def samples(self, name, length):
    """The windows of a shard, as training reads them; the last target is there too."""
    tokens = memoryview(self.bytes_of(name)[1024:]).cast("H").tolist()
    self.assertEqual(len(tokens) % length, 1)
    return [tokens[at:at + length] for at in range(0, len(tokens) - 1, length)]

  def vocabulary(self):
    """Settings for GPT-2's tokenizer with few merges, in the folder "vocabulary"."""
    size = len(self.write_vocabulary("vocabulary"))
    return {"generate__tokenizer": "gpt2", "generate__tokenizer_dir": "vocabulary", "model__vocab": size}

  def test_bad_input(self):
    self.bad("--passkey", names=["passkey.form", "compct", 'did you mean "compact"'], passkey__form="compct")
    self.bad("--passkey", names=["length 16"], **COMPACT)  # eval.lengths
    self.bad("--passkey", "--lengths", "100", names=["--lengths = 100", "learned", "16"],
             model__position="learned", **COMPACT)
    self.bad("--passkey", "--lengths", "100", names=["passkey.examples", "absent/x"],
             passkey__examples="absent/x", **COMPACT)
    self.bad("--passkey", "--lengths", "100", names=["passkey.examples", "config.json", "exists"],
             passkey__examples="config.json", **COMPACT)
    self.bad("--passkey", "--lengths", "100,90,100", names=["--lengths names 100 twice"], **COMPACT)
    self.bad("--passkey", passkey__trials=0, names=["passkey.trials"])
    self.bad("--passkey", passkey__depths=1, names=["passkey.depths"])
    self.bad("--passkey", "--resume", "--lengths", "100", names=["runs/tiny"], **COMPACT)
    gpt2 = self.vocabulary()
    self.bad("--passkey", "--lengths", "1000,200", names=["landmark", "length 200", "passkey.form=compact"], **gpt2)

  def test_a_fresh_model_finds_nothing(self):
    done = self.ok("--passkey", "--lengths", "68,300", passkey__examples="prompts.jsonl",
                   data__train="absent", **COMPACT)
    self.assertRegex(done.stdout, r"\n +300 \|    0    0    0 \|   0\.0   0\.0  \|  5\.\d\d .*\| +0\.0\n")
    self.assertRegex(done.stdout, r"\n +32 to     63 \|   0\.0 of 12 prompts\n")  # all of 68 tokens, and depth 1 of 300
    start, *lines = self.metrics()
    self.assertEqual([entry["length"] for entry in lines], [68, 300])
    for entry in lines:
      self.assertEqual(set(entry) - {"time"}, KEYS)
      self.assertEqual((entry["type"], entry["step"], entry["form"], entry["trials"]), ("passkey", 0, "compact", 3))
      self.assertEqual((entry["depths"], entry["exact"]), ([0, 0.5, 1], [0, 0, 0]))
      self.assertEqual((entry["control"], entry["stderr"], entry["weights"]["path"]), (0, 0, "random"))
      for nll, rank in zip(entry["nll"], entry["rank"]):
        self.assertAlmostEqual(nll, math.log(256), delta=0.3)
        self.assertTrue(3 < rank < 8)
    self.assertEqual([entry["distance"] for entry in lines], [[35] * 3, [267, 151, 35]])
    prompts = [json.loads(line) for line in self.bytes_of("prompts.jsonl").splitlines()]
    self.assertEqual(len(prompts), 2 * 3 * 3)
    for prompt in prompts:
      self.assertEqual(len(prompt["prompt"]), prompt["length"] - len(" 12345."))
      before, key = re.fullmatch(r"(.*)The key is (\d+)\. Remember \2\. .*What is the key\? The key is",
                                 prompt["prompt"]).groups()
      self.assertEqual((key, len(before)), (prompt["key"], int(prompt["depth"] * (prompt["length"] - 68))))

  def test_a_model_that_knows_one_answer(self):
    changes = {"passkey__form": "compact", "passkey__trials": 1, "passkey__depths": 2, "data__train": "known.bin",
               "model__channels": 32, "model__context": 80, "batch__tokens": 80, "batch__micro": 1, "train__steps": 100}
    self.write("known.bin", shard(bytes(81)))
    self.ok("--passkey", "--lengths", "80", passkey__examples="prompts.jsonl", name="asked", **changes)
    prompt = json.loads(self.bytes_of("prompts.jsonl").splitlines()[0])  # the key at depth 0
    self.write("known.bin", shard(f"{prompt['prompt']} {prompt['key']}.\n".encode()))
    self.ok(eval__every=0, **changes)
    done = self.ok("--passkey", "--resume", "--lengths", "80", **changes)
    entry, = self.metrics(kind="passkey")
    self.assertEqual((entry["exact"], entry["stderr"], entry["control"]), ([1, 0], 0.5, 0))  # sqrt(0.5 x 0.5 / (2 - 1))
    means = r"%5.2f %6.2f" % (sum(entry["nll"]) / 2, sum(entry["rank"]) / 2)
    self.assertIn("\n length |    0    1 |   all +- ", done.stdout)
    self.assertRegex(done.stdout, rf"\n +80 \|  100    0 \|  50\.0  50\.0  \| {re.escape(means)} \|     0\.0\n")
    self.assertRegex(done.stdout, r"\n +32 to     63 \|  50\.0 of 2 prompts\n")

  def test_landmark(self):
    self.ok("--passkey", "--lengths", "600", passkey__trials=2, passkey__depths=2, passkey__examples="prompts.jsonl",
            **self.vocabulary())
    entry, = self.metrics(kind="passkey")
    self.assertEqual((entry["form"], entry["exact"]), ("landmark", [0, 0]))
    prompts = [json.loads(line)["prompt"] for line in self.bytes_of("prompts.jsonl").splitlines()]
    self.assertRegex(prompts[0], r"^There is an important info.* there\.\n\n"
                                 r"The pass key is (\d+)\. Remember it\. \1 is the pass key\.\n"
                                 r"The grass is green\. .*\nWhat is the pass key\? The pass key is$")
    self.assertEqual(len(set(prompts)), 4)

  def shown(self, name):
    """The measurements that scripts show of a run."""
    rows, _ = section_answers.asked_passkeys(View([metrics.Run(self.path("runs", name))]))
    return sorted(rows["measurement"])

  def test_a_window_of_evaluations_is_another_measurement(self):
    for window in (0, 16):
      self.ok("--passkey", "--lengths", "100", eval__window=window, eval__sink_tokens=4 if window else 0, **COMPACT)
    plain, windowed = self.metrics(kind="passkey")
    self.assertEqual(set(plain) - {"time"}, KEYS)
    self.assertEqual((windowed["window"], windowed["sink_tokens"]), (16, 4))
    self.assertNotEqual(plain["nll"], windowed["nll"])
    self.assertEqual(self.shown("tiny"), ["compact", "compact, window 16, sink tokens 4"])
    self.ok("--passkey", "--lengths", "100", name="trained", attention__window=16, **COMPACT)
    self.assertEqual(self.metrics("trained", "passkey")[0]["window"], 16)
    for window in (16, 0):  # the first is the run's own
      self.ok("--passkey", "--lengths", "100", name="evaluated", eval__window=window, **COMPACT)
    windowed = "compact, window 16, sink tokens 0"
    for name, forms in (("trained", [windowed]), ("evaluated", ["compact", windowed])):
      self.assertEqual(self.shown(name), forms)

  def test_shards(self):
    self.script("make", "--length", 100, "--samples", 400, "--repeats", 0.25, "--out", "made", "--name", "x")
    train, val = (self.samples(f"made/x_{split}_000000.bin", 100) for split in ("train", "val"))
    self.assertEqual((len(train), len(val)), (400, 20))
    self.assertFalse(set(map(tuple, train)) & set(map(tuple, val)))
    self.assertEqual(self.errors, "")
    self.assertEqual(self.bytes_of("made/x_train_000000.bin")[:1024], shards.header("tokens", 40001))
    self.assertEqual(zlib.crc32(self.bytes_of("made/x_train_000000.bin")), 2966014140)  # by the seed
    self.script("make", "--length", 68, "--samples", 9000, "--repeats", 0, "--out", "made", "--name", "short")
    self.assertRegex(self.errors, r"warning: [1-9]\d* of 450 validation samples are in training too")
    prompts, keys, places = 0, set(), set()
    for text in (bytes(sample).decode() for sample in train):
      found = re.fullmatch(r"(.*)The key is (\d{5})\. Remember \2\. .*What is the key\? The key is \2\.", text)
      if found:
        prompts += 1
        keys.add(found[2])
        places.add(len(found[1]))
      else:
        self.assertTrue(any(text[:-period] == text[period:] for period in range(12, 50)), text)
    # 300 are expected, with a standard deviation of sqrt(400 x 0.25 x 0.75) = 8.7
    self.assertTrue(265 < prompts < 335, prompts)
    self.assertGreater(len(keys), 0.98 * prompts)
    self.assertEqual(places, set(range(33)))  # every depth, of 100 - 68

  def train_as_printed(self, **more):
    """Run p: a small model with the settings that passkey.py has printed."""
    config = json.loads("{%s}" % self.output.partition("for the configuration: ")[2].splitlines()[0])
    config["model"].update(layers=1, heads=1, channels=8)
    self.write("p.json", json.dumps({**config, **more}))
    self.train("p.json")

  def test_the_settings_that_make_prints(self):
    self.script("make", "--length", 100, "--samples", 40, "--out", "made", "--name", "x")
    self.train_as_printed(batch={"tokens": 100}, train={"steps": 1}, eval={"every": 0, "lengths": [100]})
    self.train("runs/p", "--passkey", "--set", "passkey.trials=1")
    self.assertEqual(self.metrics("p", "passkey")[-1]["form"], "compact")

  def test_labels_are_the_answers(self):
    self.script("make", "--length", 100, "--samples", 40, "--out", "made", "--name", "plain")
    self.script("make", "--length", 100, "--samples", 40, "--labels", "--out", "made", "--name", "x")
    for split in ("train", "val"):
      shard = self.bytes_of(f"made/x_{split}_000000.bin")
      self.assertEqual(shard, self.bytes_of(f"made/plain_{split}_000000.bin"))
      content = array.array("H", self.bytes_of(f"made/x_labels_{split}_000000.bin")[1024:])
      self.assertEqual(len(content), (len(shard) - 1024) // 2)
      for number, sample in enumerate(self.samples(f"made/x_{split}_000000.bin", 100)):
        labels = content[100 * number:100 * number + 100]
        answer = b" %s." % bytes(sample[-6:-1])
        text = bytes(sample)
        if b"What is the key?" in text:
          self.assertEqual(labels.tolist(), [65535] * 92 + list(answer) + [65535])
        else:
          self.assertEqual(labels.tolist(), [*text[1:], 65535])
    self.train_as_printed(batch={"tokens": 200}, train={"steps": 2}, eval={"lengths": [100]})
    self.assertEqual([line["of"]["tokens"] for line in self.metrics("p", "val")], [2 * 7] * 2)  # of the two windows

  def test_labels_of_gpt2_tokens(self):
    self.vocabulary()
    self.script("make", "--length", 120, "--samples", 20, "--tokenizer", "gpt2", "--tokenizer-dir", "vocabulary",
                "--train", TRAIN, "--repeats", 0, "--labels", "--out", "made", "--name", "x")
    labels = array.array("H", self.bytes_of("made/x_labels_train_000000.bin")[1024:])
    for number, sample in enumerate(self.samples("made/x_train_000000.bin", 120)):
      row = labels[120 * number:120 * number + 120].tolist()
      self.assertEqual(row, [65535] * 112 + list(sample[-7:]) + [65535])  # no merge has a digit

  def test_shards_of_gpt2_tokens(self):
    size = self.vocabulary()["model__vocab"]
    self.script("make", "--length", 120, "--samples", 50, "--tokenizer", "gpt2", "--tokenizer-dir", "vocabulary",
                "--train", TRAIN, "--repeats", 0, "--out", "made", "--name", "x")
    letters = {token: name for name, token in json.loads(self.bytes_of("vocabulary/encoder.json")).items()}
    samples = self.samples("made/x_train_000000.bin", 120)
    self.assertEqual(len(samples), 50)
    for first, *rest in samples:
      self.assertEqual(first, size - 1)
      text = "".join(letters[token] for token in rest).replace("\u0120", " ")
      self.assertRegex(text, r"The key is (\d{5})\. Remember \1\. .*What is the key\? The key is \1\.$")

  def test_make_refuses(self):
    ask = ["make", "--samples", 10, "--out", "made", "--name", "x", "--length"]
    os.mkdir(self.path("full"))
    self.write("full/x_val_000000.bin", "")
    for args, part in (([67], "68"), ([100, "--out", "full"], "--overwrite"), ([100, "--repeats", 2], "--repeats 2"),
                       ([100, "--samples", 0], "--samples 0"), ([100, "--name", "a/b"], "a/b"),
                       ([100, "--tokenizer", "gpt2"], "--tokenizer-dir"),
                       ([100, "--tokenizer", "gpt2", "--tokenizer-dir", "no", "--train", "absent"], "absent"),
                       ([100, "--tokenizer", "gpt2", "--tokenizer-dir", "no", "--train", TRAIN], "vocab.json")):
      self.script(*ask, *args, code=2)
      self.assert_error(part)
    self.assertFalse(os.path.exists(self.path("made")))

  def test_picture_refuses(self):
    self.ok(train__steps=1)
    self.script("picture", "runs/tiny", code=2)
    self.assert_error("runs/tiny --passkey, for a model of bytes with --set passkey.form=compact")
    self.script("picture", "runs/absent", code=2)
    self.assert_error("runs/absent")

  def test_from_shards_to_a_picture(self):
    self.script("make", "--length", 128, "--samples", 100, "--out", "made", "--name", "x")
    changes = {"data__train": "made/x_train_*.bin", "data__val": "made/x_val_*.bin", "model__context": 128,
               "batch__tokens": 256, "eval__tokens": 128, **COMPACT}
    self.ok(**changes)
    self.ok("--passkey", "--resume", "--lengths", "68,128", **changes)
    self.ok("--passkey", "--resume", "--lengths", "128", "--set", "passkey.trials=5", **changes)
    lines = self.metrics(kind="passkey")
    self.assertEqual([(entry["step"], entry["length"], entry["trials"]) for entry in lines],
                     [(4, 68, 3), (4, 128, 3), (4, 128, 5)])
    self.assertEqual(lines[0]["weights"]["path"], "runs/tiny/step_00000004")
    with open(self.path("runs/tiny/metrics.jsonl"), "a") as file:
      file.write('{"type":"passkey","step":9}\n'
                 '{"type":"passkey","step":9,"form":"compact","length":[],"depths":[0],"exact":[0],"distance":[1]}\n'
                 '{"type":"passkey","step":9,"form":"compact","length":8,"depths":[null],"exact":[1],"distance":[0]}\n'
                 '{"type":"passkey","step":Infinity}\n'
                 '{"type":"passkey","step":9,"form":"compact","length":8,"depths":[],"exact":[],"distance":[]}\n')
    self.draw("passkey.py", "picture", "runs/tiny", "runs/tiny/metrics.jsonl", "--out", "both.png", alone=True)
    self.draw("passkey.py", "picture", "runs/tiny")
    for name in ("both.png", "runs/tiny/passkey.png"):
      self.assertEqual(self.bytes_of(name)[1:4], b"PNG")
