"""Runs that differ in the seed alone are one variant: one label, look and line everywhere."""
from __future__ import annotations
import json
import os
import re

from lib import metrics
from lib.common import UserError, read_json

UNIMPORTANT = ("name", "threads", "log.", "checkpoint.", "seed")  # between runs of one variant
COLOURS = ["#2563a8", "#d1603d", "#3a8f5c", "#8a4f9e", "#b08a1e", "#4c9aa8", "#a13d5b", "#5d6470"]
LINES, MARKERS = ["-", "--", ":", "-."], "os^Dv<P>"
LOOKS = len(COLOURS) * len(MARKERS)


def look(number: int) -> dict[str, str]:
  """Of a line. No two have the same colour and marker up to LOOKS, nor, for prints in grey, the
  same style and marker up to half of that."""
  turn, colour = divmod(number, len(COLOURS))
  return {"color": COLOURS[colour], "linestyle": LINES[turn % len(LINES)],
          "marker": MARKERS[(colour + turn) % len(MARKERS)]}


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


# --------------------------------------------------- what a sweep says of a run

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
    label = ", ".join(found["labels"])
    return {"sweep": found["sweep"], "label": label, "place": int(found["place"])}
  except (ValueError, LookupError, TypeError):
    return {}


# --------------------------------------------------------------------- variants

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


def groups_of(runs: list[metrics.Run]) -> list[list[metrics.Run]]:
  """Those that differ in the seed, also of the run they began with, and in nothing that matters."""
  def fits(run, group):
    series = {last["series"] for other in [run, *group] if (last := other.last())}
    return len(series) < 2 and run.seed() not in {other.seed() for other in group}

  groups = []  # (settings, runs)
  for run in runs:
    rest = {key: value for key, value in settings(run).items() if not key.startswith(UNIMPORTANT)}
    group = next((group for known, group in groups if known == rest and fits(run, group)), None)
    if group is None:
      groups.append((rest, group := []))
    group.append(run)
  return [group for _, group in groups]


def of(runs: list[metrics.Run]) -> list[Variant]:
  """The variants of these runs; a sweep's in its order, and called as there unless two are equal."""
  found = [*map(Variant, groups_of(runs))]
  titles = [variant.title for variant in found]
  for variant, title in zip(found, titles):
    if titles.count(title) > 1:
      variant.call(variant.name)
  labels = [variant.label for variant in found]
  for variant, label in zip(found, labels):
    if labels.count(label) > 1:
      variant.call(variant.runs[0].label)
  places = [variant.note.get("place") for variant in found]
  one_sweep = len({variant.note.get("sweep") for variant in found}) == 1 and None not in places
  if one_sweep:
    found.sort(key=lambda variant: variant.note["place"])
  # looks as in the sweep's picture
  own = one_sweep and len(set(places)) == len(places) and max(places) < LOOKS
  for number, variant in enumerate(found):
    variant.look = look(variant.note["place"] if own else number)
  return found


def baseline(runs: list[metrics.Run], wanted: str | None) -> metrics.Run:
  """The run in the folder `wanted`, which --baseline names; without one the first variant's."""
  if not wanted:
    return of(runs)[0].runs[0]
  path = os.path.realpath(metrics.metrics_file(wanted))
  for run in runs:
    if run.path == path:
      return run
  raise UserError(f"--baseline {wanted}: must be one of {', '.join(run.folder for run in runs)}")


def mean_text(values, digits: str = "{:.3f}", seeds: int = 0, exact: bool = False,
              share: bool = False) -> str:
  """The mean over the seeds with its 95% interval; "-" without values. seeds: how many there should
  be. exact: equal values have no interval. share: the values lie between 0 and 1, which an interval
  of two seeds may not."""
  values = list(values)
  if not values:
    return "-"
  mean = sum(values) / len(values)
  missing = f" ({len(values)} of {seeds} seeds)" if len(values) < seeds else ""
  text = (digits if abs(mean) < 1e15 else "{:.3g}").format(mean)
  if exact and len(set(values)) == 1:
    return text + missing
  if share and len(values) == 2 and metrics.half_width(values) > min(mean, 1 - mean):
    return text + " (2 seeds are too few for an interval)" + missing
  digits = re.sub(r"\.\dg", ".2g", digits.replace("+", ""))
  return text + metrics.plus_minus(values, digits) + missing
