#!/usr/bin/env python3
"""Trains one run for each combination of a sweep's axes and seeds, and compares them.

    python3 scripts/sweep.py configs/sweeps/lr.json [--size gpu] [--axis KEY=A,B]... [--seeds 1,2,3]
                             [--set key=value]... [--jobs N] [--plan | --table] [--overwrite]
                             [--results FILE] [--picture FILE] [--csv FILE] [--latex FILE]

docs/comparing.md says what a sweep file holds, which runs are made, repeated and called diverged,
and what the charts show. Runs ./train ($TRAIN if set) for each combination, all of them with the
first seed before any with the second; --jobs does several at once, each on a GPU of its own or with
a share of the cores. Prints the losses, mean and 95% interval over the seeds, and paired differences
to the first row. --results keeps all of it [runs/SWEEP.json]; --picture draws it [runs/SWEEP.png].
Ctrl-C ends the sweep once its runs have saved. --plan prints commands for Slurm or xargs instead, and
with --set plan.memory=80GiB --set plan.tflops=500 the hours of the trainings on a GPU.
"""
from __future__ import annotations
import argparse
import functools
import importlib.util
import itertools
import os
import re
import shlex
import sys

from lib import drawing, metrics, sweep_file, variants
from lib.common import ArgumentParser, UserError, check_output, end_by, run as run_main, train
from lib.sweep_members import check_contents, check_settings, flags_of, members_of, outcome, short
from lib.sweep_runs import Runs


def missing_of(program, sweep, members, overwrite, files):
  """Those to train or to evaluate, each after the one whose weights it evaluates."""
  missing = {}
  for member in members:
    if overwrite or not outcome(member):
      if member.trained and (overwrite or not outcome(member.trained)):
        missing.setdefault(member.trained.name, member.trained)
      missing.setdefault(member.name, member)
  check_settings(program, sweep, missing.values(), files)
  if not overwrite:
    check_contents(program, sweep, members)
  return [*missing.values()]


def only(names, missing, members):
  known = {each.name for member in members for each in (member, member.trained) if each}
  for name in names:
    if name not in known:
      raise UserError(f"--only {name}: no run of this sweep is called so; --plan prints whole commands")
  return [member for member in missing if member.name in names]


def plan(program, sweep, members):
  """The commands, one for each training with what evaluates its weights."""
  lines = {}
  for member in members:
    lines.setdefault((member.trained or member).name, []).append(member.name)
  again = shlex.join(word for word in sys.argv if word != "--plan")
  again = re.sub(r" --set[ =]plan\.\S+", "", again)  # which ./train takes in a dry run alone
  for names in lines.values():
    print(shlex.quote(sys.executable), again, "--only", shlex.quote(",".join(names)))
  if {"plan.memory", "plan.tflops"} <= {*sweep["set"]}:
    said = "".join(train(program, *flags_of(sweep, member), "--dry-run")
                   for member in members if not member.trained)
    hours = sum(map(float, re.findall(r", (\S+) hours at ", said)))
    print(f"sweep.py: {len(lines)} runs, {hours:.3g} hours if one follows the other", file=sys.stderr)


# ---------------------------------------------------------------------------------------------------------- results

def entry(member, found, failed):
  """A member's results."""
  state, run, why = found or ("failed" if member.name in failed else "missing", None, "")
  ended = run and run.step() == run.steps()
  evaluated = {str(n): row for n, row in sorted(metrics.evaluated(run).items())} if ended else {}
  labelled = {n: row for n, row in evaluated.items() if row.get("of.label_mean")}

  def measured(key, rows):
    return {n: value for n, row in rows.items() if (value := row.get(key)) is not None}

  losses = measured("loss", evaluated)
  return {"name": member.name, "labels": member.labels, "seed": member.seed, "state": state,
          "why": why or failed.get(member.name, ""),
          "initial": run and metrics.initial_loss(run),
          "loss": losses.get(str(metrics.main_length(run))) if run else None,
          "losses": losses, "bits_per_byte": measured("bits_per_byte", evaluated),
          **{key: measured(key, labelled) for key in ("accuracy", "exact")}}


def summary(sweep, members, done, failed):
  """All that tables and charts need, as JSON."""
  runs = [run for _, run, _ in done.values()]
  first = runs[0]

  def values(section, key):
    found = {metrics.finite(metrics.section(run.config, section).get(key)) for run in runs}
    return " or ".join(map(str, sorted(found - {None})))

  def said(key):
    return " and ".join(dict.fromkeys(text for run in runs for text in run.said(key))) or None

  return {
      **{key: sweep[key] for key in ("name", "size", "config", "set", "seeds", "chart", "best_of")},
      "axes": {axis: [*labels] for axis, labels in sweep["axes"].items()},
      "mode": metrics.section(first.config, "eval").get("mode", "windows"),
      "commit": said("commit"), "device": said("device"),
      "command": shlex.join(["python3", *sys.argv]), "context": first.context(),
      "contexts": sorted({run.context() for run in runs} - {None}),
      "steps": values("train", "steps"), "tokens_per_step": values("batch", "tokens"),
      "lengths": sorted({length for run in runs for length in run.config["eval"]["lengths"]}),
      "runs": [entry(member, done.get(member.name), failed) for member in members]}


def write_notes(sweep, members):
  """What plot.py and report.py call the runs."""
  order = [*itertools.product(*sweep["axes"].values())]
  for member in members:
    if os.path.isdir(member.folder()):
      labels = tuple(member.labels.values())
      variants.write_note(member.folder(), sweep=sweep["name"], labels=labels, place=order.index(labels))


def show(sweep, members, done, failed, arguments, drawable):
  from lib import results, section_sweep  # which need pandas
  result = summary(sweep, members, done, failed)
  write_notes(sweep, members)
  mode = "suffix" * (result["mode"] == "suffix")
  stem = short("_".join(filter(None, (sweep["name"], sweep["size"], mode))), 250)
  with open(arguments.results or f"runs/{stem}.json", "w", encoding="utf-8") as file:
    file.write(results.text(result))
  grid = section_sweep.Grid(result)
  for path, write in (arguments.csv, section_sweep.csv), (arguments.latex, section_sweep.latex):
    if path:
      with open(path, "w", encoding="utf-8") as file:
        file.write(write(grid))
  print("\n\n".join(section_sweep.texts(result)), flush=True)
  if drawable:
    panel = functools.partial(section_sweep.draw, result)
    path = arguments.picture or f"runs/{stem}.png"
    drawing.picture([panel], panel).savefig(path, dpi=drawing.DPI)


# ---------------------------------------------------------------------------------------------------------- the flags

def distinct(kind, example):
  """The type of an option with values of a kind, separated by commas."""
  def parse(given):
    try:
      values = [kind(value) for value in given.split(",")]
    except ValueError:
      raise argparse.ArgumentTypeError(f"{given!r} is not a list such as {example}")
    if len({*values}) < len(values):
      raise argparse.ArgumentTypeError(
          f"{given!r} has a value twice, which would train and count one run twice")
    return values
  return parse


def pair(kind):
  def parse(given):
    key, equals, value = given.partition("=")
    if not equals:
      raise argparse.ArgumentTypeError(f"{given!r} is not KEY=VALUE")
    return key, kind(value)
  return parse


def parse_arguments():
  parser = ArgumentParser(description=__doc__, allow_abbrev=False)
  add, many = parser.add_argument, {"action": "append", "default": []}
  add("sweep", metavar="SWEEP.json", help="configs/sweeps/ has examples")
  add("--size", metavar="NAME", help="one of the sizes in the file")
  add("--config", help="in place of the file's")
  add("--axis", **many, type=pair(distinct(str, "1e-3,2e-3")), metavar="KEY=A,B,...")
  add("--seeds", type=distinct(int, "1,2,3"), metavar="N,M,...")
  add("--set", **many, type=pair(str), metavar="key=value", help="for every run")
  add("--train", default=os.environ.get("TRAIN", "./train"), help="the program [$TRAIN, else ./train]")
  add("--jobs", type=int, default=1, metavar="N", choices=range(1, 1025), help="runs at once [1]")
  add("--plan", action="store_true", help="print a command for each run that is not complete")
  add("--only", type=distinct(str, "NAME"), metavar="NAME,...",
      help="only these runs, without results; of the commands of --plan")
  add("--table", action="store_true", help="only the results of the runs that are complete")
  add("--overwrite", action="store_true", help="train every run again, complete ones too")
  add("--results", metavar="FILE.json")
  add("--picture", metavar="FILE.png", help=".png, .pdf or .svg")
  add("--csv", metavar="FILE.csv", help="the numbers of the tables")
  add("--latex", metavar="FILE.tex", help="the tables")
  return parser.parse_args()


def check_outputs(arguments, sweep):
  """Before hours of training. Whether a picture can be drawn."""
  for flag in ("results", "csv", "latex"):
    if path := getattr(arguments, flag):
      check_output("--" + flag, path, (arguments.sweep, sweep["config"]))
  drawable = bool(importlib.util.find_spec("matplotlib"))
  if arguments.picture and not drawable:
    raise UserError(f"--picture: {drawing.WITHOUT_MATPLOTLIB}")
  if arguments.picture:
    arguments.picture = drawing.picture_path("--picture", arguments.picture)
  if not drawable:
    print(f"sweep.py: no picture will be drawn: {drawing.WITHOUT_MATPLOTLIB}", file=sys.stderr)
  from lib import results  # noqa: F401: ends the script without pandas
  return drawable


def main():
  arguments = parse_arguments()
  program, overwrite = arguments.train, arguments.overwrite
  sweep = sweep_file.read(arguments.sweep, arguments)
  results = not arguments.plan and not arguments.only
  drawable = results and check_outputs(arguments, sweep)
  members = members_of(program, sweep)
  if arguments.table:
    check_contents(program, sweep, members)
    runs = Runs(program, sweep, [], False)
  else:
    missing = missing_of(program, sweep, members, overwrite, files=not arguments.plan)
    if arguments.plan:
      return plan(program, sweep, missing)
    if arguments.only:
      missing = only(arguments.only, missing, members)
    runs = Runs(program, sweep, missing, overwrite)
    runs.run(arguments.jobs)
  if results:
    left = {*runs.failed, *(member.name for member in runs.left if overwrite)}
    done = {member.name: found for member in members
            if member.name not in left and (found := outcome(member))}
    if done:
      show(sweep, members, done, runs.failed, arguments, drawable)
    elif arguments.table:
      raise UserError("no run of this sweep is complete; --plan names them, and without --table they "
                      "are trained")
  if runs.signal:
    print("sweep.py: stopped; run this again, without --overwrite, to continue", file=sys.stderr)
    sys.stdout.flush()
    end_by(runs.signal)
  if runs.failed:
    print(f"sweep.py: {len(runs.failed)} of {len(members)} runs failed", file=sys.stderr)
    sys.exit(1)


if __name__ == "__main__":
  run_main(main, "run this again, without --overwrite, to continue")
