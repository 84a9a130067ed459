"""Interrupts ./train at random, for as long as you like: no interruption may change a bit.

    python3 test/test_torture.py [--seed N] [--count N] [--minutes M] [--jobs N] [--train PROGRAM]
    python3 test/test_torture.py --seed N --first I --count 1     # configuration I of that seed alone

A configuration is a value for every setting, and 1 to 4 ranks. It is trained without an interruption, then again and
again with --resume: killed, one of its ranks killed, asked to stop or to save, on a full disk. At last its metrics,
weights and moments must be the same, and no temporary file be left. If any differs, its folder is kept and the exit
code is 1. A seed gives the same configurations and kinds of interruption; their moments are shares of measured times.
Choices and switches are drawn as ./train --help lists them, keys of kinds also from their defaults and bounds, all
other settings from VALUES, which must have each.
As a test: ten configurations.
"""
import argparse
import collections
import contextlib
import functools
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from data.test_labels import label_file, some
from eval.test_tasks import questions, task_file
from support import workspace
from support.runs import FILES, PATIENCE, RankRuns, send
from support.scripts import ROOT, common
from support.workspace import CRASH, TEXT, default_signals, merged

from lib import kind_file  # from SCRIPTS

# None: not given. batch.tokens: in micro batches of a rank. Settings that a rule between them refuses are drawn again.
VALUES = {
    "name": ["tiny", "two words", "größe", "step_size_3"], "seed": [1, 2**64 - 1],
    "init": ["", "", "runs/first/step_00000001"],
    "threads": [1, 1, 2, 3], "model.layers": [1, 2, 3], "model.heads": [1, 2, 3], "model.kv_heads": [None, 1],
    "model.channels": [8, 16, 24, 128],
    "model.head_dim": [None, 4, 6, 11, 16], "model.context": [2, 7, 16, 33, 128], "model.vocab": [128, 256, 300],
    "model.mlp_ratio": [1, 2, 4], "model.rope_base": [10, 10000], "model.rope_fraction": [0, 0.5, 1],
    "model.init_std": [0.02, 0.5], "model.logit_cap": [0, 0, 5],
    "model.head.outputs": [0, 0, 0, 3], "attention.power": [1, 2, 15, 31.5], "attention.offset": [0, 1, 2.5],
    "attention.offset_free_rows": [0, 3, 100], "attention.threshold": [0.5, 1], "attention.window": [0, 0, 1, 5],
    "attention.sink_tokens": [0, 1, 3], "attention.gate.bias_init": [0, 0.5, -1],
    "attention.layers": [None, None, None, ["lssar", "softmax"], [{"window": 0}, {}],
                         [{"rotated": False}, {"rotated": True}],
                         [{"gated": False}, {"gated": True}], [{"kind": "threshold", "window": 0}, "sigmoid", "relu2"],
                         [{"window": 3, "bias": "alibi"}, {"bias": "fox"}, {"bias": "none", "window": 9}],
                         [{"documents": "joined"}, {"documents": "separate"}]],
    "data.separator": [ord("e"), ord(" ")],
    "data.train": ["train*.bin", "train_000000.bin"], "data.val": ["val.bin"], "data.labels": [False, False, True],
    "data.val_labels": [None], "batch.micro": [None, 1, 2, 3], "batch.tokens": [1, 1, 2, 3],
    "optimizer.lr": [0, 1e-4, 1e-3, 1e-2], "optimizer.beta1": [0, 0.9], "optimizer.beta2": [0.95, 0.999],
    "optimizer.eps": [1e-8, 1e-4], "optimizer.weight_decay": [0, 0.1], "optimizer.grad_clip": [0, 0.1, 1],
    "optimizer.warmup_steps": [0, 1, 9], "optimizer.final_lr_fraction": [0, 0.1], "optimizer.decay_fraction": [0.2, 1],
    "optimizer.muon.lr": [0.02, 0.1], "optimizer.muon.momentum": [0, 0.95], "optimizer.muon.weight_decay": [0, 0.1],
    "optimizer.skip_spikes": [0, 0, 1.5], "optimizer.schedule_start": [0], "train.steps": [1, 12, 20, 30],
    "train.tokens": [None, None, 1], "train.zero_stage": [0, 1], "eval.every": [0, 1, 5], "eval.tokens": [1, 100, 300],
    "eval.batch": [None, 1, 3], "eval.lengths": [None, [1], [5, 40]], "eval.window": [0, 0, 4],
    "eval.sink_tokens": [0, 1], "checkpoint.every": [0, 1, 2, 4, 4, 7], "checkpoint.minutes": [0, 0, 1e-4],
    "checkpoint.keep": [1, 2, 5], "generate.every": [0, 0, 3], "generate.tokens": [1, 9],
    "generate.prompt": ["", "It was"], "generate.stop": ["", "."], "generate.temperature": [0, 1],
    "generate.top_k": [0, 5], "generate.tokenizer_dir": ["", "vocabulary"], "passkey.trials": [1],
    "passkey.depths": [2], "passkey.examples": ["", "prompts"], "task.every": [0, 0, 4],
    "task.names": [["a"], ["a", "b"]], "task.dir": ["."],
    "task.limit": [0, 3], "task.max_length": [None, 9], "task.samples": ["", "samples"], "diagnostics.every": [0, 0, 5],
    "diagnostics.tokens": [1, 100], "plan.memory": [""], "plan.ranks": [0], "plan.tflops": [0], "log.every": [1, 3],
    "log.groups_every": [0, 0, 2]}
USUAL = 0.6  # the share of choices and switches that keep their defaults
# Drawn anew for every start: no bit depends on them.
CHANGING = ("threads", "train.zero_stage", "checkpoint.every", "checkpoint.minutes")

# A kind of interruption is signals, each after a random time. "rank": to one of the ranks.
KINDS = {"kill": [signal.SIGKILL], "rank": [signal.SIGKILL], "term": [signal.SIGTERM], "int": [signal.SIGINT],
         "hup": [signal.SIGHUP], "save": [signal.SIGUSR1, signal.SIGKILL], "stop": [signal.SIGTERM, signal.SIGKILL],
         "disk": []}
DISK = r"""  // a disk with room for DISK_BYTES, in each process
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
extern "C" ssize_t write(int descriptor, const void* from, size_t bytes) {
  static size_t left = strtoul(getenv("DISK_BYTES"), nullptr, 10);
  struct stat file;
  if (descriptor > 2 && fstat(descriptor, &file) == 0 && S_ISREG(file.st_mode)) {
    if (left == 0) return errno = ENOSPC, -1;
    left -= bytes = bytes < left ? bytes : left;
  }
  return syscall(SYS_write, descriptor, from, bytes);
}
"""


def values_of_all_settings():
  text = subprocess.run([workspace.TRAIN, "--help"], capture_output=True, text=True, check=True).stdout
  listed = re.findall(r"^  (\w+(?:\.\w+)*) +.*\n +([a-z/]+), default [^;\n]*(?:; (.*))?$", text, re.M)
  names = {key: [False, True] if kind == "true/false" else [name for name in allowed.split(" | ") if " " not in name]
           for key, kind, allowed in listed if kind == "true/false" or kind.startswith("choice")}
  names["attention.variant"] = re.findall(r"^  (\w+) ", text[text.index("\nVariants"):], re.M)
  for kind in map(kind_file.read, kind_file.of_the_tree()):
    for name, default in kind.parameters.items():
      least = [float(kind.ranges[name][1:].split(",")[0])] if kind.ranges[name][0] == "[" else []
      names[f"attention.{name}"] = [default, *least]
  if wrong := ({key for key, *_ in listed} - names.keys()) ^ (VALUES.keys() - names.keys()):
    raise common.UserError("VALUES of test/test_torture.py must have the numbers and texts of ./train --help and no "
                           "other setting; correct " + ", ".join(sorted(wrong)))
  return {**{key: [None] * round(len(few) * USUAL / (1 - USUAL)) + few for key, few in names.items()}, **VALUES}


class Different(Exception):
  """A result that is not as it must be."""


class Tortured(RankRuns):
  """One configuration, in its own folder."""

  def prepare(self, chance, values, disk):
    self.chance, self.values, self.disk, self.met = chance, values, disk, collections.Counter()
    self.setUp()
    for name, tokens in (("train_000000", TEXT * 6), ("train_000001", TEXT[10:] * 3), ("val", TEXT[30:] * 10)):
      self.write(f"labels0_{name}.bin", label_file(some(list(tokens))))
      self.write(f"labels3_{name}.bin", label_file([token / 128 for token in tokens * 3], 3))
    for name in "ab":
      self.write(f"{name}.bin", task_file(questions(7, name)))
    self.write_vocabulary("vocabulary", encodes=False)

  def draw(self):
    self.ranks_asked = self.chance.randint(1, 4)
    self.settings = s = {key: self.chance.choice(values) for key, values in self.values.items()}
    s["batch.tokens"] *= (s["batch.micro"] or 1) * s["model.context"] * self.ranks_asked
    if s["train.tokens"]:
      s["train.tokens"] = s.pop("train.steps") * s["batch.tokens"] - 1
    labels = f"labels{s['model.head.outputs']}_" if s["data.labels"] or s["model.head.outputs"] else None
    s["data.labels"], s["data.val_labels"] = (labels and labels + s[key] for key in ("data.train", "data.val"))

  def begin(self, *flags, changes={}, space=None):
    settings = {key: value for key, value in {**self.settings, **changes}.items() if value is not None}
    self.write("config.json", json.dumps(merged({}, settings), indent=1))
    full = {} if space is None else {"LD_PRELOAD": self.disk, "DISK_BYTES": str(space)}
    return subprocess.Popen([workspace.TRAIN, "config.json", "--gpus", str(self.ranks_asked), *flags], cwd=self.folder,
                            text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=default_signals,
                            env={**os.environ, **full})

  def end(self, process, codes, errors, what):
    """Waits for the process and its ranks. codes: allowed beside 0; errors: a pattern of what exit code 1 must say."""
    said = "it hangs"
    with contextlib.suppress(subprocess.TimeoutExpired):
      said = process.communicate(timeout=300)[1]
      limit = time.monotonic() + PATIENCE
      while self.ranks() and time.monotonic() < limit:
        time.sleep(0.01)
    left = self.ranks()
    for rank in left.values():
      send(rank, signal.SIGKILL)
    process.kill()
    code = process.returncode
    if left or CRASH.search(said) or code not in (0, *codes) or (code == 1 and not re.search(errors, said)):
      raise Different(f"{what}: exit {code}, {len(left)} ranks left, {said.strip()[-500:]}")
    return code

  def straight(self):
    """Draws settings and trains without an interruption; whether they could be trained."""
    shutil.rmtree(self.path("runs"), ignore_errors=True)
    self.draw()
    first = {"name": "first", "init": "", "train.steps": 1, "train.tokens": None, "checkpoint.at_end": True}
    if self.settings["init"] and self.end(self.begin(changes=first), (1, 2), "finite", "init") != 0:
      return False
    began = time.monotonic()
    if self.end(self.begin(), (1, 2), "finite", "straight") != 0:
      return False
    self.duration = time.monotonic() - began
    os.rename(self.path("runs", self.settings["name"]), self.path("runs/straight"))
    self.size = sum(map(len, self.run_files().values()))
    return True

  def interrupt(self, kind, share):
    """share: of the time, or of the disk."""
    process = self.begin("--resume", changes={key: self.chance.choice(self.values[key]) for key in CHANGING},
                         space=int(share * self.size) if kind == "disk" else None)
    victim = self.chance.randrange(self.ranks_asked)
    for sign in KINDS[kind]:
      try:
        process.wait(share * self.duration)
      except subprocess.TimeoutExpired:
        send(self.ranks().get(victim, process.pid) if kind == "rank" else process.pid, sign)
      share *= self.chance.random()
    codes = [-sign for sign in KINDS[kind]] + [1] * (kind in ("rank", "disk"))  # -SIGUSR1: before it is handled
    self.met[kind] += self.end(process, codes, "No space left on device|ended by signal 9|has died", kind) != 0

  def run(self):
    while not self.straight():
      pass
    plan = self.chance.choices(list(KINDS), k=self.chance.randint(2, 6))
    for kind in plan:
      self.interrupt(kind, self.chance.random() * (1 if kind == "disk" else 1.5 / len(plan)))
    self.end(self.begin("--resume"), (), "", "resumed")
    self.compare(self.settings["name"])

  def compare(self, name):
    for line, other in itertools.zip_longest(self.steady(name), self.steady("straight"), fillvalue={}):
      if line != other:
        raise Different("metrics.jsonl: %s" % {key: (line.get(key), other.get(key)) for key in line | other
                                               if key in ("type", "step") or line.get(key) != other.get(key)})
    steps, last = set(self.steps(name)) & set(self.steps("straight")), self.metrics("straight", "train")[-1]["step"]
    if last not in steps and self.settings["checkpoint.at_end"] is not False:
      raise Different(f"checkpoints: {self.steps(name)}, {self.steps('straight')}")
    for step, file in itertools.product(steps, FILES[:3]):
      if self.digest(self.checkpoint(step, file, run=name)) != self.digest(self.checkpoint(step, file, run="straight")):
        raise Different(f"{file} of step {step}")
    if any(file.startswith(".tmp") for file in os.listdir(self.path("runs", name))):
      raise Different(f"left: {os.listdir(self.path('runs', name))}")


def torture(seed, first=0, count=10, seconds=1e9, jobs=1, say=print):
  """(configurations, those that differ, interruptions)."""
  began, values, lock = time.monotonic(), values_of_all_settings(), threading.Lock()
  indices, done, different, met = iter(range(first, first + count)), 0, 0, collections.Counter()

  def work(disk):
    nonlocal done, different
    while (index := next(indices, None)) is not None and time.monotonic() < began + seconds:
      one, result = Tortured(), "equal"
      try:
        one.prepare(random.Random(f"{seed} {index}"), values, disk)
        one.run()
        one.doCleanups()
      except Exception as error:  # a fault of this script is not to be missed either
        result = f"DIFFERENT: {error!r}, kept in {one.folder}; again: --seed {seed} --first {index} --count 1"
      with lock:
        done, different = done + 1, different + (result != "equal")
        met.update(one.met)
        spent = time.monotonic() - began
        left = max(0, min((count - done) * spent / done, seconds - spent)) / 60
        met_here = ", ".join(one.met.elements()) or "not interrupted"
        say(f"{index}: {one.ranks_asked} ranks, {met_here}; {left:.0f} min left: {result}")

  with tempfile.TemporaryDirectory(prefix="plusgpt_torture_") as folder:
    disk = os.path.join(folder, "disk.so")
    subprocess.run(["g++", "-shared", "-fPIC", "-o", disk, "-x", "c++", "-"], input=DISK, text=True, check=True)
    threads = [threading.Thread(target=work, args=(disk,), daemon=True) for _ in range(jobs)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
  say(f"{done} configurations, {different} different; {met.total()} interruptions: " +
      ", ".join(f"{times} {kind}" for kind, times in sorted(met.items())))
  return done, different, met


def main():
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="[random]")
  parser.add_argument("--first", type=int, default=0, help="the number of the first configuration [0]")
  parser.add_argument("--count", type=int, help="configurations [10; with --minutes as many as that allows]")
  parser.add_argument("--minutes", type=float, help="begins no configuration later than that")
  parser.add_argument("--jobs", type=int, default=1, help="configurations at the same time [1]")
  parser.add_argument("--train", default=workspace.TRAIN, help="the program [$TRAIN, or this checkout's]")
  args = parser.parse_args()
  workspace.TRAIN = os.path.abspath(args.train)
  print(f"seed {args.seed}", flush=True)
  count, seconds = args.count or (10**9 if args.minutes else 10), 60 * (args.minutes or 1e9)
  sys.exit(torture(args.seed, args.first, count, seconds, args.jobs, functools.partial(print, flush=True))[1] > 0)


class Torture(unittest.TestCase):
  def test_a_signal_after_the_end(self):
    ended = subprocess.Popen(["true"])
    ended.wait()
    send(ended.pid, signal.SIGTERM)

  def test_ten_configurations(self):
    said = []
    done, different, met = torture(31, say=said.append)
    self.assertEqual((done, different), (10, 0), "\n".join(said))
    self.assertGreater(met.total(), 10)


if __name__ == "__main__":
  common.run(main, "its folders are left in the temporary folder")
