"""./train --tasks and task.every: whole runs on benchmarks of bytes."""
import json
import math
import os
import random
import re
import struct
import subprocess

from support.runs import RankRuns, torchrun
from support.workspace import CONFIG, TRAIN, shard

KEYS = {"type", "time", "step", "tokens", "task", "n", "acc", "acc_norm", "acc_bytes", "acc_norm_tokens", "stderr",
        "margin", "chance", "max_length", "cut", "xxh64", "id", "weights", "of"}


def task_file(examples):
  """examples: (context, completions, number of the right one), texts whose bytes are tokens."""
  blocks = []
  for number, (context, completions, gold) in enumerate(examples):
    numbers = [65535, 0, number, gold, len(completions), len(context), *context.encode()]
    for text in completions:
      numbers += [len(text), *text.encode()]
    for text in completions:
      numbers += [len(text) - 1] * 2
    numbers[1] = 2 * len(numbers)
    blocks.append(struct.pack(f"<{len(numbers)}H", *numbers))
  return struct.pack("<256i", 20240522, 2, len(blocks), max(map(len, blocks)), *[0] * 252) + b"".join(blocks)


def text_file(texts):
  """texts: (context, the text, its words)."""
  blocks = []
  for number, (context, text, words) in enumerate(texts):
    numbers = [65535, 0, number, 0, 1, len(context), *context.encode(), len(text), *text.encode(), words, len(text)]
    numbers[1] = 2 * len(numbers)
    blocks.append(struct.pack(f"<{len(numbers)}H", *numbers))
  return struct.pack("<256i", 20240522, 3, len(blocks), max(map(len, blocks)), *[0] * 252) + b"".join(blocks)


def questions(count, seed=1):
  chance = random.Random(seed)
  word = lambda: " " + "".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 6)))
  return [("Q%d%s%s?" % (number, word(), word()), [word() for _ in range(4)], chance.randrange(4))
          for number in range(count)]


class Tasks(RankRuns):
  def setUp(self):
    super().setUp()
    self.changes = {"task__dir": ".", "eval__every": 0}
    self.write("a.bin", task_file(questions(30)))
    self.write("b.bin", task_file([("Why", [" me", " you or me"], 0)] * 5))

  def table(self, run="tiny"):
    return [{**entry, "time": 0} for entry in self.metrics(run, "task")]

  def test_a_fresh_model_guesses(self):
    self.write("many.bin", task_file(questions(400)))
    done = self.run_ok("--tasks", "many,b", task__samples="samples.jsonl", data__train="absent")
    many, b = self.metrics(kind="task")
    self.assertEqual(set(many), KEYS)
    self.assertEqual((many["task"], many["n"], many["step"], many["chance"], many["weights"]["path"]),
                     ("many", 400, 0, 0.25, "random"))
    for key in ("acc", "acc_norm", "acc_bytes", "acc_norm_tokens"):
      self.assertLess(abs(many[key] - 0.25), 3 * math.sqrt(0.25 * 0.75 / 400), key)
    self.assertAlmostEqual(many["stderr"], math.sqrt(many["acc"] * (1 - many["acc"]) / 399))
    self.assertEqual((many["max_length"], b["chance"], b["n"], b["cut"]), (16, 0.5, 5, 0))
    self.assertGreater(many["cut"], 0)
    self.assertRegex(done.stdout, r"\nmany +\| +%.1f +%.1f \|.*\b25\.0 \|.* 400, %d completions with a shortened "
                                  r"context\n" % (100 * many["acc"], 100 * many["stderr"], many["cut"]))
    samples = [json.loads(line) for line in self.bytes_of("samples.jsonl").splitlines()]
    self.assertEqual([sample["task"] for sample in samples], ["many"] * 400 + ["b"] * 5)
    best = lambda values: values.index(max(values))
    for key, entry, rows in (("many", many, samples[:400]), ("b", b, samples[400:])):
      norm = [[value / size for value, size in zip(row["loglikelihood"], row["characters"])] for row in rows]
      right = lambda picks: sum(pick == row["gold"] for pick, row in zip(picks, rows)) / len(rows)
      self.assertAlmostEqual(entry["acc"], right([best(row["loglikelihood"]) for row in rows]))
      self.assertAlmostEqual(entry["acc_norm"], right(map(best, norm)))
      margins = [values[row["gold"]] - max(values[:row["gold"]] + values[row["gold"] + 1:])
                 for values, row in zip(norm, rows)]
      self.assertAlmostEqual(entry["margin"], sum(margins) / len(rows))
    # log p of a byte is about -ln 256
    self.assertAlmostEqual(sum(samples[-1]["loglikelihood"]) / sum(samples[-1]["tokens"]), -math.log(256), delta=0.3)

  def test_a_model_that_learned_the_answers_knows_them(self):
    asked = questions(50)
    self.write("learned.bin", task_file(asked))
    windows = [(context + completions[gold]).encode().ljust(32, b".") for context, completions, gold in asked]
    self.write("train_000000.bin", shard(b"".join(windows) + b"."))
    self.run_ok(data__train="train_000000.bin", model__context=32, model__channels=32, batch__tokens=1600,
                batch__micro=50, optimizer__lr=0.01, optimizer__warmup_steps=10, train__steps=400, task__every=400,
                task__names=["learned"])
    before, after = self.metrics(kind="task")
    self.assertEqual((before["step"], after["step"], after["weights"]["path"]), (0, 400, "runs/tiny"))
    self.assertLess(before["acc"], 0.5)
    self.assertEqual([after[key] for key in ("acc", "acc_norm", "acc_bytes", "acc_norm_tokens", "stderr")],
                     [1, 1, 1, 1, 0])
    self.assertGreater(after["margin"], 0.5)

  def test_ranks_with_other_files_are_refused(self):
    os.mkdir(self.path("other"))
    self.write("other/a.bin", task_file(questions(30, seed=2)))
    self.write("rank.sh",
               f'#!/bin/sh\n[ "$RANK" = 1 ] && folder=other || folder=.\nexec {TRAIN} "$@" --set task.dir=$folder\n')
    self.write("c.json", json.dumps(CONFIG))
    processes = [subprocess.Popen(["sh", "rank.sh", "c.json", "--tasks", "a"], cwd=self.folder,
                                  env={**os.environ, **environment}, text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE) for environment in torchrun(2)]
    said = [process.communicate(timeout=60)[1] for process in processes]
    self.assertIn("task a", said[0] + said[1])
    self.assertEqual({process.returncode for process in processes}, {2})

  def test_while_training(self):
    changes = {"task__every": 3, "task__names": ["a", "b"], "train__steps": 8, "checkpoint__every": 4,
               "checkpoint__keep": 9}
    self.run_ok(**changes)
    lines = self.steady()
    rounds = [(step, task) for step in (0, 3, 6, 8) for task in "ab"]
    self.assertEqual([(entry["step"], entry["task"]) for entry in lines if entry["type"] == "task"], rounds)
    # The same weights, asked afterwards.
    self.run_ok("--tasks", "b,a", "--resume", **changes)
    *_, b, a = self.table()
    self.assertEqual((b["weights"]["path"], b["tokens"]), ("runs/tiny/step_00000008", 8 * 64))
    last = {entry["task"]: entry for entry in self.table()[:len(rounds)]}
    for entry in (a, b):
      self.assertEqual(entry, {**last[entry["task"]], "weights": entry["weights"]})
    # A run that continues from step 4 writes the same lines again, and leaves those of checkpoints.
    self.run_ok("--resume", "runs/tiny/step_00000004", **changes)
    again = self.steady()
    self.assertEqual(sorted(map(json.dumps, again)), sorted(map(json.dumps, lines + [
        {key: value for key, value in entry.items() if key not in ("time", "weights")} for entry in (a, b)])))
    # A benchmark that is missing at the last step is made up for, once.
    kept = [line + b"\n" for line in self.bytes_of("runs/tiny/metrics.jsonl").splitlines()
            if not (b'"step":8' in line and b'"task":"a"' in line)]
    self.write("runs/tiny/metrics.jsonl", b"".join(kept))
    self.run_ok("--resume", **changes)
    self.assertEqual(self.table()[-1], last["a"])
    self.assertIn("is finished", self.run_ok("--resume", **changes).stdout)

  def test_one_example(self):
    self.write("one.bin", task_file([("a context that is longer than 16 bytes", [" x", " yes"], 0)]))
    self.assertRegex(self.run_ok("--tasks", "one").stdout, r"\none +\| +\d+\.0     - \|.* 1, 2 completions with")
    self.write("one.bin", task_file([("a context of bytes", [" x", " y" * 20], 0)]))
    done = self.run_ok("--tasks", "one", task__max_length=60, name="b")
    self.assertNotIn("shortened", done.stdout)
    self.write("one.bin", task_file([("a context of", [" x", " long yes"], 0)]))
    self.assertRegex(self.run_ok("--tasks", "one", name="c").stdout, r" 1, 1 completion with a shortened")
    version_1 = bytearray(task_file([("why", [" x", " y"], 0)])[:-8])  # without the lengths of the completions
    version_1[4], version_1[1026] = 1, len(version_1) - 1024
    self.write("one.bin", bytes(version_1))
    self.assertRegex(self.run_ok("--tasks", "one", name="d").stdout,
                     r"\none +\| +\d+\.0     - \|     -      -  +\d+\.0 \|   50\.0 \|       - \|        1\n")

  def test_no_other_line_is_within_the_table(self):
    said = self.run_ok(task__every=1, task__names=["a", "b"], train__steps=6, checkpoint__every=1, model__channels=32,
                       model__mlp_ratio=64.0).stdout
    rounds = re.findall(r"\ntasks, step .*\n .*\na .*\nb .*\n", said)
    self.assertEqual((len(rounds), said.count("saved runs/")), (7, 6))

  def test_bad_input(self):
    self.bad("--tasks", "c", names=["task c", r"\./c\.bin", r"task\.dir", "a, b", "prepare_tasks.py"], task__dir=".")
    self.bad("--tasks", "a,,b", names=["task : there is no file"], task__dir=".")
    self.bad("--tasks", "a,b,a", names=["task a is named twice"], task__dir=".")
    self.bad("--tasks", "", names=["--tasks", "hellaswag,piqa"])
    self.bad("--tasks", "a", "--eval", names=["--eval", "--tasks"])
    self.bad("--tasks", "a", names=["token", "model.vocab = 100", "tokenizer"], model__vocab=100, task__dir=".")
    self.bad("--tasks", "a", names=["task.max_length = 17", "learned", "16"], task__max_length=17,
             model__position="learned")
    self.bad("--tasks", "a", names=["task.samples", "config.json", "exists"], task__samples="config.json",
             task__dir=".", wrote_nothing=False)
    self.bad("--tasks", "a", names=["task.samples", "absent/x"], task__samples="absent/x", task__dir=".",
             wrote_nothing=False)
    self.bad("--tasks", "a", names=["hellaswag_val"], task__dir="hellaswag_val", wrote_nothing=False)
    self.bad(task__every=2, names=["task.every = 2", "task.names"], wrote_nothing=False)
    self.bad(task__every=2, task__names=["c"], names=["task c"], wrote_nothing=False)
    self.bad("--dry-run", task__every=2, task__names=["c"], names=["task c"], wrote_nothing=False)
    self.assertIn("task.names", self.call("--print-config", task__names=["a"]).stderr)  # without effect

  def test_texts(self):
    """The last words of passages, and whole texts that are longer than the context; on ranks too."""
    word = lambda number: (f"passage {number} of some", " " + "worst"[number % 5:])
    self.write("words.bin", text_file([(*word(number), 1) for number in range(20)]))
    self.write("whole.bin", text_file([("\n", "the best of times " * count, 4 * count + 1) for count in (1, 3, 9)]))
    for ranks in "12":
      done = self.run_ok("--tasks", "words,a,whole", "--gpus", ranks, task__samples=f"{ranks}.jsonl", eval__batch=2,
                         task__max_length=24, name="ranks" + ranks)
    self.assertEqual(self.bytes_of("1.jsonl"), self.bytes_of("2.jsonl"))
    words, a, whole = self.metrics("ranks1", "task")
    self.assertEqual((set(words), set(a)), (KEYS | {"word_perplexity", "bits_per_byte"}, KEYS))
    samples = [json.loads(line) for line in self.text_of("1.jsonl").splitlines()]
    for line in words, whole:
      rows = [row for row in samples if row["task"] == line["task"]]
      nats = -sum(row["loglikelihood"][0] for row in rows)
      self.assertEqual(len(rows), line["n"])
      self.assertAlmostEqual(line["word_perplexity"] / math.exp(nats / sum(row["words"] for row in rows)), 1)
      self.assertAlmostEqual(line["bits_per_byte"], nats / math.log(2) / sum(row["bytes"] for row in rows))
      self.assertEqual([line[key] for key in ("acc_norm", "acc_bytes", "acc_norm_tokens", "margin", "chance")],
                       [None] * 5)
    self.assertEqual(words["acc"], sum(row["greedy"] for row in samples[:20]) / 20)
    self.assertEqual([whole[key] for key in ("acc", "stderr", "cut")], [None, None, 0])
    self.assertRegex(done.stdout, r"\nwhole +\| +- +- \|.*\| +3, perplexity [\d.e+]+ a word, [78]\.\d{4} bits per byte")

  def test_a_model_that_learned_the_last_words_knows_them(self):
    passages = [(f"{number:02} is", " " + "worst"[number % 5:], 1) for number in range(20)]
    self.write("words.bin", text_file(passages))
    windows = [(context + word).encode().ljust(16, b".") for context, word, _ in passages]
    self.write("train_000000.bin", shard(b"".join(windows) + b"."))
    self.run_ok(data__train="train_000000.bin", model__channels=32, batch__tokens=320, batch__micro=20,
                optimizer__lr=0.01, train__steps=200, task__every=200, task__names=["words"])
    before, after = self.metrics(kind="task")
    self.assertEqual((before["acc"], after["acc"], after["stderr"]), (0, 1, 0))
    self.assertLess(after["word_perplexity"], 1.5)

  def test_longer_than_the_context(self):
    self.run_ok("--tasks", "a", task__max_length=40, eval__rope_scaling="yarn", train__steps=1)
    self.assertEqual([(entry["cut"], entry["max_length"]) for entry in self.table()], [(0, 40)])
