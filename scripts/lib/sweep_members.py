"""The members of a sweep: what they are called, which are complete, and whether they may be pooled."""
from __future__ import annotations
import dataclasses
import functools
import glob
import hashlib
import itertools
import json
import math
import os
import re
import subprocess
import sys

from lib import metrics, variants
from lib.common import UserError, nested, rows
from lib.sweep_file import only_evaluates

NAME_BYTES = 200  # of a run's name, which ./train limits


@dataclasses.dataclass(frozen=True)
class Member:
  """A run of the sweep."""
  name: str
  labels: dict[str, str]  # by axis
  seed: int
  settings: dict[str, str]
  trained: Member | None = None  # the one whose weights this one evaluates, if it has none of its own

  def title(self):
    return ", ".join(self.labels.values()) + f", seed {self.seed}"

  def folder(self):
    return os.path.join("runs", self.name)


def flags_of(sweep, member):
  """Of ./train."""
  settings = {"name": member.name, "seed": member.seed, **member.settings}
  pairs = [f"{key}={value}".replace("{seed}", str(member.seed)) for key, value in settings.items()]
  return [sweep["config"], *(word for pair in pairs for word in ("--set", pair))]


@functools.cache
def known_rows(program, *flags):
  return rows(program, *flags)


# --------------------------------------------------------------------------------------------------------------- names

def short(name, room):
  """The name if it has at most `room` bytes, else its beginning and a hash of all of it."""
  if len(name.encode()) <= room:
    return name
  ending = "." + hashlib.sha256(name.encode()).hexdigest()[:8]
  return name.encode()[:room - len(ending)].decode(errors="ignore") + ending


def identity(found, evaluates):
  """Of ./train's rows, those that make a run another one: the values that are given and may not
  change while it continues. evaluates: and those of its evaluations."""
  def counts(key, origin):
    if key == "seed" or origin in ("default", "default; may change"):
      return False
    return not origin.endswith("; may change") or evaluates and only_evaluates(key)

  given = {key: value for key, (value, origin) in found.items() if counts(key, origin)}
  return hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()[:8]


def evaluated_otherwise(name, found):
  """Whether a run made all its steps, but was evaluated with other settings than those found."""
  run = read_run(name)
  if not run or not run.last() or not made_all_steps(run):
    return False
  settings = metrics.flat(nested(found))
  was = metrics.flat(run.config_of(run.last()))
  return any(was.get(key, value) != value for key, value in settings.items()
             if only_evaluates(key) and key != "eval.batch")


def members_of(program, sweep):
  """Seed by seed, so that a sweep that is not finished is a whole one with fewer seeds."""
  trainings = {}  # {seed and hash: name}

  def found(settings, seed):
    seed = seed if any("{seed}" in value for value in settings.values()) else sweep["seeds"][0]
    return known_rows(program, *flags_of(sweep, Member("sweep", {}, seed, settings)))

  def run_of(labels, seed, settings, trained=None):
    end = f"_{seed}_{identity(found(settings, seed), trained)}"
    stem = "_".join([sweep["name"], *(re.sub(r"[^\w.+-]+", "-", label) for label in labels)])
    name = short(stem, NAME_BYTES - len(end)) + end
    if not os.path.isdir(os.path.join("runs", name)):  # it may have been made under other labels
      there = glob.glob(os.path.join("runs", glob.escape(sweep["name"]) + "_*" + end))
      name = os.path.basename(min(there, default=name))
      name = name if trained else trainings.setdefault(end, name)
    return Member(name, dict(zip(sweep["axes"], labels)), seed, settings, trained)

  own = {key: value for key, value in sweep["own_set"].items() if only_evaluates(key)}
  members = []
  for seed, labels in itertools.product(sweep["seeds"], itertools.product(*sweep["axes"].values())):
    settings = dict(sweep["set"])
    for axis, label in zip(sweep["axes"], labels):
      settings.update(sweep["axes"][axis][label])
    trains = {key: value for key, value in settings.items() if not only_evaluates(key)}
    run = run_of(labels, seed, {**trains, **own})
    other = run.settings != settings or evaluated_otherwise(run.name, found(run.settings, seed))
    members.append(run_of(labels, seed, settings, run) if other else run)
  by_name = {}
  for member in members:
    if (other := by_name.setdefault(member.name, member)) is not member:
      raise UserError(f"{other.title()} and {member.title()} have the same settings; leave out one of "
                      "them, or a --set")
  return members


# ------------------------------------------------------------------------------------------------------------ outcomes

def read_run(name):
  try:
    return metrics.Run(os.path.join("runs", name))
  except OSError:
    return None


def made_all_steps(run):
  return bool(run and run.lines) and run.lines[-1]["step"] == run.steps()


def outcome(member):
  """("complete" or "diverged", the run, why it has diverged), or None for a run that is to be
  trained or evaluated."""
  if member.trained and (found := outcome(member.trained)) and found[0] == "diverged":
    return found
  run = read_run(member.name)
  if not run or member.trained and is_stale(run, member):
    return None
  lengths = metrics.numbers(metrics.section(run.config, "eval").get("lengths"))
  if not lengths or not run.steps():
    return None
  if "diverged" in (note := variants.read_note(run.folder)):
    return "diverged", run, str(note["diverged"])
  if run.step() != run.steps() or not {*lengths} <= metrics.evaluated(run).keys():
    return None
  why = metrics.judged(run)
  return ("diverged" if why else "complete"), run, why


def is_stale(run, member):
  """Whether the weights that were evaluated are gone, or were trained again since."""
  base = read_run(member.trained.name)
  evaluated = [row.get("time") or 0 for row in metrics.evaluated(run).values()]
  return not base or (metrics.finite(base.start.get("time")) or 0) > max(evaluated, default=math.inf)


# -------------------------------------------------------------------------------------------------------------- checks

def check_settings(program, sweep, members, files):
  """Ends the script if ./train refuses the settings of a run, or would not evaluate it. files: or if
  those of an evaluation, read only after hours of training, are missing."""
  for member in members:
    found = nested(known_rows(program, *flags_of(sweep, member)))
    if not found["eval"]["every"]:
      raise UserError("eval.every = 0: no run would be evaluated; give --set eval.every=N with N above "
                      "0 (the last step always is)")
    if member.trained and not found["checkpoint"]["at_end"]:
      raise UserError("checkpoint.at_end = false: eval.* keys evaluate the last checkpoint; give "
                      "--set checkpoint.at_end=true")
    for key in ("val", "val_labels") if files and member.trained else ():
      for pattern in found.get("data", {}).get(key, []):
        if not os.path.exists(pattern) and not glob.glob(os.path.expanduser(pattern)):
          raise UserError(f"{member.title()}: data.{key}: no file is called {pattern}")


def changed(program, sweep, member):
  """The settings whose files were made again since the member's run was made, as "KEY = VALUE"."""
  run, flags = read_run(member.name), flags_of(sweep, member)
  if not run or not run.start:
    return ""
  command = [os.path.abspath(program), *flags, "--print-identity"]
  done = subprocess.run(command, capture_output=True, text=True)
  if done.returncode:  # new runs cannot read them either
    say_once(f"the data of complete runs cannot be read, nor compared with theirs: {done.stderr.strip()}")
    return ""
  now = json.loads(done.stdout)
  was, known = run.contents, metrics.contents(now)
  keys = [key for key in was if metrics.UNKNOWN not in (was[key], known[key]) and was[key] != known[key]]
  files = [file for key in ("data.val", "data.val_labels") for file in now.get(key, [])]
  val = {(file["tokens"], file["xxh64"]) for file in files}
  used = [file for row in metrics.evaluated(run).values() for file in row["of.data"]]
  if {(file["tokens"], str(file["xxh64"])) for file in used} - val:
    keys += ["data.val", *["data.val_labels"] * ("data.val_labels" in now)]
  settings = metrics.flat(nested(known_rows(program, *flags))) if keys else {}
  return " or ".join(f"{key} = {settings.get(key)}" for key in keys)


@functools.cache
def say_once(text):
  print(f"sweep.py: {text}", file=sys.stderr, flush=True)


def check_contents(program, sweep, members):
  """Ends the script if losses of a run that is there are not to be pooled with those of new runs."""
  every = {each.name: each for member in members for each in (member.trained, member) if each}
  for member in every.values():
    if keys := changed(program, sweep, member):
      raise UserError(f"runs/{member.name} was made with another content of {keys}: a file was made "
                      "again since. Train all runs again (--overwrite), restore the file, or give "
                      "the new one, or the sweep, another name")
