"""For the tests: a working directory for every test; for those of ./train, a tiny model, and helpers that run it and
read its files.

TRAIN=build/cpu/train names another program than ./train. Standard library only.
"""
import array
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
SCRIPTS = os.path.join(ROOT, "scripts")
sys.path.insert(0, SCRIPTS)  # for tests that import one

from lib.shards import read_safetensors, write_safetensors  # noqa: E402, F401: for the tests

TRAIN = os.path.abspath(os.environ.get("TRAIN") or os.path.join(ROOT, "train"))
CRASH = re.compile(r"terminate called|what\(\)|Assertion|Aborted|Segmentation|Sanitizer|std::|Traceback|core dumped|"
                   r"\.(cpp|cuh?|h):\d")
VOLATILE = ("time", "tokens_per_s", "mfu", "ms")
CONFIG = {
    "name": "tiny",
    "model": {"layers": 2, "heads": 2, "channels": 16, "context": 16, "vocab": 256},
    "data": {"train": "train*.bin", "val": "val.bin"},
    "batch": {"tokens": 64, "micro": 2},
    "optimizer": {"lr": 1e-2, "warmup_steps": 2},
    "train": {"steps": 4},
    "eval": {"every": 2, "tokens": 256},
    "generate": {"tokenizer": "bytes", "tokens": 8},
    "threads": 1,
}
TEXT = b"It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness. "


def default_signals():
  """For preexec_fn. A shell's background programs ignore SIGINT, those under nohup SIGHUP; both would stay so."""
  for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)


def shard(tokens, magic=20240520, version=1, count=None):
  header = [magic, version, len(tokens) if count is None else count] + [0] * 253
  return struct.pack("<256i", *header) + array.array("H", list(tokens)).tobytes()


def merged(base, changes):
  """base with dotted keys changed; the value None removes a key."""
  result = json.loads(json.dumps(base))
  for key, value in changes.items():
    *path, last = key.split(".")
    place = result
    for part in path:
      place = place.setdefault(part, {})
    if value is None:
      place.pop(last, None)
    else:
      place[last] = value
  return result


def floats(data):
  return array.array("f", data)


class Folder(unittest.TestCase):
  """A folder of its own for each test. Paths of files are relative to it."""

  def setUp(self):
    self.folder = tempfile.mkdtemp(prefix="plusgpt_test_")
    self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

  def path(self, *parts):
    return os.path.join(self.folder, *parts)

  def write(self, name, content):
    with open(self.path(name), "wb") as file:
      file.write(content if isinstance(content, bytes) else content.encode())
    return self.path(name)

  def bytes_of(self, *parts):
    with open(self.path(*parts), "rb") as file:
      return file.read()

  def text_of(self, *parts):
    return self.bytes_of(*parts).decode()

  def json_of(self, *parts):
    return json.loads(self.bytes_of(*parts))

  def train(self, *arguments, code=0, within="."):
    """Runs ./train with these arguments and no configuration but what they name."""
    done = subprocess.run([TRAIN, *arguments], cwd=self.path(within), capture_output=True, text=True, timeout=300)
    self.assertEqual(done.returncode, code, done.stderr)
    self.assertNotRegex(done.stderr, CRASH)
    return done

  def write_vocabulary(self, folder, encodes=True):
    """GPT-2's vocabulary files, in small. Returns token -> number: bytes in their order, the merges, <|endoftext|>.
    encodes: the test needs a ./train that encodes with them, and is skipped without."""
    others = iter(range(256, 512))
    letters = [chr(b) if 33 <= b <= 126 or (b >= 161 and b != 173) else chr(next(others)) for b in range(256)]
    merges = ["h e", "l l", "he ll", "hell o", "\u0120 w", "o r", "\u0120w or", "l d", "\u0120wor ld",
              "\u0120 \u0120", "\u010a \u010a"]
    tokens = letters + [merge.replace(" ", "") for merge in merges] + ["<|endoftext|>"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    os.makedirs(self.path(folder), exist_ok=True)
    self.write(os.path.join(folder, "encoder.json"), json.dumps(vocabulary))
    self.write(os.path.join(folder, "vocab.bpe"), "#version: 0.2\n" + "\n".join(merges) + "\n")
    if encodes and b"without PCRE2" in subprocess.run([TRAIN, "--encode", self.path(folder)], input=b"x",
                                                      capture_output=True).stderr:
      self.skipTest("./train was built without PCRE2")
    return vocabulary


class Workspace(Folder):
  def setUp(self):
    super().setUp()
    if not os.access(TRAIN, os.X_OK):
      self.fail(f"{TRAIN} is not there; build it with make")
    self.write("train_000000.bin", shard(TEXT * 6))
    self.write("train_000001.bin", shard(TEXT[10:] * 3))
    self.write("val.bin", shard(TEXT[30:] * 10))

  def set(self, variable, value):
    os.environ[variable] = str(value)
    self.addCleanup(os.environ.pop, variable, None)

  def choosing(self):
    """From here on ./train has algorithms to choose from for its matrix products, and keeps what it chose in a file of
    this test; each process chooses by its own number. (It is for the CPU build; on a GPU all this is so anyway.)"""
    self.set("PLUSGPT_MATMUL", "choose")
    self.set("XDG_CACHE_HOME", self.path("cache"))

  def choices(self, cache="cache"):
    """The lines of that file, split into fields: device, library, shape, algorithm, date."""
    return [line.split("\t") for line in self.text_of(cache, "plusgpt/matmul.txt").splitlines()]

  def write_config(self, file, /, **changes):
    """CONFIG with changes: a__b=x changes a.b."""
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    self.write(file, json.dumps(merged(CONFIG, changes), indent=1))

  def call(self, *flags, config=None, **changes):
    """Runs ./train config.json FLAGS...; the config is CONFIG with changes, or the text given."""
    if config is None:
      self.write_config("config.json", **changes)
    else:
      self.write("config.json", config)
    return subprocess.run([TRAIN, "config.json", *flags], cwd=self.folder, capture_output=True, text=True, timeout=300)

  def ok(self, *flags, **arguments):
    done = self.call(*flags, **arguments)
    self.assertEqual(done.returncode, 0, f"{flags} {arguments}\n{done.stdout}\n{done.stderr}")
    self.assertNotRegex(done.stderr, CRASH)
    return done

  def bad(self, *flags, names, wrote_nothing=True, **arguments):
    """Exit 2, each of `names` in the text, nothing that looks like a crash, nothing under runs/."""
    done = self.call(*flags, **arguments)
    said = f"{flags} {arguments}\nexit {done.returncode}\n{done.stdout}\n{done.stderr}"
    self.assertEqual(done.returncode, 2, said)
    for name in names:
      self.assertRegex(done.stderr, re.compile(name, re.IGNORECASE), said)
    self.assertNotRegex(done.stderr, CRASH, said)
    self.assertLessEqual(len(done.stderr.strip().splitlines()), 16, said)
    self.assertLess(len(done.stderr), 2000, said)
    if wrote_nothing:
      self.assertFalse(os.path.exists(self.path("runs")), said)
    return done

  def metrics(self, run="tiny", kind=None):
    entries = [json.loads(line) for line in self.bytes_of("runs", run, "metrics.jsonl").splitlines()]
    return [entry for entry in entries if kind in (None, entry["type"])]

  def steady(self, run="tiny"):
    """All lines that must be the same in equal runs, which may have other names."""
    return [{key: value for key, value in entry.items() if key not in (*VOLATILE, "weights")}
            for entry in self.metrics(run) if entry["type"] != "start"]

  def checkpoint(self, step, *names, run="tiny"):
    return self.path("runs", run, f"step_{step:08d}", *names)

  def remove_checkpoints(self, *steps, run="tiny"):
    for step in steps:
      shutil.rmtree(self.checkpoint(step, run=run))

  def model(self, run="tiny", step=4):
    return self.checkpoint(step, "model.safetensors", run=run)

  def run_files(self):
    """Path -> content of everything below runs/ except the lock."""
    return {name: self.bytes_of(name) for name in self.files()
            if name.startswith("runs") and not name.endswith("lock")}

  def files(self):
    return sorted(os.path.relpath(os.path.join(folder, name), self.folder)
                  for folder, _, names in os.walk(self.folder) for name in names)
