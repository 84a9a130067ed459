#!/usr/bin/env python3
"""Trains one run for each combination of a sweep's axes and seeds, and compares them.

    python3 scripts/sweep.py configs/sweeps/lr.json [--size gpu] [--axis KEY=A,B]... [--seeds 1,2,3]
                             [--set key=value]... [--plan | --table] [--overwrite] [--results FILE] [--picture FILE]

docs/comparing.md says what a sweep file holds, which runs are made, repeated and called diverged, and what the charts
show. Runs ./train ($TRAIN if set) for each combination, all of them with the first seed before any with the second.
Prints the losses, mean and 95% interval over the seeds, and paired differences to the first row. --results keeps all of
it [runs/SWEEP.json]; --picture draws it [runs/SWEEP.png]. Ctrl-C ends the sweep once the run has saved.
"""
from __future__ import annotations
import argparse
import ctypes
import dataclasses
import functools
import glob
import hashlib
import importlib.util
import itertools
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time

from lib import drawing, metrics, results, section_sweep, variants
from lib.common import (ArgumentParser, UserError, check_output, die_of_interrupt, nested, read_json, rows,
                        run as run_main)

STOPPED = {-signal.SIGINT, -signal.SIGTERM, 128 + signal.SIGINT, 128 + signal.SIGTERM}  # exit codes

NAME_BYTES = 200  # of a run's name, which ./train limits


@dataclasses.dataclass(frozen=True)
class Member:
  """A run of the sweep."""
  name: str
  labels: dict[str, str]  # by axis
  seed: int
  settings: dict[str, str]
  trained: Member | None = None  # the one whose weights this one evaluates, if it has none of its own


# ---------------------------------------------------------------------------------------------------------- the file

def text(value):
  return value if isinstance(value, str) else json.dumps(value)


def meaning(value):
  """Equal for values that a setting takes for the same: 1e-3 and 0.001."""
  try:
    found = json.loads(text(value))
    return float(found) if type(found) in (int, float) else json.dumps(found)
  except (ValueError, OverflowError):
    return text(value)


def spelling(label):
  """The one of a number that all its spellings have: 0.02 of 2e-2."""
  value = meaning(label)
  if not isinstance(value, float) or not math.isfinite(value) or re.fullmatch(r"-?\d+", label):
    return label
  return text(int(value) if value.is_integer() else value)


def different(values):
  return isinstance(values, list) and 0 < len(values) == len(set(map(meaning, values)))


def is_axis(values):
  return different(values) or isinstance(values, dict) and values and {*map(type, values.values())} == {dict}


IS_NAME = lambda value: results.TEXT[0](value) and re.fullmatch(r"[\w.+-]+", value)
NAME = IS_NAME, "a text of letters, digits and _ . + -"
ENTRIES = {  # of a sweep's file, and of each of its sizes: whether a value is good, and what it must be
    "_": (lambda value: True, ""),
    "name": NAME,
    "config": results.TEXT,
    "set": (lambda value: isinstance(value, dict), "an object {key: value}"),
    "axes": (lambda value: isinstance(value, dict), "an object of axes"),
    "seeds": (lambda value: results.WHOLES[0](value) and different(value), "a list of different whole numbers, from 0"),
    "chart": results.CHART,
    "best_of": results.TEXT,
    "sizes": (lambda value: isinstance(value, dict) and all(map(NAME[0], value)), "an object of sizes, by name"),
}


def checked(path, entries):
  if not isinstance(entries, dict):
    raise UserError(f"{path}: must be a JSON object with entries of {', '.join(ENTRIES)}")
  for key, value in entries.items():
    if key not in ENTRIES:
      raise UserError(f"{path}: {key}: must be one of {', '.join(ENTRIES)}")
    good, what = ENTRIES[key]
    if not good(value):
      raise UserError(f"{path}: {key}: must be {what}, not {json.dumps(value)[:40]}")
  return entries


def texts_of(values):
  return {key: text(value) for key, value in values.items()}


def axes_of(path, sweep, given):
  """({axis: {label: {key: text}}} with --axis applied, the same with the labels of the file beside these)."""
  own = {}
  for axis, values in sweep["axes"].items():
    if not is_axis(values):
      raise UserError(f"{path}: axes: {axis}: must be a list of different values, or an object {{label: {{key: "
                      f"value}}}}, not {json.dumps(values)[:40]}")
    named = values if isinstance(values, dict) else {text(value): {axis: value} for value in values}
    own[axis] = {label: texts_of(chosen) for label, chosen in named.items()}  # of a list, the values are labels
  axes = dict(own)
  for axis, labels in given:
    known = own.get(axis) if isinstance(sweep["axes"].get(axis), dict) else None
    if not different(labels):
      raise UserError(f"--axis {axis}: must be a list of different values")
    spelt = {} if known else {meaning(label): label for label in own.get(axis, {})}  # 3e-3 is the file's 0.003
    more = [label[1:] for label in labels if label.startswith("+")]  # beside those of the file
    if more and axis not in axes:
      raise UserError(f"--axis {axis}=+{more[0]}: + adds to an axis, and {path} has {', '.join(own)}")
    labels = [*axes.get(axis, []), *labels] if more else labels
    labels = dict.fromkeys(spelt.get(meaning(label), label if known else spelling(label))
                           for label in (label.removeprefix("+") for label in labels))
    if known and more:
      shared = set.intersection(*map(set, known.values()))
      if len(shared) != 1:
        raise UserError(f"--axis {axis}=+{more[0]}: its labels do not have one key in common; add it to the file")
      known = {**{label: dict.fromkeys(shared, label) for label in more}, **known}
    if known and (unknown := [label for label in labels if label not in known]):
      raise UserError(f"--axis {axis}: {unknown[0]} is not one of {', '.join(known)}")
    axes[axis] = {label: known[label] if known else {axis: label} for label in labels}
  return axes, {axis: {**own.get(axis, {}), **chosen} for axis, chosen in axes.items()}


def read_sweep(path, arguments):
  """The sweep with the size and the flags applied; axes as {axis: {label: {key: text}}}."""
  sweep = checked(path, read_json(path, "the JSON of a sweep"))
  sizes = sweep.pop("sizes", {})
  if arguments.size and arguments.size not in sizes:
    raise UserError(f"--size {arguments.size}: {path} has {', '.join(sizes) or 'no sizes'}")
  size = checked(f"{path}: sizes: {arguments.size}", sizes[arguments.size]) if arguments.size else {}
  own_set = texts_of({**sweep.get("set", {}), **size.get("set", {})})
  stem = os.path.splitext(os.path.basename(path))[0]
  own_axes, size_axes = sweep.get("axes", {}), size.get("axes", {})
  selected = {axis: [*map(text, labels)] for axis, labels in size_axes.items()
              if isinstance(labels, list) and isinstance(own_axes.get(axis), dict)}
  sweep = {"name": stem, "config": "configs/quickstart.json", "seeds": [1337], "chart": "lines", "best_of": "",
           **sweep, **size, "axes": {**own_axes, **size_axes, **{axis: own_axes[axis] for axis in selected}}}
  sweep = checked(path, {**sweep, "set": {**own_set, **dict(arguments.set)}})
  sweep["seeds"] = arguments.seeds or sweep["seeds"]
  sweep["config"] = arguments.config or sweep["config"]
  if os.path.isdir(sweep["config"]):
    sweep["config"] = os.path.join(sweep["config"], "config.json")
  axes, names = axes_of(path, sweep, [*selected.items(), *arguments.axis])
  if not axes:
    raise UserError(f"{path}: axes: name at least one, with values")
  if sweep["best_of"] and sweep["best_of"] not in [*axes][sweep["chart"] != "lengths":]:
    raise UserError(f"{path}: best_of: {sweep['best_of']} is not one of the axes that make rows")
  own = {key for values in axes.values() for chosen in values.values() for key in chosen}
  if taken := sorted(own & {"name", "seed"}):
    raise UserError(f"{path}: axes: {taken[0]}: the sweep itself gives each run a {taken[0]}; " + (
        'list the seeds in "seeds", or with --seeds' if taken[0] == "seed" else "remove it"))
  own |= {"name", "seed"}
  own |= {"attention.kind"} if "attention.variant" in own else set()
  base = {key for key in own_set if only_evaluates(key)}  # of the trained runs; an axis may ask others
  whole = {key for values in axes.values() for key in set.intersection(*map(set, values.values()))}
  beaten = whole - dict(arguments.set).keys() - base - {"attention.kind"}  # an axis wins over what the file sets
  own_set, sweep["set"] = ({key: value for key, value in settings.items() if key not in beaten}
                           for settings in (own_set, sweep["set"]))
  if mine := sorted(own & (set(sweep["set"]) - base | dict(arguments.set).keys())):
    raise UserError(f"--set {mine[0]}={sweep['set'][mine[0]]}: the sweep sets {', '.join(sorted(own))} itself; "
                    "use --axis and --seeds")
  return {**sweep, "size": arguments.size or "", "axes": axes, "own_set": own_set, "names": names}


def short(name, room):
  """The name if it has at most `room` bytes, else its beginning and a hash of all of it."""
  if len(name.encode()) <= room:
    return name
  return name.encode()[:room - 9].decode(errors="ignore") + "." + hashlib.sha256(name.encode()).hexdigest()[:8]


def only_evaluates(key):
  return key in ("data.val", "data.val_labels") or key.startswith("eval.") and key != "eval.every"


def identity(found, evaluates):
  """Of ./train's rows, those that make a run another one: the values that are given and may not change while it
  continues. evaluates: and those of its evaluations."""
  def counts(key, origin):
    if key == "seed" or origin in ("default", "default; may change"):
      return False
    return not origin.endswith("; may change") or evaluates and only_evaluates(key)

  given = {key: value for key, (value, origin) in found.items() if counts(key, origin)}
  return hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()[:8]


def evaluated_otherwise(name, found):
  """Whether a run made all its steps, but was evaluated with other settings than those of ./train's rows."""
  run = trained(name) and read_run(name)
  if not run or not run.own:
    return False
  was = {part: metrics.section(run.own.config, part) for part in ("eval", "data")}
  return any(was[part].get(key, value) != value for part in was for key, value in nested(found).get(part, {}).items()
             if only_evaluates(f"{part}.{key}") and key != "batch")


def members_of(program, sweep):
  """Seed by seed, so that a sweep that is not finished is a whole one with fewer seeds."""
  if not os.path.isfile(sweep["config"]):
    raise UserError(f"{sweep['config']}: No such file")
  rows_of = functools.cache(lambda *command: rows(program, *command))

  def found(chosen, seed):
    seed = seed if any("{seed}" in value for value in chosen.values()) else sweep["seeds"][0]
    return rows_of(*command_of(sweep, Member("sweep", {}, seed, chosen)))

  def run_of(labels, seed, chosen, trained=None):
    end = f"_{seed}_{identity(found(chosen, seed), trained)}"
    stem = "_".join([sweep["name"], *(re.sub(r"[^\w.+-]+", "-", label) for label in labels)])
    name = short(stem, NAME_BYTES - len(end)) + end
    if not os.path.isdir(os.path.join("runs", name)):  # made under labels that were spelt in another way
      there = glob.glob(os.path.join("runs", glob.escape(sweep["name"]) + "_*" + end))
      name = os.path.basename(min(there)) if there else name
    return Member(name, dict(zip(sweep["axes"], labels)), seed, chosen, trained)

  def settings_with(labels):
    result = dict(sweep["set"])
    for axis, label in zip(sweep["axes"], labels):
      result.update(sweep["names"][axis][label])
    return result

  def training(settings):
    trains = {key: value for key, value in settings.items() if not only_evaluates(key)}
    evaluates = {key: value for key, value in sweep["own_set"].items() if only_evaluates(key)}
    return {**trains, **evaluates}

  first = {}  # the labels that name the run of these settings, whatever --axis selects
  for labels in itertools.product(*sweep["names"].values()):
    first.setdefault(json.dumps(training(settings_with(labels)), sort_keys=True), labels)
  result = []
  for seed, labels in itertools.product(sweep["seeds"], itertools.product(*sweep["axes"].values())):
    chosen = settings_with(labels)
    own = training(chosen)
    run = run_of(labels if own == chosen else first[json.dumps(own, sort_keys=True)], seed, own)
    other = own != chosen or evaluated_otherwise(run.name, found(own, seed))
    result.append(run_of(labels, seed, chosen, run) if other else run)
  by_name = {}
  for member in result:
    check_same(by_name.setdefault(member.name, member), member)
  return result


def check_same(one, other):
  if one is not other:
    raise UserError(f"{title(one)} and {title(other)} have the same settings; leave out one of them, or a --set")


def with_complete(program, sweep, members, path):
  """(the sweep, its members) with the runs that the results in the file hold too, and that are complete."""
  try:
    known = results.read(path)
  except UserError:  # none, or of another kind
    return sweep, members
  if any(known[key] != sweep[key] for key in ("name", "size", "config", "set", "chart", "best_of")) or (
      known["axes"].keys() != sweep["axes"].keys()):
    return sweep, members
  names = {axis: {**settings, **{label: {axis: label} for label in known["axes"][axis]
                                 if label not in settings and axis in next(iter(settings.values()))}}
           for axis, settings in sweep["names"].items()}
  axes = {axis: [label for label in names[axis] if label in (*sweep["axes"][axis], *known["axes"][axis])]
          for axis in names}
  wide = {**sweep, "axes": axes, "names": names, "seeds": [*dict.fromkeys([*known["seeds"], *sweep["seeds"]])]}
  mine = {member.name for member in members}
  try:
    found = [member for member in members_of(program, wide) if member.name in mine or outcome(member)]
  except UserError:  # some combination that is no run
    return sweep, members
  contents = Contents(program)
  for member in [member for member in found if member.name not in mine]:
    if changed := contents.changed(wide, member) or member.trained and contents.changed(wide, member.trained):
      print(f"sweep.py: runs/{member.name} is left out of the results: it was made with another content of {changed}",
            file=sys.stderr, flush=True)
      found.remove(member)
  wide["axes"] = {axis: [label for label in axes[axis] if label in {member.labels[axis] for member in found}]
                  for axis in axes}
  wide["seeds"] = [seed for seed in wide["seeds"] if seed in {member.seed for member in found}]
  return wide, found


# ---------------------------------------------------------------------------------------------------------- the runs

def read_run(name):
  try:
    return metrics.Run(os.path.join("runs", name))
  except OSError:
    return None


def outcome(member):
  """("complete" or "diverged", the run, why it has diverged), or None for a run that is to be trained or evaluated."""
  if member.trained and (found := outcome(member.trained)) and found[0] == "diverged":
    return found
  run, base = read_run(member.name), member.trained and read_run(member.trained.name)
  if member.trained and run and (not base or (metrics.finite(base.start.get("time")) or 0) > max(
      (e.time or 0 for e in metrics.evaluated(run).values()), default=math.inf)):
    return None  # its weights are gone, or were trained again since
  lengths = run and metrics.numbers(metrics.section(run.config, "eval").get("lengths"))
  if not lengths or not run.steps():
    return None
  if "diverged" in (note := variants.read_note(run.folder)):
    return "diverged", run, str(note["diverged"])
  if run.step() != run.steps() or any(length not in metrics.evaluated(run) for length in lengths):
    return None
  why = metrics.judged(run)
  return ("diverged" if why else "complete"), run, why


def trained(name):
  """Whether the run has made all its steps, so that continuing it would change nothing."""
  run = read_run(name)
  return bool(run and run.lines) and run.lines[-1]["step"] == run.steps()


def duration(seconds):
  if seconds >= 5400:
    return f"{seconds / 3600:.1f} h"
  return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{max(seconds, 1):.0f} s"


def title(member):
  return ", ".join(member.labels.values()) + f", seed {member.seed}"


def command_of(sweep, member):
  result = [sweep["config"]]
  for key, value in {"name": member.name, "seed": member.seed, **member.settings}.items():
    result += ["--set", f"{key}={value}".replace("{seed}", str(member.seed))]
  return result


def check(program, sweep, members, files):
  """Ends the script if ./train refuses the settings of a run, would not evaluate it, or if two are the same. files: or
  if those of an evaluation, which are read only after hours of training, are not there."""
  known = {}
  for member in members:
    found = nested(rows(program, *command_of(sweep, member)))
    if not found["eval"]["every"]:
      raise UserError("eval.every = 0: no run would be evaluated; give --set eval.every=N with N above 0 "
                      "(the last step always is)")
    if member.trained and not found["checkpoint"]["at_end"]:
      raise UserError("checkpoint.at_end = false: eval.* keys evaluate the last checkpoint; "
                      "give --set checkpoint.at_end=true")
    for key in ("val", "val_labels") if files and member.trained else ():
      for pattern in found.get("data", {}).get(key, []):
        if not os.path.exists(pattern) and not glob.glob(os.path.expanduser(pattern)):
          raise UserError(f"{title(member)}: data.{key}: no file is called {pattern}")
    found.pop("name", None)
    found["attention"].pop("variant", None)
    same = known.setdefault(json.dumps([found, member.seed], sort_keys=True), member)
    check_same(same, member)


class Contents:
  """What the names of data and weights mean now, beside what the runs that are there began from."""

  def __init__(self, program):
    self.program, self.unknown, self.told = program, [], False

  def changed(self, sweep, member):
    """The setting whose files were made again since the member's run was made, as "KEY = VALUE", or ""."""
    run, command = read_run(member.name), command_of(sweep, member)
    if not run or not run.start:
      return ""
    done = subprocess.run([os.path.abspath(self.program), *command, "--print-identity"], capture_output=True, text=True)
    if done.returncode:  # new runs cannot read them either
      if not self.told:
        print(f"sweep.py: the data of complete runs cannot be read, nor compared with theirs: {done.stderr.strip()}",
              file=sys.stderr, flush=True)
      self.told = True
      return ""
    identity = json.loads(done.stdout)
    was, now = run.contents, metrics.contents(identity)
    if was["data.train"] == metrics.UNKNOWN != now["data.train"] and not member.trained:
      self.unknown.append(member.name)
    changed = [key for key in was if metrics.UNKNOWN not in (was[key], now[key]) and was[key] != now[key]]
    val = {(file["tokens"], file["xxh64"]) for key in ("data.val", "data.val_labels") for file in identity.get(key, [])}
    if any(set(e.shards) - val for e in metrics.evaluated(run).values()):
      changed += ["data.val", *["data.val_labels"] * ("data.val_labels" in identity)]
    settings = metrics.flat(nested(rows(self.program, *command))) if changed else {}
    return " or ".join(f"{key} = {settings.get(key)}" for key in changed)

  def check(self, sweep, members):
    """Ends the script if losses of a run that is there are not to be pooled with those of new runs."""
    for member in {each.name: each for member in members for each in (member.trained, member) if each}.values():
      if changed := self.changed(sweep, member):
        raise UserError(f"runs/{member.name} was made with another content of {changed}: a file was made again since. "
                        "Train all runs again (--overwrite), restore the file, or give the new one, or the sweep, "
                        "another name")
    if self.unknown:
      print(f"sweep.py: {len(self.unknown)} runs are of an older program, which recorded no checksums of data.train "
            f"(runs/{self.unknown[0]}): that they are of the same data is not checked", file=sys.stderr, flush=True)


def end_with_parent():
  """In ./train before it starts: it saves and ends if this script is killed, so that the next can continue the run."""
  ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def train(command):
  """Exit code and output. After Ctrl-C it waits until the program has saved; a second one reaches the program too.
  While the run of a killed sweep saves, it waits for that."""
  for attempt in range(60):
    with tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace") as output:
      program = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, preexec_fn=end_with_parent)
      interrupted = False
      while True:
        try:
          code = program.wait()
          break
        except KeyboardInterrupt:
          interrupted = True
          program.send_signal(signal.SIGINT)
      output.seek(0)
      said = output.read()
    if interrupted or code != 2 or "another process" not in said:
      break
    try:
      time.sleep(1)
    except KeyboardInterrupt:
      interrupted = True
      break
  return -signal.SIGINT if interrupted else code, said


def missing_of(program, sweep, members, overwrite, files):
  """{name: outcome} of the members, and a list of those to train or to evaluate, which pass check()."""
  done = {member.name: None if overwrite else outcome(member) for member in members}
  missing = {}  # each after the one whose weights it evaluates
  for member in (m for m in members if not done[m.name]):
    if member.trained and (overwrite or not outcome(member.trained)):
      missing.setdefault(member.trained.name, member.trained)
    missing.setdefault(member.name, member)
  check(program, sweep, missing.values(), files)
  if not overwrite:
    Contents(program).check(sweep, members)
  return done, [*missing.values()]


def collect(program, sweep, members, overwrite):
  """Trains and evaluates the missing runs. Returns {name: outcome} of all that have one, {name: why} of those that
  failed, and whether Ctrl-C, or a signal to a run, ended the sweep."""
  done, missing = missing_of(program, sweep, members, overwrite, files=True)
  failed, stopped, start = {}, False, time.monotonic()
  for number, member in enumerate(missing):
    left = (time.monotonic() - start) / max(number, 1) * (len(missing) - number)
    until = time.strftime("%H:%M", time.localtime(time.time() + left))
    ends = f", about {duration(left)} left, until {until}" if number else ""
    print(f"{number + 1}/{len(missing)}: {title(member)}{ends}", file=sys.stderr, flush=True)
    name = member.name
    if overwrite and os.path.exists(variants.note_file(os.path.join("runs", name))):
      os.remove(variants.note_file(os.path.join("runs", name)))
    how = ["--overwrite" if overwrite else "--resume"]
    if member.trained:
      found = outcome(member.trained)
      if not found or found[0] == "diverged":
        done[name] = found
        continue
      how = ["--eval", "--resume", os.path.join("runs", member.trained.name)]
    command = [os.path.abspath(program), *command_of(sweep, member), *how]
    code, output = train(command)
    said = (output.strip().splitlines() or ["no output"])[-1]
    if code == 1 and "training has diverged" in output:
      variants.write_note(os.path.join("runs", name), diverged=said.partition(": training has diverged")[0])
    if code in (0, 1) or code in STOPPED:
      done[name] = outcome(member)
    if done.get(name) and done[name][0] == "diverged":
      print(f"diverged: {done[name][2]}", file=sys.stderr, flush=True)
    if code == 0 and not done[name] and (member.trained or trained(name)):
      failed[name] = "it has made all its steps, but lacks a finite validation loss at some of eval.lengths"
    elif code in STOPPED or (code == 0 and not done[name]):  # 0: a program that ends well when it is told to stop
      print(f"sweep.py: stopped in {name}; run this again, without --overwrite, to continue", file=sys.stderr)
      stopped = True
      break
    elif code and not done.get(name):
      failed[name] = f"exit code {code}: {said}"
      print(f"{output}\nsweep.py: {shlex.join(command)} failed with exit code {code}", file=sys.stderr, flush=True)
  return {name: found for name, found in done.items() if found}, failed, stopped


# ---------------------------------------------------------------------------------------------------------- results

def summary(sweep, members, done, failed):
  """All that tables and charts need, as JSON."""
  first, entries = next(iter(done.values()))[1], []
  config = first.config

  def values(section, key):
    found = {metrics.finite(metrics.section(run.config, section).get(key)) for _, run, _ in done.values()}
    return " or ".join(map(str, sorted(found - {None})))

  lengths = {length for _, run, _ in done.values() for length in run.config["eval"]["lengths"]}
  contexts = {context for _, run, _ in done.values() if (context := run.context())}
  for member in members:
    name = member.name
    state, run, why = done.get(name) or ("failed" if name in failed else "missing", None, failed.get(name, ""))
    ended = run and run.step() == run.steps()
    evaluated = {str(n): e for n, e in sorted(metrics.evaluated(run).items())} if ended else {}
    losses = {n: e.loss for n, e in evaluated.items()}
    bits = {n: e.bits_per_byte for n, e in evaluated.items() if e.bits_per_byte}
    shares = {key: {n: share for n, e in evaluated.items() if e.labels and (share := getattr(e, key)) is not None}
              for key in results.SHARES}
    entries.append({"name": name, "labels": member.labels, "seed": member.seed, "state": state, "why": why,
                    "initial": run and metrics.initial_loss(run),
                    "loss": losses.get(str(metrics.main_length(run))) if run else None,
                    "losses": losses, "bits_per_byte": bits, **shares, "clipped": run and metrics.clipped(run)})
  return {"name": sweep["name"], "size": sweep["size"], "config": sweep["config"], "set": sweep["set"],
          "seeds": sweep["seeds"], "axes": {axis: list(values) for axis, values in sweep["axes"].items()},
          "chart": sweep["chart"], "best_of": sweep["best_of"],
          "mode": metrics.section(config, "eval").get("mode", "windows"), "commit": first.start.get("commit"),
          "device": first.start.get("device"), "command": shlex.join(["python3", *sys.argv]),
          "context": first.context(), "contexts": sorted(contexts), "steps": values("train", "steps"),
          "tokens_per_step": values("batch", "tokens"),
          "lengths": sorted(lengths), "runs": entries}


# ---------------------------------------------------------------------------------------------------------- the flags

def distinct(kind, example):
  """The type of an option with values of a kind, separated by commas."""
  def parse(given):
    try:
      values = [kind(value) for value in given.split(",")]
    except ValueError:
      raise argparse.ArgumentTypeError(f"{given!r} is not a list such as {example}")
    if len(set(values)) < len(values):
      raise argparse.ArgumentTypeError(f"{given!r} has a value twice, which would train and count one run twice")
    return values
  return parse


def pair(kind):
  def parse(given):
    key, equals, value = given.partition("=")
    if not equals:
      raise argparse.ArgumentTypeError(f"{given!r} is not KEY=VALUE")
    return key, kind(value)
  return parse


def main():
  parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("sweep", metavar="SWEEP.json", help="configs/sweeps/ has examples")
  parser.add_argument("--size", metavar="NAME", help="one of the sizes in the file")
  parser.add_argument("--config", help="in place of the file's")
  parser.add_argument("--axis", action="append", default=[], type=pair(distinct(str, "1e-3,2e-3")),
                      metavar="KEY=A,B,...")
  parser.add_argument("--seeds", type=distinct(int, "1,2,3"), metavar="N,M,...")
  parser.add_argument("--set", action="append", default=[], type=pair(str), metavar="key=value", help="for every run")
  parser.add_argument("--train", default=os.environ.get("TRAIN", "./train"), help="the program [$TRAIN, else ./train]")
  parser.add_argument("--plan", action="store_true", help="only list the runs, and which of them are complete")
  parser.add_argument("--table", action="store_true", help="only the results of the runs that are complete")
  parser.add_argument("--overwrite", action="store_true", help="train every run anew, complete ones too")
  parser.add_argument("--results", metavar="FILE.json")
  parser.add_argument("--picture", metavar="FILE.png", help=".png, .pdf or .svg")
  arguments = parser.parse_args()
  sweep = read_sweep(arguments.sweep, arguments)
  if arguments.results:  # not after hours of training
    check_output("--results", arguments.results, (arguments.sweep, sweep["config"]))
  if arguments.picture:
    arguments.picture = drawing.picture_path("--picture", arguments.picture)
  members = members_of(arguments.train, sweep)
  if arguments.plan:
    done, missing = missing_of(arguments.train, sweep, members, arguments.overwrite, files=False)
    with_trained = (m for member in members for m in (member.trained, member) if m is member or m in missing)
    for member in {member.name: member for member in with_trained}.values():
      print(f"{member.name}: {(done.get(member.name) or ['to evaluate' if member.trained else 'to train'])[0]}")
    return
  drawable = bool(importlib.util.find_spec("matplotlib"))
  if not drawable:
    print(f"sweep.py: no picture will be drawn: {drawing.WITHOUT_MATPLOTLIB}; then run this again",
          file=sys.stderr, flush=True)
  signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C; otherwise ./train would outlive this script
  if arguments.table:
    Contents(arguments.train).check(sweep, members)
    done, failed, stopped = {m.name: found for m in members if (found := outcome(m))}, {}, False
  else:
    done, failed, stopped = collect(arguments.train, sweep, members, arguments.overwrite)
  if arguments.table and not done:
    raise UserError("no run of this sweep is complete; --plan lists them, and without --table they are trained")
  if done:
    mode = str(next(iter(done.values()))[1].config["eval"].get("mode") or "windows").replace("windows", "")
    stem = os.path.join("runs", short("_".join(filter(None, (sweep["name"], sweep["size"], mode))), 250))
    path = arguments.results or stem + ".json"
    sweep, members = with_complete(arguments.train, sweep, members, path)
    done = {**{m.name: found for m in members if (found := outcome(m))}, **done}
    result = summary(sweep, members, done, failed)
    order = [*itertools.product(*sweep["axes"].values())]
    for member in (member for member in members if os.path.isdir(os.path.join("runs", member.name))):
      labels = tuple(member.labels.values())
      variants.write_note(os.path.join("runs", member.name), sweep=sweep["name"], labels=labels,
                          place=order.index(labels))
    with open(path, "w", encoding="utf-8") as file:
      json.dump(result, file, indent=1)
      file.write("\n")
    print("\n\n".join(section_sweep.texts(result)), flush=True)
    if drawable:
      panel = functools.partial(section_sweep.draw, result)
      drawing.picture([panel], panel).savefig(arguments.picture or stem + ".png", dpi=drawing.DPI)
  for name, reason in failed.items():
    print(f"sweep.py: runs/{name} failed: {reason}", file=sys.stderr)
  if stopped:
    die_of_interrupt()
  sys.exit(1 if failed else 2 if arguments.picture and not drawable else 0)


if __name__ == "__main__":
  run_main(main, "run this again, without --overwrite, to continue")
