"""For the tests of runs that are interrupted, resumed or several processes: starts them, waits for their end and reads
their outcome.

FULL=1 kills more often. Standard library only.
"""
import contextlib
import hashlib
import json
import math
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import time
from unittest import mock

from support.workspace import CRASH, TRAIN, Workspace, default_signals, floats, read_safetensors, write_safetensors

FILES = ("model.safetensors", "optimizer.safetensors", "config.json", "state.json")
# 13 MB a checkpoint: long enough under way to be met there.
LARGE = {"model__channels": 64, "model__mlp_ratio": 64.0, "model__heads": 2}
AGAIN = 2.2  # seconds after which a signal is no longer the same request
ENDLESS = {"optimizer__schedule": "constant", "train__steps": 1000000, "checkpoint__every": 0, "log__every": 1000000,
           "eval__every": 0}
PATIENCE = 120  # seconds for what takes one on an idle machine


def send(process, sign):
  """The signal to a process by its number, which may have ended by itself."""
  with contextlib.suppress(ProcessLookupError):
    os.kill(process, sign)


class Runs(Workspace):
  """Windows: 41 + 18 in two shards of unequal length, 4 a step: epochs end within steps."""

  def setUp(self):
    super().setUp()
    self.started = 0
    self.changes = {"train__steps": 40, "checkpoint__every": 10, "checkpoint__keep": 9, "eval__every": 5}

  def run_ok(self, *flags, **changes):
    return self.ok(*flags, **{**self.changes, **changes})

  def run_bad(self, *flags, names, **changes):
    before = self.run_digests()
    done = self.bad(*flags, names=names, wrote_nothing=False, **{**self.changes, **changes})
    self.assertEqual(before, self.run_digests())
    return done

  def start(self, *flags, before=(), **changes):
    """./train in the background, with a configuration of its own: it reads it when it wants."""
    self.started += 1
    config = f"config{self.started}.json"
    self.write_config(config, **{**self.changes, **changes})
    process = subprocess.Popen([*before, TRAIN, config, *flags], cwd=self.folder, text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, preexec_fn=default_signals)
    self.addCleanup(lambda: (process.kill(), process.communicate()))
    return process

  def wait_for(self, process, what, pause=0.002):
    """Until what() is true; a failure if the process ends before or it takes too long."""
    end = time.monotonic() + PATIENCE
    while not what():
      if process.poll() is not None or time.monotonic() > end:
        process.kill()
        self.fail(f"exit {process.poll()} before: {process.communicate()}")
      time.sleep(pause)

  def lines(self, kind="train", run="tiny"):
    """Of a run under way: the last line may be half written."""
    try:
      text = self.text_of("runs", run, "metrics.jsonl")
    except FileNotFoundError:
      return []
    entries = [json.loads(line) for line in text.split("\n")[:-1]]
    return [entry for entry in entries if entry["type"] == kind]

  def steps(self, run="tiny"):
    return sorted(int(name[5:]) for name in os.listdir(self.path("runs", run)) if name.startswith("step_"))

  def state(self, step, run="tiny"):
    return self.json_of(self.checkpoint(step, "state.json", run=run))

  def outcome(self, step=40, run="tiny"):
    """What must be the same however often a run was interrupted."""
    return self.steady(run), [self.digest(self.checkpoint(step, name, run=run)) for name in FILES[:3]]

  def digest(self, path):
    return hashlib.sha256(self.bytes_of(path)).hexdigest()  # unittest takes minutes to describe megabytes that differ

  def run_digests(self):
    return {name: hashlib.sha256(content).hexdigest() for name, content in self.run_files().items()}

  def straight(self, *flags, step=40, **changes):
    """The outcome of a run that nothing interrupts."""
    self.run_ok(*flags, name="straight", **changes)
    return self.outcome(step, "straight")

  def under_way(self, *flags, lines=10, **changes):
    """As start, then waits until the run has written more than `lines` lines of training."""
    process = self.start(*flags, **changes)
    self.wait_for(process, lambda: len(self.lines(run=changes.get("name", "tiny"))) > lines)
    return process

  def ended(self, process, seconds=PATIENCE):
    """The exit code of a process that must end by itself or has been killed, and what it has said."""
    output, errors = process.communicate(timeout=seconds)
    self.assertNotRegex(errors, CRASH)
    return process.returncode, output, errors

  def stop(self, process, sign=signal.SIGTERM):
    """Sends the signal, of which the run must end without an error; returns its output."""
    process.send_signal(sign)
    code, output, errors = self.ended(process)
    self.assertEqual((code, errors), (-sign, ""))
    return output

  def write_start_with_nan(self):
    """Leaves start/model.safetensors, the weights of a step except for one number of h.1.ln_2.weight."""
    self.run_ok(name="first", train__steps=1)
    tensors = read_safetensors(self.model("first", 1))
    dtype, shape, data = tensors["h.1.ln_2.weight"]
    tensors["h.1.ln_2.weight"] = (dtype, shape, data[:8] + struct.pack("<f", math.nan) + data[12:])
    write_safetensors(self.path("start/model.safetensors"), tensors)

  def kill_while_saving(self, *flags, **changes):
    """Leaves runs/tiny as it is when a run is killed while it writes step 20."""
    half = self.path("runs/tiny/.tmp_step_00000020")
    for _ in range(10):
      shutil.rmtree(self.path("runs/tiny"), ignore_errors=True)
      process = self.start(*flags, **changes)
      self.wait_for(process, lambda: os.path.exists(half), pause=0)
      process.kill()
      self.assertEqual(self.ended(process)[0], -signal.SIGKILL)
      if os.path.exists(half) and self.steps() == [10]:  # neither before it began nor after it was renamed
        return
    self.fail("the checkpoint was never met under way")

  def kill_at_random_moments(self, *flags, seed, longest, kill, codes, errors):
    """Resumes a run and calls kill(process, random) at random moments, until it must end and be as if nothing happened.
    longest: to the next kill, as a share of a whole run; codes and errors: exit codes and error texts (a pattern) that
    are allowed."""
    kills = 30 if os.environ.get("FULL") else 8
    changes = {"model__channels": 32, "model__mlp_ratio": 16.0, "train__steps": 120, "checkpoint__every": 4,
               "checkpoint__keep": 2, "eval__every": 6}
    began = time.monotonic()
    expected = self.straight(*flags, step=120, **changes)
    duration = time.monotonic() - began
    chance = random.Random(seed)
    while kills > 0:
      process = self.start(*flags, "--resume", **changes)
      try:
        process.wait(chance.uniform(0.01, duration * longest))
      except subprocess.TimeoutExpired:
        kills -= 1
        kill(process, chance)
      said = process.communicate(timeout=PATIENCE)[1]
      self.assertIn(process.returncode, codes, said)
      self.assertRegex(said, errors)
      if process.returncode == 0 and kills > 0:  # done before the kills are: once more
        self.assertEqual(self.outcome(120), expected)
        shutil.rmtree(self.path("runs/tiny"))
    self.run_ok(*flags, "--resume", **changes)
    self.assertEqual(self.outcome(120), expected)


class RankRuns(Runs):
  """Runs of several ranks. A step has 128 tokens: 4 micro batches, so 1, 2 or 4 ranks."""

  def setUp(self):
    super().setUp()
    self.changes.update(batch__tokens=128, optimizer__lr=1e-3)  # low, because training amplifies rounding

  def assert_close(self, found, expected, bound, at=""):
    """Equal up to rounding: of a float, relative to it or to 1; of an array of floats, as bytes, to the largest."""
    if isinstance(expected, dict):
      self.assertEqual(found.keys(), expected.keys(), at)
      for key in expected:
        self.assert_close(found[key], expected[key], bound, f"{at}.{key}")
    elif isinstance(expected, list):
      self.assertEqual(len(found), len(expected), at)
      for number, pair in enumerate(zip(found, expected)):
        self.assert_close(*pair, bound, f"{at}[{number}]")
    elif isinstance(expected, bytes) and bound > 0:
      found, expected = ([x for x in floats(data) if x == x] for data in (found, expected))
      self.assertEqual(len(found), len(expected), at)
      self.assertLessEqual(max(abs(x - y) for x, y in zip(found, expected)), bound * max(map(abs, expected)), at)
    elif isinstance(expected, float):
      self.assertLessEqual(abs(found - expected), bound * max(1, abs(expected)), at)
    else:
      self.assertEqual(found, expected, at)

  def impatient(self, seconds):
    self.set("PLUSGPT_TIMEOUT", seconds)

  def ranks(self):
    """rank -> process id, of the running ranks that this test has started with --gpus or by hand."""
    found = {}
    for process in filter(str.isdigit, os.listdir("/proc")):
      try:
        with open(f"/proc/{process}/comm") as name:
          rank = re.fullmatch(r"train rank (\d+)\n", name.read())
        if rank and os.readlink(f"/proc/{process}/cwd") == os.path.realpath(self.folder):
          found[int(rank[1])] = int(process)
      except OSError:  # it has ended, or is another user's
        pass
    return found

  def ended(self, process, seconds=PATIENCE):
    """As Runs.ended; also none of its ranks may be left."""
    said = super().ended(process, seconds)
    self.assertEqual(self.ranks(), {})
    return said

  def started_by_hand(self, environments, *flags, **changes):
    """Starts a process in each environment, as torchrun, mpirun and srun do."""
    keep = {key: value for key, value in os.environ.items()
            if not re.match("RANK$|WORLD_SIZE$|LOCAL_RANK$|MASTER_|MPI_|OMPI_|PMIX?_|SLURM_|TORCHELASTIC_", key)}
    processes = []
    for environment in environments:
      with mock.patch.dict(os.environ, {**keep, **environment}, clear=True):
        processes.append(self.start(*flags, **changes))
    return processes


def torchrun(ranks):
  """The environment of each of `ranks` ranks on this machine, as torchrun sets it, with a free port."""
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = str(free.getsockname()[1])
  return [{"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
           "MASTER_PORT": port} for rank in range(ranks)]
