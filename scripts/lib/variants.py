"""Runs that differ in the seed alone are one variant: one label, look and line everywhere. Standard library only."""
from __future__ import annotations
import json
import os
import re

from lib import metrics
from lib.common import UserError, read_json

UNIMPORTANT = ("name", "threads", "log.", "checkpoint.", "seed")  # between runs that differ by seed only
COLOURS = ["#2563a8", "#d1603d", "#3a8f5c", "#8a4f9e", "#b08a1e", "#4c9aa8", "#a13d5b", "#5d6470"]
LINES, MARKERS = ["-", "--", ":", "-."], "os^Dv<P>"
LOOKS = len(COLOURS) * len(LINES)


def look(number: int) -> dict[str, str]:
  """Of a line: a colour, and for prints in grey a style and a marker. No two are alike up to LOOKS."""
  turn, colour = divmod(number, len(COLOURS))
  return {"color": COLOURS[colour], "linestyle": LINES[(colour + turn) % len(LINES)], "marker": MARKERS[colour]}


def without_seed(run: metrics.Run, text: str) -> str:
  """The text with * for the run's seed, where it is a number of its own."""
  return re.sub(r"(?<![^\W_]|\.)%s(?![^\W_]|\.)" % re.escape(run.seed()), "*", text)


def settings(run: metrics.Run) -> dict[str, object]:
  """{key: value}, with the run's seed taken out of init."""
  config = run.settings()
  init = str(config.get("init", ""))
  if (common := without_seed(run, init)) != init:
    config.pop("content.init", None)  # another one for each seed
  return {**config, "init": common}


def note_file(folder: str) -> str:
  """Where scripts/sweep.py keeps what it knows of a run: why it has diverged, and its labels."""
  return os.path.join(folder, "sweep.json")


def read_note(folder: str) -> dict:
  try:
    found = read_json(note_file(folder))
  except UserError:  # none, or one that was being written when the sweep was killed
    found = {}
  return found if isinstance(found, dict) else {}


def write_note(folder: str, **entries) -> None:
  known = read_note(folder)
  with open(note_file(folder), "w", encoding="utf-8") as file:
    json.dump({**known, **entries}, file)


def note(folder: str) -> dict:
  """{"sweep", "label", "place": of its combination in the sweep}, or {} for a run of no sweep."""
  found = read_note(folder)
  try:
    return {"sweep": found["sweep"], "label": ", ".join(found["labels"]), "place": int(found["place"])}
  except (ValueError, LookupError, TypeError):
    return {}


class Variant:
  def __init__(self, runs):
    self.runs, self.note = runs, note(runs[0].folder)
    names = {without_seed(run, run.label) for run in runs}
    self.name = names.pop() if len(names) == 1 and runs[1:] else runs[0].label
    self.call(self.note.get("label") or self.name)

  def call(self, title):
    """title: for a panel of its own; label: also says how many seeds there are."""
    self.title = title
    self.label = f"{title} ({len(self.runs)} seeds)" if self.runs[1:] else title


def of(runs: list[metrics.Run]) -> list[Variant]:
  """The variants of these runs: lists that differ in the seed, also of the run that they began with, and in nothing
  else that matters. Those of one sweep are in its order, and are called as in its tables, unless two would have one
  label."""
  groups = []
  for run in runs:
    rest = {key: value for key, value in settings(run).items() if not key.startswith(UNIMPORTANT)}
    same = [group for known, group in groups if known == rest and run.seed() not in {other.seed() for other in group}
            and not (run.own and group[0].own and run.own.series != group[0].own.series)]
    if same:
      same[0].append(run)
    else:
      groups.append((rest, [run]))
  found = [Variant(group) for _, group in groups]
  titles = [variant.title for variant in found]
  for variant, title in zip(found, titles):
    if titles.count(title) > 1:
      variant.call(variant.name)
  places = [variant.note.get("place") for variant in found]
  one_sweep = len({variant.note.get("sweep") for variant in found}) == 1 and None not in places
  if one_sweep:
    found.sort(key=lambda variant: variant.note["place"])
  own = one_sweep and len(set(places)) == len(places) and max(places) < LOOKS  # looks as in the sweep's picture
  for number, variant in enumerate(found):
    variant.look = look(variant.note["place"] if own else number)
  return found


def baseline(runs: list[metrics.Run], wanted: str | None) -> metrics.Run:
  """The run in the folder `wanted`, which --baseline names; without one that of the first variant."""
  path = os.path.realpath(metrics.metrics_file(wanted)) if wanted else of(runs)[0].runs[0].path
  for run in runs:
    if run.path == path:
      return run
  raise UserError(f"--baseline {wanted}: must be one of {', '.join(run.folder for run in runs)}")


def mean_text(values: list[float], digits: str = "{:.3f}", seeds: int = 0, exact: bool = False,
              share: bool = False) -> str:
  """The mean over the seeds with its 95% interval; "-" without values. seeds: how many there should be. exact: equal
  values are exact, and have no interval. share: the values lie between 0 and 1, which an interval of two
  seeds may not."""
  if not values:
    return "-"
  mean, found = metrics.mean(values), f" ({len(values)} of {seeds} seeds)" * (len(values) < seeds)
  text = (digits if abs(mean) < 1e15 else "{:.3g}").format(mean)
  if exact and len(set(values)) == 1:
    return text + found
  if share and len(values) == 2 and metrics.half_width(values) > min(mean, 1 - mean):
    return text + " (2 seeds are too few for an interval)" + found
  return text + metrics.plus_minus(values, re.sub(r"\.\dg", ".2g", digits.replace("+", ""))) + found


def over_seeds(curves: list[list[tuple[float, float]]]) -> list[tuple[float, float, float, float]]:
  """[(x, mean, least, most)] at every x that all curves [(x, y)] have."""
  tables = [dict(curve) for curve in curves if curve]
  common = sorted(set.intersection(*map(set, tables))) if tables else []
  values = {x: [table[x] for table in tables] for x in common}
  return [(x, metrics.mean(values[x]), min(values[x]), max(values[x])) for x in common]
