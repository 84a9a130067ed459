"""What runs are of, by content: whatever is made again under an old name is something else to all that pools, compares
or continues runs. Standard library only."""
import glob
import json
import os
import shutil
import subprocess
import sys

from data.test_labels import label_file
from support.scripts import ScriptTest
from support.workspace import SCRIPTS, TEXT, TRAIN, Workspace, shard

from lib import metrics, variants

LABELS = [65535 if i % 3 else byte for i, byte in enumerate(TEXT * 10)]


class Identity(Workspace, ScriptTest):
  def begun(self, run="tiny"):
    return self.metrics(run, "start")[-1]["identity"]

  def one_run(self, name, *flags, **changes):
    self.ok("--set", f"name={name}", "--set", f"seed={name[-1]}", *flags,
            **{"train__steps": 1, "eval__every": 1, **changes})
    return metrics.Run(self.path("runs", name))

  def pools(self, *runs):
    return sorted(len(variant.runs) for variant in variants.of(list(runs)))

  def test_the_start_line_says_it(self):
    self.write("val.bin", shard(TEXT * 10))
    self.write("labels.bin", label_file(LABELS))
    self.one_run("s1", checkpoint__at_end=True)
    shutil.copy(self.model("s1", 1), self.path("model.safetensors"))
    changes = {"data__val_labels": "labels.bin", "init": ".", "train__steps": 1}
    self.ok(**changes)
    found = self.begun()
    self.assertEqual([(key, [each["name"] for each in files]) for key, files in found.items() if key != "tokenizer"],
                     [("data.train", ["train_000000.bin", "train_000001.bin"]), ("data.val", ["val.bin"]),
                      ("data.val_labels", ["labels.bin"]), ("init", ["model.safetensors"])])
    self.assertEqual(json.loads(self.ok("--print-identity", **changes).stdout), found)
    sums = [each["xxh64"] for files in found.values() for each in files]
    self.assertEqual(len(set(sums)), 5)
    self.ok("--eval", "--resume", **changes)
    last = self.metrics(kind="eval")[-1]
    self.assertEqual([last["weights"]["xxh64"], found["data.val"] + found["data.val_labels"]],
                     [self.begun()["checkpoint"], last["of"]["data"]])
    self.assertNotIn("init", self.begun())

  def test_the_tokenizer_is_named(self):
    size = len(TEXT[30:]) * 10
    self.write("val.json", json.dumps({"tokens": size, "bytes": size, "tokenizer": "bytes"}))
    self.ok("--eval", generate__tokenizer="gpt2")
    self.assertIn("bytes, 256 tokens", self.metrics(kind="eval")[-1]["of"]["tokenizer"])

  def test_other_content_is_another_variant(self):
    self.write("labels.bin", label_file([*(TEXT * 6)[1:], 0]))
    first, second = self.one_run("s1"), self.one_run("s2")
    self.assertEqual(self.pools(first, second), [2])
    shutil.copytree(self.checkpoint(1, run="s1"), self.path("begin_1"))
    shutil.copytree(self.checkpoint(1, run="s2"), self.path("begin_2"))
    shutil.copytree(self.checkpoint(1, run="s2"), self.path("begin"))
    by_seed = [self.one_run(f"b{seed}", init=f"begin_{seed}") for seed in (1, 2)]
    self.assertEqual(self.pools(*by_seed), [2])  # weights of their own seed
    begun = self.one_run("i1", init="begin")
    self.assertEqual(self.pools(begun, self.one_run("i2", init="begin")), [2])
    shutil.copy(self.path("begin_1/model.safetensors"), self.path("begin/model.safetensors"))
    os.remove(self.path("begin/state.json"))
    self.assertEqual(self.pools(begun, self.one_run("i2", "--overwrite", init="begin")), [1, 1])
    labels = {"data__train": "train_000000.bin", "data__labels": "labels.bin"}
    labelled = self.one_run("l1", **labels)
    self.assertEqual(self.pools(labelled, self.one_run("l2", **labels)), [2])
    self.write("labels.bin", label_file([*(TEXT * 6)[2:], 0, 0]))
    self.assertEqual(self.pools(labelled, self.one_run("l2", "--overwrite", **labels)), [1, 1])
    kept = self.bytes_of("val.bin")
    self.write("val.bin", shard(TEXT[29:] * 10))
    self.assertEqual(self.pools(first, self.one_run("s2", "--overwrite")), [1, 1])
    self.write("val.bin", kept)
    self.write("train_000001.bin", shard(TEXT[9:] * 3))
    third = self.one_run("s3")
    self.assertEqual(self.pools(first, second, third), [1, 2])
    self.assertEqual(metrics.differing([first, second]), ["seed"])
    self.assertEqual(metrics.differing([first, third]), ["seed", "content.data.train"])

  def test_runs_of_older_programs(self):
    runs = [self.one_run("s1"), self.one_run("s2")]
    for name in ("s1", "s2"):
      lines = self.metrics(name)
      del lines[0]["identity"]
      self.write(f"runs/{name}/metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    older = [metrics.Run(run.folder) for run in runs]  # their checkpoints say it
    self.assertEqual([run.contents for run in older], [run.contents for run in runs])
    shutil.rmtree(self.checkpoint(1, run="s2"))
    self.assertEqual(metrics.Run(runs[1].folder).contents["data.train"], metrics.UNKNOWN)

  def test_evaluations_of_weights_that_were_replaced(self):
    for seed, lengths in ((1, "8,16"), (2, "8")):
      self.ok("--overwrite", train__steps=1, seed=seed)
      self.ok("--eval", "--lengths", lengths, "--set", "name=e", init="runs/tiny/step_00000001")
    run = metrics.Run(self.path("runs/e"))
    self.assertEqual((sorted(run.by_length()), run.left_out), ([8], {"of weights that were replaced since": 2}))

  def sweep(self, *flags, code=0):
    done = subprocess.run([sys.executable, os.path.join(SCRIPTS, "sweep.py"), "sweep.json", "--train", TRAIN, *flags],
                          cwd=self.folder, capture_output=True, text=True)
    self.assertEqual(done.returncode, code, done.stderr)
    return done.stderr

  def test_a_sweep_evaluates_again_what_was_trained_again(self):
    self.write_config("config.json", train__steps=1, eval__every=1)
    self.write("sweep.json", json.dumps({"config": "config.json", "axes": {"eval.lengths": [[8], [12]]}, "seeds": [1]}))
    self.sweep()
    asked = [run["name"] for run in self.json_of("runs/sweep.json")["runs"]]
    lines = lambda: [len(self.metrics(name)) for name in asked]
    before = lines()
    for folder in glob.glob(self.path("runs/*/step_*")):
      shutil.rmtree(os.path.dirname(folder))
    self.sweep()
    self.assertEqual([run["state"] for run in self.json_of("runs/sweep.json")["runs"]], ["complete"] * 2)
    self.assertEqual(lines(), [2 * n for n in before])
    for file in ("sweep.json", "config.json"):
      self.assertIn("overwrite", self.sweep("--results", file, code=2))

  def test_a_sweep_does_not_mix_them(self):
    self.write("sweep.json", json.dumps({"config": "config.json", "axes": {"optimizer.lr": [0.01]}, "seeds": [1]}))
    self.write_config("config.json", train__steps=1, eval__every=1)
    sweep = self.sweep
    sweep()
    sweep("--seeds", "1,2")
    for name, content in (("val.bin", TEXT[29:] * 10), ("train_000000.bin", TEXT * 5)):
      kept = self.bytes_of(name)
      self.write(name, shard(content))
      for flags in (), ("--plan",), ("--table",):
        self.assertIn(f'data.{name.partition("_")[0].partition(".")[0]}', sweep("--seeds", "1,3", *flags, code=2))
      self.write(name, kept)
    sweep("--table")
    os.rename(self.path("val.bin"), self.path("kept"))
    self.assertIn("cannot be read", sweep("--table"))
