"""Runs the members of a sweep, several at once. Each writes what ./train prints to runs/NAME.log."""
from __future__ import annotations
import ctypes
import os
import re
import shlex
import signal
import subprocess
import time

from lib import variants
from lib.common import Progress, UserError
from lib.sweep_members import flags_of, outcome

STOPS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP  # at which ./train saves, and then dies of them
WAITS = 60  # seconds that the run of a killed sweep may take to save


def places(jobs):
  """Of each job: the variables and settings that give it a GPU of its own, or its share of the cores."""
  if jobs == 1:
    return [({}, [])]
  visible = os.environ.get("CUDA_VISIBLE_DEVICES")
  if visible is None:
    try:
      listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    except OSError:
      listed = ""
    visible = ",".join(re.findall(r"^GPU (\d+)", listed, re.MULTILINE))
  gpus = [gpu for gpu in visible.split(",") if gpu]
  if gpus and jobs > len(gpus):
    raise UserError(f"--jobs {jobs}: there are {len(gpus)} GPUs, and each run needs one; use --jobs "
                    f"{len(gpus)}, or CUDA_VISIBLE_DEVICES= for a build for the CPU")
  if gpus:
    return [({"CUDA_VISIBLE_DEVICES": gpu}, []) for gpu in gpus[:jobs]]
  cores = len(os.sched_getaffinity(0))
  return [({}, ["--set", f"threads={max(1, cores // jobs)}"])] * jobs


def end_with_parent():
  """In ./train before it starts: it saves and ends if this script is killed."""
  ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


class Run:
  """./train at work on a member."""

  def __init__(self, program, sweep, member, overwrite, place):
    how = ["--overwrite" if overwrite else "--resume"]
    if member.trained:
      how = ["--eval", "--resume", member.trained.folder()]
    flags = flags_of(sweep, member) + place[1] * ("threads" not in member.settings)
    self.command = [os.path.abspath(program), *flags, *how]
    self.member, self.variables, self.log = member, place[0], f"{member.folder()}.log"
    self.attempts, self.first = 0, None
    os.makedirs("runs", exist_ok=True)
    self.start()

  def start(self):
    self.began = time.monotonic()
    with open(self.log, "wb") as log:
      self.process = subprocess.Popen(
          self.command, stdout=log, stderr=subprocess.STDOUT, preexec_fn=end_with_parent,
          env={**os.environ, **self.variables})

  def said(self, last=None):
    with open(self.log, "rb") as log:
      log.seek(max(0, os.path.getsize(self.log) - last) if last else 0)
      return log.read().decode(errors="replace").strip()

  def ended(self, stopping):
    """Its exit code, or None. While the run of a killed sweep saves, it is tried again."""
    code = self.process.poll()
    if code != 2 or stopping or self.attempts == WAITS or "another process" not in self.said():
      return code
    if time.monotonic() > self.began + 1:
      self.attempts += 1
      self.start()
    return None

  def share(self):
    """How much of the steps that it lacked it has made."""
    steps = re.findall(r"^step +(\d+)/(\d+) ", self.said(4096), re.MULTILINE)
    if not steps:
      return 0
    step, whole = map(int, steps[-1])
    self.first = int(steps[0][0]) - 1 if self.first is None else self.first
    return (step - self.first) / max(1, whole - self.first)


class Lane:
  """A place for runs; chain: the members that are next there."""

  def __init__(self, place):
    self.place, self.chain, self.run = place, [], None


class Runs:
  """Members that are run. failed: {name: why}; ended: how many; signal: the one that stopped it, or 0."""

  def __init__(self, program, sweep, members, overwrite):
    self.program, self.sweep, self.overwrite = program, sweep, overwrite
    self.lanes, self.failed, self.left, self.ended, self.signal = [], {}, [*members], 0, 0

  def stop(self, number, frame=None):
    """To all members, which save. A signal that comes again reaches them again, and ends them."""
    self.signal = self.signal or number
    for lane in self.lanes:
      if lane.run:
        lane.run.process.send_signal(number)

  def run(self, jobs):
    self.lanes = [*map(Lane, places(jobs))]
    self.total, self.shown = len(self.left), 0
    self.progress = Progress(1000 * self.total, unit="runs/h", of=1000 / 3600)
    chains = {}  # members that need one training, one after another
    for member in self.left:
      chains.setdefault((member.trained or member).name, []).append(member)
    before = {number: signal.getsignal(number) for number in STOPS}
    for number in STOPS:
      if number != signal.SIGHUP or before[number] != signal.SIG_IGN:  # as under nohup
        signal.signal(number, self.stop)
    try:
      self.work([*chains.values()])
    finally:
      for number in STOPS:
        signal.signal(number, before[number])
    self.progress.end()

  def work(self, waiting):
    told = 0
    while True:
      for lane in self.lanes:
        if lane.run and (code := lane.run.ended(self.signal)) is not None:
          self.end(lane.run, code)
          lane.run = None
        while not lane.run and not self.signal and (lane.chain or waiting):
          lane.chain = lane.chain or waiting.pop(0)
          self.begin(lane, lane.chain.pop(0))
      running = [lane.run for lane in self.lanes if lane.run]
      if not running:
        return
      time.sleep(0.02)
      if time.monotonic() > told + 0.5:
        told = time.monotonic()
        made = 1000 * (self.ended + sum(run.share() for run in running))
        self.progress.add(made - self.progress.done)

  def begin(self, lane, member):
    self.shown += 1
    if member.trained and (outcome(member.trained) or "-")[0] != "complete":
      self.left.remove(member)
      self.ended += 1
      return  # it has nothing to evaluate
    self.progress.say(f"{self.shown}/{self.total}: {member.title()}")
    if self.overwrite and os.path.exists(note := variants.note_file(member.folder())):
      os.remove(note)
    lane.run = Run(self.program, self.sweep, member, self.overwrite, lane.place)
    if self.signal:  # it came before the lane had the run
      self.stop(self.signal)

  def end(self, run, code):
    member, said = run.member, run.said()
    last = (said.splitlines() or ["no output"])[-1]
    if code == 1 and "training has diverged" in said:
      why = last.partition(": training has diverged")[0]
      variants.write_note(member.folder(), diverged=why)
    found = outcome(member) if code in (0, 1) or -code in STOPS else None
    self.ended += 1
    if found:
      self.left.remove(member)
      if found[0] == "diverged":
        self.progress.say(f"{member.title()} diverged: {found[2]}")
    elif -code in STOPS and not self.signal:  # this run alone was stopped
      self.stop(-code)
    elif not self.signal:
      lacks = "it lacks a finite validation loss at some of eval.lengths"
      self.failed[member.name] = why = f"exit code {code}: {last}" if code else lacks
      command = shlex.join(run.command)
      self.progress.say(f"runs/{member.name} failed: {why}\n{command} (see {run.log})")
